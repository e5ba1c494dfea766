"""How fast a reader may give out chunk rows (pure: the time is an argument, and nothing waits here).

Rows that were given out are owed; the debt is paid off as time passes, at the limits' rates. A rate without a limit has
no debt, so a new limit begins without one.
"""

from __future__ import annotations

from cutline.common.limits import UNLIMITED, Limits

LEAST_SECONDS = 1e-6
"""A shorter wait is what rounding leaves of one that has ended; a clock may not move by so little."""


class Pace:
    """The debt of one reader, in rows and in bytes. Every `now` is in monotonic seconds."""

    def __init__(self, *, now: float) -> None:
        """Start without limits and without debt."""
        self._limits = UNLIMITED
        self._owed_rows = self._owed_bytes = 0.0
        self._paid_at = now

    def set(self, limits: Limits, *, now: float) -> None:
        """Apply these limits from `now` on, to the present debt too."""
        self._pay(now)
        self._limits = limits

    def spend(self, rows: int, size: int, *, now: float) -> None:
        """Add `rows` rows of `size` bytes to the debt."""
        self._pay(now)
        self._owed_rows, self._owed_bytes = self._owed_rows + rows, self._owed_bytes + size

    def seconds_left(self, *, now: float) -> float:
        """After how many seconds the debt is paid off, if the limits stay; 0 if it is."""
        self._pay(now)
        rows, size = self._limits.rows_per_second, self._limits.bytes_per_second
        seconds = max(self._owed_rows / rows if rows else 0.0, self._owed_bytes / size if size else 0.0)
        return seconds if seconds >= LEAST_SECONDS else 0.0

    def _pay(self, now: float) -> None:
        passed, self._paid_at = now - self._paid_at, now
        rows, size = self._limits.rows_per_second, self._limits.bytes_per_second
        self._owed_rows = max(0.0, self._owed_rows - passed * rows) if rows else 0.0
        self._owed_bytes = max(0.0, self._owed_bytes - passed * size) if size else 0.0
