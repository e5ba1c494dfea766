"""What a table's rows become on their way into a sink: the rule that a person wrote for it (pure).

A rule stands in the table's schema (schema.py), so each staged file, checkpoint and publication has the rule by which
its rows are read, and a rule that changes belongs to the table's next generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Items of a SELECT list and a condition, both in Spark SQL over the columns of the source's table.

    `where` None: all rows.
    """

    select: tuple[str, ...] = ("*",)
    where: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        body: dict[str, Any] = {"select": list(self.select)}
        return body if self.where is None else body | {"where": self.where}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Shape:
        """Read what `to_json` made."""
        return cls(select=tuple(body["select"]), where=body.get("where"))
