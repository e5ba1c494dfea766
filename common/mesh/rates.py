"""Rows per second of tables, from counts that arrive at any interval."""

from __future__ import annotations

from collections import deque

RATE_WINDOW_SECONDS = 10.0


class Rates:
    """Rows per second of each table over the last ten seconds, from counts that arrive at any interval."""

    def __init__(self) -> None:
        """Start without any observation."""
        self._seen: dict[tuple[str, int], deque[tuple[float, int]]] = {}

    def observe(self, table: str, generation: int, rows: int, now: float) -> float:
        """Note that `rows` rows are done at `now`; return the rate. A new generation, or fewer rows, starts over."""
        seen = self._seen.setdefault((table, generation), deque())
        if seen and rows < seen[-1][1]:
            seen.clear()
        seen.append((now, rows))
        while len(seen) > 2 and seen[1][0] <= now - RATE_WINDOW_SECONDS:
            seen.popleft()
        seconds = now - seen[0][0]
        return (rows - seen[0][1]) / seconds if seconds > 0 else 0.0

    def forget(self, table: str, generation: int) -> None:
        """Drop the observations of a table whose snapshot is done."""
        self._seen.pop((table, generation), None)
