"""The enumerator's machine: splits out and back, reports once, tables through their phases, checkpoints composed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.limits import Limits
from cutline.common.mesh import messages
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    AssignSplits,
    EndStream,
    ExcludeTable,
    IncludeTable,
    LimitStream,
    Marker,
    Message,
    PartSaved,
    PauseTable,
    Remedy,
    SnapshotSplit,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamCut,
    StreamedTable,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
    TakeBackSplit,
    Throttle,
)
from cutline.common.mesh.topology import Topology
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import Column, TableSchema
from cutline.common.store.command_records import Command
from cutline.common.store.records import Anew, CheckpointEntry, StagedFile, changes
from cutline.services.enumerator import checkpoints as checkpoints_file
from cutline.services.enumerator import tables as tables_file
from cutline.services.enumerator.events import (
    BoundFound,
    CommandTaken,
    DescribeTable,
    FindBound,
    FindPlace,
    FindStop,
    FindTables,
    LimitsOrdered,
    PlaceFound,
    Plan,
    SplittingFailed,
    StopFound,
    TableDescribed,
    TableFound,
    TablesFound,
    WriteCheckpoint,
)
from cutline.services.enumerator.machine import MAX_ATTEMPTS, NEW_TABLES_SECONDS, Enumerator
from tests.simulation.checks.freeze import freeze
from tests.support import records
from tests.support.records import PART, read_back

SCHEMA = TableSchema(
    table_id="d.t",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)
WIDER = SCHEMA.add_column("c", "int", nullable=True)


def low(offset: int, server: str = "s") -> Low:
    return Low(server=server, file="binlog.000001", offset=offset)


def high(offset: int, server: str = "s") -> High:
    return High(server=server, file="binlog.000001", offset=offset)


def found(table: str = "d.t", **fields: Any) -> TableFound:
    return TableFound(**({"table_id": table, "schema": SCHEMA, "estimate": 20, "row_bytes": 10} | fields))


BENCHES: list[EnumeratorBench] = []


@pytest.fixture(autouse=True)
def _invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.process.check()


class EnumeratorBench:
    """An enumerator in its process, with `readers` readers and one writer; keeps what was sent."""

    def __init__(
        self,
        readers: int = 1,
        *,
        exact: bool = False,
        snapshot_only: bool = False,
        quarantine_changed: bool = False,
        part: State | None = None,
    ) -> None:
        names = tuple(f"reader-{i}" for i in range(readers))
        plan = Plan(
            topology=Topology({"reader": readers, "writer": 1}),
            chunk_rows=10,
            exact=exact,
            snapshot_only=snapshot_only,
            quarantine_changed=quarantine_changed,
        )
        self.machine = Enumerator(plan)
        if part is not None:
            self.machine = Enumerator.restored(plan, read_back(part, SCHEMA, WIDER), {})
        self.process = Process(self.machine, inbound=names, outbound=names, initiator=True)
        BENCHES.append(self)
        self.sent: list[tuple[str, Message]] = []
        self.orders: list[Effect] = []
        self.assigned: list[tuple[str, SnapshotSplit]] = []

    def tell(self, event: Event) -> list[Effect]:
        return self.note(self.process.handle(event, 1.0))

    def note(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append((effect.receiver, effect.message))
                if isinstance(effect.message, AssignSplits):
                    self.assigned += [(effect.receiver, split) for split in effect.message.splits]
            else:
                self.orders.append(effect)
        return effects

    def get(self, message: Message, reader: int = 0) -> list[Effect]:
        return self.tell(MessageReceived(channel=f"reader-{reader}", message=message))

    def begin(self, *tables: TableFound) -> EnumeratorBench:
        self.tell(Began())
        self.tell(TablesFound(tables=tables or (found(),)))
        return self

    def split_in(self, *ends: str | None, table: str = "d.t", generation: int = 1) -> EnumeratorBench:
        """Answer the walk's questions: one chunk for each end."""
        for end in ends:
            self.tell(BoundFound(table_id=table, generation=generation, end=None if end is None else (end,)))
        return self

    def report(self, split: SnapshotSplit, reader: int = 0, at: int = 100, **other: Any) -> list[Effect]:
        fields = {
            "split_id": split.split_id, "table_id": split.table_id, "generation": split.generation,
            "attempt": split.attempt,
            "rows": 3, "checksum": "", "low": low(at), "high": high(at + 10), "schema": SCHEMA,
        }  # fmt: skip
        return self.get(SplitReport(**(fields | other)), reader)

    def sent_of(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def start(self, checkpoint: int) -> None:
        self.machine.begin(checkpoint, 1.0)
        self.note(self.process.start(checkpoint, False, 1.0))

    def part(self) -> Any:
        return next(o.state for o in reversed(self.orders) if isinstance(o, SavePart))


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
    assert (table.phase, table.generation, table.cause) == ("waiting", 2, "the lake table lost data")


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
    assert bench.machine.accepted == {first.split_id: 1}


def test_the_next_generation_is_described_and_split_anew() -> None:
    bench = EnumeratorBench().begin().split_in(None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.RESTART, cause="DDL"))
    assert bench.sent_of(ExcludeTable) == [ExcludeTable(table_id="d.t", generation=1)]
    bench.tell(TableDescribed(generation=1, table=found()))
    assert bench.machine.tables["d.t"].splitter is None
    bench.tell(TableDescribed(generation=2, table=found()))
    bench.split_in(None, generation=2)
    bench.get(SplitsWanted(free=1))
    assert bench.assigned[-1][1].split_id == "d.t:2:1"


@pytest.mark.parametrize(("why", "phase"), [("gone", "dropped"), ("hidden", "quarantined")])
def test_a_table_that_is_gone_is_dropped_and_one_that_may_not_be_read_is_not_and_both_are_looked_at_until_they_are_back(
    why: str, phase: str
) -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1], schema=WIDER)
    bench.tell(TableDescribed(generation=2, table=found(schema=None, fault="SELECT is denied", **{why: True})))
    assert bench.machine.tables["d.t"].phase == phase
    bench.start(7)
    assert finish(bench, 7).tables["d.t"].phase == phase
    bench = EnumeratorBench(part=bench.machine.snapshot())
    look = DescribeTable(table_id="d.t", generation=2)
    assert bench.note(bench.process.handle(Ticked(), 100.0)) == [look]
    assert bench.note(bench.process.handle(Ticked(), 200.0)) == []  # a source that is away answers late
    bench.tell(TableDescribed(generation=2, table=found(schema=None, fault="d.t has no identity")))
    assert bench.machine.tables["d.t"].cause == "d.t has no identity"
    assert bench.note(bench.process.handle(Ticked(), 206.0)) == [look]
    bench.tell(TableDescribed(generation=2, table=found()))
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause, table.awaited) == ("snapshot", None, False)
    assert bench.note(bench.process.handle(Ticked(), 300.0)) == []


def live(bench: EnumeratorBench) -> EnumeratorBench:
    """Bring the first chunk of d.t, and with it the table, to the stream, and say that it is live there."""
    bench.split_in(None).get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    return bench


def test_a_live_table_that_was_dropped_leaves_the_stream_and_its_next_generation_waits_for_a_table_of_that_name() -> (
    None
):
    bench = live(EnumeratorBench().begin())
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.RESTART, cause="it was dropped"))
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
    assert look in bench.get(TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause="a statement"))
    bench.tell(TableDescribed(generation=1, table=found()))  # it is there, and stays quarantined for what it did
    assert bench.machine.tables["d.t"].phase == "quarantined"
    if noticed != "by the look when it stops":
        assert look in bench.tell(TablesFound(tables=(), unseen=frozenset({"d.t"})))
        bench.tell(TableDescribed(generation=1, table=found(schema=None, fault="SELECT is denied", hidden=True)))
        assert bench.machine.tables["d.t"].cause == "a statement"
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
                cause="gone",
                remedy=Remedy.RETRY,
            )
        )
    table = bench.machine.tables["d.t"]
    assert (table.phase, table.cause) == ("quarantined", "gone")
    bench.get(SplitsWanted(free=1))
    assert len(bench.assigned) == MAX_ATTEMPTS


def test_a_table_without_identity_is_quarantined_and_the_others_go_on() -> None:
    bench = EnumeratorBench().begin(TableFound(table_id="d.k", fault="no key"), found()).split_in(None)
    bench.get(SplitsWanted(free=1))
    assert bench.machine.tables["d.k"].cause == "no key"
    assert [s.table_id for _, s in bench.assigned] == ["d.t"]


def test_splitting_that_fails_reads_the_table_again() -> None:
    bench = EnumeratorBench().begin()
    bench.tell(SplittingFailed(table_id="d.t", generation=1, cause="definition changed", restart=True))
    assert bench.machine.tables["d.t"].generation == 2


def test_a_waiting_split_of_a_busy_reader_is_taken_back_for_an_idle_one() -> None:
    """1. reader-0 holds two splits, nothing is left. 2. reader-1 asks. 3. The unstarted one is asked back. 4.
    Released, it goes to reader-1."""
    bench = EnumeratorBench(readers=2).begin().split_in("10", None)
    bench.get(SplitsWanted(free=2), 0)
    bench.get(SplitsWanted(free=2), 1)
    assert [m.split_id for m in bench.sent_of(TakeBackSplit)] == ["d.t:1:2"]
    bench.get(SplitReleased(split_id="d.t:1:2", attempt=1), 0)
    assert bench.assigned[-1] == ("reader-1", bench.assigned[1][1])


def test_a_stream_that_only_replays_the_snapshot_is_stopped_when_every_table_is_live_or_at_rest() -> None:
    gone = TableFound(table_id="d.g", gone=True)
    bench = (
        EnumeratorBench(snapshot_only=True)
        .begin(found(), TableFound(table_id="d.k", fault="no key"), gone)
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
    bench.tell(SplittingFailed(table_id="d.u", generation=1, cause="There is no table d.u", restart=True))
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


# --- the stop ---

STOP = Stop(time_us=7)
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
    faulty, gone = TableFound(table_id="d.k", fault="no key"), TableFound(table_id="d.g", gone=True)
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


def finish(
    bench: EnumeratorBench, checkpoint: int, *files: StagedFile, stream: StreamCut | None = None
) -> CheckpointEntry:
    """Bring the checkpoint to its entry."""
    for i in range(len(bench.machine.plan.readers)):
        bench.get(Marker(checkpoint=checkpoint), i)
    bench.tell(PartStored(checkpoint=checkpoint, ref=PART))
    for i in range(len(bench.machine.plan.readers)):
        bench.get(PartSaved(checkpoint=checkpoint, part=PART, stream=stream if i == 0 else None), i)
    saved = PartSaved(checkpoint=checkpoint, staged=tuple(files))
    bench.note(bench.machine.handle(MessageReceived(channel="writer-0", message=saved), 2.0))
    order = bench.orders[-1]
    assert isinstance(order, WriteCheckpoint)
    return order.entry


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
    shown = records.table(schema=WIDER.hash, described=SCHEMA.hash)
    assert entry.tables == {"d.t": shown}
    assert (entry.inside, entry.position, entry.source_time) == (True, records.place(7), 3.0)
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    bench.start(6)
    nothing_new = StreamCut(position=records.place(8), source_time=3.0, inside=False)
    assert finish(bench, 6, stream=nothing_new).tables == {"d.t": shown}
    again = Enumerator.restored(bench.machine.plan, read_back(bench.part(), SCHEMA), entry.tables)
    assert again._entries.enter(again.tables, ()) == {"d.t": shown}


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
        checkpoints_file, "_table_entry", lambda table, streamed: made.append("entry") or table_entry(table, streamed)
    )
    bench.get(TableReport(table_id="d.t7", generation=1, state=TableState.LIVE))
    bench.start(6)
    second = finish(bench, 6, stream=stream)
    assert made == ["json", "entry"]
    assert changes(second.tables, first.tables) == {}
    assert sum(second.tables[name] is first.tables[name] for name in names) >= 999


def test_questions_about_few_tables_are_open_at_a_time() -> None:
    bench = EnumeratorBench().begin(*(found(f"d.t{number}") for number in range(1000)))
    bench.get(SplitsWanted(free=2))
    assert 1 <= len([order for order in bench.orders if isinstance(order, FindBound)]) <= 3


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
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause="no"))
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
    assert [(s.split_id, s.attempt) for s in again.machine.todo] == [("d.t:1:2", 2), ("d.t:1:3", 1)]
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
    bench.tell(SplittingFailed(table_id="d.t", generation=1, cause="x", restart=True))
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
    again.machine.begin_anew(why)
    tables = again.machine.tables
    assert [(t.phase, t.generation, t.before is None) for t in tables.values()] == [("waiting", 2, why == "asked")] * 2
    again.get(SplitsWanted(free=5))
    assert (again.assigned, again.sent_of(IncludeTable), again.machine.out) == ([], [], {})
    described = [order for order in again.tell(Began()) if isinstance(order, DescribeTable)]
    assert {(order.table_id, order.generation) for order in described} == {("d.t", 2), ("d.u", 2)}


def test_an_epoch_that_begins_anew_leaves_a_table_paused_or_dropped_and_frees_one_that_was_quarantined() -> None:
    bench = live(EnumeratorBench().begin(found(), found("d.p"), found("d.gone", schema=None, gone=True)))
    commanded(bench, "pause_table", table="d.p")
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.FAULT, cause="x"))
    bench.machine.begin_anew("asked")
    phases = {name: (table.phase, table.generation) for name, table in bench.machine.tables.items()}
    assert phases == {"d.t": ("waiting", 2), "d.p": ("paused", 2), "d.gone": ("dropped", 1)}
    assert commanded(bench, "resume_table", 2, table="d.p") is None
    assert bench.orders[-1] == DescribeTable(table_id="d.p", generation=2)


def test_a_pipeline_that_began_without_a_snapshot_gets_them_where_its_first_epoch_begins_anew() -> None:
    """Its first search has no start then, but still the stop: else it would never end."""
    bench = EnumeratorBench()
    bench.machine.begin_anew("asked")
    assert FindTables(begins=True, anew=True) in bench.tell(Began())


def test_no_generation_after_a_restore_has_a_number_that_was_left_behind() -> None:
    """The base has d.t live, d.n described and d.w waiting; what a restore leaves behind has generations up to 5."""
    names = ("d.n", "d.p", "d.gone")
    bench = live(EnumeratorBench().begin(found(), *(found(name, gone=name == "d.gone") for name in names)))
    commanded(bench, "pause_table", table="d.p")
    bench.start(7)
    bench.get(Marker(checkpoint=7))
    again = EnumeratorBench(part=bench.part())
    again.machine.leave_behind(5)
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
    again.get(TableReport(table_id="d.t", generation=6, state=TableState.RESTART, cause="DDL"))
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
    again.leave_behind(0)
    assert again.tables["d.n"].generation == 1
    again.leave_behind(3)
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


# Commands about tables


def commanded(bench: EnumeratorBench, kind: str, n: int = 1, table: str = "d.t") -> str | None:
    """Give a command; return the cause if it is refused."""
    command = Command(n=n, kind=kind, arguments={"table": table}, by="ann", at=0.0)
    bench.tell(CommandTaken(command=command))
    assert bench.machine.commands_done == n
    return bench.machine.refused.get(n, (None, None))[0]


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


def test_a_person_s_order_to_read_a_table_again_or_to_retry_it_starts_its_next_generation() -> None:
    bench = live(EnumeratorBench(quarantine_changed=True).begin())
    assert commanded(bench, "retry_table") == "d.t is live, not quarantined"
    assert commanded(bench, "forget_table", 2) == "d.t is live, not dropped"
    assert commanded(bench, "read_table_again", 3) is None
    bench.tell(TableDescribed(generation=2, table=found(schema=WIDER)))  # other columns, which a person accepts so
    assert bench.machine.tables["d.t"].phase == "snapshot"
    bench.tell(SplittingFailed(table_id="d.t", generation=2, cause="no", restart=False))
    assert bench.machine.tables["d.t"].phase == "quarantined"
    assert commanded(bench, "retry_table", 4) is None
    assert bench.orders[-1] == DescribeTable(table_id="d.t", generation=3)
    bench.tell(TableDescribed(generation=3, table=found(schema=None, gone=True)))
    assert commanded(bench, "read_table_again", 5) is not None
    assert commanded(bench, "forget_table", 6) is None
    assert bench.machine.tables == {}
    assert commanded(bench, "pause_table", 7) == "the pipeline captures no table 'd.t'"
