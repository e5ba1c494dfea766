"""Whose request it is: bearer tokens with a role, kept as hashes in the store, or JWTs of an OIDC issuer (oidc.py).

A token is `cutline_<id>_<secret>`: the id finds its file, and the secret, of 256 random bits, is compared by its
SHA-256. CUTLINE_API_TOKEN, if set, is an admin's token that no file has. There is no default password: a store
without a token gets one for an admin at the first start, and only that start shows it.

An address (of IPv6 its /64) that sent too many requests with a wrong token, or with none, is answered 429 for the rest
of a minute. Tokens of the store and JWTs that are right pass all the same, since nobody can guess them: someone else
behind the same proxy must not be locked out. CUTLINE_API_TOKEN, which a person may have made up, then passes only from
an address that had sent it before, if tokens were wrong.

An answer that lasts, as a stream of events, is asked about again (`confirm`): it ends with its token.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from starlette.datastructures import Headers

from cutline.common.store.access import AccessFiles, Token
from cutline.services.control.api.audit_log import network
from cutline.services.control.api.oidc import Oidc
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.roles import Caller, Role
from cutline.services.control.store_calls import in_store

FAILURES = 10
WINDOW_SECONDS = 60.0
FRESH_SECONDS = 3.0
"""How long a token is believed without a look at the store. With the second between two looks at a stream (gate.py) and
the time of the look, a revocation takes effect within five seconds."""
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


@dataclass(slots=True, kw_only=True)
class _Failures:
    """The requests of one network that had no valid token, since a time; how many of them had a wrong one."""

    since: float
    all: int = 0
    wrong: int = 0


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
        self._looking: dict[str, asyncio.Task[_Known | None]] = {}
        self._failures: dict[str, _Failures] = {}  # by network
        self._trusted: set[str] = set()  # addresses that have sent CUTLINE_API_TOKEN

    async def caller(self, headers: Headers, address: str) -> Caller:
        """The sender of a request with these headers, from this address. Raises Refused: 401, or 429 after too many
        failures; 403 for a JWT without a role."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        address = network(address)
        blocked = self._blocked(address)
        if not given:
            if self.open_here:
                return Caller(name="local", role="admin", means="local")
            self._failed(address, wrong=False)
            if blocked:
                raise self._too_many(address, blocked)
            raise Refused(401, "no token was sent", "send the header Authorization: Bearer TOKEN", headers=_CHALLENGE)
        may_guess = not self._blocked(address, wrong=True) or address in self._trusted
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
            self._failed(address, wrong=True)
            if not blocked:
                raise
            raise self._too_many(address, blocked) from refusal

    async def confirm(self, caller: Caller) -> None:
        """Raise Refused (401) if the caller's token has ended since it was accepted, or is another role's now."""
        if caller.expires_at is not None and caller.expires_at <= self._now():
            raise _expired(caller.name, caller.expires_at)
        if caller.means != "token" or caller.by is None:
            return
        known = await self._look(caller.by)
        if known is None or known.revoked:
            self._known.pop(caller.by, None)
            raise _revoked(caller.name)
        if known.token.role != caller.role:
            raise _Ended(f"the token {caller.name!r} has the role {known.token.role} now")
        self._known[caller.by] = known

    async def _look(self, token_id: str) -> _Known | None:
        """What the store has of a token, at most FRESH_SECONDS old; None: nothing. Those who ask for one token at the
        same time share one look."""
        now = self._now()
        known = self._known.get(token_id)
        if known is not None and 0 <= now - known.looked_at < FRESH_SECONDS:
            return known
        looking = self._looking.get(token_id)
        if looking is None:
            looking = self._looking[token_id] = asyncio.create_task(in_store(self._read, token_id, now))
            looking.add_done_callback(lambda _: self._looking.pop(token_id, None))
        return await asyncio.shield(looking)

    def _read(self, token_id: str, now: float) -> _Known | None:
        token = self.files.token(token_id)
        if token is None:
            return None
        return _Known(token=token, revoked=self.files.revocation(token_id) is not None, looked_at=now)

    async def _of_token(self, token_id: str, secret: str) -> Caller:
        known = await self._look(token_id)
        if known is None:
            raise _unknown()
        token = known.token
        if not secrets.compare_digest(_sha256(secret), token.sha256):
            raise _unknown()
        if known.revoked:
            self._known.pop(token_id, None)
            raise _revoked(token.name)
        if token.expires_at is not None and token.expires_at <= self._now():
            self._known.pop(token_id, None)
            raise _expired(token.name, token.expires_at)
        if len(self._known) >= _TOKENS:
            self._known.clear()
        self._known[token_id] = known  # only tokens whose secret was right
        return Caller(
            name=token.name, role=cast(Role, token.role), means="token", by=token.id, expires_at=token.expires_at
        )

    def forget(self, token_id: str) -> None:
        """Look this token up again at its next use: it was revoked."""
        self._known.pop(token_id, None)

    def _blocked(self, address: str, *, wrong: bool = False) -> float:
        """For how many more seconds an address is refused; 0: not at all. `wrong`: for wrong tokens alone."""
        found = self._failures.get(address)
        if found is None or (found.wrong if wrong else found.all) < FAILURES:
            return 0.0
        left = found.since + WINDOW_SECONDS - self._now()
        return max(1.0, left) if left > 0 else 0.0

    def _failed(self, address: str, *, wrong: bool) -> None:
        now = self._now()
        found = self._failures.pop(address, None)
        if found is None or now - found.since >= WINDOW_SECONDS:
            found = _Failures(since=now)
        while len(self._failures) >= _ADDRESSES:
            del self._failures[next(iter(self._failures))]
        found.all += 1
        found.wrong += wrong
        self._failures[address] = found

    @staticmethod
    def _too_many(address: str, seconds: float) -> Refused:
        return Refused(
            429,
            f"{FAILURES} requests without a valid token came from {address} within a minute",
            f"wait {seconds:.0f} s, and send a valid token",
            headers={"Retry-After": f"{seconds:.0f}"},
        )


def _revoked(name: str) -> _Ended:
    return _Ended(f"the token {name!r} was revoked")


def _expired(name: str, at: float) -> _Ended:
    return _Ended(f"the token {name!r} expired at {datetime.fromtimestamp(at, tz=UTC):%Y-%m-%d %H:%M} UTC")


def _unknown() -> Refused:
    return Refused(401, "the token is unknown", "ask an admin for one (POST /v1/tokens)", headers=_CHALLENGE)
