"""The clocks of a process, as its drivers ask them: production gives the module `time`, a simulation its own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process."""

    def time(self) -> float:
        """Seconds since 1970. It may be set back."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back. Only differences count, and only in this process."""
