"""The ports of a driver under test: those of production, with a Redis that does not answer, but for those that are
given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutline.common.mesh import production
from cutline.common.mesh.ports import Ports
from cutline.common.mesh.redis import connect


def ports(**given: Any) -> Ports:
    """The ports, with these in place of production's."""
    return replace(production.ports(connect("redis://127.0.0.1:1")), **given)
