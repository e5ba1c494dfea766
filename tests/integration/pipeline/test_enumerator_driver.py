"""An enumerator's driver on a real Redis, with members that the test plays; the source is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.errors import Unavailable
from cutline.common.mesh import streams
from cutline.common.mesh.lease import lease_name
from cutline.common.mesh.messages import Message, PartSaved, SplitsWanted, encode
from cutline.common.mesh.presence import WIRE, Registry, Service
from cutline.common.mesh.sender import Sender
from cutline.common.mesh.streams import stream_name
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import Store
from cutline.services.enumerator.leader import MAX_HALTS
from tests.support.leading import led
from tests.support.records import PART, checkpoint


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def slowly(call: Callable[..., Awaitable[Any]], seconds: float) -> Callable[..., Awaitable[Any]]:
    async def slow(*args: Any, **named: Any) -> Any:
        await asyncio.sleep(seconds)
        return await call(*args, **named)

    return slow


async def say(redis: Client, epoch: int, message: Message) -> None:
    """What reader-0 sends first."""
    (key,) = await Registry(redis).epochs()
    name = stream_name(key, epoch, "reader-0", "enumerator")
    sender = Sender(redis, name, credit_bytes=1 << 20)
    await sender.send(encode(message), counted=False)
    await sender.flush()
    await sender.close()


async def no_streams(redis: Client) -> None:
    """Wait until members can neither send nor receive."""
    async with asyncio.timeout(10):
        while [key async for key in redis.scan_iter("cutline:shop.*:*")]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_member_says_while_the_epoch_is_being_opened_is_heard(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The epoch is announced. 2. Its leader looks through a large Redis for old streams. 3. A reader says that it
    has room, once and for all. 4. The leader leads."""
    monkeypatch.setattr(streams, "drop", slowly(streams.drop, 0.6))
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        async with asyncio.timeout(10):
            while pipeline.key not in await Registry(redis).epochs():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert pipeline.leader.state == "opening"
        await say(redis, 1, SplitsWanted(free=2))
        await until(lambda: pipeline.leader.state == "leading")
        enumerator = pipeline.leader.enumerator
        assert enumerator is not None
        await until(lambda: enumerator.splits.free == {"reader-0": 2})


async def test_an_epoch_is_announced_when_its_streams_are_there_and_not_by_who_lost_the_lease(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Making the streams takes long. 2. The lease goes to another. 3. The streams would be there."""
    monkeypatch.setattr(streams, "create", slowly(streams.create, 1.2))
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        await until(lambda: pipeline.leader.state == "opening")
        await asyncio.sleep(0.6)  # what is observed twice meanwhile announces nothing
        assert await Registry(redis).epochs() == {}
        await redis.set(lease_name(pipeline.key), "another")
        await until(lambda: pipeline.leader.state == "idle")
        await asyncio.sleep(0.8)
        assert await Registry(redis).epochs() == {}
        assert pipeline.epoch is None
        assert not await redis.exists(stream_name(pipeline.key, 1, "reader-0", "enumerator"))


async def test_an_epoch_that_can_not_be_restored_leaves_no_streams_to_its_members(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The enumerator's part is gone, and members have joined."""
    store = Store(f"file://{tmp_path}/store").pipeline("shop")
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        await until(lambda: pipeline.leader.state == "leading")
    assert store.put_entry(checkpoint(2, parts={ENUMERATOR: PART}))
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        await until(lambda: pipeline.leader.state == "halted")
        assert "parts/p is missing" in pipeline.leader.cause.sentence
        epochs = [slot for slot in range(1, store.last_slot() + 1) if isinstance(store.entry(slot), EpochEntry)]
        assert len(epochs) == 1 + MAX_HALTS
        assert await Registry(redis).epochs() == {pipeline.key: epochs[-1]}
        await no_streams(redis)


async def test_members_are_dismissed_by_as_many_tries_as_it_takes(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The pipeline halts while Redis answers no request to remove its streams. 2. Redis answers."""
    drop, asked = streams.drop, 0

    async def refuse(*args: Any, **named: Any) -> int:
        nonlocal asked
        if pipeline.leader.state != "halted":
            return await drop(*args, **named)
        asked += 1
        raise Unavailable("Redis did not answer")

    monkeypatch.setattr(streams, "drop", refuse)
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        for epoch in range(1, MAX_HALTS + 1):
            await until(lambda epoch=epoch: (pipeline.leader.state, pipeline.leader.epoch) == ("leading", epoch))
            await say(redis, epoch, PartSaved(checkpoint=99))
        await until(lambda: asked >= 3)
        assert [key async for key in redis.scan_iter("cutline:shop.*:*")]
        monkeypatch.setattr(streams, "drop", drop)
        await no_streams(redis)


async def test_services_of_another_version_are_no_members(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling update. 1. Readers and writers of another version are there: no epoch begins with them. 2. Those of
    the leader's version come, and one begins."""
    async with led(redis, tmp_path, monkeypatch, wire=WIRE + 1) as pipeline:
        await until(lambda: caplog.text.count(f"has version {WIRE + 1} of the mesh's messages") == 2)
        assert pipeline.leader.state == "gathering"
        for role in ("reader", "writer"):
            ours = Service(incarnation=f"{role}2", role=role, host="here", pid=1, started_at=1.0)
            await Registry(redis).announce_presence(ours)
        await until(lambda: pipeline.leader.state == "leading")
        entry = Store(f"file://{tmp_path}/store").pipeline("shop").entry(1)
        assert isinstance(entry, EpochEntry)
        assert entry.members.by_role == {"reader": ("reader2",), "writer": ("writer2",)}


async def test_what_the_machine_refuses_again_and_again_halts_the_pipeline(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led(redis, tmp_path, monkeypatch) as pipeline:
        for epoch in range(1, MAX_HALTS + 1):
            await until(lambda epoch=epoch: (pipeline.leader.state, pipeline.leader.epoch) == ("leading", epoch))
            await say(redis, epoch, PartSaved(checkpoint=99))
        await until(lambda: pipeline.leader.state == "halted")
        assert "received a part of checkpoint 99" in pipeline.leader.cause.sentence
        await no_streams(redis)
