"""The last batches that a start of a follower applied, for the status: how long, which tables, when published."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from dataclasses import replace

from cutline.common.status.pipeline_status import Apply

KEPT = 50
SLOWEST = 20


class Applies:
    """The last `KEPT` batches; `took` may be called by several threads."""

    def __init__(self) -> None:
        self._batches: deque[Apply] = deque(maxlen=KEPT)
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
            Apply(first=first, last=last, rows=rows, applied_at=at, seconds=round(seconds, 3), tables=tables)
        )

    def published(self, n: int, at: float) -> None:
        """Note that publication `n` was made: it shows all batches up to it."""
        for place, batch in enumerate(tuple(self._batches)):
            if batch.published_at is None and batch.last <= n:
                self._batches[place] = replace(batch, published_at=at)

    def shown(self) -> tuple[Apply, ...]:
        """Return the batches for the status, oldest first."""
        return tuple(self._batches)
