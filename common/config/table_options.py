"""Options for single tables, in the pipeline file: how they are chunked, identified, shaped, sorted and partitioned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cutline.common.config.faults import Strict, fault
from cutline.common.config.globs import glob_problem, select_tables
from cutline.common.shape import Function, Images, Mode, Shape

OUR_PROPERTIES = frozenset(
    (
        "current-schema",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "default-partition-spec",
        "default-sort-order",
        "encryption.key-id",
        "format-version",
        "gc.enabled",
        "history.expire.max-ref-age-ms",
        "schema.name-mapping.default",
        "snapshot-count",
        "uuid",
        "write.data.path",
        "write.delete.format.default",
        "write.delete.granularity",
        "write.format.default",
        "write.object-storage.path",
    )
)
"""Properties of a lake table that Iceberg keeps for itself, or without which Cutline can't write or expire files."""


def as_tuple(value: object) -> object:
    """A YAML list as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


def _scalar(value: object) -> object:
    """A YAML scalar as text that Spark and Iceberg read: 4 -> "4", true -> "true"."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Scalar = Annotated[str, BeforeValidator(_scalar)]


def sorted_by(column: str) -> tuple[str, bool]:
    """Split an item of `sort` into the column's name and whether it is descending: `day desc` -> ("day", True)."""
    if column.endswith(" desc"):
        return column.removesuffix(" desc"), True
    return column.removesuffix(" asc"), False


_TRANSFORM = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,)?\s*(.+?)\s*\)")
_PERIODS = ("year", "month", "day", "hour")


def partitioned_by(item: str) -> tuple[str, str]:
    """Split an item of `partition` into the column's name and Iceberg's transform of its values.

    `bucket(16, id)` -> ("id", "bucket[16]"), `days(at)` -> ("at", "day"), `region` -> ("region", "identity").
    ValueError if there is no such transform.
    """
    found = _TRANSFORM.fullmatch(item.strip())
    if found is None and item.strip() and "(" not in item:
        return item.strip(), "identity"
    name, width, column = found.groups() if found else ("", None, "")
    period = name.lower().removesuffix("s")
    if period in _PERIODS and width is None:
        return column, period
    if name.lower() in ("bucket", "truncate") and width is not None and 0 < int(width) < 2**31:
        return column, f"{name.lower()}[{int(width)}]"
    raise ValueError(item)

MOMENT = re.compile(r"(['\"])\s*(now|today|yesterday|tomorrow)\b[^'\"]*\1", re.IGNORECASE)
"""Texts that Spark takes for the time at which it analyses an expression, where a date or a timestamp is needed."""


class TableOptions(Strict):
    """Options for the tables of one glob, in addition to those for all tables."""

    tables: str = Field(description="glob on db.table; the first entry that matches a table applies")
    chunk_rows: int | None = Field(
        default=None, ge=1, description="rows of a chunk of these tables, instead of snapshot.chunk_rows"
    )
    chunk_by: Names = Field(
        default=(),
        description="NOT NULL columns, the first ones of an index, to chunk by instead of the identity; `replay` only",
    )
    identity: Names = Field(
        default=(),
        description="indexed NOT NULL columns that identify a row by your own guarantee, in a table without a key;"
        " duplicate rows quarantine the table",
    )
    select: Names = Field(
        default=(),
        exclude_if=lambda items: not items,
        description="the lake's columns, as items of a SELECT list in Spark SQL over the source's: `*`, `id`,"
        " `price * 2 AS double_price`, `* EXCEPT (note)`",
    )
    where: str | None = Field(
        default=None,
        exclude_if=lambda condition: condition is None,
        description="a condition in Spark SQL over the source's columns; the lake has the rows for which it is true",
    )
    key: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns of the lake table that are its key instead of the source's, also computed ones; the"
        " source's must be there too. Two rows with one key quarantine the table; needs snapshot.chunks: exact",
    )
    mask: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns whose values nothing that Cutline writes has: keyed hashes of them, by the key of masking",
    )
    mode: Mode = Field(
        default="mirror",
        exclude_if=lambda mode: mode == "mirror",
        description="what the lake table is. mirror: the source's rows; append: every change, a row each; soft-delete:"
        " the source's rows, and deleted ones with a mark; history: every version of each row. append and history need"
        " snapshot.chunks: exact",
    )
    images: Images = Field(
        default="after",
        exclude_if=lambda images: images == "after",
        description="of an update in `append`: the row after it, or `both`, the row before it too",
    )
    properties: dict[str, Scalar] = Field(
        default_factory=dict,
        exclude_if=lambda properties: not properties,
        description="Iceberg table properties that the lake table is made with; later changes by others stay",
    )
    format_version: Literal[3, 2] | None = Field(
        default=None,
        exclude_if=lambda version: version is None,  # so that definitions of before this setting are unchanged
        description="Iceberg format version of these tables, instead of sink.format_version",
    )
    sort: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns by which the rows in each data file are sorted; `desc` behind a name turns it round",
    )
    partition: Names = Field(
        default=(),
        exclude_if=lambda columns: not columns,
        description="columns by which the lake table is partitioned, each as it is or in one of Iceberg's transforms:"
        " `region`, `day(created)`, `bucket(16, id)`, `truncate(10, name)`",
    )

    @field_validator("properties", mode="after")
    @classmethod
    def _not_ours(cls, properties: dict[str, str]) -> dict[str, str]:
        for name in properties:
            if name.startswith(("cutline.", "write.metadata.metrics.column.")) or name in OUR_PROPERTIES:
                raise fault(f"sets {name!r}, which Cutline or Iceberg itself sets", "remove it")
        return properties

    @field_validator("select", "where", mode="after")
    @classmethod
    def _expressions(cls, given: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        for text in (given,) if isinstance(given, str) else given or ():
            if not text.strip():
                raise fault("has an empty expression in select or where", "write one in Spark SQL, or remove it")
            if "${" in text:  # Spark's parser would put the value of an environment variable there: a password
                raise fault(f"has {text!r}, in which ${{ would name a setting of Spark's process", "write the value")
            if MOMENT.search(text):
                raise fault(f"has {text!r}, in which Spark reads a word as the present time", "use a column's time")
        return given

    @field_validator("sort", mode="after")
    @classmethod
    def _each_once(cls, sort: tuple[str, ...]) -> tuple[str, ...]:
        names = [sorted_by(column)[0] for column in sort]
        for name in names:
            if not name.strip() or names.count(name) > 1:
                raise fault(f"sorts by {name!r}, which is empty or there twice", "name each column once")
        return sort

    @field_validator("key", mode="after")
    @classmethod
    def _distinct(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        for name in key:
            if not name.strip() or key.count(name) > 1:
                raise fault(f"has {name!r} in key, which is empty or there twice", "name each column once")
        return key

    @field_validator("partition", mode="after")
    @classmethod
    def _known_transforms(cls, partition: tuple[str, ...]) -> tuple[str, ...]:
        columns = []
        for item in partition:
            try:
                columns.append(partitioned_by(item)[0])
            except ValueError:
                raise fault(
                    f"partitions by {item!r}, which is no known transform",
                    "write a column's name, year(column), month(column), day(column), hour(column), bucket(16,"
                    " column) or truncate(10, column)",
                ) from None
        for name in columns:
            if columns.count(name) > 1:
                raise fault(f"partitions by {name!r} twice", "name each column once")
        return partition

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.tables.startswith("!"):
            raise fault(f'has tables {self.tables!r}, which is not a glob on db.table, as in "shop.*"')
        if (problem := glob_problem(self.tables)) is not None:
            raise fault(f"has tables {problem[0]}", problem[1])
        if self.chunk_by and self.identity:
            raise fault("has identity and chunk_by", "a table with an identity is chunked by it, so keep one")
        if self.images == "both" and self.mode != "append":
            raise fault(f"has images: both with mode: {self.mode}", "only append has rows of before an update")
        if self.key and self.mode != "mirror":
            raise fault(f"has key with mode: {self.mode}", "only a mirror can have another key than the source's")
        return self

    @property
    def has_shape(self) -> bool:
        """Whether the lake's rows are others than the source's."""
        return bool(self.select or self.where is not None or self.mask or self.key or self.mode != "mirror")

    def shape(self, mask_key: str | None, functions: Sequence[Function] = ()) -> Shape | None:
        """What the rows become by `select`, `where`, `key`, `mask` and `mode`; None: they stay as they are. `mask_key`
        is the fingerprint of the pipeline's key, `functions` are its Python functions."""
        if not self.has_shape:
            return None
        texts = (*self.select, *(() if self.where is None else (self.where,)))
        return Shape(
            select=self.select or ("*",),
            where=self.where,
            mask=self.mask,
            mask_key=mask_key if self.mask else None,
            mode=self.mode,
            images=self.images,
            chunk_by=self.chunk_by,
            key=self.key,
            functions=tuple(each for each in functions if any(map(each.is_called_in, texts))),
        )


def options_of(entries: Iterable[TableOptions], table_id: str) -> TableOptions:
    """The first of these entries that matches the table ("db.table"); empty options if none does."""
    found = (options for options in entries if select_tables((options.tables,), (table_id,)))
    return next(found, TableOptions(tables="*.*"))


def shapes_of(
    entries: Iterable[TableOptions],
    tables: Iterable[str],
    mask_key: str | None = None,
    functions: Sequence[Function] = (),
) -> dict[str, Shape]:
    """The rules of those of these tables that have one, by the first entry that matches each; quick for many tables."""
    shapes: dict[str, Shape] = {}
    unmatched = set(tables)
    entries = list(entries)
    while any(options.has_shape for options in entries):
        options = entries.pop(0)
        matched = select_tables((options.tables,), unmatched)
        unmatched.difference_update(matched)
        if (shape := options.shape(mask_key, functions)) is not None:
            shapes |= dict.fromkeys(matched, shape)
    return shapes
