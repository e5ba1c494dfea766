"""How a source's columns look in the lake: their names, Iceberg types and comments, without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cutline.common.schema import FIELD_ID, GEOMETRIES, Column, TableSchema, parse_type

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
COMMENT_CHARACTERS = 200
_FORMS = {
    "time": "in microseconds",
    "timestamp": "in UTC",
    "set": "members joined by commas",
    "geometry": "SRID in 4 bytes, little-endian, then WKB",
}
"""The form of values in the lake, where the type at the source does not say it."""


def iceberg_type(field: pa.Field) -> str | dict[str, Any]:
    """A field's type in Iceberg's JSON."""
    kind = field.type
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_list(kind):
        number = field_id(kind.value_field)
        return {"type": "list", "element-id": number, "element": "float", "element-required": False}
    return {
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.bool_(): "boolean",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.date32(): "date",
    }[kind]


def comment(column: Column) -> str:
    """Return a column's type at the source, and where the lake has its values in another form, that form."""
    if column.computed:
        return "computed by the pipeline"
    text = column.mysql_type
    if len(text) > COMMENT_CHARACTERS:  # an ENUM may have 65,535 members, and each metadata file has them all
        text = f"{text[: COMMENT_CHARACTERS - 1]}…"
    kind = parse_type(column.mysql_type)
    if kind.base == "bit" and kind.numbers not in ((), (1,)):
        return f"{text}, big-endian"
    form = _FORMS.get("geometry" if kind.base in GEOMETRIES else kind.base)
    return f"{text}, {form}" if form else text


def field_id(field: pa.Field) -> int:
    """Return the field id that an Arrow field carries."""
    return int(field.metadata[FIELD_ID])


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


def lake_fields(schema: TableSchema) -> list[pa.Field]:
    """The lake's columns as Arrow fields, with the schema's own field ids."""
    names = lake_names(schema.lake)
    return [schema.field(column).with_name(names[column.field_id]) for column in schema.lake]


# Defaults
