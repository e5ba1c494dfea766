"""A real Redis at its limit: who leads goes on leading, who is there stays there, what is dead is freed, and nothing
that is not Cutline's; and the channels' credits are such that Cutline by itself never brings it there."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis as Client
from redis.exceptions import OutOfMemoryError

from cutline.common.errors import Unavailable
from cutline.common.mesh import streams
from cutline.common.mesh.lease import Lease, lease_name
from cutline.common.mesh.links import CREDIT_BYTES, Links, credit_bytes
from cutline.common.mesh.machine import Send
from cutline.common.mesh.messages import Records
from cutline.common.mesh.presence import GaveUp, Registry, Service
from cutline.common.mesh.receiver import Receiver
from cutline.common.mesh.sender import FRAGMENT_BYTES, LEAST_CREDIT_BYTES
from cutline.common.mesh.streams import stream_name
from cutline.common.store.lives import Key
from tests.support import records
from tests.support.causes import because
from tests.support.databases import Database, MariaDB
from tests.support.history import content, differences
from tests.support.leading import led
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts

MIB = 1 << 20
Fresh = Callable[[Database], str]
SHOP, SHOP2 = Key("shop.0123456789ab"), Key("shop2.0123456789ab")


@asynccontextmanager
async def full(redis: Client, *streams: str, mib: int = 8) -> AsyncIterator[None]:
    """Redis over its limit by a MiB, of so many MiB in these streams; without a limit again after it."""
    for number in range(mib * 10):
        await redis.xadd(streams[number % len(streams)], {"b": bytes(MIB // 10)})
    await redis.config_set("maxmemory-policy", "noeviction")
    await redis.config_set("maxmemory", (await redis.info("memory"))["used_memory"] - MIB)
    try:
        with pytest.raises(OutOfMemoryError):
            await redis.set("something", "else")
        yield
    finally:
        await redis.config_set("maxmemory", 0)


def service(**known: Any) -> Service:
    return Service(incarnation="r1", role="reader", host="here", pid=1, started_at=1.0, **known)


@pytest.mark.alone
async def test_in_a_full_redis_a_lease_is_renewed_and_a_service_and_an_epoch_stay_known(redis: Client) -> None:
    """Also a service that has something new to say, which is not heard before there is room."""
    lease, other = (Lease(redis, lease_name(SHOP), owner, 60.0) for owner in ("a", "b"))
    registry = Registry(redis)
    assert await lease.acquire()
    await registry.announce_presence(service())
    await registry.announce_epoch(SHOP, 7)
    await registry.request(SHOP, {"kind": "savepoint"})
    gave_up = service(failed={SHOP: GaveUp(epoch=7, cause=because("x"), halts=False)})
    async with full(redis, stream_name(SHOP, 7, "reader-0", "writer-0")):
        await redis.pexpire(lease.name, 30_000)
        assert await lease.acquire()
        assert await redis.pttl(lease.name) > 50_000
        assert not await other.acquire()
        for presence in (service(), gave_up):
            await redis.pexpire("cutline:service:r1", 2000)
            with suppress(Unavailable):
                await registry.announce_presence(presence)
            assert await redis.pttl("cutline:service:r1") > 4000
        await registry.announce_epoch(SHOP, 7)
        assert await registry.services() == [service()]
        assert await registry.take_requests(SHOP) == [{"kind": "savepoint"}]
    await registry.announce_presence(gave_up)
    assert await registry.services() == [gave_up]


@pytest.mark.parametrize("leads", [False, True])
async def test_a_pipeline_that_filled_redis_and_is_led_by_nobody_or_lacks_services_frees_what_is_dead_and_goes_on(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """1. Epoch 1 left Redis full of its streams; its leader is gone, or leads on and waits for services. 2. Services
    come, which can't say that they are there. 3. The next epoch is led; another pipeline's streams and another
    program's keys are there as before."""
    shop = records.begun(f"file://{tmp_path}/store")
    dead = [stream_name(shop.key, 1, "reader-0", f"writer-{number}") for number in range(2)]
    others = [stream_name(SHOP2, 1, "reader-0", "writer-0"), "somebody:else"]
    for name in others:
        await redis.xadd(name, {"b": bytes(100_000)})
    await redis.set("cutline-of-another-kind", bytes(1000))
    shop.put_entry(records.epoch(1))
    if leads:
        await redis.set(lease_name(shop.key), "e1")
    async with full(redis, *dead), led(redis, tmp_path, monkeypatch) as pipeline:
        async with asyncio.timeout(20):
            while pipeline.leader.state != "leading":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert pipeline.leader.epoch == 2
        assert await redis.exists(*dead) == 0
        assert await redis.exists(*others) == 2
        assert await redis.strlen("cutline-of-another-kind") == 1000


async def test_nothing_of_a_pipeline_that_somebody_leads_is_freed_by_who_doesnt(redis: Client) -> None:
    name = stream_name(SHOP, 1, "reader-0", "writer-0")
    await redis.xadd(name, {"b": b"1"})
    await redis.set(lease_name(SHOP), "another")
    assert await streams.free(redis, SHOP, lease_name(SHOP)) == 0
    await redis.delete(lease_name(SHOP))
    assert await streams.free(redis, SHOP, lease_name(SHOP)) == 1


# --- credits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pipelines", "readers", "writers"), [(1, 12, 3), (2, 4, 3)])
async def test_all_channels_together_stay_under_the_limit_when_no_writer_takes_anything(
    redis: Client, pipelines: int, readers: int, writers: int
) -> None:
    """1. A Redis of 64 MiB; every reader of each pipeline sends 12 MiB to each writer, and no writer takes anything.
    2. All senders wait for credit, with room left in Redis. 3. The writers take: every message comes, whole."""
    base = (await redis.info("memory"))["used_memory"]
    await redis.config_set("maxmemory", base + 64 * MIB)
    registry, links = Registry(redis), []
    keys = [Key(f"p{number}.0123456789ab") for number in range(pipelines)]
    tasks: list[asyncio.Task[None]] = []
    try:
        for pipeline in keys:
            await registry.announce_epoch(pipeline, 1)
        for pipeline in keys:
            names = [stream_name(pipeline, 1, f"r{i}", f"w{j}") for i in range(readers) for j in range(writers)]
            await streams.create(redis, names, {})
            links += [
                Links(
                    redis, pipeline, 1, f"r{i}", inbound=(), outbound=[f"w{j}" for j in range(writers)],
                    channels=readers * writers, clock=time,
                )
                for i in range(readers)
            ]  # fmt: skip
        body = bytes(3 * MIB)

        async def sends(link: Links) -> None:
            for _ in range(4):
                for j in range(writers):
                    message = Records(
                        table_id="d.t", generation=1, schema="s", rows=1, split_id="x", attempt=1, body=body
                    )
                    await link.send(Send(receiver=f"w{j}", message=message))

        tasks = [asyncio.create_task(link.idle()) for link in links]
        sending = [asyncio.create_task(sends(link)) for link in links]
        tasks += sending
        used, steady_since = 0, time.monotonic()
        async with asyncio.timeout(60):
            while time.monotonic() - steady_since < 2.0:
                await asyncio.sleep(0.1)
                now = (await redis.info("memory"))["used_memory"]
                if now > used:
                    used, steady_since = now, time.monotonic()
        assert used - base < 32 * MIB
        assert not any(task.done() for task in tasks)
        await redis.set("there-is", "room")
        received = 0
        for pipeline in keys:
            for j in range(writers):
                receiver = Receiver(redis, [stream_name(pipeline, 1, f"r{i}", f"w{j}") for i in range(readers)])
                tasks.append(asyncio.create_task(_taking(receiver, readers * 4, len(body))))
        async with asyncio.timeout(120):
            await asyncio.gather(*sending)
            while received < pipelines * writers:
                received = sum(1 for task in tasks[-pipelines * writers :] if task.done() and task.result() is None)
                await asyncio.sleep(0.05)
    finally:
        await redis.config_set("maxmemory", 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in links:
            await link.close()


async def _taking(receiver: Receiver, count: int, size: int) -> None:
    try:
        while count:
            for name, _, body in await receiver.receive():
                assert len(body) == size
                await receiver.taken(name, 1)
                count -= 1
    finally:
        await receiver.close()


def test_a_channels_credit_is_its_share_of_a_quarter_of_redis() -> None:
    assert credit_bytes(512 * MIB, pipelines=1, channels=4) == CREDIT_BYTES
    assert credit_bytes(512 * MIB, pipelines=1, channels=16) == 8 * MIB
    for pipelines, readers, writers in ((1, 16, 2), (1, 100, 10), (4, 20, 5)):
        credit = credit_bytes(512 * MIB, pipelines=pipelines, channels=readers * writers)
        assert pipelines * readers * writers * credit <= 128 * MIB
    assert credit_bytes(MIB, pipelines=50, channels=1000) == LEAST_CREDIT_BYTES < FRAGMENT_BYTES


@contextmanager
def small(folder: Path, mib: int, **services: int) -> Iterator[Mesh]:
    mesh = Mesh(folder, **services)
    mesh.redis.options = {"maxmemory": f"{mib}mb", "maxmemory_policy": "noeviction"}
    with mesh:
        yield mesh


def test_a_writer_that_hangs_and_is_killed_never_fills_a_small_redis_and_the_pipeline_goes_on_with_another(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A Redis of 32 MiB, four readers, two writers; a table of about 100 MiB that doesn't compress. 2. A writer
    hangs while chunks are read, then it is killed, and another comes. 3. The table is live, and equal; Redis never was
    at its limit."""
    schema = fresh_database(mariadb)
    table = f"{schema}.t"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, body LONGBLOB)")
    for _ in range(10):
        mariadb.execute(
            f"INSERT INTO {table} (body) SELECT CONCAT({', '.join(['RANDOM_BYTES(1024)'] * 64)}) FROM seq_1_to_160",
            database=schema,
        )
    with small(tmp_path, 32, readers=4, writers=2) as mesh, mesh.redis.client() as client:
        untyped = cast(Any, client)
        pipeline = mesh.pipeline("small", mariadb, [table], chunk_rows=50)

        def begun() -> bool:
            tables = pipeline.status().tables
            return table in tables and (tables[table].splits_done or 0) > 0

        pipeline.until(begun, "the first chunk")
        writer = mesh.running("writer")[0]
        writer.popen.send_signal(signal.SIGSTOP)
        used, deadline = 0, time.monotonic() + 6
        while time.monotonic() < deadline:
            used = max(used, untyped.info("memory")["used_memory"])
            time.sleep(0.05)
        assert used < 24 * MIB
        mesh.kill(writer)
        mesh.start("writer")
        end = pipeline.catches_up(table, seconds=120)
        assert untyped.info("stats").get("evicted_keys") == 0
    last = next(cut for cut in cuts(pipeline) if cut.slot == end.slot)
    assert differences(last.tables[table].content, content(mariadb, table, ["id"])) == []
