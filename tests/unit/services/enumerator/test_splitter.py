"""The splitter: its chunks partition the key space, whatever the table holds and whenever it is restored."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.schema import Column, TableSchema
from cutline.services.enumerator.splitter import CHUNK_BYTES, KeyRange, Splitter


def schema(*types: str) -> TableSchema:
    columns = tuple(Column(name=f"k{i}", field_id=i + 1, mysql_type=t, nullable=False) for i, t in enumerate(types))
    return TableSchema(table_id="d.t", columns=columns, key=tuple(c.name for c in columns), last_field_id=len(columns))


def splitter(
    *types: str, chunk_rows: int = 10, estimate: int = 100, row_bytes: int = 100, integer: bool = True
) -> Splitter:
    return Splitter(
        table_id="d.t", generation=1, schema=schema(*(types or ("int",))), chunk_rows=chunk_rows, estimate=estimate,
        row_bytes=row_bytes, integer_key=integer,
    )  # fmt: skip


def bounds(splits: list[SnapshotSplit]) -> list[tuple[object, object]]:
    return [(s.split_start and s.split_start[0], s.split_end and s.split_end[0]) for s in splits]


def test_a_table_without_a_key_is_one_chunk_about_which_nothing_is_asked() -> None:
    machine = splitter(integer=False)
    machine.schema = TableSchema(table_id="d.t", columns=machine.schema.columns, key=(), last_field_id=1)
    assert machine.wants() is None
    assert machine.take(0) == []
    assert not machine.done
    (split,) = machine.take(5)
    assert (split.split_start, split.split_end, split.split_key_type) == (None, None, ())
    assert machine.done
    assert machine.take(5) == []


def test_even_keys_are_split_by_arithmetic_and_those_above_the_maximum_come_first() -> None:
    machine = splitter()
    assert machine.wants() == "range"
    machine.ranged(KeyRange(low=1, high=25))
    assert machine.wants() is None
    assert bounds(machine.take(10)) == [("26", None), (None, "11"), ("11", "21"), ("21", "26")]
    assert machine.done
    assert machine.take(10) == []


def test_chunks_are_made_only_as_they_are_taken() -> None:
    machine = splitter()
    machine.ranged(KeyRange(low=1, high=100))
    assert len(machine.take(2)) == 2
    assert machine.made == 2
    assert not machine.done


def test_a_key_range_with_holes_makes_the_steps_longer() -> None:
    machine = splitter(estimate=50)
    machine.ranged(KeyRange(low=1, high=100))
    assert bounds(machine.take(2)) == [("101", None), (None, "21")]


def test_sparse_keys_walk_the_index() -> None:
    machine = splitter(estimate=10)
    machine.ranged(KeyRange(low=1, high=1_000_000))
    assert machine.wants() == "bound"
    made = [*machine.bounded(("70",)), *machine.bounded(("900000",)), *machine.bounded(None)]
    assert bounds(made) == [(None, "70"), ("70", "900000"), ("900000", None)]
    assert machine.done
    assert machine.wants() is None


def test_an_empty_table_is_one_open_chunk() -> None:
    machine = splitter(estimate=0)
    machine.ranged(KeyRange(low=None, high=None))
    assert machine.wants() is None
    assert bounds(machine.take(10)) == [(None, None)]
    assert machine.done
    assert machine.take(10) == []


def test_a_table_for_which_one_chunk_has_room_is_one_chunk() -> None:
    for low, high, estimate in ((7, 7, 1), (1, 10, 0), (1, 10, 10), (-30, 9, 10), (1, 25, 7)):
        machine = splitter(estimate=estimate)
        machine.ranged(KeyRange(low=low, high=high))
        assert machine.wants() is None
        again = Splitter.restored("d.t", 1, machine.schema, json.loads(json.dumps(machine.to_json())))
        assert machine.take(0) == []
        assert bounds(machine.take(10)) == bounds(again.take(10)) == [(None, None)]
        assert machine.done
        assert machine.take(10) == []


def test_an_estimate_far_below_the_keys_does_not_make_one_chunk_of_them() -> None:
    machine = splitter(estimate=0)
    machine.ranged(KeyRange(low=1, high=11))
    assert machine.wants() == "bound"


def test_composite_and_text_keys_are_compared_by_mysql_alone() -> None:
    machine = splitter("int", "varchar(9)", integer=False)
    assert machine.wants() == "bound"
    first, second = *machine.bounded(("3", "é")), *machine.bounded(None)
    assert (first.split_start, first.split_end, second.split_start, second.split_end) == (
        None,
        ("3", "é"),
        ("3", "é"),
        None,
    )
    assert first.split_key_type == ("int", "varchar(9)")


def test_wide_rows_make_smaller_chunks_and_never_none() -> None:
    assert splitter(chunk_rows=50_000, row_bytes=CHUNK_BYTES // 10).step == 10
    assert splitter(chunk_rows=50_000, row_bytes=CHUNK_BYTES * 2).step == 1
    assert splitter(chunk_rows=50_000, row_bytes=0).step == 50_000


def test_split_ids_name_table_generation_and_number() -> None:
    machine = splitter()
    machine.ranged(KeyRange(low=1, high=25))
    assert [s.split_id for s in machine.take(9)] == ["d.t:1:1", "d.t:1:2", "d.t:1:3", "d.t:1:4"]


def test_a_question_that_was_open_is_asked_again_after_a_restore() -> None:
    machine = splitter(integer=False)
    machine.asked = True
    assert machine.wants() is None
    again = Splitter.restored("d.t", 1, machine.schema, json.loads(json.dumps(machine.to_json())))
    assert again.wants() == "bound"


def holders(key: int, splits: list[SnapshotSplit]) -> int:
    """How many chunks hold the key."""
    starts = [(None if s.split_start is None else int(s.split_start[0])) for s in splits]
    ends = [(None if s.split_end is None else int(s.split_end[0])) for s in splits]
    pairs = zip(starts, ends, strict=True)
    return sum((start is None or start <= key) and (end is None or key < end) for start, end in pairs)


@settings(max_examples=150, deadline=None)
@given(
    keys=st.lists(st.integers(-300, 300), unique=True),
    estimate=st.integers(0, 400),
    chunk_rows=st.integers(1, 60),
    restores=st.sets(st.integers(0, 40)),
    data=st.data(),
)
def test_the_chunks_partition_the_key_space(
    keys: list[int], estimate: int, chunk_rows: int, restores: set[int], data: st.DataObject
) -> None:
    machine = splitter(chunk_rows=chunk_rows, estimate=estimate)
    splits: list[SnapshotSplit] = []
    for step in range(2000):
        if step in restores:
            machine = Splitter.restored("d.t", 1, machine.schema, json.loads(json.dumps(machine.to_json())))
        if machine.done:
            break
        question = machine.wants()
        if question == "range":
            machine.ranged(KeyRange(low=min(keys, default=None), high=max(keys, default=None)))
        elif question == "bound":
            start = machine.next_start
            later = sorted(k for k in keys if start is None or k >= int(start[0]))
            end = (str(later[machine.step]),) if len(later) > machine.step else None
            splits += machine.bounded(end)
        else:
            splits += machine.take(data.draw(st.integers(1, 5)))
    assert machine.done
    assert len({s.split_id for s in splits}) == len(splits) == machine.made
    assert all(holders(key, splits) == 1 for key in (*range(-330, 331, 3), *keys))


def test_chunks_cut_by_other_columns_than_the_identity_carry_them_with_their_types() -> None:
    machine = splitter("int", "date", integer=False)
    machine.chunk_key = ("k1", "k0")
    machine = Splitter.restored("d.t", 1, machine.schema, json.loads(json.dumps(machine.to_json())))
    (split,) = machine.bounded(("2020-01-01", "7"))
    assert (split.split_key, split.split_key_type) == (("k1", "k0"), ("date", "int"))
    assert (split.schema.key, split.ordered.key) == (("k0", "k1"), ("k1", "k0"))
