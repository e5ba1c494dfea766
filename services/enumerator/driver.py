"""The driver of one pipeline's leader: leads the pipeline while it holds the lease, and stands by otherwise."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from cutline.common import logs
from cutline.common.causes import Cause
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import CutlineError, Loss, NoRoom, ProtocolError, Unavailable
from cutline.common.limits import Limits
from cutline.common.measures import Measures
from cutline.common.mesh.awaited import Awaited
from cutline.common.mesh.host import Host, finished
from cutline.common.mesh.loop import TICK_SECONDS, Loop
from cutline.common.mesh.machine import Effect, Event, PartStored, SavePart, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.ports import Ports
from cutline.common.mesh.presence import WIRE, RequestKind, Service
from cutline.common.mesh.topology import ENUMERATOR, ROLES
from cutline.common.status.pipeline_status import BinlogStatus, EnumeratorStatus
from cutline.common.store.lives import Key
from cutline.common.store.store import PipelineStore
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.commanding import Commanding
from cutline.services.enumerator.ending import Deletion, Dismissal
from cutline.services.enumerator.epoch import EpochWork, failure
from cutline.services.enumerator.events import (
    AskSparkWriter,
    CloseEpoch,
    CommandAccepted,
    DeletePipeline,
    DescribeTable,
    Dismiss,
    FindBase,
    FindBound,
    FindOutcome,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    MemberSeen,
    Observed,
    OpenEpoch,
    PutDefinition,
    ReadJournal,
    ReleaseSavepoint,
    Settings,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.grids import Grids
from cutline.services.enumerator.journal import Journal, place_of
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.ports import Source, Sources
from cutline.services.enumerator.states import IDLE, RESTING, STOPPED, EpochOpened
from cutline.services.enumerator.status import TablesShown, deletion_awaits, of_leader
from cutline.services.enumerator.tables import Table

LEASE_SECONDS = 5.0
STATUS_SECONDS = 0.5
COMMAND_SECONDS = 1.0
BINLOG_SECONDS = (5.0, 60.0)  # before the first look at the source's binlog files, and between two looks
MEMBER_ROLES = frozenset(role.name for role in ROLES)
log = logging.getLogger("cutline.enumerator")


class EnumeratorDriver:
    """Leads one pipeline, or stands by: carries out what its leader orders (leader.py)."""

    def __init__(
        self,
        host: Host,
        store: PipelineStore,
        config: PipelineConfig,
        environment: Environment,
        sources: Sources,
        version: int = 1,
    ) -> None:
        """Take a version of the definition, to begin with: each epoch names its own."""
        self.host, self.store, self.version = host, store, version
        self._environment = environment
        settings = self._settings(config)
        run, part_of = self.ports.token(6), environment.run
        self.leader = Leader(incarnation=host.incarnation, run=run, settings=settings, part_of=part_of)
        self.commanding = Commanding(store, self.ports, self._settings, sources.verify_reach)
        self._hint = asyncio.Event()  # a person gave a command
        self._awaited = Awaited(self.ports.clock)
        self._showing = asyncio.Lock()  # held while the status is written
        self.loop = Loop(self._handle, self._perform, self.ports.clock)
        self._sources = sources
        self.source: Source = sources.open(config)
        self.lease = self.ports.lease(self.key, host.incarnation, LEASE_SECONDS)
        self._last_tables: Mapping[str, Table] = {}  # of the newest epoch
        self._shown, self._grids = TablesShown(self.name), Grids()
        self._measures = Measures()
        self.journal = Journal(store, self.commanding, self._measures)
        self._binlog: BinlogStatus | None = None  # for the status
        self._foreign: set[str] = set()  # services of another version
        self.epoch: EpochWork | None = None
        self.marks = Marks(self.ports.clock)  # of the newest epoch
        self._tenure: set[asyncio.Task[None]] = set()  # cancelled once the lease is lost
        self._dismissal = Dismissal(store, self.ports)
        self._deletion = Deletion(store, self.ports, self.commanding, self._showing)

    @property
    def ports(self) -> Ports:
        """The ports of the process."""
        return self.host.ports

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.store.name

    @property
    def key(self) -> Key:
        """The key of this life of the pipeline."""
        return self.store.key

    def _settings(self, config: PipelineConfig) -> Settings:
        return Settings(
            chunk_rows=config.snapshot.chunk_rows,
            exact=config.snapshot.chunks == "exact",
            quarantine_changed=config.schema_changes == "halt",
            snapshot_only=config.start == "snapshot-only",
            interval_seconds=config.checkpoint.interval_seconds,
            reads_again=config.source.lost_position == "read-again",
            limits=Limits(
                rows_per_second=config.snapshot.max_rows_per_second,
                bytes_per_second=config.snapshot.max_bytes_per_second,
            ),
            services={"reader": self._environment.readers, "writer": self._environment.writers},
        )

    async def run(self) -> None:
        """Lead or stand by, until cancelled, or until the pipeline is deleted."""
        try:
            running = asyncio.create_task(
                self.loop.run(
                    self._observe(), self._show(), self._watch_binlog(), self._look_for_commands()
                )
            )
            gone = asyncio.create_task(self._deletion.over.wait())
            try:
                await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                for task in (running, gone):
                    task.cancel()
                await asyncio.wait([running, gone])
        finally:
            self.host.leads.discard(self.key)
            await finished(self.lease.release())
            await self._close()
            self.source.close()
            self.commanding.close()

    # --- observations ---

    async def _observe(self) -> None:
        held, renewed_at = False, 0.0
        now = self.ports.clock.monotonic
        while True:
            try:
                held = await self._acquired()
                renewed_at = now()
                services = await self.ports.notes.services()
                if held:
                    for request in await self.ports.notes.take_requests(self.key):
                        if request.get("kind") == RequestKind.LOOK:
                            self._hint.set()
                    if self.epoch is not None and self.epoch.links is not None:
                        await self.ports.notes.announce_epoch(self.key, self.epoch.number)
                self.loop.tell(Observed(held=held, members=tuple(self._members(services))))
            except Unavailable:
                # Redis does not answer. The lease may still be ours until it must have expired; members are unknown.
                if held and now() - renewed_at > LEASE_SECONDS:
                    held = False
                    self.loop.tell(Observed(held=False, members=()))
            await asyncio.sleep(TICK_SECONDS * 2)

    async def _look_for_commands(self) -> None:
        """Look each second, and at a hint, whether the store has the next command."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hint.wait(), COMMAND_SECONDS)
            self._hint.clear()
            if self.leader.state == IDLE:
                continue
            with suppress(Unavailable):
                n = self.leader.agenda.last + 1
                while (command := await self.ports.pools.store.call(self.store.commands.get, n)) is not None:
                    log.info("pipeline %s: command %d: %s, by %s", self.name, n, command.kind, command.by)
                    self.loop.tell(CommandAccepted(command=command))
                    n += 1

    async def _acquired(self) -> bool:
        try:
            return await self.lease.acquire()
        except NoRoom:  # without a leader, the pipeline's old streams would never be freed
            if freed := await self.ports.streams.free(self.key):
                log.warning("Redis is full and pipeline %s has no leader: removed %d of its streams", self.name, freed)
            raise

    def _members(self, services: list[Service]) -> list[MemberSeen]:
        members = []
        for service in services:
            if service.role in MEMBER_ROLES and self._speaks_with(service):
                failed = service.failed.get(self.key)
                members.append(
                    MemberSeen(
                        incarnation=service.incarnation,
                        role=service.role,
                        leaving=service.leaving,
                        failed_epoch=failed.epoch if failed else 0,
                        failed=failed.cause if failed else None,
                        halts=failed is not None and failed.halts,
                        lost=failed.lost if failed else Loss.NOTHING,
                    )
                )
        return members

    def _speaks_with(self, service: Service) -> bool:
        """Whether a service has our version of the messages. The log says once that it has not."""
        if service.wire == WIRE:
            return True
        if service.incarnation not in self._foreign:
            self._foreign.add(service.incarnation)
            log.warning(
                "%s has version %d of the mesh's messages, this enumerator %d; it takes part once an enumerator of its"
                " version leads",
                service.incarnation,
                service.wire,
                WIRE,
            )
        return False

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            async with self._showing:
                if self.leader.state != IDLE and not self._deletion.forgotten:
                    with suppress(Unavailable):
                        await self._put_status()

    async def _put_status(self) -> None:
        deleting = self.leader.agenda.standing.mode == "deleting"
        if self.leader.state == STOPPED and not deleting and not self._last_tables and self.leader.base is not None:
            self._last_tables = await self.ports.pools.store.call(self.journal.tables_at, self.leader.base)
        if self.source.hosts.several:
            self.source.hosts.follow(await self.ports.notes.status(self.key), now=self.ports.clock.time())
        try:
            tables = self._tables()
            await self.ports.notes.put_status(self.key, ENUMERATOR, self._status(), tables=tables)
            await self._show_splits()
        except NoRoom:  # streams of old epochs would keep services from registering, and epochs from opening
            dead = self.epoch.number if self.epoch is not None else self.leader.tail + 1
            if freed := await self.ports.streams.drop(self.key, before=dead):
                log.warning("Redis is full: removed %d streams of earlier epochs of pipeline %s", freed, self.name)

    async def _show_splits(self) -> None:
        if changed := self._grids.changed(self.leader.enumerator, self.ports.clock.monotonic()):
            try:
                await self.ports.notes.put_splits(self.key, changed)
            except Unavailable:
                self._grids.forget()
                raise

    async def _watch_binlog(self) -> None:
        """Look now and then at how much of its binlog the source still has, while this service leads."""
        first, pause = BINLOG_SECONDS
        await asyncio.sleep(first)
        while True:
            if self.leader.state != IDLE:
                stream = self.leader.enumerator.stream_cut if self.leader.enumerator else None
                read = None if stream is None else stream.position
                try:
                    at = place_of(read) or self.journal.restart
                    self._binlog = await self.source.binlog(read=at, needed=self.journal.needed(self.leader.enumerator))
                except (CutlineError, OSError) as error:  # others wait for the source too, and report it
                    log.debug("pipeline %s: the source's binlog files could not be listed: %s", self.name, error)
            await asyncio.sleep(pause if self._binlog is not None else first)

    def _status(self) -> EnumeratorStatus:
        return dataclasses.replace(
            of_leader(self.leader, self.name, part_of_run=self._environment.run is not None),
            at=self.ports.clock.time(),
            counters=self._measures.counters(),
            histograms=self._measures.histograms(),
            leader=self.host.incarnation,
            waiting_for=self._waiting_for(),
            binlog=self._binlog,
            source_host=self.source.hosts.chosen,
            channels=self.epoch.channels() if self.epoch is not None else {},
            marks=self.marks.shown(),
            rates=self._shown.rates,
        )

    def _waiting_for(self) -> Wait | None:
        leader = self.leader
        if leader.still and leader.agenda.standing.mode == "deleting":
            since, purging = leader.agenda.standing.mode_since, self.commanding.purging
            return deletion_awaits(self.name, since=since, purging=purging, failed=self._deletion.failed)
        waiting = leader.waiting_for(self.loop.now())
        if leader.state == RESTING or leader.still:
            return waiting
        late = self._awaited.late
        if leader.leads and (late is None or late.cause is None):  # it says itself which entry waits for the store
            late = None if self.epoch is None else self.epoch.parts.waiting_for
        full = None if self.epoch is None or self.epoch.links is None else self.epoch.links.waiting_for
        return late or self.source.waiting_for or waiting or full

    def _tables(self) -> str | None:
        """The tables for the status, in JSON; None if the status is up to date."""
        if self.leader.enumerator is not None:
            self._last_tables = self.leader.enumerator.tables
        elif not self._last_tables:
            return None
        return self._shown.changed(self._last_tables, self.ports.clock.monotonic())

    # --- effects ---

    def _handle(self, event: Event, now: float) -> list[Effect]:
        """An error that the machine raises ends the epoch, and counts as a failure of it."""
        if isinstance(event, PartStored):
            self.marks.saved(event.checkpoint)
        in_flight = self.leader.checkpoints.in_flight
        effects = self._handled(event, now)
        (self.host.leads.discard if self.leader.state == IDLE else self.host.leads.add)(self.key)
        if self.leader.state == IDLE:
            for task in self._tenure:
                task.cancel()
        if in_flight is not None and any(isinstance(effect, CloseEpoch) for effect in effects):
            self._measures.count("checkpoint_failures")
        return effects

    def _handled(self, event: Event, now: float) -> list[Effect]:
        try:
            return self.leader.handle(event, now)
        except Exception as error:
            if self.epoch is None:
                raise
            if not isinstance(error, CutlineError):
                log.exception("pipeline %s: unexpected error while handling %s", self.name, type(event).__name__)
            return self.leader.handle(failure(self.epoch.number, error), now)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                if self.epoch is not None:
                    await self.epoch.send(effect)
            case SavePart(checkpoint=checkpoint, state=state):
                assert self.epoch is not None
                self.epoch.spawn(self.epoch.parts.save(checkpoint, state))
            case ReadJournal():
                self._spawn_leading(self._until_available(self.journal.read, "give the journal and the commands"))
            case WriteEntry():
                self._spawn_leading(self._write(effect))
            case OpenEpoch():
                await self._close()
                epoch = self.epoch = EpochWork(effect.epoch, self.host, self.store, self.loop)
                self.marks = epoch.marks
                logs.note(epoch=effect.epoch)
                about = {"cause": str(self.leader.cause)}
                log.info("pipeline %s: epoch %d: %s", self.name, effect.epoch, self.leader.cause, extra=about)
                self._measures.count("epochs")
                epoch.spawn(self._open(effect, epoch))
                epoch.spawn(self._sweep())
            case CloseEpoch():
                await self._close()
            case Dismiss(before=before):
                self._dismissal.order(before, self._spawn_leading)
            case WriteOutcome() | PutDefinition() | FindBase() | ReleaseSavepoint() | AskSparkWriter() | FindOutcome():
                self._spawn_leading(self._carry_out(effect))
            case DeletePipeline():
                self._deletion.order(self._spawn_leading)
            case FindTables() | DescribeTable() | FindRange() | FindBound() | FindStop() | FindPlace():
                assert self.epoch is not None
                self.epoch.spawn(self.source.answer(effect))
            case _:
                raise ProtocolError(f"the enumerator can't carry out {type(effect).__name__}")

    def _spawn_leading(self, work: Coroutine[Any, Any, Event | None]) -> asyncio.Task[None]:
        """Start slow work of this leader: the loss of its lease cancels it. A call to the store that is under way then
        goes on in its thread, as that of a suspended leader might."""
        task = self.loop.spawn(work)
        self._tenure.add(task)
        task.add_done_callback(self._tenure.discard)
        return task

    async def _write(self, order: WriteEntry) -> Event:
        def write() -> Event:
            return self.journal.write(order)

        return await self._until_available(write, f"take entry {order.slot} of the journal")

    async def _carry_out(self, effect: Effect) -> Event:
        return await self._until_answered(lambda: self.commanding.carry_out(effect))

    async def _until_available(self, call: Callable[[], Event], what: str) -> Event:
        with self._awaited.on(Party.STORE, f"the store, to {what}") as failed:
            return await self._until_answered(lambda: self.ports.pools.store.call(call), failed)

    @staticmethod
    async def _until_answered(
        call: Callable[[], Awaitable[Event]], failed: Callable[[Cause], None] = lambda cause: None
    ) -> Event:
        """Call the store until it answers. Repeating is harmless, since an entry carries its nonce. `failed` gets why
        it did not."""
        pause = 0.2
        while True:
            try:
                return await call()
            except Unavailable as error:
                failed(error.cause)
                log.warning("%s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    async def _open(self, order: OpenEpoch, epoch: EpochWork) -> None:
        """Make the epoch's streams, then announce it.

        Members join at once, and restore their parts while the enumerator is restored here, however long that takes:
        they hear our empty messages meanwhile. Their messages wait in the streams until the machine knows that its
        epoch is open: it would refuse earlier ones.
        """
        if order.definition != self.version:
            config = await self.ports.pools.store.call(self.commanding.config, order.definition)
            self.source.close()
            self.source, self.version = self._sources.open(config), order.definition
        topology = order.plan.topology
        if await self.ports.streams.tight():
            await self.ports.streams.drop(self.key, before=order.epoch)
        incarnation = self.host.incarnation
        await self.ports.streams.create(self.key, order.epoch, topology.channels(), leader=incarnation)
        await self.ports.notes.announce_epoch(self.key, order.epoch)
        epoch.link(topology)
        await self.ports.streams.drop(self.key, before=order.epoch)
        enumerator = None
        if order.base is not None:
            enumerator = await self.ports.pools.store.call(self.journal.restored, order.plan, order.base)
        self.loop.tell(EpochOpened(epoch=order.epoch, enumerator=enumerator))
        epoch.opened.set()

    async def _sweep(self) -> None:
        """Remove files of earlier epochs that no entry names. What one sweep can't remove, the next one will."""
        with suppress(Unavailable):
            removed = await self.ports.pools.sweep.call(self.store.removal.sweep)
            log.info("pipeline %s: removed %d files of earlier epochs", self.name, len(removed))

    async def _close(self) -> None:
        epoch, self.epoch = self.epoch, None
        if epoch is not None:
            epoch.cancel()
        self.source.interrupt()
        if epoch is not None:
            await epoch.close()
