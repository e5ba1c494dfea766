"""The writer's driver on simulated ports: a disk or a store that hangs or fails, and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.measures import TableRows
from cutline.common.mesh.messages import Marker, PartSaved, Records
from cutline.common.store.store import Store
from cutline.services.writer.driver import WriterDriver
from cutline.services.writer.machine import Append, Drop, StageCut
from tests.support import records
from tests.support.ports import Simulated, ended

ROWS = Records(table_id="d.t", generation=1, schema="s", rows=1, seq_base=0, body=b"rows")


class Files:
    """Files in memory: the names of what was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fails = False

    def append(self, order: Append) -> None:
        self.done.append("append")

    def drop(self, order: Drop) -> None:
        self.done.append("drop")

    def stage(self, order: StageCut) -> tuple[Any, ...]:
        if self.fails:
            raise Unavailable("the store takes no file")
        self.done.append(f"stage {order.checkpoint}")
        return ()

    def close(self) -> None:
        self.done.append("close")


class Bench:
    """One writer with its files."""

    def __init__(self, folder: Path) -> None:
        self.world, self.files = Simulated(), Files()
        self.store = Store(f"file://{folder}").pipeline("shop")
        self.store.define({})

    def begin(self) -> asyncio.Task[None]:
        host: Any = SimpleNamespace(ports=self.world.ports(), incarnation="w1")
        driver = WriterDriver(host, self.store, records.epoch(1), 0, files=self.files, rows=TableRows(10))
        self.thread = self.world.pools["shop-staging"]
        (self.links,) = self.world.links
        return asyncio.create_task(driver.run())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_rows_behind_a_marker_wait_until_the_files_of_its_cut_are_staged(bench: Bench) -> None:
    """1. The store hangs with the files of a checkpoint. 2. Rows come behind its marker, and wait; the status says for
    what. 3. The store answers late: the part is reported, and the rows go into the next file."""

    async def main() -> None:
        running = bench.begin()
        bench.links.receive("reader-0", ROWS)
        await bench.world.until(lambda: bench.files.done == ["append"])
        bench.thread.held = True
        bench.links.receive("reader-0", Marker(checkpoint=2))
        bench.links.receive("reader-0", ROWS)
        await asyncio.sleep(15.0)
        assert bench.files.done == ["append"]
        waits = bench.world.redis.statuses["writer-0"].waiting_for
        assert waits.what.startswith("the store, to take the files of checkpoint 2")
        bench.thread.held = False
        await bench.world.until(lambda: bench.files.done == ["append", "stage 2", "append"])
        await bench.world.until(lambda: bench.links.messages(PartSaved))
        assert bench.links.messages(PartSaved)[-1].checkpoint == 2
        assert await ended(running) is None

    bench.world.run(main)


def test_a_store_that_takes_no_file_ends_the_epoch_and_nothing_is_reported(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        bench.files.fails = True
        bench.links.receive("reader-0", ROWS)
        bench.links.receive("reader-0", Marker(checkpoint=2))
        with pytest.raises(Unavailable, match="takes no file"):
            await asyncio.wait_for(running, 30.0)
        assert bench.links.messages(PartSaved) == []
        assert bench.links.closed
        await bench.world.until(lambda: bench.files.done == ["append", "close"])

    bench.world.run(main)


def test_the_files_are_closed_once_and_last_though_the_epoch_ends_while_a_call_hangs(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        bench.thread.held = True
        bench.links.receive("reader-0", ROWS)
        await asyncio.sleep(1.0)
        assert await ended(running) is None
        assert (bench.links.closed, bench.thread.ended, bench.files.done) == (True, True, [])
        bench.thread.held = False
        await bench.world.until(lambda: bench.files.done == ["append", "close"])

    bench.world.run(main)
