"""How Spark writers share pipelines out over a real Redis; the test plays their threads, so no Spark runs."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import ConfigError
from cutline.common.mesh import presence
from cutline.common.mesh.lease import lease_name
from cutline.common.mesh.presence import Registry, Service
from cutline.common.status.pipeline_status import SPARK_WRITER, SparkWriterStatus
from cutline.common.store.lives import Key
from cutline.spark_writer import leading
from cutline.spark_writer.lead import Lead
from cutline.spark_writer.leading import Replica
from tests.support.redis_servers import Redis

NAMES = CRM, LOG, SHOP = tuple(Key(f"{name}.0123456789ab") for name in ("crm", "log", "shop"))


@pytest.fixture(scope="module")
def server(redis_server: Redis) -> Redis:
    """One kind of Redis will do here; test_lease.py tries the leases on each."""
    return redis_server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(leading, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(presence, "PRESENCE_SECONDS", 2)


class Player:
    """One Spark writer whose threads obey at once; `busy` are pipelines whose step goes on. `served` has the newest
    lead of each pipeline."""

    def __init__(self, redis: Client) -> None:
        self.stop = threading.Event()
        self.replica = Replica(redis, self.stop)
        self.name = self.replica._service.incarnation
        self.names = set(NAMES)
        self.busy: set[Key] = set()
        self.served: dict[Key, Lead] = {}
        self.began: list[Key] = []
        self._threads: list[tuple[Key, Lead]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self.replica.run()), asyncio.create_task(self._serve())]

    async def _serve(self) -> None:
        while True:
            for name, lead in self.replica.leads(self.names).items():
                if not lead.served:
                    lead.served = True
                    self.served[name] = lead
                    self.began.append(name)
                    self._threads.append((name, lead))
            for name, lead in self._threads:
                if lead.is_ending() and name not in self.busy:
                    lead.ended.set()
            await asyncio.sleep(0.05)

    @property
    def leads(self) -> set[Key]:
        return {name for name, lead in self.served.items() if not lead.is_ending()}

    @property
    def is_sure(self) -> bool:
        return all(sure(self.served[name]) for name in self.leads)

    def stop_looking(self) -> None:
        self._tasks[0].cancel()

    def look_again(self) -> None:
        self._tasks.append(asyncio.create_task(self.replica.run()))

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def leave(self) -> None:
        self.stop.set()
        for name, lead in self._threads:
            lead.stop.set()
            if name not in self.busy:
                lead.ended.set()
        await self.kill()
        await self.replica.leave()


@asynccontextmanager
async def players(redis: Client, count: int) -> AsyncIterator[list[Player]]:
    """Spark writers that have shared NAMES out."""
    made = [Player(redis) for _ in range(count)]
    for player in made:
        player.start()
    try:
        await until(lambda: even(made))
        yield made
    finally:
        for player in made:
            await player.kill()


def sure(lead: Lead) -> bool:
    return lead.is_sure(time.monotonic())


def even(some: list[Player]) -> bool:
    """Whether each pipeline is led once, and none leads two more than another."""
    counts = [len(player.leads) for player in some]
    return sorted(name for player in some for name in player.leads) == list(NAMES) and max(counts) - min(counts) <= 1


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def soon(condition: Callable[[], Awaitable[object]], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def full(redis: Client) -> AsyncIterator[None]:
    """Redis over its limit: it refuses whatever may need memory."""
    await redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await redis.config_set("maxmemory", 0)


async def owner(redis: Client, name: Key) -> str | None:
    found = await redis.get(lease_name(name, SPARK_WRITER))
    return None if found is None else found.decode()


async def test_one_alone_leads_all_and_who_joins_takes_its_share_when_a_batch_is_published(redis: Client) -> None:
    async with players(redis, 1) as (first,):
        second = Player(redis)
        first.busy = {SHOP}
        second.start()
        try:
            await until(lambda: first.served[SHOP].hand_over.is_set())
            assert not first.served[SHOP].stop.is_set()
            await asyncio.sleep(0.5)
            assert second.leads == set()
            first.busy = set()
            await until(lambda: even([first, second]))
            assert first.began == list(NAMES)
            assert second.began == [SHOP]
        finally:
            await second.kill()


async def test_one_whose_spark_does_not_run_yet_is_present_and_has_no_share(redis: Client) -> None:
    async with players(redis, 1) as (first,):
        starting = Player(redis)
        looking = asyncio.create_task(starting.replica.run())
        registry = Registry(redis)
        try:
            async with asyncio.timeout(10):
                while len(await registry.services()) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            assert first.leads == set(NAMES)
        finally:
            looking.cancel()


async def test_the_pipelines_of_one_that_is_killed_or_leaves_go_to_the_others(redis: Client) -> None:
    async with players(redis, 3) as (first, second, third):
        await first.kill()
        await until(lambda: even([second, third]))
        began = asyncio.get_running_loop().time()
        await second.leave()
        await until(lambda: even([third]))
        assert asyncio.get_running_loop().time() - began < 1.5  # given away, not timed out
        await third.leave()
        assert [key async for key in redis.scan_iter("cutline:lease:*")] == []
        assert await Registry(redis).services() == []


async def test_one_that_was_suspended_past_its_lease_ends_and_serves_again_beside_its_old_step(redis: Client) -> None:
    """1. A loses its pipelines in a long step. 2. It wakes, and its old leads end after that step. 3. It gets a share
    again, and serves it while that step goes on."""
    async with players(redis, 2) as (first, second):
        lost = {name: first.served[name] for name in first.leads}
        first.busy = set(lost)
        await first.kill()
        await until(lambda: even([second]))
        assert not any(sure(lead) for lead in lost.values())
        first.start()
        await until(lambda: all(lead.stop.is_set() for lead in lost.values()))
        await until(lambda: even([first, second]))
        assert not any(lead.ended.is_set() for lead in lost.values())


async def test_leaders_keep_their_pipelines_when_redis_is_emptied(server: Redis, redis: Client) -> None:
    async with players(redis, 3) as three:
        for _ in range(3):
            server.flush()
            await asyncio.sleep(0.7)
            assert even(three)
        assert [len(player.began) for player in three] == [1, 1, 1]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_leader_that_sits_in_a_time_out_while_redis_is_emptied_keeps_its_pipelines(
    server: Redis, redis: Client, restarts: bool
) -> None:
    async with players(redis, 2) as (first, second):
        led = (first.leads, second.leads)
        first.stop_looking()
        if restarts:
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
        else:
            server.flush()
        await asyncio.sleep(1.5)
        assert (first.leads, second.leads) == led
        first.look_again()
        await until(lambda: first.is_sure and second.is_sure)
        assert (first.leads, second.leads) == led
        assert len(first.began) + len(second.began) == len(NAMES)


async def test_leaders_go_on_while_redis_is_down_and_begin_nothing_new(server: Redis, redis: Client) -> None:
    async with players(redis, 2) as (first, second):
        led = {player: set(player.leads) for player in (first, second)}
        await asyncio.to_thread(server.kill)
        await until(lambda: not any(sure(lead) for lead in (*first.served.values(), *second.served.values())))
        await asyncio.sleep(0.5)
        assert {player: set(player.leads) for player in (first, second)} == led
        await asyncio.to_thread(server.start)
        await until(lambda: all(sure(lead) for player in led for lead in player.served.values()))
        assert even([first, second])


async def test_in_a_full_redis_a_pipeline_that_can_not_be_handed_over_stays_where_it_is(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "KEEP_SECONDS", 1.0)
    async with players(redis, 1) as (first,):
        first.busy = {SHOP}
        second = Player(redis)
        second.start()
        try:
            await until(lambda: first.served[SHOP].hand_over.is_set())
            async with full(redis):
                first.busy = set()
                await until(lambda: first.began.count(SHOP) > 1)
                await asyncio.sleep(2.5)
                assert await owner(redis, SHOP) == first.name
                assert second.leads == set()
            await until(lambda: even([first, second]))
        finally:
            await second.kill()


async def test_in_a_full_redis_leaders_keep_their_leases_and_take_others_once_it_has_room(redis: Client) -> None:
    """1. B is killed, and Redis is full: A can't take its pipelines. 2. One of A's own leases is lost too."""
    async with players(redis, 2) as (first, second):
        led = sorted(first.leads)
        own = led[0]
        async with full(redis):
            await second.kill()
            await redis.delete(lease_name(own, SPARK_WRITER))
            await asyncio.sleep(3.0)
            assert {name for name in NAMES if await owner(redis, name)} == set(led) - {own}
            assert sorted(first.leads) == led
            assert [name for name in led if not sure(first.served[name])] == [own]
        await until(lambda: even([first]) and first.is_sure)
        assert len(first.began) == len(NAMES)


async def test_one_that_ends_before_it_has_served_a_pipeline_gives_it_away(redis: Client) -> None:
    async with players(redis, 1) as (first,):
        second = Player(redis)
        second.replica.leads(NAMES)
        looking = asyncio.create_task(second.replica.run())
        try:
            await until(lambda: bool(second.replica._leads))
            second.stop.set()
            await until(lambda: even([first]))
        finally:
            looking.cancel()


async def test_one_whose_threads_hang_loses_its_leases(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with players(redis, 2) as (first, second):
        monkeypatch.setattr(leading, "HUNG_SECONDS", 1.0)
        first._tasks[1].cancel()
        await until(lambda: even([second]))


async def test_one_that_is_missing_among_the_services_hands_nothing_over(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody() -> list[Service]:
        return []

    async with players(redis, 1) as (first,):
        monkeypatch.setattr(first.replica._registry, "services", nobody)
        await asyncio.sleep(0.5)
        assert first.leads == set(NAMES)


async def test_a_pipeline_that_is_removed_from_the_store_ends(redis: Client) -> None:
    async with players(redis, 1) as (first,):
        first.names.remove(SHOP)
        await until(first.served[SHOP].ended.is_set)

        async def released() -> bool:
            return await owner(redis, SHOP) is None

        await soon(released)
        assert first.leads == {CRM, LOG}


async def test_what_is_not_cutlines_in_redis_ends_nothing(redis: Client) -> None:
    """1. A status and a request are no JSON. 2. A service's note has unknown fields, so shares can't be computed."""
    await redis.hset(f"cutline:status:{SHOP}", SPARK_WRITER, "no JSON")
    await redis.rpush(f"cutline:requests:{SHOP}:spark_writer", "no JSON")
    async with players(redis, 1) as (first,):
        await until(lambda: list(first.served[SHOP].requests) == [b"no JSON"])
        await redis.set("cutline:service:x", '{"failed": {}, "unknown": 1}')
        await redis.sadd("cutline:services", "x")
        await asyncio.sleep(3.0)
        assert first.leads == set(NAMES)
        assert first.is_sure
        await redis.delete("cutline:service:x")
        second = Player(redis)
        second.start()
        try:
            await until(lambda: even([first, second]))
        finally:
            await second.kill()


async def test_a_redis_that_refuses_ends_the_process_at_its_start_only(
    redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> None:
        raise ConfigError("Redis refused to renew the leases")

    replica = Replica(redis, threading.Event())
    monkeypatch.setattr(replica, "_look", refused)
    with pytest.raises(ConfigError):
        await replica.run()
    async with players(redis, 1) as (first,):
        with monkeypatch.context() as patch:
            patch.setattr(first.replica, "_look", refused)
            await until(lambda: not any(sure(lead) for lead in first.served.values()))
        await until(lambda: first.is_sure)
        assert first.began == list(NAMES)


async def status(redis: Client, name: Key) -> SparkWriterStatus:
    return (await Registry(redis).status(name)).spark_writer


async def test_status_and_requests_go_with_the_lease(redis: Client) -> None:
    registry, body = Registry(redis), b'{"kind": "retry", "table": "a.b"}'

    async def published(n: int) -> None:
        async def shown() -> bool:
            return (await status(redis, SHOP)).published == n

        await soon(shown)

    async def ask() -> None:
        await registry.request(SHOP, json.loads(body), to=SPARK_WRITER)

    async with players(redis, 1) as (first,):
        old = first.served[SHOP]
        old.report(SparkWriterStatus(published=7))
        await ask()
        await published(7)
        await until(lambda: list(old.requests) == [body])
        assert (await status(redis, SHOP)).leader == first.name
        second = Player(redis)
        second.start()
        try:
            await until(lambda: even([first, second]))

            async def shown() -> bool:
                return (await status(redis, SHOP)).leader == second.name

            await soon(shown)
            assert (await status(redis, SHOP)).published == 7  # until the new leader has reported
            lead = second.served[SHOP]
            old.report(SparkWriterStatus(published=6))  # the last words of a thread that has ended
            lead.report(SparkWriterStatus(published=8))
            await published(8)
            for _ in range(2):
                await until(lambda: list(lead.requests) == [body])
                lead.handled.append(lead.requests.popleft())

                async def withdrawn() -> bool:
                    return await registry.waiting([SHOP], to=SPARK_WRITER) == {SHOP: []}

                await soon(withdrawn)
                await ask()
            assert await owner(redis, SHOP) == second.name
        finally:
            await second.kill()


async def test_a_status_is_written_when_it_changes_and_when_redis_was_emptied(
    server: Redis, redis: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shown() -> bool:
        return (await status(redis, SHOP)).published == 7

    async with players(redis, 1) as (first,):
        first.served[SHOP].report(SparkWriterStatus(published=7))
        await soon(shown)
        await redis.delete(f"cutline:status:{SHOP}")
        await asyncio.sleep(0.5)
        assert await status(redis, SHOP) == SparkWriterStatus()
        server.flush()
        await soon(shown)
        monkeypatch.setattr(leading, "AGAIN_SECONDS", 0.2)
        await redis.delete(f"cutline:status:{SHOP}")
        await soon(shown)
