"""The clock and the error of the worlds below the machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cutline.common.errors import CutlineError

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


class _Unexpected(logging.Handler):
    """Keeps the errors that are none of Cutline's own: a fault of what is tested, or of the world around it."""

    def __init__(self, is_dead: Callable[[], bool]) -> None:
        super().__init__(logging.WARNING)
        self._is_dead = is_dead
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, CutlineError) and not self._is_dead():
            self.found.append(error)


@contextmanager
def log_judged(is_dead: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """The services' log is not shown. An error in it that they did not expect fails the world, though they catch it
    and go on: a service that fails at each start would otherwise pass every check of what it does. What a killed
    process still logs as it is unwound (`is_dead`) reaches nobody."""
    logger, handler = logging.getLogger("cutline"), _Unexpected(is_dead)
    level, handlers, propagate = logger.level, logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    if handler.found:
        raise Wrong(f"a service logged an error that it did not expect: {handler.found[0]!r}") from handler.found[0]
