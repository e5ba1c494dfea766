"""The simulated server: commits in two steps, XA, DDL, rotation, restart, fail-over."""

from __future__ import annotations

import random
from collections import Counter

from cutline.common.errors import SourceLost
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import High, Position
from cutline.common.schema import Column, SchemaChanges, TableSchema
from tests.simulation.source.changes import Changes
from tests.simulation.source.cursor import Cursor
from tests.simulation.source.engine import Engine
from tests.simulation.source.places import Places
from tests.simulation.source.reads import Reads
from tests.simulation.source.transactions import (
    KINDS,
    MARIADB,
    MYSQL,
    PLAIN,
    SUM,
    Change,
    Row,
    State,
    Txn,
)


class SimulatedSource:
    """One source database over its servers."""

    def __init__(
        self,
        rng: random.Random,
        count: Counter[str],
        *,
        flavour: str,
        tables: tuple[str, ...],
        rows: int,
        schema_changes: SchemaChanges,
    ) -> None:
        self.rng, self.count, self.flavour = rng, count, flavour
        self.tables = tables
        self.ordered = flavour != MYSQL or rng.random() < 0.6
        self.servers = 1
        self.number = rng.choice((1, 998, 999, 999_998, 999_999))
        self.log: list[Txn] = []
        self.boundary: dict[tuple[str, int], int] = {}
        self.lost_gtids: set[str] = set()
        self.transactions = 0
        self.connection = 1  # grows when every connection breaks
        self.changes = Changes(self)
        self.reads = Reads(self)
        self.places = Places(self)
        self.cursor = Cursor(self, schema_changes)
        self.initial_columns = {t: (*(name for name, _ in KINDS[t].key), "amount", "stamp") for t in tables}
        self.initial = self._first_rows(rows)
        self.engine = Engine({table: dict(found) for table, found in self.initial.items()})
        self.place = (self.file(), 4)
        self.boundary[self.place] = 0
        self.purged = 0  # how many of `log` are gone from the binlog; their effects stay

    def _first_rows(self, rows: int) -> State:
        rng, changes = self.rng, self.changes
        state: State = {}
        for table in self.tables:
            bound = table in ("shop.a", "shop.b")
            many = rows if bound else rng.choice((0, rows, rows))
            spread = rng.choice((1, 1, 2, 30))
            state[table] = {}
            for i in range(many):
                key = changes.new_key(table, i * spread)
                state[table][key] = (*key, SUM // (2 * rows) if bound else i, changes.stamp())
        if "shop.a" in state and "shop.b" in state:  # what division left over
            key, row = next(iter(state["shop.b"].items()))
            rest = SUM - sum(r[-2] for t in ("shop.a", "shop.b") for r in state[t].values())
            state["shop.b"][key] = (*row[:-2], row[-2] + rest, row[-1])
        return state

    @property
    def server(self) -> str:
        return f"server-{self.servers}"

    def file(self) -> str:
        return f"{'binlog' if self.servers % 2 else 'mysqld-bin'}.{self.number:06d}"

    def next_gtid(self) -> str | None:
        self.transactions += 1
        if self.flavour == MYSQL:
            return f"{'3e11fa47-71ca-11e1-9e33-c80aa942956' + str(self.servers % 10)}:{self.transactions}"
        return f"0-{self.servers}-{self.transactions}" if self.flavour == MARIADB else None

    def latest(self) -> tuple[State, dict[str, tuple[str, ...]]]:
        """The state after every transaction of the binlog."""
        if self.log:
            return self.log[-1].state, self.log[-1].columns
        return self.initial, self.initial_columns

    def state_at(self, position: Position) -> tuple[State, dict[str, tuple[str, ...]]]:
        """The truth at a position between two transactions."""
        assert position.server == self.server or self.flavour != PLAIN
        at = self.find(position)[0]
        return (self.log[at - 1].state, self.log[at - 1].columns) if at else (self.initial, self.initial_columns)

    def flushed(self) -> High:
        """SHOW BINARY LOG STATUS: the end of the flushed events, visible or not."""
        return High(server=self.server, file=self.place[0], offset=self.place[1])

    def end(self) -> Position:
        gtids = ""
        if self.flavour == MYSQL:
            gtids = str(self.engine.executed)
        elif self.flavour == MARIADB:
            gtids = next((t.gtid for t in reversed(self.log) if t.gtid), "") or ""
        return Position(server=self.server, file=self.place[0], offset=self.place[1], gtids=gtids)

    def schema(self, table: str, columns: tuple[str, ...] | None = None) -> TableSchema:
        """The schema that the catalogue shows now: field ids from 1."""
        names = columns if columns is not None else self._visible_columns(table)
        types = dict(KINDS[table].key)
        made = tuple(
            Column(name=name, field_id=i + 1, mysql_type=types.get(name, "bigint"), nullable=name.startswith("c"))
            for i, name in enumerate(names)
        )
        key = () if KINDS[table].keyless else tuple(types)
        return TableSchema(table_id=table, columns=made, key=key, last_field_id=len(made))

    def _visible_columns(self, table: str) -> tuple[str, ...]:
        ddl = next((t for t in self.engine.pending if t.kind == "ddl" and t.table == table and not t.visible), None)
        if ddl is None:
            return self.latest()[1][table]
        at = self.log.index(ddl)
        return self.log[at - 1].columns[table] if at else self.initial_columns[table]

    def _append(self, txn: Txn, now: float) -> None:
        state, columns = self.latest()
        txn.state, txn.columns, txn.at = state, columns, now
        self._effect(txn)
        self._place(txn)
        if txn.gtid is None and txn.kind != "rotate" and self.flavour == PLAIN:
            self.count["event without GTID"] += 1

    def _place(self, txn: Txn) -> None:
        txn.file, txn.start = self.place
        if txn.kind == "rotate":
            self.number += 1
            if self.number in (1000, 1_000_000):  # six digits are padded, the seventh is not
                self.count["file numbers 999 to 1000"] += 1
            txn.end_file, txn.end = self.file(), 4
        else:
            txn.end_file, txn.end = txn.file, txn.start + 10 + 10 * len(txn.changes)
        self.log.append(txn)
        self.place = (txn.end_file, txn.end)
        self.boundary[self.place] = len(self.log)

    @staticmethod
    def _apply(state: dict[Row, Row], change: Change, width: int) -> None:
        if change.before is not None:
            del state[change.before[:width]]
        if change.after is not None:
            state[change.after[:width]] = change.after

    def _effect(self, txn: Txn) -> None:
        """Fill in the state after `txn`, in binlog order."""
        changes = txn.changes if txn.kind == "rows" else ()
        if txn.kind == "commit":
            changes = self.engine.prepared[txn.xid].changes
        if changes:
            txn.state = dict(txn.state)
            for table in {change.table for change in changes}:
                txn.state[table] = dict(txn.state[table])
            for change in changes:
                self._apply(txn.state[change.table], change, len(KINDS[change.table].key))
        if txn.kind == "ddl":
            old = txn.columns[txn.table]
            txn.state = dict(txn.state)
            if txn.ddl == "add":
                txn.columns = txn.columns | {txn.table: (*old, txn.column)}
            elif txn.ddl == "drop":
                at = old.index(txn.column)
                txn.columns = txn.columns | {txn.table: (*old[:at], *old[at + 1 :])}
            txn.state[txn.table] = self.altered(txn, old, txn.state[txn.table])

    @staticmethod
    def altered(txn: Txn, old: tuple[str, ...], rows: dict[Row, Row]) -> dict[Row, Row]:
        """The rows, which have the columns `old`, after a DDL."""
        if txn.ddl == "add":
            return {key: (*row, None) for key, row in rows.items()}
        if txn.ddl == "drop":
            at = old.index(txn.column)
            return {key: (*row[:at], *row[at + 1 :]) for key, row in rows.items()}
        if txn.ddl == "truncate":
            return {}
        at = old.index("amount")  # rows change, and no row event says so
        return {
            key: (*row[:at], row[at] + 1000, *row[at + 1 :])
            for i, (key, row) in enumerate(sorted(rows.items()))
            if i % 3
        }

    def commit(self, txn: Txn, now: float) -> None:
        """Flush it to the binlog: from here on a dump delivers it, and no SELECT sees it yet."""
        self._append(txn, now)
        self.engine.pending.append(txn)
        if txn.kind == "ddl":
            self.engine.frozen.add(txn.table)
        width = {t: len(k.key) for t, k in KINDS.items()}
        for change in txn.changes:
            for row in (change.before, change.after):
                if row is not None:
                    self.engine.locks[change.table, row[: width[change.table]]] = txn

    def show(self, txn: Txn) -> None:
        """The engine commits: SELECTs see it."""
        if txn not in self.engine.pending or txn.visible:
            return
        txn.visible = True
        self.engine.shows += 1
        txn.shown = self.engine.shows
        source = self.engine.prepared.pop(txn.xid) if txn.kind in ("commit", "rollback") else txn
        if txn.kind in ("commit", "rows"):
            for change in source.changes:
                self._apply(self.engine.visible[change.table], change, len(KINDS[change.table].key))
        if txn.kind == "ddl":
            self.engine.visible[txn.table] = dict(txn.state[txn.table])
            self.engine.frozen.discard(txn.table)
        for key, holder in list(self.engine.locks.items()):
            if holder is source:
                del self.engine.locks[key]
        if self.flavour != MYSQL:
            self.execute(txn)

    def execute(self, txn: Txn) -> None:
        """gtid_executed grows, a moment after SELECTs could see it, and never past a commit that this one could see
        (the server updates it in the order of the commits, with binlog_order_commits, which preflight asks for)."""
        if txn not in self.engine.pending or not txn.visible:
            return
        for earlier in [other for other in self.engine.pending if other.visible and other.shown < txn.shown]:
            self._executed(earlier)
        self._executed(txn)

    def _executed(self, txn: Txn) -> None:
        txn.executed = True
        self.engine.pending.remove(txn)
        if self.flavour == MYSQL and txn.gtid:
            self.engine.executed = self.engine.executed.add(txn.gtid)

    def prepare(self, txn: Txn, now: float) -> None:
        """XA PREPARE: the rows are in the binlog, its GTID at once in gtid_executed, and no SELECT sees them."""
        self.commit(txn, now)
        self.engine.pending.remove(txn)
        txn.visible = txn.executed = True
        self.engine.prepared[txn.xid] = txn
        if self.flavour == MYSQL and txn.gtid:
            self.engine.executed = self.engine.executed.add(txn.gtid)

    def rotate(self, now: float) -> None:
        """A new binlog file; the server waits until every transaction of the old one is committed."""
        for txn in list(self.engine.pending):
            self.show(txn)
            self.execute(txn)
        self._append(Txn("rotate", None, visible=True, executed=True), now)
        self.count["binlog rotation"] += 1

    def purge(self) -> None:
        """PURGE BINARY LOGS, up to the file in use or before."""
        if rotations := [at for at, txn in enumerate(self.log) if txn.kind == "rotate"]:
            self.purged = max(self.purged, self.rng.choice((rotations[-1], self.rng.choice(rotations))) + 1)
            self.count["binlogs purged"] += 1

    def restart(self, now: float) -> None:
        """The server restarts: a new file, every connection breaks; prepared XA transactions stay."""
        self.rotate(now)
        self.connection += 1
        self.count["server restart"] += 1

    def fail_over(self, now: float) -> None:
        """Another server takes over: same transactions by GTID, other files; what was only flushed may be lost
        there."""
        for xid in list(self.engine.prepared):  # the new primary's client rolls back what it finds prepared
            if not any(t.xid == xid and t.kind in ("commit", "rollback") for t in self.engine.pending):
                self.commit(Txn("rollback", self.next_gtid(), xid=xid), now)
        seen = max((i for i, t in enumerate(self.log) if t.visible and t.kind != "rotate"), default=-1)
        rollbacks = [i for i, t in enumerate(self.log) if t.kind in ("commit", "rollback")]
        keep = max([seen, *rollbacks]) + 1
        if self.rng.random() < 0.7:
            keep = len(self.log)
        lost = self.log[keep:]
        kept = [t for t in self.log[:keep] if t.kind != "rotate"]
        for txn in list(self.engine.pending):
            if txn in lost:
                self.engine.pending.remove(txn)
                self.engine.frozen.discard(txn.table)
                for key, holder in list(self.engine.locks.items()):
                    if holder is txn:
                        del self.engine.locks[key]
                if txn.gtid:
                    self.lost_gtids.add(txn.gtid)
                    self.count["fail-over lost a flushed transaction"] += 1
            else:
                self.show(txn)
                self.execute(txn)
        self.servers += 1
        self.number = self.rng.choice((1, 997, 4))
        self.log, self.boundary, self.purged = [], {}, 0
        self.place = (self.file(), 4)
        self.boundary[self.place] = 0
        for i, txn in enumerate(kept):
            if i and self.rng.random() < 0.05:
                rotation = Txn("rotate", None, visible=True, executed=True)
                rotation.state, rotation.columns = kept[i - 1].state, kept[i - 1].columns
                self._place(rotation)
            self._place(txn)
        self.connection += 1
        self.reads.seen_flushed = []
        self.count["fail-over"] += 1

    def changes_of(self, txn: Txn) -> tuple[Change, ...]:
        if txn.kind == "commit":
            return next(t.changes for t in self.log if t.kind == "prepare" and t.xid == txn.xid)
        return txn.changes if txn.kind == "rows" else ()

    def find(self, after: Position) -> tuple[int, bool]:
        """Index of the first transaction after `after`, and whether GTIDs must decide which later ones were taken."""
        if after.server == self.server:
            at = self.boundary.get((after.file, after.offset))
            if at is None:
                raise SourceLost(f"the binlog has no place {after.file_position}")
            return at, False
        executed = after.executed
        if self.flavour == PLAIN:
            raise SourceLost(f"the source changed from server {after.server} to {self.server} and has no GTIDs")
        if executed is None:
            executed = GtidSet.EMPTY if self.flavour == MYSQL else MariaGtid.parse("")
        for at, txn in enumerate(self.log):
            if txn.gtid is not None and not executed.contains(txn.gtid):
                return at, True
        return len(self.log), True
