"""Requests that are refused, and the description of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
import yaml

from cutline.common.store.store import PipelineStore, Store
from cutline.services.control.api.gate import BODY_BYTES
from cutline.services.control.api.models import CommandView
from tests.support.shop_api import SHOP, api, problem, registry, shop, store

__all__ = ["api", "registry", "shop", "store"]  # the fixtures


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
        ("application/yaml", b"1: x", 422, ["1 must have a string as its key"]),
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
