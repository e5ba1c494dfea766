"""A derived table: a query in Spark SQL over the tables of a pipeline, as a part of its definition (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KEYS = "keys"
"""The `refresh` by which only what the changes touch is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """The query `sql`, whose result the lake has as the table `name` ("db.table"). `every_minutes`: it is computed at
    most that often; None: for each publication that changes what it reads. `refresh`: `full`, or `keys`, which computes
    only what the changes touch."""

    name: str
    sql: str
    every_minutes: float | None = None
    refresh: str = "full"

    @property
    def query(self) -> str:
        """16 hex digits that name the query; equal queries have equal ones."""
        return hashlib.sha256(json.dumps(self.sql).encode()).hexdigest()[:16]


def derived_of(definition: Mapping[str, Any]) -> tuple[DerivedTable, ...]:
    """The derived tables of a pipeline's definition, in its order."""
    listed: Iterable[Mapping[str, Any]] = definition.get("derived") or ()
    return tuple(
        DerivedTable(
            name=each["name"],
            sql=each["sql"],
            every_minutes=each.get("every_minutes"),
            refresh=each.get("refresh", "full"),
        )
        for each in listed
    )
