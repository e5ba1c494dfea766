"""The simulated server: three flavours, commits in two steps, XA, DDL, rotation, restart, fail-over; and its cursor.

Its behaviour was measured on real servers. A commit is first flushed to the binlog, then visible to SELECT, then
(MySQL) in `gtid_executed`; locks keep others off its rows until then. The flushed position runs ahead of what a SELECT
sees. Positions, watermarks and schemas are the real ones of common/.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import PositionLost, SourceLost
from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import FilePosition, GtidSet, High, Low, MariaGtid, Position, Stop
from cutline.common.schema import Column, SchemaChanges, TableSchema
from cutline.services.reader.events import ChangeBatch, ChangesRead, ReadChanges, SchemaChanged, TableFaulted
from cutline.services.reader.tables import StreamTable
from cutline.services.sources.mysql.watermark import Commits

MYSQL, MARIADB, PLAIN = "mysql with GTID", "mariadb", "mysql without GTID"
HALTS = "schema_changes is halt"
AGE_SECONDS = 4.0  # in the place of the 60 s that a flushed position ages before it may be a low
HIDES_SECONDS = 2.5  # the longest that a commit is flushed and not visible
SUM = 10_000  # the constant sum of the amounts of the two accounts tables

Row = tuple[Any, ...]
State = dict[str, dict[Row, Row]]  # table -> key -> row


@dataclass(frozen=True, slots=True)
class Change:
    """One row change, with full images; an insert has no `before`, a delete no `after`."""

    table: str
    before: Row | None
    after: Row | None


@dataclass(slots=True)
class Txn:
    """One item of the binlog: `rows`, `prepare`, `commit`, `rollback` (XA), `ddl`, `rotate` or `foreign`."""

    kind: str
    gtid: str | None
    changes: tuple[Change, ...] = ()
    table: str = ""
    ddl: str = ""  # add, drop, truncate, unlogged
    column: str = ""
    xid: int = 0
    at: float = 0.0
    file: str = ""
    start: int = 0
    end_file: str = ""
    end: int = 0
    state: State = field(default_factory=dict)  # of the whole source after it, in binlog order
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each table after it
    visible: bool = False
    shown: int = 0  # place in the order in which commits became visible
    executed: bool = False

    @property
    def end_place(self) -> FilePosition:
        return FilePosition(self.end_file, self.end)

    def behind(self, stop: Stop, server: str) -> bool:
        """Whether it begins after the stop."""
        if stop.time_us is not None:
            return int(self.at * 1e6) >= stop.time_us
        return bool(stop.file) and stop.server == server and FilePosition(self.file, self.start) >= FilePosition(
            stop.file, stop.offset
        )  # fmt: skip


@dataclass(slots=True)
class Kind:
    """A kind of table: its key columns with types, and how it is split. `keyless`: the catalogue shows no key."""

    key: tuple[tuple[str, str], ...]
    integer: bool
    keyless: bool = False


KINDS = {
    "shop.a": Kind((("id", "bigint"),), True),
    "shop.b": Kind((("id", "int"),), True),
    "shop.pair": Kind((("x", "int"), ("y", "int")), False),
    "shop.text": Kind((("name", "varchar(40)"),), False),
    "shop.log": Kind((("id", "bigint"),), True, keyless=True),
}
FEW = tuple(sorted(KINDS))
KINDS |= {f"shop.n{i}": Kind((("id", "bigint"),), True) for i in range(8)}
"""Of `FEW` most worlds have some; a few worlds have more tables."""


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
        self.rng, self.count, self.flavour, self.schema_changes = rng, count, flavour, schema_changes
        self.tables = tables
        self.ordered = flavour != MYSQL or rng.random() < 0.6
        self.servers = 1
        self.number = rng.choice((1, 998, 999, 999_998, 999_999))
        self.log: list[Txn] = []
        self.boundary: dict[tuple[str, int], int] = {}
        self.visible: State = {}
        self.locks: dict[tuple[str, Row], Txn | int] = {}
        self.frozen: set[str] = set()  # tables under DDL
        self.prepared: dict[int, Txn] = {}
        self.pending: list[Txn] = []
        self._shows = 0
        self.executed: GtidSet = GtidSet.EMPTY
        self.lost_gtids: set[str] = set()
        self.quarantined: set[str] = set()  # tables that the stream could not go on with
        self.stamps = 0
        self.transactions = 0
        self.xids = 0
        self.connection = 1  # grows when every connection breaks
        self.seen_flushed: list[tuple[float, Position]] = []
        self.initial_columns = {t: (*(name for name, _ in KINDS[t].key), "amount", "stamp") for t in tables}
        state: State = {}
        for table in tables:
            many = rng.choice((0, rows, rows)) if table not in ("shop.a", "shop.b") else rows
            spread = rng.choice((1, 1, 2, 30))
            state[table] = {}
            for i in range(many):
                key = self._new_key(table, i * spread)
                state[table][key] = (*key, SUM // (2 * rows) if table in ("shop.a", "shop.b") else i, self._stamp())
        if "shop.a" in state and "shop.b" in state:  # what division left over
            key, row = next(iter(state["shop.b"].items()))
            rest = SUM - sum(r[-2] for t in ("shop.a", "shop.b") for r in state[t].values())
            state["shop.b"][key] = (*row[:-2], row[-2] + rest, row[-1])
        self.initial = state
        self.visible = {table: dict(found) for table, found in state.items()}
        self.place = (self._file(), 4)
        self.boundary[self.place] = 0
        self.purged = 0  # how many of `log` are gone from the binlog; their effects stay
        self.starts: dict[Low, dict[int, Txn]] = {}  # of pipelines without a snapshot: what each leaves out

    # --- names, places ---

    @property
    def server(self) -> str:
        return f"server-{self.servers}"

    def _file(self) -> str:
        return f"{'binlog' if self.servers % 2 else 'mysqld-bin'}.{self.number:06d}"

    def _stamp(self) -> int:
        self.stamps += 1
        return self.stamps

    def _new_key(self, table: str, i: int) -> Row:
        if table == "shop.pair":
            return (i % 7, i)
        if table == "shop.text":
            return (f"k{i * 37 % 997:03d}{i}",)
        return (i,)

    def _gtid(self) -> str | None:
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
        at = self._find(position)[0]
        return (self.log[at - 1].state, self.log[at - 1].columns) if at else (self.initial, self.initial_columns)

    def flushed(self) -> High:
        """SHOW BINARY LOG STATUS: the end of the flushed events, visible or not."""
        return High(server=self.server, file=self.place[0], offset=self.place[1])

    def end(self) -> Position:
        gtids = ""
        if self.flavour == MYSQL:
            gtids = str(self.executed)
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
        ddl = next((t for t in self.pending if t.kind == "ddl" and t.table == table and not t.visible), None)
        if ddl is None:
            return self.latest()[1][table]
        at = self.log.index(ddl)
        return self.log[at - 1].columns[table] if at else self.initial_columns[table]

    # --- writing ---

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
            txn.end_file, txn.end = self._file(), 4
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
        changes = self.prepared[txn.xid].changes if txn.kind == "commit" else txn.changes if txn.kind == "rows" else ()
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
            txn.state[txn.table] = self._altered(txn, old, txn.state[txn.table])

    @staticmethod
    def _altered(txn: Txn, old: tuple[str, ...], rows: dict[Row, Row]) -> dict[Row, Row]:
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

    def busy(self) -> bool:
        return bool(self.pending or self.prepared)

    def commit(self, txn: Txn, now: float) -> None:
        """Flush it to the binlog: from here on a dump delivers it, and no SELECT sees it yet."""
        self._append(txn, now)
        self.pending.append(txn)
        if txn.kind == "ddl":
            self.frozen.add(txn.table)
        width = {t: len(k.key) for t, k in KINDS.items()}
        for change in txn.changes:
            for row in (change.before, change.after):
                if row is not None:
                    self.locks[change.table, row[: width[change.table]]] = txn

    def show(self, txn: Txn) -> None:
        """The engine commits: SELECTs see it."""
        if txn not in self.pending or txn.visible:
            return
        txn.visible = True
        self._shows += 1
        txn.shown = self._shows
        source = self.prepared.pop(txn.xid) if txn.kind in ("commit", "rollback") else txn
        if txn.kind in ("commit", "rows"):
            for change in source.changes:
                self._apply(self.visible[change.table], change, len(KINDS[change.table].key))
        if txn.kind == "ddl":
            self.visible[txn.table] = dict(txn.state[txn.table])
            self.frozen.discard(txn.table)
        for key, holder in list(self.locks.items()):
            if holder is source:
                del self.locks[key]
        if self.flavour != MYSQL:
            self.execute(txn)

    def execute(self, txn: Txn) -> None:
        """gtid_executed grows, a moment after SELECTs could see it, and never past a commit that this one could see
        (the server updates it in the order of the commits, with binlog_order_commits, which preflight asks for)."""
        if txn not in self.pending or not txn.visible:
            return
        for earlier in [other for other in self.pending if other.visible and other.shown < txn.shown]:
            self._executed(earlier)
        self._executed(txn)

    def _executed(self, txn: Txn) -> None:
        txn.executed = True
        self.pending.remove(txn)
        if self.flavour == MYSQL and txn.gtid:
            self.executed = self.executed.add(txn.gtid)

    def prepare(self, txn: Txn, now: float) -> None:
        """XA PREPARE: the rows are in the binlog, its GTID at once in gtid_executed, and no SELECT sees them."""
        self.commit(txn, now)
        self.pending.remove(txn)
        txn.visible = txn.executed = True
        self.prepared[txn.xid] = txn
        if self.flavour == MYSQL and txn.gtid:
            self.executed = self.executed.add(txn.gtid)

    def _free(self, table: str) -> list[Row]:
        if table in self.frozen:
            return []
        return [key for key in self.latest()[0][table] if (table, key) not in self.locks]

    def random_changes(self, size: int) -> tuple[Change, ...]:
        """Row changes of one transaction, on rows that are not locked; amounts move and their sum stays."""
        rng = self.rng
        state, columns = self.latest()
        local: State = {}
        touched: set[tuple[str, Row]] = set()
        changes: list[Change] = []
        tables = [t for t in self.tables if t not in self.frozen]
        if not tables:
            return ()

        def put(table: str, before: Row | None, after: Row | None) -> None:
            width = len(KINDS[table].key)
            changes.append(Change(table, before, after))
            rows = local.setdefault(table, dict(state[table]))
            if before is not None:
                del rows[before[:width]]
                touched.add((table, before[:width]))
            if after is not None:
                rows[after[:width]] = after
                touched.add((table, after[:width]))

        def pick(table: str) -> Row | None:
            rows = local.get(table, state[table])
            free = [key for key in rows if (table, key) not in self.locks]
            return rows[rng.choice(free)] if free else None

        def fresh(table: str) -> Row | None:
            for _ in range(4):
                key = self._new_key(table, rng.randrange(0, 240))
                if key not in local.get(table, state[table]) and (table, key) not in self.locks:
                    return key
            return None

        def with_amount(row: Row, names: tuple[str, ...], amount: int) -> Row:
            at = names.index("amount")
            return (*row[:at], amount, self._stamp(), *row[at + 2 :])

        for _ in range(size):
            table = rng.choice(tables)
            names = columns[table]
            width = len(KINDS[table].key)
            bound = table in ("shop.a", "shop.b")
            chance = rng.random()
            if KINDS[table].keyless and chance < 0.99:
                chance = 0.0
            if chance < 0.2:
                if (key := fresh(table)) is not None:
                    extra = tuple(rng.randrange(9) for _ in names[width + 2 :])
                    put(table, None, (*key, 0 if bound else rng.randrange(100), self._stamp(), *extra))
            elif (row := pick(table)) is None:
                continue
            elif bound:
                other = "shop.b" if table == "shop.a" else "shop.a"
                target = pick(other) if other in tables else None
                if target is None or chance > 0.9:
                    if (key := fresh(table)) is not None:  # key update
                        put(table, row, (*key, row[width], self._stamp(), *row[width + 2 :]))
                        self.count["key update"] += 1
                    continue
                moved = row[width] if chance < 0.35 else rng.randrange(0, max(1, row[width] + 1))
                at = columns[other].index("amount")
                put(table, row, None if chance < 0.35 else with_amount(row, names, row[width] - moved))
                put(other, target, with_amount(target, columns[other], target[at] + moved))
                self.count["transaction over two tables"] += 1
            elif chance < 0.35:
                put(table, row, None)
            elif chance > 0.9:
                if (key := fresh(table)) is not None:
                    put(table, row, (*key, row[width], self._stamp(), *row[width + 2 :]))
                    self.count["key update"] += 1
            else:
                put(table, row, with_amount(row, names, rng.randrange(100)))
        return tuple(changes)

    def rotate(self, now: float) -> None:
        """A new binlog file; the server waits until every transaction of the old one is committed."""
        for txn in list(self.pending):
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
        for xid in list(self.prepared):  # the new primary's client rolls back what it finds prepared
            if not any(t.xid == xid and t.kind in ("commit", "rollback") for t in self.pending):
                self.commit(Txn("rollback", self._gtid(), xid=xid), now)
        seen = max((i for i, t in enumerate(self.log) if t.visible and t.kind != "rotate"), default=-1)
        rollbacks = [i for i, t in enumerate(self.log) if t.kind in ("commit", "rollback")]
        keep = max([seen, *rollbacks]) + 1
        if self.rng.random() < 0.7:
            keep = len(self.log)
        lost = self.log[keep:]
        kept = [t for t in self.log[:keep] if t.kind != "rotate"]
        for txn in list(self.pending):
            if txn in lost:
                self.pending.remove(txn)
                self.frozen.discard(txn.table)
                for key, holder in list(self.locks.items()):
                    if holder is txn:
                        del self.locks[key]
                if txn.gtid:
                    self.lost_gtids.add(txn.gtid)
                    self.count["fail-over lost a flushed transaction"] += 1
            else:
                self.show(txn)
                self.execute(txn)
        self.servers += 1
        self.number = self.rng.choice((1, 997, 4))
        self.log, self.boundary, self.purged = [], {}, 0
        self.place = (self._file(), 4)
        self.boundary[self.place] = 0
        for i, txn in enumerate(kept):
            if i and self.rng.random() < 0.05:
                rotation = Txn("rotate", None, visible=True, executed=True)
                rotation.state, rotation.columns = kept[i - 1].state, kept[i - 1].columns
                self._place(rotation)
            self._place(txn)
        self.connection += 1
        self.seen_flushed = []
        self.count["fail-over"] += 1

    # --- reading: watermarks, SELECT ---

    def low(self, now: float) -> Low | None:
        """A low watermark as the flavour takes it, or None if it can't be taken yet."""
        if self.prepared:
            self.count["XA stands prepared when a low is wanted"] += 1
            return None
        if self.flavour == MYSQL:
            return Low(server=self.server, file=self.place[0], offset=4, gtids=str(self.executed))
        if self.flavour == MARIADB:
            assert self.ordered
            last = len(self.log)
            while last and not self.log[last - 1].visible:
                last -= 1
            file, offset = (self.log[last - 1].end_file, self.log[last - 1].end) if last else next(iter(self.boundary))
            gtids = next((t.gtid for t in reversed(self.log[:last]) if t.gtid), "") or ""
            return Low(server=self.server, file=file, offset=offset, gtids=gtids)
        aged = [p for at, p in self.seen_flushed if at <= now - AGE_SECONDS and p.server == self.server]
        if not aged:
            self.count["low has to age"] += 1
            return None
        return Low(server=aged[-1].server, file=aged[-1].file, offset=aged[-1].offset)

    def note_flushed(self, now: float) -> None:
        """Remember the flushed position, to be a low once it has aged."""
        self.seen_flushed = [*self.seen_flushed[-20:], (now, self.end())]

    def literal(self, table: str, key: Row) -> tuple[str, ...]:
        return tuple(str(part) for part in key)

    def native(self, table: str, bound: Iterable[Any] | None) -> Row | None:
        if bound is None:
            return None
        kinds = KINDS[table].key
        return tuple(
            part if kind.startswith("varchar") else int(part) for part, (_, kind) in zip(bound, kinds, strict=True)
        )

    def inside(self, table: str, key: Row, start: Any, end: Any) -> bool:
        """start <= key < end, compared as the server does."""
        first, last = self.native(table, start), self.native(table, end)
        return (first is None or first <= key) and (last is None or key < last)

    def select(self, split: SnapshotSplit) -> dict[Row, Row]:
        """The rows that a SELECT of the chunk sees now."""
        ahead = any(not t.visible and t.kind in ("rows", "commit", "ddl") for t in self.pending)
        self.count["SELECT while a flushed commit is not visible"] += ahead
        self.count["SELECT sees a commit that gtid_executed lacks"] += any(t.visible for t in self.pending)
        found = self.visible[split.table_id]
        return {k: r for k, r in found.items() if self.inside(split.table_id, k, split.split_start, split.split_end)}

    def window(self, table: str, low: Low, high: High) -> list[Change] | None:
        """The changes of a table in (low, high]; None if a DDL is among them."""
        found: list[Change] = []
        for txn in self.log:
            if txn.kind == "rotate" or low.covers(server=self.server, end=txn.end_place, gtid=txn.gtid):
                continue
            if txn.end_place > high.file_position:
                break
            if txn.kind == "ddl" and txn.table == table:
                return None
            found += [change for change in self._changes(txn) if change.table == table]
        return found

    def rebuilt(self, table: str, low: Low) -> bool:
        """Whether a DDL since `low` made the table anew. A SELECT in a snapshot of that time is then refused (1412);
        where columns were added or dropped in place it is not, and gives the table as it looks now."""
        return any(
            txn.table == table
            and txn.ddl in ("truncate", "unlogged")
            and not low.covers(server=self.server, end=txn.end_place, gtid=txn.gtid)
            for txn in self.log
        )

    def overlay(self, split: SnapshotSplit, rows: dict[Row, Row], low: Low, high: High) -> dict[Row, Row] | None:
        """`exact`: the chunk's changes in (low, high] laid over its rows; None if a DDL is among them."""
        changes = self.window(split.table_id, low, high)
        if changes is None:
            self.count["exact: DDL between low and high"] += 1
            return None
        rows = dict(rows)
        width = len(KINDS[split.table_id].key)
        for change in changes:
            self.count["exact: change laid over a chunk"] += 1
            for row, gone in ((change.before, True), (change.after, False)):
                if row is not None and self.inside(split.table_id, row[:width], split.split_start, split.split_end):
                    rows.pop(row[:width], None)
                    if not gone:
                        rows[row[:width]] = row
        return rows

    # --- start and stop ---

    def start(self, kind: str) -> tuple[tuple[Low, High], Low]:
        """Where a stream without a snapshot begins: at the end of the binlog (with MySQL: in the file in use, after
        every committed transaction), or between any two transactions; and the low after which the catalogue is read."""
        at, skipped = len(self.log), self.log
        place = self.end()
        if kind == "latest" and self.flavour == MYSQL:
            place = Position(server=self.server, file=self.place[0], offset=4, gtids=str(self.executed))
            skipped = [t for t in self.log if t.gtid is None or self.executed.contains(t.gtid)]
        elif kind == "place":
            at = self.rng.randrange(self.purged, len(self.log) + 1)
            skipped = self.log[:at]
            here = (skipped[-1].end_file, skipped[-1].end) if skipped else next(iter(self.boundary))
            place = Position(server=self.server, file=here[0], offset=here[1], gtids=self._named(skipped))
        self.count[f"start at {'the end' if kind == 'latest' else 'a place'} of the binlog"] += 1
        low = Low(server=place.server, file=place.file, offset=place.offset, gtids=place.gtids)
        self.starts[low] = {id(txn): txn for txn in skipped}
        seen = len(self.log)
        while seen and not self.log[seen - 1].visible:
            seen -= 1
        looked_at = Low(server=self.server, file=self.place[0], offset=4, gtids=str(self.executed))
        if self.flavour == MARIADB:
            last = self.log[seen - 1] if seen else None
            here = (last.end_file, last.end) if last else next(iter(self.boundary))
            looked_at = Low(server=self.server, file=here[0], offset=here[1])
        return (low, High(server=place.server, file=place.file, offset=place.offset)), looked_at

    def _named(self, log: list[Txn]) -> str:
        """The GTIDs after these transactions."""
        if self.flavour == MARIADB:
            return next((t.gtid for t in reversed(log) if t.gtid), "") or ""
        return str(GtidSet.parse(",".join(t.gtid for t in log if t.gtid))) if self.flavour == MYSQL else ""

    def since(self, low: Low, position: Position) -> State:
        """The rows of a lake at a position, if it began empty at that start."""
        skipped = self.starts[low]
        state: State = {table: {} for table in self.tables}
        columns = self.initial_columns
        for txn in self.log[: self._find(position)[0]]:
            old, columns = columns, txn.columns
            if id(txn) in skipped:
                continue
            if txn.kind == "ddl":
                state[txn.table] = self._altered(txn, old[txn.table], state[txn.table])
            for change in self._changes(txn):
                rows, width = state[change.table], len(KINDS[change.table].key)
                if change.before is not None:
                    rows.pop(change.before[:width], None)
                if change.after is not None:
                    rows[change.after[:width]] = change.after
        return state

    def _changes(self, txn: Txn) -> tuple[Change, ...]:
        if txn.kind == "commit":
            return next(t.changes for t in self.log if t.kind == "prepare" and t.xid == txn.xid)
        return txn.changes if txn.kind == "rows" else ()

    def some_stop(self, kind: str, ahead: float, now: float) -> Stop:
        """A stop as a person may name it now: about so many seconds ahead."""
        if kind == "time":
            return Stop(time_us=int((now + ahead) * 1e6))
        if kind == "file":
            file = self._file()
            return Stop(server=self.server, file=file, offset=self.place[1] + int(100 * ahead))
        number = self.transactions + 1 + int(4 * ahead)
        if self.flavour == MARIADB:
            return Stop(gtids=f"0-{self.servers}-{number}")
        prefix = "3e11fa47-71ca-11e1-9e33-c80aa942956" + str(self.servers % 10)
        return Stop(gtids=str(self.executed | GtidSet.parse(f"{prefix}:{min(number, self.transactions + 1)}-{number}")))

    def find_stop(self, stop: Stop, now: float) -> Position | None:
        """The place of the stop; None if the source has not passed it yet."""
        if stop.time_us is not None and now * 1e6 < stop.time_us:
            return None
        gtids: Any = GtidSet.EMPTY if self.flavour == MYSQL else MariaGtid.parse("")
        here = Position(server=self.server, file=next(iter(self.boundary))[0], offset=4)
        for txn in [*self.log, None]:
            if stop.time_us is None and stop.met_by(here):
                return here
            if txn is None or (txn.kind != "rotate" and txn.behind(stop, self.server)):
                return here if stop.time_us is not None else None
            if txn.gtid and self.flavour != PLAIN:
                gtids = gtids.add(txn.gtid)
            place = txn.end_place
            here = Position(server=self.server, file=place.file, offset=place.offset, gtids=str(gtids) if gtids else "")
        return None

    def apart(self, one: Position, other: Position) -> bool:
        """Whether more than the end of a file lies between two places: a stop by time is before or after it, whether or
        not the file had ended when the stop was looked for."""
        if one.same_place(other) or one.inside or other.inside or not one.server == other.server == self.server:
            return not one.same_place(other)
        first, last = sorted((self._find(one)[0], self._find(other)[0]))
        return any(txn.kind != "rotate" for txn in self.log[first:last])

    # --- reading: the binlog ---

    def _find(self, after: Position) -> tuple[int, bool]:
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

    def keeps(self, low: Low) -> bool:
        """Whether a cursor could read every change after that low."""
        executed = low.start().executed
        if isinstance(executed, MariaGtid) and any(executed.contains(gtid) for gtid in self.lost_gtids):
            return False
        try:
            return self._find(low.start())[0] >= self.purged
        except SourceLost:
            return False

    def connects(self, after: Position, commits: Commits, now: float) -> bool:
        """The checks of a cursor at each connect: True if the dump begins, False if it must retry; SourceLost if it
        can't."""
        taken = after.executed
        if isinstance(taken, GtidSet):
            if commits.awaited(taken, self.executed, now=now):
                self.count["reconnect before the engine has committed what the dump delivered"] += 1
                return False
            if not taken <= self.executed:
                raise SourceLost("the server lacks transactions that were taken from it")
        elif isinstance(taken, MariaGtid) and any(taken.contains(gtid) for gtid in self.lost_gtids):
            raise SourceLost("the server lacks transactions that were taken from it")
        if self._find(after)[0] < self.purged:
            self.count["cursor came too late: its binlog is purged"] += 1
            raise PositionLost(f"the binlog after {after} is purged")
        return True

    def read(self, order: ReadChanges, xa: dict[int, tuple[Change, ...]], *, exact: bool, max_rows: int) -> ChangesRead:
        """The contract of `BinlogCursor.read`. `xa` is the memory of the dump connection. SourceLost if it can't go
        on."""
        after, until = order.after, order.until
        executed = after.executed
        at, by_gtid = self._find(after)
        rows_at = after.rows
        gtids = executed if executed is not None else (GtidSet.EMPTY if self.flavour == MYSQL else MariaGtid.parse(""))
        position = after
        if by_gtid:
            self.count["cursor goes on at another server"] += 1
            place = self.log[at - 1] if at else None
            file, offset = (place.end_file, place.end) if place else next(iter(self.boundary))
            position = Position(server=self.server, file=file, offset=offset, gtids=after.gtids, rows=rows_at)
        bodies: dict[tuple[str, int, str], list[Any]] = {}
        schemas: list[SchemaChanged] = []
        faults: list[TableFaulted] = []
        seq = taken = 0
        stopped = False
        source_time = None
        limit = max_rows * (8 if order.at_boundary else 1)
        routes = dict(order.routes)

        def fault(route: StreamTable, reason: str, *, restart: bool = True) -> None:
            code = Code.SCHEMA_CHANGE if reason == HALTS else Code.OTHER
            fields = {"table_id": route.table_id, "generation": route.generation, "cause": Cause(code, reason)}
            faults.append(TableFaulted(**fields, restart=restart))
            if not restart:
                self.quarantined.add(route.table_id)
            routes.pop(route.table_id, None)

        def covers(low: Low, txn: Txn) -> bool:
            return low.covers(server=self.server, end=txn.end_place, gtid=txn.gtid)

        def judged(route: StreamTable, txn: Txn) -> bool:
            """Whether the route's low covers it."""
            return covers(route.low, txn)

        def ahead_of(route: StreamTable, txn: Txn) -> bool:
            """Whether the catalogue was read after it, so that the route's schema may be a later one."""
            try:
                return route.looked_at is not None and covers(route.looked_at, txn)
            except SourceLost:
                return False

        def settled(route: StreamTable, txn: Txn) -> StreamTable:
            """The first row event shows the table's columns at that time; columns that still exist keep their ids."""
            new = route.schema
            if ahead_of(route, txn):
                then, last = self.schema(route.table_id, txn.columns[route.table_id]), new.last_field_id
                fresh = {c.name: last + i for i, c in enumerate((c for c in then.columns if not new.has(c.name)), 1)}
                columns = tuple(
                    replace(c, field_id=fresh[c.name]) if c.name in fresh else new.column(c.name) for c in then.columns
                )
                new = replace(new, columns=columns, last_field_id=last + len(fresh))
            self.count["first row event tells earlier columns"] += new.hash != route.schema.hash
            schemas.append(SchemaChanged(table_id=route.table_id, generation=route.generation, seq=seq, new=new))
            routes[route.table_id] = replace(route, schema=new, looked_at=None)
            return routes[route.table_id]

        while not faults:
            if order.stop is not None and not position.inside:
                ahead = self.log[at] if at < len(self.log) else None
                stopped = order.stop.met_by(position) or (
                    ahead is not None and ahead.kind != "rotate" and ahead.behind(order.stop, self.server)
                )
            if stopped or at == len(self.log):
                break
            if until is not None and not position.inside and position.not_before(until):
                wanted = until.executed
                if not (isinstance(wanted, GtidSet) and isinstance(gtids, GtidSet)) or wanted <= gtids:
                    break
                self.count["read goes on past its end for GTIDs that it names"] += 1
            txn = self.log[at]
            changes = txn.changes
            if txn.kind == "commit":
                known_xa = xa.get(txn.xid)
                if known_xa is None:
                    for route in list(routes.values()):
                        if not judged(route, txn):
                            self.count["XA COMMIT whose PREPARE was not read"] += 1
                            fault(route, "XA COMMIT whose PREPARE was not read")
                changes = known_xa or ()
            if by_gtid and txn.gtid and gtids.contains(txn.gtid) and not rows_at:
                at += 1
                continue
            stop = False
            if txn.kind in ("rows", "commit"):
                if taken and taken + len(changes) - rows_at > max_rows:
                    break
                upto = min(len(changes), rows_at + limit - taken)
                for change in changes[rows_at:upto]:
                    route = routes.get(change.table)
                    if route is None or judged(route, txn):
                        continue
                    if route.looked_at is not None:
                        route = settled(route, txn)
                    for op, row in self._ops(route, change, txn, exact, fault):
                        if len(row) != len(route.schema.columns):
                            self.count["event of other columns than its route"] += 1
                            fault(route, "an event has other columns than the table")
                            break
                        body = bodies.setdefault((route.table_id, route.generation, route.schema.hash), [])
                        body.append((seq, op, row[: len(KINDS[route.table_id].key)], row))
                        seq += 1
                taken += upto - rows_at
                if upto < len(changes):
                    position = Position(
                        server=self.server,
                        file=txn.file,
                        offset=txn.start,
                        gtids=str(gtids) if gtids else "",
                        rows=upto,
                    )
                    stop = True
                    self.count["read ends inside a transaction"] += 1
                    break
            elif txn.kind == "prepare":
                xa[txn.xid] = txn.changes
            elif txn.kind == "ddl":
                route = routes.get(txn.table)
                if route is not None and not judged(route, txn) and ahead_of(route, txn):
                    self.count["DDL that the catalogue has already"] += 1
                elif route is not None and not judged(route, txn):
                    seq += self._ddl(route, txn, position, seq, bodies, schemas, fault)
                    stop = True
            if txn.kind in ("commit", "rollback"):
                xa.pop(txn.xid, None)
            rows_at = 0
            if txn.gtid and self.flavour != PLAIN:
                gtids = gtids.add(txn.gtid)
            position = Position(
                server=self.server, file=txn.end_file, offset=txn.end, gtids=str(gtids) if gtids else ""
            )
            source_time = txn.at or None
            at += 1
            if stop or taken >= max_rows:
                break
        batches = tuple(
            ChangeBatch(table_id=t, generation=g, schema=h, rows=len(body), size=len(body), body=body)
            for (t, g, h), body in bodies.items()
        )
        gone = {f.table_id for f in faults}
        return ChangesRead(
            cursor=order.cursor, position=position, rows=seq,
            batches=tuple(b for b in batches if b.table_id not in gone),
            schemas=tuple(schemas), faults=tuple(faults), source_time=source_time, idle=at == len(self.log),
            stopped=stopped,
        )  # fmt: skip

    def _ops(self, route: StreamTable, change: Change, txn: Txn, exact: bool, fault: Any) -> list[tuple[str, Row]]:
        width = len(KINDS[route.table_id].key)
        if KINDS[route.table_id].keyless and change.before is not None:
            self.count["row of a table without a key changed"] += 1
            fault(route, "it has no key, and a row was changed or deleted", restart=False)
            return []
        if change.before is None or change.after is None or change.before[:width] != change.after[:width]:
            ops = [("-D", change.before)] if change.before is not None else []
            ops += [("+I", change.after)] if change.after is not None else []
        else:
            ops = [("+U", change.after)]
        if not exact or not route.splits:
            return ops
        out = []
        for op, row in ops:
            key = row[:width]
            chunks = [s for s in route.splits if self.inside(route.table_id, key, s.split_start, s.split_end)]
            if len(chunks) != 1:
                raise AssertionError(f"key {key} of {route.table_id} is in {len(chunks)} chunks")
            if chunks[0].high.server != self.server:
                fault(route, "the high watermarks are of another server")
                return []
            if txn.end_place > chunks[0].high.file_position:
                out.append((op, row))
            else:
                self.count["exact: change is in its chunk already"] += 1
        return out

    def _ddl(
        self, route: StreamTable, txn: Txn, position: Position, seq: int, bodies: Any, schemas: Any, fault: Any
    ) -> int:
        try:
            past = route.live or route.high.reached_by(position)
        except SourceLost:
            past = False
        if self.schema_changes == "halt" and past and txn.ddl != "truncate":
            self.count["halt stops a live table"] += 1
            fault(route, HALTS, restart=False)
        elif txn.ddl == "unlogged":
            self.count["DDL changed rows without row events"] += 1
            # one in eight is something that a new generation would not mend
            fault(route, "a DDL changed rows without row events", restart=txn.start % 80 != 4)
        elif txn.ddl == "truncate":
            if not past:
                fault(route, "TRUNCATE before the table is live")
                return 0
            self.count["TRUNCATE of a live table"] += 1
            bodies.setdefault((route.table_id, route.generation, route.schema.hash), []).append((seq, "t", None, None))
            return 1
        else:
            try:
                if txn.ddl == "add" and self.schema_changes != "halt":
                    new = route.schema.add_column(txn.column, "bigint", nullable=True)
                elif past:
                    new = route.schema.drop_column(txn.column)
                else:
                    raise ValueError("DDL before the table is live")
            except ValueError as error:
                fault(route, str(error))
                return 0
            self.count[f"{txn.ddl} column in place"] += 1
            new = route.schema.followed(new, self.schema_changes)
            if new.shown is not None:
                self.count[f"{self.schema_changes}: the lake has other columns than the source"] += 1
            if past and route.high.server != self.server:
                self.count["column changed in place after a fail-over"] += 1
            schemas.append(SchemaChanged(table_id=route.table_id, generation=route.generation, seq=seq, new=new))
        return 0
