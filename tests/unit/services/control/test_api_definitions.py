"""Definitions through the API: secrets, patches, versions, tags, tables that leave, a deletion."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from cutline.common.config.globs import select_tables
from cutline.common.store.commands import Command
from cutline.common.store.store import PipelineStore, Store
from cutline.services.enumerator.commanding import asked_definition
from tests.support.control_api import FakeRegistry
from tests.support.shop_api import DEFINITION, SHOP, api, finish, problem, registry, shop, store

__all__ = ["api", "registry", "shop", "store"]  # the fixtures


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
