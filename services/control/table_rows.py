"""The tables of a pipeline as the API shows them, made once for all requests within a fraction of a second.

A pipeline may have 10,000 tables: rows are plain dicts, and the whole list is made into JSON once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from cutline.common.errors import Unavailable
from cutline.common.phases import LIVE, PAUSED, SNAPSHOT, WAITING
from cutline.common.status.pipeline_status import TableStatus
from cutline.common.store.lives import Key
from cutline.common.threads import Threads
from cutline.services.control.published import Shown
from cutline.services.control.watch import STATUS_SECONDS, PipelineWatch, Status

STALE_SECONDS = 1.0
IN_SNAPSHOT = (WAITING, SNAPSHOT)
MOVING = ("lag_seconds", "lag_bytes", "rate_rows_per_second", "eta_seconds", "as_of")
_RENDERING = Threads("rows", 2)
"""Fields that change all the time: an ETag, and `?wait=`, leave them out."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All tables, sorted by name, and their JSON."""

    by_name: Mapping[str, Row]
    body: bytes
    made_of: Status


class TableRows:
    """The rows of each pipeline that was asked for.

    They are made anew beside the requests, which then need not wait for them: an answer is at most STALE_SECONDS old.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._rows: dict[Key, Rows] = {}
        self._making: dict[Key, asyncio.Task[Rows]] = {}

    async def read(self, watch: PipelineWatch) -> Rows:
        """The rows as of a status of this moment, nearly. Raises Unavailable if Redis does not answer."""
        key, now = watch.store.key, time.time()
        known = self._rows.get(key)
        age = float("inf") if known is None else now - known.made_of.read_at
        if age < STATUS_SECONDS and known is not None:
            return known
        making = self._making.get(key)
        if making is None or making.done():
            making = self._making[key] = asyncio.create_task(self._make(watch))
            making.add_done_callback(_retrieved)
        if age < STALE_SECONDS and known is not None:
            return known
        return await asyncio.shield(making)

    async def _make(self, watch: PipelineWatch) -> Rows:
        status = await watch.status()
        shown: Mapping[str, Shown] = {}
        changed_at: Mapping[str, float] = {}
        try:
            shown = (await watch.publications()).shown
            changed_at = (await watch.journal()).changed_at
        except Unavailable:  # of the store: the status alone is worth more than nothing
            pass
        made = self._rows[watch.store.key] = await _RENDERING.call(_made, status, shown, changed_at)
        return made


def _retrieved(task: asyncio.Task[Rows]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waits gets it; the next request tries again


def _made(status: Status, shown: Mapping[str, Shown], changed_at: Mapping[str, float]) -> Rows:
    row = maker(status, shown, changed_at)
    by_name = {name: row(name, table) for name, table in sorted(status.tables.items())}
    return Rows(by_name=by_name, body=to_json(list(by_name.values())), made_of=status)


def maker(
    status: Status, shown: Mapping[str, Shown], changed_at: Mapping[str, float]
) -> Callable[[str, TableStatus], Row]:
    """Return the function that makes a table's row of its entry in the status."""
    rates, quarantined = status.leader.rates, status.spark.quarantined
    behind = None if status.leader.binlog is None else status.leader.binlog.lag_bytes
    now, current, as_of = status.read_at, status.current, status.as_of

    def row(name: str, table: TableStatus) -> Row:
        phase, cause, at, held = table.phase, table.cause, shown.get(name), quarantined.get(name)
        rows, estimate, rate, eta = table.rows_done, table.rows_estimate, rates.get(name), None
        if phase not in IN_SNAPSHOT:
            rate = None
        elif rate and estimate and rows is not None:
            eta = max(0.0, estimate - rows) / rate
        return {
            "table": name,
            "phase": phase,
            "generation": table.generation,
            "rows_done": rows,
            "rows_estimate": estimate,
            "splits_done": table.splits_done,
            "splits_total": table.splits_total,
            "code": cause and cause.code,
            "cause": cause and cause.sentence,
            "remedy": (cause and cause.remedy) or None,
            "choices": [] if held is None else held.choices,
            "seen": None if held is None else held.seen,
            "rate_rows_per_second": rate,
            "eta_seconds": eta,
            "lag_bytes": behind if phase == LIVE else None,
            "lag_seconds": None if at is None or at.source_time is None else max(0.0, now - at.source_time),
            "last_change_at": changed_at.get(name),
            "published_checkpoint": None if at is None else at.n,
            "published_at": None if at is None else at.published_at,
            "paused": phase == PAUSED,
            "current": current,
            "as_of": as_of,
        }

    return row


def etag(row: Row) -> str:
    """A weak ETag of a table's row, which stays while nothing but its lag, rate and time changes."""
    steady = {name: value for name, value in row.items() if name not in MOVING}
    return f'W/"{hashlib.sha256(to_json(steady)).hexdigest()[:16]}"'
