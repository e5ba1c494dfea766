"""What readers ask of the source: chunks with their watermarks, and changes."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError, NextGeneration, SourceLost, TableLocked, Unavailable, lost
from cutline.common.mesh.machine import Event
from cutline.common.mesh.messages import Remedy, SnapshotSplit
from cutline.common.positions import High, Low, Position
from cutline.services.reader.events import ChangesRead, ChunkFailed, ChunkRead, ChunkRowsRead, ReadChanges
from cutline.services.sources.contract import Changes, ChunkResult
from tests.simulation.mesh.service import SimulatedDump, SimulatedService
from tests.simulation.source.transactions import KINDS, MARIADB, MYSQL
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World

Rows = list[tuple[Any, Any]]


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk that is being read. `stages` gives the seconds until the next one, up to its last; then `left` has the
    rows that are still to be given, and `result` what follows them."""

    split: SnapshotSplit
    stages: Generator[float, None, None] = field(init=False)
    left: Rows = field(default_factory=list)
    result: ChunkResult | None = None


class Reading:
    """What readers ask of the source: chunks with their watermarks, and changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.locks = random.Random(f"locks {world.seed}")  # apart, so that seeds mean what they meant before

    # --- chunks ---

    def chunk(self, split: SnapshotSplit) -> Chunk:
        """Begin to read a chunk. Its stages raise TableLocked, NextGeneration or Unavailable."""
        chunk = Chunk(split)
        chunk.stages = self._stages(chunk)
        return chunk

    def _stages(self, chunk: Chunk) -> Generator[float, None, None]:
        """Low, SELECT and high, again until the table rested where it has no key."""
        world, split = self.world, chunk.split
        connection = world.source.connection
        rests = False
        while not rests:
            low = yield from self._low(split, connection)
            rows = yield from self._select(split, low, connection)
            if rows is None:
                continue
            schema = world.source.schema(split.table_id)
            high = High(server=low.server, file=low.file, offset=low.offset)
            if world.shape.flavour != MARIADB:
                yield world.lag(3)
                self._still(connection)
                high = world.source.flushed()
            rests = not (KINDS[split.table_id].keyless and world.source.reads.window(split.table_id, low, high))
            if not rests:
                world.count["keyless: the table did not rest while its snapshot was begun"] += 1
                yield 0.05
        if KINDS[split.table_id].keyless:
            laid = None if world.source.reads.window(split.table_id, low, high) is None else rows
        else:
            laid = world.source.reads.overlay(split, rows, low, high) if world.shape.exact else rows
        other = schema.hash != split.schema.hash
        if laid is None or (other and world.rng.random() < 0.5) or world.goes_wrong("chunk refused", 0.01):
            between = because("a DDL came between")
            raise NextGeneration(between) if other else Unavailable(between)
        if other:
            world.count["chunk of other columns reported"] += 1
        chunk.left, cut_at = sorted(laid.items()), None
        keyed = not KINDS[split.table_id].keyless
        if keyed and len(chunk.left) > 1 and world.goes_wrong("chunk out of time", 0.05):
            at = world.rng.randrange(1, len(chunk.left))  # its time is over: it ends before the last key read
            cut_at = world.source.reads.literal(split.table_id, chunk.left[at][0])
            chunk.left = chunk.left[:at]
            world.count["chunk ran out of time and was split"] += 1
        world.count["chunk without rows"] += not chunk.left
        chunk.result = ChunkResult(
            low=low, high=high, rows=len(chunk.left), checksum="", schema=schema, cut_at=cut_at
        )

    def _still(self, connection: int) -> None:
        """A broken connection fails the attempt."""
        if connection != self.world.source.connection:
            self.world.count["connection broke while a chunk was read"] += 1
            raise Unavailable("the connection broke")

    def _low(self, split: SnapshotSplit, connection: int) -> Generator[float, None, Low]:
        world = self.world
        while True:
            self._still(connection)
            if world.goes_wrong("chunk of a locked table", 0.05, self.locks):
                world.count["chunk of a locked table"] += 1
                raise TableLocked(Cause(Code.LOCKED, "locked by another session"), split.table_id)
            low = None if world.hanging.hangs else world.source.reads.low(world.now)
            if low is not None:
                return low
            yield 0.1

    def _select(
        self, split: SnapshotSplit, low: Low, connection: int
    ) -> Generator[float, None, dict[Any, Any] | None]:
        """The rows; None if a new low must be taken first."""
        world = self.world
        if world.shape.flavour != MARIADB:
            yield world.lag(3)
        while True:
            self._still(connection)
            if world.shape.flavour == MYSQL and world.source.engine.prepared:
                yield 0.05
                return None
            if split.table_id not in world.source.engine.frozen and not world.hanging.hangs:
                break
            world.count["SELECT waits for a DDL"] += not world.hanging.hangs  # for the DDL's metadata lock
            yield 0.05
        if world.shape.flavour == MARIADB and world.source.reads.rebuilt(split.table_id, low):
            world.count["SELECT in a snapshot from before its table was made anew"] += 1
            raise NextGeneration(because("table definition has changed"))
        return world.source.reads.select(split)

    def some(self, chunk: Chunk) -> Rows | ChunkResult:
        """The next rows of a chunk, or its result behind the last; Unavailable if it fails after some rows."""
        world = self.world
        size = world.rng.choice((1, 3, 50))
        rows, chunk.left = chunk.left[:size], chunk.left[size:]
        if rows and world.goes_wrong("chunk failed after some rows", 0.01):
            world.count["chunk failed after some rows"] += 1
            raise Unavailable("lost connection")
        assert chunk.result is not None
        return rows or chunk.result

    def begin_chunk(self, service: SimulatedService, split: SnapshotSplit) -> None:
        """Read a chunk for a service that has no driver."""
        chunk = service.chunk = self.chunk(split)
        self._go_on(service, chunk)

    def _go_on(self, service: SimulatedService, chunk: Chunk) -> None:
        if service.chunk is not chunk or not service.alive:
            return
        try:
            seconds = next(chunk.stages)
        except StopIteration:
            self.give_rows(service)
        except (TableLocked, NextGeneration, Unavailable) as error:
            service.chunk = None
            self.world.drivers.tell(service, service.token, _failed(chunk.split, error))
        else:
            self.world.at(seconds, self._go_on, service, chunk)

    def give_rows(self, service: SimulatedService) -> None:
        """Give a service without a driver the next rows of its chunk."""
        chunk, split = service.chunk, service.chunk.split
        event: Event
        try:
            found = self.some(chunk)
        except Unavailable as error:
            service.chunk, event = None, _failed(split, error)
        else:
            if isinstance(found, ChunkResult):
                service.chunk = None
                event = ChunkRead(split_id=split.split_id, attempt=split.attempt, result=found)
            else:
                sizes = {"rows": len(found), "size": len(found)}
                event = ChunkRowsRead(split_id=split.split_id, attempt=split.attempt, **sizes, body=found)
        self.world.drivers.later(service, self.world.lag(), lambda: event)

    # --- changes ---

    def changes_read(self, service: SimulatedService, order: ReadChanges) -> Event | None:
        """Answer a service without a driver."""
        world = self.world
        if (nothing := world.hanging.read(order)) is not None:
            world.drivers.later(service, 0.5, lambda: nothing)
            return None
        dump, most = service.dumps.setdefault(order.cursor, SimulatedDump()), self.most_rows()
        pause: float | None = None
        changes: Changes | None = None
        try:
            if not self.connects(dump, order.after):
                pause = world.rng.uniform(0.2, 0.6)
            elif (changes := self.changes(dump, order, most)) is None:
                pause = world.rng.uniform(0.05, 0.4)
        except SourceLost as error:
            world.faults.halts_expected |= world.source.servers > 1 or world.source.purged > 0
            world.mesh.fail(service, error.cause, halts=True, loss=lost(error))
            return None
        if changes is not None:
            return ChangesRead(cursor=order.cursor, changes=changes)
        assert pause is not None
        world.drivers.later(service, pause, lambda: self.changes_read(service, order))
        return None

    def connects(self, dump: SimulatedDump, after: Position) -> bool:
        """Whether the dump is connected; SourceLost if it can't go on there."""
        world, source = self.world, self.world.source
        if world.goes_wrong("connection of a dump broke", 0.02):
            dump.connection = 0
            world.count["connection of a dump broke"] += 1
        if dump.connection != source.connection:
            dump.prepared.clear()  # a new connection knows no prepared transactions
            try:
                if not source.cursor.connects(after, dump.commits, world.now):
                    return False
            except SourceLost:
                world.count["source refused: its history parted or its identity changed"] += 1
                raise
            dump.connection = source.connection
        return True

    def most_rows(self) -> int:
        """The rows of a read, at most; drawn before it."""
        return self.world.rng.randrange(1, self.world.shape.max_rows + 1)

    def changes(self, dump: SimulatedDump, order: ReadChanges, most: int) -> Changes | None:
        """What a connected cursor reads; None if nothing is new, and the dump waits. SourceLost if it can't go on."""
        world = self.world
        most = 1 if world.hanging.armed else most
        try:
            read = world.source.cursor.read(order, dump.prepared, exact=world.shape.exact, max_rows=most)
        except SourceLost:
            world.count["source refused: its history parted or its identity changed"] += 1
            raise
        world.hanging.look(read)
        world.count[f"read by {order.cursor}"] += 1
        world.count["main read on to a transaction's end for those that wait"] += order.at_boundary
        nothing = read.changes.position == order.after and not read.changes.faults and not read.changes.stopped
        return None if nothing and world.rng.random() < 0.8 else read.changes


def _failed(split: SnapshotSplit, error: CutlineError) -> ChunkFailed:
    remedy = Remedy.WAIT if isinstance(error, TableLocked) else Remedy.RETRY
    remedy = Remedy.RESTART if isinstance(error, NextGeneration) else remedy
    return ChunkFailed(split_id=split.split_id, attempt=split.attempt, cause=error.cause, remedy=remedy)
