"""The ports of the Spark writer's driver: all through which it reaches the world, beside the files of its store.

The driver (driver.py) is the same object in production (production.py) and in a simulation, whose ports let calls
interleave, hang, fail half-way and answer late. It reads no clock, starts no thread and reaches no sink but by them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from cutline.common.clock import Clock
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.contract import Sink


class Flag(Protocol):
    """Set once, by any thread: a `threading.Event`."""

    def set(self) -> None:
        """Set it, and wake all who wait."""

    def is_set(self) -> bool:
        """Whether it is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is set, at the latest after `timeout` seconds. This is how the driver pauses."""


class Running(Protocol):
    """A thread that was started."""

    def is_alive(self) -> bool:
        """Whether its call has not returned yet."""

    def join(self) -> None:
        """Return once its call has returned."""


class Engine(Protocol):
    """What all pipelines of this process share, and can't outlive: Spark."""

    def check(self) -> None:
        """Raise Unavailable if it has ended, so that only another process can start it again."""

    def open(self, store: PipelineStore, version: int) -> Sink:
        """Open the sink of a pipeline by this version of its definition, for one start. ConfigError if the definition
        is gone or wrong, Unavailable if the sink does not answer."""

    def purge(self, store: PipelineStore, version: int) -> int:
        """Remove the tables that this life of a pipeline has made in its sink, for as long as that is ordered
        (`PipelineStore.purges`); return their number. May be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one process.

    `flag` makes a flag; `start` runs a call in a thread of this name, `pool` makes a pool of at most so many threads,
    as `ThreadPoolExecutor`.
    """

    clock: Clock
    flag: Callable[[], Flag]
    start: Callable[[Callable[[], None], str], Running]
    pool: Callable[..., Executor]
    engine: Engine
