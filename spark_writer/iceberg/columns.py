"""The columns of a lake table: their field ids, names, Iceberg types and default values.

A field id in the lake is the pipeline's (common/schema.py) plus the generation's offset. The offset is 0 unless a new
generation gives an id another meaning; the offsets are the table properties `cutline.offset.<generation>`. A staged
file whose ids and types are the lake's is adopted as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from cutline.common.errors import ProtocolError
from cutline.common.schema import FIELD_ID, Column, TableSchema, parse_type
from cutline.spark_writer.iceberg.jvm import Jvm

OFFSET = "cutline.offset."
RESERVED = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)
"""Names of Iceberg's metadata columns, which every table has in Spark."""
_EXACT = Context(prec=65)  # a DECIMAL's digits; Python's default context rounds to 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table's columns in the lake: `arrow` has the lake's field ids, `java` is the same as an Iceberg schema."""

    schema: TableSchema
    generation: int
    offset: int
    arrow: pa.Schema
    java: Any

    @property
    def highest_id(self) -> int:
        """The greatest field id in use, those of list elements included."""
        ids = [field_id(field) for field in self.arrow]
        return max(ids + [field_id(field.type.value_field) for field in self.arrow if pa.types.is_list(field.type)])


def lay_out(jvm: Jvm, metadata: Any, schema: TableSchema, generation: int) -> Layout:
    """Lay out `schema` in the lake table that has this TableMetadata.

    A generation's offset is chosen when the generation is first seen and recorded by its first commit.
    """
    known = metadata.property(f"{OFFSET}{generation}", None)
    if known is not None:
        offset = int(known)
    else:
        offset = 0 if _ids_agree(jvm, metadata, schema) else int(metadata.lastColumnId())
    fields = [_shifted(field, offset) for field in _lake_fields(schema)]
    nested = jvm.iceberg.types.Types.NestedField
    java = jvm.root.java.util.ArrayList()
    for column, field in zip(schema.lake, fields, strict=True):
        kind = _iceberg_type(jvm, field)
        builder = nested.builder().asOptional().withName(field.name).withId(field_id(field)).ofType(kind)
        literal = _literal(jvm, column, field.type, kind)
        if literal is not None:
            builder = builder.withInitialDefault(literal).withWriteDefault(literal)
        java.add(builder.build())
    return Layout(
        schema=schema, generation=generation, offset=offset, arrow=pa.schema(fields), java=jvm.iceberg.Schema(java)
    )


def _ids_agree(jvm: Jvm, metadata: Any, schema: TableSchema) -> bool:
    """Whether each field id of `schema` has the same meaning in the lake, or is not in use there yet."""
    known: dict[int, tuple[str, str]] = {}
    for old in metadata.schemas():
        for field in old.columns():
            known[int(field.fieldId())] = (str(field.name()), str(field.type().toString()))
            if field.type().isListType():
                known[int(field.type().elementId())] = ("element", "")
    if not known:
        return True
    for field in _lake_fields(schema):
        ids = {field_id(field): (field.name, str(_iceberg_type(jvm, field).toString()))}
        if pa.types.is_list(field.type):
            ids[field_id(field.type.value_field)] = ("element", "")
        if any(number in known and known[number] != meaning for number, meaning in ids.items()):
            return False
    return True


def _iceberg_type(jvm: Jvm, field: pa.Field) -> Any:
    types, kind = jvm.iceberg.types.Types, field.type
    if pa.types.is_decimal(kind):
        return types.DecimalType.of(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return types.TimestampType.withZone() if kind.tz else types.TimestampType.withoutZone()
    if pa.types.is_list(kind):
        return types.ListType.ofOptional(field_id(kind.value_field), types.FloatType.get())
    name = {
        pa.int32(): "IntegerType",
        pa.int64(): "LongType",
        pa.float32(): "FloatType",
        pa.float64(): "DoubleType",
        pa.bool_(): "BooleanType",
        pa.string(): "StringType",
        pa.binary(): "BinaryType",
        pa.date32(): "DateType",
    }[kind]
    return getattr(types, name).get()


def _literal(jvm: Jvm, column: Column, kind: pa.DataType, iceberg_type: Any) -> Any:
    """Return a column's default as Iceberg's Literal, None if it has none."""
    value = default_value(column, kind)
    if value is None:
        return None
    literal = jvm.iceberg.expressions.Literal
    if isinstance(value, bytes):
        return literal.of(bytearray(value))
    if isinstance(value, bool | float):
        return literal.of(value).to(iceberg_type)
    if isinstance(value, int):
        long = literal.of(jvm.root.java.lang.Long.parseLong(str(value)))
        return long.to(iceberg_type)
    if isinstance(value, Decimal):
        return literal.of(jvm.root.java.math.BigDecimal(format(value, "f")))
    if isinstance(value, datetime):
        return literal.of(value.isoformat(timespec="microseconds")).to(iceberg_type)
    return literal.of(value.isoformat() if isinstance(value, date) else value).to(iceberg_type)


def field_id(field: pa.Field) -> int:
    """Return the field id that an Arrow field carries."""
    return int(field.metadata[FIELD_ID])


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


def lake_names(columns: Sequence[Column]) -> dict[int, str]:
    """Return each column's name in the lake, by field id: the source's name, made unique for readers.

    Spark reads no table with a column named as an Iceberg metadata column, and none with two columns whose names it
    folds to one. MySQL allows both, since its case folding follows an older Unicode table. A list `v` also takes the
    name `v.element`. Of two columns that clash, the younger one's name gets as many `_` appended as it needs.
    """
    taken = {_folded(name) for name in RESERVED}
    names = {}
    for column in sorted(columns, key=lambda column: column.field_id):
        name = column.name
        while not taken.isdisjoint(used := _taken_by(column, name)):
            name += "_"
        taken |= used
        names[column.field_id] = name
    return names


def _taken_by(column: Column, name: str) -> set[str]:
    return {_folded(name)} | ({_folded(f"{name}.element")} if column.element_id is not None else set())


def _folded(name: str) -> str:
    """Fold a name at least as far as Spark does, which compares upper and lower case of each character."""
    return name.upper().casefold().replace("\u0307", "")  # İ folds to i and this combining dot


def _lake_fields(schema: TableSchema) -> list[pa.Field]:
    names = lake_names(schema.lake)
    return [schema.field(column).with_name(names[column.field_id]) for column in schema.lake]


# Defaults


def default_value(column: Column, kind: pa.DataType) -> Any:
    """Return a column's initial default as a Python value of its Arrow type, None if it has none (or a zero date)."""
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
            exact = _EXACT.plus(_EXACT.quantize(Decimal(text), Decimal(1).scaleb(-scale)))
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
        raise ProtocolError(
            f"the default {text!r} of column {column.name} is not a valid {column.mysql_type}; take a new snapshot of"
            " the table"
        ) from error


def _moment(text: str, zone: str | None) -> datetime:
    return datetime.fromisoformat(text + "+00:00" if zone else text)
