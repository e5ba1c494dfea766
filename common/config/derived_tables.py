"""Derived tables in the pipeline file: their names, queries, and when they are computed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, field_validator

from cutline.common.config.faults import Strict, fault
from cutline.common.config.table_options import MOMENT

_NAME = re.compile(r"[\w$-]+\.[\w$-]+")


class DerivedConfig(Strict):
    """A table of the lake that is a query over the pipeline's tables."""

    name: str = Field(description="the lake table, as db.table; no table of the source may have that name")
    sql: str = Field(
        description="a query in Spark SQL over tables of this pipeline, derived ones too, each named as db.table"
    )
    refresh: Literal["full", "keys"] = Field(
        default="full",
        description="how it is computed: full, all of it each time; keys, only the rows that the changes touch",
    )
    every_minutes: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda minutes: minutes is None,
        description="compute it at most that often; null: for each publication that changes what it reads",
    )

    @field_validator("name", mode="after")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise fault(f"must be db.table, of letters, digits, _, $ and -, not {name!r}")
        return name

    @field_validator("sql", mode="after")
    @classmethod
    def _steady(cls, sql: str) -> str:
        if not sql.strip():
            raise fault("is empty", "write a query in Spark SQL")
        if "${" in sql:  # Spark's parser would put the value of an environment variable there: a password
            raise fault("has ${, which would name a setting of Spark's process", "write the value")
        if (found := MOMENT.search(sql)) is not None:
            raise fault(f"has {found[0]}, in which Spark reads a word as the present time", "use a column's time")
        return sql


def name_problem(derived: Iterable[DerivedConfig], tables: Iterable[str], namespace: str) -> tuple[str, str] | None:
    """What is wrong with the names of derived tables, and what to do; `tables` are the globs of captured ones."""
    captured = {pattern.lower() for pattern in tables}
    seen: set[str] = set()
    for each in derived:
        name = each.name.lower()
        if name in seen:
            return f"has two derived tables {each.name}", "give one another name"
        if name in captured:
            return f"has a derived table {each.name}, which is a table of the source", "give it another name"
        if name.partition(".")[0] == namespace.lower():
            return f"has a derived table {each.name} in the namespace of Cutline's own tables", "choose another one"
        seen.add(name)
    return None
