"""What changes a pipeline through the API, in process: real store, a registry that answers what it is told to.

Every fault of a request is a problem with cause and remedy, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
import yaml

from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import parse
from cutline.common.mesh.presence import Registry
from cutline.common.store.commands import Command, Orders, Outcome
from cutline.common.store.records import PartRef
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control.api.access import Access
from cutline.services.control.api.gate import BODY_BYTES
from cutline.services.control.api.models import CommandView
from cutline.services.control.app import build
from cutline.services.enumerator.commanding import asked_definition
from tests.support import records
from tests.support.causes import because
from tests.unit.test_control import FakeRegistry

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


async def until_current(api: httpx.AsyncClient) -> None:
    """Return once the API has read the registry again."""
    async with asyncio.timeout(10):
        while True:
            if (await api.get(f"{SHOP}/limits")).json()["current"]:
                return
            await asyncio.sleep(0.01)


async def until(met: Callable[[], object]) -> None:
    """Return once this is true."""
    async with asyncio.timeout(10):
        while True:
            if await asyncio.to_thread(met):
                return
            await asyncio.sleep(0.01)


# Commands


async def test_a_command_is_in_the_store_before_the_answer_with_who_and_from_where(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    answer = await api.post(f"{SHOP}/pause")
    assert (answer.status_code, answer.headers["location"]) == (202, f"{SHOP}/commands/1")
    command = shop.commands.get(1)
    assert command is not None
    assert (command.kind, command.by, command.origin) == ("pause", "local", "127.0.0.1")
    assert registry.asked == [("shop", "", {"kind": "command"})]
    view = (await api.get(f"{SHOP}/commands/1")).json()
    assert (view["number"], view["state"], view["by"]) == (1, "accepted", "local")
    registry.parts["enumerator"] |= {"commands": {"running": 1, "done": 0}, "at": time.time()}
    assert (await api.get(f"{SHOP}/commands/1")).json()["state"] == "running"
    registry.parts["enumerator"]["at"] = time.time() - 60  # its leader died: the next one takes it again
    assert (await api.get(f"{SHOP}/commands/1")).json()["state"] == "accepted"
    finish(shop, 1, "paused", result={"checkpoint": 6})
    view = (await api.get(f"{SHOP}/commands/1")).json()
    assert (view["state"], view["result"], view["finished_at"]) == ("done", {"checkpoint": 6}, 1.0)


async def test_a_client_waits_for_the_end_of_a_command(api: httpx.AsyncClient, shop: PipelineStore) -> None:
    waiting = asyncio.create_task(api.post(f"{SHOP}/pause?wait=30s"))
    await until(shop.commands.newest)
    finish(shop, 1, "paused")
    assert (await waiting).json()["state"] == "done"
    assert (await api.get(f"{SHOP}/commands/1?wait=100ms")).json()["state"] == "done"
    problem(await api.get(f"{SHOP}/commands/1?wait=soon"), 422, "soon", "?wait=30s")


async def test_without_redis_a_command_is_accepted_all_the_same(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.up = False
    assert (await api.post(f"{SHOP}/pause")).status_code == 202


async def test_a_store_that_can_not_be_written_is_503_and_no_conflict(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    os.symlink("/sys", shop.location("keys"))  # where nobody may make a file
    problem(await api.post(f"{SHOP}/pause", headers={"Idempotency-Key": "a"}), 503, "/keys/")
    assert shop.commands.newest() == 0


async def test_without_redis_what_needs_it_is_503_with_a_remedy(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.up = False
    found = problem(await api.get(SHOP), 503, "Redis did not answer")
    assert "try again" in found["remedy"]


async def test_a_head_is_a_get_without_its_body_and_405_names_what_is_allowed(api: httpx.AsyncClient) -> None:
    for path in ("/healthz", SHOP, "/v1/pipelines"):
        assert (await api.head(path)).status_code == 200
    assert (await api.put("/v1/pipelines")).headers["allow"] == "GET, HEAD, POST"
    assert (await api.post("/")).headers["allow"] == "GET"


async def test_a_repeated_call_with_the_same_key_is_the_same_command(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await api.post(f"{SHOP}/savepoints", json={"name": "a"}, headers=key)
    again = await api.post(f"{SHOP}/savepoints", json={"name": "a"}, headers=key)
    assert (again.status_code, again.json()["number"], again.headers["location"]) == (202, 1, first.headers["location"])
    problem(await api.post(f"{SHOP}/savepoints", json={"name": "b"}, headers=key), 409, "Idempotency-Key", "new key")
    assert (await api.post(f"{SHOP}/pause", headers={"Idempotency-Key": "k2"})).json()["number"] == 2
    finish(shop, 1)
    finish(shop, 2, "paused")
    again = await api.post(f"{SHOP}/pause", headers={"Idempotency-Key": "k2"})  # though it makes no sense any more
    assert (again.status_code, again.json()["state"]) == (202, "done")
    assert shop.commands.newest() == 2


@pytest.mark.parametrize(
    ("before", "call", "words"),
    [
        ([], "resume", ["not paused"]),
        ([], "start", ["running already"]),
        (["pause"], "pause", ["paused already"]),
        (["pause"], "start", ["paused", "resume"]),
        (["stop"], "stop", ["stopped already"]),
        (["stop"], "pause", ["stopped", "start it"]),
        (["stop"], "checkpoints", ["stopped", "start it"]),
        (["stop"], "savepoints", ["stopped", "start it"]),
        (["delete"], "pause", ["being deleted", "wait"]),
        (["delete"], "start", ["being deleted", "wait"]),
        (["delete"], "tables/shop.orders/pause", ["being deleted", "wait"]),
    ],
)
async def test_what_makes_no_sense_after_the_accepted_commands_is_refused_and_not_queued(
    api: httpx.AsyncClient, shop: PipelineStore, before: list[str], call: str, words: list[str]
) -> None:
    for kind in before:
        shop.commands.add(kind, {}, by="x", now=1.0)
    found = (await api.post(f"{SHOP}/{call}")).json()
    assert found["status"] == 409
    assert all(word in json.dumps(found) for word in words), found
    assert shop.commands.newest() == len(before)


async def test_a_table_can_be_resumed_at_once_when_its_pause_is_done_though_the_status_is_older(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    registry.parts["enumerator"] |= {"commands": {"running": None, "done": 0}, "at": time.time()}
    tables = registry.parts["enumerator"]["tables"]
    (live, *_) = (name for name, table in tables.items() if table["phase"] == "live")
    assert (await api.post(f"{SHOP}/tables/{live}/pause")).status_code == 202
    finish(shop, 1)
    resuming = asyncio.create_task(api.post(f"{SHOP}/tables/{live}/resume"))
    await asyncio.sleep(0.1)
    tables[live] = {**tables[live], "phase": "paused"}
    registry.parts["enumerator"]["commands"]["done"] = 1
    assert (await resuming).status_code == 202


async def test_a_command_that_has_no_outcome_can_be_cancelled_and_says_what_it_waits_for(
    api: httpx.AsyncClient, registry: FakeRegistry, shop: PipelineStore
) -> None:
    number = (await api.post(f"{SHOP}/pause")).json()["number"]
    registry.parts["enumerator"]["commands"] = {
        "running": None, "done": 0, "apart": [number], "waiting": {str(number): "the Spark writer"},
    }  # fmt: skip
    registry.parts["enumerator"]["at"] = time.time()
    shown = (await api.get(f"{SHOP}/commands/{number}")).json()
    assert (shown["state"], shown["waiting_for"]) == ("running", "the Spark writer")
    cancel = (await api.post(f"{SHOP}/commands/{number}/cancel")).json()
    assert (cancel["kind"], cancel["arguments"]) == ("cancel_command", {"command": number})
    assert (await api.post(f"{SHOP}/commands/{cancel['number']}/cancel")).status_code == 409
    assert (await api.post(f"{SHOP}/commands/99/cancel")).status_code == 404
    shop.commands.put_outcome(Outcome(n=number, state="cancelled", at=1.0, orders=Orders(), cause="x", remedy="y"))
    assert (await api.get(f"{SHOP}/commands/{number}")).json()["state"] == "cancelled"
    assert (await api.post(f"{SHOP}/commands/{number}/cancel")).status_code == 409


@pytest.mark.parametrize("call", ["start", "read-again"])
async def test_a_pipeline_that_halted_can_be_started_or_read_again(
    api: httpx.AsyncClient, registry: FakeRegistry, call: str
) -> None:
    registry.parts["enumerator"]["halted"] = because("the binlog was purged")
    assert (await api.post(f"{SHOP}/{call}")).status_code == 202


async def test_every_table_of_a_pipeline_can_be_read_again_unless_it_is_being_deleted(api: httpx.AsyncClient) -> None:
    assert (await api.post(f"{SHOP}/read-again")).json()["kind"] == "read_again"
    await api.delete(SHOP)
    assert (await api.post(f"{SHOP}/read-again")).status_code == 409


@pytest.mark.parametrize(
    ("table", "call", "status"),
    [
        ("shop.orders", "pause", 202),
        ("shop.orders", "read-again", 202),
        ("shop.held", "retry", 202),
        ("shop.gone", "forget", 202),
        ("shop.new", "cancel", 202),
        ("shop.still", "resume", 202),
        ("shop.orders", "resume", 409),
        ("shop.orders", "retry", 409),
        ("shop.orders", "forget", 409),
        ("shop.orders", "cancel", 409),
        ("shop.gone", "read-again", 409),
        ("shop.still", "pause", 409),
        ("shop.nothing", "pause", 404),
        ("..%2F..%2Fetc", "pause", 404),
        ("x y", "retry", 404),
    ],
)
async def test_an_operation_on_a_table_depends_on_its_phase(
    api: httpx.AsyncClient, shop: PipelineStore, table: str, call: str, status: int
) -> None:
    answer = await api.post(f"{SHOP}/tables/{table}/{call}")
    assert shop.commands.newest() == (status == 202)
    if status != 202:
        problem(answer, status)
    else:
        assert answer.json()["arguments"] == {"table": table}


async def test_a_table_with_a_slash_in_its_name_is_addressed_by_its_encoded_name(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    names = ("shop.a/b", "shop.a%2Fb", "shop.a/pause", "shop./", "shop.`a.b`", "shop.ü/?#")
    for name in names:
        registry.parts["enumerator"]["tables"][name] = {"phase": "live", "generation": 1}
    for n, name in enumerate(names, 1):
        path = f"{SHOP}/tables/{quote(name, safe='')}"
        assert (await api.get(path)).json()["table"] == name
        assert (await api.get(f"{path}/splits")).json()["table"] == name
        assert (await api.post(f"{path}/pause")).json()["arguments"] == {"table": name}
        assert shop.commands.newest() == n
    found = problem(await api.post(f"{SHOP}/tables/shop.x%2fy/pause"), 404, "'shop.x/y'")
    assert found["instance"] == f"{SHOP}/tables/shop.x/y/pause"
    problem(await api.post(f"{SHOP}/tables/shop.a/b/pause"), 404, "no path")


async def test_a_table_with_dots_in_its_names_may_be_typed_without_backticks_if_it_is_the_only_one_meant(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    for name in ("my.`db.t`", "`a.b.c`.t", "a.`b.c.t`", "`my.db`.u"):
        registry.parts["enumerator"]["tables"][name] = {"phase": "live", "generation": 1}
    asked = ("my.db.t", "my.`db.t`", "`my`.`db.t`", "my.db.u", "`a.b.c`.t")
    found = [(await api.post(f"{SHOP}/tables/{quote(name)}/pause")).json()["arguments"]["table"] for name in asked]
    assert found == ["my.`db.t`", "my.`db.t`", "my.`db.t`", "`my.db`.u", "`a.b.c`.t"]
    assert (await api.get(f"{SHOP}/tables/my.db.t")).json()["table"] == "my.`db.t`"
    for path in ("/splits", "/schemas", ""):
        problem(await api.get(f"{SHOP}/tables/a.b.c.t{path}"), 404, "a.`b.c.t` or `a.b.c`.t")
    problem(await api.post(f"{SHOP}/tables/no.such.t/pause"), 404, "no.`such.t` or `no.such`.t")
    problem(await api.post(f"{SHOP}/tables", json={"table": "my.db.t"}), 422, "`my.db`.t")


async def test_without_a_status_the_newest_checkpoint_says_what_tables_there_are(
    api: httpx.AsyncClient, registry: FakeRegistry, shop: PipelineStore
) -> None:
    registry.parts = {}
    held = records.table(phase="quarantined", cause=because("c"))
    shop.put_entry(records.checkpoint(6, tables={"shop.orders": held}))
    assert (await api.get(SHOP)).json()["tables"] == {"quarantined": 1}
    assert (await api.post(f"{SHOP}/tables/shop.orders/retry")).status_code == 202
    problem(await api.post(f"{SHOP}/tables/shop.held/retry"), 404)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        (1, ["was swept"]),
        (2, ["its parts were swept"]),
        (5, ["inside a transaction"]),
        (99, ["not taken yet"]),
    ],
)
async def test_a_restore_to_a_checkpoint_that_is_not_there_is_refused(
    api: httpx.AsyncClient, shop: PipelineStore, checkpoint: int, words: list[str]
) -> None:
    problem(await api.post(f"{SHOP}/restore", json={"checkpoint": checkpoint}), 409, *words)
    assert shop.commands.newest() == 0


async def test_a_restore_and_savepoints(api: httpx.AsyncClient, shop: PipelineStore) -> None:
    assert (await api.post(f"{SHOP}/restore", json={"checkpoint": 3})).json()["arguments"] == {"checkpoint": 3}
    assert (await api.post(f"{SHOP}/savepoints")).json()["arguments"] == {"name": None}
    assert (await api.delete(f"{SHOP}/savepoints/4")).json()["arguments"] == {"checkpoint": 4}
    problem(await api.delete(f"{SHOP}/savepoints/3"), 404, "no savepoint 3")
    assert (await api.post(f"{SHOP}/stop", json={"savepoint": "end"})).json()["arguments"] == {"savepoint": "end"}
    assert [command.kind for command in shop.commands.list()] == ["restore", "savepoint", "delete_savepoint", "stop"]


async def test_limits_are_set_or_lifted_and_the_definitions_own_are_shown_without_a_leader(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    wanted = {"rows_per_second": 5.0, "bytes_per_second": None}
    assert (await api.put(f"{SHOP}/limits", json=wanted)).json()["arguments"] == wanted
    own = {**dict.fromkeys(wanted), "current": False, "as_of": None}
    assert (await api.get(f"{SHOP}/limits")).json() == own
    registry.parts["enumerator"] |= {"limits": wanted, "at": (now := time.time())}
    await until_current(api)
    assert (await api.get(f"{SHOP}/limits")).json() == {**wanted, "current": True, "as_of": now}


async def test_commands_come_newest_first_a_page_at_a_time(api: httpx.AsyncClient, shop: PipelineStore) -> None:
    for _ in range(5):
        shop.commands.add("checkpoint", {}, by="x", now=1.0)
    numbers, url = [], f"{SHOP}/commands?limit=2"
    while url:
        answer = await api.get(url)
        numbers += [view["number"] for view in answer.json()]
        url = answer.links.get("next", {}).get("url", "")
    assert numbers == [5, 4, 3, 2, 1]
    problem(await api.get(f"{SHOP}/commands/6"), 404)


# Definitions


async def test_secrets_are_shown_as_stars_and_stars_keep_them(api: httpx.AsyncClient, shop: PipelineStore) -> None:
    answer = await api.get(SHOP)
    assert "t0psecret" not in answer.text
    definition = answer.json()["definition"]
    assert definition["sink"]["catalog"]["token"] == "***"
    definition["checkpoint"]["interval_seconds"] = 3.0
    view = (await api.put(SHOP, json=definition)).json()
    assert view["arguments"]["definition"]["sink"]["catalog"]["token"] == "***"
    command = shop.commands.get(1)
    assert command is not None
    assert command.arguments["base"] == 1
    assert command.arguments["definition"]["sink"]["catalog"]["token"] == "t0psecret"
    assert command.arguments["definition"]["checkpoint"] == {"interval_seconds": 3.0}
    assert "t0psecret" not in (await api.get(f"{SHOP}/versions/1")).text


async def test_a_merge_patch_changes_what_it_names_and_null_gives_the_default(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    patch = {"snapshot": {"chunk_rows": 7}, "checkpoint": None, "tags": {"team": "a"}}
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = await api.patch(f"{SHOP}?note=smaller", content=json.dumps(patch), headers=headers)
    assert answer.status_code == 202
    command = shop.commands.get(1)
    assert command is not None
    definition = command.arguments["definition"]
    assert (definition["snapshot"]["chunk_rows"], definition["tags"]) == (7, {"team": "a"})
    assert (definition["checkpoint"]["interval_seconds"], command.arguments["note"]) == (10.0, "smaller")
    assert definition["tables"] == DEFINITION["tables"]


async def test_two_operators_at_once_the_second_is_refused(api: httpx.AsyncClient, shop: PipelineStore) -> None:
    tag = (await api.get(SHOP)).headers["etag"]
    patch = {"checkpoint": {"interval_seconds": 5.0}}
    first = await api.patch(SHOP, json=patch, headers={"If-Match": tag})
    assert first.status_code == 202
    found = problem(await api.patch(SHOP, json={"tags": {"a": "b"}}, headers={"If-Match": tag}), 412, "command 1")
    assert "wait" in found["remedy"]
    problem(await api.patch(SHOP, json={"tags": {"a": "b"}}), 409, "command 1")
    shop.put_definition(2, {**DEFINITION, "checkpoint": {"interval_seconds": 5.0}}, by="x", at=1.0, command=1)
    finish(shop, 1, definition=2)
    problem(await api.patch(SHOP, json={"tags": {"a": "b"}}, headers={"If-Match": tag}), 412, "version 2")
    problem(await api.delete(SHOP, headers={"If-Match": '"1"'}), 412, "version 2")
    tag = (await api.get(SHOP)).headers["etag"]
    assert (await api.patch(SHOP, json={"tags": {"a": "b"}}, headers={"If-Match": f"W/{tag}"})).status_code == 202


async def test_an_etag_changes_with_the_state_and_an_unchanged_pipeline_is_304(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    tag = (await api.get(SHOP)).headers["etag"]
    same = await api.get(SHOP, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    for known in (f"W/{tag}", f'"other", {tag}', "*"):  # a proxy that compresses weakens it
        assert (await api.get(SHOP, headers={"If-None-Match": known})).status_code == 304
    waiting = asyncio.create_task(api.get(f"{SHOP}?wait=30s", headers={"If-None-Match": tag}))
    await asyncio.sleep(0)
    registry.parts["enumerator"]["epoch"] = 2
    assert ((await waiting).json()["epoch"], (await waiting).headers["etag"] != tag) == (2, True)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"name": "other"}, "name"),
        ({"sink": {"warehouse": "/elsewhere"}}, "sink.warehouse"),
        ({"start": "latest"}, "start"),
        ({"values": {"tinyint1": "boolean"}}, "values.tinyint1"),
        ({"snapshot": {"chunks": "exact"}}, "snapshot.chunks"),
        ({"keyless": "append"}, "keyless"),
        ({"sink": {"own_namespace": "meta"}}, "sink.own_namespace"),
    ],
)
async def test_what_can_not_change_is_refused_and_the_remedy_is_a_new_pipeline(
    api: httpx.AsyncClient, shop: PipelineStore, patch: dict[str, Any], field: str
) -> None:
    found = problem(await api.patch(SHOP, json=patch), 409, "new pipeline")
    assert [each["field"] for each in found["errors"]] == [field]
    assert shop.commands.newest() == 0


async def test_the_same_definition_again_is_refused_since_nothing_would_change(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    problem(await api.put(SHOP, json=DEFINITION), 409, "the same")
    assert shop.commands.newest() == 0


async def test_versions_are_listed_and_an_old_one_can_be_brought_back(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    newer = {**DEFINITION, "checkpoint": {"interval_seconds": 5.0}}
    shop.put_definition(2, newer, by="anna", at=7.0, command=1, note="faster")
    shop.commands.add("define", {}, by="anna", now=7.0)
    finish(shop, 1, definition=2)
    versions = (await api.get(f"{SHOP}/versions")).json()
    made = [(each["version"], each["by"], each["note"]) for each in versions]
    assert made == [(1, None, None), (2, "anna", "faster")]
    assert (await api.get(f"{SHOP}/versions/2")).json()["definition"]["checkpoint"] == {"interval_seconds": 5.0}
    problem(await api.get(f"{SHOP}/versions/3"), 404)
    problem(await api.post(f"{SHOP}/versions/3/restore"), 404)
    problem(await api.post(f"{SHOP}/versions/2/restore"), 409, "the same")
    assert (await api.post(f"{SHOP}/versions/1/restore")).status_code == 202
    command = shop.commands.get(2)
    assert command is not None
    assert (command.arguments["base"], command.arguments["definition"]) == (2, DEFINITION)


async def test_lists_can_be_filtered_by_tags(api: httpx.AsyncClient, store: Store) -> None:
    tagged = {**DEFINITION, "name": "crm", "tags": {"team": "a", "stage": "test"}}
    store.pipeline("crm").define(tagged)
    assert [each["name"] for each in (await api.get("/v1/pipelines")).json()] == ["crm", "shop"]
    for query, names in (("tag=team:a", ["crm"]), ("tag=team:a&tag=stage:live", []), ("tag=team:b", [])):
        assert [each["name"] for each in (await api.get(f"/v1/pipelines?{query}")).json()] == names
    answer = await api.get("/v1/pipelines?limit=1")
    assert [each["name"] for each in (await api.get(answer.links["next"]["url"])).json()] == ["shop"]


async def test_a_table_is_removed_by_an_exclusion_or_by_leaving_its_name_out(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    registry.parts["enumerator"]["tables"]["crm.people"] = {"phase": "live", "generation": 1}
    view = (await api.delete(f"{SHOP}/tables/shop.orders")).json()
    assert view["arguments"]["definition"]["tables"] == ["shop.*", "crm.people", "!shop.orders"]
    finish(shop, 1)
    view = (await api.delete(f"{SHOP}/tables/crm.people")).json()
    assert view["arguments"]["definition"]["tables"] == ["shop.*"]
    problem(await api.delete(f"{SHOP}/tables/shop.nothing"), 404)


async def test_a_removed_table_whose_name_has_wildcards_takes_no_other_with_it(
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry
) -> None:
    """The glob that captures it is written as its name is. The leader excludes a cancelled one so too."""
    registry.parts["enumerator"]["tables"]["shop.a*"] = {"phase": "live", "generation": 1}
    shop.commands.add("define", {}, by="ann", now=1.0)
    shop.put_definition(2, {**DEFINITION, "tables": ["shop.a*", "crm.people"]}, by="ann", at=1.0, command=1)
    finish(shop, 1, definition=2)
    view = (await api.delete(f"{SHOP}/tables/{quote('shop.a*')}")).json()
    tables = view["arguments"]["definition"]["tables"]
    assert tables == ["shop.a*", "crm.people", "!shop.a[*]"]
    assert select_tables(tables, ["shop.a*", "shop.ab"]) == ("shop.ab",)
    cancelled = Command(n=1, kind="cancel_table", arguments={"table": "shop.a*"}, by="ann", at=1.0)
    assert asked_definition(cancelled, {"tables": ["shop.a*"]}) == {"tables": ["shop.a*", "!shop.a[*]"]}


async def test_deleting_takes_one_command_and_then_nothing_else_is_accepted(
    api: httpx.AsyncClient, shop: PipelineStore
) -> None:
    assert (await api.delete(f"{SHOP}?purge=true")).json()["arguments"] == {"purge": True}
    problem(await api.delete(SHOP), 409, "being deleted")
    problem(await api.patch(SHOP, json={"tags": {"a": "b"}}), 409, "being deleted")
    problem(await api.post(f"{SHOP}/restore", json={"checkpoint": 3}), 409, "being deleted")
    assert shop.commands.newest() == 1


# Bad input

VALID = {"name": "new", "source": {"host": "h", "user": "u"}, "tables": ["a.*"], "sink": {"warehouse": "/w"}}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"unknown": 1}, "unknown", ["unknown key"]),
        ({"chekpoint": {}}, "chekpoint", ["did you mean 'checkpoint'"]),
        ({"source": {"host": "h", "user": "u", "prot": 1}}, "source.prot", ["did you mean 'port'"]),
        ({"source": {"host": "h", "user": "u", "port": "3306"}}, "source.port", ["a whole number"]),
        ({"source": None}, "source", ["a mapping"]),
        ({"tables": "a.*"}, "tables", ["a list of globs"]),
        ({"tables": [1]}, "tables", ["not a glob"]),
        ({"name": "a/b"}, "name", ["lower case letters"]),
        ({"name": ".."}, "name", ["lower case letters"]),
        ({"name": "a.b"}, "name", ["lower case letters"]),
        ({"name": "x" * 64}, "name", ["at most 63"]),
        ({"name": 7}, "name", ["text"]),
        ({"sink": {"warehouse": "lake"}}, "sink.warehouse", ["relative", "absolute"]),
        ({"tags": {"a b": "c"}}, "tags", ["no tag"]),
        ({"checkpoint": {"interval_seconds": 1e9}}, "checkpoint.interval_seconds", ["less than or equal"]),
    ],
)
async def test_a_definition_with_a_fault_is_refused_at_the_field(
    api: httpx.AsyncClient, store: Store, change: dict[str, Any], field: str, words: list[str]
) -> None:
    for query in ("", "?dry_run=true"):
        found = problem(await api.post(f"/v1/pipelines{query}", json={**VALID, **change}), 422, *words)
        assert field in [each["field"] for each in found["errors"]]
    assert store.pipelines() == ["shop"]


BOMB = b"".join(b"%c: &%c [%s]\n" % (n + 1, n + 1, b", ".join([b"*%c" % n] * 9)) for n in range(ord("a"), ord("y")))
"""Each line has the line before nine times: 600 bytes are 9 to the power of 24 values."""


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        ("application/json", b"{", 400, ["not JSON"]),
        ("application/json", b"", 400, ["not JSON"]),
        ("application/json", b"\xff\xfe", 400, ["not JSON"]),
        ("application/json", b"[" * 100_000, 400, ["not JSON"]),
        ("application/json", b'{"name": 1e999}', 422, ["can't hold"]),
        ("application/json", b'{"name": NaN}', 400, ["NaN"]),
        ("application/json", b'{"name": "\\ud800"}', 422, ["can't hold"]),
        ("application/json", b'{"name": "a", "name": "b"}', 400, ["given twice"]),
        ("application/json", b"[]", 422, ["no mapping"]),
        ("application/json", b'{"x": ' * 200 + b"1" + b"}" * 200, 422, ["levels deep"]),
        ("application/yaml", b"name: [", 400, ["not YAML"]),
        ("application/yaml", b"a: 1\na: 2\n", 400, ["given twice"]),
        ("application/yaml", b"&a [*a]", 422, ["alias"]),
        ("application/yaml", b"a: &a {b: *a}", 422, ["alias"]),
        ("application/yaml", b"a: &a [x, x]\n" + BOMB, 422, ["alias"]),
        ("application/yaml", b"1: x", 422, ["the key '1' is no text"]),
        ("application/yaml", b"a: !!python/object:os.system {}", 400, ["not YAML"]),
        ("application/yaml", b"name: \x00", 400, ["not YAML"]),
        ("text/plain", b"name: x", 415, ["text/plain"]),
        ("application/x-www-form-urlencoded", b"name=x", 415, []),
    ],
)
async def test_a_body_that_is_no_definition_is_refused(
    api: httpx.AsyncClient, store: Store, kind: str, body: bytes, status: int, words: list[str]
) -> None:
    headers = {"Content-Type": kind}
    problem(await api.post("/v1/pipelines", content=body, headers=headers), status, *words)
    if kind == "application/json":
        problem(await api.put(SHOP, content=body, headers=headers), status)
        problem(await api.post(f"{SHOP}/plan", content=body, headers=headers), status)
    assert store.pipelines() == ["shop"]
    assert store.pipeline("shop").commands.newest() == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/restore", {"checkpoint": "4"}, 422, ["checkpoint"]),
        ("POST", "/restore", {"checkpoint": 0}, 422, ["checkpoint"]),
        ("POST", "/restore", {"checkpoint": 10**30}, 422, ["checkpoint"]),
        ("POST", "/restore", {"checkpoint": 4, "force": True}, 422, ["force", "unknown"]),
        ("POST", "/restore", None, 422, ["body", "missing"]),
        ("POST", "/restore", [], 422, ["no JSON object"]),
        ("POST", "/tables", {"table": "x"}, 422, ["not a glob"]),
        ("POST", "/savepoints", {"name": "../x"}, 422, ["name"]),
        ("POST", "/savepoints", {"name": ""}, 422, ["name"]),
        ("POST", "/stop", {"savepoint": "a/b"}, 422, ["savepoint"]),
        ("PUT", "/limits", {"rows_per_second": -1}, 422, ["rows_per_second"]),
        ("PUT", "/limits", {"rows_per_second": "fast"}, 422, ["rows_per_second"]),
        ("POST", "/tables", {"table": 1}, 422, ["table"]),
        ("POST", "/tables/shop.held/lake", {"choice": "both"}, 422, ["choice"]),
        ("DELETE", "/savepoints/x", None, 422, ["number"]),
        ("GET", "/commands/0", None, 422, ["number"]),
        ("GET", "/commands/99999999999999999999", None, 422, ["number"]),
        ("GET", "/commands?cursor=x", None, 422, ["cursor"]),
        ("GET", "/versions/-1", None, 422, ["version"]),
        ("POST", "/nothing", None, 404, ["no path"]),
        ("DELETE", "/", None, 404, ["no path"]),
    ],
)
async def test_a_request_with_a_wrong_part_is_refused_and_named(
    api: httpx.AsyncClient,
    shop: PipelineStore,
    method: str,
    path: str,
    body: object,
    status: int,
    words: list[str],
) -> None:
    keywords: dict[str, Any] = {} if body is None else {"json": body}
    problem(await api.request(method, f"{SHOP}{path}", **keywords), status, *words)
    assert shop.commands.newest() == 0


@pytest.mark.parametrize("path", ["/v1/tokens", f"{SHOP}/restore", f"{SHOP}/stop"])
async def test_a_body_of_another_type_is_415(api: httpx.AsyncClient, shop: PipelineStore, path: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "application/yaml", "text/plain"):
        problem(await api.post(path, content=b"a: 1", headers={"Content-Type": kind}), 415, kind)
    assert shop.commands.newest() == 0


async def test_of_many_faults_the_first_hundred_are_told(api: httpx.AsyncClient) -> None:
    many = {f"k{n}": n for n in range(2000)}
    answer = await api.post("/v1/pipelines", json=many)
    problem(answer, 422, "2004 faults")
    assert len(answer.json()["errors"]) == 100
    assert len((await api.post("/v1/tokens", json=many)).json()["errors"]) == 100


@pytest.mark.parametrize("name", ["..", "a%2Fb", "a.b", "x y", "%00", "-", "a" * 300, "%F0%9F%90%AC"])
async def test_a_name_that_no_pipeline_can_have_is_404(api: httpx.AsyncClient, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("GET", "/versions/1")):
        answer = await api.request(method, f"/v1/pipelines/{name}{path}")
        assert answer.status_code in (404, 405, 422), answer.text
        assert answer.json()["detail"]


async def test_a_body_that_is_too_long_is_413_with_or_without_its_length(
    api: httpx.AsyncClient, store: Store
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * (BODY_BYTES // 16)

    for path in ("/v1/pipelines", f"{SHOP}/restore"):
        long = {"content": b" " * (BODY_BYTES + 1), "headers": {"Content-Type": "application/json"}}
        problem(await api.post(path, **cast(Any, long)), 413, "CUTLINE_API_BODY_BYTES")
        chunked = {"content": pieces(), "headers": {"Content-Type": "application/json"}}
        problem(await api.post(path, **cast(Any, chunked)), 413, "CUTLINE_API_BODY_BYTES")
    assert store.pipelines() == ["shop"]


async def test_a_request_keeps_its_own_id_if_it_is_a_plain_one(api: httpx.AsyncClient) -> None:
    assert (await api.get(SHOP, headers={"X-Request-Id": "abc-1"})).headers["x-request-id"] == "abc-1"
    odd = (await api.get(SHOP, headers={"X-Request-Id": "a b\tc"})).headers["x-request-id"]
    assert odd != "a b\tc"
    assert odd


async def test_the_json_schema_of_a_pipeline_has_meanings_and_defaults(api: httpx.AsyncClient) -> None:
    schema = (await api.get("/v1/schema")).json()
    interval = schema["$defs"]["CheckpointConfig"]["properties"]["interval_seconds"]
    assert (interval["default"], "checkpoint" in interval["description"]) == (10.0, True)


async def test_the_description_names_every_error_body_and_role(api: httpx.AsyncClient) -> None:
    described = (await api.get("/openapi.json")).json()
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    identities = [each["operationId"] for each in operations]
    assert len(set(identities)) == len(identities)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1/"):
                assert {"401", "403", "503"} <= set(operation["responses"]), operation
                assert (method == "get") or operation["x-cutline-role"] in ("operator", "admin"), operation
    for operation in operations:
        bodies = [*operation["responses"].values(), operation.get("requestBody") or {}]
        for kind, content in (item for body in bodies for item in (body.get("content") or {}).items()):
            assert "example" in content or kind.startswith("text/"), operation["operationId"]
        assert operation["tags"]
    command = described["paths"][f"{SHOP.replace('shop', '{pipeline}')}/savepoints"]["post"]
    assert command["requestBody"]["content"]["application/json"]["example"] == {"name": "before-migration"}
    accepted = command["responses"]["202"]["content"]["application/json"]["example"]
    assert (CommandView.model_validate(accepted).number, accepted["by"], accepted["cause"]) == (7, "anna", None)
    body = described["paths"]["/v1/pipelines"]["post"]["requestBody"]["content"]
    assert yaml.safe_dump(body["application/yaml"]["example"])
    assert {tag["name"] for tag in described["tags"]} >= {tag for each in operations for tag in each["tags"]}
