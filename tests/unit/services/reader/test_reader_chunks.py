"""The reader's chunks: they commit by their last message, and their rows without a checkpoint have a bound."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cutline.common.mesh.machine import Began, Effect, Send
from cutline.common.mesh.messages import (
    AssignSplits,
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    Marker,
    Remedy,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    TakeBackSplit,
)
from cutline.common.store.records import Members
from cutline.common.store.store import Store
from cutline.services.reader.driver import ReaderDriver
from cutline.services.reader.events import (
    ChunkFailed,
    ChunkRead,
    ChunkRowsRead,
    ContinueChunk,
    ReadChunk,
)
from cutline.services.reader.machine import HELD_SPLITS
from cutline.services.reader.source import MysqlSource
from tests.support import records
from tests.support.causes import because
from tests.support.ports import ports
from tests.support.reader_bench import SCHEMA, ReaderBench, asked, high, invariants_hold, low, place, sent, split
from tests.support.reads import chunk_read

__all__ = ["invariants_hold"]  # the fixtures


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
    effects = bench.tell(ChunkFailed(split_id="d.t:1:1", attempt=1, cause=because("gone"), remedy=Remedy.RETRY))
    assert sent(effects, ChunkDropped) == [ChunkDropped(split_id="d.t:1:1", attempt=1)]
    assert [(m.cause, m.remedy) for m in sent(effects, SplitFailed)] == [(because("gone"), Remedy.RETRY)]


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
