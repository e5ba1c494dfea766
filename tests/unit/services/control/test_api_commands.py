"""Operations on a pipeline through the API, in process: real store, a registry with made-up answers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from urllib.parse import quote

import httpx
import pytest

from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.store import PipelineStore
from tests.support import records
from tests.support.causes import because
from tests.support.control_api import FakeRegistry
from tests.support.shop_api import SHOP, api, finish, problem, registry, shop, store

__all__ = ["api", "registry", "shop", "store"]  # the fixtures


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


async def test_without_redis_a_pipeline_is_what_the_store_knows_and_what_needs_redis_is_503(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.up = False
    found = (await api.get(SHOP)).json()
    assert (found["name"], found["current"], found["mode"]) == ("shop", False, "running")
    (condition,) = found["conditions"]
    assert (condition["name"], condition["pipeline"]) == ("CutlineRedisAway", None)
    assert "Redis did not answer" in condition["cause"]
    assert [each["name"] for each in (await api.get("/v1/pipelines")).json()] == ["shop"]
    assert (await api.get(f"{SHOP}/tables")).status_code == 200
    found = problem(await api.get("/v1/services"), 503, "Redis did not answer")
    assert "try again" in found["remedy"]


async def test_a_condition_is_acknowledged_by_an_operator_until_a_time_and_that_is_taken_back(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    """1. Redis is away. 2. Wrong requests are refused. 3. It is acknowledged, listed as that, and told in the history.
    4. It is taken back."""
    registry.up = False
    (condition,) = (await api.get("/v1/conditions")).json()
    path = f"/v1/conditions/{condition['id']}/acknowledgement"
    assert condition["acknowledged"] is None
    problem(await api.put(path, json={"note": "known", "until": 5.0}), 422, "until", "later")
    problem(await api.put(path, json={"note": ""}), 422, "note")
    problem(await api.put("/v1/conditions/abc/acknowledgement", json={"note": "x"}), 404, "'abc'", "/v1/conditions")
    until = time.time() + 3600
    given = (await api.put(path, json={"note": "maintenance", "until": until})).json()["acknowledged"]
    assert (given["note"], given["until"]) == ("maintenance", until)
    (listed,) = (await api.get(f"{SHOP}/conditions")).json()
    assert listed["acknowledged"] == given
    (event,) = (await api.get(f"{SHOP}/events?kind=condition")).json()
    assert (event["condition"], event["severity"], event["ended"]) == ("CutlineRedisAway", "critical", False)
    assert "maintenance" in event["text"]
    assert (await api.delete(path)).json()["acknowledged"] is None
    assert (await api.delete(path)).status_code == 200


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
    api: httpx.AsyncClient, shop: PipelineStore, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.parts["enumerator"] |= {"commands": {"running": None, "done": 0}, "at": time.time()}
    tables = registry.parts["enumerator"]["tables"]
    (live, *_) = (name for name, table in tables.items() if table["phase"] == "live")
    assert (await api.post(f"{SHOP}/tables/{live}/pause")).status_code == 202
    finish(shop, 1)
    looks: list[str] = []
    status = registry.status

    async def look(pipeline: str) -> PipelineStatus:
        looks.append(pipeline)
        return await status(pipeline)

    monkeypatch.setattr(registry, "status", look)
    resuming = asyncio.create_task(api.post(f"{SHOP}/tables/{live}/resume"))
    await until(lambda: looks)
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
