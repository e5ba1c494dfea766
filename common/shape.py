"""What a table's rows become on their way into a sink: the rule that a person wrote for it, and its mode (pure).

A shape stands in the table's schema (schema.py), so each staged file, checkpoint and publication has the shape by which
its rows are read, and a shape that changes belongs to the table's next generation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["mirror", "append", "soft-delete", "history"]
"""What a lake table is: the source's rows; every change, a row each; the source's rows and, marked, deleted ones; every
version of each row."""
Images = Literal["after", "both"]
"""Of an update in `append`: the row after it, or a row of before it too."""
_ALL = ("*",)

_WORD = re.compile(r"[a-z0-9_]+", re.ASCII)
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_ITSELF = re.compile(r"[\w ]*", re.ASCII)
"""A text that means itself, also as a pattern."""
_NAME = r"(?:[a-z0-9_]+|`[^`]+`)"
_EXCEPT = re.compile(rf"\s*\*\s*except\s*\(\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*\)\s*", re.ASCII)
_STAR = re.compile(r"(?:^|[^\w\s)\]'\"`]|\b(?:all|distinct)\b)\s*\*|--")
"""A `*` that no operand is before: it may stand for all columns. So may one behind a comment, up to a line's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A Python function that a rule calls by `name`: `call` in a module ("module:function"), with values of the `type`
    that Spark SQL names so. A person raises `version` when its code changes."""

    name: str
    call: str
    type: str
    version: int = 1

    def is_called_in(self, text: str) -> bool:
        """Whether an expression may call it."""
        return self.name in _WORD.findall(text.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The rule: items of a SELECT list and a condition, both in Spark SQL over the columns of the source's table. And
    what becomes of the rows that it gives, `mode`.

    `where` None: all rows. Readers put keyed hashes (masking.py) in the place of the values of the columns `mask`, by
    the key that has the fingerprint `mask_key`; so the rule and all that is written have the hashes. `images` both: in
    `append` only. `chunk_by` are columns that readers need besides.
    """

    select: tuple[str, ...] = _ALL
    where: str | None = None
    mask: tuple[str, ...] = ()
    mask_key: str | None = None
    mode: Mode = "mirror"
    images: Images = "after"
    chunk_by: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    key: tuple[str, ...] = ()

    def needs(self, columns: Collection[str]) -> set[str]:
        """Those of a table's columns that the rule may need; some that it does not need may be among them.

        Only Spark understands the rule, and readers have none: a column is left out if no part of the rule can mean it.
        That is so for a plain name that is no word of it, where no `*` stands for all columns but those of an EXCEPT.
        """
        texts: list[str] = []
        stars: list[set[str]] = []  # for each `*`, the names that it leaves out
        for item in map(str.lower, self.select):
            if item.strip() == "*":
                stars.append(set())
            elif (found := _EXCEPT.fullmatch(item)) is not None:
                stars.append({name.strip().strip("`") for name in found[1].split(",")})
            else:
                texts.append(item)
        texts += [] if self.where is None else [self.where.lower()]
        names = {name.lower() for name in columns}
        quoted = {name for text in texts for name in _QUOTED.findall(text)} - names
        words = {word for text in (*texts, *map(str.lower, self.chunk_by)) for word in _WORD.findall(text)}
        # Names that an expression makes, and patterns of names (spark.sql.parser.quotedRegexColumnNames).
        made = "identifier" in words or not all(map(_ITSELF.fullmatch, quoted))
        if made or any(map(_STAR.search, texts)):
            return set(columns)
        left_out = stars[0].intersection(*stars[1:]) if stars else names
        return {
            name
            for name in columns
            if name.lower() in words or name.lower() not in left_out or _WORD.fullmatch(name.lower()) is None
        }

    @property
    def ruled(self) -> bool:
        """Whether there is a rule, not a mode alone."""
        return self.select != _ALL or self.where is not None or self.key != ()

    @property
    def needs_before(self) -> bool:
        """Whether changes must be staged with the row before each update.

        By it alone a condition tells an update that takes a row out (a delete) from one of a row that was out before.
        A mirror need not tell: to delete a row that is not there changes nothing. But of another key than the source's
        it alone has the value before.
        """
        return bool(self.key) or (self.mode != "mirror" and (self.images == "both" or self.where is not None))

    def to_json(self) -> dict[str, Any]:
        """A plain dict, for JSON, without the attributes that have their defaults."""
        body: dict[str, Any] = {"select": list(self.select)}
        if self.where is not None:
            body["where"] = self.where
        if self.mask:
            body |= {"mask": list(self.mask), "mask_key": self.mask_key}
        if self.mode != "mirror":
            body["mode"] = self.mode
        if self.images != "after":
            body["images"] = self.images
        if self.functions:
            body["functions"] = [[each.name, each.call, each.type, each.version] for each in self.functions]
        if self.key:
            body["key"] = list(self.key)
        return body | ({"chunk_by": list(self.chunk_by)} if self.chunk_by else {})

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Shape:
        """Read what `to_json` made."""
        return cls(
            select=tuple(body["select"]),
            where=body.get("where"),
            mask=tuple(body.get("mask", ())),
            mask_key=body.get("mask_key"),
            mode=body.get("mode", "mirror"),
            images=body.get("images", "after"),
            chunk_by=tuple(body.get("chunk_by", ())),
            key=tuple(body.get("key", ())),
            functions=tuple(
                Function(name=name, call=call, type=kind, version=version)
                for name, call, kind, version in body.get("functions", ())
            ),
        )
