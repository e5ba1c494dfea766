"""Time in the worlds below the machines, and what they raise."""

from __future__ import annotations

from dataclasses import dataclass

EPOCH = 1_700_000_000


@dataclass(slots=True)
class Clock:
    """Stands in for the module `time`: it moves where somebody would have waited."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Wrong(Exception):
    """Something did what it promises not to do."""
