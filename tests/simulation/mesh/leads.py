"""Enumerators of the mesh's world that run the real driver: `pipelines.serve` of the real host, which leads or stands
by, by ports of the world: lease, notes, streams, and the source's answers. Its store tells the world what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cutline.common.errors import Unavailable
from cutline.common.mesh.machine import Effect, Event, SavePart
from cutline.common.mesh.presence import WIRE, GaveUp
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.lives import Folder, Key, Life
from cutline.common.store.records import Entry
from cutline.common.store.store import PipelineStore, Store
from cutline.services.enumerator import pipelines
from cutline.services.enumerator.driver import EnumeratorDriver
from cutline.services.enumerator.events import DeletePipeline, OpenEpoch
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.ports import Sources
from tests.simulation.checks.silence import nobody_waits_without_saying_so
from tests.simulation.mesh.service import Channel, SimulatedService
from tests.support.records import LIFE

if TYPE_CHECKING:
    from tests.simulation.mesh.driven import Driven
    from tests.simulation.mesh.world import World

HANGS_SECONDS = 1.0


async def serve(process: Driven) -> None:
    """Lead the world's pipeline, or stand by, until the process ends."""
    shape = process.world.shape
    environment: Any = SimpleNamespace(readers=shape.readers, writers=shape.writers, run=None)
    sources = Sources(open=lambda config: cast(Any, AskedCatalogue(process)), verify_reach=lambda source, place: None)
    await pipelines.serve(process.host, environment, sources)


def adopted(process: Driven, driver: EnumeratorDriver) -> EnumeratorDriver:
    """A driver that the process has made, whose leader the world looks at."""
    process.service.leader = driver.leader
    driver.leader = cast(Any, Led(process, driver.leader))
    process.world.count["driven enumerator stands by"] += 1
    return driver


class Led:
    """A leader whose every step is checked; otherwise the leader itself."""

    def __init__(self, process: Driven, leader: Leader) -> None:
        self._process, self._leader = process, leader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leader, name)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact."""
        world, service = self._process.world, self._process.service
        try:
            effects = world.drivers.handle_leader(service, event)
        except Exception as error:
            world.at(0.0, self._process.fails, error)  # the driver takes every error for a failure of its epoch
            raise
        for effect in effects:
            if isinstance(effect, SavePart):
                world.drivers.note_part(service, effect)
            elif isinstance(effect, OpenEpoch):
                world.leading.note_opened(effect)
                world.count["driven enumerator opened an epoch"] += 1
        if any(isinstance(effect, DeletePipeline) for effect in effects):
            world.hanging.deleting = True  # the world ends with it
        return [effect for effect in effects if not isinstance(effect, DeletePipeline)]


class ToldStore(Store):
    """The store of a process, which tells the world what its leader writes."""

    def __init__(self, world: World, service: SimulatedService, lives: Any) -> None:
        self.url, self._backend, self._lives = "memory://", cast(Any, world.store.memory), lives
        self._world, self._service = world, service

    def open(self, life: Life) -> PipelineStore:
        """The part of the store of a life."""
        return _ToldPipelineStore(Folder(self._backend, life.name, life=life), self._world, self._service)


class _ToldPipelineStore(PipelineStore):
    def __init__(self, folder: Folder, world: World, service: SimulatedService) -> None:
        super().__init__(folder)
        self._world, self._service = world, service
        put = self.commands.put_outcome

        def put_outcome(outcome: Any) -> bool:
            written = put(outcome)
            if written:
                world.operators.outcome_is_sound(outcome)
            return written

        self.commands.put_outcome = put_outcome  # type: ignore[method-assign]

    def put_entry(self, entry: Entry) -> bool:
        """Write a journal entry if its slot is free."""
        world = self._world
        if world.now < world.faults.full_until:
            world.count["store full: an entry waits"] += 1
            raise Unavailable("the store is full")
        if not super().put_entry(entry):
            world.count["slot refused"] += 1
            return False
        world.store.note(entry)
        world.leading.landed(self._service, self._service.leader, entry)
        return True


class AskedCatalogue:
    """The source, as an enumerator asks it (services/enumerator/ports.py)."""

    several, chosen, waiting_for = False, None, None

    def __init__(self, process: Driven) -> None:
        self.process = process
        self.hosts = self

    def follow(self, *_: Any, **__: Any) -> None:
        """There is one server."""

    async def answer(self, question: Effect) -> Event:
        """Answer, once the source does."""
        world = self.process.world
        event_of: Callable[[], Event | None] = world.questions.asked(self.process.service, question)
        await asyncio.sleep(world.lag(2))
        while world.hanging.hangs:  # noqa: ASYNC110  # nobody tells it
            await asyncio.sleep(HANGS_SECONDS)
        event = event_of()
        assert event is not None
        return event

    async def binlog(self, **_: Any) -> Any:
        """The world has no files to show."""
        raise Unavailable("its binlog files can't be listed")

    def interrupt(self) -> None:
        """Its tasks are cancelled."""

    close = interrupt


class LeaderNotes:
    """The notes in Redis, as a leader reads and writes them."""

    def __init__(self, process: Driven) -> None:
        self.process = process

    async def services(self) -> list[Any]:
        """Every service that was present a moment ago."""
        return [_seen(service) for service in self.process.world.mesh.present()]

    async def announce_epoch(self, pipeline: Key, epoch: int) -> None:
        """Call the members of an epoch."""
        self.process.world.mesh.announced = epoch

    async def take_requests(self, pipeline: Key) -> list[dict[str, Any]]:
        """No hint: a leader looks each second."""
        return []

    async def status(self, pipeline: Key) -> PipelineStatus:
        """No Spark writer says anything here."""
        return PipelineStatus()

    async def noted(self) -> set[str]:
        """Nothing of a life that ended."""
        return set()

    async def put_status(self, *_: Any, **__: Any) -> None:
        """Nobody looks at it."""

    put_splits = request = forget = put_status


def _seen(service: SimulatedService) -> Any:
    epoch, cause, halts, loss = service.failed
    failed: Mapping[Key, GaveUp] = {}
    if cause is not None:
        failed = {LIFE.key: GaveUp(epoch=epoch, cause=cause, halts=halts, lost=loss)}
    return SimpleNamespace(
        role=service.role, incarnation=service.incarnation, wire=WIRE, failed=failed, leaving=service.leaving
    )


class LeaderLease:
    """The lease of the world's pipeline."""

    def __init__(self, process: Driven, *_: Any) -> None:
        self.process = process

    async def acquire(self) -> bool:
        """Take or renew it."""
        world, service = self.process.world, self.process.service
        if self.process.crashes("the lease is renewed"):
            await self.process.loop.create_future()
        held = world.mesh.takes_lease(service)
        if held and service.leader is not None:
            nobody_waits_without_saying_so(world, service.leader)
        return held

    async def release(self) -> None:
        """Release it if it is ours."""
        mesh = self.process.world.mesh
        if mesh.lease[0] is self.process.service and not self.process.loop.ended:
            mesh.lease = (None, 0.0)


class LeaderStreams:
    """The streams of the epochs, as a leader makes and removes them."""

    def __init__(self, process: Driven) -> None:
        self.process = process

    async def create(self, pipeline: Key, epoch: int, channels: Sequence[tuple[str, str]], *, leader: str) -> None:
        """Make the streams of an epoch; may be repeated."""
        network = self.process.world.network
        for sender, receiver in channels:
            network.channels.setdefault((epoch, sender, receiver), Channel((epoch, sender, receiver)))

    async def drop(self, pipeline: Key, *, before: int) -> int:
        """Remove the streams of earlier epochs."""
        world = self.process.world
        if world.goes_wrong("Redis removes streams late", 0.2, world.faults.leaderless):
            raise Unavailable("Redis does not answer")
        old = [c for c in world.network.channels.values() if c.name[0] < before and not c.gone]
        for channel in old:
            world.network.drop_channel(channel, world.rng)
        return len(old)

    async def free(self, pipeline: Key) -> int:
        """Redis is never full here."""
        return 0

    async def tight(self) -> bool:
        """Redis is never full here."""
        return False
