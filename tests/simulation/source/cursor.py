"""What a cursor reads of the simulated binlog: the contract of `BinlogCursor`, over transactions instead of bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import PositionLost, SourceLost
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import Low, Position
from cutline.common.schema import SchemaChanges
from cutline.services.reader.events import ChangesRead, ReadChanges
from cutline.services.sources.contract import (
    GenerationEnded,
    Route,
    SchemaChange,
    TableChanges,
    TableFault,
    TableUnreadable,
)
from cutline.services.sources.mysql.watermark import Commits
from tests.simulation.source.transactions import KINDS, MYSQL, PLAIN, Change, Row, Txn
from tests.support.reads import changes_read

if TYPE_CHECKING:
    from tests.simulation.source.server import SimulatedSource

Prepared = dict[int, tuple[Change, ...]]
"""The memory of one dump connection: the transactions prepared on it, by xid."""


class Cursor:
    """The binlog as cursors read it."""

    def __init__(self, source: SimulatedSource, schema_changes: SchemaChanges) -> None:
        self.source = source
        self.schema_changes = schema_changes
        self.quarantined: set[str] = set()  # tables that the stream could not go on with

    def keeps(self, low: Low) -> bool:
        """Whether a cursor could read every change after that low."""
        executed = low.start().executed
        if isinstance(executed, MariaGtid) and any(executed.contains(gtid) for gtid in self.source.lost_gtids):
            return False
        try:
            return self.source.find(low.start())[0] >= self.source.purged
        except SourceLost:
            return False

    def connects(self, after: Position, commits: Commits, now: float) -> bool:
        """The checks of a cursor at each connect: True if the dump begins, False if it must retry; SourceLost if it
        can't."""
        source, taken = self.source, after.executed
        if isinstance(taken, GtidSet):
            if commits.awaited(taken, source.engine.executed, now=now):
                source.count["reconnect before the engine has committed what the dump delivered"] += 1
                return False
            if not taken <= source.engine.executed:
                raise SourceLost("the server lacks transactions that were taken from it")
        elif isinstance(taken, MariaGtid) and any(taken.contains(gtid) for gtid in source.lost_gtids):
            raise SourceLost("the server lacks transactions that were taken from it")
        if source.find(after)[0] < source.purged:
            source.count["cursor came too late: its binlog is purged"] += 1
            raise PositionLost(f"the binlog after {after} is purged")
        return True

    def read(self, order: ReadChanges, xa: Prepared, *, exact: bool, max_rows: int) -> ChangesRead:
        """The contract of `BinlogCursor.read`. SourceLost if it can't go on."""
        return _Read(self, order, xa, exact=exact, max_rows=max_rows).whole()


class _Read:
    """One read of a cursor."""

    def __init__(self, by: Cursor, order: ReadChanges, xa: Prepared, *, exact: bool, max_rows: int) -> None:
        self._by, self._source, self._count = by, by.source, by.source.count
        self._order, self._xa, self._exact, self._max_rows = order, xa, exact, max_rows
        source, executed = by.source, order.after.executed
        self._at, self._by_gtid = source.find(order.after)
        self._inside = order.after.rows  # rows taken of the transaction that is read first
        none: GtidSet | MariaGtid = GtidSet.EMPTY if source.flavour == MYSQL else MariaGtid.parse("")
        self._gtids: Any = executed if executed is not None else none
        self._position = order.after
        if self._by_gtid:
            self._count["cursor goes on at another server"] += 1
            place = source.log[self._at - 1] if self._at else None
            file, offset = (place.end_file, place.end) if place else next(iter(source.boundary))
            self._position = Position(
                server=source.server, file=file, offset=offset, gtids=order.after.gtids, rows=self._inside
            )
        self._bodies: dict[tuple[str, int, str], list[Any]] = {}
        self._schemas: list[SchemaChange] = []
        self._faults: list[TableFault] = []
        self._seq = self._taken = 0
        self._stopped = False
        self._source_time: float | None = None
        self._routes = dict(order.routes)

    def whole(self) -> ChangesRead:
        """Read until the limit, the end or a fault, and give out what came."""
        log = self._source.log
        while not self._faults and not self._ends():
            txn = log[self._at]
            changes = self._changes(txn)
            if self._by_gtid and txn.gtid and self._gtids.contains(txn.gtid) and not self._inside:
                self._at += 1
                continue
            stop = False
            if txn.kind in ("rows", "commit"):
                if not self._take(txn, changes):
                    break
            elif txn.kind == "prepare":
                self._xa[txn.xid] = txn.changes
            elif txn.kind == "ddl":
                stop = self._alter(txn)
            if txn.kind in ("commit", "rollback"):
                self._xa.pop(txn.xid, None)
            self._pass(txn)
            if stop or self._taken >= self._max_rows:
                break
        batches = tuple(
            TableChanges(table_id=t, generation=g, schema_hash=h, rows=len(body), size=len(body), batch=body)
            for (t, g, h), body in self._bodies.items()
        )
        gone = {f.table_id for f in self._faults}
        return changes_read(
            cursor=self._order.cursor, position=self._position, rows=self._seq,
            batches=tuple(b for b in batches if b.table_id not in gone),
            schemas=tuple(self._schemas), faults=tuple(self._faults), source_time=self._source_time,
            idle=self._at == len(log), stopped=self._stopped,
        )  # fmt: skip

    def _ends(self) -> bool:
        """Whether the read is at its stop, at its end, or at the log's."""
        order, log, position = self._order, self._source.log, self._position
        if order.stop is not None and not position.inside:
            ahead = log[self._at] if self._at < len(log) else None
            self._stopped = order.stop.met_by(position) or (
                ahead is not None and ahead.kind != "rotate" and ahead.behind(order.stop, self._source.server)
            )
        if self._stopped or self._at == len(log):
            return True
        if order.until is not None and not position.inside and position.not_before(order.until):
            wanted = order.until.executed
            if not (isinstance(wanted, GtidSet) and isinstance(self._gtids, GtidSet)) or wanted <= self._gtids:
                return True
            self._count["read goes on past its end for GTIDs that it names"] += 1
        return False

    def _changes(self, txn: Txn) -> tuple[Change, ...]:
        """The changes of a transaction; of an XA COMMIT those of its PREPARE, if that was read."""
        if txn.kind != "commit":
            return txn.changes
        known = self._xa.get(txn.xid)
        if known is None:
            for route in list(self._routes.values()):
                if not self._covered(route, txn):
                    self._count["XA COMMIT whose PREPARE was not read"] += 1
                    self._fault(route, "XA COMMIT whose PREPARE was not read")
        return known or ()

    def _take(self, txn: Txn, changes: tuple[Change, ...]) -> bool:
        """Take the rows of a transaction; False if it does not fit whole: then none of it, or its first rows."""
        most = self._max_rows * (8 if self._order.at_boundary else 1)
        if self._taken and self._taken + len(changes) - self._inside > self._max_rows:
            return False
        upto = min(len(changes), self._inside + most - self._taken)
        for change in changes[self._inside : upto]:
            route = self._routes.get(change.table)
            if route is not None and not self._covered(route, txn):
                self._give(route if route.looked_at is None else self._settled(route, txn), change, txn)
        self._taken += upto - self._inside
        if upto == len(changes):
            return True
        self._position = Position(
            server=self._source.server, file=txn.file, offset=txn.start,
            gtids=str(self._gtids) if self._gtids else "", rows=upto,
        )  # fmt: skip
        self._count["read ends inside a transaction"] += 1
        return False

    def _give(self, route: Route, change: Change, txn: Txn) -> None:
        for op, row in self._ops(route, change, txn):
            if len(row) != len(route.schema.columns):
                self._count["event of other columns than its route"] += 1
                self._fault(route, "an event has other columns than the table")
                break
            body = self._bodies.setdefault((route.table_id, route.generation, route.schema.hash), [])
            body.append((self._seq, op, row[: len(KINDS[route.table_id].key)], row))
            self._seq += 1

    def _pass(self, txn: Txn) -> None:
        """All of a transaction is taken."""
        self._inside = 0
        if txn.gtid and self._source.flavour != PLAIN:
            self._gtids = self._gtids.add(txn.gtid)
        gtids = str(self._gtids) if self._gtids else ""
        self._position = Position(server=self._source.server, file=txn.end_file, offset=txn.end, gtids=gtids)
        self._source_time = txn.at or None
        self._at += 1

    def _fault(self, route: Route, sentence: str, *, restart: bool = True, code: Code = Code.OTHER) -> None:
        fields = {"table_id": route.table_id, "generation": route.generation, "cause": Cause(code, sentence)}
        self._faults.append(GenerationEnded(**fields) if restart else TableUnreadable(**fields))
        if not restart:
            self._by.quarantined.add(route.table_id)
        self._routes.pop(route.table_id, None)

    # --- watermarks, columns ---

    def _covers(self, low: Low, txn: Txn) -> bool:
        return low.covers(server=self._source.server, end=txn.end_place, gtid=txn.gtid)

    def _covered(self, route: Route, txn: Txn) -> bool:
        """Whether the route's low covers it."""
        return self._covers(route.low, txn)

    def _ahead_of(self, route: Route, txn: Txn) -> bool:
        """Whether the catalogue was read after it, so that the route's schema may be a later one."""
        try:
            return route.looked_at is not None and self._covers(route.looked_at, txn)
        except SourceLost:
            return False

    def _settled(self, route: Route, txn: Txn) -> Route:
        """The first row event shows the table's columns at that time; columns that still exist keep their ids."""
        new = route.schema
        if self._ahead_of(route, txn):
            then, last = self._source.schema(route.table_id, txn.columns[route.table_id]), new.last_field_id
            fresh = {c.name: last + i for i, c in enumerate((c for c in then.columns if not new.has(c.name)), 1)}
            columns = tuple(
                replace(c, field_id=fresh[c.name]) if c.name in fresh else new.column(c.name) for c in then.columns
            )
            new = replace(new, columns=columns, last_field_id=last + len(fresh))
        self._count["first row event tells earlier columns"] += new.hash != route.schema.hash
        self._schemas.append(
            SchemaChange(table_id=route.table_id, generation=route.generation, seq=self._seq, new=new)
        )
        self._routes[route.table_id] = replace(route, schema=new, looked_at=None)
        return self._routes[route.table_id]

    # --- rows, DDL ---

    def _ops(self, route: Route, change: Change, txn: Txn) -> list[tuple[str, Row]]:
        width = len(KINDS[route.table_id].key)
        if KINDS[route.table_id].keyless and change.before is not None:
            self._count["row of a table without a key changed"] += 1
            self._fault(route, "it has no key, and a row was changed or deleted", restart=False)
            return []
        if change.before is None or change.after is None or change.before[:width] != change.after[:width]:
            ops = [("-D", change.before)] if change.before is not None else []
            ops += [("+I", change.after)] if change.after is not None else []
        else:
            ops = [("+U", change.after)]
        if not self._exact or not route.splits:
            return ops
        out, inside = [], self._source.reads.inside
        for op, row in ops:
            key = row[:width]
            chunks = [s for s in route.splits if inside(route.table_id, key, s.split_start, s.split_end)]
            if len(chunks) != 1:
                raise AssertionError(f"key {key} of {route.table_id} is in {len(chunks)} chunks")
            if chunks[0].high.server != self._source.server:
                self._fault(route, "the high watermarks are of another server")
                return []
            if txn.end_place > chunks[0].high.file_position:
                out.append((op, row))
            else:
                self._count["exact: change is in its chunk already"] += 1
        return out

    def _alter(self, txn: Txn) -> bool:
        """A DDL; True if a table that is read has it, so that the read ends after it."""
        route = self._routes.get(txn.table)
        if route is None or self._covered(route, txn):
            return False
        if self._ahead_of(route, txn):
            self._count["DDL that the catalogue has already"] += 1
            return False
        self._seq += self._ddl(route, txn)
        return True

    def _ddl(self, route: Route, txn: Txn) -> int:
        """Carry a DDL out; return the number of rows that it gives."""
        try:
            past = route.live or route.high.reached_by(self._position)
        except SourceLost:
            past = False
        policy = self._by.schema_changes
        if policy == "halt" and past and txn.ddl != "truncate":
            self._count["halt stops a live table"] += 1
            self._fault(route, "schema_changes is halt", restart=False, code=Code.SCHEMA_CHANGE)
        elif txn.ddl == "unlogged":
            self._count["DDL changed rows without row events"] += 1
            # one in eight is something that a new generation would not mend
            self._fault(route, "a DDL changed rows without row events", restart=txn.start % 80 != 4)
        elif txn.ddl == "truncate":
            if not past:
                self._fault(route, "TRUNCATE before the table is live")
                return 0
            self._count["TRUNCATE of a live table"] += 1
            body = self._bodies.setdefault((route.table_id, route.generation, route.schema.hash), [])
            body.append((self._seq, "t", None, None))
            return 1
        else:
            self._columns(route, txn, past=past)
        return 0

    def _columns(self, route: Route, txn: Txn, *, past: bool) -> None:
        policy = self._by.schema_changes
        try:
            if txn.ddl == "add" and policy != "halt":
                new = route.schema.add_column(txn.column, "bigint", nullable=True)
            elif past:
                new = route.schema.drop_column(txn.column)
            else:
                raise ValueError("DDL before the table is live")
        except ValueError as error:
            self._fault(route, str(error))
            return
        self._count[f"{txn.ddl} column in place"] += 1
        new = route.schema.followed(new, policy)
        if new.shown is not None:
            self._count[f"{policy}: the lake has other columns than the source"] += 1
        if past and route.high.server != self._source.server:
            self._count["column changed in place after a fail-over"] += 1
        self._schemas.append(
            SchemaChange(table_id=route.table_id, generation=route.generation, seq=self._seq, new=new)
        )
