"""What the handlers of requests take: the open registry and store, the pipeline of the path, and who asks."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BeforeValidator
from starlette.routing import Match
from starlette.types import Scope

from cutline.common.commands.rules import OPERATIONS
from cutline.common.config.secrets import Secrets
from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import Registry
from cutline.common.store.store import PipelineStore, Store
from cutline.common.table_id import meant, split_table_id
from cutline.services.control.api.access import Access
from cutline.services.control.api.audit_log import AuditLog
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.roles import Caller, Role, need
from cutline.services.control.api.source_threads import SourceThreads
from cutline.services.control.standing import Standing
from cutline.services.control.store_calls import in_store
from cutline.services.control.table_rows import TableRows
from cutline.services.control.watch import Watches


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What all requests share; `app.state.control`."""

    registry: Registry
    store: Store
    access: Access
    audit: AuditLog
    sources: SourceThreads
    metrics_tables: int
    secrets: Secrets
    watches: Watches = field(init=False)
    standing: Standing = field(init=False)
    rows: TableRows = field(default_factory=TableRows)
    streams: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    """How many streams of events are open, by the means and id of their callers."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service was asked to end: streams of events then end."""

    def __post_init__(self) -> None:
        """Watch nothing yet."""
        object.__setattr__(self, "watches", Watches(self.registry, self.store))
        object.__setattr__(self, "standing", Standing(self.registry, self.store))


async def _control(request: Request) -> Control:
    found: Control = request.app.state.control
    return found


async def _registry(request: Request) -> Registry:
    found: Registry = request.app.state.control.registry
    return found


async def _store(request: Request) -> Store:
    found: Store = request.app.state.control.store
    return found


async def _caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


PipelineName = Annotated[str, Path(description="the pipeline's name", examples=["shop"], max_length=255)]
CheckpointNumber = Annotated[int, Path(ge=1, le=10**10 - 1, description="number of the checkpoint", examples=[42])]
Flag = Annotated[bool, BeforeValidator(lambda given: given == "" or given)]
"""A switch in the query: also its name alone turns it on, as in `?dry_run`."""


async def _known(request: Request, pipeline: PipelineName) -> PipelineStore:
    store: Store = request.app.state.control.store
    try:
        found = store.pipeline(pipeline)
    except ConfigError as error:
        raise refused(404, error) from error
    if await in_store(found.definition) is None:
        request.app.state.control.watches.forget(pipeline)
        raise Refused(404, f"the store has no pipeline {pipeline!r}", "GET /v1/pipelines lists them")
    return found


Shared = Annotated[Control, Depends(_control)]
RegistryNow = Annotated[Registry, Depends(_registry)]
StoreNow = Annotated[Store, Depends(_store)]
CallerNow = Annotated[Caller, Depends(_caller)]
Known = Annotated[PipelineStore, Depends(_known)]
"""The pipeline of the path; 404 if it is not defined."""
_TABLE = Path(
    description="the table, as schema.table; a name with a dot is in backticks, as in `my.db`.t",
    examples=["shop.orders"],
    max_length=300,
)


async def _table(found: Known, shared: Shared, table: Annotated[str, _TABLE]) -> str:
    with suppress(ConfigError):
        split_table_id(table)
        return table
    try:
        return meant(table, (await shared.watches.find(found).status()).tables)
    except ConfigError as error:
        raise refused(404, error) from error


TableName = Annotated[str, Depends(_table)]
"""The id of the table of the path; 404 if it is not clear which one is meant."""

bearer = HTTPBearer(auto_error=False, description="a token of `POST /v1/tokens`, CUTLINE_API_TOKEN, or a JWT by OIDC")
_ROLE = "x-cutline-role"


_SLASH = "\U0010ffff"  # in no name: the sources have no character beyond U+FFFF in names


class Guarded(APIRoute):
    """A route that looks at the caller's role before it reads the body. A GET needs a viewer; others name their role by
    `openapi_extra=role(...)`.

    A name in the path may have a slash, sent as %2F, which the server has decoded in `path` but not in `raw_path`.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether this is the route of a request, with the parameters of its path."""
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] != "http" or b"%2f" not in raw.lower():
            return super().matches(scope)
        path = _SLASH.join(unquote(part) for part in re.split("%2f", raw.decode("latin-1"), flags=re.IGNORECASE))
        found, child = super().matches({**scope, "path": path})
        if "path_params" in child:
            named = {name: _unslashed(value) for name, value in child["path_params"].items()}
            child = {**child, "path_params": named}
        return found, child

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests with that look before it."""
        handle = super().get_route_handler()
        declared: Role | None = (self.openapi_extra or {}).get(_ROLE)
        if declared is None and self.methods != {"GET"}:
            raise TypeError(f"{self.path} is no GET and names no role")
        needed = declared or "viewer"

        async def guarded(request: Request) -> Response:
            need(request.state.caller, needed)
            return await handle(request)

        return guarded


def _unslashed(value: Any) -> Any:
    return value.replace(_SLASH, "/") if isinstance(value, str) else value


def role(needed: Role, **extra: Any) -> dict[str, Any]:
    """The `openapi_extra` of a route that needs this role."""
    return {_ROLE: needed, **extra}


def asks_for(operation: str) -> dict[str, Any]:
    """The `openapi_extra` of a route that asks for this operation: it needs the role that the rules say."""
    return role(OPERATIONS[operation].role)


def router(tag: str) -> APIRouter:
    """A router below /v1 whose routes are guarded."""
    return APIRouter(prefix="/v1", tags=[tag], route_class=Guarded, dependencies=[Depends(bearer)])
