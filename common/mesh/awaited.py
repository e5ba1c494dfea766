"""What a service waits for, and since when: so that its status says what takes long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from cutline.common.clock import Clock
from cutline.common.waits import Party, Wait

LATE_SECONDS = 10.0


class Awaited:
    """The waits of one member, or of one leader. In one event loop; any number at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Party, str, float]] = {}  # whose turn it is, what for, since when (monotonic)

    @contextmanager
    def on(self, party: Party, what: str) -> Iterator[None]:
        """Wait for something; `what` names the party first: "writer-0, to take rows"."""
        number = next(self._numbers)
        self._open[number] = party, what, self._clock.monotonic()
        try:
            yield
        finally:
            del self._open[number]

    @property
    def late(self) -> Wait | None:
        """The oldest wait, once it has lasted LATE_SECONDS: what for, and how long so far."""
        party, what, since = next(iter(self._open.values()), (Party.OTHER, "", float("inf")))
        seconds = self._clock.monotonic() - since
        return None if seconds < LATE_SECONDS else Wait(party, f"{what} ({seconds:.0f} s so far)")
