"""The run of one machine: facts in, effects out in order; the clock that it sees, and the threads that may block."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Event, Ticked

TICK_SECONDS = 0.2
T = TypeVar("T")


class Clock:
    """Wall-clock seconds that never go back and never stand still, which is what machines are given as `now`."""

    def __init__(self) -> None:
        self._last = self._steady = 0.0

    def __call__(self) -> float:
        """The time now; if the system's clock was set back, what has passed since the last call on top of that one."""
        steady = time.monotonic()
        self._last = max(time.time(), self._last + steady - self._steady)
        self._steady = steady
        return self._last


class Loop:
    """One machine's run: takes facts one by one and awaits `perform` for each effect, in order.

    `perform` must return when the effect's place in the order is secure: a `Send` when it is queued on its channel,
    an append when the file has it. What takes long and needs no order goes to `spawn`, whose result, if it is an
    Event, is told.
    """

    def __init__(
        self, handle: Callable[[Event, float], list[Effect]], perform: Callable[[Effect], Awaitable[None]]
    ) -> None:
        self._handle = handle
        self._perform = perform
        self._inbox: asyncio.Queue[tuple[Event, Callable[[], Awaitable[None]] | None]] = asyncio.Queue()
        self._group: asyncio.TaskGroup | None = None
        self._clock = Clock()

    def tell(self, event: Event, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Queue a fact; `taken` is awaited when its effects are carried out."""
        self._inbox.put_nowait((event, taken))

    def spawn(self, work: Coroutine[Any, Any, Event | None]) -> asyncio.Task[None]:
        """Do slow work beside the loop. If it raises, the whole run ends with that error."""
        if self._group is None:
            work.close()
            raise ProtocolError("an effect was to be carried out after its epoch ended")
        return self._group.create_task(self._told(work))

    async def _told(self, work: Coroutine[Any, Any, Event | None]) -> None:
        event = await work
        if event is not None:
            self.tell(event)

    async def run(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Run until cancelled, with `beside` in the same group; the first error of any of it ends all and is raised."""
        try:
            async with together(self._tick(), *beside) as group:
                self._group = group
                while True:
                    event, taken = await self._inbox.get()
                    effects = deque(self._handle(event, self._clock()))
                    del event  # rows may be in it, and in each effect, that are large: none outlives its turn
                    while effects:
                        await self._perform(effects.popleft())
                    if taken is not None:
                        await taken()
        finally:
            self._group = None

    async def _tick(self) -> None:
        while True:
            self.tell(Ticked())
            await asyncio.sleep(TICK_SECONDS)


@asynccontextmanager
async def together(*works: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group of these works; its first error, which ended the group, is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
            yield group
    except BaseExceptionGroup as group_error:
        raise _first_of(group_error) from group_error


def _first_of(error: BaseExceptionGroup[BaseException]) -> Exception:
    inner = error.exceptions[0]
    if isinstance(inner, BaseExceptionGroup):
        return _first_of(inner)
    return inner if isinstance(inner, Exception) else RuntimeError(repr(inner))


class LoopLag:
    """How long the event loop lets those wait who are due: a call that is due over and over, and comes late."""

    LOOK_SECONDS = 0.01

    def __init__(self, window_seconds: float = 15.0) -> None:
        """Look from now on, on the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._window = window_seconds
        self._late: deque[tuple[float, float]] = deque()  # when, by how much: the longest first, the newest last
        self._due = self._loop.time()
        self._look()

    def _look(self) -> None:
        now = self._loop.time()
        late = now - self._due
        while self._late and self._late[-1][1] <= late:
            self._late.pop()
        self._late.append((now, late))
        self._due = now + self.LOOK_SECONDS
        self._next = self._loop.call_at(self._due, self._look)

    def longest(self) -> float:
        """The longest wait of the window, in seconds."""
        while len(self._late) > 1 and self._late[0][0] < self._loop.time() - self._window:
            self._late.popleft()
        return self._late[0][1]

    def end(self) -> None:
        """Look no more."""
        self._next.cancel()


class OneThread:
    """Blocking calls on one object that is not for two threads: they run one after another, in a thread of their own.

    A call goes on in its thread when whoever awaited it was cancelled, so the end must stand in the same queue.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1)

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` behind all earlier calls."""
        return await asyncio.wrap_future(self._pool.submit(function))

    def end(self, function: Callable[[], object]) -> None:
        """Run `function` behind all earlier calls, as the last, without waiting for it."""
        self._pool.submit(function)
        self._pool.shutdown(wait=False)


_STORE = ThreadPoolExecutor(max_workers=8, thread_name_prefix="cutline-store")


async def in_store(call: Callable[..., T], *arguments: object) -> T:
    """Make a blocking call to the store, in one of its threads. Nothing else may run there, so that the journal never
    waits for a source that doesn't answer, nor for anything but the store."""
    return await asyncio.get_running_loop().run_in_executor(_STORE, call, *arguments)
