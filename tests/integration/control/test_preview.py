"""Rules are analysed by a Spark writer that the API reaches through Redis; rows are shown without what is masked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cutline.common.mask_key import MaskKey
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.redis import connect
from cutline.common.store.access import Token
from cutline.common.store.store import Store
from cutline.services.control.api.access import Access, new_token
from cutline.services.control.app import build
from cutline.spark_writer import previewing
from tests.support.databases import Database, MariaDB
from tests.support.shop_api import problem

KEY = "a key of at least 16 bytes"
SECRET = "Lovelace"
RULE = {"tables": "*.people", "select": ["id", "family", "salary * 12 AS yearly"], "mask": ["family"]}


@asynccontextmanager
async def spark_writer(redis: Any) -> AsyncIterator[None]:
    """A Spark writer that answers previews, by its presence and its task, on the tests' Spark."""
    registry = Registry(redis)
    present = Service(incarnation="spark_writer-1", role="spark_writer", host="h", pid=1, started_at=time.time())

    async def announce() -> None:
        while True:
            await registry.announce_presence(present)
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(announce()), asyncio.create_task(previewing.serve(redis))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await registry.withdraw_presence(present.incarnation)


def definition_of(mariadb: MariaDB, database: str, folder: Path) -> dict[str, Any]:
    """A pipeline of a table with three rows, whose rule masks a column and leaves out a row, and a derived table."""
    mariadb.execute(
        "CREATE TABLE people (id INT PRIMARY KEY, family VARCHAR(40), salary DECIMAL(10, 2), note TEXT)",
        f"INSERT INTO people VALUES (1, '{SECRET}', 4200, 'n'), (2, 'Turing', 100, 'n'), (3, NULL, NULL, 'n')",
        database=database,
    )
    source = {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password_env": "SHOP_PASSWORD"}
    return {
        "name": "shop",
        "source": source,
        "tables": [f"{database}.people"],
        "sink": {"warehouse": str(folder / "lake")},
        "masking": {"key_env": "SHOP_MASK_KEY"},
        "table_options": [{**RULE, "where": "salary IS NULL OR salary > 1000"}],
        "derived": [{"name": "d.sums", "sql": f"SELECT sum(yearly) AS all FROM {database}.people"}],
    }


def viewer_of(store: Store) -> dict[str, str]:
    """The headers of a viewer's requests."""
    text, token_id, sha256 = new_token()
    about = {"name": "v", "role": "viewer", "by": "test"}
    store.access.put_token(Token(id=token_id, sha256=sha256, at=time.time(), expires_at=None, **about))
    return {"Authorization": f"Bearer {text}"}


def is_shown(answer: httpx.Response, table: str) -> None:
    """The lake's columns, and the rows before and after, with hashes in the place of what is masked."""
    shown = answer.json()
    assert (shown["analysed"], shown["note"], shown["refusals"]) == (True, None, [])
    columns = {each["table"]: [(c["name"], c["type"]) for c in each["columns"]] for each in shown["tables"]}
    assert columns[table] == [("id", "int"), ("family", "string"), ("yearly", "decimal(13, 2)")]
    assert columns["d.sums"][0][0] == "all"
    hashed = MaskKey.of_text(KEY).hashes([SECRET.encode()])
    rows = shown["rows"]
    assert (rows["columns"], rows["masked"], rows["own_key"]) == (["id", "family", "salary"], ["family"], False)
    assert rows["rows"][0] == {
        "before": ["1", hashed, "4200.00"], "after": ["1", hashed, "50400.00"], "failure": None,
    }  # fmt: skip
    assert [row["after"] is None for row in rows["rows"]] == [False, True, False]
    assert SECRET not in answer.text


async def is_refused(api: httpx.AsyncClient, wrong: dict[str, Any], table: str) -> None:
    """In the preview and in the plan a wrong condition has its place; a pipeline with it is not made."""
    shown = (await api.post("/v1/plan/preview", json=wrong)).json()
    (refusal,) = [each for each in shown["refusals"] if each["field"] == "table_options[0].where"]
    assert "`salery` cannot be resolved. Did you mean one of the following? [`salary`" in refusal["detail"]
    planned = (await api.post("/v1/pipelines?dry_run", json=wrong)).json()
    (finding,) = [each for each in planned["findings"] if each["check"] == "rules"]
    assert (planned["possible"], finding["place"], finding["table"]) == (False, "table_options[0].where", table)
    found = problem(await api.post("/v1/pipelines", json=wrong), 422, "salery")
    assert found["errors"][0]["field"] == "table_options[0].where"


async def changes(api: httpx.AsyncClient, wrong: dict[str, Any], mariadb: MariaDB, database: str) -> None:
    """The pipeline takes no wrong rule; a rule that broke since hinders no other change; its correction is fine."""
    patch = {"table_options": wrong["table_options"]}
    problem(await api.patch("/v1/pipelines/shop", json=patch), 422, "salery")
    mariadb.execute("ALTER TABLE people RENAME COLUMN salary TO pay", database=database)
    planned = (await api.post("/v1/pipelines/shop/plan", json={"tags": {"team": "a"}})).json()
    assert planned["possible"]
    assert "table" in [each["check"] for each in planned["findings"] if each["place"]]
    fixed = {"name": "shop", "table_options": [{**RULE, "select": ["id", "pay"]}], "derived": []}
    shown = (await api.post("/v1/plan/preview", json=fixed)).json()
    assert shown["refusals"] == []


async def test_a_rule_is_shown_on_real_rows_and_a_wrong_one_is_refused_before_anything_is_written(
    mariadb: MariaDB,
    fresh_database: Callable[[Database], str],
    redis_url: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. Without a Spark writer nothing is analysed, and that is no error; a viewer gets no rows.
    2. With one the rows before and after are shown: no clear value of a masked column is in them, nor in Redis.
    3. A wrong rule has its place, in the preview, in the plan; and creating it is refused.
    4. A new rule of a pipeline is refused just so, and another change of it is not, though a rule is broken.
    """
    monkeypatch.setenv("SHOP_PASSWORD", mariadb.password)
    monkeypatch.setenv("SHOP_MASK_KEY", KEY)
    database = fresh_database(mariadb)
    table, definition = f"{database}.people", definition_of(mariadb, database, tmp_path)
    wrong = {**definition, "table_options": [{**RULE, "where": "salery > 1000"}]}
    store, redis = Store(f"file://{tmp_path}/store"), connect(redis_url)
    viewer = viewer_of(store)
    app = build(Registry(redis), store, Access(store.access, open_here=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as api:
        shown = (await api.post(f"/v1/plan/preview?table={table}", json=definition)).json()
        assert (shown["analysed"], shown["note"]) == (False, "not analysed: no Spark writer is alive")
        assert shown["rows"]["rows"][0]["after"] is None
        planned = (await api.post("/v1/pipelines?dry_run", json=wrong)).json()
        assert planned["possible"]
        problem(await api.post(f"/v1/plan/preview?table={table}", json=definition, headers=viewer), 403, "admin")

        async with spark_writer(redis):
            kept: list[bytes] = []
            seen = asyncio.create_task(watched(redis, kept))
            answer = await api.post(f"/v1/plan/preview?table={table}", json=definition)
            assert answer.status_code == 200, answer.text
            seen.cancel()
            is_shown(answer, table)
            assert kept
            assert not any(SECRET.encode() in body or SECRET.encode().hex().encode() in body for body in kept)

            await is_refused(api, wrong, table)
            assert store.pipelines() == []
            assert (await api.post("/v1/pipelines", json=definition)).status_code == 201
            await changes(api, wrong, mariadb, database)
            assert not [key async for key in redis.scan_iter("cutline:preview*")]
    await redis.aclose()


async def watched(redis: Any, kept: list[bytes]) -> None:
    """Keep what Redis has of previews while they are under way."""
    while True:
        async for key in redis.scan_iter("cutline:preview:*"):
            if (body := await redis.get(key)) is not None:
                kept.append(body)
        await asyncio.sleep(0.02)
