"""The registry on a real Redis."""

import asyncio
import json
import logging
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import NoRoom, ProtocolError, Unavailable
from cutline.common.mesh.log_lines import KEPT, LogLines
from cutline.common.mesh.presence import GaveUp, Registry, Service
from cutline.common.mesh.production import ports
from cutline.common.mesh.streams import create, stream_name
from cutline.common.status.pipeline_status import (
    SPARK_WRITER,
    EnumeratorStatus,
    PipelineStatus,
    ReaderStatus,
    TableStatus,
)
from cutline.common.store.lives import Key, Life
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.pipelines import sweep_redis
from tests.support.causes import because
from tests.support.redis_servers import Redis

KEY = Key("shop.0123456789ab")


def service(incarnation: str, role: str = "reader", **known: Any) -> Service:
    return Service(incarnation=incarnation, role=role, host="here", pid=42, started_at=1.5, **known)


async def test_services_are_listed_by_role_with_what_they_gave_up(redis: Client) -> None:
    registry = Registry(redis)
    assert await registry.services() == []
    lost = GaveUp(epoch=7, cause=because("channel x is lost"), halts=False)
    writer = service("w1", "writer", failed={"shop": lost}, leaving=True)
    for member in (writer, service("r2"), service("r1")):
        await registry.announce_presence(member)
    assert await registry.services() == [service("r1"), service("r2"), writer]


async def test_services_of_other_versions_are_listed_too(redis: Client) -> None:
    """A later one notes what we don't know, an earlier one lacks what we know."""
    registry = Registry(redis)
    for incarnation in ("earlier", "later"):
        await registry.announce_presence(service(incarnation))
    note = json.loads(await redis.get("cutline:service:later"))
    await redis.set("cutline:service:later", json.dumps(note | {"wire": 7, "mood": "good"}), ex=5)
    await redis.set("cutline:service:earlier", json.dumps({k: v for k, v in note.items() if k != "wire"}), ex=5)
    assert await registry.services() == [service("earlier", wire=0), service("later", wire=7)]


@pytest.mark.alone
async def test_a_service_that_is_silent_for_five_seconds_is_gone(redis: Client) -> None:
    registry = Registry(redis)
    await registry.announce_presence(service("r1"))
    await registry.announce_presence(service("r2"))
    assert 4000 < await redis.pttl("cutline:service:r1") <= 5000
    await redis.pexpire("cutline:service:r1", 1)
    async with asyncio.timeout(5):
        while await redis.exists("cutline:service:r1"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert await registry.services() == [service("r2")]
    assert await redis.smembers("cutline:services") == {b"r2"}


async def test_a_service_that_leaves_is_gone_at_once(redis: Client) -> None:
    registry = Registry(redis)
    await registry.announce_presence(service("r1"))
    await registry.withdraw_presence("r1")
    assert await registry.services() == []


async def test_a_service_comes_back_by_itself_after_redis_was_emptied_and_knows_it(
    server: Redis, redis: Client
) -> None:
    registry = Registry(redis)
    assert await registry.announce_presence(service("r1"))
    assert await registry.announce_presence(service("r1", leaving=True))
    server.flush()
    assert await registry.services() == []
    assert not await registry.announce_presence(service("r1"))
    assert await registry.services() == [service("r1")]
    assert await registry.announce_presence(service("r1"))


async def test_a_pipeline_named_service_does_not_disturb(redis: Client) -> None:
    registry = Registry(redis)
    await create(redis, [stream_name("service", 1, "a", "b"), stream_name("services", 1, "a", "b")], {})
    await registry.announce_presence(service("r1"))
    assert await registry.services() == [service("r1")]


async def test_the_newest_epoch_that_was_announced_of_each_pipeline_is_listed(redis: Client) -> None:
    registry = Registry(redis)
    assert await registry.epochs() == {}
    await registry.announce_epoch("shop", 7)
    await registry.announce_epoch("crm", 1)
    await registry.announce_epoch("shop", 9)
    assert await registry.epochs() == {"shop": 9, "crm": 1}


async def test_each_part_replaces_its_own_status_only(redis: Client) -> None:
    registry = Registry(redis)
    last = ReaderStatus(rows_total=3, waiting_for=Wait(Party.OTHER, "Zürich"))
    await registry.put_status("shop", "reader-0", ReaderStatus(rows_total=1))
    await registry.put_status("shop", "reader-1", ReaderStatus(rows_total=2))
    await registry.put_status("shop", "reader-0", last)
    assert (await registry.status("shop")).readers == {"reader-0": last, "reader-1": ReaderStatus(rows_total=2)}
    assert await registry.status("crm") == PipelineStatus()


async def test_a_member_leaves_no_status_behind_once_its_epoch_is_over_or_its_pipeline_deleted(redis: Client) -> None:
    registry = Registry(redis)
    await registry.put_member_status("shop", "reader-0", ReaderStatus(epoch=3, rows_total=1))
    assert await registry.status("shop") == PipelineStatus()
    await registry.announce_epoch("shop", 3)
    await registry.put_member_status("shop", "reader-0", ReaderStatus(epoch=3, rows_total=2))
    await registry.put_member_status("shop", "reader-0", ReaderStatus(epoch=2, rows_total=1))
    assert (await registry.status("shop")).readers == {"reader-0": ReaderStatus(epoch=3, rows_total=2)}
    await registry.forget("shop")
    await registry.put_member_status("shop", "reader-0", ReaderStatus(epoch=3, rows_total=3))
    assert await registry.status("shop") == PipelineStatus()


async def test_requests_are_taken_once_in_their_order(redis: Client) -> None:
    registry = Registry(redis)
    for i in range(3):
        await registry.request("shop", {"kind": "pause", "i": i})
    taken = await asyncio.gather(*(registry.take_requests("shop") for _ in range(5)))
    assert [request["i"] for requests in taken for request in requests] == [0, 1, 2]
    assert await registry.take_requests("shop") == []


async def test_requests_to_a_spark_writer_wait_until_each_is_withdrawn(redis: Client) -> None:
    registry, first, second = Registry(redis), b'{"kind": "retry", "table": "a"}', b'{"kind": "retry", "table": "b"}'
    for request in (first, second, first):
        await registry.request("shop", json.loads(request), to=SPARK_WRITER)
    await registry.request("shop", {"kind": "savepoint"})
    assert await registry.waiting([], to=SPARK_WRITER) == {}
    for _ in range(2):
        found = await registry.waiting(["crm", "shop"], to=SPARK_WRITER)
        assert found == {"crm": [], "shop": [first, second, first]}
    await registry.withdraw("shop", first, to=SPARK_WRITER)
    await registry.withdraw("crm", first, to=SPARK_WRITER)
    assert (await registry.waiting(["shop"], to=SPARK_WRITER))["shop"] == [second, first]


async def test_forgetting_a_pipeline_leaves_the_others(redis: Client) -> None:
    registry = Registry(redis)
    for pipeline in ("shop", "crm"):
        await registry.announce_epoch(pipeline, 1)
        await registry.put_status(pipeline, "enumerator", EnumeratorStatus(epoch=1))
        await registry.request(pipeline, {})
    await registry.forget("shop")
    assert await registry.epochs() == {"crm": 1}
    assert await registry.status("shop") == PipelineStatus()
    assert await registry.take_requests("shop") == []
    assert await registry.take_requests("crm") == [{}]


async def test_what_is_not_ours_is_named_with_its_key(redis: Client) -> None:
    registry = Registry(redis)
    await redis.hset("cutline:status:shop", "reader-0", "no JSON")
    with pytest.raises(ProtocolError, match="cutline:status:shop in Redis is not JSON that Cutline wrote"):
        await registry.status("shop")


async def test_a_redis_that_is_down_is_unavailable_and_says_for_what(server: Redis, redis: Client) -> None:
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable, match="Redis did not answer a request to list the services"):
        await Registry(redis).services()


async def test_split_grids_are_replaced_and_removed_one_by_one_and_forgotten_with_their_pipeline(redis: Client) -> None:
    registry = Registry(redis)
    await registry.put_splits("shop", {"a.b": '{"made": 1}', "a.c": '{"made": 2}'})
    await registry.put_splits("shop", {"a.b": '{"made": 3}', "a.c": None})
    assert await registry.splits("shop", "a.b") == {"made": 3}
    assert await registry.splits("shop", "a.c") is None
    assert await registry.splits("crm", "a.b") is None
    await registry.forget("shop")
    assert await registry.splits("shop", "a.b") is None


async def test_unchanged_tables_of_a_status_are_the_same_object_and_others_are_read_again(redis: Client) -> None:
    registry = Registry(redis)
    first, second = EnumeratorStatus(epoch=1), EnumeratorStatus(epoch=2)
    live, paused = '{"phase": "live"}', '{"phase": "paused"}'
    await registry.put_status("shop", "enumerator", first, tables=f'{{"a.b": {live}, "a.c": {live}}}')
    before = (await registry.status("shop")).tables
    await registry.put_status("shop", "enumerator", second)
    after = await registry.status("shop")
    assert after.enumerator == second
    assert all(after.tables[name] is before[name] for name in ("a.b", "a.c"))
    await registry.put_status("shop", "enumerator", second, tables=f'{{"a.b": {paused}, "a.c": {live}}}')
    changed = (await registry.status("shop")).tables
    assert changed == {"a.b": TableStatus(phase="paused"), "a.c": TableStatus(phase="live")}
    assert changed["a.c"] is before["a.c"]
    await redis.flushall()
    assert await registry.status("shop") == PipelineStatus()


async def test_the_last_log_lines_are_kept_for_a_while_and_wait_while_redis_takes_none(redis: Client) -> None:
    registry, lines, log = Registry(redis), LogLines(), logging.getLogger("cutline.test_presence")
    log.addHandler(lines)
    log.propagate = False
    try:
        for n in range(KEPT + 10):
            log.warning("line %d", n)
        await lines.flush_to(redis, "r1")
        found = await registry.log_lines("r1", KEPT + 100)
        assert [line.text for line in found] == [f"line {n}" for n in range(10, KEPT + 10)]
        assert (found[0].level, found[0].logger) == ("WARNING", "cutline.test_presence")
        assert 0 < await redis.ttl("cutline:logs:r1") <= 86_400
        log.error("with password=hunter2")
        await redis.config_set("maxmemory", "1")
        try:
            with pytest.raises(NoRoom):
                await lines.flush_to(redis, "r1")
        finally:
            await redis.config_set("maxmemory", "0")
        await lines.flush_to(redis, "r1")
        await lines.flush_to(redis, "r1")
        assert [line.text for line in await registry.log_lines("r1", 2)] == [
            f"line {KEPT + 9}",
            "with password=***",
        ]
    finally:
        log.removeHandler(lines)


async def test_a_sweep_costs_redis_what_it_has_and_not_what_was_ever_deleted(redis: Client) -> None:
    """1. Of 500 deleted pipelines nothing is left: one look. 2. One that outlived its pipeline writes notes and streams
    again: they go, and what others have stays."""
    ended = [Life(name=f"p{n}", number=1, id=f"{n:012x}", folder=f"p{n}.{n:012x}") for n in range(500)]
    registry = Registry(redis)

    async def swept() -> int:
        before = (await redis.info("stats"))["total_commands_processed"]
        await sweep_redis(ports(redis), ended)
        return int((await redis.info("stats"))["total_commands_processed"]) - before

    await registry.announce_epoch(KEY, 3)
    await registry.put_status(KEY, "enumerator", EnumeratorStatus(epoch=3))
    await create(redis, [stream_name(KEY, 3, "a", "b")], {"epoch": 3})
    kept = set(await redis.keys("*"))
    assert await swept() < 10
    for life, late in zip(ended, ("epoch", "status", "stream"), strict=False):
        if late == "epoch":
            await registry.announce_epoch(life.key, 1)
        elif late == "status":
            await registry.put_status(life.key, "enumerator", EnumeratorStatus(epoch=1))
        else:
            await create(redis, [stream_name(life.key, 1, "a", "b")], {"epoch": 1})
    await swept()
    assert set(await redis.keys("*")) == kept
    assert set(await registry.epochs()) == {KEY}
    assert await swept() < 10
