"""A registry that answers from memory, and the control API over it in process, for unit tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cutline.common.config.pipeline import parse
from cutline.common.errors import Unavailable
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.redis import Memory
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.lives import Key, name_of
from cutline.common.store.records import Members, Publication
from cutline.common.store.store import Store
from cutline.common.waits import Party, Wait
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from tests.support import records
from tests.support.causes import because
from tests.support.status import status_of

DEFINITION = parse(
    "name: shop\nsource: {host: h, user: u, password_env: SHOP_PASSWORD}\ntables: [a.b]\nsink: {warehouse: /w}\n"
).definition()


class FakeRegistry:
    """A registry that answers from memory, or not at all."""

    def __init__(self) -> None:
        self.up = True
        self.parts: dict[str, dict[str, Any]] = {}
        self.present: list[Service] = []
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    async def services(self) -> list[Service]:
        if not self.up:
            raise Unavailable("Redis did not answer a request to list the services: refused")
        return self.present

    async def status(self, pipeline: str) -> PipelineStatus:
        if not self.up:
            raise Unavailable("Redis did not answer a request to read the status: refused")
        return status_of(self.parts if name_of(Key(pipeline)) == "shop" else {})

    async def memory(self) -> Memory:
        return Memory(used_bytes=10, limit_bytes=None)

    async def splits(self, pipeline: str, table: str) -> None:
        return None

    async def request(self, pipeline: str, request: Mapping[str, Any], *, to: str = "") -> None:
        self.asked.append((name_of(Key(pipeline)), to, dict(request)))


@pytest.fixture
def registry() -> FakeRegistry:
    fake = FakeRegistry()
    fake.present = [
        Service(
            incarnation=f"r{i}",
            role="reader",
            host="h",
            pid=10 + i,
            started_at=1.0,
            loop_lag_seconds=0.02 if i else None,
        )
        for i in range(2)
    ]
    fake.parts = {
        "enumerator": {
            "epoch": 1,
            "leader": "e1",
            "tables": {
                "a.b": {
                    "phase": "snapshot",
                    "generation": 2,
                    "rows_done": 5,
                    "rows_estimate": 10,
                    "splits_done": 1,
                    "splits_total": 4,
                },
                "a.c": {"phase": "quarantined", "generation": 1, "cause": because("no key")},
                "a.d": {"phase": "dropped", "generation": 2, "cause": because("gone")},
            },
            "checkpoint": {"number": 2, "completed_at": time.time() - 30, "in_flight": 4},
            "waiting_for": None,
            "limits": {"rows_per_second": 100, "bytes_per_second": None},
            "source_time": time.time() - 5,
        },
        "spark_writer": {
            "leader": "s1",
            "published": 2,
            "published_at": time.time() - 20,
            "source_time": time.time() - 60,
        },
        "reader-0": {
            "waiting_for": Wait(Party.BUSY_SOURCE, "the source to become less busy"),
            "counters": [["zero_dates", {"table": "a.b", "column": "d"}, 3]],
        },
    }
    return fake


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"file://{tmp_path}")
    shop = store.pipeline("shop")
    shop.define(DEFINITION)
    members = Members(enumerator="e1", by_role={"reader": ("r0",), "writer": ("w0", "w1")})
    shop.put_entry(records.epoch(1, members=members, cause=because("start"), written_at=1.0))
    for slot, phase, kept in ((2, "snapshot", False), (3, "live", True)):
        staged = (records.staged("a.b", rows=7, size=100), records.staged("a.b", rows=1, size=5))
        tables = {"a.b": records.table(generation=2, phase=phase)}
        times = {"source_time": 1.5, "started_at": 1.0, "written_at": 2.0}
        shop.put_entry(records.checkpoint(slot, 1, kept=kept, position=None, staged=staged, tables=tables, **times))
    record = {"n": 2, "epoch": 1, "w": 1, "kept": False, "position": None, "source_time": None, "published_at": 2.0}
    shop.publish(Publication(**record, tables={}))
    return store


def client(registry: FakeRegistry, store: Store, token: str | None = None) -> httpx.AsyncClient:
    app = build(cast(Registry, registry), store, Access(store.access, token=token, open_here=token is None))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


@pytest.fixture
async def api(registry: FakeRegistry, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with client(registry, store) as opened:
        yield opened
