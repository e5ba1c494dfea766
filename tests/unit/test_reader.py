"""The reader's machine: chunks commit by their last message; tables join, catch up, meet and become live; cuts
restore."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import PositionLost, ProtocolError
from cutline.common.mesh import messages
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    AssignSplits,
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    CompletedSplit,
    EndStream,
    ExcludeTable,
    IncludeTable,
    LimitStream,
    Marker,
    Message,
    PartSaved,
    PauseTable,
    Records,
    Remedy,
    SnapshotSplit,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamCaughtUp,
    StreamedTable,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
    TakeBackSplit,
)
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import Column, TableSchema
from cutline.common.store.records import Members
from cutline.common.store.store import Store
from cutline.services.reader.driver import ReaderDriver
from cutline.services.reader.events import (
    ChunkFailed,
    ChunkRead,
    ChunkRowsRead,
    CloseCursor,
    ContinueChunk,
    ReadChanges,
    ReadChunk,
)
from cutline.services.reader.machine import HELD_SPLITS, INSIDE_ROWS, LONGEST_SECONDS, STILL_SECONDS, Reader
from cutline.services.reader.source import MysqlSource
from cutline.services.reader.unsaved import Unsaved
from cutline.services.sources.contract import GenerationEnded, SchemaChange, TableChanges
from tests.simulation.checks.freeze import freeze
from tests.support import records
from tests.support.ports import ports
from tests.support.reads import changes_read, chunk_read
from tests.support.records import PART, read_back

SCHEMA = TableSchema(
    table_id="d.t",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)
WIDER = SCHEMA.add_column("c", "int", nullable=True)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FAR = 64 << 20  # more than what catch-up may lie behind before main waits for it


def low(offset: int, gtids: str = "", server: str = "s") -> Low:
    return Low(server=server, file="b.000001", offset=offset, gtids=gtids)


def high(offset: int, server: str = "s") -> High:
    return High(server=server, file="b.000001", offset=offset)


def place(offset: int, *, rows: int = 0, gtids: str = "", server: str = "s") -> Position:
    return Position(server=server, file="b.000001", offset=offset, rows=rows, gtids=gtids)


def split(number: int = 1, attempt: int = 1) -> SnapshotSplit:
    return SnapshotSplit(
        split_id=f"d.t:1:{number}", table_id="d.t", generation=1, attempt=attempt, split_key_type=("int",),
        split_start=None,
        split_end=None, schema=SCHEMA,
    )  # fmt: skip


BENCHES: list[ReaderBench] = []


@pytest.fixture(autouse=True)
def _invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.process.check()


class ReaderBench:
    """A reader with the stream, in its process, with two writers."""

    def __init__(
        self,
        *,
        stream: bool = True,
        state: Any = None,
        inside_rows: int = INSIDE_ROWS,
        most_bytes: int | None = None,
    ) -> None:
        writers, unsaved = ("writer-0", "writer-1"), Unsaved(most_bytes, base=4)
        self.reader = Reader(name="reader-0", writers=writers, stream=stream, inside_rows=inside_rows, unsaved=unsaved)
        if state is not None:
            self.reader.restore(read_back(state, SCHEMA, WIDER))
        out = ("writer-0", "writer-1", "enumerator")
        self.process = Process(self.reader, inbound=("enumerator",), outbound=out)
        self.now = 0.0
        BENCHES.append(self)

    def tell(self, event: Event) -> list[Effect]:
        return self.process.handle(event, self.now)

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes, tick by tick."""
        effects: list[Effect] = []
        for _ in range(round(seconds * 5)):
            self.now += 0.2
            effects += self.tell(Ticked())
        return effects

    def get(self, message: Message) -> list[Effect]:
        return self.tell(MessageReceived(channel="enumerator", message=message))

    def include(self, table: str = "d.t", *, at: int = 100, until: int = 200, **other: Any) -> list[Effect]:
        fields = {"table_id": table, "generation": 1, "schema": SCHEMA, "low": low(at), "high": high(until)}
        return self.get(IncludeTable(**(fields | other)))

    def read(
        self, offset: int, *, cursor: str = "main", rows: int = 0, table: str = "d.t", **other: Any
    ) -> list[Effect]:
        """The cursor's answer: it has come to `offset`, with `rows` changes of `table`, each of one byte."""
        batch = TableChanges(table_id=table, generation=1, schema_hash=SCHEMA.hash, rows=rows, size=rows, batch=[])
        batches = (batch,) if rows else ()
        fields = {"cursor": cursor, "position": place(offset), "rows": rows, "batches": batches}
        return self.tell(changes_read(**(fields | other)))

    def cursor_of(self, table: str) -> str | None:
        return self.reader.tables[table].cursor


def asked(effects: list[Effect]) -> dict[str, ReadChanges]:
    return {e.cursor: e for e in effects if isinstance(e, ReadChanges)}


def sent(effects: list[Effect], kind: type) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


# --- chunks ---


def test_a_reader_asks_for_splits_as_it_begins() -> None:
    assert ReaderBench().tell(Began()) == [Send(receiver="enumerator", message=SplitsWanted(free=HELD_SPLITS))]


def test_one_chunk_is_read_at_a_time_and_its_next_batch_is_asked_for_behind_the_last() -> None:
    bench = ReaderBench()
    assert bench.get(AssignSplits(splits=(split(1), split(2)))) == [ReadChunk(split=split(1))]
    send, more = bench.tell(ChunkRowsRead(split_id="d.t:1:1", attempt=1, rows=5, body=[]))
    assert isinstance(send, Send)
    assert more == ContinueChunk(split_id="d.t:1:1", attempt=1)


def test_the_end_of_a_chunk_and_its_report_go_out_in_one_step_and_then_the_next_is_read() -> None:
    bench = ReaderBench()
    bench.get(AssignSplits(splits=(split(1), split(2))))
    read = chunk_read(split_id="d.t:1:1", attempt=1, rows=5, checksum="c", low=low(1), high=high(2), schema=SCHEMA)
    end, report, wanted, following = bench.tell(read)
    assert isinstance(end, Send)
    assert isinstance(end.message, ChunkEnd)
    assert end.receiver.startswith("writer-")
    assert isinstance(report, Send)
    assert isinstance(report.message, SplitReport)
    assert (report.message.low, report.message.high) == (low(1), high(2))
    assert wanted == Send(receiver="enumerator", message=SplitsWanted(free=1))
    assert following == ReadChunk(split=split(2))


def test_all_rows_of_a_chunk_go_to_one_writer() -> None:
    bench = ReaderBench()
    bench.get(AssignSplits(splits=(split(1),)))
    rows = ChunkRowsRead(split_id="d.t:1:1", attempt=1, rows=5, body=[])
    read = chunk_read(split_id="d.t:1:1", attempt=1, rows=10, checksum="c", low=low(1), high=high(2), schema=SCHEMA)
    effects = [*bench.tell(rows), *bench.tell(rows), *bench.tell(read)]
    assert len({e.receiver for e in effects if isinstance(e, Send) and e.receiver != "enumerator"}) == 1


def test_a_failed_chunk_drops_its_file_and_says_why() -> None:
    bench = ReaderBench()
    bench.get(AssignSplits(splits=(split(1),)))
    effects = bench.tell(ChunkFailed(split_id="d.t:1:1", attempt=1, cause="gone", remedy=Remedy.RETRY))
    assert sent(effects, ChunkDropped) == [ChunkDropped(split_id="d.t:1:1", attempt=1)]
    assert [(m.cause, m.remedy) for m in sent(effects, SplitFailed)] == [("gone", Remedy.RETRY)]


def test_only_a_split_that_was_not_started_is_given_back() -> None:
    bench = ReaderBench()
    bench.get(AssignSplits(splits=(split(1), split(2))))
    assert bench.get(TakeBackSplit(split_id="d.t:1:1", attempt=1)) == []
    effects = bench.get(TakeBackSplit(split_id="d.t:1:2", attempt=1))
    assert sent(effects, SplitReleased) == [SplitReleased(split_id="d.t:1:2", attempt=1)]
    assert bench.reader.queue == []


# --- rows without a complete checkpoint ---


def rows_of(number: int, size: int) -> ChunkRowsRead:
    return ChunkRowsRead(split_id=f"d.t:1:{number}", attempt=1, rows=1, size=size, body=[])


def read_of(number: int) -> ChunkRead:
    split_id = f"d.t:1:{number}"
    return chunk_read(split_id=split_id, attempt=1, rows=1, checksum="c", low=low(1), high=high(2), schema=SCHEMA)


def chunks_begun(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, ReadChunk)]


def test_at_its_bound_a_reader_begins_no_chunk_until_a_later_marker_says_that_a_checkpoint_is_complete() -> None:
    """1. A chunk reaches the bound, and goes on to its end. 2. The next one waits. 3. Marker 5 passes: checkpoint 5 is
    not complete yet. 4. Marker 6 says that it is."""
    bench = ReaderBench(stream=False, most_bytes=100)
    bench.get(AssignSplits(splits=(split(1), split(2))))
    assert ContinueChunk(split_id="d.t:1:1", attempt=1) in bench.tell(rows_of(1, 100))
    assert chunks_begun(bench.tell(read_of(1))) == []
    assert (bench.reader.unsaved.full, bench.reader.unsaved.saved) == (True, 4)
    effects = bench.wait(300.0) + bench.get(Marker(checkpoint=5))
    assert sent(effects, Marker) == [Marker(checkpoint=5)] * 3
    assert chunks_begun(effects) == []
    assert chunks_begun(bench.get(Marker(checkpoint=6))) == [ReadChunk(split=split(2))]
    assert (bench.reader.unsaved.full, bench.reader.unsaved.saved) == (False, 5)


def test_from_half_of_its_bound_on_a_reader_asks_once_after_each_marker_for_the_next_checkpoint() -> None:
    bench = ReaderBench(stream=False, most_bytes=100)
    bench.get(AssignSplits(splits=(split(1),)))
    assert [len(sent(bench.tell(rows_of(1, 25)), CheckpointWanted)) for _ in range(3)] == [0, 1, 0]
    assert sent(bench.get(Marker(checkpoint=5)), CheckpointWanted) == [CheckpointWanted()]
    assert sent(bench.get(Marker(checkpoint=6)), CheckpointWanted) == []


def test_at_its_bound_a_reader_reads_no_changes_until_a_checkpoint_is_complete() -> None:
    bench = ReaderBench(most_bytes=10)
    bench.include()
    assert asked(bench.read(110, rows=10)) == {}
    assert asked(bench.wait(300.0)) == {}
    assert asked(bench.get(Marker(checkpoint=5))) == {}
    assert asked(bench.get(Marker(checkpoint=6)))["main"].after == place(110)


def test_a_marker_is_not_held_back_by_a_reader_that_waits_at_its_bound_inside_a_transaction() -> None:
    """1. The bound is reached inside a transaction, and nothing is read for minutes. 2. A marker comes: the transaction
    is read to its end, where the marker is taken. 3. Nothing more is read."""
    bench = ReaderBench(most_bytes=10)
    bench.include()
    assert asked(bench.read(100, rows=10, position=place(100, rows=10))) == {}
    assert asked(bench.wait(300.0)) == {}
    assert sent(bench.get(Marker(checkpoint=5)), Marker) == []
    assert asked(bench.wait(0.2))["main"].at_boundary
    effects = bench.read(110, rows=1)
    assert sent(effects, Marker) == [Marker(checkpoint=5)] * 3
    assert asked(effects + bench.wait(300.0)) == {}


# --- the incremental split ---


def test_the_first_table_starts_main_at_its_low() -> None:
    bench = ReaderBench()
    order = asked(bench.include(at=100))["main"]
    assert (order.after, order.until) == (place(100), None)
    assert order.routes["d.t"].low == low(100)


def test_a_table_is_live_when_main_has_reached_its_highest_high_and_not_before() -> None:
    bench = ReaderBench()
    bench.include(at=100, until=200)
    assert sent(bench.read(190), TableReport) == []
    assert sent(bench.read(200), TableReport) == [TableReport(table_id="d.t", generation=1, state=TableState.LIVE)]
    assert sent(bench.read(300), TableReport) == []


def test_changes_go_to_one_writer_a_table_and_are_counted_over_both_cursors() -> None:
    bench = ReaderBench()
    bench.include()
    (first,) = sent(bench.read(110, rows=3), Records)
    (second,) = sent(bench.read(120, rows=2), Records)
    assert (first.seq_base, second.seq_base, bench.reader.seq) == (0, 3, 5)


def test_a_table_that_comes_while_main_is_read_is_judged_by_where_main_arrives() -> None:
    """1. Main is asked at 100. 2. A table with low 150 comes: main seems not to have passed it. 3. Main answers at
    180, and what it read had no route for the table. 4. So the table catches up."""
    bench = ReaderBench()
    bench.include("d.t", at=100)
    assert asked(bench.include("d.u", at=150)) == {}
    assert bench.cursor_of("d.u") is None
    orders = asked(bench.read(180))
    assert bench.cursor_of("d.u") == "catch-up"
    assert (orders["catch-up"].after, orders["catch-up"].until) == (place(150), place(180))
    assert set(orders["catch-up"].routes) == {"d.u"}


def test_a_table_whose_low_main_has_not_passed_joins_it_at_once() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", at=150)
    orders = asked(bench.read(150))
    assert bench.cursor_of("d.u") == "main"
    assert set(orders["main"].routes) == {"d.t", "d.u"}


def test_a_round_starts_at_the_lowest_low_and_later_tables_wait_for_the_next() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", at=170)
    bench.include("d.v", at=150)
    orders = asked(bench.read(FAR))
    assert orders["catch-up"].after == place(150)
    bench.include("d.w", at=120)
    bench.read(FAR + 10)
    assert bench.cursor_of("d.w") is None


def test_cursors_meet_between_two_transactions_at_the_same_place_in_one_step() -> None:
    """1. Catch-up is asked up to main's place. 2. It arrives while main has gone on: main is held. 3. Catch-up
    arrives where main stands: its tables move over, its cursor is closed, main goes on with all of them."""
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", at=150)
    bench.read(FAR)
    orders = asked(bench.read(FAR, cursor="catch-up"))
    assert orders == {}
    orders = asked(bench.read(FAR + 50))
    assert set(orders) == {"catch-up"}
    assert orders["catch-up"].until == place(FAR + 50)
    effects = bench.read(FAR + 50, cursor="catch-up")
    assert CloseCursor(cursor="catch-up") in effects
    assert set(asked(effects)["main"].routes) == {"d.t", "d.u"}
    assert "catch-up" not in bench.reader.cursors


def test_cursors_do_not_meet_while_one_is_inside_a_transaction() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", at=150)
    bench.tell(changes_read(cursor="main", position=place(FAR, rows=3), rows=0))
    assert bench.cursor_of("d.u") is None
    bench.read(FAR + 10)
    bench.tell(changes_read(cursor="catch-up", position=place(FAR, rows=1), rows=0))
    assert bench.cursor_of("d.u") == "catch-up"


def test_cursors_that_meet_keep_the_gtids_that_both_have() -> None:
    """Main began at a low whose set named more than lay before its place; after a fail-over that set would skip rows
    of the tables that caught up."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-9"))
    bench.include("d.u", low=low(4, f"{UUID}:1-5"))
    bench.tell(changes_read(cursor="main", position=place(80, gtids=f"{UUID}:1-9"), rows=0))
    assert bench.cursor_of("d.u") == "catch-up"
    bench.tell(changes_read(cursor="catch-up", position=place(80, gtids=f"{UUID}:1-7"), rows=0))
    assert bench.cursor_of("d.u") == "main"
    assert bench.reader.cursors["main"].position.gtids == f"{UUID}:1-7"


def test_a_table_whose_low_is_of_before_any_transaction_loses_none_to_a_set_that_is_ahead() -> None:
    """Its set is empty, and main stands at the same place with a set that names what follows."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-9"))
    bench.include("d.u", low=low(4))
    bench.tell(changes_read(cursor="main", position=place(4, gtids=f"{UUID}:1-9"), rows=0))
    assert bench.cursor_of("d.u") == "main"
    assert bench.reader.cursors["main"].position == place(4)


def test_main_goes_on_after_what_catch_up_has_read_when_both_have_the_same_gtids() -> None:
    """Catch-up was asked to come to main, whose set named more than lay before its place: it read past that place. From
    there main goes on, or the tables that caught up would get the same changes twice."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-9"))
    bench.include("d.u", low=low(4, f"{UUID}:1-5"))
    bench.tell(changes_read(cursor="main", position=place(80, gtids=f"{UUID}:1-9"), rows=0))
    effects = bench.tell(changes_read(cursor="catch-up", position=place(120, gtids=f"{UUID}:1-9"), rows=4))
    assert CloseCursor(cursor="catch-up") in effects
    assert asked(effects)["main"].after == place(120, gtids=f"{UUID}:1-9")


def test_main_reads_up_to_catch_up_where_that_stands_after_it() -> None:
    """As before, and catch-up has taken what main's set does not name: main is not held, it is asked for that."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-5:9"))
    bench.include("d.u", low=low(4, f"{UUID}:1-3"))
    bench.tell(changes_read(cursor="main", position=place(80, gtids=f"{UUID}:1-5:9"), rows=0))
    effects = bench.tell(changes_read(cursor="catch-up", position=place(120, gtids=f"{UUID}:1-9"), rows=4))
    assert asked(effects)["main"].until == place(120, gtids=f"{UUID}:1-9")
    effects = bench.tell(changes_read(cursor="main", position=place(120, gtids=f"{UUID}:1-9"), rows=2))
    assert CloseCursor(cursor="catch-up") in effects


def test_main_is_not_held_for_a_catch_up_that_goes_on_at_another_server() -> None:
    """1. Catch-up began at a low whose set has a gap, and main, which is close, is held. 2. The source fails over while
    catch-up reads: at the new server its set has all of main's and more, and main stands still at the old one. 3. The
    table is read again, and main goes on."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-5"))
    bench.include("d.u", low=low(4, f"{UUID}:1-5:7-9"))
    bench.tell(changes_read(cursor="main", position=place(80, gtids=f"{UUID}:1-6"), rows=0))
    assert not bench.reader.cursors["main"].asked
    elsewhere = place(300, gtids=f"{UUID}:1-9", server="other")
    effects = bench.tell(changes_read(cursor="catch-up", position=elsewhere, rows=0))
    assert [(m.table_id, m.state) for m in sent(effects, TableReport)] == [("d.u", "restart")]
    assert CloseCursor(cursor="catch-up") in effects
    assert asked(effects)["main"].after == place(80, gtids=f"{UUID}:1-6")


def test_a_table_catches_up_no_longer_once_main_goes_on_at_another_server() -> None:
    """Main can't reach its high any more. A live table goes on."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-5"))
    bench.include("d.u", low=low(4, f"{UUID}:1-5:7-9"))
    bench.tell(changes_read(cursor="main", position=place(FAR, gtids=f"{UUID}:1-6"), rows=0))
    elsewhere = place(300, gtids=f"{UUID}:1-6", server="other")
    effects = bench.tell(changes_read(cursor="main", position=elsewhere, rows=0))
    assert [(m.table_id, m.state) for m in sent(effects, TableReport)] == [("d.u", "restart")]
    effects = bench.tell(changes_read(cursor="catch-up", position=place(60, gtids=f"{UUID}:1-9"), rows=0))
    assert CloseCursor(cursor="catch-up") in effects


def test_a_table_whose_low_is_of_a_server_that_cannot_be_compared_restarts() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", low=low(4, server="other"))
    effects = bench.read(150)
    assert [(m.table_id, m.state) for m in sent(effects, TableReport)] == [("d.u", "restart")]
    assert "d.u" not in bench.reader.tables


def test_a_table_whose_high_is_of_another_server_restarts() -> None:
    bench = ReaderBench()
    bench.include()
    effects = bench.tell(changes_read(cursor="main", position=place(500, server="other"), rows=0))
    assert [(m.table_id, m.state) for m in sent(effects, TableReport)] == [("d.t", "restart")]


def test_a_fault_takes_the_table_out_and_changes_of_it_are_not_sent() -> None:
    bench = ReaderBench()
    bench.include()
    fault = GenerationEnded(table_id="d.t", generation=1, cause="DDL")
    effects = bench.read(150, faults=(fault,))
    assert [m.state for m in sent(effects, TableReport)] == ["restart"]
    assert asked(effects)["main"].routes == {}


def test_answers_about_an_excluded_table_or_another_generation_are_nobodys() -> None:
    bench = ReaderBench()
    bench.include()
    bench.get(ExcludeTable(table_id="d.t", generation=1))
    assert sent(bench.read(150, rows=2), Records) == []
    assert bench.reader.seq == 2
    bench.get(IncludeTable(table_id="d.t", generation=2, schema=SCHEMA, low=low(150), high=high(160)))
    assert sent(bench.read(170, rows=2), Records) == []


def test_a_change_of_columns_holds_for_the_next_read() -> None:
    bench = ReaderBench()
    bench.include()
    bench.read(110, rows=3)
    bench.read(120, rows=2, schemas=(SchemaChange(table_id="d.t", generation=1, seq=2, new=WIDER),))
    table = bench.reader.tables["d.t"]
    assert bench.reader.snapshot().schemas == (WIDER,)
    assert bench.reader.snapshot().schemas == ()
    assert table.schema == WIDER


def test_what_the_first_row_event_tells_of_a_table_stays_over_a_restore() -> None:
    bench = ReaderBench()
    order = asked(bench.include(looked_at=low(500)))["main"]
    assert order.routes["d.t"].looked_at == low(500)
    (save,) = [e for e in bench.get(Marker(checkpoint=1)) if isinstance(e, SavePart)]
    assert ReaderBench(state=save.state).reader.tables["d.t"].looked_at == low(500)
    changed = SchemaChange(table_id="d.t", generation=1, seq=0, new=WIDER)
    order = asked(bench.read(120, rows=1, schemas=(changed,)))["main"]
    assert (order.routes["d.t"].looked_at, order.routes["d.t"].schema) == (None, WIDER)
    bench = ReaderBench()
    bench.include(looked_at=low(500))
    order = asked(bench.read(120, rows=1, schemas=(replace(changed, new=SCHEMA),)))["main"]
    assert order.routes["d.t"].looked_at is None
    assert bench.reader.tables["d.t"].schema == SCHEMA


def test_chunks_travel_with_the_route_until_the_table_is_live() -> None:
    chunk = CompletedSplit(split_start=None, split_end=None, high=high(150))
    bench = ReaderBench()
    order = asked(bench.include(splits=(chunk,)))["main"]
    assert order.routes["d.t"].splits == (chunk,)
    assert asked(bench.read(200))["main"].routes["d.t"].splits == ()


def test_a_live_table_is_judged_by_what_main_has_so_that_it_goes_on_at_another_server() -> None:
    """MariaDB's lows have no GTIDs; after a fail-over the low of the old server would compare with nothing."""
    bench = ReaderBench()
    before = asked(bench.include(at=100, until=200))["main"].routes["d.t"].low
    assert before == low(100)
    after = asked(bench.tell(changes_read(cursor="main", position=place(200, gtids="0-1-7"), rows=0)))["main"]
    assert after.routes["d.t"].low == low(200, "0-1-7")


def test_a_stopped_stream_reads_no_more_except_to_the_end_of_a_transaction() -> None:
    bench = ReaderBench()
    bench.include()
    bench.get(StopStream())
    orders = asked(bench.tell(changes_read(cursor="main", position=place(300, rows=4), rows=4)))
    assert orders["main"].at_boundary
    assert asked(bench.read(310)) == {}
    assert set(asked(bench.include("d.u", at=400))) == {"main"}


# --- the stop ---


STOP = Stop(gtids=f"{UUID}:1-9")


def test_main_is_read_no_further_than_the_stop_and_catch_up_does_not_know_it() -> None:
    bench = ReaderBench()
    bench.get(LimitStream(stop=STOP))
    assert asked(bench.include())["main"].stop == STOP
    bench.include("d.u", at=150)
    orders = asked(bench.read(FAR))
    assert (orders["main"].stop, orders["catch-up"].stop) == (STOP, None)
    assert asked(bench.read(2 * FAR, stopped=True)) == {}


def test_at_the_place_of_the_stop_live_tables_stay_and_what_is_later_is_told() -> None:
    """1. Main is stopped by its cursor; the place is not known: nothing is said. 2. It comes: main is asked by it. 3.
    d.t is live there, d.late had its snapshot later, d.next is included when all is over."""
    bench = ReaderBench()
    bench.get(LimitStream(stop=STOP))
    bench.include(until=200)
    bench.include("d.late", at=500, until=900)
    effects = bench.read(500, stopped=True)
    assert sent(effects, StreamStopped) == []
    assert [r.state for r in sent(effects, TableReport)] == ["live"]
    order = asked(bench.get(EndStream(place=place(500))))["main"]
    assert order.stop == Stop(server="s", file="b.000001", offset=500)
    effects = bench.read(500, stopped=True)
    (report,) = sent(effects, TableReport)
    assert (report.table_id, report.state) == ("d.late", "fault")
    assert "can't be shown at the stop, b.000001:500: its snapshot ended at b.000001:900, after it" in report.cause
    assert len(sent(effects, StreamStopped)) == 1
    assert asked(effects) == {}
    again = bench.include("d.next", at=500, until=600)
    assert [r.state for r in sent(again, TableReport)] == ["fault"]
    assert sent(again, StreamStopped) == []
    assert [r.state for r in sent(bench.include("d.good", at=500, until=500), TableReport)] == ["live"]


def test_once_an_epoch_the_stream_tells_that_it_has_read_what_waited_for_it() -> None:
    bench = ReaderBench()
    bench.include()
    assert sent(bench.read(300, rows=3), StreamCaughtUp) == []
    assert sent(bench.read(500, rows=2, idle=True), StreamCaughtUp) == [StreamCaughtUp()]
    assert sent(bench.read(600, rows=2, idle=True), StreamCaughtUp) == []


def test_a_stream_that_goes_on_after_a_silence_inside_a_transaction_tells_so_once() -> None:
    """1. A marker is taken inside a transaction of which no more comes. 2. The next row is news."""
    bench = ReaderBench()
    bench.include()
    bench.read(120, idle=True)

    def read(rows: int) -> list[Any]:
        return sent(bench.tell(changes_read(cursor="main", position=place(150, rows=rows), rows=1)), StreamCaughtUp)

    assert read(1) == []
    bench.get(Marker(checkpoint=1))
    assert SavePart in [type(effect) for effect in bench.wait(STILL_SECONDS + 1)]
    assert read(1) == []
    assert read(2) == [StreamCaughtUp()]
    assert read(3) == []


def test_a_stream_for_which_nothing_waited_tells_nothing() -> None:
    bench = ReaderBench()
    bench.include()
    assert sent(bench.read(300, idle=True), StreamCaughtUp) == []
    assert sent(bench.read(400, rows=2, idle=True), StreamCaughtUp) == []


def test_at_the_stop_a_table_that_another_server_gave_is_told_and_not_read_again_for_ever() -> None:
    bench = ReaderBench()
    bench.get(LimitStream(stop=STOP))
    bench.get(EndStream(place=place(500)))
    bench.include(until=200)
    bench.read(500, stopped=True)
    other = High(server="after the fail-over", file="b.000001", offset=300)
    (report,) = sent(bench.include("d.again", at=500, high=other), TableReport)
    assert (report.state, "can't be shown at the stop, b.000001:500: " in report.cause) == ("fault", True)


def test_a_table_whose_catch_up_begins_where_main_stands_is_mains_at_once() -> None:
    """Its low is in the file before, and between the two is a rotation only: main has passed it, and is there."""
    bench = ReaderBench()
    bench.include()
    bench.include("d.u", low=Low(server="s", file="b.000000", offset=700, gtids="0-1-9"))
    effects = bench.tell(changes_read(cursor="main", position=place(FAR, gtids="0-1-9"), rows=0))
    assert bench.cursor_of("d.u") == "main"
    assert "catch-up" not in asked(effects)


def test_an_answer_to_the_stop_by_gtids_does_not_end_what_is_judged_by_the_place() -> None:
    """Main began at an early file with GTIDs ahead of it; by its place it has to pass over what it names."""
    bench = ReaderBench()
    bench.get(LimitStream(stop=STOP))
    bench.include(at=4, until=500)
    assert asked(bench.get(EndStream(place=place(500)))) == {}
    order = asked(bench.read(4, stopped=True))["main"]
    assert order.stop == Stop.at(place(500))
    effects = bench.read(500, stopped=True)
    assert [r.state for r in sent(effects, TableReport)] == ["live"]
    assert len(sent(effects, StreamStopped)) == 1


def test_a_stream_that_began_after_the_stop_shows_no_table() -> None:
    bench = ReaderBench()
    bench.get(LimitStream(stop=Stop(time_us=7)))
    bench.include(at=300, until=300)
    bench.read(300, stopped=True)
    bench.get(EndStream(place=place(200)))
    (report,) = sent(bench.read(300, stopped=True), TableReport)
    assert report.state == "fault"
    assert "the stream began at b.000001:300, after it" in report.cause


def test_without_a_table_in_the_stream_it_is_at_no_stop() -> None:
    """A table may join it before the stop, and is not live there before main has arrived."""
    bench = ReaderBench()
    assert sent(bench.get(EndStream(place=place(200))), StreamStopped) == []
    effects = bench.include(at=100, until=100)
    assert sent([*effects, *bench.read(150)], StreamStopped) == []
    assert len(sent(bench.read(200, stopped=True), StreamStopped)) == 1


def test_a_restored_reader_knows_its_stop_and_does_not_say_twice_that_it_is_there() -> None:
    bench = ReaderBench()
    bench.get(LimitStream(stop=STOP))
    bench.include()
    restored = ReaderBench(state=bench.reader.snapshot())
    assert asked(restored.tell(Began()))["main"].stop == STOP
    bench.get(EndStream(place=place(500)))
    bench.read(300)
    bench.read(500, stopped=True)
    restored = ReaderBench(state=bench.reader.snapshot())
    effects = restored.tell(Began())
    assert (asked(effects), sent(effects, StreamStopped)) == ({}, [])


# --- cuts ---


def test_a_marker_waits_for_the_end_of_the_transaction() -> None:
    bench = ReaderBench()
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=2), rows=2))
    assert bench.get(Marker(checkpoint=1)) == []
    effects = bench.read(160, rows=1)
    kinds = [type(e.message) if isinstance(e, Send) else type(e) for e in effects]
    assert kinds.index(Records) < kinds.index(Marker)
    assert SavePart in kinds


def test_inside_a_transaction_over_the_set_size_a_marker_is_taken_and_the_cut_says_so() -> None:
    bench = ReaderBench(inside_rows=10)
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=12), rows=12))
    bench.get(Marker(checkpoint=1))
    ((saved),) = sent(bench.tell(PartStored(checkpoint=1, ref=PART)), PartSaved)
    assert saved.stream.inside is True
    assert saved.stream.position.rows == 12


def test_a_marker_is_taken_inside_a_transaction_whose_rows_come_no_more() -> None:
    """1. The source falls silent inside a transaction. 2. A marker comes, and is taken once that has lasted; the cut
    says so. 3. The next marker is taken at once. 4. The source goes on: the marker after waits for the end again."""
    bench = ReaderBench()
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=2), rows=2))
    assert bench.get(Marker(checkpoint=1)) == []
    assert bench.wait(STILL_SECONDS - 1.5) == []
    assert asked(bench.tell(changes_read(cursor="main", position=place(150, rows=2), rows=0)))  # nothing came
    assert SavePart in [type(effect) for effect in bench.wait(2.0)]
    ((saved),) = sent(bench.tell(PartStored(checkpoint=1, ref=PART)), PartSaved)
    assert (saved.stream.inside, saved.stream.position) == (True, place(150, rows=2))
    assert SavePart in [type(effect) for effect in bench.get(Marker(checkpoint=2))]
    bench.tell(changes_read(cursor="main", position=place(150, rows=3), rows=1))
    assert bench.get(Marker(checkpoint=3)) == []
    assert SavePart in [type(effect) for effect in bench.read(160, rows=1)]


def test_a_marker_waits_for_the_end_of_a_slow_transaction_but_not_for_ever() -> None:
    bench = ReaderBench()
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=1), rows=1))
    bench.get(Marker(checkpoint=1))
    effects: list[Effect] = []
    rows = 1
    while SavePart not in [type(effect) for effect in effects]:
        rows += 1
        effects += bench.tell(changes_read(cursor="main", position=place(150, rows=rows), rows=1)) + bench.wait(1.0)
    assert LONGEST_SECONDS - 2 < bench.now < LONGEST_SECONDS + 2


def test_a_reader_that_was_held_up_itself_does_not_blame_the_source() -> None:
    """Its loop waited for room on a channel for a minute: no answer could be asked for, so none is missing."""
    bench = ReaderBench()
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=2), rows=2))
    bench.get(Marker(checkpoint=1))
    bench.now += 60.0
    for _ in range(300):  # the ticks of that minute
        assert bench.tell(Ticked()) == []


def test_a_stream_that_begins_anew_has_no_place_but_its_new_tables_and_counts_on() -> None:
    """1. A part has a table that is live and one that catches up. 2. Begun anew, nothing is read, and a report would be
    of no table. 3. A new generation sets main's place, also behind the lost one. 4. Changes go on after the last."""
    bench = ReaderBench()
    bench.include("d.t", at=FAR, until=FAR + 10)
    bench.read(2 * FAR, rows=3, table="d.t")
    bench.include("d.u", at=FAR)
    bench.read(3 * FAR, rows=2, table="d.t")
    assert "catch-up" in bench.reader.cursors
    again = ReaderBench(state=bench.reader.snapshot())
    again.reader.begin_anew()
    assert asked(again.tell(Began())) == {}
    assert asked(again.include("d.t", at=100, generation=2))["main"].after == place(100)
    effects = again.tell(
        changes_read(
            cursor="main", position=place(150), rows=1,
            batches=(TableChanges(table_id="d.t", generation=2, schema_hash=SCHEMA.hash, rows=1, size=0, batch=[]),),
        )
    )  # fmt: skip
    assert sent(effects, Records)[0].seq_base == 5
    again.get(Marker(checkpoint=1))
    ((saved),) = sent(again.tell(PartStored(checkpoint=1, ref=PART)), PartSaved)
    assert [(table.table_id, table.generation) for table in saved.stream.tables] == [("d.t", 2)]


async def test_tables_that_can_t_catch_up_any_more_are_read_again_and_the_others_go_on() -> None:
    """1. A table catches up, and the source no longer has its part of the binlog. 2. That is a fault of this table,
    which is read again; its cursor ends, and main is not concerned."""
    bench = ReaderBench()
    bench.include("d.t", at=100, until=110)
    bench.read(FAR)
    bench.include("d.u", at=150)
    order = asked(bench.read(2 * FAR))["catch-up"]

    async def lost(_: Any) -> Any:
        raise PositionLost("purged")

    cursors = {name: (None, SimpleNamespace(call=lost)) for name in ("main", "catch-up")}
    member: Any = SimpleNamespace(cursors=cursors, _read=print, _catch_up_lost=ReaderDriver._catch_up_lost)
    effects = bench.tell(await ReaderDriver._read_changes(member, order))
    ((report),) = sent(effects, TableReport)
    assert (report.table_id, report.state, report.cause) == ("d.u", TableState.RESTART, "purged")
    assert CloseCursor(cursor="catch-up") in effects
    assert bench.cursor_of("d.t") == "main"
    with pytest.raises(PositionLost):
        await ReaderDriver._read_changes(member, replace(order, cursor="main"))


def test_rows_inside_are_those_of_one_transaction() -> None:
    """A read ends inside the second transaction, with the last rows of the first and six of its own."""
    bench = ReaderBench(inside_rows=10)
    bench.include()
    bench.tell(changes_read(cursor="main", position=place(150, rows=6), rows=6))
    assert bench.get(Marker(checkpoint=1)) == []
    for start in (250, 350, 450):
        effects = bench.tell(changes_read(cursor="main", position=place(start, rows=6), rows=9, rows_inside=6))
        assert SavePart not in [type(effect) for effect in effects]
    again = ReaderBench(state=bench.reader.snapshot(), inside_rows=10)
    again.tell(Began())
    for each in (bench, again):
        each.tell(changes_read(cursor="main", position=place(450, rows=11), rows=5, rows_inside=5))
        assert each.reader.cursors["main"].rows_inside == 11
        assert each.reader.ready()


def test_a_marker_that_waits_is_taken_when_each_cursor_has_ended_its_transaction_though_they_end_in_turn() -> None:
    """1. Main and catch-up are inside a transaction each. 2. The marker comes. 3. The one that ends its transaction
    first begins no other; once both have, the marker is taken, and both go on."""
    for first, second in (("main", "catch-up"), ("catch-up", "main")):
        bench = ReaderBench()
        bench.include("d.t", at=100, until=110)
        bench.read(FAR)
        bench.include("d.u", at=150)
        orders = asked(bench.read(2 * FAR))
        assert set(orders) == {"main", "catch-up"}
        at = {"main": 3 * FAR, "catch-up": 160}
        for name, offset in at.items():
            assert set(asked(bench.tell(changes_read(cursor=name, position=place(offset, rows=2), rows=2)))) == {name}
        assert bench.get(Marker(checkpoint=1)) == []
        effects = bench.tell(changes_read(cursor=first, position=place(at[first] + 10), rows=1))
        assert effects == []
        effects = bench.tell(changes_read(cursor=second, position=place(at[second] + 10), rows=1))
        assert SavePart in [type(effect) for effect in effects]
        assert set(asked(effects)) == {"main", "catch-up"}
        assert bench.reader.snapshot().head["cursors"]["catch-up"]["position"] == place(170).to_json()


def test_both_cursors_end_their_transaction_when_the_stream_is_stopped_so_that_a_marker_is_taken() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100, until=110)
    bench.read(FAR)
    bench.include("d.u", at=150)
    bench.read(2 * FAR)
    bench.get(StopStream())
    assert asked(bench.tell(changes_read(cursor="main", position=place(3 * FAR), rows=2))) == {}
    orders = asked(bench.tell(changes_read(cursor="catch-up", position=place(160, rows=2), rows=2)))
    assert set(orders) == {"catch-up"}
    assert orders["catch-up"].until == place(3 * FAR)  # never past main, which may stand at the pipeline's stop
    assert bench.get(Marker(checkpoint=1)) == []
    effects = bench.tell(changes_read(cursor="catch-up", position=place(170), rows=2))
    assert SavePart in [type(effect) for effect in effects]
    assert asked(effects) == {}


def test_the_part_says_what_the_journal_needs_of_the_stream() -> None:
    bench = ReaderBench()
    bench.include()
    bench.read(200, rows=2, source_time=5.0)
    bench.get(Marker(checkpoint=1))
    (saved,) = sent(bench.tell(PartStored(checkpoint=1, ref=PART)), PartSaved)
    assert saved.part == PART
    assert (saved.stream.position, saved.stream.source_time) == (place(200), 5.0)
    live = StreamedTable(table_id="d.t", generation=1, schema=SCHEMA.hash, live=True)
    assert saved.stream.tables == (live,)
    with pytest.raises(ProtocolError):
        bench.tell(PartStored(checkpoint=1, ref=PART))


def test_a_restored_stream_goes_on_where_it_was_cut() -> None:
    bench = ReaderBench()
    bench.include("d.t", at=100)
    bench.include("d.u", at=150)
    bench.read(180, rows=3)
    (save,) = [e for e in bench.get(Marker(checkpoint=1)) if isinstance(e, SavePart)]
    again = ReaderBench(state=save.state)
    assert again.reader.snapshot().values == bench.reader.snapshot().values
    orders = asked(again.tell(Began()))
    assert orders["catch-up"].after == place(150)
    assert again.reader.seq == 3


def test_a_reader_without_the_stream_has_no_state() -> None:
    bench = ReaderBench(stream=False)
    bench.get(AssignSplits(splits=(split(1),)))
    (save,) = [e for e in bench.get(Marker(checkpoint=1)) if isinstance(e, SavePart)]
    assert save.state == State()


def test_an_illegal_step_is_refused_and_leaves_the_reader_as_it_was() -> None:
    bench = ReaderBench()
    bench.get(AssignSplits(splits=(split(1),)))
    bench.include()
    before = freeze(bench.reader)
    illegal: list[Event] = [
        ChunkRowsRead(split_id="d.t:1:9", attempt=1, rows=1, body=[]),
        ChunkRowsRead(split_id="d.t:1:1", attempt=2, rows=1, body=[]),
        changes_read(cursor="catch-up", position=place(1), rows=0),
        PartStored(checkpoint=9, ref={}),
        MessageReceived(channel="enumerator", message=SplitsWanted(free=1)),
        MessageReceived(
            channel="enumerator",
            message=IncludeTable(table_id="d.t", generation=1, schema=SCHEMA, low=low(1), high=high(1)),
        ),
    ]
    for event in illegal:
        with pytest.raises(ProtocolError):
            bench.reader.handle(event, 0.0)
        assert freeze(bench.reader) == before
    with pytest.raises(ProtocolError, match="no incremental split"):
        ReaderBench(stream=False).include()


def test_a_read_costs_what_changed_and_not_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand live tables one changes its columns: one route is another, and no other table is looked at."""
    bench = ReaderBench()
    for number in range(1000):
        bench.include(f"d.t{number}", at=100 + number, until=1200)
    bench.read(100)
    assert {report.state for report in sent(bench.read(1200), TableReport)} == {"live"}
    monkeypatch.setattr(High, "reached_by", lambda high, position: pytest.fail("a live table was looked at"))
    before = asked(bench.read(1300))["main"].routes
    after = asked(bench.read(1310))["main"].routes
    assert after is before
    changed = SchemaChange(table_id="d.t7", generation=1, seq=0, new=WIDER)
    later = asked(bench.read(1400, rows=1, table="d.t7", schemas=(changed,)))["main"].routes
    assert later["d.t7"].schema == WIDER
    assert [name for name, table in later.items() if table is not after[name]] == ["d.t7"]


def test_the_tables_of_a_cut_are_told_once_and_many_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PIECE", 2)
    bench = ReaderBench()
    for number in range(5):
        bench.include(f"d.t{number}")
    bench.get(Marker(checkpoint=1))
    saved = sent(bench.tell(PartStored(checkpoint=1, ref=PART)), PartSaved)
    assert [(piece.more, piece.part, len(piece.stream.tables)) for piece in saved] == [
        (True, None, 2), (True, None, 2), (False, PART, 1),
    ]  # fmt: skip
    bench.get(Marker(checkpoint=2))
    (saved_again,) = sent(bench.tell(PartStored(checkpoint=2, ref=PART)), PartSaved)
    assert saved_again.stream.tables == ()
    (order,) = [e for e in bench.get(Marker(checkpoint=3)) if isinstance(e, SavePart)]
    again = ReaderBench(state=order.state)
    again.get(Marker(checkpoint=4))
    (after_restore,) = sent(again.tell(PartStored(checkpoint=4, ref=PART)), PartSaved)
    assert after_restore.stream.tables == ()


def test_a_table_that_left_the_stream_is_told_once_and_one_that_came_back_as_it_is_now() -> None:
    bench = ReaderBench()
    bench.include()
    bench.read(400)

    def cut(n: int) -> tuple[StreamedTable, ...]:
        bench.get(Marker(checkpoint=n))
        (saved,) = sent(bench.tell(PartStored(checkpoint=n, ref=PART)), PartSaved)
        return saved.stream.tables

    live = StreamedTable(table_id="d.t", generation=1, schema=SCHEMA.hash, live=True)
    assert cut(1) == (live,)
    bench.get(PauseTable(table_id="d.t", generation=1))
    bench.read(500)
    assert bench.reader.tables == {}
    assert cut(2) == (StreamedTable(table_id="d.t", generation=0, schema="", live=False),)
    assert cut(3) == ()
    bench.include(at=500, until=500)
    assert cut(4) == (replace(live, live=bench.reader.tables["d.t"].live),)


def test_a_table_whose_splits_come_in_several_messages_joins_with_the_last() -> None:
    bench = ReaderBench()
    splits = [CompletedSplit(split_start=None, split_end=(str(end),), high=high(end)) for end in (150, 160, 170)]
    assert bench.include(splits=tuple(splits[:2]), more=True) == []
    order = asked(bench.include(splits=tuple(splits[2:])))["main"]
    assert order.routes["d.t"].splits == tuple(splits)


def counting(monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> list[Any]:
    """Every object on which that method is called from now on."""
    calls: list[Any] = []
    plain = getattr(cls, name)

    def counted(value: Any, *arguments: Any) -> Any:
        calls.append(value)
        return plain(value, *arguments)

    monkeypatch.setattr(cls, name, counted)
    return calls


def test_tables_that_wait_for_their_highs_are_not_looked_at_whenever_one_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ReaderBench()
    looked = counting(monkeypatch, High, "reached_by")
    for number in range(1000):
        bench.include(f"d.t{number}", at=100, until=2000 - number)
        bench.read(100)  # so that each joins at once
    bench.read(1500)
    bench.read(2000)
    assert all(table.live for table in bench.reader.tables.values())
    assert len(looked) <= 5000


def test_a_part_costs_what_changed_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ReaderBench()
    for number in range(1000):
        bench.include(f"d.t{number}")
    bench.read(100)
    bench.read(200)
    bench.reader.snapshot()
    lows = counting(monkeypatch, Low, "to_json")
    bench.read(300, rows=1, schemas=(SchemaChange(table_id="d.t7", generation=1, seq=0, new=WIDER),), table="d.t7")
    bench.get(ExcludeTable(table_id="d.t8", generation=1))
    state = bench.reader.snapshot()
    assert (len(lows), len(state.values["tables"]), state.schemas) == (1, 999, (WIDER,))
    again = ReaderBench(state=state)
    lows.clear()
    assert again.reader.snapshot().values == state.values
    assert lows == []


# --- pausing a table ---


def test_a_table_that_is_paused_leaves_between_two_transactions_also_after_a_restore() -> None:
    bench = ReaderBench()
    bench.include()
    bench.include("d.u", at=400, until=500)
    bench.read(250)
    assert bench.reader.tables["d.t"].live
    assert sent(bench.get(PauseTable(table_id="d.t", generation=1)), TablePaused) == []  # main is being read
    bench = ReaderBench(state=bench.reader.snapshot())
    bench.reader.cursors["main"].asked = True
    inside = bench.tell(changes_read(cursor="main", position=place(300, rows=3), rows=3, rows_inside=3))
    assert sent(inside, TablePaused) == []
    (left,) = sent(bench.read(400), TablePaused)
    assert (left.low, left.high) == (Low.at(place(400)), High.at(place(400)))
    assert set(bench.reader.tables) == {"d.u"}


def test_a_table_that_is_paused_before_it_is_live_keeps_the_low_and_high_that_it_has_not_passed() -> None:
    bench = ReaderBench()
    splits = (CompletedSplit(split_start=None, split_end=None, high=high(900)),)
    bench.include(at=100, until=900, splits=splits)
    bench.get(PauseTable(table_id="d.t", generation=7))  # of another generation
    bench.read(300)
    bench.get(PauseTable(table_id="d.t", generation=1))
    (left,) = sent(bench.read(400), TablePaused)
    assert (left.low, left.high, left.splits) == (Low.at(place(400)), high(900), splits)


def test_a_table_that_waits_for_a_cursor_is_paused_at_once_and_goes_on_later() -> None:
    bench = ReaderBench()
    bench.include("d.u")
    bench.include(at=100)  # main is being read
    (left,) = sent(bench.get(PauseTable(table_id="d.t", generation=1)), TablePaused)
    assert (left.low, left.high) == (low(100), high(200))
    bench.read(500)
    bench.include(at=100)
    bench.read(510)
    assert bench.cursor_of("d.t") == "catch-up"


async def test_the_readers_of_an_epoch_share_the_bound_of_rows_without_a_checkpoint(tmp_path: Path) -> None:
    shop = Store(f"file://{tmp_path}").pipeline("shop")
    source = {"host": "h", "user": "u", "password_env": "P", "server_id": 7}
    sink = {"type": "iceberg", "warehouse": "/lake"}
    bound = {"max_unsaved_bytes": 3 << 20}
    shop.define({"name": "shop", "source": source, "tables": ["d.t"], "sink": sink, "checkpoint": bound})
    readers = ("r1", "r2", "r3")
    entry = records.epoch(1, members=Members(enumerator="e1", by_role={"reader": readers, "writer": ("w1",)}))
    host: Any = SimpleNamespace(ports=ports(), incarnation="r1")
    shares = []
    for index in range(len(readers)):
        member = ReaderDriver(host, shop, entry, index, MysqlSource)
        shares.append(member.machine.unsaved.most_bytes)
        member.chunks.close()
    assert shares == [1 << 20] * 3
