"""What a table's rows become on their way into a sink: the rule that a person wrote for it, and its mode (pure).

A shape stands in the table's schema (schema.py), so each staged file, checkpoint and publication has the shape by which
its rows are read, and a shape that changes belongs to the table's next generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["mirror", "append", "soft-delete", "history"]
"""What a lake table is: the source's rows; every change, a row each; the source's rows and, marked, deleted ones; every
version of each row."""
Images = Literal["after", "both"]
"""Of an update in `append`: the row after it, or a row of before it too."""
_ALL = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The rule: items of a SELECT list and a condition, both in Spark SQL over the columns of the source's table. And
    what becomes of the rows that it gives, `mode`.

    `where` None: all rows. `images` both: in `append` only.
    """

    select: tuple[str, ...] = _ALL
    where: str | None = None
    mode: Mode = "mirror"
    images: Images = "after"

    @property
    def ruled(self) -> bool:
        """Whether there is a rule, not a mode alone."""
        return self.select != _ALL or self.where is not None

    @property
    def needs_before(self) -> bool:
        """Whether changes must be staged with the row before each update.

        By it alone a condition tells an update that takes a row out (a delete) from one of a row that was out before.
        A mirror need not tell: to delete a row that is not there changes nothing.
        """
        return self.mode != "mirror" and (self.images == "both" or self.where is not None)

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        body: dict[str, Any] = {"select": list(self.select)}
        if self.where is not None:
            body["where"] = self.where
        if self.mode != "mirror":
            body["mode"] = self.mode
        return body if self.images == "after" else body | {"images": self.images}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Shape:
        """Read what `to_json` made."""
        return cls(
            select=tuple(body["select"]),
            where=body.get("where"),
            mode=body.get("mode", "mirror"),
            images=body.get("images", "after"),
        )
