"""An enumerator's pipeline on a real Redis, with members that the test plays; the source is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from redis.asyncio import Redis as Client

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import parse
from cutline.common.errors import Unavailable
from cutline.common.mesh.host import Host
from cutline.common.mesh.presence import WIRE, Registry, Service
from cutline.common.mesh.production import ports
from cutline.common.store.store import Store
from cutline.services.enumerator.driver import EnumeratorDriver
from cutline.services.enumerator.ports import Sources
from cutline.services.enumerator.reach import verify_reach
from cutline.services.enumerator.source import SourceReader

CONFIG = """
name: shop
source: {host: 127.0.0.1, port: 1, user: cdc, password_env: CDC_PASSWORD}
tables: ["shop.*"]
sink: {type: iceberg, warehouse: ./lake}
"""


@asynccontextmanager
async def led(
    redis: Client, folder: Path, monkeypatch: pytest.MonkeyPatch, *, wire: int = WIRE
) -> AsyncIterator[EnumeratorDriver]:
    """A pipeline that is led, with one reader and one writer that are there and do nothing, of this version."""
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    config, store = parse(CONFIG, folder=folder), Store(f"file://{folder}/store")
    store.pipeline("shop").define(config.definition())
    registry = Registry(redis)
    host = cast(Host, SimpleNamespace(incarnation="e1", ports=ports(redis), leads=set()))

    async def members() -> None:
        while True:
            for role in ("reader", "writer"):
                service = Service(incarnation=f"{role}1", role=role, host="here", pid=1, started_at=1.0, wire=wire)
                with suppress(Unavailable):
                    await registry.announce_presence(service)
            await asyncio.sleep(0.5)

    sources = Sources(open=SourceReader, verify_reach=verify_reach)
    pipeline = EnumeratorDriver(host, store.pipeline("shop"), config, Environment.read({}), sources)
    tasks = [asyncio.create_task(members()), asyncio.create_task(pipeline.run())]
    try:
        yield pipeline
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
