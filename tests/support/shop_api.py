"""The API over a pipeline `shop` with a table in most phases, in process, for unit tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from cutline.common.config.pipeline import parse
from cutline.common.mesh.presence import Registry
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.records import PartRef
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control.api.access import Access
from cutline.services.control.app import build
from tests.support import records
from tests.support.control_api import FakeRegistry

DEFINITION = parse(
    "name: shop\nsource: {host: h, user: u, password_env: SHOP_PASSWORD}\ntables: [shop.*, crm.people]\n"
    "sink: {warehouse: /w, catalog: {type: rest, uri: 'http://lake:8181', token: t0psecret}}\n"
).definition()
SHOP = "/v1/pipelines/shop"


@pytest.fixture
def registry() -> FakeRegistry:
    registry = FakeRegistry()
    phases = {
        "shop.orders": "live",
        "shop.held": "quarantined",
        "shop.gone": "dropped",
        "shop.new": "snapshot",
        "shop.still": "paused",
    }
    tables = {name: {"phase": phase, "generation": 1} for name, phase in phases.items()}
    registry.parts = {"enumerator": {"epoch": 1, "leader": "e1", "tables": tables}}
    return registry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"file://{tmp_path}/store")
    shop = store.pipeline("shop")
    shop.define(DEFINITION)
    shop.put_entry(records.epoch(1))
    part = shop.put_part("0000000001.e1.enumerator.json", b"{}")
    gone = PartRef(path="parts/0000000001.e1.swept.json", sha256="0" * 64, size=2)
    shop.put_entry(records.checkpoint(2, parts={"enumerator": gone}))
    shop.put_entry(records.checkpoint(3, parts={"enumerator": part}))
    shop.put_entry(records.checkpoint(4, parts={"enumerator": part}, kept=True))
    shop.put_entry(records.checkpoint(5, parts={"enumerator": part}, inside=True))
    return store


@pytest.fixture
def shop(store: Store) -> PipelineStore:
    return store.pipeline("shop")


@pytest.fixture
async def api(registry: FakeRegistry, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    app = build(cast(Registry, registry), store, Access(store.access, open_here=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as opened:
        yield opened


def problem(answer: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The problem that this answer must be, with these words in its cause or remedy."""
    found = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), found
    assert found["request_id"] == answer.headers["x-request-id"] != ""
    assert found["remedy"]
    for word in words:
        assert word in json.dumps(found), found
    return cast(dict[str, Any], found)


def finish(shop: PipelineStore, n: int, mode: Any = "running", *, definition: int = 1, **other: Any) -> None:
    """The outcome that a leader writes."""
    orders = Orders(mode=mode, definition=definition)
    assert shop.commands.put_outcome(Outcome(n=n, state="done", at=1.0, orders=orders, **other))
