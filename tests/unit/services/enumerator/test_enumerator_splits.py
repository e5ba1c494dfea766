"""The enumerator's machine: splits go out and come back, reports count once, chunks are tried again."""

from __future__ import annotations

from cutline.common.limits import Limits
from cutline.common.mesh.machine import Began
from cutline.common.mesh.messages import (
    IncludeTable,
    Marker,
    Remedy,
    SplitFailed,
    SplitReleased,
    SplitsWanted,
    TakeBackSplit,
    Throttle,
)
from cutline.common.store.command_records import Command
from cutline.services.enumerator.events import (
    CommandTaken,
    DescribeTable,
    FindBound,
    FindTables,
    LimitsOrdered,
    TablesFound,
)
from cutline.services.enumerator.machine import MAX_ATTEMPTS
from tests.support.causes import because
from tests.support.enumerator_bench import WIDER, EnumeratorBench, found, high, invariants_hold, low

__all__ = ["invariants_hold"]  # the fixtures


def test_the_rest_of_a_chunk_that_was_cut_is_a_chunk_of_its_own() -> None:
    bench = EnumeratorBench(exact=True).begin().split_in("10", None)
    bench.get(SplitsWanted(free=2))
    (_, first), (_, last) = bench.assigned
    bench.get(SplitsWanted(free=1))
    bench.report(first, cut_at=("4",))
    (_, rest) = bench.assigned[-1]
    assert (rest.split_start, rest.split_end) == (("4",), ("10",))
    assert rest.split_id not in (first.split_id, last.split_id)
    bench.report(first, cut_at=("2",))  # late: taken once
    assert len(bench.assigned) == 3
    bench.report(last)
    assert not bench.sent_of(IncludeTable)
    bench.report(rest)
    (include,) = bench.sent_of(IncludeTable)
    ends = [(split.split_start, split.split_end) for split in include.splits]
    assert sorted(ends, key=str) == sorted([(None, ("4",)), (("4",), ("10",)), (("10",), None)], key=str)


def test_a_report_of_a_cut_chunk_in_flight_brings_its_rest_after_a_restore() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    ((_, split),) = bench.assigned
    bench.start(7)
    bench.report(split, cut_at=("4",))
    bench.get(Marker(checkpoint=7))
    again = EnumeratorBench(part=bench.part())
    again.tell(Began())
    again.get(SplitsWanted(free=1))
    ((_, rest),) = again.assigned
    assert (rest.split_start, rest.split_end) == (("4",), None)


def test_limits_are_shared_by_the_readers_kept_in_the_part_and_told_to_the_next_epochs() -> None:
    bench = EnumeratorBench(readers=2).begin()
    assert not bench.sent_of(Throttle)
    bench.tell(LimitsOrdered(limits=Limits(rows_per_second=100)))
    half = Throttle(limits=Limits(rows_per_second=50))
    assert [sent for sent in bench.sent if isinstance(sent[1], Throttle)] == [("reader-0", half), ("reader-1", half)]
    bench.start(7)
    bench.get(Marker(checkpoint=7), 0)
    bench.get(Marker(checkpoint=7), 1)
    again = EnumeratorBench(part=bench.part())
    again.tell(Began())
    assert again.sent[0] == ("reader-0", Throttle(limits=Limits(rows_per_second=100)))


def test_a_table_that_the_lake_has_lost_is_read_again_once_for_each_generation_that_is_named() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    (table_id,) = bench.machine.tables

    def asked(n: int) -> list[int]:
        named = {"table": table_id, "generation": 1}
        command = Command(n=n, kind="read_table_again", arguments=named, by="the Spark writer", at=0.0)
        effects = bench.tell(CommandTaken(command=command))
        return [effect.generation for effect in effects if isinstance(effect, DescribeTable)]

    assert (asked(1), asked(2)) == ([2], [])
    assert bench.machine.refused == {}
    table = bench.machine.tables[table_id]
    assert (table.phase, table.generation, str(table.cause)) == ("waiting", 2, "the lake table lost data")


def test_a_table_is_found_asked_about_and_its_splits_are_pulled() -> None:
    bench = EnumeratorBench()
    assert any(isinstance(e, FindTables) for e in bench.tell(Began()))
    (question,) = bench.tell(TablesFound(tables=(found(),)))
    assert isinstance(question, FindBound)
    bench.split_in("10", None)
    assert bench.assigned == []
    bench.get(SplitsWanted(free=1))
    assert [s.split_end for _, s in bench.assigned] == [("10",)]
    bench.get(SplitsWanted(free=1))
    assert [s.split_start for _, s in bench.assigned] == [None, ("10",)]


def test_a_reader_never_gets_more_than_it_asked_for() -> None:
    bench = EnumeratorBench(readers=2).begin().split_in("1", "2", "3", "4", None)
    bench.get(SplitsWanted(free=2), 0)
    bench.get(SplitsWanted(free=1), 1)
    assert [reader for reader, _ in bench.assigned] == ["reader-0", "reader-0", "reader-1"]


def test_a_table_goes_to_the_stream_with_its_lowest_low_and_highest_high_when_all_is_reported() -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=2))
    (_, first), (_, second) = bench.assigned
    bench.report(first, at=200)
    assert bench.sent_of(IncludeTable) == []
    bench.report(second, at=150)
    (include,) = bench.sent_of(IncludeTable)
    assert (include.low, include.high, include.splits) == (low(150), high(210), ())
    assert bench.machine.tables["d.t"].phase == "catch-up"


def test_in_exact_the_finished_chunks_travel_with_their_highs() -> None:
    bench = EnumeratorBench(exact=True).begin().split_in("10", None)
    bench.get(SplitsWanted(free=2))
    for _, split in list(bench.assigned):
        bench.report(split)
    (include,) = bench.sent_of(IncludeTable)
    assert [(s.split_start, s.split_end, s.high) for s in include.splits] == [
        (None, ("10",), high(110)),
        (("10",), None, high(110)),
    ]


def test_a_report_is_accepted_once_and_only_of_the_attempt_that_is_out() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    ((_, split),) = bench.assigned
    bench.report(split, attempt=2)
    bench.report(split, generation=2)
    assert bench.sent_of(IncludeTable) == []
    bench.report(split)
    bench.report(split)
    assert len(bench.sent_of(IncludeTable)) == 1
    assert bench.machine.tables["d.t"].rows_done == 3


def test_other_columns_in_a_report_read_the_table_again() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    effects = bench.report(bench.assigned[0][1], schema=WIDER)
    assert DescribeTable(table_id="d.t", generation=2) in effects
    assert bench.machine.tables["d.t"].phase == "waiting"


def test_chunks_read_from_two_servers_read_the_table_again() -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=2))
    (_, first), (_, second) = bench.assigned
    bench.report(first)
    effects = bench.report(second, low=low(4, "other"), high=high(4, "other"))
    assert DescribeTable(table_id="d.t", generation=2) in effects
    assert bench.machine.splits.accepted == {first.split_id: 1}


def test_a_failed_chunk_is_tried_again_then_its_table_is_quarantined_with_the_cause() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        bench.get(SplitsWanted(free=1))
        split = bench.assigned[-1][1]
        assert split.attempt == attempt
        bench.get(
            SplitFailed(
                split_id=split.split_id,
                table_id="d.t",
                generation=1,
                attempt=attempt,
                cause=because("gone"),
                remedy=Remedy.RETRY,
            )
        )
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause) == ("quarantined", because("gone"))
    bench.get(SplitsWanted(free=1))
    assert len(bench.assigned) == MAX_ATTEMPTS


def test_a_waiting_split_of_a_busy_reader_is_taken_back_for_an_idle_one() -> None:
    """1. reader-0 holds two splits, nothing is left. 2. reader-1 asks. 3. The unstarted one is asked back. 4.
    Released, it goes to reader-1."""
    bench = EnumeratorBench(readers=2).begin().split_in("10", None)
    bench.get(SplitsWanted(free=2), 0)
    bench.get(SplitsWanted(free=2), 1)
    assert [m.split_id for m in bench.sent_of(TakeBackSplit)] == ["d.t:1:2"]
    bench.get(SplitReleased(split_id="d.t:1:2", attempt=1), 0)
    assert bench.assigned[-1] == ("reader-1", bench.assigned[1][1])


def test_questions_about_few_tables_are_open_at_a_time() -> None:
    bench = EnumeratorBench().begin(*(found(f"d.t{number}") for number in range(1000)))
    bench.get(SplitsWanted(free=2))
    assert 1 <= len([order for order in bench.orders if isinstance(order, FindBound)]) <= 3
