"""Driving a machine: facts in, effects out in order, channels on both sides. All waiting of a service happens here.

The order of durability, once for the whole of Cutline; nothing of a later line may happen before all of the earlier
ones:

1. the data of checkpoint N is durable (writers: staged files fsynced under their final names);
2. each member's part of N is saved (parts, fsynced);
3. the journal's entry N is written by put-if-absent: from here on N exists, and a restore begins at N;
4. the Spark writer applies N on its own branch of each table;
5. publication N is written by put-if-absent: from here on N is shown, whatever happens;
6. tags, `main` and `_cutline.publications` are made from publication N, as often as it takes.

A message is *taken* (trimmed from its stream, its credit returned) when all effects of its fact are carried out.
If anything of an epoch fails, everything of that epoch stops, and its cause is told by the service's presence; the
leader starts the next epoch. Blocking calls run in threads behind `Loop.spawn` or an awaited `to_thread`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from redis.asyncio import Redis

from cutline.common.channels import Receiver, Sender, stream_name
from cutline.common.config import Environment
from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable
from cutline.common.machine import Effect, Event, MessageReceived, Send, Ticked
from cutline.common.messages import Records, decode, encode
from cutline.common.registry import GaveUp, Registry, Service
from cutline.common.store import PartRef, PipelineStore, Store

CREDIT_BYTES = 32 << 20
TICK_SECONDS = 0.2
LEAVE_SECONDS = 8.0
END_SECONDS = 12.0
log = logging.getLogger("cutline.driver")
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


class Links:
    """All channels of one member in one epoch."""

    def __init__(
        self, redis: Redis, pipeline: str, epoch: int, name: str, *, inbound: Iterable[str], outbound: Iterable[str]
    ) -> None:
        self._inbound = {stream_name(pipeline, epoch, peer, name): peer for peer in inbound}
        self._receiver = Receiver(redis, self._inbound)
        self._senders = {
            peer: Sender(redis, stream_name(pipeline, epoch, name, peer), credit_bytes=CREDIT_BYTES)
            for peer in outbound
        }
        self._used: set[str] = set()

    async def send(self, order: Send) -> None:
        """Queue the message behind all earlier ones to that receiver; waits while its channel has no room."""
        message, sender = order.message, self._senders[order.receiver]
        self._used.add(order.receiver)
        if isinstance(message, Records):
            await sender.send(encode(message), message.body, counted=True)
        else:
            await sender.send(encode(message), counted=False)

    async def pump(self, loop: Loop) -> None:
        """Hand every message that comes to the loop; returns its credit when it was taken."""
        room = asyncio.Semaphore(64)
        while True:
            for stream, header, body in await self._receiver.receive():
                await room.acquire()

                async def taken(stream: str = stream) -> None:
                    room.release()
                    await self._receiver.taken(stream, 1)

                message = decode(header, body or None)
                loop.tell(MessageReceived(channel=self._inbound[stream], message=message), taken)

    async def idle(self) -> None:
        """Send an empty message each second where nothing else was sent, so that a lost tail shows."""
        while True:
            await asyncio.sleep(1.0)
            used, self._used = self._used, set()
            for peer, sender in self._senders.items():
                if peer not in used:
                    await sender.idle()

    async def close(self) -> None:
        """End all connections; what is still queued is not sent any more."""
        with suppress(CutlineError):
            await self._receiver.close()
        for sender in self._senders.values():
            with suppress(CutlineError):
                await sender.close()


Join = Callable[[PipelineStore, dict[str, Any], int], Coroutine[Any, Any, None]]


class Host:
    """One service process of the mesh: says that it is there, and takes part in every pipeline whose plan names it.

    `join(store, entry, index)` runs its member (number `index` of its role) in the epoch of that journal entry, until
    it is cancelled or fails. A failure is told by the presence and touches no other pipeline.
    """

    def __init__(self, role: str, redis: Redis, store: Store) -> None:
        self.role = role
        self.redis = redis
        self.store = store
        self.registry = Registry(redis)
        self.incarnation = f"{role}-{secrets.token_hex(6)}"
        self.failed: dict[str, GaveUp] = {}
        self.asked_to_end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end)
        self._started_at = time.time()

    def _end(self) -> None:
        if not self.asked_to_end.is_set():
            self.asked_to_end.set()
            # A SELECT, or a store that doesn't answer, may hold a thread, which the interpreter would wait for.
            last = threading.Timer(END_SECONDS, os._exit, (0,))
            last.daemon = True
            last.start()

    async def present(self) -> None:
        """Say each second that this service is there, and at its end that it is gone."""
        try:
            while True:
                service = Service(
                    incarnation=self.incarnation,
                    role=self.role,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_at=self._started_at,
                    failed=dict(self.failed),
                    leaving=self.asked_to_end.is_set(),
                )
                with suppress(Unavailable):  # our absence is what tells
                    await self.registry.announce_presence(service)
                await asyncio.sleep(1.0)
        finally:
            await finished(self.registry.withdraw_presence(self.incarnation))

    async def serve(self, join: Join) -> None:
        """Follow the announced epochs until the process is asked to end."""
        running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(join, running, group))
            present = group.create_task(self.present())
            await self.asked_to_end.wait()
            await self._released(running)
            for task in (following, *(member for _, member in running.values()), present):
                task.cancel()

    async def _follow(
        self, join: Join, running: dict[str, tuple[int, asyncio.Task[None]]], group: asyncio.TaskGroup
    ) -> None:
        while True:
            with suppress(Unavailable):
                epochs = await self.registry.epochs()
                for pipeline, epoch in epochs.items():
                    known = running.get(pipeline)
                    if known is not None and known[0] >= epoch:
                        continue
                    if known is not None:
                        known[1].cancel()
                        await asyncio.wait([known[1]])
                    task = group.create_task(self._member(join, pipeline, epoch))
                    running[pipeline] = (epoch, task)
            await asyncio.sleep(TICK_SECONDS)

    async def _released(self, running: Mapping[str, tuple[int, asyncio.Task[None]]]) -> None:
        """Wait until no epoch needs this service: its leader takes a checkpoint and begins the next one without it.

        Not longer than LEAVE_SECONDS, and not if nobody is there to lead.
        """
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(LEAVE_SECONDS):
                while any(not task.done() for _, task in running.values()):
                    there = await self.registry.services()
                    if not any(one.role == "enumerator" and not one.leaving for one in there):
                        return
                    await asyncio.sleep(TICK_SECONDS)

    async def _member(self, join: Join, pipeline: str, epoch: int) -> None:
        try:
            store = self.store.pipeline(pipeline)
            entry = await asyncio.to_thread(store.entry, epoch)
            if entry is None or entry["kind"] != "epoch":
                raise ProtocolError(f"epoch {epoch} of {pipeline} is announced but slot {epoch} holds no epoch entry")
            members = entry["members"][f"{self.role}s"]
            if self.incarnation not in members:
                return
            log.info("%s joins epoch %d of %s as %s", self.incarnation, epoch, pipeline, self.role)
            await join(store, entry, members.index(self.incarnation))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, CutlineError):
                log.exception("%s failed in epoch %d of %s", self.incarnation, epoch, pipeline)
            else:
                log.warning("%s leaves epoch %d of %s: %s", self.incarnation, epoch, pipeline, error)
            self.failed[pipeline] = gave_up(epoch, error)


def gave_up(epoch: int, error: Exception) -> GaveUp:
    """What there is to tell of an epoch that ended by this error."""
    halts = isinstance(error, (ProtocolError, SourceLost)) or not isinstance(error, CutlineError)
    return GaveUp(epoch=epoch, cause=str(error) or type(error).__name__, halts=halts)


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Ask Redis for this at an end, in a task that nobody has cancelled (`wire` heeds that); it may be away."""
    with suppress(Unavailable):
        await asyncio.create_task(work)


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service process until it is ended; a wrong configuration is told on stderr and exits with 2."""
    try:
        level = Environment.read().log_level
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(main())
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        sys.exit(2)


async def save_part(store: PipelineStore, name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Put a part into the store, and return its journal form."""
    data = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    ref = await asyncio.to_thread(store.put_part, name, data)
    return ref.to_json()


def load_part(store: PipelineStore, ref: Mapping[str, Any]) -> dict[str, Any]:
    """The part that `ref` (its journal form) names. Blocking. ProtocolError if it is gone or not what was written."""
    part: dict[str, Any] = json.loads(store.read_part(PartRef.from_json(ref)))
    return part
