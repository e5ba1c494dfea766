"""The made-up control service answers in the shapes of the real one, so the dashboard's tests hold for that too."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from cutline.services.control.app import ROUTES
from tests.browser.made_up import Stage
from tests.browser.stage import app

NAMES = {
    "pipeline": "shop", "table": "shop.page_views", "checkpoint": "21", "number": "1", "version": "1",
    "incarnation": "reader-d07339601693",
}  # fmt: skip
SOURCE = {"host": "db", "port": 3306, "user": "cdc", "password_env": "SHOP_PASSWORD"}
BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/pipelines/{pipeline}/plan": ({"tags": {}},),
    "/v1/source/test": ({"source": SOURCE}, {"source": {**SOURCE, "host": "wrong"}}),
    "/v1/source/schemas": ({"source": SOURCE},),
    "/v1/source/tables": ({"source": SOURCE, "tables": ["shop.*"]}, {"source": SOURCE, "tables": ["erp.*"]}),
}
"""Of each POST that only asks: what the dashboard may send."""


def asked() -> list[tuple[str, str, APIRoute, Any]]:
    """Each GET of the API with an address that the made-up service knows, and each POST that only asks."""
    served = {re.sub(r"\{\w+\}", "{}", route.path) for route in app(Stage()).routes if isinstance(route, APIRoute)}
    found: list[tuple[str, str, APIRoute, Any]] = []
    for module in ROUTES:
        for route in module.routes.routes:
            if not isinstance(route, APIRoute):
                continue
            if "GET" in route.methods and re.sub(r"\{\w+\}", "{}", route.path) in served:
                found.append(("GET", route.path.format(**NAMES), route, None))
            elif route.path in BODIES or route.path.startswith("/v1/source/"):
                address = route.path.format(**NAMES)
                found += [("POST", address, route, body) for body in BODIES[route.path]]
    return found


@pytest.mark.parametrize(
    ("method", "address", "route", "body"), asked(), ids=lambda value: value if isinstance(value, str) else ""
)
async def test_an_answer_has_the_fields_of_the_api_s_own(method: str, address: str, route: APIRoute, body: Any) -> None:
    transport = httpx.ASGITransport(app(Stage()))
    headers = {"Authorization": "Bearer admin-token"}
    async with httpx.AsyncClient(transport=transport, base_url="http://stage", headers=headers) as client:
        content = (await client.request(method, address, json=body)).raise_for_status().json()
    assert content
    adapter = TypeAdapter[Any](route.response_model)
    assert beyond(content, adapter.dump_python(adapter.validate_python(content), mode="json", by_alias=True)) == set()


def beyond(made_up: Any, real: Any) -> set[str]:
    """The fields of an answer that the API's own would not have."""
    if isinstance(made_up, dict):
        rest = {key for key in made_up if key not in real}
        return rest.union(*(beyond(value, real[key]) for key, value in made_up.items() if key in real))
    if isinstance(made_up, list):
        return set().union(*(beyond(*pair) for pair in zip(made_up, real, strict=True)))
    return set()
