"""What an enumerator has open for one epoch: its channels, its part, and its slow work, all of which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from cutline.common.errors import CutlineError, ProtocolError, Unavailable
from cutline.common.mesh.host import Host, gave_up
from cutline.common.mesh.loop import Loop, together
from cutline.common.mesh.machine import Event, Send
from cutline.common.mesh.marks import Marks
from cutline.common.mesh.messages import Marker
from cutline.common.mesh.parts import Parts, PartSaving
from cutline.common.mesh.ports import Links
from cutline.common.mesh.topology import ENUMERATOR, Topology
from cutline.common.status.pipeline_status import ChannelStatus
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.events import EpochFailed


class EpochWork:
    """One epoch of one enumerator, from its order to its end: `cancel`, then `close`."""

    def __init__(self, number: int, host: Host, store: PipelineStore, loop: Loop) -> None:
        self.number = number
        self.marks = Marks(host.ports.clock)
        parts = Parts(store, member=ENUMERATOR, epoch=number, incarnation=host.incarnation)
        self.parts = PartSaving(parts, host.ports)
        self.links: Links | None = None  # once the streams are made
        self.opened = asyncio.Event()  # the machine knows that its epoch is open, so messages may reach it
        self._ports, self._key, self._loop = host.ports, store.key, loop
        self._linked: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._over = False

    def spawn(self, work: Coroutine[Any, Any, Event | None]) -> None:
        """Start slow work: its failure ends the epoch, the epoch's end cancels it, and a later answer is dropped."""

        async def guarded() -> Event | None:
            try:
                event = await work
            except (CutlineError, OSError) as error:
                return failure(self.number, error)
            return None if self._over else event

        task = self._loop.spawn(guarded())
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def link(self, topology: Topology) -> None:
        """Connect to the streams, which are made. Members hear us from now on; their messages wait for `opened`."""
        inbound, outbound = topology.inbound(ENUMERATOR), topology.outbound(ENUMERATOR)
        links = self.links = self._ports.links(self._key, self.number, ENUMERATOR, inbound=inbound, outbound=outbound)
        self._linked = asyncio.create_task(self._run(links))

    async def _run(self, links: Links) -> None:
        try:
            async with together(links.idle()) as group:
                await self.opened.wait()
                group.create_task(links.pump(self._loop))
        except Exception as error:
            self._loop.tell(failure(self.number, error))
        finally:
            await links.close()

    async def send(self, order: Send) -> None:
        """Queue a message; a channel that fails ends the epoch."""
        if isinstance(order.message, Marker):
            self.marks.arrived(order.message.checkpoint)
        if self.links is not None:
            try:
                await self.links.send(order)
            except (Unavailable, ProtocolError) as error:
                self._loop.tell(failure(self.number, error))

    def channels(self) -> Mapping[str, ChannelStatus]:
        """What each outbound channel holds, for the status."""
        return {} if self.links is None else self.links.state()

    def cancel(self) -> None:
        """Cancel the work, without waiting for it."""
        self._over = True
        for work in self._work:
            work.cancel()

    async def close(self) -> None:
        """Close the channels. The last call."""
        if self._linked is not None:
            self._linked.cancel()
            await asyncio.wait([self._linked])


def failure(epoch: int, error: Exception) -> EpochFailed:
    """The fact that an error has ended an epoch."""
    gave = gave_up(epoch, error)
    return EpochFailed(epoch=epoch, cause=gave.cause, halts=gave.halts, lost=gave.lost)
