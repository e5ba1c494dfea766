"""The audit log: each call that changes something, or would have, with its sender and its result."""

from __future__ import annotations

import logging
import time
from typing import Any

from pydantic import BaseModel, Field
from starlette.types import Scope

from cutline.common.errors import CutlineError
from cutline.common.mesh.loop import in_store
from cutline.common.store.access import AccessFiles
from cutline.services.control.api.dependencies import Shared, role, router
from cutline.services.control.api.paging import Newest, foreign

routes = router("access")
log = logging.getLogger(__name__)


class AuditView(BaseModel):
    """A call that changes something: who, what, from where, with which result; also one that was refused."""

    at: float = Field(description="seconds since 1970")
    request_id: str
    by: str | None = Field(description="the caller's name, null if nobody was logged in", examples=["anna"])
    role: str | None
    means: str | None = Field(description="token, environment, oidc or local")
    identity: str | None = Field(description="the token's id, or the issuer's subject")
    address: str = Field(description="the client's address", examples=["10.0.0.7"])
    method: str = Field(examples=["POST"])
    path: str = Field(examples=["/v1/pipelines/shop/pause"])
    query: str
    operation: str | None = Field(description="operation id of the API's description", examples=["pause"])
    status: int = Field(description="HTTP status of the answer", examples=[202])
    command: int | None = Field(description="number of the pipeline's command", examples=[7])
    cause: str | None = Field(description="why it was refused")


async def record(files: AccessFiles, scope: Scope, status: int) -> None:
    """Append a call with its result. A store that fails now is logged: the call was carried out, or refused, before."""
    state: dict[str, Any] = scope["state"]
    caller, route, client = state.get("caller"), scope.get("route"), scope.get("client")
    body = {
        "request_id": state["request_id"],
        "by": caller.name if caller else None,
        "role": caller.role if caller else None,
        "means": caller.means if caller else None,
        "identity": caller.by if caller else None,
        "address": client[0] if client else "",
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode("latin-1"),
        "operation": getattr(route, "operation_id", None) or getattr(route, "name", None),
        "status": status,
        "command": state.get("command"),
        "cause": state.get("cause"),
    }
    try:
        await in_store(files.log, time.time(), body)
    except CutlineError as error:
        log.error("not in the audit log: %s; the call is %s", error, body)


@routes.get("/audit", openapi_extra=role("admin"))
async def audit(shared: Shared, page: Newest) -> list[AuditView]:
    """List the calls that changed something, or were refused, newest first."""
    assert page.limit is not None
    before = page.after
    if isinstance(before, int):
        raise foreign()
    files = shared.access.files
    found = await in_store(files.logged, before=before, limit=page.limit + 1)
    if len(found) > page.limit:
        page.link(found[page.limit - 1][0])
    return [AuditView.model_validate(body) for _, body in found[: page.limit]]
