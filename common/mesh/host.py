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
leader starts the next epoch. Blocking calls run in threads behind `Loop.spawn` or awaited: those to the store in the
store's own (`in_store`), those to a source in that source's own (`OneThread`), so that neither waits for the other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import logging
import os
import resource
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

from cutline.common.config import Environment
from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable
from cutline.common.mesh.channels import LEAST_CREDIT_BYTES, Receiver, Sender, stream_name
from cutline.common.mesh.machine import Effect, Event, MessageReceived, PartStored, Send, State, Ticked
from cutline.common.mesh.messages import Records, decode, encode
from cutline.common.mesh.presence import GaveUp, Registry, Service
from cutline.common.mesh.redis import memory
from cutline.common.store.records import Deltas, EpochEntry, PartRef, fold
from cutline.common.store.store import PipelineStore, Store, file_name

CREDIT_BYTES = 32 << 20
SHARE_SECONDS = 10.0
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


def credit_bytes(redis_bytes: int, *, pipelines: int, channels: int) -> int:
    """How many bytes of rows one channel may have under way: a quarter of Redis is shared by all pipelines' channels.

    Redis can hold such bytes three times: in the command that brings them, in the stream, and in the answer that a slow
    or hung receiver has not read yet. The last quarter is for each channel's overhead, and for the streams of an epoch
    that has just ended. At most 32 MiB, and at least the 64 KiB that any message passes in pieces.
    """
    share = redis_bytes // 4 // max(1, pipelines) // max(1, channels)
    return max(LEAST_CREDIT_BYTES, min(CREDIT_BYTES, share))


_STORE = ThreadPoolExecutor(max_workers=8, thread_name_prefix="cutline-store")


async def in_store(call: Callable[..., T], *arguments: object) -> T:
    """Make a blocking call to the store, in one of its threads. Nothing else may run there, so that the journal never
    waits for a source that doesn't answer, nor for anything but the store."""
    return await asyncio.get_running_loop().run_in_executor(_STORE, call, *arguments)


class Links:
    """All channels of one member in one epoch."""

    def __init__(
        self,
        redis: Redis,
        pipeline: str,
        epoch: int,
        name: str,
        *,
        inbound: Iterable[str],
        outbound: Iterable[str],
        channels: int = 1,
    ) -> None:
        """`channels`: how many of the epoch carry rows, all members' together; they share what Redis has for them."""
        self._redis = redis
        self._channels = channels
        self._inbound = {stream_name(pipeline, epoch, peer, name): peer for peer in inbound}
        self._receiver = Receiver(redis, self._inbound)
        self._senders = {
            peer: Sender(redis, stream_name(pipeline, epoch, name, peer), credit_bytes=LEAST_CREDIT_BYTES)
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
        """Send an empty message each second where nothing else was sent, so that a lost tail shows; and keep each
        channel's credit its share of Redis, which pipelines that come later make smaller."""
        share_at = 0.0
        while True:
            if time.monotonic() >= share_at and await self._shared():
                share_at = time.monotonic() + SHARE_SECONDS
            await asyncio.sleep(1.0)
            used, self._used = self._used, set()
            for peer, sender in self._senders.items():
                if peer not in used:
                    await sender.idle()

    async def _shared(self) -> bool:
        """Set the credits; until then they are the least, since nothing is known of Redis. False if it is away."""
        try:
            told = await memory(self._redis)
            pipelines = len(await Registry(self._redis).epochs())
        except (Unavailable, ConfigError):  # the channels themselves tell what is wrong
            return False
        limit = (told and told.limit_bytes) or Environment.read().redis_memory_bytes
        for sender in self._senders.values():
            sender.credit_bytes = credit_bytes(limit, pipelines=pipelines, channels=self._channels)
        return True

    async def close(self) -> None:
        """End all connections; what is still queued is not sent any more."""
        with suppress(CutlineError):
            await self._receiver.close()
        for sender in self._senders.values():
            with suppress(CutlineError):
                await sender.close()


Join = Callable[[PipelineStore, EpochEntry, int], Coroutine[Any, Any, None]]


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
        lag = LoopLag()
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
                    loop_lag_seconds=round(lag.longest(), 4),
                )
                with suppress(Unavailable):  # our absence is what tells
                    await self.registry.announce_presence(service)
                await asyncio.sleep(1.0)
        finally:
            lag.end()
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
            entry = await in_store(store.entry, epoch)
            if not isinstance(entry, EpochEntry):
                raise ProtocolError(f"epoch {epoch} of {pipeline} is announced but slot {epoch} holds no epoch entry")
            members = entry.members.readers if self.role == "reader" else entry.members.writers
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
    if isinstance(error, CutlineError):
        halts = isinstance(error, (ProtocolError, SourceLost))
        return GaveUp(epoch=epoch, cause=str(error) or type(error).__name__, halts=halts)
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    cause = f"Unexpected {type(error).__name__} ({error}){notes}: a bug of Cutline; report it with the service's log"
    return GaveUp(epoch=epoch, cause=cause, halts=True)


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Ask Redis for this at an end, in a task that nobody has cancelled (`wire` heeds that); it may be away."""
    with suppress(Unavailable):
        await asyncio.create_task(work)


def raise_open_files() -> None:
    """Let this process open as many files as its hard limit allows; the soft one is 1,024 nearly everywhere."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service process until it is ended; a wrong configuration is told on stderr and exits with 2."""
    try:
        level = Environment.read().log_level
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        raise_open_files()
        asyncio.run(main())
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        sys.exit(2)


class Parts:
    """Saves the parts of one member in one epoch: the first one whole, later ones as what changed since a whole one."""

    def __init__(self, store: PipelineStore, *, member: str, epoch: int, incarnation: str) -> None:
        self._store, self._member, self._epoch, self._incarnation = store, member, epoch, incarnation
        self._deltas = Deltas()
        self._values: tuple[list[Mapping[str, Any]], dict[tuple[str, str], Any]] = ([], {})  # of the last part

    async def save(self, checkpoint: int, state: State) -> PartStored:
        """Put a part into the store, and the schemas that it names before it. One call at a time."""
        return PartStored(checkpoint=checkpoint, ref=await in_store(self.put, checkpoint, state))

    def put(self, checkpoint: int, state: State) -> PartRef:
        """`save`, blocking."""
        self._store.put_schemas(state.schemas, epoch=self._epoch)
        sections, values = self._values
        if list(map(id, state.values.values())) != list(map(id, sections)):
            values = {(name, key): value for name, section in state.values.items() for key, value in section.items()}
            self._values = list(state.values.values()), values
        full, changed = self._deltas.of(values)
        name = f"{self._member}-{checkpoint}.json.gz"
        data = gzip.compress(_to_lines(state.head, changed), 1, mtime=0)
        ref = self._store.put_part(file_name(name, epoch=self._epoch, incarnation=self._incarnation), data)
        ref = dataclasses.replace(ref, full=full)
        self._deltas.wrote(ref, values, changed, full=full is None)
        return ref


def load_part(store: PipelineStore, ref: PartRef) -> State:
    """The part that `ref` names, with all its schemas. Blocking. ProtocolError if a file of it is gone or changed."""
    head, changed = _of_lines(gzip.decompress(store.read_part(ref)))
    full = {} if ref.full is None else _of_lines(gzip.decompress(store.read_part(ref.full)))[1]
    values: dict[str, dict[str, Any]] = {}
    for (name, key), value in fold(full, changed).items():
        values.setdefault(name, {})[key] = value
    named = {table.get(by) for table in values.get("tables", {}).values() for by in ("schema", "before")} - {None}
    return State(head=head, values=values, schemas=tuple(store.schemas(named).values()))


def _to_lines(head: Mapping[str, Any], values: Mapping[tuple[str, str], Any]) -> bytes:
    """A part's form: its head, then section, key and value (null: gone), a line each. Made line by line, since encoding
    holds the interpreter, and others have to answer in time."""
    lines = [json.dumps(head, separators=(",", ":"))]
    lines += [json.dumps((*key, value), separators=(",", ":")) for key, value in values.items()]
    return "\n".join(lines).encode()


def _of_lines(data: bytes) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    head, *lines = data.split(b"\n")
    return json.loads(head), {(name, key): value for name, key, value in map(json.loads, lines)}
