"""The driver of one reader in one epoch of one pipeline: carries out the orders of its machine (machine.py).

Chunk rows come through chunk_reading.py, changes from one cursor of the source for each cursor of the machine; both
are read in threads of their own, and each result is the machine's next event.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from cutline.common.causes import Cause, Code
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import (
    NextGeneration,
    ProtocolError,
    ServerIdTaken,
    SourceLost,
    SourceRefused,
    TableLocked,
    Unavailable,
)
from cutline.common.measures import Counted, Measures
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import Host
from cutline.common.mesh.loop import Loop
from cutline.common.mesh.machine import Began, Effect, Event, SavePart, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.messages import Records, Remedy, SnapshotSplit
from cutline.common.mesh.parts import Parts, PartSaving, load_part
from cutline.common.mesh.ports import Pool
from cutline.common.mesh.topology import READER, WRITER, Topology, member_name
from cutline.common.status.pipeline_status import ReaderStatus
from cutline.common.store.records import CheckpointEntry, EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.common.waits import Party, Wait
from cutline.services.reader.chunk_reading import ChunkReading
from cutline.services.reader.events import (
    ChangesRead,
    ChunkFailed,
    ChunkRead,
    ChunkRowsRead,
    CloseCursor,
    ContinueChunk,
    ReadChanges,
    ReadChunk,
    SetLimits,
)
from cutline.services.reader.machine import Reader
from cutline.services.reader.ports import Cursor, OpenSource
from cutline.services.reader.tables import MAIN
from cutline.services.reader.unsaved import Unsaved
from cutline.services.sources.contract import Changes, ChunkResult, GenerationEnded, TableUnreadable
from cutline.services.sources.mysql.hosts import GRACE_SECONDS

RETRY_SECONDS = (0.5, 10.0)
CHANGES_ROWS = 50_000
CHANGES_BYTES = 8 << 20
CHANGES_WAIT_SECONDS = 0.5
"""A read of changes lasts so long at most, or a sixth of the checkpoint interval if that is shorter: a marker that
comes meanwhile cuts before all that it takes."""
SMALL_BYTES = 1 << 18
"""Up to so many bytes of rows, handing them to a thread costs more than encoding them."""
log = logging.getLogger("cutline.reader")


class ReaderDriver:
    """A reader in one epoch of one pipeline: carries out what the machine orders."""

    def __init__(
        self, host: Host, store: PipelineStore, entry: EpochEntry, index: int, open_source: OpenSource
    ) -> None:
        """Blocks: it reads the store."""
        definition = store.definition(entry.definition)
        if definition is None:
            raise ProtocolError(
                f"pipeline {store.name} has an epoch but no version {entry.definition} of its definition",
                "put its file back",
            )
        self.host, self.ports, self.store, self.epoch = host, host.ports, store, entry.slot
        self.config = PipelineConfig.from_definition(definition)
        self.name = member_name(READER, index)
        topology = Topology.joined_by(entry.members.by_role)
        unsaved = Unsaved(self.config.checkpoint.max_unsaved_bytes // topology.counts[READER.name], base=entry.base)
        self.machine = Reader(name=self.name, writers=topology.named(WRITER), stream=index == 0, unsaved=unsaved)
        if index == 0 and entry.base is not None:
            base = store.entry(entry.base)
            if not isinstance(base, CheckpointEntry):
                raise ProtocolError(f"the base of epoch {self.epoch}, slot {entry.base}, is missing from the journal")
            self.machine.restore(load_part(store, base.parts[self.name]))
            if entry.anew:
                self.machine.begin_anew()
        parts = Parts(store, member=self.name, epoch=self.epoch, incarnation=host.incarnation)
        self.parts = PartSaving(parts, self.ports)
        process = Process(
            self.machine,
            inbound=topology.cut_inbound(self.name),
            outbound=topology.cut_outbound(self.name),
            after=self.epoch,
        )
        self.links = self.ports.links(
            store.key,
            self.epoch,
            self.name,
            inbound=topology.inbound(self.name),
            outbound=topology.outbound(self.name),
            channels=topology.rows_channels(),
        )
        self.process = process
        self.loop = Loop(self._handle, self._perform, self.ports.clock)
        self.marks = Marks(self.ports.clock)
        self.rows_sent = self.bytes_sent = 0
        self.cursors: dict[str, tuple[Cursor, Pool]] = {}
        self.source = open_source(self.config, index)
        self.hosts = self.source.hosts
        self.streams = index == 0
        most = self.config.snapshot.max_threads_running
        self.chunks = ChunkReading(self.source, max_threads_running=most, name=store.name, ports=self.ports)
        self.waiting_for: Wait | None = None
        self._full: Wait | None = None  # for a checkpoint, if no more rows may be sent
        self.ids_taken = 0  # server ids that turned out to be another client's
        self.zero_dates: Counter[tuple[str, str]] = Counter()
        self.measures = Measures()
        self.chunk_began_at = 0.0  # monotonic

    async def run(self) -> None:
        """Take part until the epoch ends."""
        self.loop.tell(Began())
        try:
            await self.loop.run(
                self.links.pump(self.loop), self.links.idle(), self._publish_status(), self.chunks.rest()
            )
        finally:
            await self.links.close()
            for cursor, thread in self.cursors.values():
                thread.end(cursor.close)
            self.chunks.close()
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self.hosts.end)

    def _handle(self, event: Event, now: float) -> list[Effect]:
        self.marks.received(event)
        return self.process.handle(event, now)

    async def _perform(self, effect: Effect) -> None:
        self.marks.sent(effect)
        match effect:
            case Send(receiver=receiver, message=Records() as records):
                if records.body.get_total_buffer_size() < SMALL_BYTES:
                    body = to_ipc(records.body)
                else:
                    body = await self.ports.pools.encode.call(to_ipc, records.body)
                self.rows_sent += records.rows
                self.bytes_sent += len(body)
                message = dataclasses.replace(records, body=body)
                del effect, records, body  # the batch, which may be large, has gone into its message
                await self.links.send(Send(receiver=receiver, message=message))
            case Send():
                await self.links.send(effect)
            case ReadChunk(split=split):
                log.info("pipeline %s: reading chunk %s", self.store.name, split.split_id)
                self.chunk_began_at = self.ports.clock.monotonic()
                self.chunks.begin(split)
                self.loop.spawn(self._next_rows(split))
            case ContinueChunk():
                self.loop.spawn(self._next_rows(self.chunks.split))
            case SetLimits(limits=limits):
                log.info("pipeline %s: reading chunks at up to %s", self.store.name, limits)
                self.chunks.set_limits(limits)
            case ReadChanges():
                self.loop.spawn(self._read_changes(effect))
            case CloseCursor(cursor=name):
                self.hosts.must_have(name, None)
                if name in self.cursors:  # a restored cursor may meet main before it was ever read
                    cursor, thread = self.cursors.pop(name)
                    thread.end(cursor.close)
            case SavePart(checkpoint=checkpoint, state=state):
                self.loop.spawn(self.parts.save(checkpoint, state))
            case _:
                raise ProtocolError(f"a reader can't carry out {type(effect).__name__}")

    # --- chunks ---

    async def _next_rows(self, split: SnapshotSplit) -> Event:
        split_id, attempt = split.split_id, split.attempt
        await self.chunks.source_quiet()
        try:
            item = await self.chunks.next()
        except TableLocked as error:
            log.info("pipeline %s: chunk %s: %s", self.store.name, split_id, error)
            return ChunkFailed(split_id=split_id, attempt=attempt, cause=error.cause, remedy=Remedy.WAIT)
        except (Unavailable, SourceRefused) as error:
            log.warning("pipeline %s: chunk %s: %s", self.store.name, split_id, error)
            await self.chunks.source_reachable(RETRY_SECONDS[0] * attempt)
            return ChunkFailed(split_id=split_id, attempt=attempt, cause=error.cause, remedy=Remedy.RETRY)
        except SourceLost as error:
            remedy = Remedy.RESTART if isinstance(error, NextGeneration) else Remedy.QUARANTINE
            return ChunkFailed(split_id=split_id, attempt=attempt, cause=error.cause, remedy=remedy)
        if isinstance(item, ChunkResult):
            faults = self._zero_dates({(split.table_id, name): n for name, n in item.zero_dates.items()})
            for cause in faults.values():
                return ChunkFailed(split_id=split_id, attempt=attempt, cause=cause)
            self.measures.observe("chunk_read", self.ports.clock.monotonic() - self.chunk_began_at)
            return ChunkRead(split_id=split_id, attempt=attempt, result=item)
        await self.chunks.spend(item.num_rows, item.nbytes)
        return ChunkRowsRead(split_id=split_id, attempt=attempt, rows=item.num_rows, size=item.nbytes, body=item)

    # --- the incremental split ---

    async def _read_changes(self, order: ReadChanges) -> Event:
        pause, longest = RETRY_SECONDS
        while True:
            if order.cursor not in self.cursors:
                opened = self.source.cursor(order.cursor, ids_taken=self.ids_taken)
                self.cursors[order.cursor] = opened, self.ports.pools.own(f"{self.store.name}-{order.cursor}", 1)
            cursor, thread = self.cursors[order.cursor]
            try:
                changes = await thread.call(partial(self._read, cursor, order))
                self.waiting_for = None
                return self._changes_read(order, changes)
            except ServerIdTaken as error:
                log.warning("pipeline %s: %s cursor: %s", self.store.name, order.cursor, error)
                self.ids_taken += 1
                thread.end(self.cursors.pop(order.cursor)[0].close)
                if self.config.source.server_id is not None:
                    # The id is configured: without a pause, two clients with it would end each other's dump in turn.
                    self._waits(Wait(Party.OTHER, "its server id", error.cause))
                    await asyncio.sleep(longest)
            except SourceLost as error:
                if order.cursor == MAIN:
                    raise
                return self._catch_up_lost(order, error)
            except (Unavailable, SourceRefused) as error:
                self._waits(Wait(Party.SOURCE, "the source", error.cause))
                log.warning("pipeline %s: %s cursor: %s", self.store.name, order.cursor, error)
                await asyncio.sleep(pause)
                pause = min(longest, pause * 2)

    def _waits(self, wait: Wait) -> None:
        self.waiting_for = wait.as_before(self.waiting_for, self.ports.clock.time())

    @staticmethod
    def _catch_up_lost(order: ReadChanges, error: SourceLost) -> ChangesRead:
        """The source no longer has what the tables that catch up need: they are read again, and main goes on."""
        log.warning("%s can't catch up and are read again: %s", ", ".join(sorted(order.routes)), error)
        faults = tuple(
            GenerationEnded(table_id=name, generation=table.generation, cause=error.cause)
            for name, table in order.routes.items()
        )
        return ChangesRead(cursor=order.cursor, changes=Changes(position=order.after, rows=0, faults=faults))

    def _read(self, cursor: Cursor, order: ReadChanges) -> Changes:
        self.hosts.must_have(order.cursor, order.after)
        if order.cursor == MAIN and not cursor.connected:
            self.hosts.release()
        return cursor.read(
            order.after,
            order.routes,
            until=order.until,
            max_rows=CHANGES_ROWS,
            max_bytes=CHANGES_BYTES,
            wait_seconds=min(CHANGES_WAIT_SECONDS, self.config.checkpoint.interval_seconds / 6),
            at_boundary=order.at_boundary,
            stop=order.stop,
        )

    def _changes_read(self, order: ReadChanges, changes: Changes) -> ChangesRead:
        lost = {fault.table_id for fault in changes.faults}
        unreadable = tuple(
            TableUnreadable(table_id=name, generation=order.routes[name].generation, cause=cause)
            for name, cause in self._zero_dates(changes.zero_dates).items()
            if name not in lost
        )
        if unreadable:
            changes = dataclasses.replace(changes, faults=changes.faults + unreadable)
        return ChangesRead(cursor=order.cursor, changes=changes)

    def _zero_dates(self, found: Mapping[tuple[str, str], int]) -> dict[str, Cause]:
        """Count dates that became null, by table and column; with `zero_dates: quarantine`, each table's fault."""
        self.zero_dates.update(found)
        if self.config.values.zero_dates is None:
            return {}
        return {
            table_id: Cause(
                Code.VALUE,
                f"{table_id} has a zero or partial date in its column {column}",
                "correct those rows, or set values.zero_dates to null",
            )
            for table_id, column in found
        }

    def _obstacle(self) -> Wait | None:
        """What this reader waits for, for its status."""
        own = self._checkpoint_awaited() or self.waiting_for or self.chunks.waiting_for
        return self.parts.waiting_for or own or self.links.waiting_for

    def _checkpoint_awaited(self) -> Wait | None:
        """What this reader waits for, if it may send no more rows."""
        unsaved, before = self.machine.unsaved, self._full
        if not unsaved.full:
            self._full = None
            return None
        since = "the pipeline began" if unsaved.saved is None else f"checkpoint {unsaved.saved}"
        sentence = (
            f"this reader has sent {unsaved.bytes / (1 << 20):,.0f} MiB of rows since {since}, its share of"
            " checkpoint.max_unsaved_bytes"
        )
        full = Wait(Party.CHECKPOINT, "a checkpoint", Cause(Code.LATE, sentence))
        self._full = full.as_before(before, self.ports.clock.time())
        return self._full

    async def _publish_status(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            status = ReaderStatus(
                at=self.ports.clock.time(),
                counters=tuple(
                    Counted("zero_dates", {"table": table_id, "column": column}, count)
                    for (table_id, column), count in self.zero_dates.items()
                ),
                histograms=self.measures.histograms(),
                epoch=self.epoch,
                waiting_for=self._obstacle(),
                channels=self.links.state(),
                marks=self.marks.shown(),
                rows_total=self.rows_sent,
                bytes_total=self.bytes_sent,
                source_host=self.hosts.chosen,
                main_host=self.hosts.main if self.streams else None,
            )
            with suppress(Unavailable):
                await self.ports.notes.put_member_status(self.store.key, self.name, status)
                if self.hosts.several:
                    found = await self.ports.notes.status(self.store.key)
                    if self.streams:
                        self.hosts.prefer(found.enumerator.source_host)
                    else:
                        self.hosts.follow(found, now=self.ports.clock.time())


def to_ipc(batch: pa.RecordBatch) -> pa.Buffer:
    """The batch as an Arrow IPC stream with its schema; not compressed, which costs more than the copies it saves.

    The size of a large one is measured first: a buffer that grows would hold it twice meanwhile. It is allocated from
    the system's memory, which takes it back at once; Arrow's own pool would keep it for later use.
    """
    if batch.get_total_buffer_size() < SMALL_BYTES:
        grows = pa.BufferOutputStream()
        _write_ipc(batch, grows)
        return grows.getvalue()
    measure = pa.MockOutputStream()
    _write_ipc(batch, measure)
    buffer: pa.Buffer = pa.allocate_buffer(measure.size(), memory_pool=pa.system_memory_pool())
    _write_ipc(batch, pa.FixedSizeBufferWriter(buffer))
    return buffer


def _write_ipc(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
