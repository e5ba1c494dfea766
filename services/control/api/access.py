"""Whose request it is: bearer tokens with a role, kept as hashes in the store, or JWTs of an OIDC issuer (oidc.py).

A token is `cutline_<id>_<secret>`: the id finds its file, and the secret, of 256 random bits, is compared by its
SHA-256. CUTLINE_API_TOKEN, if set, is an admin's token that no file has. There is no default password: a store
without a token gets one for an admin at the first start, and only that start shows it.

An address that sent too many wrong tokens is answered 429 for the rest of a minute. Tokens of the store and JWTs that
are right pass all the same, since nobody can guess them: someone else behind the same proxy must not be locked out.
CUTLINE_API_TOKEN, which a person may have made up, then passes only from an address that had sent it before.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from starlette.datastructures import Headers

from cutline.common.mesh.loop import in_store
from cutline.common.store.access import AccessFiles, Token
from cutline.services.control.api.oidc import Oidc
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import Caller, Role

FAILURES = 10
WINDOW_SECONDS = 60.0
FRESH_SECONDS = 5.0
"""How long a token is believed without a look at the store: a revocation takes effect within this time."""
FIRST = "first"
_ADDRESSES = 10_000
_TOKENS = 1_000
_TOKEN = re.compile(r"cutline_([A-Za-z0-9]{1,32})_([A-Za-z0-9]{32,128})")
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def new_token(token_id: str | None = None) -> tuple[str, str, str]:
    """Return a new token, its id and the SHA-256 of its secret."""
    token_id, secret = token_id or secrets.token_hex(6), secrets.token_hex(32)
    return f"cutline_{token_id}_{secret}", token_id, _sha256(secret)


def first_token(files: AccessFiles, now: float) -> str | None:
    """Make the first token, an admin's, if the store has none; None if it has, or another service was faster."""
    if files.tokens():
        return None
    text, token_id, sha256 = new_token(FIRST)
    about = {"name": "first admin", "role": "admin", "by": "first start"}
    return text if files.put_token(Token(id=token_id, sha256=sha256, at=now, expires_at=None, **about)) else None


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    token: Token
    revoked: bool
    looked_at: float


class _Ended(Refused):
    """The token was right, and is no longer valid."""

    def __init__(self, cause: str) -> None:
        super().__init__(401, cause, "ask an admin for a new one (POST /v1/tokens)", headers=_CHALLENGE)


class Access:
    """Who may call the API."""

    def __init__(
        self,
        files: AccessFiles,
        *,
        token: str | None = None,
        oidc: Oidc | None = None,
        open_here: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the store's tokens, the environment's, and an OIDC issuer.

        `open_here`: a request without a token is an admin's, since the service listens on this machine only and serves
        the user who started it.
        """
        self.files = files
        self.open_here = open_here
        self._token = token
        self._oidc = oidc
        self._now = now
        self._known: dict[str, _Known] = {}
        self._failures: dict[str, tuple[int, float]] = {}  # by address: how many, since when
        self._trusted: set[str] = set()  # addresses that have sent CUTLINE_API_TOKEN

    async def caller(self, headers: Headers, address: str) -> Caller:
        """The sender of a request with these headers, from this address. Raises Refused: 401, or 429 after too many
        failures; 403 for a JWT without a role."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if not given:
            if self.open_here:
                return Caller(name="local", role="admin", means="local")
            raise Refused(401, "no token was sent", "send the header Authorization: Bearer TOKEN", headers=_CHALLENGE)
        blocked = self._blocked(address)
        may_guess = not blocked or address in self._trusted
        if may_guess and self._token is not None and secrets.compare_digest(given.encode(), self._token.encode()):
            if len(self._trusted) < _ADDRESSES:
                self._trusted.add(address)
            return Caller(name="CUTLINE_API_TOKEN", role="admin", means="environment")
        try:
            if found := _TOKEN.fullmatch(given):
                return await self._of_token(*found.groups())
            if self._oidc is not None and given.count(".") == 2:
                return await self._oidc.caller(given)
            raise _unknown()
        except _Ended:
            raise  # once it was right: no guess
        except Refused as refusal:
            if refusal.status_code != 401:
                raise
            self._failed(address)
            if not blocked:
                raise
            raise Refused(
                429,
                f"{FAILURES} wrong tokens came from {address} within a minute",
                f"wait {blocked:.0f} s, and send a valid token",
                headers={"Retry-After": f"{blocked:.0f}"},
            ) from refusal

    async def _of_token(self, token_id: str, secret: str) -> Caller:
        now = self._now()
        known = self._known.get(token_id)
        if known is None or not 0 <= now - known.looked_at < FRESH_SECONDS:
            token = await in_store(self.files.token, token_id)
            if token is None:
                raise _unknown()
            revoked = await in_store(self.files.revocation, token_id)
            known = _Known(token=token, revoked=revoked is not None, looked_at=now)
        token = known.token
        if not secrets.compare_digest(_sha256(secret), token.sha256):
            raise _unknown()
        if known.revoked:
            self._known.pop(token_id, None)
            raise _Ended(f"the token {token.name!r} was revoked")
        if token.expires_at is not None and token.expires_at <= now:
            self._known.pop(token_id, None)
            at = datetime.fromtimestamp(token.expires_at, tz=UTC)
            raise _Ended(f"the token {token.name!r} expired at {at:%Y-%m-%d %H:%M} UTC")
        if len(self._known) >= _TOKENS:
            self._known.clear()
        self._known[token_id] = known  # only tokens whose secret was right
        return Caller(
            name=token.name, role=cast(Role, token.role), means="token", by=token.id, expires_at=token.expires_at
        )

    def forget(self, token_id: str) -> None:
        """Look this token up again at its next use: it was revoked."""
        self._known.pop(token_id, None)

    def _blocked(self, address: str) -> float:
        """For how many more seconds an address is refused; 0: not at all."""
        count, since = self._failures.get(address, (0, 0.0))
        left = since + WINDOW_SECONDS - self._now()
        return max(1.0, left) if count >= FAILURES and left > 0 else 0.0

    def _failed(self, address: str) -> None:
        now = self._now()
        count, since = self._failures.pop(address, (0, now))
        if now - since >= WINDOW_SECONDS:
            count, since = 0, now
        while len(self._failures) >= _ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = (count + 1, since)


def _unknown() -> Refused:
    return Refused(401, "the token is unknown", "ask an admin for one (POST /v1/tokens)", headers=_CHALLENGE)
