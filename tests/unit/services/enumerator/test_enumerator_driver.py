"""The enumerator's driver on simulated ports: the lease lost in the middle, calls that hang or fail, and its end."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import parse
from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.presence import Service
from cutline.common.store.bodies import numbered
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import Store
from cutline.services.enumerator import pipelines
from cutline.services.enumerator.driver import EnumeratorDriver
from cutline.services.enumerator.events import FindTables, TablesFound
from cutline.services.enumerator.ports import Sources
from cutline.services.enumerator.states import IDLE, LEADING
from tests.support import records
from tests.support.ports import Simulated, SimulatedLinks, ended

CONFIG = """
name: shop
source: {host: 127.0.0.1, port: 1, user: cdc, password_env: CDC_PASSWORD}
tables: ["shop.*"]
sink: {type: iceberg, warehouse: ./lake}
"""
READER = Service(incarnation="r1", role="reader", host="h", pid=1, started_at=1.0)
WRITER = Service(incarnation="w1", role="writer", host="h", pid=2, started_at=1.0)


class Source:
    """A source without tables; while `held`, it answers nothing."""

    def __init__(self) -> None:
        self.hosts = SimpleNamespace(several=False, chosen=None)
        self.waiting_for = None
        self.held = self.closed = False
        self.asked: list[Effect] = []
        self.answered = self.interrupted = 0

    async def answer(self, question: Effect) -> Event:
        self.asked.append(question)
        while self.held:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.answered += 1
        assert isinstance(question, FindTables)
        return TablesFound(tables=())

    async def binlog(self, **_: Any) -> Any:
        raise OSError("nobody asks it here")

    def interrupt(self) -> None:
        self.interrupted += 1

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class Bench:
    """One enumerator of one pipeline, with a reader and a writer that are there."""

    def __init__(self, folder: Path) -> None:
        self.world, self.source, self.folder = Simulated(), Source(), folder
        self.config = parse(CONFIG, folder=folder)
        self.store = Store(f"file://{folder}/store").pipeline("shop")
        self.store.define(self.config.definition())
        self.redis = self.world.redis
        self.redis.present = [READER, WRITER]
        self.host: Any = SimpleNamespace(ports=self.world.ports(), incarnation="e1", leads=set())
        self.sources = Sources(open=lambda config: self.source, verify_reach=lambda source, place: None)

    def begin(self) -> asyncio.Task[None]:
        self.driver = EnumeratorDriver(self.host, self.store, self.config, Environment.read({}), self.sources)
        return asyncio.create_task(self.driver.run())

    def serve(self) -> asyncio.Task[None]:
        """Begin as a service does: from what the store has of the pipeline."""
        return asyncio.create_task(pipelines.lead(self.host, self.store, Environment.read({}), self.sources))

    async def leads(self) -> SimulatedLinks:
        await self.world.until(lambda: self.driver.leader.state == LEADING)
        return self.world.links[-1]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    return Bench(tmp_path)


def test_an_epoch_has_its_streams_and_is_announced_and_at_the_end_nothing_of_it_is_open(bench: Bench) -> None:
    """1. With the lease and its members, an epoch is entered, made and announced. 2. The driver is ended: the lease is
    released, channels and source are closed, and no task is left."""

    async def main() -> None:
        running = bench.begin()
        links = await bench.leads()
        assert isinstance(bench.store.entry(1), EpochEntry)
        assert (bench.redis.streams, bench.redis.announced) == ({1}, {bench.store.key: 1})
        assert bench.host.leads == {bench.store.key}
        assert await ended(running) is None
        assert (links.closed, bench.source.closed, bench.redis.released) == (True, True, True)
        assert (bench.host.leads, bench.world.pools["shop-restore"].ended) == (set(), True)

    bench.world.run(main)


def test_who_loses_the_lease_while_the_store_hangs_with_an_entry_opens_no_epoch_when_it_answers(bench: Bench) -> None:
    """1. The store hangs with the entry of an epoch, and the lease goes to another. 2. The store takes the entry late:
    nothing follows. 3. The lease comes back: the journal is read again, and the next slot is ours."""

    async def main() -> None:
        running = bench.begin()
        store = bench.world.pools["store"]
        store.held = "write"
        await bench.world.until(lambda: bench.driver.leader.state == "proposing")
        bench.redis.ours = False
        await bench.world.until(lambda: bench.driver.leader.state == IDLE)
        assert bench.host.leads == set()
        store.held = False
        await bench.world.until(lambda: bench.store.last_slot() == 1)
        await asyncio.sleep(5.0)
        assert (bench.driver.leader.state, bench.redis.streams, bench.world.links) == (IDLE, set(), [])
        bench.redis.ours = True
        await bench.leads()
        assert bench.driver.leader.epoch == 2
        assert await ended(running) is None

    bench.world.run(main)


def test_streams_that_were_made_half_way_belong_to_no_epoch(bench: Bench) -> None:
    """1. Redis fails while the streams of an epoch are made. 2. The next epoch is opened, and they are removed."""

    async def main() -> None:
        bench.redis.refuses_streams = 1
        running = bench.begin()
        await bench.leads()
        assert (bench.driver.leader.epoch, bench.redis.streams) == (2, {2})
        assert bench.driver.leader.cause.sentence == "Redis does not answer any more"
        assert await ended(running) is None

    bench.world.run(main)


def test_an_answer_of_the_source_to_an_epoch_that_is_over_is_dropped(bench: Bench) -> None:
    """1. The source hangs with a question, and a member goes. 2. The question is broken off, the next epoch asks its
    own, and is answered."""

    async def main() -> None:
        bench.source.held = True
        running = bench.begin()
        first = await bench.leads()
        await bench.world.until(lambda: len(bench.source.asked) == 1)
        before = bench.source.interrupted
        bench.redis.present = [Service(incarnation="r2", role="reader", host="h", pid=3, started_at=2.0), WRITER]
        await bench.world.until(lambda: bench.driver.leader.epoch == 2 and len(bench.source.asked) == 2)
        assert (first.closed, bench.source.interrupted > before, bench.source.answered) == (True, True, 0)
        bench.source.held = False
        await bench.world.until(lambda: bench.source.answered == 1)
        assert await ended(running) is None

    bench.world.run(main)


def test_a_leader_whose_redis_is_silent_gives_up_once_its_lease_must_have_expired(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        links = await bench.leads()
        bench.redis.up = False
        await asyncio.sleep(4.0)
        assert bench.driver.leader.state == LEADING
        await bench.world.until(lambda: bench.driver.leader.state == IDLE, 5.0)
        await bench.world.until(lambda: links.closed)
        assert await ended(running) is None  # though Redis can't take the lease back
        assert bench.source.closed

    bench.world.run(main)


def test_a_broken_channel_ends_the_epoch_and_the_status_says_why(bench: Bench) -> None:
    async def main() -> None:
        running = bench.begin()
        links = await bench.leads()
        links.broken = OSError("the channel to reader-0 is gone")
        await bench.world.until(lambda: bench.driver.leader.epoch == 2)
        assert (links.closed, "the channel to reader-0 is gone" in bench.driver.leader.cause.sentence) == (True, True)
        await bench.leads()
        assert await ended(running) is None

    bench.world.run(main)


def test_a_leader_whose_pipeline_another_one_has_deleted_ends_without_an_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """1. This service stands by while another one deletes the pipeline. 2. It gets the lease when nothing is left."""
    caplog.set_level("INFO")

    async def main() -> None:
        bench.redis.ours = False
        serving = bench.serve()
        await asyncio.sleep(2.0)
        bench.store.put_deleting()
        bench.store.remove_files()
        bench.store.end()
        bench.redis.ours = True
        await asyncio.wait_for(serving, 30.0)

    bench.world.run(main)
    assert "pipeline shop is deleted" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_store_that_is_full_is_what_the_pipeline_waits_for_at_once_with_what_helps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The entry of an epoch meets a full disk. 2. There is room again: the pipeline goes on."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            running = bench.begin()
            await bench.world.until(lambda: bench.redis.statuses.get("enumerator"))
            await bench.world.until(lambda: bench.redis.statuses["enumerator"].waiting_for.cause.code == "disk_full")
            waits = bench.redis.statuses["enumerator"].waiting_for
            assert waits.what.startswith("the store, to take entry 1 of the journal (")
            assert waits.cause.remedy == "free space on it, or enlarge it"
            since = waits.since
            await asyncio.sleep(30.0)
            assert bench.redis.statuses["enumerator"].waiting_for.since == since
        await bench.leads()
        await bench.world.until(lambda: bench.redis.statuses["enumerator"].waiting_for is None)
        assert await ended(running) is None

    bench.world.run(main)


DEFINITION_IN_FORCE, ENTRY_OF_THE_EPOCH = numbered("definitions", 2), numbered("journal", 1)


@pytest.mark.parametrize(
    "gone", [(), (DEFINITION_IN_FORCE,), (ENTRY_OF_THE_EPOCH,), (DEFINITION_IN_FORCE, ENTRY_OF_THE_EPOCH)]
)
def test_a_deletion_that_was_cut_short_is_gone_on_with_from_what_is_left(bench: Bench, gone: tuple[str, ...]) -> None:
    """1. A leader removes the files of a pipeline that has two versions of its definition, and vanishes on its way.
    2. The next leader, who has no more than what is left, ends the life."""
    store = bench.store
    assert store.put_definition(2, bench.config.definition(), by="ann", at=1.0, command=1)
    store.put_entry(records.epoch(1))
    store.put_entry(records.checkpoint(2))
    command = store.commands.add("delete", {}, by="ann", now=1.0)
    store.commands.put_outcome(Outcome(n=command.n, state="done", at=2.0, orders=Orders(mode="deleting", definition=2)))
    store.put_deleting()
    for path in gone:
        assert store._folder.exists(path)
        store._folder.remove(path)

    async def main() -> None:
        serving = bench.serve()
        await bench.world.until(store.has_ended)
        await ended(serving)

    bench.world.run(main)
    assert Store(f"file://{bench.folder}/store").pipelines() == []
