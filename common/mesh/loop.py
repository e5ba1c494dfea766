"""The event loop's side of a service: one machine's run, its clock, the loop's lag, and the threads for the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from cutline.common.clock import Clock
from cutline.common.errors import ProtocolError
from cutline.common.mesh.machine import Effect, Event, Ticked
from cutline.common.threads import Threads

TICK_SECONDS = 0.2
P = ParamSpec("P")
T = TypeVar("T")


class SteadyTime:
    """Wall-clock seconds that never go back and never stand still; machines get them as `now`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = self._steady = 0.0

    def __call__(self) -> float:
        """The time now; after the system's clock was set back, the last time returned plus the time since."""
        steady = self._clock.monotonic()
        self._last = max(self._clock.time(), self._last + steady - self._steady)
        self._steady = steady
        return self._last


class Loop:
    """One machine's run: hands it facts one by one and awaits `perform` for each effect, in order.

    `perform` must return once the effect's place in the order is certain: a `Send` when the message is queued on its
    channel, an append when the file holds the rows. Slow work that needs no order goes to `spawn`; if its result is an
    Event, the machine gets that as a fact.
    """

    def __init__(
        self,
        handle: Callable[[Event, float], list[Effect]],
        perform: Callable[[Effect], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._handle = handle
        self._perform = perform
        self._inbox: asyncio.Queue[tuple[Event, Callable[[], Awaitable[None]] | None]] = asyncio.Queue()
        self._group: asyncio.TaskGroup | None = None
        self._now = SteadyTime(clock)

    def now(self) -> float:
        """The time on the clock by which the machine gets its facts."""
        return self._now()

    def tell(self, event: Event, taken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Queue a fact; `taken` is awaited once its effects are carried out."""
        self._inbox.put_nowait((event, taken))

    def spawn(self, work: Coroutine[Any, Any, Event | None]) -> asyncio.Task[None]:
        """Do slow work in a task of its own. If it raises, the whole run ends with that error."""
        if self._group is None:
            work.close()
            raise ProtocolError("an effect was ordered after its epoch ended")
        return self._group.create_task(self._report(work))

    async def _report(self, work: Coroutine[Any, Any, Event | None]) -> None:
        event = await work
        if event is not None:
            self.tell(event)

    async def run(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Run until cancelled, with the tasks `beside` in the same group; the first error ends all and is raised."""
        try:
            async with together(self._tick(), *beside) as group:
                self._group = group
                while True:
                    event, taken = await self._inbox.get()
                    effects = deque(self._handle(event, self._now()))
                    del event  # it and its effects may hold large batches of rows; free each after its turn
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
    """A task group of these coroutines; raises the error that ended the group, not the ExceptionGroup around it."""
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
    """How late the event loop runs calls that are due, measured by a call that repeats every 10 ms."""

    LOOK_SECONDS = 0.01

    def __init__(self, window_seconds: float = 15.0) -> None:
        """Measure the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._window = window_seconds
        self._late: deque[tuple[float, float]] = deque()  # (when, how late): the largest first, the newest last
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
        """The longest delay within the window, in seconds."""
        while len(self._late) > 1 and self._late[0][0] < self._loop.time() - self._window:
            self._late.popleft()
        return self._late[0][1]

    def end(self) -> None:
        """Stop measuring."""
        self._next.cancel()


STORE = Threads("store", 8)


async def in_store(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Make a blocking call to the store, in one of the threads for the store. No other call may run there: the journal
    must never wait for an unreachable source."""
    return await STORE.call(call, *arguments, **named)
