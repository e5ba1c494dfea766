"""The order of the rows in each data file of a table, if the setting `sort` of `table_options` asks for one.

The columns are found by their names at the source when a generation begins, and kept as field ids in the table property
`cutline.sort.<generation>`, so that a renamed column stays, and a change of the setting waits for the next generation.
If a column is dropped, the order ends before it. The order is the table's sort order too, for other writers; it changes
with the columns (`LakeTable.commit`, `LakeTable.show`), since Iceberg reads no table whose sort order has a column that
the current schema lacks. An order that another user gave to the table stays instead of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.config.table_options import sorted_by
from cutline.common.schema import TableSchema
from cutline.spark_writer.sinks.iceberg.columns import Layout, Sort, Unsuitable
from cutline.spark_writer.sinks.iceberg.fields import field_id
from cutline.spark_writer.sinks.iceberg.jvm import Jvm

SORT = "cutline.sort."
_PLACES = {False: ("ascending", "at_start"), True: ("descending", "at_end")}
"""Whether descending -> Arrow's order, and the place of null."""


def chosen(schema: TableSchema, offset: int, wanted: Sequence[str]) -> Sort:
    """Return the order that the setting asks for. Unsuitable if a column is missing or has no order."""
    found = []
    for name, descending in map(sorted_by, wanted):
        if not schema.has(name):
            raise Unsuitable(
                f"{schema.table_id} has no column {name}, by which sort in table_options orders its rows",
                "give it another sort there, or add the column at the source, then have the table read again",
            )
        column = schema.column(name)
        if pa.types.is_nested(schema.field(column).type):
            raise Unsuitable(
                f"the column {name} of {schema.table_id} is a list, by which sort in table_options can't order rows",
                "give the table another sort there",
            )
        found.append((column.field_id + offset, descending))
    return tuple(found)


def recorded(text: str, arrow: pa.Schema) -> Sort:
    """Return the order that a generation's property says, without the columns from the first one on that is gone."""
    ids = {field_id(field) for field in arrow}
    found: list[tuple[int, bool]] = []
    for number, descending in json.loads(text):
        if number not in ids:
            break
        found.append((number, descending))
    return tuple(found)


def to_java(jvm: Jvm, layout: Layout) -> Any:
    """Return Iceberg's SortOrder of a layout: null comes before all values, as in MySQL, so last where descending."""
    builder, nulls = jvm.iceberg.SortOrder.builderFor(layout.java), jvm.iceberg.NullOrder
    for number, descending in layout.sort:
        name = layout.java.findColumnName(number)
        if descending:
            builder.desc(name, nulls.NULLS_LAST)
        else:
            builder.asc(name, nulls.NULLS_FIRST)
    return builder.build()


def fitting(jvm: Jvm, order: Any, schema: Any) -> Any:
    """Return another user's SortOrder up to the first column that an Iceberg schema lacks."""
    found = json.loads(str(jvm.iceberg.SortOrderParser.toJson(order)))
    fields = []
    for field in found["fields"]:
        if schema.findField(int(field["source-id"])) is None:
            break
        fields.append(field)
    if not fields:
        return jvm.iceberg.SortOrder.unsorted()
    return jvm.iceberg.SortOrderParser.fromJson(schema, json.dumps({**found, "fields": fields}))


def in_order(rows: pa.Table, layout: Layout) -> pa.Array:
    """Return the places of the rows in the order of the layout, which has one."""
    at_of = {field_id(field): at for at, field in enumerate(layout.arrow)}
    keys: Any = [(at_of[number], *_PLACES[descending]) for number, descending in layout.sort]
    return pc.sort_indices(rows, sort_keys=keys)
