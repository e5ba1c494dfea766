"""What services count and measure: series only grow, and their number stays bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.measures import OTHERS, SECONDS, Counted, Measures, TableRows
from cutline.common.ops import Op
from cutline.common.schema import META_FIELDS
from cutline.services.writer.staging import OPERATIONS, rows_by_operation


def test_a_duration_is_counted_in_the_first_bucket_that_holds_it() -> None:
    measures = Measures()
    for seconds in (0.1, 0.11, 300.0, 301.0):
        measures.observe("apply", seconds)
    shown = measures.histograms()["apply"]
    assert len(shown.buckets) == len(SECONDS["apply"]) + 1
    assert (shown.buckets[:2], shown.buckets[-2:], shown.sum) == ((1, 1), (1, 1), 601.21)


def test_counters_are_shown_with_their_sum() -> None:
    measures = Measures()
    measures.count("epochs")
    measures.count("epochs", 2)
    assert measures.counters() == (("epochs", {}, 3),)


def rows(counted: TableRows) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, labels, number in counted.shown():
        if name == "staged_rows":
            found[labels["table"], labels["operation"]] = number
    return found


def size(shown: Iterable[Counted], operation: str) -> int:
    return sum(number for name, labels, number in shown if (name, labels["operation"]) == ("staged_bytes", operation))


def test_bytes_of_a_batch_are_divided_by_rows() -> None:
    counted = TableRows(5)
    counted.add("a.b", {"insert": 1, "delete": 3}, 400)
    counted.add("a.b", {}, 0)
    assert rows(counted) == {("a.b", "insert"): 1, ("a.b", "delete"): 3}
    assert (size(counted.shown(), "insert"), size(counted.shown(), "delete")) == (100, 300)


def test_of_many_tables_the_first_have_series_of_their_own_and_all_others_share_one() -> None:
    counted = TableRows(2)
    for at in range(100):
        counted.add(f"a.t{at}", {"insert": 1}, 10)
    assert rows(counted) == {("a.t0", "insert"): 1, ("a.t1", "insert"): 1, (OTHERS, "insert"): 98}


def test_a_table_that_becomes_far_more_active_takes_a_series_and_no_series_ever_falls() -> None:
    """1. Two tables have series. 2. A third becomes busy, and gets the place of the idle one. 3. What the idle one adds
    from then on is among the others."""
    counted = TableRows(2)
    counted.rank(0.0)
    counted.add("a.idle", {"insert": 1}, 10)
    counted.add("a.busy", {"insert": 100}, 10)
    counted.add("a.new", {"insert": 500}, 10)
    before = rows(counted)
    counted.rank(30.0)
    assert rows(counted) == before
    counted.rank(61.0)
    counted.add("a.new", {"insert": 7}, 10)
    counted.add("a.idle", {"insert": 3}, 10)
    after = rows(counted)
    assert after == {("a.busy", "insert"): 100, ("a.new", "insert"): 7, (OTHERS, "insert"): 503}
    assert all(after[key] >= number for key, number in before.items() if key in after)


def test_without_room_for_any_table_all_are_others() -> None:
    counted = TableRows(0)
    counted.add("a.b", {"insert": 4}, 10)
    counted.rank(0.0)
    assert rows(counted) == {(OTHERS, "insert"): 4}


@given(st.lists(st.sampled_from(sorted({*OPERATIONS, Op.BEFORE})), min_size=1), st.booleans(), st.data())
def test_the_rows_of_a_batch_are_counted_by_operation_also_of_a_slice(
    ops: list[str], dictionary: bool, data: st.DataObject
) -> None:
    """Readers send the operations as a dictionary column, whose dictionary has more texts than there are rows of."""
    columns = [pa.nulls(len(ops), field.type) for field in META_FIELDS]
    known = list(Op)
    indices = pa.array([known.index(op) for op in ops], pa.int8())
    columns[0] = pa.DictionaryArray.from_arrays(indices, known) if dictionary else pa.array(ops)
    batch = pa.RecordBatch.from_arrays(columns, names=[field.name for field in META_FIELDS])
    begin = data.draw(st.integers(0, len(ops) - 1))
    part = batch.slice(begin, data.draw(st.integers(1, len(ops) - begin)))
    expected = Counter(OPERATIONS[op] for op in part.column(0).to_pylist() if op != Op.BEFORE)
    assert rows_by_operation(part.column(0)) == expected
