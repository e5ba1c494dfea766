"""The last batches that a start of a follower applied, for the status: how long, which tables, when published."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

KEPT = 50
SLOWEST = 20


@dataclass(slots=True, kw_only=True)
class Applied:
    """One batch: the checkpoints `first` to `last`; `tables` are the seconds of the slowest."""

    first: int
    last: int
    rows: int
    applied_at: float
    seconds: float
    tables: dict[str, float] = field(default_factory=dict)
    published_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {
            "checkpoint": self.last,
            "from": self.first,
            "applied_at": self.applied_at,
            "seconds": self.seconds,
            "rows": self.rows,
            "published_at": self.published_at,
            "tables": self.tables,
        }


class Applies:
    """The last `KEPT` batches; `took` may be called by several threads."""

    def __init__(self) -> None:
        self._batches: deque[Applied] = deque(maxlen=KEPT)
        self._seconds: dict[str, float] = {}  # of the tables of the batch in progress
        self._lock = threading.Lock()

    def took(self, table_id: str, seconds: float) -> None:
        """Add the time that applying to a table took, in the batch in progress."""
        with self._lock:
            self._seconds[table_id] = self._seconds.get(table_id, 0.0) + seconds

    def applied(self, *, first: int, last: int, rows: int, at: float, seconds: float) -> None:
        """End the batch in progress."""
        with self._lock:
            slowest = heapq.nlargest(SLOWEST, self._seconds.items(), key=lambda item: item[1])
            self._seconds = {}
        tables = {table_id: round(took, 3) for table_id, took in slowest}
        self._batches.append(
            Applied(first=first, last=last, rows=rows, applied_at=at, seconds=round(seconds, 3), tables=tables)
        )

    def published(self, n: int, at: float) -> None:
        """Note that publication `n` was made: it shows all batches up to it."""
        for batch in self._batches:
            if batch.published_at is None and batch.last <= n:
                batch.published_at = at

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain dicts, oldest first."""
        return [batch.to_json() for batch in self._batches]
