"""Servers that are refused by their version alone."""

from __future__ import annotations

from typing import Any, Literal, cast

import pytest

from cutline.services.sources.mysql import requirements
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
    assert str(fault) == (
        f"{name} is too old; use one of MySQL 8.0, 8.4 and 9.7, MariaDB 10.11, 11.4 and 11.8"
    )


def test_a_mariadb_whose_binlog_is_in_innodb_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """No suite of Debian has such a server yet, so its answer is made up."""
    settings = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
    server = Server(flavour="mariadb", version=(12, 3, 1), identity="x", gtid=True)
    monkeypatch.setattr(requirements, "variables", lambda *_: {**settings, "binlog_storage_engine": "innodb"})
    (fault,) = setting_faults(cast(Any, None), server)
    assert str(fault) == (
        "MariaDB 12.3.1 keeps its binlog in innodb (binlog_storage_engine), which Cutline can't read; unset that"
        " option, so that the binlog is in files"
    )
    monkeypatch.setattr(requirements, "variables", lambda *_: {**settings, "binlog_storage_engine": ""})
    assert setting_faults(cast(Any, None), server) == []
