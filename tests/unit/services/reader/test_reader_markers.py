"""Markers at a reader: when it takes one, what its part says, and what a restored reader knows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import PositionLost, ProtocolError
from cutline.common.mesh import messages
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    AssignSplits,
    CompletedSplit,
    ExcludeTable,
    IncludeTable,
    Marker,
    PartSaved,
    PauseTable,
    Records,
    SplitsWanted,
    StopStream,
    StreamedTable,
    TableReport,
    TableState,
)
from cutline.common.positions import High, Low
from cutline.services.reader.driver import ReaderDriver
from cutline.services.reader.events import (
    ChunkRowsRead,
    CloseCursor,
)
from cutline.services.reader.stream import LONGEST_SECONDS, STILL_SECONDS
from cutline.services.sources.contract import SchemaChange, TableChanges
from tests.simulation.checks.freeze import freeze
from tests.support.causes import because
from tests.support.reader_bench import (
    FAR,
    SCHEMA,
    WIDER,
    ReaderBench,
    asked,
    high,
    invariants_hold,
    low,
    place,
    sent,
    split,
)
from tests.support.reads import changes_read
from tests.support.records import PART

__all__ = ["invariants_hold"]  # the fixtures


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
    assert "catch-up" in bench.reader.stream.cursors
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
        raise PositionLost(because("purged"))

    cursors = {name: (None, SimpleNamespace(call=lost)) for name in ("main", "catch-up")}
    member: Any = SimpleNamespace(cursors=cursors, _read=print, _catch_up_lost=ReaderDriver._catch_up_lost)
    effects = bench.tell(await ReaderDriver._read_changes(member, order))
    ((report),) = sent(effects, TableReport)
    assert (report.table_id, report.state, report.cause) == ("d.u", TableState.RESTART, because("purged"))
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
        assert each.reader.stream.cursors["main"].rows_inside == 11
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
    assert again.reader.stream.seq == 3


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
    assert bench.reader.stream.tables == {}
    assert cut(2) == (StreamedTable(table_id="d.t", generation=0, schema="", live=False),)
    assert cut(3) == ()
    bench.include(at=500, until=500)
    assert cut(4) == (replace(live, live=bench.reader.stream.tables["d.t"].live),)


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
    assert all(table.live for table in bench.reader.stream.tables.values())
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
