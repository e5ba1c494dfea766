"""The reader's cursors: tables join, catch up, meet and become live, and are paused."""

from __future__ import annotations

from dataclasses import replace

from cutline.common.mesh.machine import SavePart
from cutline.common.mesh.messages import (
    CompletedSplit,
    ExcludeTable,
    IncludeTable,
    Marker,
    PauseTable,
    Records,
    StopStream,
    TablePaused,
    TableReport,
    TableState,
)
from cutline.common.positions import High, Low
from cutline.services.reader.events import (
    CloseCursor,
)
from cutline.services.sources.contract import GenerationEnded, SchemaChange
from tests.support.causes import because
from tests.support.reader_bench import (
    FAR,
    SCHEMA,
    UUID,
    WIDER,
    ReaderBench,
    asked,
    high,
    invariants_hold,
    low,
    place,
    sent,
)
from tests.support.reads import changes_read

__all__ = ["invariants_hold"]  # the fixtures


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
    assert (first.seq_base, second.seq_base, bench.reader.stream.seq) == (0, 3, 5)


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
    assert "catch-up" not in bench.reader.stream.cursors


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
    assert bench.reader.stream.cursors["main"].position.gtids == f"{UUID}:1-7"


def test_a_table_whose_low_is_of_before_any_transaction_loses_none_to_a_set_that_is_ahead() -> None:
    """Its set is empty, and main stands at the same place with a set that names what follows."""
    bench = ReaderBench()
    bench.include("d.t", low=low(4, f"{UUID}:1-9"))
    bench.include("d.u", low=low(4))
    bench.tell(changes_read(cursor="main", position=place(4, gtids=f"{UUID}:1-9"), rows=0))
    assert bench.cursor_of("d.u") == "main"
    assert bench.reader.stream.cursors["main"].position == place(4)


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
    assert not bench.reader.stream.cursors["main"].asked
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
    assert "d.u" not in bench.reader.stream.tables


def test_a_table_whose_high_is_of_another_server_restarts() -> None:
    bench = ReaderBench()
    bench.include()
    effects = bench.tell(changes_read(cursor="main", position=place(500, server="other"), rows=0))
    assert [(m.table_id, m.state) for m in sent(effects, TableReport)] == [("d.t", "restart")]


def test_a_fault_takes_the_table_out_and_changes_of_it_are_not_sent() -> None:
    bench = ReaderBench()
    bench.include()
    fault = GenerationEnded(table_id="d.t", generation=1, cause=because("DDL"))
    effects = bench.read(150, faults=(fault,))
    assert [m.state for m in sent(effects, TableReport)] == ["restart"]
    assert asked(effects)["main"].routes == {}


def test_answers_about_an_excluded_table_or_another_generation_are_nobodys() -> None:
    bench = ReaderBench()
    bench.include()
    bench.get(ExcludeTable(table_id="d.t", generation=1))
    assert sent(bench.read(150, rows=2), Records) == []
    assert bench.reader.stream.seq == 2
    bench.get(IncludeTable(table_id="d.t", generation=2, schema=SCHEMA, low=low(150), high=high(160)))
    assert sent(bench.read(170, rows=2), Records) == []


def test_a_change_of_columns_holds_for_the_next_read() -> None:
    bench = ReaderBench()
    bench.include()
    bench.read(110, rows=3)
    bench.read(120, rows=2, schemas=(SchemaChange(table_id="d.t", generation=1, seq=2, new=WIDER),))
    table = bench.reader.stream.tables["d.t"]
    assert bench.reader.snapshot().schemas == (WIDER,)
    assert bench.reader.snapshot().schemas == ()
    assert table.schema == WIDER


def test_what_the_first_row_event_tells_of_a_table_stays_over_a_restore() -> None:
    bench = ReaderBench()
    order = asked(bench.include(looked_at=low(500)))["main"]
    assert order.routes["d.t"].looked_at == low(500)
    (save,) = [e for e in bench.get(Marker(checkpoint=1)) if isinstance(e, SavePart)]
    assert ReaderBench(state=save.state).reader.stream.tables["d.t"].looked_at == low(500)
    changed = SchemaChange(table_id="d.t", generation=1, seq=0, new=WIDER)
    order = asked(bench.read(120, rows=1, schemas=(changed,)))["main"]
    assert (order.routes["d.t"].looked_at, order.routes["d.t"].schema) == (None, WIDER)
    bench = ReaderBench()
    bench.include(looked_at=low(500))
    order = asked(bench.read(120, rows=1, schemas=(replace(changed, new=SCHEMA),)))["main"]
    assert order.routes["d.t"].looked_at is None
    assert bench.reader.stream.tables["d.t"].schema == SCHEMA


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


# --- pausing a table ---


def test_a_table_that_is_paused_leaves_between_two_transactions_also_after_a_restore() -> None:
    bench = ReaderBench()
    bench.include()
    bench.include("d.u", at=400, until=500)
    bench.read(250)
    assert bench.reader.stream.tables["d.t"].live
    assert sent(bench.get(PauseTable(table_id="d.t", generation=1)), TablePaused) == []  # main is being read
    bench = ReaderBench(state=bench.reader.snapshot())
    bench.reader.stream.cursors["main"].asked = True
    inside = bench.tell(changes_read(cursor="main", position=place(300, rows=3), rows=3, rows_inside=3))
    assert sent(inside, TablePaused) == []
    (left,) = sent(bench.read(400), TablePaused)
    assert (left.low, left.high) == (Low.at(place(400)), High.at(place(400)))
    assert set(bench.reader.stream.tables) == {"d.u"}


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
