"""The clock and the error of the worlds below the machines."""

from __future__ import annotations

from dataclasses import dataclass

EPOCH = 1_700_000_000


@dataclass(slots=True)
class SimulatedClock:
    """Stands in for the module `time`: a sleep moves it forward."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Wrong(Exception):
    """The tested code broke one of its promises."""
