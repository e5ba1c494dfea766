"""`python -m cutline.services.writer`: stages the records of every pipeline whose epoch names it, as Parquet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.config.environment import Environment
from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.measures import TableRows
from cutline.common.mesh.awaited import Awaited
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import Host, run_service
from cutline.common.mesh.links import Links
from cutline.common.mesh.loop import Loop
from cutline.common.mesh.machine import Effect, Event, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.redis import connect
from cutline.common.mesh.topology import Topology, writer_name
from cutline.common.ops import Op
from cutline.common.schema import META_FIELDS
from cutline.common.store.records import EpochEntry, StagedFile
from cutline.common.store.store import PipelineStore, Store
from cutline.common.threads import Threads
from cutline.services.writer.machine import (
    Append,
    ChangesFile,
    ChunkFile,
    CutStaged,
    Drop,
    StageCut,
    Writer,
)
from cutline.services.writer.staging import Budget, OpenChanges, OpenChunk

CLOSING_THREADS = 8
STATUS_SECONDS = 1.0
OPERATIONS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete", Op.TRUNCATE: "truncate"}
"""The operations that are counted, by the metrics' names; an image before an update counts with its update."""
METRICS_COLUMNS = 8192
"""The most columns of which a writer gives metrics at one cut, since an event loop encodes and decodes them at once:
about 60 bytes each."""


def within(staged: Iterable[StagedFile], columns: int) -> tuple[StagedFile, ...]:
    """Return the records; once their metrics are of more than so many columns in all, the others have none."""
    kept: list[StagedFile] = []
    for record in staged:
        columns -= 0 if record.metrics is None else len(record.metrics.columns)
        kept.append(record if columns >= 0 else replace(record, metrics=None))
    return tuple(kept)


class Staging:
    """The open files of one writer in one epoch. Calls block; one at a time."""

    def __init__(
        self,
        store: PipelineStore,
        epoch: int,
        incarnation: str,
        budget: Budget | None = None,
        *,
        counted: TableRows | None = None,
    ) -> None:
        """`counted` gets the rows and bytes that are appended."""
        self._store, self._epoch, self._incarnation = store, epoch, incarnation
        self._counted = counted
        self._open: dict[ChangesFile | ChunkFile, OpenChanges | OpenChunk] = {}
        self._budget = budget or Budget()
        # Closing a small file waits for the disk twice; the waits of many files overlap.
        self._closing = ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix=f"cutline-{store.name}-closing")

    def append(self, order: Append) -> None:
        """Append one Arrow IPC body."""
        for batch in pa.ipc.open_stream(order.body):
            file = self._open.get(order.file)
            if file is None:
                file = self._open[order.file] = self._new(order.file)
            file.append(batch, order.seq_base)
            if self._counted is not None:
                rows = rows_by_operation(batch, chunk=isinstance(order.file, ChunkFile))
                self._counted.add(order.file.table_id, rows, batch.get_total_buffer_size())

    def _new(self, name: ChangesFile | ChunkFile) -> OpenChanges | OpenChunk:
        common: dict[str, Any] = {
            "epoch": self._epoch,
            "incarnation": self._incarnation,
            "table_id": name.table_id,
            "generation": name.generation,
            "schema": name.schema,
            "budget": self._budget,
        }
        if isinstance(name, ChunkFile):
            return OpenChunk(self._store, split_id=f"{name.split_id}#{name.attempt}", **common)
        return OpenChanges(self._store, **common)

    def stage(self, order: StageCut) -> tuple[StagedFile, ...]:
        """Close the cut's files; all are durable under their final names when this returns."""
        names: tuple[ChangesFile | ChunkFile, ...] = (*order.changes, *order.chunks)
        files = [self._open.pop(name) for name in names]
        for file in files:
            file.leave(self._budget)
        self._budget.turn()
        staged = tuple(self._closing.map(lambda file: file.close(), files))
        if staged:
            self._store.sync_staged()
        return within(staged, METRICS_COLUMNS)

    def drop(self, order: Drop) -> None:
        """Discard the file of a failed attempt."""
        for name, file in list(self._open.items()):
            if isinstance(name, ChunkFile) and (name.split_id, name.attempt) == (order.split_id, order.attempt):
                file.discard()
                del self._open[name]

    def close(self) -> None:
        """Discard the files that no cut took."""
        for file in self._open.values():
            file.discard()
        self._open.clear()
        self._closing.shutdown()


def rows_by_operation(batch: pa.RecordBatch, *, chunk: bool) -> dict[str, int]:
    """The number of rows of a batch by operation."""
    if chunk:
        return {"snapshot": batch.num_rows}
    column = batch.column(batch.num_columns - len(META_FIELDS))
    if isinstance(column, pa.DictionaryArray):  # as readers send it: the indices are counted, which costs little
        counts = np.bincount(column.indices.to_numpy(), minlength=len(column.dictionary))
        # The dictionary may have texts of which there is no row.
        counted = zip(column.dictionary.to_pylist(), counts, strict=True)
        return {OPERATIONS[op]: int(count) for op, count in counted if count and op in OPERATIONS}
    found = pc.value_counts(column)
    return {OPERATIONS[each["values"]]: each["counts"] for each in found.to_pylist() if each["values"] in OPERATIONS}


class Member:
    """A writer in one epoch of one pipeline: carries out what the machine orders."""

    def __init__(self, host: Host, store: PipelineStore, entry: EpochEntry, index: int, metrics_tables: int) -> None:
        self.host, self.store = host, store
        epoch = self.epoch = entry.slot
        topology = Topology.of(len(entry.members.readers), len(entry.members.writers))
        name = self.name = writer_name(index)
        self.process = Process(
            Writer(),
            inbound=topology.cut_inbound(name),
            outbound=topology.cut_outbound(name),
            recording=False,
            after=epoch,
        )
        self.thread = Threads(f"{store.name}-staging")
        self.rows = TableRows(metrics_tables)
        self.staging = Staging(store, epoch, host.incarnation, counted=self.rows)
        self.links = Links(
            host.redis, store.key, epoch, name, inbound=topology.inbound(name), outbound=topology.outbound(name)
        )
        self.loop = Loop(self._handle, self._perform)
        self.marks = Marks()
        self.rows_taken = self.bytes_taken = 0
        self.awaited = Awaited()

    async def run(self) -> None:
        """Take part until the epoch ends."""
        try:
            await self.loop.run(self.links.pump(self.loop), self.links.idle(), self._publish_status())
        finally:
            await self.links.close()
            self.thread.end(self.staging.close)

    async def _publish_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            self.rows.rank(time.monotonic())
            status = {
                "at": time.time(),
                "epoch": self.epoch,
                "waiting_for": self.awaited.late or self.links.waiting_for,
                "channels": self.links.state(),
                "marks": self.marks.shown(),
                "rows_total": self.rows_taken,
                "bytes_total": self.bytes_taken,
                "counters": self.rows.shown(),
            }
            with suppress(Unavailable):
                await self.host.registry.put_member_status(self.store.key, self.name, status, epoch=self.epoch)

    def _handle(self, event: Event, now: float) -> list[Effect]:
        self.marks.received(event)
        return self.process.handle(event, now)

    async def _perform(self, effect: Effect) -> None:
        self.marks.sent(effect)
        match effect:
            case Send():
                await self.links.send(effect)
            case Append():
                self.rows_taken += effect.rows
                self.bytes_taken += len(effect.body)
                with self.awaited.on("the disk for temporary files, to take rows"):
                    await self.thread.call(partial(self.staging.append, effect))
            case Drop():
                await self.thread.call(partial(self.staging.drop, effect))
            case StageCut():
                # Awaited here, so that no row that comes after the cut gets into its files.
                with self.awaited.on(f"the store, to take the files of checkpoint {effect.checkpoint}"):
                    self.loop.tell(await self.thread.call(partial(self._staged, effect)))
            case _:
                raise ProtocolError(f"a writer can't carry out {type(effect).__name__}")

    def _staged(self, order: StageCut) -> Event:
        return CutStaged(checkpoint=order.checkpoint, staged=self.staging.stage(order))


async def main() -> None:
    """Write for every pipeline whose epoch names this process, until the process is asked to end."""
    environment = Environment.read()
    host = Host("writer", connect(environment.need_redis_url()), Store(environment.need_store_url()))

    async def join(store: PipelineStore, entry: EpochEntry, index: int) -> None:
        await Member(host, store, entry, index, environment.metrics_tables).run()

    await host.serve(join)


if __name__ == "__main__":
    run_service(main)
