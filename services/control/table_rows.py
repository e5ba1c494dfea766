"""The tables of a pipeline as the API shows them, made once for all requests within a fraction of a second.

A pipeline may have 10,000 tables, of which few change between two answers: what a row says of its table alone is made,
and written as JSON, when that changes; what moves with the clock and with publications is the same for many rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic_core import to_json

from cutline.common.errors import Unavailable
from cutline.common.phases import LIVE, PAUSED, SNAPSHOT, WAITING
from cutline.common.status.pipeline_status import Held, TableStatus
from cutline.common.store.lives import Key
from cutline.common.store.records import TableEntry
from cutline.common.threads import Threads
from cutline.services.control.published import Shown
from cutline.services.control.watch import STATUS_SECONDS, PipelineWatch, Status

STALE_SECONDS = 1.0
IN_SNAPSHOT = (WAITING, SNAPSHOT)
MOVING = ("lag_seconds", "lag_bytes", "rate_rows_per_second", "eta_seconds", "as_of")
"""Fields that change all the time: an ETag, and `?wait=`, leave them out."""
_RENDERING = Threads("rows", 2)
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What a row says of its table alone: its fields, their JSON without braces, and what they were made of."""

    fields: Row
    json: bytes
    table: TableStatus
    entry: TableEntry | None
    held: Held | None
    rows: int | None

    def is_of(self, table: TableStatus, entry: TableEntry | None, held: Held | None, rows: int | None) -> bool:
        """Whether it would be made of these again. A table, or an entry, that is unchanged is the same object."""
        return self.table is table and self.entry is entry and self.rows == rows and self.held == held


class Rows:
    """The tables of one status, sorted by name: all as a JSON list (`body`), one as a row when it is asked for.

    `shown` and `changed_at` are of publications and of the journal, of which `entered` has the newest checkpoint's
    tables; `before` are the steady parts of an earlier status.
    """

    def __init__(
        self,
        status: Status,
        shown: Mapping[str, Shown],
        changed_at: Mapping[str, float],
        entered: Mapping[str, TableEntry] = MappingProxyType({}),
        before: Mapping[str, Steady] = MappingProxyType({}),
    ) -> None:
        """Make the steady parts that are not those of `before`."""
        self.made_of, self._shown, self._changed_at = status, shown, changed_at
        self._behind = None if status.leader.binlog is None else status.leader.binlog.lag_bytes
        self.steady: dict[str, Steady] = {}
        quarantined, files = status.spark.quarantined, status.spark.files
        for name, table in sorted(status.tables.items()):
            entry, held, lake = entered.get(name), quarantined.get(name), files.get(name)
            rows = None if lake is None else lake.rows
            part = before.get(name)
            if part is None or not part.is_of(table, entry, held, rows):
                fields = _steady(name, table, entry, held, rows)
                part = Steady(
                    fields=fields, json=to_json(fields)[1:-1], table=table, entry=entry, held=held, rows=rows
                )
            self.steady[name] = part
        self.body = self._json()

    def row(self, name: str) -> Row | None:
        """The row of a table; None if the pipeline captures no such table."""
        part = self.steady.get(name)
        return None if part is None else self._row(name, part)

    def all(self) -> list[Row]:
        """Every row."""
        return [self._row(name, part) for name, part in self.steady.items()]

    def _row(self, name: str, part: Steady) -> Row:
        return {**part.fields, **self._moving(name, part.table)}

    def _json(self) -> bytes:
        known: dict[tuple[object, ...], bytes] = {}
        parts = []
        for name, part in self.steady.items():
            table = part.table
            rated = name if table.phase in IN_SNAPSHOT else None  # each has its own rate
            alike = id(self._shown.get(name)), self._changed_at.get(name), table.phase == LIVE, rated
            if alike not in known:
                known[alike] = to_json(self._moving(name, table))[1:-1]
            parts.append(b"{%b,%b}" % (part.json, known[alike]))
        return b"[%b]" % b",".join(parts)

    def _moving(self, name: str, table: TableStatus) -> Row:
        """What changes with the clock, with the stream and with publications, and not only with the table."""
        status, at = self.made_of, self._shown.get(name)
        rate, eta = status.leader.rates.get(name), None
        if table.phase not in IN_SNAPSHOT:
            rate = None
        elif rate and table.rows_estimate and table.rows_done is not None:
            eta = max(0.0, table.rows_estimate - table.rows_done) / rate
        source_time = None if at is None else at.source_time
        return {
            "rate_rows_per_second": rate,
            "eta_seconds": eta,
            "lag_bytes": self._behind if table.phase == LIVE else None,
            "lag_seconds": None if source_time is None else max(0.0, status.read_at - source_time),
            "last_change_at": self._changed_at.get(name),
            "published_checkpoint": None if at is None else at.n,
            "published_at": None if at is None else at.published_at,
            "current": status.current,
            "as_of": status.as_of,
        }


def _steady(name: str, table: TableStatus, entry: TableEntry | None, held: Held | None, rows: int | None) -> Row:
    """The changes that were captured are those of the journal's `entry`, which only a table with changes has."""
    cause = table.cause
    counts = None if entry is None or entry.generation != table.generation else entry.counts
    return {
        "table": name,
        "phase": str(table.phase),  # pydantic looks up the value of each enum member in Python
        "generation": table.generation,
        "rows_done": table.rows_done,
        "rows_estimate": table.rows_estimate,
        "splits_done": table.splits_done,
        "splits_total": table.splits_total,
        "code": cause and str(cause.code),
        "cause": cause and cause.sentence,
        "remedy": (cause and cause.remedy) or None,
        "choices": [] if held is None else held.choices,
        "seen": None if held is None else held.seen,
        "paused": table.phase == PAUSED,
        "since": table.since,
        "rows": rows,
        "inserts": counts and counts.inserts,
        "updates": counts and counts.updates,
        "deletes": counts and counts.deletes,
    }


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
        entered: Mapping[str, TableEntry] = {}
        try:
            shown = (await watch.publications()).shown
            journal = await watch.journal()
            changed_at, entered = journal.changed_at, journal.tables
        except Unavailable:  # of the store: the status alone is worth more than nothing
            pass
        key = watch.store.key
        before = self._rows[key].steady if key in self._rows else {}
        made = self._rows[key] = await _RENDERING.call(Rows, status, shown, changed_at, entered, before)
        return made


def _retrieved(task: asyncio.Task[Rows]) -> None:
    if not task.cancelled():
        task.exception()  # whoever waits gets it; the next request tries again


def etag(row: Row) -> str:
    """A weak ETag of a table's row, which stays while nothing but its lag, rate and time changes."""
    steady = {name: value for name, value in row.items() if name not in MOVING}
    return f'W/"{hashlib.sha256(to_json(steady)).hexdigest()[:16]}"'
