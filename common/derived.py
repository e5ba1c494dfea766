"""A derived table: a query in Spark SQL over the tables of a pipeline, as a part of its definition (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """The query `sql`, whose result the lake has as the table `name` ("db.table"). `every_minutes`: it is computed at
    most that often; None: for each publication that changes what it reads."""

    name: str
    sql: str
    every_minutes: float | None = None

    @property
    def query(self) -> str:
        """16 hex digits that name the query; equal queries have equal ones."""
        return hashlib.sha256(json.dumps(self.sql).encode()).hexdigest()[:16]


def derived_of(definition: Mapping[str, Any]) -> tuple[DerivedTable, ...]:
    """The derived tables of a pipeline's definition, in its order."""
    listed: Iterable[Mapping[str, Any]] = definition.get("derived") or ()
    return tuple(
        DerivedTable(name=each["name"], sql=each["sql"], every_minutes=each.get("every_minutes")) for each in listed
    )
