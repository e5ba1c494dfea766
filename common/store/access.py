"""Who may use the control API, and what they did, in files of the store below `.access/` (put if absent).

| path | content |
|---|---|
| `tokens/{id}.json` | a token: its name, role and hash, never the token itself |
| `revoked/{id}.json` | who revoked it, and when |
| `audit/{day}/{milliseconds since 1970:015d}.{microseconds:03d}{nonce}.json` | a call that changed something |
| `denied/{last:015d}.{first:015d}.{nonce}.json` | refused calls of known callers, many in a file |
| `strangers/{last:015d}.{first:015d}.{nonce}.json` | refused calls without a valid token, in the same way |

No file is changed. A token stays listed after its end. The three logs are bounded each by itself (`rotate`), so who can
only be refused pushes out no record of a call that was carried out.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from cutline.common.store.backends import Backend, side_by_side
from cutline.common.store.envelope import opened, sealed

KEPT_DAYS = 400
"""How long calls that changed something are kept; at most the newest KEPT_CALLS."""
KEPT_CALLS = 100_000
KEPT_BATCHES = 2_000
"""How many files of refused calls are kept, of known callers and of strangers each; the newest."""
_FOLDER = ".access"
_AT_ONCE = 16

Refusals = Literal["denied", "strangers"]
REFUSALS: tuple[Refusals, ...] = ("denied", "strangers")
Entry = tuple[str, dict[str, Any]]
"""A record of the audit log with its key, which is in the order of time."""


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
        """Append a call that changed something to the audit log; durable on return."""
        self._backend.create(self._path("audit", audit_key(at)), sealed({**body, "at": at}))

    def log_refused(self, kind: Refusals, entries: Sequence[Entry]) -> None:
        """Append refused calls, oldest first, in one file; durable on return. Their bodies have `at`."""
        first, last = (_ms(entries[at][0]) for at in (0, -1))
        name = f"{last}.{first}.{secrets.token_hex(4)}"
        self._backend.create(self._path(kind, name), sealed({"calls": [list(entry) for entry in entries]}))

    def logged(self, *, before: str | None = None, limit: int) -> list[Entry]:
        """Return the newest `limit` records, newest first, each with its key; those older than the key `before`."""
        found = [self._done(before, limit), *(self._refused(kind, before, limit) for kind in REFUSALS)]
        return list(heapq.merge(*found, key=lambda entry: entry[0], reverse=True))[:limit]

    def _done(self, before: str | None, limit: int) -> list[Entry]:
        keys: list[str] = []
        for day in self._days():
            if before is not None and day > before.partition("/")[0]:
                continue
            keys += (key for key in self._keys(day) if before is None or key < before)
            if len(keys) >= limit:
                break
        found = side_by_side(lambda key: self._get(self._path("audit", key)), keys[:limit])
        return sorted(((key, body) for key, body in found if body is not None), key=_key, reverse=True)

    def _refused(self, kind: Refusals, before: str | None, limit: int) -> list[Entry]:
        names = [name for name in self._batches(kind) if before is None or name.split(".")[1] <= _ms(before)]
        found: list[Entry] = []
        for at in range(0, len(names), _AT_ONCE):
            if len(found) >= limit and _ms(found[limit - 1][0]) > names[at].split(".")[0]:
                break  # each file that is left has only older ones
            for _, body in side_by_side(lambda name: self._get(self._path(kind, name)), names[at : at + _AT_ONCE]):
                calls = body["calls"] if body is not None else ()
                found += ((key, call) for key, call in calls if before is None or key < before)
            found.sort(key=_key, reverse=True)
        return found[:limit]

    def rotate(self, now: float) -> None:
        """Remove the records of the audit log that are beyond its bounds; any service may, at any time."""
        oldest = datetime.fromtimestamp(now - KEPT_DAYS * 86_400, tz=UTC).strftime("%Y-%m-%d")
        left = KEPT_CALLS
        for day in self._days():
            keys = list(self._keys(day))
            kept = 0 if day < oldest else min(left, len(keys))
            left -= kept
            self._remove("audit", keys[kept:])
            if not kept:
                self._backend.remove_folder(f"{_FOLDER}/audit/{day}")
        for kind in REFUSALS:
            self._remove(kind, self._batches(kind)[KEPT_BATCHES:])

    def _remove(self, folder: str, names: Sequence[str]) -> None:
        for _ in side_by_side(lambda name: self._backend.remove(self._path(folder, name)), names):
            pass

    def _days(self) -> list[str]:
        """The days of calls that changed something, newest first."""
        return sorted(self._names("audit"), reverse=True)

    def _keys(self, day: str) -> Iterator[str]:
        """The keys of such a day's calls, newest first."""
        for name in sorted(self._names(f"audit/{day}"), reverse=True):
            yield f"{day}/{name.removesuffix('.json')}"

    def _batches(self, kind: Refusals) -> list[str]:
        """The files of refused calls, newest first."""
        return sorted((name.removesuffix(".json") for name in self._names(kind)), reverse=True)

    def _names(self, folder: str) -> list[str]:
        return [name for name in self._backend.names(f"{_FOLDER}/{folder}") if not name.startswith(".")]

    def _path(self, folder: str, name: str) -> str:
        return f"{_FOLDER}/{folder}/{name}.json"

    def _get(self, path: str) -> dict[str, Any] | None:
        data = self._backend.read(path)
        return None if data is None else opened(data, self._backend.location(path))


def audit_key(at: float) -> str:
    """A new key of a call at this time (seconds since 1970): keys are in the order of time."""
    day = datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d")
    milliseconds, microseconds = divmod(round(at * 1_000_000), 1000)
    return f"{day}/{milliseconds:015d}.{microseconds:03d}{secrets.token_hex(4)}"


def _ms(key: str) -> str:
    return key.partition("/")[2].partition(".")[0]


def _key(entry: Entry) -> str:
    return entry[0]
