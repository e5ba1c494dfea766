"""What a rule may say of a change, without a Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cutline.common.schema import GTID, OP
from cutline.common.shape import Shape
from cutline.spark_writer.transform.change_columns import named_by, with_metadata, without_stars
from tests.support.spark_bench import schema


@pytest.mark.parametrize(
    ("select", "named"),
    [
        (("*",), ()),
        (("*", "_op"), ("_op",)),
        (("concat(`_GTID`, _table) AS g",), ("_gtid", "_table")),
        (("my_op", "_opera"), ()),
        (("_binlog_file", "_binlog_pos", "_database"), ("_binlog_file", "_binlog_pos", "_database")),
        (("_committed_at",), ()),  # the source has one, in another case
    ],
)
def test_a_rule_means_what_it_names_and_the_source_has_no_column_for(
    select: tuple[str, ...], named: tuple[str, ...]
) -> None:
    source = schema("shop.t", ("id",), id="int", _Committed_At="int")
    assert sorted(named_by(Shape(select=select), source)) == sorted(named)


def test_a_star_leaves_out_what_is_named() -> None:
    select = ("*", " * ", "* EXCEPT (a, `b c`)", "*except(a)", "a * _op", "hash(*) AS h")
    assert without_stars(select, ()) == list(select)
    assert without_stars(select, ("_op", "_gtid")) == [
        "* EXCEPT (_op, _gtid)", "* EXCEPT (_op, _gtid)", "* EXCEPT (a, `b c`, _op, _gtid)", "*except(a, _op, _gtid)",
        "a * _op", "hash(*) AS h",
    ]  # fmt: skip


def test_rows_of_a_snapshot_have_their_table_and_no_change() -> None:
    named = ("_op", "_gtid", "_database", "_table")
    (row,) = with_metadata(pa.table({"id": [1]}), named, "shop.t").to_pylist()
    assert row == {"id": 1, "_op": "r", "_gtid": None, "_database": "shop", "_table": "t"}
    change = pa.table({"id": [1], OP: ["-D"], GTID: ["0-1-7"]})
    (row,) = with_metadata(change, named, "shop.t").select(named).to_pylist()
    assert row == {"_op": "-D", "_gtid": "0-1-7", "_database": "shop", "_table": "t"}
