"""Who may use the control API, and what they did, in files of the store below `.access/` (put if absent).

| path | content |
|---|---|
| `tokens/{id}.json` | a token: its name, role and hash, never the token itself |
| `revoked/{id}.json` | who revoked it, and when |
| `audit/{day}/{milliseconds since 1970:015d}.{nonce}.json` | a call that changes something, and its result |

No file is changed or removed: a token stays listed after its end, and whoever prunes the audit log removes old days.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cutline.common.store.backends import Backend, side_by_side
from cutline.common.store.envelope import opened, sealed

_FOLDER = ".access"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, by the id that is a part of it. `sha256` (hex) is that of its secret; times are seconds since 1970."""

    id: str
    name: str
    role: str
    sha256: str
    by: str
    at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Who revoked a token, and when (seconds since 1970)."""

    by: str
    at: float


class AccessFiles:
    """The tokens and the audit log of a store. All methods block; they raise Unavailable if the store does not answer.

    Ids come from `put_token`'s caller and from requests: letters and digits only.
    """

    def __init__(self, backend: Backend) -> None:
        """Call `Store.access` instead."""
        self._backend = backend

    def put_token(self, token: Token) -> bool:
        """Put a token if its id is free, durable on return; False if it is taken."""
        return self._backend.create(self._path("tokens", token.id), sealed(asdict(token)))

    def token(self, token_id: str) -> Token | None:
        """Return the token of this id, None if there was never one."""
        body = self._get(self._path("tokens", token_id))
        return None if body is None else Token(**body)

    def revoke(self, token_id: str, revocation: Revocation) -> bool:
        """Revoke a token, durable on return; False if it was revoked before."""
        return self._backend.create(self._path("revoked", token_id), sealed(asdict(revocation)))

    def revocation(self, token_id: str) -> Revocation | None:
        """Return who revoked a token, None if nobody did."""
        body = self._get(self._path("revoked", token_id))
        return None if body is None else Revocation(**body)

    def tokens(self) -> list[tuple[Token, Revocation | None]]:
        """Return all tokens, oldest first, each with its revocation."""
        ids = [name.removesuffix(".json") for name in self._names("tokens")]
        found = [(token, self.revocation(token_id)) for token_id, token in side_by_side(self.token, ids) if token]
        return sorted(found, key=lambda each: (each[0].at, each[0].id))

    def log(self, at: float, body: Mapping[str, Any]) -> None:
        """Append a record to the audit log; durable on return."""
        day = datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d")
        name = f"{round(at * 1000):015d}.{secrets.token_hex(4)}"
        self._backend.create(self._path(f"audit/{day}", name), sealed({**body, "at": at}))

    def logged(self, *, before: str | None = None, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the newest `limit` records, newest first, each with its key; those older than the key `before`."""
        keys: list[str] = []
        for day in sorted(self._names("audit"), reverse=True):
            if before is not None and day > before.partition("/")[0]:
                continue
            names = (f"{day}/{name.removesuffix('.json')}" for name in self._names(f"audit/{day}"))
            keys += sorted((key for key in names if before is None or key < before), reverse=True)
            if len(keys) >= limit:
                break
        found = side_by_side(lambda key: self._get(self._path("audit", key)), keys[:limit])
        return sorted(((key, body) for key, body in found if body is not None), reverse=True)

    def _names(self, folder: str) -> list[str]:
        return [name for name in self._backend.names(f"{_FOLDER}/{folder}") if not name.startswith(".")]

    def _path(self, folder: str, name: str) -> str:
        return f"{_FOLDER}/{folder}/{name}.json"

    def _get(self, path: str) -> dict[str, Any] | None:
        data = self._backend.read(path)
        return None if data is None else opened(data, self._backend.location(path))
