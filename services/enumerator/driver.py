"""The driver of one pipeline's leader: leads the pipeline while it holds the lease, and stands by otherwise."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
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
from cutline.common.mesh.host import Host, finished, gave_up
from cutline.common.mesh.loop import TICK_SECONDS, Loop, together
from cutline.common.mesh.machine import Effect, Event, PartStored, SavePart, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.messages import Marker
from cutline.common.mesh.parts import Parts, PartSaving, load_head, load_part
from cutline.common.mesh.ports import Links, Ports
from cutline.common.mesh.presence import WIRE, RequestKind, Service
from cutline.common.mesh.topology import ENUMERATOR, ROLES
from cutline.common.phases import CATCH_UP, SNAPSHOT
from cutline.common.positions import Position
from cutline.common.status.pipeline_status import BinlogStatus, EnumeratorStatus
from cutline.common.store.lives import Life
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.commanding import Commanding
from cutline.services.enumerator.events import (
    AskSparkWriter,
    CloseEpoch,
    CommandAccepted,
    DeletePipeline,
    DescribeTable,
    Dismiss,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    FindBase,
    FindBound,
    FindOutcome,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    JournalRead,
    MemberSeen,
    Observed,
    OpenEpoch,
    Plan,
    PutDefinition,
    ReadJournal,
    ReleaseSavepoint,
    Settings,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.grids import Grids
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.machine import Enumerator, commands_in
from cutline.services.enumerator.ports import Source, Sources
from cutline.services.enumerator.requests import request_of
from cutline.services.enumerator.states import IDLE, RESTING, STOPPED, EpochOpened
from cutline.services.enumerator.status import TablesShown, deletion_awaits, of_leader
from cutline.services.enumerator.tables import Table, Tables
from cutline.services.sources.mysql.binlog_age import Place

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
        self.host, self.ports, self.store, self.version = host, host.ports, store, version
        self.name, self.key = store.name, store.key
        self._environment = environment
        settings = self._settings(config)
        run, part_of = self.ports.token(6), environment.run
        self.leader = Leader(incarnation=host.incarnation, run=run, settings=settings, part_of=part_of)
        self.commanding = Commanding(store, self.ports, self._settings, sources.verify_reach)
        self._hint = asyncio.Event()  # a person gave a command
        self._gone = asyncio.Event()  # the pipeline was deleted
        self._awaited = Awaited(self.ports.clock)
        self._showing = asyncio.Lock()  # held while the status is written
        self._silent = False  # the pipeline is deleted, and Redis has nothing of it any more
        self._not_deleted: Cause | None = None  # why the last try to delete it failed
        self.loop = Loop(self._handle, self._perform, self.ports.clock)
        self._sources = sources
        self.source: Source = sources.open(config)
        self.lease = self.ports.lease(self.key, host.incarnation, LEASE_SECONDS)
        self._last_tables: Mapping[str, Table] = {}  # of the newest epoch
        self._shown, self._grids = TablesShown(self.name), Grids()
        self.marks = Marks(self.ports.clock)  # of this epoch
        self._measures = Measures()
        self._binlog: BinlogStatus | None = None  # for the status
        self._restart: Place | None = None  # where a restore of the newest checkpoint would read on
        self._foreign: set[str] = set()  # services of another version
        self.epoch = 0
        self.parts: PartSaving | None = None  # of this epoch
        self._work: set[asyncio.Task[None]] = set()  # cancelled with this epoch
        self._tenure: set[asyncio.Task[None]] = set()  # cancelled once the lease is lost
        self._links: Links | None = None  # while an epoch is open
        self._links_task: asyncio.Task[None] | None = None
        self._dismissed = 0  # epochs below it must have no members
        self._dismissing: asyncio.Task[None] | None = None
        self._deleting: asyncio.Task[None] | None = None

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
            gone = asyncio.create_task(self._gone.wait())
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
                    if self._links is not None:
                        await self.ports.notes.announce_epoch(self.key, self.epoch)
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
                if self.leader.state != IDLE and not self._silent:
                    with suppress(Unavailable):
                        await self._put_status()

    async def _put_status(self) -> None:
        deleting = self.leader.agenda.standing.mode == "deleting"
        if self.leader.state == STOPPED and not deleting and not self._last_tables and self.leader.base is not None:
            self._last_tables = await self.ports.pools.store.call(self._tables_at, self.leader.base)
        if self.source.hosts.several:
            self.source.hosts.follow(await self.ports.notes.status(self.key), now=self.ports.clock.time())
        try:
            tables = self._tables()
            await self.ports.notes.put_status(self.key, ENUMERATOR, self._status(), tables=tables)
            await self._show_splits()
        except NoRoom:  # streams of old epochs would keep services from registering, and epochs from opening
            dead = self.epoch or self.leader.tail + 1
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
                    at = _place(read) or self._restart
                    self._binlog = await self.source.binlog(read=at, needed=self._needed())
                except (CutlineError, OSError) as error:  # others wait for the source too, and report it
                    log.debug("pipeline %s: the source's binlog files could not be listed: %s", self.name, error)
            await asyncio.sleep(pause if self._binlog is not None else first)

    def _needed(self) -> list[Place]:
        """The places of the binlog from which a restore, or a table's catch-up, would read."""
        places = [] if self._restart is None else [self._restart]
        if self.leader.enumerator is not None:
            for table in self.leader.enumerator.tables.values():
                if table.low is not None and table.phase in (SNAPSHOT, CATCH_UP):
                    places.append((table.low.server, table.low.start().file_position))
        return places

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
            channels=self._links.state() if self._links is not None else {},
            marks=self.marks.shown(),
            rates=self._shown.rates,
        )

    def _waiting_for(self) -> Wait | None:
        leader = self.leader
        if leader.still and leader.agenda.standing.mode == "deleting":
            return deletion_awaits(self.name, purging=self.commanding.purging, failed=self._not_deleted)
        waiting = leader.waiting_for(self.loop.now())
        if leader.state == RESTING or leader.still:
            return waiting
        part = None if self.parts is None else self.parts.waiting_for
        late = part if leader.leads else self._awaited.late  # it says itself which entry waits for the store
        full = None if self._links is None else self._links.waiting_for
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
            if not self.epoch:
                raise
            if not isinstance(error, CutlineError):
                log.exception("pipeline %s: unexpected error while handling %s", self.name, type(event).__name__)
            return self.leader.handle(self._failure(self.epoch, error), now)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                if isinstance(effect.message, Marker):
                    self.marks.arrived(effect.message.checkpoint)
                if self._links is not None:
                    try:
                        await self._links.send(effect)
                    except (Unavailable, ProtocolError) as error:
                        self._failed(error)
            case SavePart(checkpoint=checkpoint, state=state):
                assert self.parts is not None
                self._spawn(self.parts.save(checkpoint, state))
            case ReadJournal():
                self._spawn_leading(self._read_journal())
            case WriteEntry():
                self._spawn_leading(self._write_entry(effect))
            case OpenEpoch():
                await self._close()
                self.epoch, self.marks = effect.epoch, Marks(self.ports.clock)
                logs.note(epoch=effect.epoch)
                about = {"cause": str(self.leader.cause)}
                log.info("pipeline %s: epoch %d: %s", self.name, effect.epoch, self.leader.cause, extra=about)
                self._measures.count("epochs")
                incarnation = self.host.incarnation
                parts = Parts(self.store, member=ENUMERATOR, epoch=self.epoch, incarnation=incarnation)
                self.parts = PartSaving(parts, self.ports)
                self._spawn(self._open(effect))
                self._spawn(self._sweep())
            case CloseEpoch():
                await self._close()
            case Dismiss(before=before):
                self._dismissed = max(self._dismissed, before)
                if self._dismissing is None or self._dismissing.done():
                    self._dismissing = self._spawn_leading(self._dismiss())
            case WriteOutcome() | PutDefinition() | FindBase() | ReleaseSavepoint() | AskSparkWriter() | FindOutcome():
                self._spawn_leading(self._carry_out(effect))
            case DeletePipeline():
                if self._deleting is None or self._deleting.done():
                    self._deleting = self._spawn_leading(self._delete())
            case FindTables() | DescribeTable() | FindRange() | FindBound() | FindStop() | FindPlace():
                self._spawn(self.source.answer(effect))
            case _:
                raise ProtocolError(f"the enumerator can't carry out {type(effect).__name__}")

    def _spawn_leading(self, work: Coroutine[Any, Any, Event | None]) -> asyncio.Task[None]:
        """Start slow work of this leader: the loss of its lease cancels it. A call to the store that is under way then
        goes on in its thread, as that of a suspended leader might."""
        task = self.loop.spawn(work)
        self._tenure.add(task)
        task.add_done_callback(self._tenure.discard)
        return task

    def _spawn(self, work: Coroutine[Any, Any, Event | None]) -> None:
        """Start slow work of this epoch: its failure ends the epoch, the epoch's end cancels it, and a later answer is
        dropped."""
        epoch = self.epoch

        async def guarded() -> Event | None:
            try:
                event = await work
            except (CutlineError, OSError) as error:
                return self._failure(epoch, error)
            return event if self.epoch == epoch else None

        task = self.loop.spawn(guarded())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    @staticmethod
    def _failure(epoch: int, error: Exception) -> EpochFailed:
        failure = gave_up(epoch, error)
        return EpochFailed(epoch=epoch, cause=failure.cause, halts=failure.halts, lost=failure.lost)

    def _failed(self, error: Exception) -> None:
        self.loop.tell(self._failure(self.epoch, error))

    async def _read_journal(self) -> Event:
        def read() -> JournalRead:
            tail = self.store.last_slot()
            if self.store.deleting():  # for good: a leader before may have removed what is named by what is left
                finished, orders, left_open, commands = self.commanding.read()
                return JournalRead(
                    tail=tail, base=None, finished=finished, orders=orders, open=left_open, commands=commands
                )
            last = self.store.entry(tail) if tail else None
            base = last.base if isinstance(last, EpochEntry) else tail or None
            newest = self.store.entry(base) if isinstance(last, EpochEntry) and base is not None else last
            if isinstance(newest, CheckpointEntry):
                self._restart = _place(newest.position)
            epoch = self.store.entry(last.epoch) if last is not None else None
            # After the journal: a command that another leader has finished since is in an entry that we lack, so our
            # next entry is refused.
            finished, orders, left_open, commands = self.commanding.read()
            kept, refused = 0, dict[int, tuple[str, str]]()
            if isinstance(newest, CheckpointEntry) and any(command.taken == "machine" for command in commands):
                kept, refused = commands_in(load_head(self.store, newest.parts[ENUMERATOR]))
            return JournalRead(
                tail=tail,
                base=base,
                answered=request_of(newest.request) if isinstance(newest, CheckpointEntry) else None,
                anew=last.anew if isinstance(last, EpochEntry) else None,
                floor=epoch.floor if isinstance(epoch, EpochEntry) else 0,
                highest=newest.highest if isinstance(newest, CheckpointEntry) else 0,
                entered=epoch.command if isinstance(epoch, EpochEntry) else None,
                kept=kept,
                refused=refused,
                finished=finished,
                orders=orders,
                open=left_open,
                commands=commands,
                settings=self.commanding.settings(orders.definition),
            )

        return await self._until_available(read, "give the journal and the commands")

    async def _write_entry(self, order: WriteEntry) -> Event:
        def write() -> Event:
            if self.store.put_entry(order.entry):
                self._note_written(order.entry)
                return EntryWritten(slot=order.slot, nonce=order.entry.nonce)
            found = self.store.entry(order.slot)
            whose = f"is of {found.nonce}" if found else "can't follow an entry that is gone"
            log.warning("pipeline %s: slot %d of the journal is refused to us: it %s", self.name, order.slot, whose)
            return EntryRefused(slot=order.slot, nonce=found.nonce if found else "")

        return await self._until_available(write, f"take entry {order.slot} of the journal")

    def _note_written(self, entry: Entry) -> None:
        if isinstance(entry, CheckpointEntry):
            self._restart = _place(entry.position)
            self._measures.observe("checkpoint", max(0.0, entry.written_at - entry.started_at))

    async def _carry_out(self, effect: Effect) -> Event:
        return await self._until_answered(lambda: self.commanding.carry_out(effect))

    async def _delete(self) -> None:
        pause = 1.0
        while True:
            try:
                await self.commanding.delete()
                async with self._showing:  # so that no status comes after it
                    self._silent = True
                    await forget(self.ports, self.store.life)
                await self.ports.pools.store.call(self.store.end)
                self._gone.set()
                log.info("pipeline %s is deleted", self.name)
                return
            except Unavailable as error:
                self._not_deleted = error.cause
                log.warning("pipeline %s is not yet deleted: %s; trying again in %.0f s", self.name, error, pause)
                await asyncio.sleep(pause)

    async def _until_available(self, call: Callable[[], Event], what: str) -> Event:
        with self._awaited.on(Party.STORE, f"the store, to {what}"):
            return await self._until_answered(lambda: self.ports.pools.store.call(call))

    @staticmethod
    async def _until_answered(call: Callable[[], Awaitable[Event]]) -> Event:
        """Call the store until it answers. Repeating is harmless, since an entry carries its nonce."""
        pause = 0.2
        while True:
            try:
                return await call()
            except Unavailable as error:
                log.warning("%s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    async def _open(self, order: OpenEpoch) -> None:
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
        links = self._links = self.ports.links(
            self.key,
            order.epoch,
            ENUMERATOR,
            inbound=topology.inbound(ENUMERATOR),
            outbound=topology.outbound(ENUMERATOR),
        )
        opened = asyncio.Event()
        self._links_task = asyncio.create_task(self._run_links(links, order.epoch, opened))
        await self.ports.streams.drop(self.key, before=order.epoch)
        enumerator = None
        if order.base is not None:
            enumerator = await self.ports.pools.store.call(self._restored, order.plan, order.base)
        self.loop.tell(EpochOpened(epoch=order.epoch, enumerator=enumerator))
        opened.set()

    async def _sweep(self) -> None:
        """Remove files of earlier epochs that no entry names. What one sweep can't remove, the next one will."""
        with suppress(Unavailable):
            removed = await self.ports.pools.sweep.call(self.store.removal.sweep)
            log.info("pipeline %s: removed %d files of earlier epochs", self.name, len(removed))

    def _restored(self, plan: Plan, base: int) -> Enumerator:
        entry = self.store.entry(base)
        if not isinstance(entry, CheckpointEntry):
            raise ProtocolError(f"the base of pipeline {self.name} is slot {base}, which holds no checkpoint")
        self._restart = _place(entry.position)
        return Enumerator.restored(plan, load_part(self.store, entry.parts[ENUMERATOR]), entry.tables)

    def _tables_at(self, base: int) -> Mapping[str, Table]:
        """The tables at a checkpoint, to show them while no epoch is open."""
        entry = self.store.entry(base)
        if not isinstance(entry, CheckpointEntry):
            return {}
        return Tables.restored(load_part(self.store, entry.parts[ENUMERATOR])).by_name

    async def _run_links(self, links: Links, epoch: int, opened: asyncio.Event) -> None:
        try:
            async with together(links.idle()) as group:
                await opened.wait()
                group.create_task(links.pump(self.loop))
        except Exception as error:
            self.loop.tell(self._failure(epoch, error))
        finally:
            await links.close()

    async def _dismiss(self) -> None:
        """Remove the streams of the epochs below `_dismissed`, by tries until Redis has answered."""
        before, pause = 0, 0.2
        while before < self._dismissed:
            trying = self._dismissed
            try:
                await self.ports.streams.drop(self.key, before=trying)
                before = trying
            except Unavailable as error:
                log.warning("pipeline %s: members are not yet dismissed: %s; trying again", self.name, error)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    async def _close(self) -> None:
        self.epoch = 0
        for work in self._work:
            work.cancel()
        self.source.interrupt()
        task, self._links_task, self._links = self._links_task, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _place(position: Position | None) -> Place | None:
    return None if position is None or not position.file else (position.server, position.file_position)


async def forget(ports: Ports, life: Life) -> None:
    """Remove everything about a life that has ended from Redis."""
    await ports.notes.forget(life.key)
    await ports.streams.drop(life.key, before=sys.maxsize)
