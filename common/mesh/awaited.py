"""What a service waits for, and since when: so that its status says what takes long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cutline.common.causes import Cause
from cutline.common.clock import Clock
from cutline.common.waits import Party, Wait

LATE_SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class _Open:
    """A wait that goes on: it began at `began` (monotonic), which is `since`; `cause`: why the last try failed."""

    party: Party
    what: str
    began: float
    since: float
    cause: Cause | None = None


class Awaited:
    """The waits of one member, or of one leader. In one event loop; any number at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}

    @contextmanager
    def on(self, party: Party, what: str) -> Iterator[Callable[[Cause], None]]:
        """Wait for something; `what` names the party first: "writer-0, to take rows". Whoever tries again inside tells
        the function that it gets why the last try failed."""
        number = next(self._numbers)
        now = self._clock.monotonic()
        wait = self._open[number] = _Open(party=party, what=what, began=now, since=self._clock.time())

        def failed(cause: Cause) -> None:
            wait.cause = cause

        try:
            yield failed
        finally:
            del self._open[number]

    @property
    def late(self) -> Wait | None:
        """The oldest wait that has lasted LATE_SECONDS, or of which a try has failed: what for, how long so far."""
        now = self._clock.monotonic()
        for wait in self._open.values():
            seconds = now - wait.began
            if seconds >= LATE_SECONDS or wait.cause is not None:
                return Wait(wait.party, f"{wait.what} ({seconds:.0f} s so far)", wait.cause, wait.since)
        return None
