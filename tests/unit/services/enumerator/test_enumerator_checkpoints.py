"""The enumerator's machine: checkpoints composed of parts, restores, a new beginning, the stop."""

from __future__ import annotations

import dataclasses

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.mesh import messages
from cutline.common.mesh.machine import Began, Event, MessageReceived, PartStored, Send, Ticked
from cutline.common.mesh.messages import (
    EndStream,
    IncludeTable,
    Marker,
    PartSaved,
    SnapshotSplit,
    SplitsWanted,
    StopStream,
    StreamCut,
    StreamedTable,
    StreamStopped,
    TableReport,
    TableState,
)
from cutline.common.positions import Position
from cutline.common.store.deltas import changes
from cutline.common.store.records import Anew, ChangeCounts, StagedFile, TableEntry
from cutline.services.enumerator import checkpoints as checkpoints_file
from cutline.services.enumerator import tables as tables_file
from cutline.services.enumerator.events import (
    DescribeTable,
    FindBound,
    FindStop,
    FindTables,
    SplittingOutdated,
    StopFound,
    TableDescribed,
    TableFound,
    TablesFound,
    WriteCheckpoint,
)
from cutline.services.enumerator.machine import Enumerator
from tests.simulation.checks.freeze import freeze
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
    invariants_hold,
    live,
)
from tests.support.records import PART, read_back

__all__ = ["invariants_hold"]  # the fixtures


PLACE = Position(server="s", file="binlog.000001", offset=500)


def test_the_stop_is_asked_for_a_second_after_each_answer_until_the_source_has_passed_it() -> None:
    bench = EnumeratorBench().begin()
    assert bench.tell(Ticked()) == []
    bench = EnumeratorBench()
    bench.tell(Began())
    bench.tell(TablesFound(tables=(found(),), stop=STOP))
    assert bench.tell(Ticked()) == [FindStop(stop=STOP)]
    assert bench.process.handle(Ticked(), 60.0) == []  # a source that is away answers late
    assert bench.tell(StopFound(place=None)) == []
    assert bench.process.handle(Ticked(), 1.5) == []
    assert bench.process.handle(Ticked(), 2.5) == [FindStop(stop=STOP)]
    assert bench.tell(StopFound(place=PLACE)) == [Send(receiver="reader-0", message=EndStream(place=PLACE))]
    assert bench.process.handle(Ticked(), 9.0) == []


def test_it_has_ended_when_the_stream_is_at_the_stop_and_every_table_is_live_or_at_rest() -> None:
    bench = EnumeratorBench()
    bench.tell(Began())
    faulty, gone = TableFound(table_id="d.k", fault=because("no key")), TableFound(table_id="d.g", gone=True)
    bench.tell(TablesFound(tables=(found(), faulty, gone), stop=STOP))
    bench.tell(StopFound(place=PLACE))
    bench.split_in(None).get(SplitsWanted(free=1))
    bench.get(StreamStopped())
    assert not bench.machine.ended
    bench.report(bench.assigned[0][1])
    assert not bench.machine.ended
    bench.start(2)
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    assert bench.machine.ended
    bench.get(Marker(checkpoint=2))
    restored = EnumeratorBench(part=bench.part())
    assert restored.machine.ended
    restored.tell(Began())
    restored.tell(TablesFound(tables=(found(), found("d.new"))))
    assert restored.machine.ended


def test_a_table_that_comes_back_when_all_has_ended_is_not_read_any_more() -> None:
    bench = EnumeratorBench()
    bench.tell(Began())
    gone = TableFound(table_id="d.t", gone=True)
    bench.tell(TablesFound(tables=(gone,), stop=STOP))
    assert not bench.machine.ended
    bench.tell(StopFound(place=PLACE))
    assert bench.machine.ended  # without a live table no word of the stream is waited for
    assert bench.tell(TableDescribed(generation=1, table=found())) == []
    assert bench.machine.ended


def test_a_recorded_word_of_the_stop_is_known_after_a_restore() -> None:
    bench = EnumeratorBench().begin()
    bench.start(2)
    bench.get(StreamStopped())
    bench.get(Marker(checkpoint=2))
    assert EnumeratorBench(part=bench.part()).machine.at_stop


# --- checkpoints ---


def staged(split: SnapshotSplit, attempt: int | None = None) -> StagedFile:
    name = f"{split.split_id}#{attempt or split.attempt}"
    return records.staged("d.t", path=name, kind="chunk", split=name, rows=3, schema=SCHEMA.hash)


def test_an_entry_is_written_only_when_every_member_has_saved_its_part() -> None:
    bench = EnumeratorBench(readers=2).begin().split_in(None)
    bench.start(5)
    assert [type(m) for _, m in bench.sent[-2:]] == [Marker, Marker]
    entry = finish(bench, 5)
    assert set(entry.parts) == {"enumerator", "reader-0", "reader-1"}
    assert sum(isinstance(o, WriteCheckpoint) for o in bench.orders) == 1


def test_a_report_before_the_cut_and_one_in_flight_are_in_the_entry_one_after_it_is_in_the_next() -> None:
    """1. A report reaches the enumerator. 2. It starts N. 3. Another report comes before that reader's marker. 4.
    The marker. 5. A third report. N has the files of the first two; N+1 that of the third, once."""
    bench = EnumeratorBench().begin().split_in("10", "20", None)
    bench.get(SplitsWanted(free=3))
    first, second, third = (split for _, split in bench.assigned)
    bench.report(first)
    bench.start(5)
    bench.report(second)
    bench.get(Marker(checkpoint=5))
    bench.report(third)
    bench.tell(PartStored(checkpoint=5, ref=PART))
    bench.get(PartSaved(checkpoint=5, part=PART))
    saved = PartSaved(checkpoint=5, staged=(staged(first), staged(second), staged(first, attempt=9)))
    (order,) = bench.machine.handle(MessageReceived(channel="writer-0", message=saved), 2.0)
    assert isinstance(order, WriteCheckpoint)
    assert [f.split for f in order.entry.staged] == [f"{first.split_id}#1", f"{second.split_id}#1"]
    assert order.entry.tables["d.t"].phase == "snapshot"
    bench.start(6)
    entry = finish(bench, 6, staged(third), staged(second))
    assert [f.split for f in entry.staged] == [f"{third.split_id}#1"]
    assert entry.tables["d.t"].phase == "catch-up"


def test_the_entry_shows_what_the_stream_says_is_live() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.start(5)
    table = StreamedTable(table_id="d.t", generation=1, live=True, schema=WIDER.hash)
    stream = StreamCut(position=records.place(7), source_time=3.0, inside=True, tables=(table,))
    entry = finish(bench, 5, stream=stream)
    shown = records.table(schema=WIDER.hash, described=SCHEMA.hash, since=1.0, counts=ChangeCounts())
    assert entry.tables == {"d.t": shown}
    assert (entry.inside, entry.position, entry.source_time) == (True, records.place(7), 3.0)
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    bench.start(6)
    nothing_new = StreamCut(position=records.place(8), source_time=3.0, inside=False)
    assert finish(bench, 6, stream=nothing_new).tables == {"d.t": shown}
    again = Enumerator.restored(bench.machine.plan, read_back(bench.part(), SCHEMA), entry.tables)
    assert again.entries.enter(again.tables, ()) == {"d.t": shown}


def changed(*counts: int, generation: int = 1) -> StagedFile:
    return records.staged(table="d.t", generation=generation, counts=ChangeCounts(*counts) if counts else None)


def test_the_changes_of_a_generation_add_up_over_checkpoints_and_restores() -> None:
    """1. Two checkpoints have changes, in several files; a third has none, and no new entry of the table. 2. A restore
    goes on from what the second one says. 3. The next generation begins at none, and late files of the old one do not
    count."""
    bench = live(EnumeratorBench().begin())
    bench.start(5)
    assert finish(bench, 5, changed(3, 1, 0), changed(1, 0, 1)).tables["d.t"].counts == (4, 1, 1)
    bench.start(6)
    second = finish(bench, 6, changed(0, 2, 0))
    assert second.tables["d.t"].counts == (4, 3, 1)
    part = bench.part()
    bench.start(7)
    assert finish(bench, 7).tables["d.t"] is second.tables["d.t"]
    again = EnumeratorBench(part=part, entered=second.tables)
    again.start(8)
    assert finish(again, 8, changed(1, 1, 1)).tables["d.t"].counts == (5, 4, 2)
    commanded(again, "read_table_again")
    again.start(9)
    assert finish(again, 9, changed(1, 1, 1)).tables["d.t"].counts == (0, 0, 0)


@pytest.mark.parametrize("unknown", ["by the base", "by a file"])
def test_changes_that_something_does_not_tell_are_unknown_until_the_next_generation(unknown: str) -> None:
    bench = live(EnumeratorBench().begin())
    bench.start(5)
    entry = finish(bench, 5, *([changed()] if unknown == "by a file" else []))
    base = {name: dataclasses.replace(table, counts=None) for name, table in entry.tables.items()}
    if unknown == "by the base":
        bench = EnumeratorBench(part=bench.part(), entered=base)
    bench.start(6)
    assert finish(bench, 6, changed(1, 1, 1)).tables["d.t"].counts is None
    commanded(bench, "read_table_again")
    bench.start(7)
    assert finish(bench, 7).tables["d.t"].counts == (0, 0, 0)


def test_a_restore_keeps_when_tables_entered_their_phases_also_those_that_a_report_in_flight_changed() -> None:
    """1. A table that is live since 1 s is in the part so. 2. Another one's report was in flight at the cut at 4 s: by
    the entry, and by the restored machine, it is live since the cut."""
    bench = live(EnumeratorBench().begin(found(), found("d.u")))
    bench.split_in(None, table="d.u").get(SplitsWanted(free=1))
    bench.report(bench.assigned[-1][1])
    assert bench.machine.tables["d.u"].phase == "catch-up"
    bench.machine.begin(5, 4.0)
    bench.note(bench.process.start(5, False, 4.0))
    bench.tell(MessageReceived(
        channel="reader-0", message=TableReport(table_id="d.u", generation=1, state=TableState.LIVE)
    ))  # fmt: skip
    streamed = tuple(StreamedTable(table_id=n, generation=1, live=True, schema=SCHEMA.hash) for n in ("d.t", "d.u"))
    stream = StreamCut(position=records.place(7), source_time=3.0, inside=False, tables=streamed)
    entry = finish(bench, 5, stream=stream)
    live_since = {"d.t": ("live", 1.0), "d.u": ("live", 4.0)}
    assert {name: (table.phase, table.since) for name, table in entry.tables.items()} == live_since
    again = Enumerator.restored(bench.machine.plan, read_back(bench.part(), SCHEMA), entry.tables, at=entry.started_at)
    assert {name: (table.phase, table.since) for name, table in again.tables.items()} == live_since
    assert again.entries.entered == entry.tables


def test_a_part_of_the_version_before_is_restored_and_tells_no_beginning_of_what_stays_in_its_phase() -> None:
    bench = live(EnumeratorBench().begin())
    state = bench.machine.snapshot()
    for value in state.values["tables"].values():
        del value["since"]
    older = {"d.t": TableEntry(generation=1, phase="live", schema=SCHEMA.hash, show=True)}
    again = EnumeratorBench(part=state, entered=older)
    assert again.machine.tables["d.t"].since is None
    again.start(8)
    assert (entry := finish(again, 8).tables["d.t"]) == older["d.t"]
    assert (entry.since, entry.counts) == (None, None)
    commanded(again, "read_table_again")
    assert again.machine.tables["d.t"].since == 1.0


def test_a_cut_costs_what_changed_and_not_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand tables, five live, one goes on: only that one is written anew in the part, and in the entry."""
    names = [f"d.t{number}" for number in range(1000)]
    bench = EnumeratorBench().begin(*(found(name) for name in names))
    while not all(table.phase == "catch-up" for table in bench.machine.tables.values()):
        bench.get(SplitsWanted(free=2))
        asked = [order for order in bench.orders if isinstance(order, FindBound)]
        bench.orders.clear()
        for order in asked:
            bench.split_in(None, table=order.table_id)
        out, bench.assigned = bench.assigned, []
        for _, split in out:
            bench.report(split)
    bench.start(5)
    streamed = [StreamedTable(table_id=name, generation=1, live=True, schema=SCHEMA.hash) for name in names]
    stream = StreamCut(position=records.place(7), source_time=3.0, inside=False)
    first = finish(bench, 5, stream=dataclasses.replace(stream, tables=tuple(streamed)))
    assert {table.phase for table in first.tables.values()} == {"live"}
    made: list[str] = []
    to_json, table_entry = tables_file._to_json, checkpoints_file._table_entry
    monkeypatch.setattr(tables_file, "_to_json", lambda table: made.append("json") or to_json(table))
    monkeypatch.setattr(
        checkpoints_file, "_table_entry", lambda table, *rest: made.append("entry") or table_entry(table, *rest)
    )
    bench.get(TableReport(table_id="d.t7", generation=1, state=TableState.LIVE))
    bench.start(6)
    second = finish(bench, 6, stream=stream)
    assert made == ["json", "entry"]
    assert changes(second.tables, first.tables) == {}
    assert sum(second.tables[name] is first.tables[name] for name in names) >= 999


def test_thousands_of_splits_of_exact_go_in_several_messages_and_are_kept_in_groups() -> None:
    count = 2 * tables_file.GROUP + 3
    bench = EnumeratorBench(exact=True).begin()
    for number in range(count):
        bench.get(SplitsWanted(free=1))
        bench.split_in(str(number) if number < count - 1 else None)
        split = bench.assigned.pop()[1]
        if number == count - 1:
            bench.start(5)
            finish(bench, 5)
            groups = {key: len(group) for key, group in bench.part().values["completed"].items()}
            assert groups == {"d.t 0": tables_file.GROUP, "d.t 1": tables_file.GROUP, "d.t 2": 2}
            bench = EnumeratorBench(exact=True, part=bench.part())
            bench.tell(Began())
            bench.get(SplitsWanted(free=1))
            split = bench.assigned.pop()[1]
        if number == count - 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(messages, "PIECE", 200)
                bench.report(split)
            break
        bench.report(split)
    found_in = bench.sent_of(IncludeTable)
    assert [message.more for message in found_in] == [True, True, False]
    assert sum(len(message.splits) for message in found_in) == count


def test_changes_of_a_table_that_was_quarantined_before_the_cut_are_left_out() -> None:
    """1. A live table got a column. 2. The stream gives the table up, and knows its schemas no more. 3. The cut: its
    changes under the new schema were staged, and nobody can say what that schema is; it is not shown any more."""
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.start(5)
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause=because("no")))
    changed = records.staged("d.t", schema=WIDER.hash)
    entry = finish(bench, 5, changed, stream=StreamCut(position=None, source_time=None, inside=False))
    assert entry.tables["d.t"].phase == "quarantined"
    assert entry.staged == ()


def test_a_restore_queues_what_was_out_with_the_next_attempt_and_takes_the_reports_in_flight() -> None:
    bench = EnumeratorBench().begin().split_in("10", "20", None)
    bench.get(SplitsWanted(free=2))
    bench.start(5)
    bench.report(bench.assigned[0][1])
    finish(bench, 5)
    again = EnumeratorBench(readers=3, part=bench.part())
    assert [(s.split_id, s.attempt) for s in again.machine.splits.todo] == [("d.t:1:2", 2), ("d.t:1:3", 1)]
    assert again.machine.tables["d.t"].splits_done == 1
    again.tell(Began())
    again.get(SplitsWanted(free=2), 2)
    assert [(r, s.attempt) for r, s in again.assigned] == [("reader-2", 2), ("reader-2", 1)]


def test_the_orders_that_follow_from_a_report_in_flight_go_out_in_the_new_epoch() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.start(5)
    bench.report(bench.assigned[0][1])
    finish(bench, 5)
    again = EnumeratorBench(part=bench.part())
    again.tell(Began())
    assert len(again.sent_of(IncludeTable)) == 1
    again = EnumeratorBench(part=again.machine.snapshot())
    again.tell(Began())
    assert again.sent_of(IncludeTable) == []


def test_a_table_that_waits_for_its_next_generation_is_described_again_after_a_restore() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.tell(SplittingOutdated(table_id="d.t", generation=1, cause=because("x")))
    again = EnumeratorBench(part=bench.machine.snapshot())
    assert DescribeTable(table_id="d.t", generation=2) in again.tell(Began())


@pytest.mark.parametrize("why", ["asked", "lost"])
def test_an_epoch_that_begins_anew_reads_every_table_again_and_takes_nothing_of_before(why: Anew) -> None:
    """The part has a split out, one queued, and a report in flight that would hand a table to the stream."""
    bench = EnumeratorBench(quarantine_changed=True).begin(found(), found("d.u")).split_in("10", "20", None)
    bench.split_in(None, table="d.u")
    bench.get(SplitsWanted(free=2))
    bench.start(5)
    for _, split in bench.assigned:
        bench.report(split)
    finish(bench, 5)
    again = EnumeratorBench(part=bench.part(), quarantine_changed=True)
    again.machine.begin_anew(why, 3.0)
    tables = again.machine.tables
    assert [(t.phase, t.generation, t.before is None) for t in tables.values()] == [("waiting", 2, why == "asked")] * 2
    again.get(SplitsWanted(free=5))
    assert (again.assigned, again.sent_of(IncludeTable), again.machine.splits.out) == ([], [], {})
    described = [order for order in again.tell(Began()) if isinstance(order, DescribeTable)]
    assert {(order.table_id, order.generation) for order in described} == {("d.t", 2), ("d.u", 2)}


def test_an_epoch_that_begins_anew_leaves_a_table_paused_or_dropped_and_frees_one_that_was_quarantined() -> None:
    bench = live(EnumeratorBench().begin(found(), found("d.p"), found("d.gone", schema=None, gone=True)))
    commanded(bench, "pause_table", table="d.p")
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause=because("x")))
    bench.machine.begin_anew("asked", 3.0)
    phases = {name: (table.phase, table.generation) for name, table in bench.machine.tables.items()}
    assert phases == {"d.t": ("waiting", 2), "d.p": ("paused", 2), "d.gone": ("dropped", 1)}
    assert commanded(bench, "resume_table", 2, table="d.p") is None
    assert bench.orders[-1] == DescribeTable(table_id="d.p", generation=2)


def test_a_pipeline_that_began_without_a_snapshot_gets_them_where_its_first_epoch_begins_anew() -> None:
    """Its first search has no start then, but still the stop: else it would never end."""
    bench = EnumeratorBench()
    bench.machine.begin_anew("asked", 3.0)
    assert FindTables(begins=True, anew=True) in bench.tell(Began())


def test_no_generation_after_a_restore_has_a_number_that_was_left_behind() -> None:
    """The base has d.t live, d.n described and d.w waiting; what a restore leaves behind has generations up to 5."""
    names = ("d.n", "d.p", "d.gone")
    bench = live(EnumeratorBench().begin(found(), *(found(name, gone=name == "d.gone") for name in names)))
    commanded(bench, "pause_table", table="d.p")
    bench.start(7)
    bench.get(Marker(checkpoint=7))
    again = EnumeratorBench(part=bench.part())
    again.machine.leave_behind(5, 3.0)
    tables = again.machine.tables
    assert {name: (table.phase, table.generation) for name, table in tables.items()} == {
        "d.t": ("live", 1),
        "d.n": ("waiting", 6),
        "d.p": ("paused", 6),
        "d.gone": ("dropped", 6),
    }
    assert DescribeTable(table_id="d.n", generation=6) in again.tell(Began())
    again.tell(TablesFound(tables=(found("d.new"),)))
    assert tables["d.new"].generation == 6
    commanded(again, "read_table_again", 2)
    again.get(TableReport(table_id="d.t", generation=6, state=TableState.RESTART, cause=because("DDL")))
    assert tables["d.t"].generation == 6
    again.get(SplitsWanted(free=9))
    assert {split.generation for _, split in again.assigned} <= {6}


def test_the_numbers_of_tables_that_left_are_in_the_entry_and_of_a_base_that_nothing_follows_none_changes() -> None:
    bench = live(EnumeratorBench().begin(found(), found("d.n")))
    commanded(bench, "read_table_again")
    bench.tell(TablesFound(tables=(), unselected=frozenset({"d.t"})))
    bench.start(5)
    entry = finish(bench, 5)
    assert (entry.left, entry.highest) == (2, 2)
    again = EnumeratorBench(part=bench.part()).machine
    again.leave_behind(0, 3.0)
    assert again.tables["d.n"].generation == 1
    again.leave_behind(3, 3.0)
    assert again.tables["d.n"].generation == 4


def test_an_illegal_step_is_refused_and_leaves_the_enumerator_as_it_was() -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    bench.start(5)
    before = freeze(bench.machine)
    illegal: list[Event] = [
        PartStored(checkpoint=5, ref=PART),  # its cut is not complete
        PartStored(checkpoint=6, ref=PART),
        MessageReceived(channel="reader-0", message=PartSaved(checkpoint=4)),
        MessageReceived(channel="reader-0", message=StopStream()),
        MessageReceived(channel="writer-0", message=SplitsWanted(free=1)),
    ]
    for event in illegal:
        with pytest.raises(ProtocolError):
            bench.machine.handle(event, 1.0)
        assert freeze(bench.machine) == before
    bench.get(Marker(checkpoint=5))
    bench.get(PartSaved(checkpoint=5, part=PART))
    with pytest.raises(ProtocolError, match="twice"):
        bench.get(PartSaved(checkpoint=5, part=PART))
