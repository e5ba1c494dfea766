"""What every service does first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.common.commands.kinds import Mode
from cutline.common.mesh.channels import ChannelLost, LeaderLost
from cutline.common.mesh.host import Host
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.lives import Key
from cutline.common.store.records import EpochEntry, Members
from cutline.common.store.store import PipelineStore, Store
from tests.support import records
from tests.support.ports import ports


@pytest.mark.parametrize("module", ["services.enumerator", "services.reader", "services.writer", "services.control"])
def test_every_service_takes_all_the_descriptors_that_it_may(module: str) -> None:
    program = f"""
import resource, runpy
from cutline.common import threads
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
def run(work):
    work.close()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
threads.run = run
runpy.run_module("cutline.{module}", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "(256, 256)\n", ended.stderr


async def given_up(tmp_path: Path, error: Exception, during: Callable[[PipelineStore], Any]) -> Host:
    """A reader whose epoch 1 ends by an error, while the pipeline is in that state."""
    store = Store(f"file://{tmp_path}")
    host = Host("reader", store, ports())
    host.incarnation = "r1"
    shop = store.pipeline("shop")
    shop.define({})
    shop.put_entry(records.epoch(1, members=Members(enumerator="e1", by_role={"reader": ("r1",), "writer": ("w1",)})))

    async def join(found: PipelineStore, entry: EpochEntry, index: int) -> None:
        during(found)
        raise error

    await host._member(join, shop.key, 1)
    return host


def outcome(mode: Mode) -> Outcome:
    return Outcome(n=1, state="done", at=1.0, orders=Orders(mode=mode))


def ended(shop: PipelineStore) -> None:
    shop.put_deleting()
    shop.end()


@pytest.mark.parametrize(
    "order",
    [
        lambda shop: shop.commands.put_outcome(outcome("paused")),
        lambda shop: shop.commands.put_outcome(outcome("stopped")),
        lambda shop: shop.put_deleting(),
        ended,
        lambda shop: shop.put_entry(records.epoch(2)),
    ],
    ids=["paused", "stopped", "deleting", "deleted", "the next epoch"],
)
@pytest.mark.parametrize("error", [ChannelLost("a", "the stream is gone"), LeaderLost("it is silent")])
async def test_an_epoch_that_ended_by_order_is_left_without_a_warning_and_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, order: Callable[[PipelineStore], Any]
) -> None:
    caplog.set_level("INFO")
    host = await given_up(tmp_path, error, order)
    assert host.failed == {}
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert "r1 leaves epoch 1 of shop, which is over" in caplog.text


async def test_a_channel_that_is_lost_while_its_epoch_is_to_go_on_is_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = await given_up(tmp_path, ChannelLost("a", "the stream is gone"), lambda shop: None)
    (failed,) = host.failed.values()
    assert failed.cause.sentence == "channel a is lost: the stream is gone"
    assert "r1 leaves epoch 1 of shop: channel a is lost" in caplog.text


class Announced:
    """A registry that only knows which epochs are announced."""

    def __init__(self) -> None:
        self.now: dict[Key, int] = {}

    async def epochs(self) -> dict[Key, int]:
        return dict(self.now)


async def test_a_second_life_of_a_name_is_joined_beside_a_zombie_of_the_first_and_without_its_failure(
    tmp_path: Path,
) -> None:
    """1. A reader gives up epoch 1 of a pipeline, which is then deleted and made again. 2. Its epoch 1 is joined, and
    the presence has no failure of it. 3. A zombie announces the first one's epoch again: that ends no member."""
    store, registry = Store(f"file://{tmp_path}"), Announced()
    host = Host("reader", store, ports(notes=registry))
    host.incarnation = "r1"
    joined: list[str] = []
    members = Members(enumerator="e1", by_role={"reader": ("r1",), "writer": ("w1",)})

    async def join(found: PipelineStore, entry: EpochEntry, index: int) -> None:
        joined.append(found.key)
        if len(joined) == 1:
            raise ValueError("it gives up")
        await asyncio.Event().wait()

    def made() -> PipelineStore:
        shop = store.pipeline("shop")
        shop.define({})
        shop.put_entry(records.epoch(1, members=members))
        return shop

    async def until(condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    running: dict[Key, Any] = {}
    async with asyncio.TaskGroup() as group:
        following = group.create_task(host._follow(join, running, group))
        first = made()
        registry.now = {first.key: 1}
        await until(lambda: first.key in host.failed)
        first.put_deleting()
        first.remove_files()
        first.end()
        again = made()
        registry.now = {again.key: 1}
        await until(lambda: joined == [first.key, again.key] and first.key not in running)
        assert host.failed == {}
        registry.now = {again.key: 1, first.key: 1}
        await until(lambda: first.key in host.failed)
        assert "the pipeline was deleted, or Redis serves another store too" in host.failed[first.key].cause.sentence
        assert not running[again.key][1].done()
        assert again.key not in host.failed
        for task in (following, *(task for _, task in running.values())):
            task.cancel()
