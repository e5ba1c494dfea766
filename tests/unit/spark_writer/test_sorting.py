"""The order of rows in a data file."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from cutline.common.schema import Column, TableSchema
from cutline.spark_writer.sinks.iceberg.columns import Layout, Sort, Unsuitable
from cutline.spark_writer.sinks.iceberg.sorting import chosen, in_order, recorded

KINDS = {"id": "int", ".odd [name]": "varchar(9)", "v": "vector(2)"}
SCHEMA = TableSchema(
    table_id="shop.a",
    columns=tuple(
        Column(name=name, field_id=at, mysql_type=kind, nullable=True, element_id=9 if name == "v" else None)
        for at, (name, kind) in enumerate(KINDS.items(), 1)
    ),
    key=("id",),
    last_field_id=9,
)


def layout(sort: Sort) -> Layout:
    return Layout(schema=SCHEMA, generation=1, offset=0, arrow=SCHEMA.arrow, java=None, sort=sort)


def rows(*given: tuple[int | None, str | None]) -> pa.Table:
    columns = [
        pa.array([number for number, _ in given], pa.int32()),
        pa.array([text for _, text in given], pa.string()),
    ]
    return pa.Table.from_arrays([*columns, pa.nulls(len(given), SCHEMA.arrow.field(2).type)], schema=SCHEMA.arrow)


def test_rows_are_sorted_and_null_is_least() -> None:
    given = rows((2, "b"), (1, None), (None, "ä"), (3, "b"), (4, "z"), (0, ""))
    found = given.take(in_order(given, layout(((2, True), (1, False)))))
    wanted = [(None, "ä"), (4, "z"), (2, "b"), (3, "b"), (0, ""), (1, None)]
    assert found.equals(rows(*wanted))


def test_columns_are_found_by_the_sources_names_in_any_case_and_kept_by_field_id() -> None:
    order = chosen(SCHEMA, 100, (".ODD [name] desc", "id"))
    assert order == ((102, True), (101, False))
    assert recorded(json.dumps(((2, True), (1, False))), SCHEMA.arrow) == ((2, True), (1, False))


def test_an_order_ends_before_a_column_that_is_gone() -> None:
    assert recorded("[[1, false], [7, true], [2, true]]", SCHEMA.arrow) == ((1, False),)


@pytest.mark.parametrize(("name", "words"), [("day", "shop.a has no column day, by which sort"), ("v", "is a list")])
def test_a_column_that_has_no_order_is_refused_with_a_remedy(name: str, words: str) -> None:
    with pytest.raises(Unsuitable, match=f"{words}.*give .* another sort there"):
        chosen(SCHEMA, 0, ("id", f"{name} desc"))
