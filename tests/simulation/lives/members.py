"""The mesh of tests/simulation/lives/world.py: readers and writers that serve all pipelines of the world together, and
the streams between them and the leaders, by life and epoch.

The real host of a service follows the announced epochs (common/mesh/host.py) and joins them with the real machines, run
by the real loop. A row that a reader reads bears the id of the life for which it was read, so that the lake tells whose
rows it shows."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import Host
from cutline.common.mesh.loop import Loop
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, SavePart, Send
from cutline.common.mesh.parts import Parts, PartSaving, load_part
from cutline.common.mesh.ports import Ports
from cutline.common.mesh.presence import WIRE
from cutline.common.mesh.silence import Silence
from cutline.common.mesh.topology import ENUMERATOR, READER, WRITER, Topology, member_name
from cutline.common.positions import High, Low
from cutline.common.store.lives import Key
from cutline.common.store.records import CheckpointEntry, EpochEntry, StagedFile
from cutline.common.store.store import PipelineStore, file_name
from cutline.services.reader.events import (
    ChunkRowsRead,
    CloseCursor,
    ContinueChunk,
    ReadChanges,
    ReadChunk,
    SetLimits,
)
from cutline.services.reader.machine import Reader
from cutline.services.reader.unsaved import Unsaved
from cutline.services.writer.machine import Append, ChunkFile, CutStaged, Drop, StageCut, Writer
from tests.simulation.lives.surroundings import Registry, store_of
from tests.support.reads import changes_read, chunk_read

if TYPE_CHECKING:
    from tests.simulation.lives.world import LivesWorld

PUMP_SECONDS = 0.3
ROWS, CHUNKS = 2, 3
"""The rows of a chunk, and the chunks of the table, whose keys are in `surroundings.Source`."""
Channel = tuple[int, str, str]


class Streams:
    """The streams in Redis: messages that nobody has taken yet, by life, epoch, sender and receiver."""

    def __init__(self) -> None:
        self.by_life: dict[Key, dict[Channel, deque[Any]]] = defaultdict(dict)
        self.announced: dict[Key, int] = {}
        self.heard: dict[tuple[Key, int], float] = {}  # when the leader of an epoch sent something last

    def drop(self, key: Key, before: int) -> None:
        """Remove those of the epochs before this one."""
        self.by_life[key] = {channel: queue for channel, queue in self.by_life[key].items() if channel[0] >= before}
        if not self.by_life[key]:
            del self.by_life[key]


class Links:
    """All channels of one member in one epoch, as common/mesh/links.py has them."""

    waiting_for = None

    def __init__(
        self, redis: LivesWorld, key: Key, epoch: int, name: str, *, inbound: Any, outbound: Any, channels: int = 1
    ) -> None:
        self.world, self.key, self.epoch, self.name = redis, key, epoch, name
        self.inbound = tuple(inbound)
        self.silence = None if name == ENUMERATOR else Silence(redis.clock.now)
        self.listened_at = redis.clock.now

    def _queue(self, sender: str, receiver: str) -> deque[Any]:
        queue = self.world.streams.by_life.get(self.key, {}).get((self.epoch, sender, receiver))
        if queue is None:
            raise Unavailable(f"the stream from {sender} to {receiver} of epoch {self.epoch} is gone")
        return queue

    async def send(self, order: Send) -> None:
        self.world.actors.turn()
        self._queue(self.name, order.receiver).append(order.message)

    async def idle(self) -> None:
        """As long as the epoch is open, its leader is heard."""
        while True:
            if self.name == ENUMERATOR:
                self.world.streams.heard[self.key, self.epoch] = self.world.clock.now
            await asyncio.sleep(1.0)

    async def pump(self, loop: Loop) -> None:
        while True:
            self.world.actors.turn()
            for sender in self.inbound:
                queue = self._queue(sender, self.name)
                while queue:
                    loop.tell(MessageReceived(channel=sender, message=queue.popleft()))
            if self.silence is not None:
                now, heard = self.world.clock.now, self.world.streams.heard.get((self.key, self.epoch), 0.0)
                if self.silence.read(now, heard=heard >= self.listened_at):
                    self.world.count["lives: a member left a leader that is gone"] += 1
                    raise Unavailable("its leader is silent")
                self.listened_at = now
            await asyncio.sleep(PUMP_SECONDS)

    def state(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        pass


class Presence(Registry):
    """What a member's host asks of Redis."""

    async def epochs(self) -> dict[Key, int]:
        self.world.visit("redis")
        return dict(self.world.streams.announced)


class Member:
    """A reader or a writer in one epoch of one pipeline: carries out the orders of the real machine."""

    def __init__(self, world: LivesWorld, host: Host, store: PipelineStore, entry: EpochEntry, index: int) -> None:
        self.world: Any = world
        self.store, self.epoch, self.incarnation = store, entry.slot, host.incarnation
        topology = Topology.joined_by(entry.members.by_role)
        self.name = member_name(READER if host.role == "reader" else WRITER, index)
        machine: Any = Writer()
        if host.role == "reader":
            unsaved = Unsaved(None, base=entry.base)
            machine = Reader(name=self.name, writers=topology.named(WRITER), stream=index == 0, unsaved=unsaved)
            if index == 0 and entry.base is not None:
                base = store.entry(entry.base)
                if not isinstance(base, CheckpointEntry):
                    raise ProtocolError(f"the base of epoch {self.epoch} is missing")
                machine.restore(load_part(store, base.parts[self.name]))
        self.process = Process(
            machine, inbound=topology.cut_inbound(self.name), outbound=topology.cut_outbound(self.name),
            recording=host.role == "reader", after=self.epoch,
        )  # fmt: skip
        parts = Parts(store, member=self.name, epoch=self.epoch, incarnation=host.incarnation)
        self.parts = PartSaving(parts, host.ports)
        self.links = Links(
            self.world, store.key, self.epoch, self.name, inbound=topology.inbound(self.name), outbound=()
        )
        self.loop = Loop(self.process.handle, self._perform, host.ports.clock)
        self.reads = host.role == "reader"
        self.split: Any = None
        self.given = 0
        self.open: dict[Any, list[str]] = {}

    async def run(self) -> None:
        """Take part until the epoch ends."""
        if self.reads:
            self.loop.tell(Began())
        await self.loop.run(self.links.pump(self.loop), self.links.idle())

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                await self.links.send(effect)
            case ReadChunk(split=split):
                self.split, self.given = split, 0
                self.loop.spawn(self._rows())
            case ContinueChunk():
                self.loop.spawn(self._rows())
            case ReadChanges():
                self.loop.spawn(self._changes(effect))
            case SetLimits() | CloseCursor():
                pass
            case SavePart(checkpoint=checkpoint, state=state):
                self.loop.spawn(self.parts.save(checkpoint, state))
            case Append(file=file, body=body):
                self.open.setdefault(file, []).extend(body)
            case Drop(split_id=split_id, attempt=attempt):
                for file in [f for f in self.open if isinstance(f, ChunkFile) and f.split_id == split_id]:
                    if file.attempt == attempt:
                        del self.open[file]
            case StageCut():
                self.loop.spawn(self._staged(effect))
            case _:
                raise ProtocolError(f"nobody can carry out {effect}")

    async def _rows(self) -> Event:
        await asyncio.sleep(self.world.rng.uniform(0.05, 1.0))
        if self.store.name == self.world.hangs:
            await asyncio.Event().wait()
        split, self.given = self.split, self.given + 1
        if self.given <= ROWS:
            row = f"{self.store.id}/{split.split_id}/{self.given}"
            return ChunkRowsRead(split_id=split.split_id, attempt=split.attempt, rows=1, size=1, body=[row])
        return chunk_read(
            split_id=split.split_id, attempt=split.attempt, rows=ROWS, checksum="", schema=split.schema, cut_at=None,
            low=Low(server="s", file="b.000001", offset=4, gtids=""), high=High(server="s", file="b.000001", offset=4),
        )  # fmt: skip

    async def _changes(self, order: ReadChanges) -> Event:
        await asyncio.sleep(0.5)
        return changes_read(cursor=order.cursor, position=order.after, rows=0)

    async def _staged(self, order: StageCut) -> Event:
        found = []
        for file in (*order.changes, *order.chunks):
            rows = self.open.pop(file)
            name = file_name("chunk.parquet", epoch=self.epoch, incarnation=self.incarnation)
            path, data = f"staged/{name}", "\n".join(rows).encode()
            await self.world.actors.in_thread(self.store._folder.create, path, data)
            found.append(StagedFile(
                path=path, sha256="", size=len(data), rows=len(rows), kind="chunk", table=file.table_id,
                generation=file.generation, schema=file.schema, split=f"{file.split_id}#{file.attempt}",
            ))  # fmt: skip
        return CutStaged(checkpoint=order.checkpoint, staged=tuple(found))


async def serve(world: LivesWorld, role: str, ports: Ports) -> None:
    """One service process: the real host, which joins each epoch that names it."""
    assert world.actors.current is not None
    process = world.actors.current.process
    host: Any = Host(role, store_of(world), ports)
    host.incarnation = world.name(role)

    async def present() -> None:
        while True:
            with suppress(Unavailable):
                world.visit("redis")
                world.present[process] = (world.clock.now, SimpleNamespace(
                    incarnation=host.incarnation, role=role, failed=dict(host.failed), leaving=False, wire=WIRE,
                ))  # fmt: skip
            await asyncio.sleep(1.0)

    host.present = present

    async def join(store: PipelineStore, entry: EpochEntry, index: int) -> None:
        world.count[f"lives: {role} joined an epoch"] += 1
        member = await world.actors.in_thread(Member, world, host, store, entry, index)
        await member.run()

    await host.serve(join)
