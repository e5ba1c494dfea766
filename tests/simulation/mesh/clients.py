"""What people do at the source: transactions, XA, DDL, each visible a while after it is flushed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.source.transactions import HIDES_SECONDS, KINDS, Txn

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Clients:
    """What people do at the source: transactions, XA, DDL, each visible a while after it is flushed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.xids = 0
        self.writing = True  # the source still changes

    def stop_writing(self) -> None:
        world = self.world
        self.writing = False
        world.schedule.deadline += self.reading_seconds()
        source = world.source
        for xid in list(source.engine.prepared):
            if not any(t.xid == xid for t in source.engine.pending):
                self.flush(Txn("commit", source.next_gtid(), xid=xid))
        world.at(HIDES_SECONDS + 1.0, world.look_for_end)

    def reading_seconds(self) -> float:
        """The longest time in which one reader reads every table once more: a chunk takes about ten steps, or twice as
        many if its table's columns changed meanwhile."""
        world = self.world
        chunks = 0
        for table, rows in world.source.engine.visible.items():
            keys = [key[0] for key in rows]
            integer = KINDS[table].integer and keys
            chunks += 1 + (max(keys) - min(keys) + 1 if integer else len(keys)) // world.shape.chunk_rows
        return 20 * world.shape.lag * chunks

    def watch_flushed(self) -> None:
        world = self.world
        world.source.reads.note_flushed(world.now)
        world.at(0.5, self.watch_flushed)

    def flush(self, txn: Txn) -> None:
        world = self.world
        source, rng = world.source, world.rng
        source.commit(txn, world.now)
        delay = rng.expovariate(1 / 0.01) if rng.random() < 0.85 else rng.uniform(0.05, HIDES_SECONDS)
        world.at(delay, self.becomes_visible, txn)

    def becomes_visible(self, txn: Txn) -> None:
        world = self.world
        source = world.source
        if txn not in source.engine.pending:
            return
        if source.ordered:  # group commit in the order of the binlog: earlier ones first
            for earlier in list(source.engine.pending[: source.engine.pending.index(txn)]):
                source.show(earlier)
                source.execute(earlier)
        source.show(txn)
        if txn in source.engine.pending:
            world.at(world.rng.expovariate(1 / 0.02), source.execute, txn)

    def write(self) -> None:
        world = self.world
        if not self.writing:
            return
        if world.hanging.hangs:
            world.at(1.0, self.write)
            return
        rng, source = world.rng, world.source
        chance = rng.random()
        prepares = chance < 0.03 and not source.engine.prepared
        if not world.steps.happens("transaction"):
            pass
        elif prepares:
            self.xids += 1
            changes = source.changes.drawn(rng.randrange(1, 3))
            txn = Txn("prepare", source.next_gtid(), changes=changes, xid=self.xids)
            source.prepare(txn, world.now)
            world.count["XA PREPARE"] += 1
            world.at(rng.uniform(0.02, 0.6), self.end_xa, self.xids)
        elif chance < 0.05:
            source.rotate(world.now)
        elif chance < 0.075:
            self.ddl()
        elif chance < 0.12:
            self.flush(Txn("foreign", source.next_gtid()))
        elif chance < 0.15:
            self.flush(Txn("rows", source.next_gtid(), changes=source.changes.drawn(rng.randrange(20, 45))))
            world.count["large transaction"] += 1
        else:
            changes = source.changes.drawn(rng.choice((1, 1, 2, 4)))
            if changes:
                self.flush(Txn("rows", source.next_gtid(), changes=changes))
        world.at(rng.expovariate(1 / world.shape.gap), self.write)

    def end_xa(self, xid: int) -> None:
        world = self.world
        source = world.source
        if xid in source.engine.prepared and not any(t.xid == xid for t in source.engine.pending):
            kind = "commit" if world.rng.random() < 0.7 else "rollback"
            world.count[f"XA {kind.upper()}"] += 1
            self.flush(Txn(kind, source.next_gtid(), xid=xid))

    def ddl(self) -> None:
        world = self.world
        rng, source = world.rng, world.source
        busy = {table for table, _ in source.engine.locks} | source.engine.frozen
        tables = [t for t in source.tables if t not in busy]
        if not tables:
            return
        table = rng.choice(tables)
        columns = source.latest()[1][table]
        extra = [c for c in columns if c.startswith("c")]
        ddl = rng.choice(("add", "add", "drop", "unlogged", "truncate"))
        if table in ("shop.a", "shop.b") and ddl in ("unlogged", "truncate"):
            ddl = "add"
        column = ""
        if ddl == "drop":
            if not extra:
                return
            column = rng.choice(extra)
        elif ddl == "add":
            if len(extra) > 2:
                return
            column = f"c{rng.randrange(6)}"
            if column in columns:
                return
        world.tell_story(f"source: {ddl} {column} on {table}")
        self.flush(Txn("ddl", source.next_gtid(), table=table, ddl=ddl, column=column))
