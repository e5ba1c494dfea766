"""The clock of a world, and what happens next: one heap in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Schedule:
    """Calls that are due at a time. Of two that are due at one time, the one planned first comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0  # that have happened
        self.deadline = 0.0  # by then the world must have arrived
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Plan a call in so many seconds."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + delay, self._planned, call, args))

    def next(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Move the clock to the next call, and return it with its arguments."""
        self.now, _, call, args = heapq.heappop(self._heap)
        self.events += 1
        return call, args
