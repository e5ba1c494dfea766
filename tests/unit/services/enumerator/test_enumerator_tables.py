"""The enumerator's machine: tables through their phases, dropped, quarantined, paused, read again."""

from __future__ import annotations

import dataclasses

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.mesh.machine import Began, Event, MessageReceived, Ticked
from cutline.common.mesh.messages import (
    ExcludeTable,
    IncludeTable,
    LimitStream,
    Marker,
    PauseTable,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamCut,
    StreamedTable,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
)
from cutline.common.shape import Shape
from cutline.services.enumerator.events import (
    BoundFound,
    DescribeTable,
    FindBound,
    FindPlace,
    FindTables,
    PlaceFound,
    SplittingFailed,
    SplittingOutdated,
    TableDescribed,
    TableFound,
    TablesFound,
)
from cutline.services.enumerator.finding import NEW_TABLES_SECONDS
from tests.support import records
from tests.support.causes import because
from tests.support.enumerator_bench import (
    SCHEMA,
    STOP,
    WIDER,
    EnumeratorBench,
    commanded,
    finish,
    found,
    high,
    invariants_hold,
    live,
    low,
)

__all__ = ["invariants_hold"]  # the fixtures


def test_the_next_generation_is_described_and_split_anew() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.RESTART, cause=because("DDL")))
    assert bench.sent_of(ExcludeTable) == [ExcludeTable(table_id="d.t", generation=1)]
    bench.tell(TableDescribed(generation=1, table=found()))
    assert bench.machine.tables["d.t"].splitter is None
    bench.tell(TableDescribed(generation=2, table=found()))
    bench.split_in(None, generation=2)
    bench.get(SplitsWanted(free=1))
    assert bench.assigned[-1][1].split_id == "d.t:2:1"


def test_a_table_enters_each_phase_at_the_time_of_the_fact_that_brings_it_there_and_stays_since_then() -> None:
    bench = EnumeratorBench()

    def tell(event: Event, now: float) -> tuple[str, float | None]:
        bench.note(bench.process.handle(event, now))
        return bench.machine.tables["d.t"].phase, bench.machine.tables["d.t"].since

    def report(state: TableState, now: float) -> tuple[str, float | None]:
        message = TableReport(table_id="d.t", generation=1, state=state, cause=because("DDL"))
        return tell(MessageReceived(channel="reader-0", message=message), now)

    bench.process.handle(Began(), 1.0)
    assert tell(TablesFound(tables=(found(),)), 2.0) == ("snapshot", 2.0)
    assert tell(BoundFound(table_id="d.t", generation=1, end=None), 3.0) == ("snapshot", 2.0)
    bench.get(SplitsWanted(free=1))
    split = bench.assigned[0][1]
    done = SplitReport(
        split_id=split.split_id, table_id="d.t", generation=1, attempt=1, rows=3, checksum="", low=low(1), high=high(2),
        schema=SCHEMA,
    )  # fmt: skip
    assert tell(MessageReceived(channel="reader-0", message=done), 5.0) == ("catch-up", 5.0)
    assert report(TableState.LIVE, 6.0) == ("live", 6.0)
    assert report(TableState.LIVE, 7.0) == ("live", 6.0)
    assert report(TableState.FAULT, 8.0) == ("quarantined", 8.0)
    assert tell(TableDescribed(generation=1, table=found(schema=None, gone=True)), 9.0) == ("dropped", 9.0)
    again = TableDescribed(generation=2, table=found(schema=None, gone=True))
    assert tell(again, 10.0) == ("dropped", 9.0)


@pytest.mark.parametrize(("why", "phase"), [("gone", "dropped"), ("hidden", "quarantined")])
def test_a_table_that_is_gone_is_dropped_and_one_that_may_not_be_read_is_not_and_both_are_looked_at_until_they_are_back(
    why: str, phase: str
) -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1], schema=WIDER)
    bench.tell(TableDescribed(generation=2, table=found(schema=None, fault=because("SELECT is denied"), **{why: True})))
    assert bench.machine.tables["d.t"].phase == phase
    bench.start(7)
    assert finish(bench, 7).tables["d.t"].phase == phase
    bench = EnumeratorBench(part=bench.machine.snapshot())
    look = DescribeTable(table_id="d.t", generation=2)
    assert bench.note(bench.process.handle(Ticked(), 100.0)) == [look]
    assert bench.note(bench.process.handle(Ticked(), 200.0)) == []  # a source that is away answers late
    bench.tell(TableDescribed(generation=2, table=found(schema=None, fault=because("d.t has no identity"))))
    assert bench.machine.tables["d.t"].cause == because("d.t has no identity")
    assert bench.note(bench.process.handle(Ticked(), 206.0)) == [look]
    bench.tell(TableDescribed(generation=2, table=found()))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause, table.awaited) == ("snapshot", None, False)
    assert bench.note(bench.process.handle(Ticked(), 300.0)) == []


def test_a_live_table_that_was_dropped_leaves_the_stream_and_its_next_generation_waits_for_a_table_of_that_name() -> (
    None
):
    bench = live(EnumeratorBench().begin())
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.RESTART, cause=because("it was dropped")))
    assert bench.sent_of(ExcludeTable) == [ExcludeTable(table_id="d.t", generation=1)]
    bench.tell(TableDescribed(generation=2, table=found(schema=None, gone=True)))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.generation, table.awaited) == ("dropped", 2, True)
    assert "the lake keeps its last content" in str(table.cause)
    bench.tell(TableDescribed(generation=2, table=found(schema=WIDER)))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.generation, table.schema, table.cause) == ("snapshot", 2, WIDER, None)


@pytest.mark.parametrize("noticed", ["by the look when it stops", "by a later look for new tables"])
def test_a_quarantined_table_that_is_gone_is_dropped_since_nothing_is_left_to_mend(noticed: str) -> None:
    bench = live(EnumeratorBench().begin())
    look = DescribeTable(table_id="d.t", generation=1)
    report = TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause=because("a statement"))
    assert look in bench.get(report)
    bench.tell(TableDescribed(generation=1, table=found()))  # it is there, and stays quarantined for what it did
    assert bench.machine.tables["d.t"].phase == "quarantined"
    if noticed != "by the look when it stops":
        assert look in bench.tell(TablesFound(tables=(), unseen=frozenset({"d.t"})))
        denied = found(schema=None, fault=because("SELECT is denied"), hidden=True)
        bench.tell(TableDescribed(generation=1, table=denied))
        assert bench.machine.tables["d.t"].cause == because("a statement")
    bench.tell(TableDescribed(generation=1, table=found(schema=None, gone=True)))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.generation, table.awaited) == ("dropped", 2, True)


def test_a_live_table_that_the_catalogue_lacks_is_not_dropped_before_the_stream_has_read_its_drop() -> None:
    bench = live(EnumeratorBench().begin())
    assert bench.tell(TablesFound(tables=(), unseen=frozenset({"d.t"}))) == []
    assert bench.machine.tables["d.t"].phase == "live"


def test_with_halt_a_table_read_again_must_look_as_before() -> None:
    bench = EnumeratorBench(quarantine_changed=True).begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1], schema=WIDER)
    bench = EnumeratorBench(quarantine_changed=True, part=bench.machine.snapshot())
    bench.tell(TableDescribed(generation=2, table=found()))
    assert bench.machine.tables["d.t"].phase == "snapshot"
    bench.split_in(None, generation=2)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[-1][1], schema=WIDER)
    bench.tell(TableDescribed(generation=3, table=found(schema=WIDER)))
    table = bench.machine.tables["d.t"]
    assert table.phase == "quarantined"
    assert "schema_changes is halt" in str(table.cause)


@pytest.mark.parametrize("state", TableState)
def test_a_table_report_of_a_generation_that_is_over_is_ignored(state: TableState) -> None:
    bench = EnumeratorBench().begin().split_in(None)
    before = len(bench.sent)
    assert bench.get(TableReport(table_id="d.t", generation=1, state=state)) == []  # not in the stream yet
    bench.get(TableReport(table_id="d.t", generation=7, state=state))
    bench.get(TableReport(table_id="d.unknown", generation=1, state=state))
    assert len(bench.sent) == before


def test_a_table_without_identity_is_quarantined_and_the_others_go_on() -> None:
    bench = EnumeratorBench().begin(TableFound(table_id="d.k", fault=because("no key")), found()).split_in(None)
    bench.get(SplitsWanted(free=1))
    assert bench.machine.tables["d.k"].cause == because("no key")
    assert [s.table_id for _, s in bench.assigned] == ["d.t"]


def test_splitting_that_fails_reads_the_table_again() -> None:
    bench = EnumeratorBench().begin()
    bench.tell(SplittingOutdated(table_id="d.t", generation=1, cause=because("definition changed")))
    assert bench.machine.tables["d.t"].generation == 2


def test_a_stream_that_only_replays_the_snapshot_is_stopped_when_every_table_is_live_or_at_rest() -> None:
    gone = TableFound(table_id="d.g", gone=True)
    bench = (
        EnumeratorBench(snapshot_only=True)
        .begin(found(), TableFound(table_id="d.k", fault=because("no key")), gone)
        .split_in(None)
    )
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    assert bench.sent_of(StopStream) == []
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    assert len(bench.sent_of(StopStream)) == 1


def test_a_stream_that_only_replays_the_snapshot_is_stopped_also_when_the_last_table_is_dropped() -> None:
    bench = EnumeratorBench(snapshot_only=True).begin(found(), found("d.u")).split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    bench.tell(SplittingOutdated(table_id="d.u", generation=1, cause=because("There is no table d.u")))
    assert bench.sent_of(StopStream) == []
    bench.tell(TableDescribed(generation=2, table=found("d.u", schema=None, gone=True)))
    assert len(bench.sent_of(StopStream)) == 1


def test_tables_that_start_without_a_snapshot_go_to_the_stream_at_once() -> None:
    bench = EnumeratorBench()
    bench.tell(Began())
    bench.tell(TablesFound(tables=(found(),), start=(low(4), high(4)), looked_at=low(9)))
    assert [(m.low, m.looked_at) for m in bench.sent_of(IncludeTable)] == [(low(4), low(9))]


def test_start_and_stop_are_asked_for_once_at_the_beginning() -> None:
    bench = EnumeratorBench()
    assert FindTables(begins=True) in bench.tell(Began())
    bench.tell(TablesFound(tables=(found(),), start=(low(4), high(4)), stop=STOP))
    assert [type(m) for _, m in bench.sent] == [LimitStream, IncludeTable]
    bench.start(2)
    bench.get(Marker(checkpoint=2))
    again = EnumeratorBench(part=bench.part())
    assert FindTables(begins=False, known=frozenset({"d.t"})) in again.tell(Began())
    assert again.machine.stop == STOP


def test_tables_that_are_created_meanwhile_are_looked_for_and_read_but_not_by_a_pipeline_that_is_to_end() -> None:
    bench = EnumeratorBench()
    bench.tell(Began())
    assert bench.process.handle(Ticked(), 60.0) == []  # the first answer is awaited
    bench.tell(TablesFound(tables=(found(),)))
    assert bench.process.handle(Ticked(), 1.0 + NEW_TABLES_SECONDS - 0.1) == []
    look = [FindTables(begins=False, known=frozenset({"d.t"}))]
    assert bench.process.handle(Ticked(), 1.0 + NEW_TABLES_SECONDS) == look
    assert bench.process.handle(Ticked(), 90.0) == []
    assert FindBound in map(type, bench.tell(TablesFound(tables=(found("d.new"),))))
    assert bench.machine.tables["d.new"].phase == "snapshot"
    ends = EnumeratorBench()
    ends.tell(Began())
    ends.tell(TablesFound(tables=(found(),), stop=STOP))
    assert not any(isinstance(effect, FindTables) for effect in ends.process.handle(Ticked(), 60.0))


def test_splits_of_a_paused_table_wait_and_those_that_are_out_may_finish_also_across_a_restore() -> None:
    bench = EnumeratorBench().begin().split_in("10", "20", None)
    bench.get(SplitsWanted(free=1))
    assert commanded(bench, "pause_table") is None
    bench.get(SplitsWanted(free=2))
    assert len(bench.assigned) == 1
    bench.report(bench.assigned[0][1])
    bench.start(1)
    bench.get(Marker(checkpoint=1))
    again = EnumeratorBench(part=bench.part())
    again.tell(Began())
    again.get(SplitsWanted(free=3))
    assert again.assigned == []
    assert (again.machine.commands_done, again.machine.tables["d.t"].phase) == (1, "paused")
    assert commanded(again, "resume_table", 2) is None
    assert [split.split_start for _, split in again.assigned] == [("10",), ("20",)]
    for _, split in again.assigned:
        again.report(split)
    assert len(again.sent_of(IncludeTable)) == 1


def test_a_live_table_that_is_paused_leaves_the_stream_and_goes_on_from_there() -> None:
    bench = live(EnumeratorBench().begin())
    assert commanded(bench, "pause_table") is None
    assert bench.sent_of(PauseTable) == [PauseTable(table_id="d.t", generation=1)]
    assert bench.machine.tables["d.t"].phase == "live"
    left = TablePaused(table_id="d.t", generation=1, schema=WIDER, low=low(500), high=high(500))
    bench.get(left)
    assert bench.machine.tables["d.t"].phase == "paused"
    assert commanded(bench, "pause_table", 2) == "d.t is paused"
    assert commanded(bench, "resume_table", 3) is None
    assert bench.orders[-1] == FindPlace(table_id="d.t", generation=1, low=low(500))
    bench.tell(PlaceFound(table_id="d.t", generation=1, kept=True))
    again = bench.sent_of(IncludeTable)[-1]
    assert (again.generation, again.schema, again.low, again.high) == (1, WIDER, low(500), high(500))


def test_a_resumed_table_is_not_shown_while_its_way_back_into_the_stream_is_in_flight() -> None:
    """1. A live table is paused and leaves the stream. 2. It is resumed. 3. A checkpoint begins before the stream has
    it again, and stands after changes that it lacks."""
    bench = live(EnumeratorBench().begin())
    bench.start(5)
    table = StreamedTable(table_id="d.t", generation=1, live=True, schema=SCHEMA.hash)
    stream = StreamCut(position=records.place(7), source_time=3.0, inside=False, tables=(table,))
    assert finish(bench, 5, stream=stream).tables["d.t"].show
    commanded(bench, "pause_table")
    bench.get(TablePaused(table_id="d.t", generation=1, schema=SCHEMA, low=low(500), high=high(500)))
    commanded(bench, "resume_table", 2)
    bench.tell(PlaceFound(table_id="d.t", generation=1, kept=True))
    bench.start(6)
    gone = StreamedTable(table_id="d.t", generation=0, live=False, schema="")
    later = StreamCut(position=records.place(9), source_time=3.0, inside=False, tables=(gone,))
    entered = finish(bench, 6, stream=later).tables["d.t"]
    assert (entered.phase, entered.show) == ("catch-up", False)


def test_at_the_stop_a_table_on_its_way_out_of_the_stream_or_back_is_waited_for() -> None:
    """Else the last checkpoint would lack it, and no other follows."""
    bench = live(EnumeratorBench().begin())
    bench.get(StreamStopped())
    assert bench.machine.ended
    commanded(bench, "pause_table")
    assert not bench.machine.ended
    bench.get(TablePaused(table_id="d.t", generation=1, schema=SCHEMA, low=low(500), high=high(500)))
    assert bench.machine.ended
    commanded(bench, "resume_table", 2)
    assert not bench.machine.ended
    bench.tell(PlaceFound(table_id="d.t", generation=1, kept=True))
    assert not bench.machine.ended
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    assert bench.machine.ended


def test_a_paused_table_whose_changes_are_purged_is_read_again() -> None:
    bench = live(EnumeratorBench().begin())
    commanded(bench, "pause_table")
    bench.get(TablePaused(table_id="d.t", generation=1, schema=SCHEMA, low=low(500), high=high(500)))
    commanded(bench, "resume_table", 2)
    bench.tell(PlaceFound(table_id="d.t", generation=1, kept=False))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.generation) == ("waiting", 2)
    assert "purged" in str(table.cause)


def test_a_table_that_is_resumed_before_it_has_left_goes_on_at_once() -> None:
    bench = live(EnumeratorBench().begin())
    commanded(bench, "pause_table")
    assert commanded(bench, "resume_table", 2) is None
    bench.get(TablePaused(table_id="d.t", generation=1, schema=SCHEMA, low=low(500), high=high(500)))
    assert bench.sent_of(IncludeTable)[-1].low == low(500)
    assert bench.machine.tables["d.t"].phase == "catch-up"


def test_a_table_that_left_the_definition_comes_back_as_its_next_generation_also_after_a_restore() -> None:
    bench = live(EnumeratorBench().begin(found(), found("d.u")))
    bench.tell(TablesFound(tables=(), unselected=frozenset({"d.t"})))
    assert set(bench.machine.tables) == {"d.u"}
    assert bench.sent_of(ExcludeTable) == [ExcludeTable(table_id="d.t", generation=1)]
    bench.start(1)
    bench.get(Marker(checkpoint=1))
    again = EnumeratorBench(part=bench.part())
    again.tell(TablesFound(tables=(found(),)))
    assert again.machine.tables["d.t"].generation == 2


def test_a_table_whose_rule_was_changed_or_taken_away_is_read_again_once_and_no_other_table() -> None:
    rule = Shape(where="id > 1")
    shaped = dataclasses.replace(SCHEMA, shape=rule)
    bench = live(EnumeratorBench().begin(found(), found("d.u")))
    bench.tell(TablesFound(tables=()))  # that question had not to do with rules
    bench.tell(TablesFound(tables=(), shapes={}))
    assert [table.generation for table in bench.machine.tables.values()] == [1, 1]
    bench.tell(TablesFound(tables=(), shapes={"d.t": rule}))
    assert bench.sent_of(ExcludeTable) == [ExcludeTable(table_id="d.t", generation=1)]
    assert bench.orders[-1] == DescribeTable(table_id="d.t", generation=2)
    bench.tell(TablesFound(tables=(), shapes={"d.t": rule}))  # its schema is not known yet
    bench.tell(TableDescribed(generation=2, table=found(schema=shaped)))
    bench.tell(TablesFound(tables=(), shapes={"d.t": rule}))
    assert {name: table.generation for name, table in bench.machine.tables.items()} == {"d.t": 2, "d.u": 1}
    bench.tell(TablesFound(tables=(), shapes={}))
    assert bench.machine.tables["d.t"].generation == 3


def test_a_table_that_can_t_have_its_rule_comes_back_when_it_has_another_also_after_a_restore() -> None:
    rule = Shape(mask=("id",))
    unfit = found(schema=dataclasses.replace(SCHEMA, shape=rule), fault=Cause(Code.RULE, "it masks its key"))
    bench = EnumeratorBench().begin(unfit)
    assert bench.machine.tables["d.t"].phase == "quarantined"
    bench.tell(TablesFound(tables=(), shapes={"d.t": rule}, unseen=frozenset()))
    assert bench.machine.tables["d.t"].generation == 1
    bench.start(1)
    bench.get(Marker(checkpoint=1))
    again = EnumeratorBench(part=bench.part())
    again.tell(TablesFound(tables=(), shapes={}))
    assert again.orders[-1] == DescribeTable(table_id="d.t", generation=2)
    again.tell(TableDescribed(generation=2, table=found()))
    assert again.machine.tables["d.t"].phase == "snapshot"


def test_a_table_that_is_quarantined_for_another_reason_is_not_read_again_for_its_rule() -> None:
    bench = live(EnumeratorBench().begin())
    bench.machine.fail("d.t", 1, Cause(Code.VALUE, "a date"), restart=False)
    bench.tell(TablesFound(tables=(), shapes={"d.t": Shape(where="id > 1")}))
    assert (bench.machine.tables["d.t"].phase, bench.machine.tables["d.t"].generation) == ("quarantined", 1)


def test_a_paused_table_whose_rule_was_changed_is_read_again_once_it_goes_on() -> None:
    bench = live(EnumeratorBench().begin())
    assert commanded(bench, "pause_table") is None
    bench.get(TablePaused(table_id="d.t", generation=1, schema=SCHEMA, low=low(500), high=high(500)))
    assert bench.machine.tables["d.t"].phase == "paused"
    bench.tell(TablesFound(tables=(), shapes={"d.t": Shape(where="id > 1")}))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.generation, table.schema) == ("paused", 2, None)


def test_a_person_s_order_to_read_a_table_again_or_to_retry_it_starts_its_next_generation() -> None:
    bench = live(EnumeratorBench(quarantine_changed=True).begin())
    assert commanded(bench, "retry_table") == "d.t is live, not quarantined"
    assert commanded(bench, "forget_table", 2) == "d.t is live, not dropped"
    assert commanded(bench, "read_table_again", 3) is None
    bench.tell(TableDescribed(generation=2, table=found(schema=WIDER)))  # other columns, which a person accepts so
    assert bench.machine.tables["d.t"].phase == "snapshot"
    bench.tell(SplittingFailed(table_id="d.t", generation=2, cause=because("no")))
    assert bench.machine.tables["d.t"].phase == "quarantined"
    assert commanded(bench, "retry_table", 4) is None
    assert bench.orders[-1] == DescribeTable(table_id="d.t", generation=3)
    bench.tell(TableDescribed(generation=3, table=found(schema=None, gone=True)))
    assert commanded(bench, "read_table_again", 5) is not None
    assert commanded(bench, "forget_table", 6) is None
    assert bench.machine.tables == {}
    assert commanded(bench, "pause_table", 7) == "the pipeline captures no table 'd.t'"
