"""What readers ask of the source: chunks with their watermarks, and changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from cutline.common.errors import SourceLost, lost
from cutline.common.mesh.machine import Event
from cutline.common.mesh.messages import (
    Remedy,
)
from cutline.common.positions import High
from cutline.services.reader.events import (
    ChunkFailed,
    ChunkRowsRead,
    ReadChanges,
)
from tests.simulation.mesh.service import SimulatedDump, SimulatedService
from tests.simulation.source.transactions import KINDS, MARIADB, MYSQL
from tests.support.causes import because
from tests.support.reads import chunk_read

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Reading:
    """What readers ask of the source: chunks with their watermarks, and changes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.locks = random.Random(f"locks {world.seed}")  # apart, so that seeds mean what they meant before

    def still(self, service: SimulatedService, chunk: Any, connection: int) -> bool:
        """Whether the chunk is still being read on its connection; a broken one fails the attempt."""
        if service.chunk is not chunk or not service.alive:
            return False
        if connection == self.world.source.connection:
            return True
        self.world.count["connection broke while a chunk was read"] += 1
        self.fail_chunk(service, chunk, "the connection broke", Remedy.RETRY)
        return False

    def fail_chunk(self, service: SimulatedService, chunk: Any, cause: str, remedy: Remedy) -> None:
        """The attempt at the chunk fails."""
        split, service.chunk = chunk["split"], None
        failed = ChunkFailed(split_id=split.split_id, attempt=split.attempt, cause=because(cause), remedy=remedy)
        self.world.drivers.tell(service, service.token, failed)

    def take_low(self, service: SimulatedService, chunk: Any, connection: int) -> None:
        world = self.world
        if not self.still(service, chunk, connection):
            return
        if world.goes_wrong("chunk of a locked table", 0.05, self.locks):
            world.count["chunk of a locked table"] += 1
            self.fail_chunk(service, chunk, "locked by another session", Remedy.WAIT)
            return
        low = None if world.hanging.hangs else world.source.reads.low(world.now)
        if low is None:
            world.at(0.1, self.take_low, service, chunk, connection)
            return
        chunk["low"] = low
        if world.shape.flavour == MARIADB:
            self.select(service, chunk, connection)
        else:
            world.at(world.lag(3), self.select, service, chunk, connection)

    def select(self, service: SimulatedService, chunk: Any, connection: int) -> None:
        world = self.world
        if not self.still(service, chunk, connection):
            return
        if world.shape.flavour == MYSQL and world.source.engine.prepared:
            world.at(0.05, self.take_low, service, chunk, connection)
            return
        split = chunk["split"]
        if split.table_id in world.source.engine.frozen or world.hanging.hangs:  # the DDL's metadata lock
            world.count["SELECT waits for a DDL"] += not world.hanging.hangs
            world.at(0.05, self.select, service, chunk, connection)
            return
        if world.shape.flavour == MARIADB and world.source.reads.rebuilt(split.table_id, chunk["low"]):
            world.count["SELECT in a snapshot from before its table was made anew"] += 1
            self.fail_chunk(service, chunk, "table definition has changed", Remedy.RESTART)
            return
        chunk["rows"] = world.source.reads.select(split)
        chunk["schema"] = world.source.schema(split.table_id)
        if world.shape.flavour == MARIADB:
            low = chunk["low"]
            self.take_high(service, chunk, connection, High(server=low.server, file=low.file, offset=low.offset))
        else:
            world.at(world.lag(3), self.take_high, service, chunk, connection, None)

    def take_high(self, service: SimulatedService, chunk: Any, connection: int, high: Any) -> None:
        world = self.world
        if not self.still(service, chunk, connection):
            return
        split = chunk["split"]
        chunk["high"] = high or world.source.flushed()
        if KINDS[split.table_id].keyless:
            changes = world.source.reads.window(split.table_id, chunk["low"], chunk["high"])
            if changes:
                world.count["keyless: the table did not rest while its snapshot was begun"] += 1
                world.at(0.05, self.take_low, service, chunk, connection)
                return
            chunk["rows"] = None if changes is None else chunk["rows"]
        elif world.shape.exact:
            chunk["rows"] = world.source.reads.overlay(split, chunk["rows"], chunk["low"], chunk["high"])
        other = chunk["schema"].hash != split.schema.hash
        refused = chunk["rows"] is None or (other and world.rng.random() < 0.5)
        if refused or world.goes_wrong("chunk refused", 0.01):
            self.fail_chunk(service, chunk, "a DDL came between", Remedy.RESTART if other else Remedy.RETRY)
            return
        if other:
            world.count["chunk of other columns reported"] += 1
        chunk["left"], chunk["cut_at"] = sorted(chunk["rows"].items()), None
        keyed = not KINDS[split.table_id].keyless
        if keyed and len(chunk["left"]) > 1 and world.goes_wrong("chunk out of time", 0.05):
            at = world.rng.randrange(1, len(chunk["left"]))  # its time is over: it ends before the last key read
            chunk["cut_at"] = world.source.reads.literal(split.table_id, chunk["left"][at][0])
            chunk["left"] = chunk["left"][:at]
            world.count["chunk ran out of time and was split"] += 1
        chunk["total"] = len(chunk["left"])
        world.count["chunk without rows"] += not chunk["left"]
        self.give_rows(service, chunk)

    def give_rows(self, service: SimulatedService, chunk: Any) -> None:
        world = self.world
        split = chunk["split"]
        size = world.rng.choice((1, 3, 50))
        rows, chunk["left"] = chunk["left"][:size], chunk["left"][size:]
        event: Event
        if rows:
            sizes = {"rows": len(rows), "size": len(rows)}
            event = ChunkRowsRead(split_id=split.split_id, attempt=split.attempt, **sizes, body=rows)
        else:
            service.chunk = None
            event = chunk_read(
                split_id=split.split_id, attempt=split.attempt, rows=chunk["total"], checksum="", low=chunk["low"],
                high=chunk["high"], schema=chunk["schema"], cut_at=chunk["cut_at"],
            )  # fmt: skip
        if rows and world.goes_wrong("chunk failed after some rows", 0.01):
            service.chunk = None
            world.count["chunk failed after some rows"] += 1
            event = ChunkFailed(
                split_id=split.split_id, attempt=split.attempt, cause=because("lost connection"), remedy=Remedy.RETRY
            )
        world.drivers.later(service, world.lag(), lambda: event)

    def changes_read(self, service: SimulatedService, order: ReadChanges) -> Event | None:
        world = self.world
        if (nothing := world.hanging.read(order)) is not None:
            world.drivers.later(service, 0.5, lambda: nothing)
            return None
        dump = service.dumps.setdefault(order.cursor, SimulatedDump())
        max_rows = world.rng.randrange(1, world.shape.max_rows + 1)
        try:
            if world.goes_wrong("connection of a dump broke", 0.02):
                dump.connection = 0
                world.count["connection of a dump broke"] += 1
            if dump.connection != world.source.connection:
                dump.prepared.clear()  # a new connection knows no prepared transactions
                if not world.source.cursor.connects(order.after, dump.commits, world.now):
                    world.drivers.later(service, world.rng.uniform(0.2, 0.6), lambda: self.changes_read(service, order))
                    return None
                dump.connection = world.source.connection
            max_rows = 1 if world.hanging.armed else max_rows
            event = world.source.cursor.read(order, dump.prepared, exact=world.shape.exact, max_rows=max_rows)
            world.hanging.look(event)
        except SourceLost as error:
            world.faults.halts_expected |= world.source.servers > 1 or world.source.purged > 0
            world.count["source refused: its history parted or its identity changed"] += 1
            world.mesh.fail(service, error.cause, halts=True, loss=lost(error))
            return None
        world.count[f"read by {order.cursor}"] += 1
        world.count["main read on to a transaction's end for those that wait"] += order.at_boundary
        read = event.changes
        if read.position == order.after and not read.faults and not read.stopped:  # nothing new: the dump waits
            if world.rng.random() < 0.8:
                world.drivers.later(service, world.rng.uniform(0.05, 0.4), lambda: self.changes_read(service, order))
                return None
        return event
