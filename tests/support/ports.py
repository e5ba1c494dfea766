"""The ports of a driver under test: production's with a Redis that does not answer, or simulated ones.

These are in simulated time, and their calls hang, fail half-way or answer late, as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from cutline.common.errors import Unavailable
from cutline.common.mesh import production
from cutline.common.mesh.machine import MessageReceived, Send
from cutline.common.mesh.messages import Message
from cutline.common.mesh.ports import Inbox, Pools, Ports
from cutline.common.mesh.presence import Service
from cutline.common.mesh.redis import connect
from tests.simulation.channels.redis import SimulatedLoop
from tests.simulation.clock import SimulatedClock


def ports(**given: Any) -> Ports:
    """The ports, with these in place of production's."""
    return replace(production.ports(connect("redis://127.0.0.1:1")), **given)


class SimulatedPool:
    """One thread, whose calls are made in the event loop, one behind the other. While the test holds it, they wait:
    all, or those of a function by its name."""

    def __init__(self) -> None:
        self.held: bool | str = False
        self.made: list[str] = []  # the names of the functions, when each has its answer
        self.ended = False
        self._behind = asyncio.Lock()

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        assert not self.ended, f"{function} is called after the pool's end"
        # In a task of its own, since a call goes on in its thread when its caller is cancelled.
        return await asyncio.shield(asyncio.ensure_future(self._make(function, arguments, named)))

    async def _make(self, function: Callable[..., Any], arguments: Any, named: Any) -> Any:
        name = getattr(getattr(function, "func", function), "__name__", "?")
        async with self._behind:
            await asyncio.sleep(0.01)  # no answer is at once, so time passes also where calls follow each other
            while self.held in (True, name):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            self.made.append(name)
            return function(*arguments, **named)

    def end(self, function: Callable[[], object] = lambda: None) -> None:
        assert not self.ended
        self.ended = True
        self._last = asyncio.ensure_future(self._make(function, (), {}))


class SimulatedLinks:
    """The channels of one member: what it sent, and what it is to receive."""

    waiting_for = None

    def __init__(self, epoch: int, name: str) -> None:
        self.epoch, self.name = epoch, name
        self.sent: list[Send] = []
        self.closed = False
        self.broken: Exception | None = None
        self._coming: asyncio.Queue[MessageReceived] = asyncio.Queue()

    def receive(self, channel: str, message: Message) -> None:
        """This message arrives."""
        self._coming.put_nowait(MessageReceived(channel=channel, message=message))

    def messages(self, kind: type) -> list[Any]:
        """The messages of a kind that were sent."""
        return [order.message for order in self.sent if isinstance(order.message, kind)]

    async def send(self, order: Send) -> None:
        assert not self.closed
        self.sent.append(order)

    async def pump(self, loop: Inbox) -> None:
        while True:
            loop.tell(await self._coming.get())

    async def idle(self) -> None:
        while self.broken is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        raise self.broken

    def state(self) -> dict[str, dict[str, int]]:
        return {}

    async def close(self) -> None:
        self.closed = True


class SimulatedRedis:
    """What the leader and its members have in Redis: the lease, the notes, the streams. It answers while it is `up`."""

    def __init__(self) -> None:
        self.up, self.ours, self.released = True, True, False
        self.present: list[Service] = []
        self.announced: dict[str, int] = {}
        self.statuses: dict[str, Any] = {}
        self.streams: set[int] = set()  # the epochs that have any
        self.refuses_streams = 0  # so many times to create them fails, half-way

    def _asked(self) -> None:
        if not self.up:
            raise Unavailable("Redis does not answer")

    # the lease

    async def acquire(self) -> bool:
        self._asked()
        return self.ours

    async def release(self) -> None:
        self._asked()
        self.released = True

    # the notes

    async def services(self) -> list[Service]:
        self._asked()
        return list(self.present)

    async def announce_epoch(self, pipeline: Any, epoch: int) -> None:
        self._asked()
        self.announced[pipeline] = epoch

    async def take_requests(self, pipeline: Any) -> list[Any]:
        return []

    async def forget(self, pipeline: Any) -> None:
        self._asked()
        self.announced.pop(pipeline, None)
        self.statuses.clear()

    async def put_status(self, pipeline: Any, part: str, status: Any, *, tables: str | None = None) -> None:
        self._asked()
        self.statuses[part] = status

    async def put_member_status(self, pipeline: Any, member: str, status: Any) -> None:
        self._asked()
        self.statuses[member] = status

    async def put_splits(self, pipeline: Any, changed: Any) -> None:
        self._asked()

    # the streams

    async def create(self, pipeline: Any, epoch: int, channels: Sequence[Any], *, leader: str) -> None:
        self._asked()
        self.streams.add(epoch)
        if self.refuses_streams:
            self.refuses_streams -= 1
            raise Unavailable("Redis does not answer any more")

    async def drop(self, pipeline: Any, *, before: int) -> int:
        self._asked()
        gone = {epoch for epoch in self.streams if epoch < before}
        self.streams -= gone
        return len(gone)

    async def tight(self) -> bool:
        return False


class Simulated:
    """The ports of one process in simulated time."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.redis = SimulatedRedis()
        self.pools: dict[str, SimulatedPool] = {}
        self.links: list[SimulatedLinks] = []

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test; at its end no task of the driver is left."""
        loop = SimulatedLoop(self.clock)
        try:
            loop.run_until_complete(main())
            left = [task for task in asyncio.all_tasks(loop) if "SimulatedPool" not in repr(task)]
            assert not left, left
        finally:
            for pool in self.pools.values():
                pool.held = False
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
            loop.close()

    def pool(self, name: str, most: int = 1) -> SimulatedPool:
        """The pool of this name, of which a driver makes one."""
        if name not in self.pools or self.pools[name].ended:
            self.pools[name] = SimulatedPool()
        return self.pools[name]

    def ports(self) -> Ports:
        """The ports."""
        redis: Any = self.redis
        shared = {name: self.pool(name) for name in ("store", "sweep", "remove", "encode")}

        def links(pipeline: Any, epoch: int, name: str, **_: Any) -> Any:
            self.links.append(SimulatedLinks(epoch, name))
            return self.links[-1]

        return Ports(
            clock=self.clock, token=lambda size: "ab" * size, pools=Pools(own=self.pool, **shared), notes=redis,
            links=links, streams=redis, lease=lambda pipeline, owner, seconds: redis,
        )  # fmt: skip

    async def until(self, true: Callable[[], object], seconds: float = 60.0) -> None:
        """Return once a condition holds; it must within so many seconds."""
        for _ in range(int(seconds / 0.05)):
            if true():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it never became true")


async def ended(task: asyncio.Task[Any]) -> BaseException | None:
    """Cancel a driver's task, and return what ended it; None if that was the cancellation."""
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return None if isinstance(result, asyncio.CancelledError) else result
