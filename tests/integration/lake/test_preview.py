"""A preview, which reads no lake, says of rules and queries what Spark makes of them over real rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.preview import AskedQuery, AskedTable, PreviewAnswer, PreviewRequest, Refusal, printed
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer import preview
from tests.integration.lake.test_derived_queries import BAD, GOOD
from tests.support.spark_bench import T, U, order

ROWS = [order(1, "one", "1.00"), order(2, "two", "99.00"), order(3, None, None)]
RULES = {
    "select[1]": Shape(select=("id", "nothing + 1 AS x", "id + AS y")),
    "select[0]": Shape(select=("max(id) AS id",)),
    "where": Shape(where="price > 'abc' || nothing"),
    "select": Shape(select=("note",)),
    "mode": Shape(select=("*", "1 AS _op"), mode="append"),
}
CONDITIONS = {"sum(id) > 1": "one row of each row", "rand() > 0.5": "uses rand", "id + 1": "of the type bigint"}


def asked(spark: Any, *tables: TableSchema, rows: pa.Table | None = None, **queries: str) -> PreviewAnswer:
    """The answer about these tables, the first of which has the rows, and about derived tables by name."""
    request = PreviewRequest(
        tables=tuple(AskedTable(schema=table, place=f"table_options[{at}]") for at, table in enumerate(tables)),
        derived=tuple(
            AskedQuery(name=f"shop.{name}", sql=sql.format(T=T.table_id, U=U.table_id), place=f"derived[{at}]")
            for at, (name, sql) in enumerate(queries.items())
        ),
        unknown=("shop.gone",),
        table=tables[0].table_id if tables else None,
        rows=rows,
    )
    return preview.answer(spark, PreviewRequest.from_json(request.to_json()))


def the_refusal(answer: PreviewAnswer) -> Refusal:
    (found,) = answer.refusals
    return found


def test_rows_and_columns_are_those_of_a_query_by_the_rule(spark: Any) -> None:
    items = ("id AS number", "price * 2 AS twice", "note IS NULL AS bare")
    shape = Shape(select=items, where="coalesce(price, 1) < 50")
    shaped = replace(T, shape=shape)
    rows = pa.Table.from_pylist(ROWS, schema=shaped.arrow)
    answer = asked(spark, shaped, U, rows=rows)
    frame = spark.createDataFrame(rows)
    assert [each.values for each in answer.after if each.values is not None] == printed(
        frame.where(shape.where).selectExpr(*shape.select).toArrow()
    )
    assert [each.values is None for each in answer.after] == [False, True, False]
    assert [name for name, _ in answer.columns[T.table_id]] == ["number", "twice", "bare"]
    assert answer.columns[T.table_id][2] == ("bare", "boolean")
    assert not answer.refusals
    assert [name for name, _ in answer.columns[U.table_id]] == [column.name for column in U.columns]


def test_a_row_on_which_a_rule_fails_is_told_from_the_others(spark: Any) -> None:
    shaped = replace(T, shape=Shape(select=("id", "1 / (id - 2) AS x")))
    answer = asked(spark, shaped, rows=pa.Table.from_pylist(ROWS, schema=shaped.arrow))
    failed = [each.cause is not None for each in answer.after]
    assert failed == [False, True, False]
    assert "DIVIDE_BY_ZERO" in str(answer.after[1].cause)


@pytest.mark.parametrize("mode", ["append", "soft-delete", "history"])
def test_rows_of_a_mode_are_those_of_its_snapshot(spark: Any, mode: Any) -> None:
    shaped = replace(T, shape=Shape(mode=mode))
    answer = asked(spark, shaped, rows=pa.Table.from_pylist(ROWS, schema=shaped.arrow))
    names = [name for name, _ in answer.columns[T.table_id]]
    first = {"append": "_op", "soft-delete": "_is_deleted", "history": "_current"}[mode]
    assert names[0] == first
    assert {each.values[0] for each in answer.after if each.values} == {
        {"append": "r", "soft-delete": "false", "history": "true"}[mode]
    }


def test_a_refused_rule_has_its_place_and_spark_s_sentence(spark: Any) -> None:
    for place, shape in RULES.items():
        refusal = the_refusal(asked(spark, replace(T, shape=shape)))
        assert refusal.place == f"table_options[0].{place}", refusal
        assert refusal.cause.code == "rule"
    for condition, sentence in CONDITIONS.items():
        refusal = the_refusal(asked(spark, replace(T, shape=Shape(where=condition))))
        assert refusal.place == "table_options[0].where"
        assert sentence in refusal.cause.sentence


def test_queries_are_judged_without_their_tables_as_over_them(spark: Any) -> None:
    answer = asked(spark, T, U, **GOOD)
    assert not answer.refusals
    assert {f"shop.{name}" for name in GOOD} < set(answer.columns)
    beyond = ("file", "itself_")  # a column that only tables of Iceberg have; a table in the schema `d`
    bad = {name: sql for name, (sql, _) in BAD.items() if name not in beyond}
    refused = {refusal.table: refusal for refusal in asked(spark, T, U, **bad).refusals}
    for at, name in enumerate(bad):
        assert BAD[name][1] in refused[f"shop.{name}"].cause.sentence
        assert refused[f"shop.{name}"].place == f"derived[{at}].sql"


def test_derived_tables_are_judged_in_order_and_a_circle_is_refused(spark: Any) -> None:
    shaped = replace(T, shape=Shape(select=("id AS number",)))
    answer = asked(
        spark, shaped,
        last="SELECT twice + 1 AS more FROM shop.first", first="SELECT number * 2 AS twice FROM {T}",
        left="SELECT a FROM shop.right", right="SELECT a FROM shop.left", old="SELECT id FROM {T}",
        waits="SELECT x FROM shop.gone", stranger="SELECT x FROM shop.never",
    )  # fmt: skip
    assert answer.columns["shop.last"] == (("more", "long"),)
    refused = {refusal.table: refusal.cause.sentence for refusal in answer.refusals}
    assert set(refused) == {"shop.left", "shop.right", "shop.old", "shop.stranger"}
    assert "shop.left reads shop.right reads shop.left" in refused["shop.left"]
    assert "`id` cannot be resolved" in refused["shop.old"]
    assert "shop.waits" not in answer.columns
