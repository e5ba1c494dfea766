"""Tokens for the API, and who the caller is."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import Path, Response
from pydantic import BaseModel, Field

from cutline.common.store.access import Revocation, Token
from cutline.services.control.api.access import new_token
from cutline.services.control.api.dependencies import CallerNow, Shared, role, router
from cutline.services.control.api.models import Body
from cutline.services.control.api.paging import WholeList
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import Role
from cutline.services.control.store_calls import in_store

routes = router("access")
TokenId = Annotated[str, Path(description="id of the token", examples=["5a02c4be9d11"])]
_DAY_SECONDS = 86_400
_ID = re.compile(r"[A-Za-z0-9]{1,32}")


class Me(BaseModel):
    """The caller of this request."""

    name: str = Field(examples=["anna"])
    role: Role
    means: str = Field(description="token, environment, oidc or local")
    expires_at: float | None = Field(description="seconds since 1970; null: never")


class NewToken(Body):
    """A token to be made."""

    name: str = Field(min_length=1, max_length=100, description="whose it is", examples=["anna"])
    role: Role = Field(examples=["operator"])
    expires_in_days: float | None = Field(
        default=90.0, gt=0, le=3650, allow_inf_nan=False, description="null: it never expires"
    )


class TokenView(BaseModel):
    """A token, without its secret. Times are seconds since 1970."""

    id: str = Field(examples=["5a02c4be9d11"])
    name: str
    role: Role
    by: str = Field(description="who made it")
    at: float
    expires_at: float | None
    revoked_at: float | None = None
    revoked_by: str | None = None


class MadeToken(TokenView):
    """A new token."""

    token: str = Field(description="the token itself, which is shown this once")


@routes.get("/me", operation_id="me")
async def me(caller: CallerNow) -> Me:
    """Return the caller's name and role."""
    return Me(name=caller.name, role=caller.role, means=caller.means, expires_at=caller.expires_at)


@routes.get("/tokens", operation_id="list_tokens", openapi_extra=role("admin"))
async def tokens(shared: Shared, page: WholeList) -> list[TokenView]:
    """List all tokens by their ids, also those that ended."""
    found = await in_store(shared.access.files.tokens)
    views = [
        TokenView(
            **_plain(token),
            revoked_at=revocation.at if revocation else None,
            revoked_by=revocation.by if revocation else None,
        )
        for token, revocation in found
    ]
    return page.take(sorted(views, key=lambda view: view.id), key=lambda view: view.id)


@routes.post("/tokens", operation_id="make_token", status_code=201, openapi_extra=role("admin"))
async def make(shared: Shared, caller: CallerNow, wanted: NewToken, response: Response) -> MadeToken:
    """Make a token. Only this answer has it; the store keeps its hash."""
    now = time.time()
    text, token_id, sha256 = new_token()
    token = Token(
        id=token_id,
        name=wanted.name,
        role=wanted.role,
        sha256=sha256,
        by=caller.name,
        at=now,
        expires_at=None if wanted.expires_in_days is None else now + wanted.expires_in_days * _DAY_SECONDS,
    )
    await in_store(shared.access.files.put_token, token)
    response.headers["Cache-Control"] = "no-store"
    return MadeToken(**_plain(token), token=text)


@routes.delete("/tokens/{token_id}", operation_id="revoke_token", status_code=204, openapi_extra=role("admin"))
async def revoke(shared: Shared, caller: CallerNow, token_id: TokenId) -> None:
    """Revoke a token: within five seconds no control service accepts it. A token that is revoked stays so."""
    files = shared.access.files
    if not _ID.fullmatch(token_id) or await in_store(files.token, token_id) is None:
        raise Refused(404, f"there is no token with the id {token_id!r}", "GET /v1/tokens lists them")
    await in_store(files.revoke, token_id, Revocation(by=caller.name, at=time.time()))
    shared.access.forget(token_id)


def _plain(token: Token) -> dict[str, object]:
    return {name: getattr(token, name) for name in ("id", "name", "role", "by", "at", "expires_at")}
