"""Event loops of simulated processes: any number of them in one thread, in their world's time.

A loop runs one turn (what is ready, once) where its world has a call for it, so turns of other processes, and blocking
calls that their threads make, come between any two of its own."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Protocol


class Schedule(Protocol):
    """What a loop needs of its world."""

    @property
    def now(self) -> float:
        """Seconds since the world began."""

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Plan a call in so many seconds."""


class _Task(asyncio.Task[Any]):
    """A task that is hashed by its number: sets of tasks, in which asyncio keeps those of a group, are then in the same
    order in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **known: Any) -> None:
        self._number = number
        super().__init__(coroutine, **known)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Nothing(selectors.BaseSelector):
    """No file is watched."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise AssertionError("a simulated process has no files")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise AssertionError("a simulated process has no files")

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Any:
        return {}


class ProcessLoop(asyncio.BaseEventLoop):
    """The loop of one process. `suspended()` is the time until which the process stands still."""

    def __init__(self, schedule: Schedule, suspended: Callable[[], float]) -> None:
        self._selector = _Nothing()
        self._schedule, self._suspended = schedule, suspended
        self._due: float | None = None  # when its next turn is planned
        self._numbers = 0
        self.ended = False  # the process is gone: nothing of it runs any more
        super().__init__()
        self.set_task_factory(self._numbered)
        self.set_exception_handler(lambda loop, context: None)

    def _numbered(self, loop: Any, coroutine: Any, context: Context | None = None) -> _Task:
        self._numbers += 1
        return _Task(coroutine, number=self._numbers, loop=loop, context=context)

    def time(self) -> float:
        """The world's time."""
        return self._schedule.now

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Run it in the next turn."""
        handle = super().call_soon(callback, *args, context=context)
        self._plan(self._schedule.now)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        """Run it in the first turn after that time."""
        handle = super().call_at(when, callback, *args, context=context)
        self._plan(when)
        return handle

    def _plan(self, when: float) -> None:
        if not self.ended and (self._due is None or when < self._due):
            self._due = when
            self._schedule.at(max(0.0, when - self._schedule.now), self._turn, when)

    def _turn(self, when: float) -> None:
        if self.ended or when != self._due:
            return  # another one was planned since
        self._due = None
        if (until := self._suspended()) > self._schedule.now:
            self._plan(until + 0.001)
            return
        self._run_ready()
        if self._ready:  # type: ignore[attr-defined]
            self._plan(self._schedule.now)
        elif self._scheduled:  # type: ignore[attr-defined]
            self._plan(self._scheduled[0].when())  # type: ignore[attr-defined]

    def _run_ready(self) -> None:
        asyncio._set_running_loop(self)
        self._thread_id = threading.get_ident()
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            self._thread_id = None
            asyncio._set_running_loop(None)

    def dispose(self) -> None:
        """End the process, and unwind what its tasks had begun; whatever they call must do nothing any more."""
        self.ended = True
        for turn in range(200):
            tasks = sorted(asyncio.all_tasks(self), key=hash)
            if not tasks:
                break
            for task in tasks if turn % 20 == 0 else ():  # what still waits after some turns waits for somebody else
                task.cancel()
            self._run_ready()
        self.close()
