"""The reader's driver on simulated ports: a source that hangs, fails half-way or answers late, and the driver's end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.errors import ServerIdTaken, Unavailable
from cutline.common.mesh.messages import (
    AssignSplits,
    ChunkDropped,
    ChunkEnd,
    IncludeTable,
    Marker,
    PartSaved,
    Records,
    Remedy,
    SplitFailed,
    SplitReport,
)
from cutline.common.positions import Position
from cutline.common.store.store import Store
from cutline.services.reader.driver import ReaderDriver
from cutline.services.sources.contract import Changes, ChunkResult
from cutline.services.sources.mysql.hosts import GRACE_SECONDS
from tests.support import records
from tests.support.ports import Simulated, ended
from tests.support.reader_bench import SCHEMA, high, low, place, split

BATCH = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], names=["id"])
RESULT = ChunkResult(low=low(100), high=high(200), rows=2, checksum="c", schema=SCHEMA)
INCLUDE = IncludeTable(table_id="d.t", generation=1, schema=SCHEMA, low=low(100), high=high(200))


class Chunks:
    """Chunks of one batch each; the next `fails` chunks break off behind it."""

    def __init__(self) -> None:
        self.fails = self.begun = 0
        self.closed = self.due = False

    def read(self, split: Any) -> Iterator[Any]:
        self.begun += 1
        yield BATCH
        if self.fails:
            self.fails -= 1
            raise Unavailable("the connection broke")
        yield RESULT

    def rest(self) -> None:
        pass

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Cursor:
    """A cursor that moves by one with each read; with `error` it raises that once."""

    def __init__(self, ids_taken: int) -> None:
        self.ids_taken = ids_taken
        self.connected = self.closed = False
        self.error: Exception | None = None
        self.reads = 0

    def read(self, after: Position, routes: Any, **_: Any) -> Changes:
        assert not self.closed
        self.reads += 1
        error, self.error = self.error, None
        if error is not None:
            raise error
        return Changes(position=place(after.offset + 1), rows=0, idle=True)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Source:
    """A source with these chunks and cursors; its hosts are one server."""

    def __init__(self) -> None:
        self.chunks = Chunks()
        self.cursors: list[Cursor] = []
        self.away = 0  # so many probes fail
        self.probes = 0
        self.over = False
        self.hosts = SimpleNamespace(
            several=False, chosen=None, main=None, must_have=lambda *_: None, release=lambda: None, end=self.end,
        )  # fmt: skip

    def end(self) -> None:
        self.over = True

    def probe(self) -> Any:
        self.probes += 1
        if self.probes <= self.away:
            raise Unavailable("nobody is there")
        return SimpleNamespace(close=lambda: None)

    def cursor(self, name: str, *, ids_taken: int) -> Cursor:
        self.cursors.append(Cursor(ids_taken))
        return self.cursors[-1]


class Bench:
    """The reader with the stream, in an epoch of one reader and one writer."""

    def __init__(self, folder: Path) -> None:
        self.world, self.source = Simulated(), Source()
        self.store = Store(f"file://{folder}").pipeline("shop")
        source = {"host": "h", "user": "u", "password_env": "P"}
        sink = {"type": "iceberg", "warehouse": "/lake"}
        self.store.define({"name": "shop", "source": source, "tables": ["d.t"], "sink": sink})

    def begin(self) -> asyncio.Task[None]:
        host: Any = SimpleNamespace(ports=self.world.ports(), incarnation="r1")
        opened: Any = lambda config, index: self.source  # noqa: E731
        self.driver = ReaderDriver(host, self.store, records.epoch(1), 0, opened)
        (self.links,) = self.world.links
        return asyncio.create_task(self.driver.run())

    def has_sent(self, kind: type, count: int = 1) -> bool:
        return len(self.links.messages(kind)) >= count


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_chunk_that_breaks_off_half_way_is_dropped_and_fails_once_the_source_is_there_again(bench: Bench) -> None:
    """1. A chunk's connection breaks behind its first batch, and the source is away for a while. 2. No failure is
    reported until it is back: an unreachable server must not use up a chunk's attempts. 3. The writer drops the rows,
    and the next chunk is read whole."""

    async def main() -> None:
        running = bench.begin()
        bench.source.chunks.fails, bench.source.away = 1, 3
        bench.links.receive("enumerator", AssignSplits(splits=(split(1), split(2))))
        await bench.world.until(lambda: bench.source.probes == 3)
        assert bench.links.messages(SplitFailed) == []
        await bench.world.until(lambda: bench.has_sent(SplitReport))
        (failed,), (dropped,) = bench.links.messages(SplitFailed), bench.links.messages(ChunkDropped)
        assert (failed.split_id, failed.remedy, dropped.split_id) == ("d.t:1:1", Remedy.RETRY, "d.t:1:1")
        assert [end.split_id for end in bench.links.messages(ChunkEnd)] == ["d.t:1:2"]
        assert await ended(running) is None

    bench.world.run(main)


def test_a_cursor_that_hangs_holds_up_no_chunk_and_no_marker(bench: Bench) -> None:
    """1. The source hangs in a read of main. 2. Chunks are read, and a marker brings the part into the store. 3. The
    source answers late, and the stream goes on from there."""

    async def main() -> None:
        running = bench.begin()
        bench.world.pool("shop-main").held = True
        bench.links.receive("enumerator", INCLUDE)
        await bench.world.until(lambda: bench.source.cursors)
        bench.links.receive("enumerator", AssignSplits(splits=(split(1),)))
        await bench.world.until(lambda: bench.has_sent(SplitReport))
        bench.links.receive("enumerator", Marker(checkpoint=2))
        await bench.world.until(lambda: bench.has_sent(PartSaved))
        assert bench.source.cursors[0].reads == 0
        bench.world.pool("shop-main").held = False
        await bench.world.until(lambda: bench.source.cursors[0].reads > 2)
        assert await ended(running) is None

    bench.world.run(main)


def test_a_server_id_that_another_client_has_is_left_for_the_next_one(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        bench.links.receive("enumerator", INCLUDE)
        await bench.world.until(lambda: bench.source.cursors and bench.source.cursors[0].reads)
        bench.source.cursors[0].error = ServerIdTaken("another client has it")
        await bench.world.until(lambda: len(bench.source.cursors) == 2 and bench.source.cursors[1].reads)
        first, second = bench.source.cursors
        assert (first.closed, second.ids_taken) == (True, 1)
        assert await ended(running) is None

    bench.world.run(main)


def test_an_unreachable_source_is_asked_again_and_the_status_says_so(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        bench.links.receive("enumerator", INCLUDE)
        await bench.world.until(lambda: bench.source.cursors and bench.source.cursors[0].reads)
        (cursor,) = bench.source.cursors
        for _ in range(4):
            cursor.error = Unavailable("the connection broke")
            await bench.world.until(lambda: cursor.error is None)
        await bench.world.until(lambda: "reader-0" in bench.world.redis.statuses)
        await bench.world.until(
            lambda: str(bench.world.redis.statuses["reader-0"].waiting_for) == "the source: the connection broke"
        )
        reads = cursor.reads
        await bench.world.until(lambda: cursor.reads > reads + 2)
        await bench.world.until(lambda: bench.world.redis.statuses["reader-0"].waiting_for is None)
        assert await ended(running) is None

    bench.world.run(main)


def test_the_end_closes_all_that_was_opened_behind_what_still_hangs(bench: Bench) -> None:
    """1. A read of main and a chunk hang, and the epoch ends. 2. Nothing waits for them. 3. After a grace their
    connections are broken; chunks and cursor are closed behind the calls that hung, once each."""

    async def main() -> None:
        running = bench.begin()
        main_thread, chunk_thread = bench.world.pool("shop-main"), bench.world.pool("shop-chunks")
        main_thread.held = chunk_thread.held = True
        bench.links.receive("enumerator", INCLUDE)
        bench.links.receive("enumerator", AssignSplits(splits=(split(1),)))
        await bench.world.until(lambda: bench.source.cursors)
        assert await ended(running) is None
        assert (bench.links.closed, main_thread.ended, chunk_thread.ended) == (True, True, True)
        assert (bench.source.chunks.closed, bench.source.cursors[0].closed, bench.source.over) == (False, False, False)
        await asyncio.sleep(GRACE_SECONDS + 1.0)
        assert bench.source.over
        main_thread.held = chunk_thread.held = False
        await bench.world.until(lambda: bench.source.chunks.closed and bench.source.cursors[0].closed)
        assert bench.links.messages(Records) == []

    bench.world.run(main)
