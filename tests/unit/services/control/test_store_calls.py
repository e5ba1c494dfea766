"""The control service while its store, or a lake's disk, hangs: it says so within seconds, and goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cutline.common.errors import Unavailable
from cutline.common.store.store import Store
from cutline.services.control import duties, facts, store_calls
from cutline.services.control.store_calls import in_store
from tests.support.control_api import FakeRegistry, client, registry, store

__all__ = ["registry", "store"]  # the fixtures
SILENT_SECONDS = 0.5
REQUESTS = 40
"""More than there are threads for the store."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_calls, "SILENT_SECONDS", SILENT_SECONDS)


@contextmanager
def hung(folder: Path) -> Iterator[None]:
    """The store lists a file whose reading never ends, as on a network disk that is away."""
    pipe = folder / "pipelines" / "hung.0000000001.json"
    os.mkfifo(pipe)
    try:
        yield
    finally:
        writing = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        pipe.unlink()
        os.close(writing)


async def test_a_store_that_hangs_is_named_by_each_answer_within_seconds_and_metrics_say_so(
    registry: FakeRegistry, store: Store, tmp_path: Path
) -> None:
    """1. The store hangs, and many requests come. 2. Each is answered 503 with the cause; health and metrics answer.
    3. The store answers again, and so does the API."""
    async with client(registry, store) as api:
        assert (await api.get("/v1/pipelines")).status_code == 200
        with hung(tmp_path):
            begun = time.monotonic()
            answers = await asyncio.gather(*(api.get("/v1/pipelines") for _ in range(REQUESTS)))
            assert {each.status_code for each in answers} == {503}
            assert "the store has not answered for" in answers[0].json()["detail"]
            assert (await api.get("/healthz")).status_code == 200
            ready = await api.get("/readyz")
            assert (ready.status_code, "the store" in ready.json()["cause"]) == (503, True)
            metrics = await api.get("/metrics")
            assert "cutline_store_up 0.0" in metrics.text
            assert time.monotonic() - begun < 10 * SILENT_SECONDS
        await answered(api, "/v1/pipelines")


async def answered(api: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(10):
        while (await api.get(path)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_call_of_many_answers_may_take_longer_than_a_silence(store: Store) -> None:
    def many() -> str:
        for _ in range(8):
            time.sleep(SILENT_SECONDS / 4)
            store.pipelines()
        return "done"

    assert await in_store(many) == "done"
    over = threading.Event()
    with pytest.raises(Unavailable, match="has not answered"):
        await in_store(over.wait, 30)
    over.set()


class Job:
    """A job of the control service, whose receiver may hang."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.looks, self._hangs = 0, hangs

    async def take_over(self) -> None:
        pass

    async def give_up(self) -> None:
        pass

    async def look(self, facts: Any) -> None:
        self.looks += 1
        if self._hangs:
            await asyncio.sleep(30)


async def test_a_receiver_that_hangs_holds_up_no_alert_and_not_the_lease(
    registry: FakeRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = 0

    async def acquire(lease: Any) -> bool:
        nonlocal renewed
        renewed += 1
        return True

    async def release(lease: Any) -> None:
        pass

    monkeypatch.setattr(duties.Lease, "acquire", acquire)
    monkeypatch.setattr(duties.Lease, "release", release)
    monkeypatch.setattr(duties, "LOOK_SECONDS", 0.01)
    lineage, alerts = Job(hangs=True), Job()
    watching = asyncio.create_task(
        duties.watch(cast(Any, registry), store, cast(Any, None), [lineage, alerts], "c1")
    )
    async with asyncio.timeout(10):
        while alerts.looks < 5 or renewed < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert lineage.looks == 1
    watching.cancel()
    await asyncio.wait([watching], timeout=5)
    assert watching.cancelled()


async def test_a_lakes_disk_that_hangs_holds_up_no_request_and_no_metric(
    registry: FakeRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, usage = threading.Event(), shutil.disk_usage

    def look(folder: str) -> Any:
        if folder == "/w":  # the warehouse
            over.wait(30)
        return usage("/")

    monkeypatch.setattr(facts.shutil, "disk_usage", look)
    monkeypatch.setattr(facts, "DISKS_SECONDS", 0.1)
    async with client(registry, store) as api:
        for _ in range(12):
            metrics = await api.get("/metrics")
            assert "cutline_store_up 1.0" in metrics.text
        async with asyncio.timeout(5):
            assert (await api.get("/v1/pipelines/shop")).status_code == 200
        over.set()
        async with asyncio.timeout(5):
            while "cutline_disk_free_bytes{" not in (await api.get("/metrics")).text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
