"""Processes whose code blocks, under seeds: each thread is one that the world runs, and one at a time has the turn.

A thread gives its turn away at each call to the store, to Redis or to the lake (`turn`), and where it would wait
(`sleep`); the seed says who comes next. So any step of one process can come between any two of another, as it can in
real life. A process can be suspended for a while (a zombie, when it goes on) or killed, at any of these calls.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.clock import SimulatedClock, Wrong


def _taken() -> Any:
    """A lock that somebody else must release."""
    lock = threading.Lock()
    lock.acquire()
    return lock


MOST_TURNS = 20_000
ALONE = 0.6
"""The chance that nobody else comes at a call."""


class Killed(BaseException):
    """The process is gone, at this call."""


@dataclass(slots=True, eq=False)
class Process:
    """One process: its threads are suspended together, and end together."""

    name: str
    suspended_until: float = 0.0
    dead: bool = False
    loops: list[asyncio.AbstractEventLoop] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Actor:
    """One thread of a process."""

    process: Process
    call: Callable[[], None]
    wake: float
    baton: Any = field(default_factory=lambda: _taken())
    done: bool = False


class Actors:
    """All threads of one world. `run` is called in the thread of the world itself."""

    def __init__(self, rng: random.Random, clock: SimulatedClock) -> None:
        self.rng, self.clock = rng, clock
        self.alive: list[Actor] = []
        self.current: Actor | None = None
        self.fault: BaseException | None = None
        self.before_turn: Callable[[Process], None] = lambda process: None
        self._baton = _taken()  # the world's own, which comes back to it when it is over
        self._over: Callable[[], bool] = lambda: True
        self._deadline, self._turns = 0.0, 0
        self._idle: list[tuple[Any, list[Actor]]] = []  # threads without work
        self._threads: list[threading.Thread] = []

    def start(self, process: Process, call: Callable[[], None], delay: float = 0.0) -> Actor:
        """Begin a thread of a process."""
        actor = Actor(process, call, self.clock.now + delay)
        self.alive.append(actor)
        if self._idle:
            ready, given = self._idle.pop()
        else:
            ready, given = _taken(), []
            thread = threading.Thread(target=self._work, args=(ready, given), daemon=True)
            self._threads.append(thread)
            thread.start()
        given.append(actor)
        ready.release()
        return actor

    def _work(self, ready: Any, given: list[Actor]) -> None:
        while True:
            ready.acquire()
            if not given:
                return
            actor = given.pop()
            actor.baton.acquire()
            try:
                if not actor.process.dead:
                    actor.call()
            except Killed:
                pass
            except BaseException as error:
                self.fault = self.fault or error
            actor.done = True
            self.alive.remove(actor)
            self._idle.append((ready, given))
            self._next().release()

    def run(self, over: Callable[[], bool], deadline: float) -> None:
        """Give turns until the world is over; raise what a thread raised. Wrong if that lasts beyond the deadline."""
        self._over, self._deadline = over, deadline
        try:
            self._next().release()
            self._baton.acquire()
            if self.fault is not None:
                raise self.fault
        finally:
            self._over = lambda: True
            self._end()

    def _next(self) -> Any:
        """Choose who has the next turn, and return its baton: the world's once that is over. Whoever had the last turn
        chooses, so that a turn costs one change of threads, and none if it is its own again."""
        self.current = None
        try:
            while self.fault is None and not self._over():
                ready = [a for a in self.alive if max(a.wake, a.process.suspended_until) <= self.clock.now]
                self._turns += 1
                if self._turns > MOST_TURNS:
                    raise Wrong(f"{MOST_TURNS} turns at one moment: somebody waits without a pause")
                if ready:
                    self.current = self.rng.choice(ready) if len(ready) > 1 else ready[0]
                    return self.current.baton
                self._turns = 0
                self.clock.now = min(max(a.wake, a.process.suspended_until) for a in self.alive)
                if self.clock.now > self._deadline:
                    raise Wrong("no end in sight")
        except BaseException as error:
            self.fault = error
        return self._baton

    def _end(self) -> None:
        while self.alive:
            self.current = self.alive[0]
            self.current.process.dead = True
            self.current.baton.release()
            self._baton.acquire()
        for ready, _ in self._idle:
            ready.release()
        for thread in self._threads:
            thread.join()

    def kill(self, process: Process) -> None:
        """End a process: each of its threads at its next call."""
        process.dead, process.suspended_until = True, 0.0
        for actor in self.alive:
            if actor.process is process:
                actor.wake = self.clock.now

    def turn(self) -> None:
        """Whoever calls gives its turn away, and goes on when it gets it again; Killed if its process is gone."""
        self.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        """As `turn`, after so many seconds."""
        actor = self.current
        assert actor is not None
        if actor.process.dead:
            raise Killed
        self.before_turn(actor.process)
        if not seconds and not actor.process.dead and actor.process.suspended_until <= self.clock.now:
            if self.rng.random() < ALONE:
                return
        actor.wake = self.clock.now + seconds
        baton = self._next()
        if baton is not actor.baton:
            baton.release()
            actor.baton.acquire()
        self.current = actor
        if actor.process.dead:
            raise Killed

    # --- event loops ---

    def run_loop(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the calling thread, in a loop whose waiting gives the turn away."""
        actor = self.current
        assert actor is not None
        loop = _Loop(self)
        loop.set_exception_handler(lambda *_: None)
        try:
            loop.run_until_complete(main())
        finally:
            loop.over = True  # nothing of what its tasks still do reaches anybody
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
                for task in tasks:
                    task.cancelled() or task.exception()  # looked at
            loop.close()

    async def in_thread(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a blocking call in another thread of this process. It goes on if the caller is cancelled."""
        loop, actor = asyncio.get_running_loop(), self.current
        assert actor is not None
        future: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            try:
                result, error = call(*arguments, **named), None
            except Exception as raised:
                result, error = None, raised
            if not future.done():
                (future.set_result(result) if error is None else future.set_exception(error))
                actor.wake = min(actor.wake, self.clock.now)

        self.start(actor.process, work)
        return await future


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self.over, self._extra = False, 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._actors.clock.now + self._extra

    def rest(self, seconds: float) -> None:
        if self.over:
            self._extra += seconds
        else:
            self._actors.sleep(seconds)


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.rest(3600.0 if timeout is None else max(timeout, 0.0))
        return []


class Event:
    """What `threading.Event` is to simulated threads."""

    def __init__(self, actors: Actors) -> None:
        self._actors, self._set = actors, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, seconds: float | None = None) -> bool:
        if not self._set:
            self._actors.sleep(3600.0 if seconds is None else max(seconds, 0.0))
        return self._set
