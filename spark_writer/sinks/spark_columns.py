"""Columns that Spark computes, as columns of the lake: each by a type of the source that the lake has alike."""

from __future__ import annotations

from cutline.common.schema import Column

_TYPES = {
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "bit(1)",
    "string": "longtext",
    "binary": "longblob",
    "date": "date",
    "timestamp": "timestamp(6)",
    "timestamp_ntz": "datetime(6)",
}
REMEDY = "cast it to a number, text, binary, boolean, date or timestamp"
"""Of a column that the lake can't have."""


def computed(name: str, field_id: int, kind: str) -> Column | None:
    """The column of a type that Spark names so (`DataType.simpleString`); None if the lake can't have it."""
    mysql_type = kind if kind.startswith("decimal(") else _TYPES.get(kind)
    if mysql_type is None:
        return None
    return Column(name=name, field_id=field_id, mysql_type=mysql_type, nullable=True, computed=True)
