"""The audit log's records: each call that changes something, or would have, with its sender and its result."""

from __future__ import annotations

from pydantic import BaseModel, Field

from cutline.services.control.api.dependencies import Shared, role, router
from cutline.services.control.api.paging import Newest, foreign

routes = router("access")


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
    query: str = Field(description="its first characters")
    operation: str | None = Field(description="operation id of the API's description", examples=["pause"])
    status: int = Field(description="HTTP status of the answer", examples=[202])
    command: int | None = Field(description="number of the pipeline's command", examples=[7])
    cause: str | None = Field(description="why it was refused")
    count: int = Field(
        default=1,
        description="how many refused calls of this sender with this status the record stands for; the others are not"
        " recorded one by one",
    )


@routes.get("/audit", openapi_extra=role("admin"))
async def audit(shared: Shared, page: Newest) -> list[AuditView]:
    """List the calls that changed something, or were refused, newest first. Refused ones are kept in bounds of their
    own."""
    assert page.limit is not None
    before = page.after
    if isinstance(before, int):
        raise foreign()
    found = await shared.audit.newest(before=before, limit=page.limit + 1)
    if len(found) > page.limit:
        page.link(found[page.limit - 1][0])
    return [AuditView.model_validate(body) for _, body in found[: page.limit]]
