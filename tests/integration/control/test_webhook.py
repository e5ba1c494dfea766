"""Alerts reach a real HTTP receiver that fails at first, from one of several control services, with a real Redis."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis as Client

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import parse
from cutline.common.mesh.presence import Registry
from cutline.common.status.pipeline_status import EnumeratorStatus
from cutline.common.store.condition_log import Change
from cutline.common.store.store import Store
from cutline.services.control import alerts as alerts_file
from cutline.services.control import duties as watch_file
from cutline.services.control.duties import LEASE, jobs_of, watch
from cutline.services.control.webhook import KEY, signed
from tests.support.causes import because
from tests.support.receiver import Post, Receiver

SHOP = (
    "name: shop\nsource: {host: h, user: u, password_env: SHOP_PASSWORD}\ntables: [a.b]\nsink: {warehouse: /nowhere}\n"
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(refuse=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(alerts_file, "PAUSE_SECONDS", (0.05, 0.2))


class Controls:
    """Control services that watch one store and one Redis."""

    def __init__(self, redis: Client, store: Store, url: str | None) -> None:
        self.redis, self.registry, self.store = redis, Registry(redis), store
        self.environment = Environment(webhook_url=url, webhook_secret="sesame", docs_url="https://docs.example.com")
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> None:
        work = watch(self.registry, self.store, self.redis, jobs_of(self.environment, self.redis, self.store), name)
        self.tasks[name] = asyncio.create_task(work)

    async def end(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def leader(self) -> str:
        async with asyncio.timeout(20):
            while (owner := await self.redis.get(LEASE)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return owner.decode() if isinstance(owner, bytes) else str(owner)

    async def kept_empty(self) -> None:
        """Return once Redis has that all deliveries are taken."""
        async with asyncio.timeout(20):
            while json.loads(await self.redis.get(KEY) or '{"queue": [1]}')["queue"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def halted(self, cause: str | None) -> None:
        status = EnumeratorStatus(at=time.time(), halted=because(cause) if cause else None, epoch=3)
        await self.registry.put_status(self.store.pipeline("shop").key, "enumerator", status)


def statuses(posts: list[Post]) -> list[str]:
    bodies = [json.loads(post.body) for post in posts]
    return [f"{body['status']} {body['commonLabels']['alertname']}" for body in bodies]


async def test_an_alert_is_posted_signed_and_once_by_one_of_two_control_services(
    redis: Client, receiver: Receiver, tmp_path: Path
) -> None:
    """1. A pipeline halts; the receiver refuses two posts, then takes one. 2. The control service that posted it ends,
    the other takes over and posts nothing again. 3. The pipeline runs again: the other one posts that.
    """
    store = Store(f"file://{tmp_path}")
    store.pipeline("shop").define(parse(SHOP).definition())
    controls = Controls(redis, store, receiver.url)
    await controls.halted("The binlog after x is purged")
    for name in ("c1", "c2"):
        controls.start(name)
    await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 1)
    assert len(receiver.refused) == 2
    assert {post.headers["x-cutline-delivery"] for post in (*receiver.refused, *receiver.taken)} == {
        receiver.taken[0].headers["x-cutline-delivery"]
    }
    (post,) = receiver.taken
    body: dict[str, Any] = json.loads(post.body)
    assert body["commonLabels"] == {"alertname": "CutlineHalted", "severity": "critical", "pipeline": "shop"}
    assert body["commonAnnotations"]["cause"] == "The binlog after x is purged"
    assert body["commonAnnotations"]["remedy"] == "remove the cause, then `cutline pipeline start shop`"
    expected = signed(post.body, "sesame", int(post.headers["x-cutline-timestamp"]))
    assert post.headers["x-cutline-signature"] == expected["X-Cutline-Signature"]
    await controls.kept_empty()  # a control service that ends between a post and its answer repeats it, by the same id
    first = await controls.leader()
    await controls.end(first)
    (second,) = controls.tasks
    assert await controls.leader() == second
    await controls.halted(None)
    await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 2)
    await controls.end(second)
    assert statuses(receiver.taken) == ["firing CutlineHalted", "resolved CutlineHalted"]


async def test_without_a_webhook_the_history_is_written_all_the_same(redis: Client, tmp_path: Path) -> None:
    """1. A pipeline halts, and runs again. 2. Both are in its history, by the control service that holds the lease."""
    store = Store(f"file://{tmp_path}")
    store.pipeline("shop").define(parse(SHOP).definition())
    (life,), log = store.lives(), store.conditions(store.lives()[0])
    controls = Controls(redis, store, None)
    await controls.halted("The binlog after x is purged")
    controls.start("c1")

    async def history_has(what: str) -> Change:
        async with asyncio.timeout(20):
            while True:
                for _, change in await asyncio.to_thread(log.last, 10):
                    if (change.condition.name, change.what) == ("CutlineHalted", what):
                        return change
                await asyncio.sleep(0.05)

    assert (await history_has("began")).condition.cause == "The binlog after x is purged"
    await controls.halted(None)
    assert (await history_has("ended")).state.holding == {}
    await controls.end("c1")
    assert life == store.lives()[0]
