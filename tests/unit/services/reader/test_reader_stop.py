"""The reader at the stop of its stream, and where nothing waits for it."""

from __future__ import annotations

from typing import Any

from cutline.common.mesh.machine import Began, SavePart
from cutline.common.mesh.messages import (
    EndStream,
    LimitStream,
    Marker,
    StreamCaughtUp,
    StreamStopped,
    TableReport,
)
from cutline.common.positions import High, Low, Stop
from cutline.services.reader.stream import STILL_SECONDS
from tests.support.reader_bench import FAR, UUID, ReaderBench, asked, invariants_hold, place, sent
from tests.support.reads import changes_read

__all__ = ["invariants_hold"]  # the fixtures


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
    assert "can't be shown at the stop, b.000001:500: its snapshot ended at b.000001:900, after it" in str(report.cause)
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
    assert (report.state, "can't be shown at the stop, b.000001:500: " in str(report.cause)) == ("fault", True)


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
    assert "the stream began at b.000001:300, after it" in str(report.cause)


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
