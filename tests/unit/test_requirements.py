"""Servers that are refused by their version alone."""

from __future__ import annotations

from typing import Any, Literal, cast

import pytest

from cutline.services.sources.mysql.requirements import setting_faults
from cutline.services.sources.mysql.server import Server


@pytest.mark.parametrize(
    ("flavour", "version", "name"),
    [("mysql", (5, 7, 44), "MySQL 5.7.44"), ("mariadb", (10, 4, 34), "MariaDB 10.4.34")],
)
def test_a_server_that_is_too_old_is_refused_by_name(
    flavour: Literal["mysql", "mariadb"], version: tuple[int, ...], name: str
) -> None:
    """Before anything is asked of it: it may not know the question."""
    server = Server(flavour=flavour, version=version, identity="x", gtid=True)
    (fault,) = setting_faults(cast(Any, None), server)
    assert fault == (
        f"{name} is too old; use one of MySQL 8.0, 8.4 and 9.7, MariaDB 10.11, 11.4 and 11.8"
    )
