"""The API's description: what FastAPI finds out by itself, and the errors, bodies and tags that it can't know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from cutline.common.config.pipeline import PipelineConfig
from cutline.services.control.api.definitions import MERGE_PATCH, YAML
from cutline.services.control.api.problems import MEDIA_TYPE, Problem
from cutline.services.control.api.samples import sample

TAGS = [
    {"name": "pipelines", "description": "definitions with their versions, and the state of each pipeline"},
    {"name": "operations", "description": "live operations on a pipeline; each becomes a command"},
    {"name": "tables", "description": "the captured tables, and the operations on one of them"},
    {"name": "checkpoints", "description": "checkpoints and savepoints"},
    {"name": "channels", "description": "the channels between the members of a mesh"},
    {"name": "cuts", "description": "what the lake shows of each table"},
    {"name": "events", "description": "what happened, as a list and as a stream"},
    {"name": "conditions", "description": "what a person must act on, and who has acknowledged it"},
    {"name": "commands", "description": "what was asked for, and what became of it"},
    {"name": "source", "description": "help for a form of a new pipeline"},
    {"name": "services", "description": "the processes"},
    {"name": "access", "description": "tokens, and the log of all changes"},
    {"name": "metrics", "description": "numbers for Prometheus"},
    {"name": "health", "description": "open to everyone"},
]
DESCRIPTION = """Errors are `application/problem+json` with cause and remedy. A call that changes something is a
*command*: it is in the store before the answer (202), and `GET .../commands/{number}?wait=30s` waits for its end. With
an `Idempotency-Key` a call can be repeated. Lists have pages by `limit` and `cursor` (header `Link`)."""

_SENTENCES = {
    400: "The body has broken syntax.",
    401: "There is no valid token.",
    403: "The role does not allow it.",
    404: "There is no such thing.",
    409: "It makes no sense now, so nothing was done.",
    412: "The definition is another version than If-Match names.",
    413: "The body is too long.",
    415: "The body is of another type.",
    422: "A part of the request is wrong.",
    429: "Too many wrong tokens came from this address.",
    503: "Redis, the store or the source does not answer.",
}
_REMEDIES = {
    400: "correct its syntax",
    401: "send the header Authorization: Bearer TOKEN",
    403: "use a token with the role operator, which an admin makes by POST /v1/tokens",
    404: "GET /v1/pipelines lists them",
    409: "there is nothing to do",
    412: "look at the newest version, and make your change there",
    413: "send a shorter one, or raise CUTLINE_API_BODY_BYTES",
    415: "send application/json",
    422: "correct it",
    429: "wait 30 s, and send a valid token",
    503: "try again in a few seconds",
}
_EXAMPLE = {
    "name": "shop",
    "source": {"host": "db", "user": "cutline", "password_env": "SHOP_PASSWORD"},
    "tables": ["shop.*"],
    "sink": {"warehouse": "s3://lake/shop"},
}
_DEFINITION = {"$ref": "#/components/schemas/PipelineConfig"}
_PATCH = {"type": "object", "description": "the settings to change; null: the default again"}
_BODIES: dict[str, tuple[dict[str, dict[str, Any]], Any]] = {
    "create_pipeline": ({"application/json": _DEFINITION, YAML[0]: _DEFINITION}, _EXAMPLE),
    "replace_pipeline": ({"application/json": _DEFINITION, YAML[0]: _DEFINITION}, _EXAMPLE),
    "patch_pipeline": ({MERGE_PATCH: _PATCH, "application/json": _PATCH}, {"checkpoint": {"interval_seconds": 5}}),
    "plan_pipeline": ({"application/json": _DEFINITION, MERGE_PATCH: _PATCH}, {"tables": ["shop.*", "crm.*"]}),
}
"""The bodies that a handler reads by itself, by operation id, with an example."""


def describe(app: FastAPI) -> None:
    """Have the application describe itself completely."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(made())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def operation_id(route: APIRoute) -> str:
    """The operation id of a route that names none: the name of its function."""
    return route.name


def product_version() -> str:
    """The version of Cutline, `0` where it is not installed as a package."""
    try:
        return version("cutline")
    except PackageNotFoundError:
        return "0"


def _completed(description: dict[str, Any]) -> dict[str, Any]:
    schemas = description.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    template = "#/components/schemas/{model}"
    for model in (Problem, PipelineConfig):
        known = model.model_json_schema(ref_template=template)
        for name, schema in known.pop("$defs", {}).items():
            schemas.setdefault(name, schema)
        schemas[model.__name__] = known
    for path, method, operation in _operations(description):
        _complete(path, method, operation)
        _exemplify(path, operation, schemas)
    return description


def _exemplify(path: str, operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Give an example to each body and each answer that has none."""
    for content in (operation.get("requestBody") or {}).get("content", {}).values():
        if "example" not in content:
            content["example"] = sample(content["schema"], schemas)
    for status, response in operation["responses"].items():
        for kind, content in (response.get("content") or {}).items():
            if kind == MEDIA_TYPE:
                content["example"] = _problem(int(status), path, response["description"])
            elif kind == "application/json" and "example" not in content:
                content["example"] = sample(content["schema"], schemas)


def _problem(status: int, path: str, cause: str) -> dict[str, Any]:
    title = HTTPStatus(status).phrase
    return Problem(
        type=f"urn:cutline:problem:{title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=cause[0].lower() + cause[1:].rstrip("."),
        remedy=_REMEDIES[status],
        instance=path.replace("{pipeline}", "shop").replace("{table}", "shop.orders"),
        request_id="5f0c1d2e9a7b4c3d",
    ).model_dump()


def _operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    if (body := _BODIES.get(operation["operationId"])) is not None:
        content, example = body
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema, "example": example} for kind, schema in content.items()},
        }
    responses = operation["responses"]
    if "security" not in operation:
        return
    for status in sorted(_statuses(path, method, operation)):
        responses[str(status)] = {
            "description": _SENTENCES[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }


def _statuses(path: str, method: str, operation: dict[str, Any]) -> set[int]:
    found = {401, 403, 429, 503}
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    if "{" in path:
        found.add(404)
    if names:
        found.add(422)
    if method != "get":
        found |= {400, 413}
    if "requestBody" in operation:
        found |= {415, 422}
    if method != "get" and "/pipelines" in path:
        found.add(409)
    if "If-Match" in names:
        found |= {412, 422}
    return found
