"""The columns of a lake table: their field ids, names, Iceberg types, comments and default values.

A field id in the lake is the pipeline's (common/schema.py) plus the generation's offset. The offset is 0 unless a new
generation gives an id another meaning; the offsets are the table properties `cutline.offset.<generation>`. A staged
file whose ids and types are the lake's is adopted as it is.

The columns of the key are the table's identifier fields, and therefore required, unless Iceberg refuses one of them
(FLOAT and DOUBLE). All other columns may be null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from cutline.common.causes import Code
from cutline.common.errors import CutlineError
from cutline.common.schema import FIELD_ID, Column, TableSchema, parse_type
from cutline.spark_writer.sinks.iceberg.fields import comment, field_id, iceberg_type, lake_fields
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, items

OFFSET = "cutline.offset."
Sort = tuple[tuple[int, bool], ...]
"""The lake's field ids of the columns by which rows are sorted, each with True if it is descending."""
Partition = tuple[tuple[int, str], ...]
"""The lake's field ids of the columns by which a table is partitioned, each with Iceberg's transform."""
DEFAULTS_VERSION = 3
"""The first format version in which a column has an initial default."""
EXACT = Context(prec=65)
"""Keeps all digits of a DECIMAL; Python's default context rounds to 28."""


class BadDefault(CutlineError):
    """The default of a column that was added can't be read as a value of its type: a fault of one table."""

    code = Code.LAKE


class Unsuitable(CutlineError):
    """A table has no column, or none of a fitting type, for what table_options ask of its lake table."""

    code = Code.LAKE


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table's columns in the lake: `arrow` has the lake's field ids, `java` is the same as an Iceberg schema.

    `defaults`: the table keeps initial defaults of columns, so a file may lack a column that came later. Format version
    2 has none: there each file has every column with a default. `sort`: the order of the rows in each file
    (sorting.py). `partition`: how rows are divided into files (partitioning.py), `spec` is the same as Iceberg has it,
    None in a table that never had partitions. `comments` are those that another user gave to columns, by the lake's
    field ids.
    """

    schema: TableSchema
    generation: int
    offset: int
    arrow: pa.Schema
    java: Any
    defaults: bool = True
    sort: Sort = ()
    partition: Partition = ()
    spec: Any = None
    comments: Mapping[int, str] = field(default_factory=dict)

    @property
    def in_memory(self) -> bool:
        """Whether the rows of a file are held in memory while it is written."""
        return bool(self.sort or self.partition)

    @property
    def portable(self) -> Layout:
        """The same without objects of the JVM, for other processes and threads."""
        return replace(self, java=None, spec=None)

    @property
    def highest_id(self) -> int:
        """The greatest field id in use, those of list elements included."""
        ids = [field_id(field) for field in self.arrow]
        return max(ids + [field_id(field.type.value_field) for field in self.arrow if pa.types.is_list(field.type)])


def lay_out(
    jvm: Jvm, metadata: Any, schema: TableSchema, generation: int, comments: Mapping[int, str] = MappingProxyType({})
) -> Layout:
    """Lay out `schema` in the lake table that has this TableMetadata; `comments` replace those of the source's columns.

    A generation's offset is chosen when the generation is first seen and recorded by its first commit.
    """
    fields = lake_fields(schema)
    known = metadata.property(f"{OFFSET}{generation}", None)
    if known is not None:
        offset = int(known)
    else:
        used = int(metadata.lastColumnId())  # 0: the table is new
        offset = 0 if not used or _ids_agree(jvm, metadata, fields) else used
    fields = [_shifted(field, offset) for field in fields]
    # As JSON, since each call to the JVM costs more than the rest.
    key, defaults = _identifier(schema), int(metadata.formatVersion()) >= DEFAULTS_VERSION
    columns = [
        _to_json(column, field, required=column.field_id in key, defaults=defaults, comments=comments)
        for column, field in zip(schema.lake, fields, strict=True)
    ]
    made = {"type": "struct", "identifier-field-ids": [number + offset for number in key], "fields": columns}
    java = jvm.iceberg.SchemaParser.fromJson(json.dumps(made))
    return Layout(
        schema=schema,
        generation=generation,
        offset=offset,
        arrow=pa.schema(fields),
        java=java,
        defaults=defaults,
        comments=dict(comments),
    )


def _identifier(schema: TableSchema) -> list[int]:
    """The field ids of the key's columns; none if Iceberg does not take one of them as an identifier field."""
    key = schema.key_columns
    if any(pa.types.is_floating(schema.field(column).type) for column in key):
        return []
    return [column.field_id for column in key]


def _ids_agree(jvm: Jvm, metadata: Any, fields: Sequence[pa.Field]) -> bool:
    """Whether each field id of these fields has the same meaning in the lake, or is not in use there yet."""
    known: dict[int, tuple[str, str]] = {}
    for old in items(metadata.schemas()):
        for each in json.loads(str(jvm.iceberg.SchemaParser.toJson(old)))["fields"]:
            known |= _meanings(each["id"], each["name"], each["type"])
    return all(
        known.get(number, meaning) == meaning
        for field in fields
        for number, meaning in _meanings(field_id(field), field.name, iceberg_type(field)).items()
    )


def _meanings(number: int, name: str, kind: str | Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """The ids of a field, and of a list's elements, each with a name and a type in Iceberg's JSON."""
    if isinstance(kind, str):
        return {number: (name, kind)}
    elements = {kind["element-id"]: ("element", "")} if "element-id" in kind else {}
    return {number: (name, kind["type"])} | elements


def _to_json(
    column: Column, field: pa.Field, *, required: bool, defaults: bool, comments: Mapping[int, str]
) -> dict[str, Any]:
    """A field as Iceberg's JSON has it."""
    made = {
        "id": field_id(field),
        "name": field.name,
        "required": required,
        "type": iceberg_type(field),
        "doc": comments.get(field_id(field), comment(column)),
    }
    value = default_value(column, field.type)
    if value is None or not defaults:
        return made
    value = single_value(value, field.type)
    return made | {"initial-default": value, "write-default": value}


def single_value(value: Any, kind: pa.DataType) -> Any:
    """Return a value of this Arrow type in the form of Iceberg's specification, "JSON single-value serialization"."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value.quantize(Decimal(1).scaleb(-kind.scale), context=EXACT), "f")
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _shifted(field: pa.Field, offset: int) -> pa.Field:
    if not offset:
        return field
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_shifted(kind.value_field, offset))
    return pa.field(field.name, kind, metadata={FIELD_ID: str(field_id(field) + offset)})


# Names


def quoted(name: str) -> str:
    """Quote a name for Spark."""
    return f"`{name.replace('`', '``')}`"


def defaulted(layout: Layout) -> set[int]:
    """Return the columns that have an initial default, by the field ids of their schema. Raises BadDefault."""
    pairs = zip(layout.schema.lake, layout.arrow, strict=True)
    return {column.field_id for column, field in pairs if default_value(column, field.type) is not None}


def default_value(column: Column, kind: pa.DataType) -> Any:
    """Return a column's initial default as a Python value of its Arrow type, None if it has none (or a zero date).

    Raises BadDefault.
    """
    text = column.initial_default
    if text is None:
        return None
    base = parse_type(column.mysql_type).base
    try:
        if base == "bit":
            bits = parse_type(column.mysql_type).numbers or (1,)
            number = int(text[2:-1], 2) if text.startswith("b'") else int(text)
            return bool(number) if pa.types.is_boolean(kind) else number.to_bytes((bits[0] + 7) // 8, "big")
        if base == "time":
            sign = -1 if text.startswith("-") else 1
            hours, minutes, seconds = text.lstrip("-").split(":")
            return sign * ((int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000))
        if pa.types.is_boolean(kind):
            return bool(Decimal(text))
        if pa.types.is_integer(kind):
            return int(Decimal(text))
        if base == "decimal":
            scale = (*parse_type(column.mysql_type).numbers, 0)[1]
            exact = EXACT.plus(EXACT.quantize(Decimal(text), Decimal(1).scaleb(-scale)))
            return exact if pa.types.is_decimal(kind) else f"{exact:f}"
        if pa.types.is_decimal(kind):
            return Decimal(text)
        if pa.types.is_floating(kind):
            return float(text)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            if "-00" in text or text.startswith("0000"):
                return None
            return date.fromisoformat(text) if pa.types.is_date(kind) else _moment(text, kind.tz)
        return text.encode() if pa.types.is_binary(kind) else text
    except (ValueError, ArithmeticError) as error:
        raise BadDefault(f"the default {text!r} of column {column.name} is not a valid {column.mysql_type}") from error


def _moment(text: str, zone: str | None) -> datetime:
    return datetime.fromisoformat(text + "+00:00" if zone else text)


def key_ids(layout: Layout) -> tuple[int, ...]:
    """The lake's field ids of the key's columns."""
    return tuple(column.field_id + layout.offset for column in layout.schema.key_columns)
