"""`replay` and `exact` on the published worked example, and on random histories against plain dicts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.errors import NextGeneration, ProtocolError
from cutline.common.gtids import GtidSet
from cutline.common.mesh.messages import CompletedSplit
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import FILE, OP, POS, SEQ, Column
from cutline.services.sources.mysql.watermark import (
    AgedPositions,
    ChunkHighs,
    Commits,
    KeyRanges,
    fold,
    key_text,
    overlay,
)

NAME = "binlog.000009"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def column(mysql_type: str, name: str = "k") -> Column:
    return Column(name=name, field_id=1, mysql_type=mysql_type, nullable=False)


def low(offset: int) -> Low:
    return Low(server="s", file=NAME, offset=offset)


def high(offset: int, server: str = "s") -> High:
    return High(server=server, file=NAME, offset=offset)


def split(start: Any, end: Any, at: int) -> CompletedSplit:
    return CompletedSplit(
        split_start=None if start is None else (start,), split_end=None if end is None else (end,), high=high(at)
    )


def changes(rows: Sequence[tuple[str, Any, Any]]) -> pa.Table:
    """(op, key, value) in the order of `_seq`."""
    return pa.table(
        {
            "k": pa.array([row[1] for row in rows], pa.string()),
            "v": pa.array([row[2] for row in rows], pa.int32()),
            OP: pa.array([row[0] for row in rows], pa.string()).dictionary_encode(),
            SEQ: pa.array(range(len(rows)), pa.int64()),
        }
    )


def chunk(rows: dict[Any, Any]) -> pa.Table:
    return pa.table({"k": pa.array(list(rows), pa.string()), "v": pa.array(list(rows.values()), pa.int32())})


def contents(table: pa.Table) -> dict[Any, Any]:
    assert len(set(table["k"].to_pylist())) == table.num_rows
    return dict(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


def test_the_published_example_the_chunk_k1_to_k10_comes_out_as_of_its_high_watermark() -> None:
    """Flink CDC: between low and high k2 goes 100 -> 108 -> 119, k3 is deleted, k5 goes 77 -> 100."""
    read = {f"k{n}": n for n in range(1, 11)} | {"k2": 108, "k3": 3, "k5": 77}  # the SELECT fell into the middle
    window = changes([("+U", "k2", 108), ("-D", "k3", 3), ("+U", "k2", 119), ("+U", "k5", 100)])
    expected = {f"k{n}": n for n in range(1, 11)} | {"k2": 119, "k5": 100}
    del expected["k3"]
    assert contents(overlay(chunk(read), window, ["k"])) == expected


def test_the_same_example_replayed_is_exact_from_the_high_watermark_on() -> None:
    """The rows go out as read; every change that low does not cover is put over them, those before high too."""
    lake: dict[Any, Any] = {f"k{n}": n for n in range(1, 11)} | {"k2": 108, "k3": 3, "k5": 77}
    before_low, window = ("+U", "k2", 100), [("+U", "k2", 108), ("-D", "k3", 3), ("+U", "k2", 119), ("+U", "k5", 100)]
    for end, (op, key, value) in enumerate([before_low, *window], start=1):
        if low(1).covers(server="s", end=FilePosition(NAME, end), gtid=None):
            assert key == "k2"
            continue
        lake.pop(key, None)
        if op != "-D":
            lake[key] = value
    expected = {f"k{n}": n for n in range(1, 11)} | {"k2": 119, "k5": 100}
    del expected["k3"]
    assert lake == expected


def test_a_chunk_without_changes_is_not_even_copied() -> None:
    rows = chunk({"a": 1})
    assert overlay(rows, changes([]), ["k"]) is rows


def test_an_image_before_an_update_neither_puts_nor_removes_a_row() -> None:
    after = overlay(chunk({"a": 1}), changes([("-U", "a", 1), ("+U", "a", 2), ("-U", "b", 3)]), ["k"])
    assert contents(after) == {"a": 2}


def test_an_update_of_the_key_is_a_delete_and_an_insert() -> None:
    after = overlay(
        chunk({"a": 1, "b": 2}), changes([("-D", "a", 1), ("+I", "c", 1), ("-D", "c", 1), ("+I", "a", 5)]), ["k"]
    )
    assert contents(after) == {"b": 2, "a": 5}


def test_keys_are_told_apart_by_their_bytes_and_by_all_their_columns() -> None:
    rows = pa.table({"a": ["x", "X", "x"], "b": [1, 1, 2], "v": [[1.0], [2.0], [3.0]]})
    window = pa.table({"a": ["x"], "b": [1], "v": [[9.0]], OP: ["+U"], SEQ: [0]})
    after = overlay(rows, window, ["a", "b"]).to_pydict()
    assert sorted(zip(after["a"], after["b"], after["v"], strict=True)) == [
        ("X", 1, [2.0]),
        ("x", 1, [9.0]),
        ("x", 2, [3.0]),
    ]


def test_0_and_minus_0_are_one_key() -> None:
    rows = pa.table({"k": [0.0, 1.0, -0.0], "place": ["a", "a", "b"]})
    window = pa.table({"k": [0.0, -0.0, 0.0], "place": ["a", "a", "b"], OP: ["-D", "+I", "-D"], SEQ: [0, 1, 2]})
    after = overlay(rows, window, ["place", "k"])
    assert sorted(map(repr, after.to_pylist())) == ["{'k': -0.0, 'place': 'a'}", "{'k': 1.0, 'place': 'a'}"]


keys = st.sampled_from("abcdefgh")
histories = st.lists(st.tuples(st.sampled_from(["put", "delete"]), keys, st.integers(0, 99)), max_size=30)


def state_after(history: Sequence[tuple[str, str, int]], count: int) -> dict[str, int]:
    state: dict[str, int] = {}
    for action, key, value in history[:count]:
        if action == "put":
            state[key] = value
        else:
            state.pop(key, None)
    return state


def as_changes(history: Sequence[tuple[str, str, int]], first: int, last: int, within: str) -> pa.Table:
    return changes(
        [("+U" if action == "put" else "-D", key, value) for action, key, value in history[first:last] if key in within]
    )


def compared(bounds: Sequence[Any], keys: Sequence[Any]) -> list[int]:
    return [sum(bound <= key for bound in bounds) for key in keys]


@given(histories, st.data())
def test_exact_chunks_and_the_changes_past_their_highs_give_the_table(
    history: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    """Two chunks, each read at a moment between its low and its high; then the stream, judged key by key."""
    lake: dict[str, int] = {}
    splits = []
    for within, start, end in (("abcd", None, "e"), ("efgh", "e", None)):
        bounds = sorted(data.draw(st.lists(st.integers(0, len(history)), min_size=3, max_size=3)))
        seen = {k: v for k, v in state_after(history, bounds[1]).items() if k in within}
        whole = contents(overlay(chunk(seen), as_changes(history, bounds[0], bounds[2], within), ["k"]))
        assert whole == {k: v for k, v in state_after(history, bounds[2]).items() if k in within}
        lake |= whole
        splits.append(split(start, end, 10 * bounds[2]))
    highs = ChunkHighs([column("varchar(9)")], splits)
    for number, (action, key, value) in enumerate(history):
        batch = pa.table({"k": [key], FILE: [NAME], POS: [10 * number]})
        if highs.kept(batch, server="s", locate=compared)[0].as_py():
            if action == "put":
                lake[key] = value
            else:
                lake.pop(key, None)
    assert lake == state_after(history, len(history))


@given(histories, st.data())
def test_replay_over_folded_watermarks_is_exact_from_the_highest_high_on(
    history: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    """Rows at or after low, a high at or after the rows, every change past the lowest low in order."""
    lake: dict[str, int] = {}
    marks = []
    for within in ("abc", "defgh"):
        bounds = sorted(data.draw(st.lists(st.integers(0, len(history)), min_size=3, max_size=3)))
        lake |= {k: v for k, v in state_after(history, bounds[1]).items() if k in within}
        marks.append((low(10 * bounds[0]), high(10 * bounds[2])))
    lowest, highest = fold(marks)
    for number in range(len(history) + 1):
        if 10 * number >= highest.offset:
            assert lake == state_after(history, number)
        if number < len(history):
            end = FilePosition(NAME, 10 * (number + 1))
            if not lowest.covers(server="s", end=end, gtid=None):
                action, key, value = history[number]
                lake.pop(key, None)
                if action == "put":
                    lake[key] = value


def test_fold_takes_the_lowest_low_and_the_highest_high() -> None:
    assert fold([(low(50), high(60)), (low(40), high(55)), (low(45), high(90))]) == (low(40), high(90))
    with pytest.raises(ValueError, match="without chunks"):
        fold([])


THREE = [split("200", None, 30), split(None, "100", 50), split("100", "200", 40)]


def test_a_change_is_sent_only_past_the_high_of_its_own_chunk() -> None:
    highs = ChunkHighs([column("int")], THREE)
    keys = [99, 99, 100, 100, 199, 200, 200, 5, 5]
    starts = [49, 50, 39, 40, 39, 29, 30, 4, 4]
    files = [NAME] * 7 + ["binlog.000010", "binlog.000008"]
    batch = pa.table({"k": pa.array(keys, pa.int32()), FILE: files, POS: starts})
    kept = highs.kept(batch, server="s", locate=None).to_pylist()
    assert kept == [False, True, False, True, False, False, True, True, False]


def test_for_text_mysql_is_asked_once_a_batch_and_only_where_it_matters() -> None:
    highs = ChunkHighs([column("varchar(9)")], [split(None, "m", 50), split("m", None, 40)])
    asked: list[Sequence[Any]] = []

    def locate(bounds: Sequence[Any], keys: Sequence[Any]) -> list[int]:
        assert list(bounds) == [("m",)]
        asked.append(keys)
        return [int(key[0].lower() >= "m") for key in keys]

    batch = pa.table({"k": ["a", "A", "Z", "a", "z"], FILE: [NAME] * 5, POS: [39, 45, 45, 50, 40]})
    assert highs.kept(batch, server="s", locate=locate).to_pylist() == [False, False, True, True, True]
    assert asked == [[("A",), ("Z",), ("z",)]]
    with pytest.raises(ProtocolError, match="only MySQL"):
        highs.kept(batch, server="s", locate=None)


def test_chunks_that_leave_a_gap_are_refused() -> None:
    for splits in ([], THREE[:2], [split(None, "5", 1)], [split(None, "5", 1), split("6", None, 1)]):
        with pytest.raises(ProtocolError, match="gaps or overlap"):
            ChunkHighs([column("int")], splits)


def test_another_server_is_no_place_to_judge_changes() -> None:
    highs = ChunkHighs([column("int")], [split(None, None, 5)])
    with pytest.raises(NextGeneration, match="read again"):
        highs.kept(pa.table({"k": [1], FILE: [NAME], POS: [9]}), server="t", locate=None)


ORDERED: dict[str, tuple[list[Any], list[Any]]] = {
    # type: (Arrow's values in the order of the index, what MySQL prints for each)
    "bigint unsigned": ([Decimal(0), Decimal(2**64 - 1)], ["0", "18446744073709551615"]),
    "decimal(10,2)": ([Decimal("-1.50"), Decimal("0.00"), Decimal("10.25")], ["-1.50", "0.00", "10.25"]),
    "decimal(65,1)": (["-10.5", "-9.5", "9" * 39 + ".0"], ["-10.5", "-9.5", "9" * 39 + ".0"]),
    "double": ([-1e300, 0.1, 2.5], ["-1e300", "0.1", "2.5"]),
    "enum('z','a')": (["", "z", "a"], ["0", "1", "2"]),
    "enum('z','','a')": (["z", "", "a"], ["1", "2", "3"]),
    "set('b','a')": (["", "b", "a", "b,a"], ["0", "1", "2", "3"]),
    "bit(9)": ([b"\x00\x05", b"\x01\x00"], ["5", "256"]),
    "bit(1)": ([False, True], ["0", "1"]),
    "varbinary(4)": ([b"", b"\x00", b"a", b"a\x00"], [{"hex": ""}, {"hex": "00"}, {"hex": "61"}, {"hex": "6100"}]),
    "date": ([date(987, 1, 2), date(2020, 1, 1)], ["0987-01-02", "2020-01-01"]),
    "datetime(6)": (
        [datetime(987, 1, 2), datetime(2020, 1, 1, 2, 3, 4, 5)],  # noqa: DTZ001
        ["0987-01-02 00:00:00.000000", "2020-01-01 02:03:04.000005"],
    ),
    "timestamp": (
        [datetime(1999, 1, 2, tzinfo=UTC), datetime(2020, 1, 1, 2, 3, 4, tzinfo=UTC)],
        ["1999-01-02 00:00:00", "2020-01-01 02:03:04"],
    ),
    "time(2)": (
        [-3_020_399_000_000, -10_000, 0, 90_061_500_000],
        ["-838:59:59.00", "-00:00:00.01", "00:00:00.00", "25:01:01.50"],
    ),
    "year": ([1999, 2020], ["1999", "2020"]),
}


@pytest.mark.parametrize("mysql_type", ORDERED)
def test_keys_of_every_type_but_text_are_placed_as_mysql_sorts_them(mysql_type: str) -> None:
    values, printed = ORDERED[mysql_type]
    ranges = KeyRanges([column(mysql_type)], [(text,) for text in printed])
    assert [ranges.range_of((value,)) for value in values] == list(range(1, len(values) + 1))
    table = pa.table({"k": pa.array(values)})
    assert ranges.find(table, None).tolist() == list(range(1, len(values) + 1))


@pytest.mark.parametrize("mysql_type", ORDERED)
def test_a_key_goes_back_to_mysql_as_mysql_prints_it(mysql_type: str) -> None:
    values, printed = ORDERED[mysql_type]
    column_ = column(mysql_type)
    texts = [key_text(column_, value) for value in values]
    if mysql_type.startswith(("timestamp", "time", "double")):
        assert [KeyRanges([column_], [(t,)]).range_of((v,)) for t, v in zip(texts, values, strict=True)] == [1] * len(
            values
        )
    else:
        assert texts == printed


def test_composite_keys_are_placed_column_by_column() -> None:
    ranges = KeyRanges(
        [column("int", "a"), column("date", "b")], [("1", "2020-01-01"), ("1", "2020-02-01"), ("2", "2019-01-01")]
    )
    assert [ranges.range_of((a, date(2020, m, 1))) for a, m in ((0, 9), (1, 1), (1, 3), (2, 1))] == [0, 1, 2, 3]


@given(st.lists(st.integers(-50, 50), unique=True, min_size=1), st.lists(st.integers(-60, 60)))
def test_integer_keys_are_placed_at_once_as_they_are_one_by_one(bounds: list[int], keys: list[int]) -> None:
    ranges = KeyRanges([column("int")], [(str(bound),) for bound in sorted(bounds)])
    placed = ranges.find(pa.table({"k": pa.array(keys, pa.int32())}), None)
    assert placed.tolist() == [ranges.range_of((key,)) for key in keys]


def test_an_aged_position_is_one_that_was_seen_long_enough_ago() -> None:
    seen = AgedPositions(60.0)
    assert seen.aged("s", now=0.0) is None
    for second in range(0, 200):
        seen.saw("s", FilePosition(NAME, 1000 + second), now=float(second))
    assert seen.aged("s", now=199.0) == FilePosition(NAME, 1139)
    assert seen.aged("s", now=199.9) == FilePosition(NAME, 1139)
    assert seen.aged("t", now=199.0) is None


def test_positions_of_another_server_or_of_a_reset_binlog_do_not_age_on() -> None:
    for server, at in (("t", FilePosition(NAME, 2000)), ("s", FilePosition(NAME, 4))):
        seen = AgedPositions(60.0)
        seen.saw("s", FilePosition(NAME, 1000), now=0.0)
        seen.saw(server, at, now=61.0)
        assert seen.aged("s", now=70.0) is None
        assert seen.aged(server, now=130.0) == at


def test_what_a_server_has_not_committed_is_awaited_for_half_a_minute_and_then_lost() -> None:
    taken, executed = GtidSet.parse(f"{UUID}:1-7"), GtidSet.parse(f"{UUID}:1-6")
    commits = Commits()
    assert not commits.awaited(taken, taken, now=0.0)
    assert commits.awaited(taken, executed, now=10.0)
    assert commits.awaited(taken, executed, now=39.9)
    assert not commits.awaited(taken, executed, now=40.0)
    assert not commits.awaited(executed, executed, now=41.0)
    assert commits.awaited(taken, executed, now=42.0), "it was there meanwhile: the time begins again"


def test_a_key_may_have_any_name() -> None:
    key = ["_row", "seq", "_seq _max"]
    rows = pa.table({"_row": [1, 2, 3], "seq": [1, 1, 1], "_seq _max": [0, 0, 0], "_op": ["a", "b", "c"]})
    changed = {"_row": [1, 2, 4], "seq": [1] * 3, "_seq _max": [0] * 3, "_op": ["x", None, "y"]}
    changes = pa.table({**changed, OP: ["+U", "-D", "+I"], SEQ: [0, 1, 2]})
    over = overlay(rows, changes, key).sort_by("_row")
    assert over.select(["_row", "_op"]).to_pydict() == {"_row": [1, 3, 4], "_op": ["x", "c", "y"]}
