"""Whose request it is: bearer tokens with a role, kept as hashes in the store."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers

from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may call the API. `open`: everyone may, since only this machine reaches it; a token closes it."""

    token: str | None = None
    open: bool = False
    body_bytes: int = 1 << 20

    async def caller(self, headers: Headers, origin: str) -> Caller:
        """The sender of a request with these headers, from this address; raises Refused (401)."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if self.token is not None and secrets.compare_digest(given.encode(), self.token.encode()):
            return Caller(name="CUTLINE_API_TOKEN", role="admin", means="environment")
        if self.token is None and self.open:
            return Caller(name="local", role="admin", means="local")
        raise Refused(
            401,
            "no token was sent" if not given else "the token is unknown",
            "send the header Authorization: Bearer TOKEN",
            headers={"WWW-Authenticate": "Bearer"},
        )
