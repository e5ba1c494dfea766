"""The driver of one writer in one epoch of one pipeline: carries out the orders of its machine (machine.py)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.measures import TableRows
from cutline.common.mesh.awaited import Awaited
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import Host
from cutline.common.mesh.loop import Loop
from cutline.common.mesh.machine import Effect, Event, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.topology import WRITER, Topology, member_name
from cutline.common.status.pipeline_status import WriterStatus
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore
from cutline.common.waits import Party
from cutline.services.writer.machine import Append, CutStaged, Drop, StageCut, Writer
from cutline.services.writer.ports import Files

STATUS_SECONDS = 1.0


class WriterDriver:
    """A writer in one epoch of one pipeline: carries out what the machine orders."""

    def __init__(
        self, host: Host, store: PipelineStore, entry: EpochEntry, index: int, *, files: Files, rows: TableRows
    ) -> None:
        """`files` puts rows into files, and counts them in `rows`."""
        self.host, self.ports, self.store = host, host.ports, store
        self.files, self.rows = files, rows
        epoch = self.epoch = entry.slot
        topology = Topology.joined_by(entry.members.by_role)
        name = self.name = member_name(WRITER, index)
        self.process = Process(
            Writer(),
            inbound=topology.cut_inbound(name),
            outbound=topology.cut_outbound(name),
            recording=False,
            after=epoch,
        )
        self.thread = self.ports.pools.own(f"{store.name}-staging", 1)
        self.links = self.ports.links(
            store.key, epoch, name, inbound=topology.inbound(name), outbound=topology.outbound(name)
        )
        self.loop = Loop(self._handle, self._perform, self.ports.clock)
        self.marks = Marks(self.ports.clock)
        self.rows_taken = self.bytes_taken = 0
        self.awaited = Awaited(self.ports.clock)

    async def run(self) -> None:
        """Take part until the epoch ends."""
        try:
            await self.loop.run(self.links.pump(self.loop), self.links.idle(), self._publish_status())
        finally:
            await self.links.close()
            self.thread.end(self.files.close)

    async def _publish_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            self.rows.rank(self.ports.clock.monotonic())
            status = WriterStatus(
                at=self.ports.clock.time(),
                counters=self.rows.shown(),
                epoch=self.epoch,
                waiting_for=self.awaited.late or self.links.waiting_for,
                channels=self.links.state(),
                marks=self.marks.shown(),
                rows_total=self.rows_taken,
                bytes_total=self.bytes_taken,
            )
            with suppress(Unavailable):
                await self.ports.notes.put_member_status(self.store.key, self.name, status)

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
                with self.awaited.on(Party.DISK, "the disk for temporary files, to take rows"):
                    await self.thread.call(partial(self.files.append, effect))
            case Drop():
                await self.thread.call(partial(self.files.drop, effect))
            case StageCut():
                # Awaited here, so that no row that comes after the cut gets into its files.
                with self.awaited.on(Party.STORE, f"the store, to take the files of checkpoint {effect.checkpoint}"):
                    self.loop.tell(await self.thread.call(partial(self._staged, effect)))
            case _:
                raise ProtocolError(f"a writer can't carry out {type(effect).__name__}")

    def _staged(self, order: StageCut) -> Event:
        return CutStaged(checkpoint=order.checkpoint, staged=self.files.stage(order))
