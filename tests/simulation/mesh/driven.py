"""Services of the mesh's world that run the real drivers: the real host follows the announced epochs and joins them, in
an event loop of the process (tests/simulation/loops.py), by the ports that stand here.

Each port call is a step: others come between, it takes a while, and it may fail before it had its effect or after. A
process that sleeps takes no turn; what its threads have begun goes on. One that is killed takes none any more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cutline.common.causes import Cause
from cutline.common.errors import CutlineError, Unavailable
from cutline.common.limits import UNLIMITED, Limits
from cutline.common.measures import TableRows
from cutline.common.mesh.host import Host, gave_up
from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send
from cutline.common.mesh.ports import Inbox, Pools, Ports
from cutline.common.mesh.silence import Silence
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.store.lives import Key, Lives
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator import commanding, pipelines
from cutline.services.enumerator.driver import EnumeratorDriver
from cutline.services.reader import driver as reader_driver
from cutline.services.reader.driver import ReaderDriver
from cutline.services.writer.driver import WriterDriver
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.restored import restore_is_exact
from tests.simulation.clock import log_judged
from tests.simulation.loops import ProcessLoop
from tests.simulation.mesh.asked import AskedSource, Pause
from tests.simulation.mesh.files import OpenFiles
from tests.simulation.mesh.leads import LeaderLease, LeaderNotes, LeaderStreams, ToldStore, adopted, serve
from tests.simulation.mesh.probe import Probe
from tests.simulation.mesh.service import Channel, SimulatedService
from tests.simulation.mesh.shape import Shape
from tests.simulation.mesh.sometimes import note_states
from tests.support.records import LIFE

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

FAILS = {"enumerator": 0.005, "reader": 0.0005, "writer": 0.0005}
"""The chances that a blocking call fails before it had its effect, that its answer is lost, and that it takes long. A
leader makes it again, and a member gives its epoch up."""
LISTEN_SECONDS = 0.4
INSIDE_ROWS = 25


class Driven:
    """One process: its loop, its ports, its host."""

    def __init__(self, world: World, service: SimulatedService) -> None:
        self.world, self.service = world, service
        self.loop = ProcessLoop(world, lambda: service.paused_until)
        self._links: dict[int, SimulatedLinks] = {}  # by epoch: a call that nobody awaits any more may make late ones
        self._tokens = 0
        clock: Any = SimpleNamespace(time=lambda: world.now, monotonic=lambda: world.now)
        many = SimulatedPool(self, 8)
        pools = Pools(own=partial(SimulatedPool, self), store=many, sweep=many, remove=many, encode=many)
        leads = service.role == "enumerator"
        notes: Any = LeaderNotes(self) if leads else SimulatedNotes(self)
        self.ports = Ports(
            clock=clock, token=self._token, pools=pools, notes=notes, links=self._linked,
            streams=LeaderStreams(self), lease=partial(LeaderLease, self),
        )  # fmt: skip
        store = ToldStore(world, service, Lives(cast(Any, world.store.memory)))
        self.host = Host(service.role, store, self.ports)
        self.host.present = self._present  # type: ignore[method-assign]
        PROCESSES[self.host] = self
        self.main = self.loop.create_task(serve(self) if leads else self.host.serve(self._join))
        self.main.add_done_callback(self._over)

    def _token(self, size: int) -> str:
        """The first one names the host, as the world does; a leader draws another for each run."""
        self._tokens += 1
        name = self.service.incarnation.partition("-")[2]
        return name if self._tokens == 1 else f"run-{name}-{self._tokens}"

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.loop.ended:
            self.world.at(0.0, self.fails, error)

    def fails(self, error: Exception) -> None:
        """The world fails by an error that the service would only report."""
        if isinstance(error, Failure):
            raise error
        raise Failure(f"{self.service.incarnation} ended with {error!r}") from error

    def end(self) -> None:
        """It is killed: from here on nothing of it runs."""
        self.loop.ended = True

    def crashes(self, before: str) -> bool:
        """Whether the process dies before this step."""
        world = self.world
        if not self.loop.ended and world.goes_wrong("crash between two effects", world.drivers.crash_rate):
            world.count["crash between two effects"] += 1
            world.mesh.crash(self.service, f"before {before}")
        return self.loop.ended

    @property
    def links(self) -> SimulatedLinks | None:
        """Those of the epoch that it takes part in."""
        return self._links.get(self.service.epoch) if self.service.token is not None else None

    # --- its part in an epoch ---

    def _linked(self, pipeline: Key, epoch: int, name: str, *, inbound: Any, outbound: Any, channels: int = 1) -> Any:
        links = self._links[epoch] = SimulatedLinks(self, epoch, name, inbound)
        if name == ENUMERATOR:
            self.world.mesh.tokens += 1
            self.service.epoch, self.service.name = epoch, ""
            self.service.token = (self.world.mesh.tokens, epoch)
        return links

    async def _present(self) -> None:
        """What the host announces each second of an epoch that it gave up; the world sees all else by itself."""
        while True:
            for report in self.host.failed.values():
                self.service.failed = (report.epoch, report.cause, report.halts, report.lost)
            await asyncio.sleep(1.0)

    async def _join(self, store: PipelineStore, entry: EpochEntry, index: int) -> None:
        world, service = self.world, self.service
        world.mesh.tokens += 1
        token = (world.mesh.tokens, entry.slot)
        try:
            await self._take_part(await self._driver(store, entry, index), entry, token)
        except CutlineError as error:
            world.tell_story(f"{service.incarnation} gives up epoch {entry.slot}: {gave_up(entry.slot, error).cause}")
            world.count[f"driven {service.role} gave up an epoch"] += 1
            raise
        except Exception as error:  # the host reports it as a bug, which it is
            world.at(0.0, self.fails, error)
            raise
        finally:
            if service.token == token:
                service.token = service.process = service.probe = None
                service.limits = UNLIMITED
            self._links.pop(entry.slot, None)

    async def _take_part(self, driver: WriterDriver | ReaderDriver, entry: EpochEntry, token: tuple[int, int]) -> None:
        world, service = self.world, self.service
        service.epoch, service.name, service.token = entry.slot, driver.name, token
        world.mesh.joined_at[service.incarnation] = world.now
        service.probe = Probe(world, driver.name, driver.process.machine, entry.slot)
        driver.process.machine = service.probe
        service.process = driver.process
        driver.process = cast(Any, Watched(world, service))
        world.tell_story(f"{service.incarnation} joins epoch {entry.slot} as {driver.name}, driven")
        world.count[f"driven {service.role} joined an epoch"] += 1
        for sender in self.links.inbound if self.links else ():
            world.network.kick(world.network.channels.get((entry.slot, sender, driver.name)))
        await driver.run()

    async def _driver(self, store: PipelineStore, entry: EpochEntry, index: int) -> WriterDriver | ReaderDriver:
        world, service = self.world, self.service
        if service.role == "writer":
            files = OpenFiles(world, epoch=entry.slot, incarnation=service.incarnation)
            return WriterDriver(self.host, store, entry, index, files=files, rows=TableRows(3))

        def open_source(config: Any, number: int) -> Any:
            return AskedSource(world)

        made = await self.ports.pools.store.call(ReaderDriver, self.host, store, entry, index, open_source)
        made.machine.inside_rows = INSIDE_ROWS
        if index == 0 and entry.base is not None and not entry.anew:
            restore_is_exact(world, made.machine, entry.base, made.name)
        limited = made.chunks.set_limits

        def set_limits(limits: Limits) -> None:
            service.limits = limits
            limited(limits)

        made.chunks.set_limits = set_limits  # type: ignore[method-assign]
        return made


class Config:
    """The settings of a definition, which has tables alone in this world: those of the world's shape."""

    def __init__(self, shape: Shape, reads_again: bool, known: Mapping[str, Any]) -> None:
        self._known = dict(known)
        rows = shape.unsaved_rows
        self.start = "snapshot-only" if shape.snapshot_only else "initial"
        self.schema_changes = shape.schema_changes
        self.checkpoint = SimpleNamespace(
            max_unsaved_bytes=1 << 40 if rows is None else rows, interval_seconds=shape.interval
        )
        self.snapshot = SimpleNamespace(
            chunk_rows=shape.chunk_rows, chunks="exact" if shape.exact else "", max_threads_running=None,
            max_rows_per_second=None, max_bytes_per_second=None,
        )  # fmt: skip
        self.source = SimpleNamespace(server_id=None, lost_position="read-again" if reads_again else "halt")
        self.values = SimpleNamespace(zero_dates=None)

    def definition(self) -> dict[str, Any]:
        """As it is in the store."""
        return self._known


PROCESSES: dict[Host, Driven] = {}
"""Of the world that runs, by host."""


@contextmanager
def driven_here(world: World) -> Iterator[None]:
    """Driven processes say nothing in the log, and are unwound at the end. Definitions are the world's (`Config`), and
    rows go into messages as they are."""
    config = SimpleNamespace(from_definition=partial(Config, world.shape, world.operators.reads_again))

    def led(host: Host, *known: Any) -> EnumeratorDriver:
        return adopted(PROCESSES[host], EnumeratorDriver(host, *known))

    new: list[tuple[Any, dict[str, Any]]] = [
        (reader_driver, {"PipelineConfig": config, "to_ipc": lambda rows: rows}),
        (pipelines, {"PipelineConfig": config, "EnumeratorDriver": led, "SWEEP_SECONDS": 1e9}),
        (commanding, {"PipelineConfig": config}),
    ]
    before = [(module, {name: vars(module)[name] for name in names}) for module, names in new]
    for module, names in new:
        vars(module).update(names)
    try:
        with log_judged():
            yield
    finally:
        for service in world.mesh.services:
            if service.driven is not None:
                service.driven.loop.dispose()
        for module, names in before:
            vars(module).update(names)
        PROCESSES.clear()


class Watched:
    """A process (a machine with its markers) whose every step is checked."""

    def __init__(self, world: World, service: SimulatedService) -> None:
        assert service.process is not None
        self.world, self.service, self.process = world, service, service.process

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        world = self.world
        try:
            effects = self.process.handle(event, now)
            world.drivers.check(self.process, event)
        except Exception as error:
            world.at(0.0, self._refused, event, error)  # the host catches every error of a member
            raise
        note_states(world.count, self.process)
        return effects

    def _refused(self, event: Event, error: Exception) -> None:
        if isinstance(error, Failure):
            raise error
        raise Failure(f"{self.service.name} refused {event}: {error!r}") from error


class SimulatedPool:
    """Threads of a process: so many calls at a time, in the order in which they came."""

    def __init__(self, process: Driven, name: str | int, most: int | None = None) -> None:
        """`name` may be left out."""
        self._process, self._free = process, most if most is not None else int(name)
        # An answer of the source is not lost: a dump that broke says so, and its driver asks again where it was.
        asks = process.service.role != "writer" and most is not None
        self._fails = 0.0 if asks else FAILS[process.service.role]
        self._queue: deque[tuple[Callable[[], Any], asyncio.Future[Any] | None]] = deque()

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make the call behind all earlier ones."""
        future: asyncio.Future[Any] = self._process.loop.create_future()
        if not self._process.crashes("a call of a thread"):
            self._put(partial(function, *arguments, **named), future)
        return await future

    def end(self, function: Callable[[], object] = lambda: None) -> None:
        """Make the last call."""
        self._put(function, None)

    def _put(self, work: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        self._queue.append((work, future))
        self._next()

    def _next(self) -> None:
        if self._queue and self._free:
            self._free -= 1
            world = self._process.world
            late = world.goes_wrong("a call of a thread takes long", self._fails)
            world.count["driven: a blocking call took long"] += late
            world.at(world.rng.uniform(1.0, 12.0) if late else world.lag(2), self._work, *self._queue.popleft())

    def _work(self, work: Callable[[], Any], future: asyncio.Future[Any] | None) -> None:
        self._free += 1
        world = self._process.world
        if self._process.loop.ended:  # what its thread had begun may still have its effect
            if world.rng.random() < 0.5:
                with suppress(CutlineError):
                    work()
            return
        result, error = cast(Any, None), cast(Exception | None, None)
        if world.goes_wrong("a call of a thread fails", self._fails):
            error = Unavailable("it did not answer: the call had no effect")
        else:
            try:
                result = work()
            except CutlineError as raised:
                error = raised
            if isinstance(result, Pause):
                self._free -= 1  # the thread is still at it
                world.at(result.seconds, self._work, result.go_on, future)
                return
            if world.goes_wrong("the answer of a thread is lost", self._fails):
                error = Unavailable("it did not answer: the call had its effect")
        world.count["driven: a blocking call failed"] += error is not None
        if future is not None and not future.done():
            (future.set_result(result) if error is None else future.set_exception(error))
        self._next()


class SimulatedLinks:
    """The links of one member in one epoch, on the world's network."""

    def __init__(self, process: Driven, epoch: int, name: str, inbound: Iterable[str]) -> None:
        self.process, self.epoch, self.name, self.inbound = process, epoch, name, tuple(inbound)
        self.waiting_for: str | None = None
        self._came: deque[tuple[Channel, MessageReceived]] = deque()
        self._wakes = asyncio.Event()
        self._lost: Cause | None = None
        self._silence = Silence(process.world.now)

    async def send(self, order: Send) -> None:
        """Return once the message is on its channel, which may be full for a while."""
        if self.process.crashes("Send"):
            await self.process.loop.create_future()
        network = self.process.world.network
        channel = network.channels.get((self.epoch, self.name, order.receiver))
        while True:
            if channel is None or channel.gone:
                self.process.world.count["send to a stream that is gone"] += 1
                raise Unavailable(f"the channel to {order.receiver} is gone")
            if network.has_room(channel, order.message):
                break
            channel.waiting = self.process.service
            await self._wake()
        network.put(channel, order.message)

    async def _wake(self) -> None:
        self._wakes.clear()
        await self._wakes.wait()

    def wake(self) -> None:
        """A channel has room, or is gone."""
        self._wakes.set()

    def receive(self, channel: Channel, fact: MessageReceived) -> None:
        """A message has come."""
        self._came.append((channel, fact))
        self._wakes.set()

    def lose(self, cause: Cause) -> None:
        """A channel has lost something."""
        self._lost = cause
        self._wakes.set()

    async def pump(self, loop: Inbox) -> None:
        """Hand each message to the loop; Unavailable if one is missing, or the leader is silent."""
        world = self.process.world
        while True:
            while self._came:
                channel, fact = self._came.popleft()
                loop.tell(fact, taken=self._taken(channel, fact))
            if self._lost is not None:
                raise Unavailable(self._lost)
            leads = self.name == ENUMERATOR
            if not leads and self._silence.read(world.now, heard=world.mesh.heard(self.process.service)):
                world.count["member left a leader that is gone"] += 1
                raise Unavailable("its leader is silent")
            try:
                async with asyncio.timeout(LISTEN_SECONDS):
                    await self._wake()
            except TimeoutError:
                pass

    def _taken(self, channel: Channel, fact: MessageReceived) -> Callable[[], Awaitable[None]]:
        async def taken() -> None:
            self.process.world.network.taken(channel, fact)

        return taken

    async def idle(self) -> None:
        """The world's members hear their leader without messages (`Services.heard`)."""
        await self.process.loop.create_future()

    def state(self) -> dict[str, dict[str, int]]:
        """Nothing that a check looks at."""
        return {}

    async def close(self) -> None:
        """A leader's epoch is over."""
        service = self.process.service
        if self.name == ENUMERATOR and self.process.links is self:
            service.token = service.probe = None


class SimulatedNotes:
    """What a member asks of the notes in Redis."""

    def __init__(self, process: Driven) -> None:
        self.process = process

    async def epochs(self) -> dict[Key, int]:
        """The announced epoch."""
        announced = self.process.world.mesh.announced
        return {LIFE.key: announced} if announced else {}

    async def services(self) -> list[Any]:
        """The services that live."""
        return [service for service in self.process.world.mesh.services if service.alive]

    async def put_member_status(self, *_: Any) -> None:
        """Nobody looks at it."""
