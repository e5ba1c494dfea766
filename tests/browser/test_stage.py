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


def asked() -> list[tuple[str, APIRoute]]:
    """Each GET of the API with an address that the made-up service knows."""
    served = {re.sub(r"\{\w+\}", "{}", route.path) for route in app(Stage()).routes if isinstance(route, APIRoute)}
    found = []
    for module in ROUTES:
        for route in module.routes.routes:
            if not isinstance(route, APIRoute) or "GET" not in route.methods:
                continue
            if re.sub(r"\{\w+\}", "{}", route.path) in served:
                found.append((re.sub(r"\{(\w+)\}", lambda part: NAMES[part[1]], route.path), route))
    return found


@pytest.mark.parametrize(("address", "route"), asked(), ids=lambda value: value if isinstance(value, str) else "")
async def test_an_answer_has_the_fields_of_the_api_s_own(address: str, route: APIRoute) -> None:
    transport = httpx.ASGITransport(app(Stage()))
    headers = {"Authorization": "Bearer admin-token"}
    async with httpx.AsyncClient(transport=transport, base_url="http://stage", headers=headers) as client:
        content = (await client.get(address)).raise_for_status().json()
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
