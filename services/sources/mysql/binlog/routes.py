"""Which tables get which rows: the routes of one dump, and the decoders that turn their row events into Arrow.

A TABLE_MAP is bound to its table's route when it comes, and again when the route changes, the table is given up, or its
low may have been passed. The scanner then delivers row events by itself, except for tables whose low is not passed yet:
for them it asks `Routes` once for each transaction.

A table that can't continue becomes a `TableFault`, once in a read, and its events are skipped for the rest of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.causes import Cause, Code
from cutline.common.errors import NextGeneration, SourceLost
from cutline.common.masking import NO_MASKS, Masks, lacks_masked
from cutline.common.mesh.messages import Key
from cutline.common.ops import Op, is_any
from cutline.common.schema import FILE, OP, POS, SEQ, TableSchema
from cutline.services.sources.contract import (
    GenerationEnded,
    Route,
    SchemaChange,
    TableChanges,
    TableFault,
    TableUnreadable,
)
from cutline.services.sources.mysql.binlog.earlier_schema import earlier_schema
from cutline.services.sources.mysql.binlog.event_bodies import (
    MAX_ROW_BYTES,
    Body,
    described,
    map_without_columns,
    primary_key,
    table_number,
)
from cutline.services.sources.mysql.binlog.event_types import PARTIAL_UPDATE_ROWS
from cutline.services.sources.mysql.binlog.progress import Progress
from cutline.services.sources.mysql.binlog.scanner import MappedTable
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.damage import Damaged, PartialImage
from cutline.services.sources.mysql.decode.row_event import EventDecoder
from cutline.services.sources.mysql.decode.row_plan import TableMap
from cutline.services.sources.mysql.keys import indistinct, locate
from cutline.services.sources.mysql.watermark import ChunkHighs, Locate

MAX_DECODERS = 256
"""Decoders with memory for rows; reads may have more of them, but don't keep more."""
_RESTING_DECODERS = 4096
_DECODERS_BYTES = 64 << 20
_MAX_TABLES = 10_000
_PARTIAL = Cause(
    Code.NOT_IN_BINLOG, "a partial update of a JSON column", "SET GLOBAL binlog_row_value_options = ''"
)
_LOOK = "check the file with mysqlbinlog, then retry the table"
_TOO_LARGE = Cause(Code.VALUE, f"a row of more than {MAX_ROW_BYTES >> 20} MiB", "exclude the table")


_DecoderKey = tuple[str, int, str, bytes]
"""Table, generation, hash of the schema, and the TABLE_MAP after its table id and flags."""


def _key(route: Route, table: MappedTable) -> _DecoderKey:
    return route.table_id, route.generation, route.schema.hash, table.body[8:]


class Routes:
    """The routes of one dump; see this file's head. `connect` opens a connection on which MySQL compares text keys.

    `replayed` has the tables of the XA transaction that replay.py delivers, while it does.
    """

    def __init__(self, progress: Progress, connect: Callable[[], Connection], masks: Masks = NO_MASKS) -> None:
        self.schemas: list[SchemaChange] = []
        self.faults: list[TableFault] = []
        self.replayed: dict[int, MappedTable] = {}
        self._progress, self._scanner, self._connect = progress, progress.scanner, connect
        self._routes: dict[str, Route] = {}
        self._chunks: dict[str, ChunkHighs] = {}  # of the routes that have splits
        self._given_up: set[str] = set()
        self._guarded: dict[int, MappedTable] = {}  # those whose low may not be passed yet, by id()
        self._decoders: dict[_DecoderKey, EventDecoder] = {}  # the least recently used first
        self._resting: dict[_DecoderKey, EventDecoder] = {}  # those without memory, in the same order
        self._decoders_added = 0  # in this read
        self._refused: dict[str, int] = {}  # in this read: the first `_seq` of a table's refused event
        self._began_between = False  # whether this read began between two transactions
        self._locating: Connection | None = None
        self._masks = masks

    def close(self) -> None:
        """Close the connection that compares keys, if it was needed."""
        locating, self._locating = self._locating, None
        if locating is not None:
            with suppress(Exception):
                locating._force_close()  # type: ignore[attr-defined]

    # ---- binding tables to routes ----

    def begin(self, routes: Mapping[str, Route]) -> None:
        """A read begins. Binds only the tables whose route is another object than before, that were given up, or whose
        low may be passed by now."""
        scanner = self._scanner
        self.schemas, self.faults, self._decoders_added = [], [], 0
        self._refused.clear()
        self._began_between = not scanner.tx.open and not scanner.resume
        changed = {name for name, route in routes.items() if self._routes.get(name) is not route}
        changed |= (self._routes.keys() - routes.keys()) | self._given_up
        self._given_up = set()
        if changed:
            kept = {name for name in self._chunks if self._routes.get(name) is routes.get(name)}
            self._chunks = {name: self._chunks[name] for name in kept}
            for name, route in routes.items():
                if route.splits and name not in self._chunks:
                    self._chunks[name] = ChunkHighs(route.schema.key_columns, route.splits)
            self._routes = dict(routes)
            self._decoders = {key: decoder for key, decoder in self._decoders.items() if self._is_routed(key)}
            self._resting = {key: decoder for key, decoder in self._resting.items() if self._is_routed(key)}
        if len(scanner.tables) > _MAX_TABLES and not scanner.tx.open:
            scanner.forget_tables()
        for table in list(self._guarded.values()):
            self._bind(table)
        self._bind_all(changed)

    def has_all(self, routes: Mapping[str, Route]) -> bool:
        """Whether the last read had these routes, each of the same generation: only then were the row events taken
        since the start of the transaction at hand delivered to them."""
        last = self._routes
        return all(name in last and last[name].generation == route.generation for name, route in routes.items())

    def _is_routed(self, key: _DecoderKey) -> bool:
        route = self._routes.get(key[0])
        return route is not None and key[1:3] == (route.generation, route.schema.hash)

    def map_table(self, body: bytes, tables: dict[int, MappedTable] | None = None) -> None:
        """A TABLE_MAP came: bind its table, and keep it for the row events of the dump, or in `tables`."""
        number, table_id = described(body)
        table = MappedTable(table_id, body)
        self._bind(table)
        if tables is None:
            self._scanner.add_table(number, table)
        else:
            tables[number] = table

    def _mapped(self) -> Iterator[MappedTable]:
        yield from self._scanner.tables.values()
        yield from self.replayed.values()

    def _bind_all(self, table_ids: Collection[str]) -> None:
        if table_ids:
            for table in self._mapped():
                if table.table_id in table_ids:
                    self._bind(table)

    def _bind(self, table: MappedTable) -> None:
        route = self._routes.get(table.table_id)
        self._guarded.pop(id(table), None)
        if route is None or table.table_id in self._given_up:
            table.decoder = table.make_decoder = None
            return
        table.decoder = self._decoders.get(_key(route, table))
        table.make_decoder = self._decoder
        guarded = route.looked_at is not None or not self._progress.passed(route.low)
        table.guard = self._wants if guarded else None
        if guarded:
            self._guarded[id(table)] = table

    def _decoder(self, table: MappedTable) -> EventDecoder:
        """The decoder of a routed table whose row event is at hand."""
        route = self._routes[table.table_id]
        key = _key(route, table)
        if key not in self._decoders:
            rested = self._resting.pop(key, None)
            before = route.schema.shape is not None and route.schema.shape.needs_before
            self._decoders[key] = rested or EventDecoder(table.body, route.schema, self._scanner.place, before)
            self._decoders_added += 1
            # Each has its own memory: so many end the read at a transaction's end, twice as many also inside one; the
            # writers can then take the rows while the next are read.
            if self._decoders_added >= MAX_DECODERS:
                self._scanner.exhaust(inside=False)
            if self._decoders_added >= 2 * MAX_DECODERS:
                self._scanner.exhaust(inside=True)
        return self._decoders[key]

    # ---- the transaction at hand ----

    def _wants(self, table: MappedTable) -> bool:
        """Whether the transaction at hand is delivered to this table: its low does not cover it."""
        route = self._routes.get(table.table_id)
        if route is None or self.covered(route):
            return False
        if route.looked_at is not None:
            self._set_schema(table, route)
        return table.make_decoder is not None

    def schema_is_later(self, route: Route) -> bool:
        """Whether the route's schema was read at a later place than that of the transaction at hand."""
        try:
            return route.looked_at is not None and self._progress.covered_by(route.looked_at)
        except SourceLost:  # `looked_at` is another server's, whose positions can't be compared
            return False

    def _set_schema(self, table: MappedTable, route: Route) -> None:
        """Set the table's schema by its first row event; DDL changes it from here on."""
        mariadb = not self._progress.server.mysql
        try:
            new = earlier_schema(table.body, route.schema, mariadb=mariadb) if self.schema_is_later(route) else None
        except SourceLost as error:
            self.fault(TableUnreadable, table.table_id, self._cannot_follow(table.table_id, error.cause))
            self._bind(table)
            return
        schema = new or route.schema
        self.evolve(route, schema, "")
        self._routes[table.table_id] = replace(route, schema=schema, looked_at=None)
        for mapped in (*self._scanner.tables.values(), table):
            if mapped.table_id == table.table_id:
                self._bind(mapped)

    def covered(self, route: Route) -> bool:
        """Whether the route's low covers the transaction at hand."""
        try:
            return self._progress.covered_by(route.low)
        except SourceLost as error:
            self.fault(GenerationEnded, route.table_id, error.cause)
            return True

    def all_covered(self) -> bool:
        """Whether no route wants the transaction at hand."""
        return all(self.covered(route) for route in self._routes.values())

    def before_high(self, route: Route) -> bool:
        """Whether the table is still being snapshotted at the transaction at hand."""
        return not route.live and self._progress.before(route.high)

    def routed(self) -> Mapping[str, Route]:
        """The routes by table, as they are at the event at hand."""
        return self._routes

    def active(self, table_id: str) -> Route | None:
        """The route of a table that was not given up and wants the transaction at hand."""
        route = self._routes.get(table_id)
        return None if route is None or table_id in self._given_up or self.covered(route) else route

    def identified_by_primary_key(self) -> set[str]:
        """The routed tables whose identity is their primary key according to a TABLE_MAP: the catalogue also shows a
        unique key as the primary one if there is no other."""
        newest: dict[str, tuple[int, MappedTable]] = {}
        for number, table in self._scanner.tables.items():
            if table.table_id in self._routes and number >= newest.get(table.table_id, (0, table))[0]:
                newest[table.table_id] = number, table
        return {
            table_id
            for table_id, (_, table) in newest.items()
            if not (schema := self._routes[table_id].schema).unique_key
            and primary_key(table.body).keys() == {name.lower() for name in schema.key}
        }

    # ---- what happens to a table ----

    def evolve(self, route: Route, new: TableSchema, ddl: str) -> None:
        """The table has another schema from here on, unless a column that is to be masked has another name in it."""
        if (cause := lacks_masked(new)) is not None:
            self.fault(GenerationEnded, route.table_id, cause.at(self._scanner.event_place))
            return
        seq = self._scanner.take_seq()
        self._scanner.stop_at_next_end()
        self.schemas.append(
            SchemaChange(
                table_id=route.table_id, generation=route.generation, seq=seq, new=new, ddl=ddl
            )
        )

    def truncate(self, route: Route) -> None:
        """The table is empty from here on."""
        self._scanner.place_event()
        identity = (route.table_id, route.generation, route.schema.hash)
        for key, decoder in self._decoders.items():
            if key[:3] == identity and not decoder.faults:
                decoder.truncate()
                return
        decoder = EventDecoder(map_without_columns(route.table_id), route.schema, self._scanner.place)
        self._decoders[(*identity, b"")] = decoder
        decoder.truncate()

    def fault(self, kind: type[TableFault], table_id: str, cause: Cause) -> None:
        """The table can't continue: report it once in a read, and skip its events for the rest of the read."""
        route = self._routes.get(table_id)
        if route is None or table_id in self._given_up:
            return
        self._given_up.add(table_id)
        self.faults.append(kind(table_id=table_id, generation=route.generation, cause=cause))
        self._scanner.stop_at_next_end()

    def undo(self, rollback: str) -> None:
        """Restart the tables of which the transaction at hand delivered rows; `rollback` says how they were undone."""
        scanner = self._scanner
        if not (scanner.tx.delivered or scanner.resume):
            return
        touched = {key[0] for key, decoder in self._decoders.items() if decoder.size}
        if not self._began_between:  # an earlier read may have delivered rows of any table
            touched |= {table.table_id for table in self._mapped()}
        for table_id in sorted(touched):
            sentence = f"At {scanner.event_place} {rollback}, after changes of {table_id} were delivered"
            self.fault(GenerationEnded, table_id, Cause(Code.CHANGED, sentence))

    def refuse(self, kind: int, body: Body, tables: Mapping[int, MappedTable]) -> None:
        """Quarantine the table of a row event that can't be decoded: a partial update, or one that is too large."""
        self._refuse_row(body, _PARTIAL if kind == PARTIAL_UPDATE_ROWS else _TOO_LARGE, tables)

    def refuse_damaged(self, body: Body, error: Damaged) -> None:
        """Quarantine the table of a compressed row event that can't be decompressed."""
        event = Cause(Code.UNREADABLE, f"a row event that can't be read: {error}", _LOOK)
        self._refuse_row(body, event, self._scanner.tables)

    def _refuse_row(self, body: Body, event: Cause, tables: Mapping[int, MappedTable]) -> None:
        table = tables.get(table_number(body))
        if table is None or table.make_decoder is None or self._scanner.tx.skipped:
            return
        if table.guard is not None and not self._wants(table):
            return
        cause = event.before(f"{table.table_id} has, at {self._scanner.event_place}, ")
        self.fault(TableUnreadable, table.table_id, cause)
        self._bind(table)

    def refused_by_decoder(self) -> None:
        """A decoder refused the row event at hand (code FAULT): its table can't continue."""
        scanner = self._scanner
        table: MappedTable = scanner.faulted
        misfit = "; ".join(table.decoder.faults)
        self._refused[table.table_id] = scanner.fault_seq
        reason = Cause(Code.UNREADABLE, misfit, _LOOK) if misfit else _unread(scanner.error)
        cause = self._cannot_follow(table.table_id, reason)
        kind: type[TableFault] = GenerationEnded if misfit and self._outdated(table) else TableUnreadable
        self.fault(kind, table.table_id, cause)

    def _cannot_follow(self, table_id: str, reason: Cause) -> Cause:
        return reason.before(f"{table_id} can't be followed at {self._scanner.event_place}: ")

    def _outdated(self, table: MappedTable) -> bool:
        """Whether the event misfits the schema because of a DDL between the two, while the table is snapshotted."""
        route = self._routes.get(table.table_id)
        if route is None or not self.before_high(route):
            return False
        if not self._progress.server.gtid:  # its low may precede a DDL that its chunks saw, even if no name changed
            return True
        in_schema = {column.name.lower() for column in route.schema.columns}
        try:
            described_table = TableMap(table.body)
        except Damaged:
            return False
        if len(described_table.names) != len(described_table.types):
            return False
        return in_schema != {
            name.lower()
            for i, name in enumerate(described_table.names)
            if name.lower() in in_schema or not described_table.hidden(i)
        }

    # ---- the changes of a read ----

    def take(self) -> tuple[list[TableChanges], Counter[tuple[str, str]]]:
        """The read's changes by table and schema, and by table and column how many dates that no calendar has became
        null. A table whose changes can't be returned becomes a fault."""
        found: dict[tuple[str, int, str], list[pa.RecordBatch]] = {}
        zero_dates: Counter[tuple[str, str]] = Counter()
        for key, decoder in list(self._decoders.items()):
            table_id = key[0]
            before = decoder.zero_dates
            try:
                batch = decoder.take()
            except Damaged as error:
                del self._decoders[key]
                self.fault(TableUnreadable, table_id, _unread(error).before(f"{table_id} can't be followed: "))
                continue
            if batch is None:
                continue
            self._decoders[key] = self._decoders.pop(key)
            if table_id in self._refused:  # no row of that event is taken, so none is returned
                batch = batch.filter(pc.less(batch[SEQ], self._refused[table_id]))
                if not batch.num_rows:
                    continue
            zeros = {name: count - before.get(name, 0) for name, count in decoder.zero_dates.items()}
            dates = (name for name in zeros if not decoder.schema.is_long(decoder.schema.column(name)))
            zero_dates.update({(table_id, name): zeros[name] for name in dates})
            batch = self._deliverable(table_id, decoder.schema, batch, zeros)
            if batch is not None and batch.num_rows:
                found.setdefault(key[:3], []).append(batch)
        changes = [
            TableChanges(
                table_id=table_id,
                generation=generation,
                schema_hash=schema_hash,
                rows=rows.num_rows,
                size=rows.nbytes,
                batch=rows,
            )
            for (table_id, generation, schema_hash), parts in found.items()
            for rows in [_in_order(parts)]
        ]
        self._drop_idle()
        return changes, zero_dates

    def _deliverable(
        self, table_id: str, schema: TableSchema, batch: pa.RecordBatch, zeros: Mapping[str, int]
    ) -> pa.RecordBatch | None:
        """The changes that the route wants; None if the table can't continue."""
        place = f"{self._scanner.file}:{self._scanner.pos}"
        for column in (schema.column(name) for name, count in zeros.items() if count):
            if schema.is_long(column):
                self.fault(TableUnreadable, table_id, schema.too_large(column).ahead_of(place))
                return None
        zero_key = next((name for name in schema.key if zeros.get(name)), None)
        if zero_key is not None:
            self.fault(TableUnreadable, table_id, indistinct(schema, zero_key).ahead_of(place))
            return None
        if has_row_over(batch, MAX_ROW_BYTES):
            self.fault(TableUnreadable, table_id, _TOO_LARGE.before(f"{table_id} has, before {place}, "))
            return None
        try:
            batch = self._masks.masked(batch, schema)
        except SourceLost as error:
            kind = GenerationEnded if isinstance(error, NextGeneration) else TableUnreadable
            self.fault(kind, table_id, error.cause)
            return None
        route = self._routes.get(table_id)
        if route is None:
            return batch
        if not route.schema.key and (row := _first_not_insert(batch)) is not None:
            cause = Cause(
                Code.NO_KEY,
                f"{table_id} has no key, so only its INSERTs can be copied, and a row was changed or deleted by the"
                f" event at {batch[FILE][row]}:{batch[POS][row]}",
                "add a primary key, or a unique key over NOT NULL columns",
            )
            self.fault(TableUnreadable, table_id, cause)
            return None
        return self._past_highs(route, self._chunks[table_id], batch) if route.splits else batch

    def _past_highs(self, route: Route, chunks: ChunkHighs, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """In `exact`: the changes that are past their chunk's high."""
        try:
            kept = chunks.kept(
                pa.Table.from_batches([batch]),
                server=self._progress.server.identity,
                locate=self._locate(route.schema),
            )
        except SourceLost as error:
            self.fault(GenerationEnded, route.table_id, error.cause)
            return None
        return batch.filter(kept)

    def _locate(self, schema: TableSchema) -> Locate:
        """A function that has MySQL find the chunks of text keys, on a connection that is opened at its first call."""

        def ask(bounds: Sequence[Key], keys: Sequence[Key]) -> Sequence[int]:
            if self._locating is None:
                self._locating = self._connect()
            return locate(self._locating, schema, bounds, keys)

        return ask

    def _drop_idle(self) -> None:
        """Free the memory of the least recently used decoders while there is too much, and forget those that have
        rested longest while there are too many."""
        dropped: set[str] = set()
        held = sum(decoder.held for decoder in self._decoders.values())
        while len(self._decoders) > MAX_DECODERS or held > _DECODERS_BYTES:
            key = next(iter(self._decoders))
            decoder = self._decoders.pop(key)
            held -= decoder.held
            decoder.release()
            self._resting[key] = decoder
            dropped.add(key[0])
        while len(self._resting) > _RESTING_DECODERS:
            del self._resting[next(iter(self._resting))]
        self._bind_all(dropped)


def _first_not_insert(batch: pa.RecordBatch) -> int | None:
    """The first row that is not an insert."""
    row = pc.index(is_any(batch[OP], Op.BEFORE, Op.UPDATE, Op.DELETE), True).as_py()
    return None if row < 0 else int(row)


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Changes of one table and schema as one batch, by `_seq`. They are of several decoders if the TABLE_MAP changed
    and the schema did not."""
    if len(parts) == 1:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).sort_by(SEQ).combine_chunks().to_batches()
    return batch


def _unread(error: object) -> Cause:
    """The cause for an error that a decoder raised for a row event."""
    if isinstance(error, PartialImage):
        return Cause(Code.NOT_IN_BINLOG, str(error), "retry the table once it is")
    return Cause(Code.UNREADABLE, str(error), _LOOK)


def has_row_over(batch: pa.RecordBatch, limit: int) -> bool:
    """Whether one of its rows has more than `limit` bytes in its texts and binary values."""
    if batch.get_total_buffer_size() <= limit:  # of all its rows; `nbytes` costs forty times as much
        return False
    sizes = [
        pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        for column in batch.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    return bool(sizes) and pc.max(reduce(pc.add, sizes)).as_py() > limit
