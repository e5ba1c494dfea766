"""What is asked of a Spark writer about rules, and its answer, as they are sent; values as people see them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from cutline.common.causes import Cause, Code
from cutline.common.preview import LONGEST, After, AskedQuery, AskedTable, PreviewAnswer, PreviewRequest, Refusal
from cutline.common.preview import printed as shown
from cutline.common.schema import Column, TableSchema
from cutline.common.shape import Shape

T = TableSchema(
    table_id="shop.orders",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
    shape=Shape(select=("id",), where="id > 1"),
)


def test_a_question_and_its_answer_are_sent_as_json() -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    asked = PreviewRequest(
        tables=(AskedTable(schema=T, place="table_options[0]"),),
        derived=(AskedQuery(name="shop.sums", sql="SELECT 1 AS one", place="derived[0]"),),
        unknown=("shop.views",),
        settings={"spark.sql.ansi.enabled": "false"},
        table="shop.orders",
        rows=rows,
    )
    assert PreviewRequest.from_json(json.loads(json.dumps(asked.to_json()))) == asked
    cause = Cause(Code.RULE, "it is refused", "correct it")
    answer = PreviewAnswer(
        columns={"shop.orders": (("id", "int"),)},
        refusals=(Refusal(place="table_options[1].where", table="shop.stock", cause=cause),),
        after=(After(values=("2", None)), After(), After(cause=cause)),
    )
    assert PreviewAnswer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_values_are_shown_as_text() -> None:
    row = {
        "n": 2**60,
        "d": Decimal("0.0000001"),
        "b": True,
        "f": 0.5,
        "x": b"\x00\xff",
        "day": date(1815, 12, 10),
        "at": datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
        "plain": datetime(2026, 1, 31, 12),  # noqa: DTZ001
        "list": [1.0, None],
        "none": None,
        "long": "a" * 500,
    }
    (values,) = shown(pa.Table.from_pylist([row]))
    assert values[:10] == (
        str(2**60),
        "0.0000001",
        "true",
        "0.5",
        "00ff",
        "1815-12-10",
        "2026-01-31 12:00:00.000005Z",
        "2026-01-31 12:00:00",
        "[1.0, None]",
        None,
    )
    assert values[10] is not None
    assert len(values[10]) == LONGEST
