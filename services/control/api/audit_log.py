"""What the audit log takes, and how much of it.

A call that was carried out, or may have been, is a file of its own, durable before its answer. Refused calls cost
nothing that a stranger could use up: they wait in memory for `look`, which writes them some seconds later, many in a
file. Of one caller, or one address without a valid token, the first calls of such a time are entries of their own; the
rest, and each 429, are one entry a status, which counts them. Known callers and strangers have separate files and
bounds (common/store/access.py), so neither pushes out the other's.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Scope

from cutline.common.errors import CutlineError
from cutline.common.store.access import REFUSALS, AccessFiles, Entry, Refusals, audit_key
from cutline.services.control.store_calls import in_store

FLUSH_SECONDS = 5.0
ROTATE_SECONDS = 600.0
ENTRIES = 40
"""Entries of refused calls in one file, besides one a status that counts those of all other callers."""
OF_ONE = 20
"""Entries that one caller or address has among them, besides those that count."""
OTHERS = "(others)"
_PATH, _QUERY, _CAUSE = 200, 100, 300
log = logging.getLogger(__name__)


def network(address: str) -> str:
    """The part of a client's address that it can't choose: of IPv6 the /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class AuditLog:
    """One control service's audit log. `look` is called each second and at the end of the service."""

    def __init__(self, files: AccessFiles, *, now: Callable[[], float] = time.time) -> None:
        """Take the store's files; nothing is read or written yet."""
        self._files = files
        self._now = now
        self._waiting: dict[Refusals, _Batch] = {kind: _Batch() for kind in REFUSALS}
        self._flushed_at = self._rotated_at = 0.0

    async def record(self, scope: Scope, status: int) -> None:
        """Take a call with its result. A store that fails now is logged: the call was carried out, or refused."""
        now, body = self._now(), _body(scope, status)
        known = scope["state"].get("caller") is not None
        if not known or 400 <= status < 500:
            self._waiting["denied" if known else "strangers"].add(audit_key(now), {**body, "at": now})
            return
        try:
            await in_store(self._files.log, now, body)
        except CutlineError as error:
            log.error("not in the audit log: %s; the call is %s", error, body)

    async def look(self, *, ending: bool = False) -> None:
        """Write what waits, if it is time to, and remove what is beyond the log's bounds. Raises Unavailable."""
        now = self._now()
        if ending or now - self._flushed_at >= FLUSH_SECONDS:
            self._flushed_at = now
            for kind in REFUSALS:
                batch, self._waiting[kind] = self._waiting[kind], _Batch()
                if batch.entries:
                    await in_store(self._files.log_refused, kind, sorted(batch.entries))
        if not ending and now - self._rotated_at >= ROTATE_SECONDS:
            self._rotated_at = now
            await in_store(self._files.rotate, now)

    async def newest(self, *, before: str | None, limit: int) -> list[Entry]:
        """Return the newest `limit` records, newest first, each with its key; those older than the key `before`."""
        waiting = [entry for batch in self._waiting.values() for entry in batch.entries]
        kept = await in_store(self._files.logged, before=before, limit=limit)
        found = dict([*kept, *((key, body) for key, body in waiting if before is None or key < before)])
        return sorted(found.items(), key=lambda entry: entry[0], reverse=True)[:limit]


class _Batch:
    """Refused calls that wait to be written together."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._of_one: Counter[tuple[str, str | None]] = Counter()
        self._counting: dict[tuple[str, str | None, int], dict[str, Any]] = {}

    def add(self, key: str, body: dict[str, Any]) -> None:
        """Take a call: as an entry, or as one more of an entry that counts."""
        who, status = (network(body["address"]), body["identity"] or body["by"]), body["status"]
        full = len(self.entries) >= ENTRIES
        if status != 429 and not full and self._of_one[who] < OF_ONE:
            self._of_one[who] += 1
            self.entries.append((key, body))
            return
        counting = self._counting.get((*who, status)) or self._counting.get((OTHERS, None, status))
        if counting is not None:
            counting["count"] += 1
            return
        if full:
            who = (OTHERS, None)
            nobody = {"by": None, "role": None, "means": None, "identity": None, "operation": None, "command": None}
            body = {**body, **nobody, "address": OTHERS, "method": "", "path": "", "query": "", "cause": None}
        self._counting[*who, status] = body
        self.entries.append((key, body))


def _body(scope: Scope, status: int) -> dict[str, Any]:
    state: Mapping[str, Any] = scope["state"]
    caller, route, client = state.get("caller"), scope.get("route"), scope.get("client")
    cause = state.get("cause")
    return {
        "request_id": state["request_id"],
        "by": caller.name if caller else None,
        "role": caller.role if caller else None,
        "means": caller.means if caller else None,
        "identity": caller.by if caller else None,
        "address": client[0] if client else "",
        "method": scope["method"][:16],
        "path": scope["path"][:_PATH],
        "query": scope["query_string"][:_QUERY].decode("latin-1"),
        "operation": getattr(route, "operation_id", None) or getattr(route, "name", None),
        "status": status,
        "command": state.get("command"),
        "cause": cause if cause is None else cause[:_CAUSE],
        "count": 1,
    }
