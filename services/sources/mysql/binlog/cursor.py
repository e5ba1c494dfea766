"""The binlog cursor: one dump connection of a MySQL or MariaDB server, to Arrow batches of row changes.

`BinlogCursor.read` is the one door; its docstring is the contract. The parts: PyMySQL authenticates and sends
commands, the frames (binlog/frames.py, compiled) cut the bytes into events and handle what every
transaction has, the decoders (decode/rows.py, compiled) make Arrow of row events, and this file knows what
is rare: rotation, statements and DDL (binlog/ddl.py), XA, compressed transactions, events that can't be
handled, the connection and its errors.

Rules:

1. **A position inside a transaction does not depend on the routes.** `Position.rows` there is (row events of any
   table taken whole << INSIDE_BITS) + row changes taken of the next one, so that a resume finds its place also if a
   table was quarantined or added in between, without decoding what nobody asked for. It orders as a count of rows
   does. While nothing of the transaction at hand was delivered, the position is its start and `rows` is 0.
   **No position is before the one that the read began at**, within one server's history: while a dump has not come
   again to where its cursor stood (rows to skip again, a file over 4 GiB sent from its start), that place stays the
   position, inside its transaction if it was. `_position` says so and `_given` asserts it.
2. **Between two transactions everything is known**: file and offset after the last one, and the GTIDs of all that
   were taken or were in the set before. A position whose GTID set is ahead of its file and offset (`start: latest`,
   `start: {gtid:}`) is lawful: transactions in the set are passed over.
3. **Judged at the end, told at the start.** An event is covered by a low if its transaction starts before it: a low
   lies between two transactions.
4. **XA.** The rows of an XA transaction stand at its PREPARE and are delivered at its COMMIT, with the COMMIT's place
   and GTID. Nothing of it is in the position, so nothing needs to be saved: binlog/xa.py keeps what was
   prepared, or reads it again.
5. **No retry here.** Each failure is raised at once, after which the cursor stands nowhere and the next `read`
   connects anew.

Change together with: binlog/frames.py, binlog/event_bodies.py, decode/rows.py,
binlog/ddl.py, common/positions.py.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable
from cutline.common.positions import FilePosition, GtidSet, High, Low, MariaGtid, Position, Stop, parse_gtids
from cutline.common.schema import FILE, OP, POS, SEQ, SchemaChanges, TableSchema
from cutline.services.sources.mysql.binlog import ddl
from cutline.services.sources.mysql.binlog.dump import Dump, maria_state, take_format
from cutline.services.sources.mysql.binlog.event_bodies import (
    EXECUTE_LOAD,
    FORMAT,
    GTID_TAGGED,
    HEARTBEAT,
    HEARTBEAT_2,
    INCIDENT,
    MARIA_GTID,
    MAX_ROW_BYTES,
    PARTIAL_ROWS,
    PAYLOAD,
    QUERY,
    QUERY_COMPRESSED,
    REFUSED,
    ROTATE,
    ROWS,
    ROWS_COMPRESSED,
    TABLE_MAP,
    XA_PREPARE,
    Body,
    Xid,
    described,
    inflated_rows,
    length_encoded,
    nameless,
    payload,
    payload_in,
    plain_kind,
    primary_key,
    statement,
    tagged_gtid,
    without_checksum,
    xid_in,
    xid_of,
)
from cutline.services.sources.mysql.binlog.frames import (
    ENDED,
    EVENT,
    FAULT,
    FULL,
    FULL_TAKEN,
    GO,
    INSIDE_BITS,
    NEED,
    SAID,
    STOPPED,
    Frames,
    Plan,
)
from cutline.services.sources.mysql.binlog.table_map import schema_then
from cutline.services.sources.mysql.binlog.xa import Prepared
from cutline.services.sources.mysql.connection import Connection, translate_errors
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.rows import EventDecoder, Place, TableMap
from cutline.services.sources.mysql.keys import indistinct, locate
from cutline.services.sources.mysql.server import (
    Server,
    gtid_executed,
    identify,
    position_at,
    verify_end,
    verify_position,
)
from cutline.services.sources.mysql.watermark import COMMIT_SECONDS, ChunkHighs, Commits, Key, Locate

_PASSED_OVER = frozenset((3, 5, 7, 8, 9, 11, 13, 14, 17, 28, 35, 36, 37, 161, 163, 164))
_IGNORABLE = 0x80
_FILE_NAME = re.compile(r"[^/\0]+\.[0-9]{6,10}")
_NO_GATE = 1 << 62
_MAX_OFFSET = 1 << 60  # far below _NO_GATE: no events behind it lead there, or beyond the frames' C integers
_GRACE_SECONDS = 0.25
_RESET_SECONDS = 20.0  # of silence, between two looks whether the binlog was reset
_MAX_PLANS = 10_000
_MAX_DECODERS = 256
_DECODERS_BYTES = 64 << 20
_TO_SAVEPOINT = "a transaction was rolled back to a savepoint in the binlog"
_PARTIAL = "a partial update of a JSON column: SET GLOBAL binlog_row_value_options = ''"
_TOO_LARGE = f"a row of more than {MAX_ROW_BYTES >> 20} MiB: leave the table out"
_SET_METADATA = "SET GLOBAL binlog_row_metadata = FULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One table that a cursor delivers, with its schema at the place where the read begins; `chunks` only in
    `exact`; `live`: it was past its high before.

    With `looked_at` the schema is the catalogue's, which surely has every DDL that this low covers: up to there the
    first row event tells how the table looked, and DDL before it is past.
    """

    table_id: str
    generation: int
    schema: TableSchema
    low: Low
    high: High
    chunks: ChunkHighs | None = None
    live: bool = False
    looked_at: Low | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """Changes of one table: the schema's columns, then META_FIELDS; `_seq` counts from the start of the read."""

    table_id: str
    generation: int
    schema_hash: str
    rows: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """From `_seq` `seq` of the read on, the table has schema `new`. It uses up that number: no row has it. `ddl` is
    empty where a row event told it, which may tell nothing new (`Route.looked_at`)."""

    table_id: str
    generation: int
    seq: int
    old: str
    new: TableSchema
    ddl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFault:
    """The stream can't go on with this table: its next generation (`restart`), or quarantine.

    It is told once; if the next read still names the table, it is told again when it is met again.
    """

    table_id: str
    generation: int
    cause: str
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The answer to one read: everything for its routes from `after` to `position`.

    `rows` is how many values of `_seq` it used, `rows_inside` how many of them are of the transaction that `position`
    is inside of. `source_time` is the commit time (epoch seconds, the source's clock) of the newest transaction met,
    also of tables nobody asked for; when the server has said, by a heartbeat, that nothing more is there, it is our
    clock at the heartbeat's arrival; None if nothing has come yet. `idle`: nothing more came within the wait.
    `stopped`: `position` is where the stream is to end. `size`: bytes of the batches. `zero_dates` counts, by table and
    column, dates that no calendar has and that became null.
    """

    position: Position
    rows: int
    rows_inside: int = 0
    batches: tuple[ChangeBatch, ...] = ()
    schemas: tuple[SchemaChange, ...] = ()
    faults: tuple[TableFault, ...] = ()
    source_time: float | None = None
    idle: bool = False
    stopped: bool = False
    size: int = 0
    zero_dates: Mapping[tuple[str, str], int] = field(default_factory=dict)


def _key(route: Route, plan: Plan) -> tuple[str, int, str, bytes]:
    return route.table_id, route.generation, route.schema.hash, plan.body[8:]


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Changes of one table and schema as one batch, by `_seq`: a table map may change, and so the decoder, where the
    schema does not."""
    if len(parts) == 1:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).sort_by(SEQ).combine_chunks().to_batches()
    return batch


def has_row_over(batch: pa.RecordBatch, limit: int) -> bool:
    """Whether the values of variable size in one of its rows have more bytes than that."""
    if batch.nbytes <= limit:
        return False
    sizes = [
        pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        for column in batch.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    return bool(sizes) and pc.max(reduce(pc.add, sizes)).as_py() > limit


class BinlogCursor:
    """Reads one source's binlog; owns one dump connection. Synchronous; one thread at a time.

    `connect` opens a connection as connection.py does. `server_id` must be unlike that of every other replica of
    the source (the server ends the older of two).
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        server_id: int,
        heartbeat_seconds: float = 1.0,
        schema_changes: SchemaChanges = "evolve",
    ) -> None:
        self._connect, self._server_id, self._heartbeat = connect, server_id, heartbeat_seconds
        self._schema_changes = schema_changes
        self._dump: Dump | None = None
        self._asking: Connection | None = None
        self._frames: Frames | None = None
        self._server: Server | None = None
        self._at: Position | None = None  # what the last read returned
        self._after = Position(server="", file="", offset=0)  # what this read goes on from
        self._executed: GtidSet | MariaGtid | None = None
        self._routes: dict[str, Route] = {}
        self._bound: Frames | None = None  # whose TABLE_MAPs have found `_routes`
        self._guarded: dict[int, Plan] = {}  # those of tables whose low may not be passed yet, by id
        self._decoders: dict[tuple[str, int, str, bytes], EventDecoder] = {}  # the last used ones last
        self._made = 0  # of them in this read
        self._source_time: float | None = None
        self._timed = 0  # the transaction that `_source_time` knows of
        self._verified = 0.0
        self._idle_at: tuple[str, int] | None = None
        self._prepared = Prepared(connect, server_id=server_id)
        self._replay: _Replay | None = None
        self._until: Position | High | None = None
        self._stop: Stop | None = None
        self._at_gate = False
        self._missing: set[tuple[str, int]] = set()  # ends of the stop's GTID intervals that have not come yet
        self._seqs: list[tuple[int, int]] = []
        self._schemas: list[SchemaChange] = []
        self._faults: list[TableFault] = []
        self._dead: set[str] = set()
        self._refused: dict[str, int] = {}  # the first `_seq` of the event that a table's decoder refused in this read
        self._began_here = False
        self._commits = Commits()

    # ---- the door ----

    def read(
        self,
        after: Position,
        routes: Mapping[str, Route],
        *,
        until: Position | High | None,
        max_rows: int,
        max_bytes: int,
        wait_seconds: float,
        at_boundary: bool = False,
        stop: Stop | None = None,
    ) -> Changes:
        """Everything for `routes` after `after`, until there is enough.

        Goes on with the open dump if `after` is what the last read returned, else connects there. Returns

        - when `max_rows` row changes or `max_bytes` (of row events, or of what the rows become) are taken, inside a
          transaction if need be (then `position.rows` > 0), but at a transaction's end from three quarters of that on;
          with `at_boundary` only at eight times that inside one;
        - at the end of the transaction that `after` is inside of, so that transactions that fit ill into these limits
          do not end each read inside of one;
        - when `wait_seconds` have passed, whether or not events keep coming, if possible at a transaction's end;
        - at a DDL that concerns a route, or a fault, with all that precedes it;
        - when `until` is reached: a transaction's end at or after it (with MySQL's GTIDs all of its set taken too);
        - at `stop`, behind which nothing is taken: then the answer says `stopped`.

        Transactions covered by a route's low are skipped (DDL too), and in `exact` the changes not past their chunk's
        high. An update that changes the bytes of the identity key is `-D` with the before-image, then `+I`.

        Errors: Unavailable (the connection; nothing is lost, the same call goes on), SourceLost (purged, another
        source, damaged, an incident: names file and offset), ConfigError (a missing grant), ProtocolError (the position
        went back: a bug of ours). Any other error is a bug of ours too, and has the place in a note. After an error the
        cursor stands nowhere. The typical mistake: to go on with a position other than the returned one and expect the
        old routes' skipped rows.
        """
        try:
            return self._read(after, routes, until, max_rows, max_bytes, wait_seconds, at_boundary, stop)
        except Damaged as error:
            where = self._where(after)
            self.close()
            raise SourceLost(
                f"The binlog can't be read {where}: {error}; check the file with mysqlbinlog, and read the tables"
                " again from a new snapshot if it is damaged"
            ) from error
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, CutlineError):
                error.add_note(f"while the binlog was read {self._where(after)}")
            self.close()
            raise

    def _where(self, after: Position) -> str:
        """After which place an error came."""
        frames = self._frames
        return f"after {after.file_position}" if frames is None or not frames.file else frames.where

    def close(self) -> None:
        """Close the dump connection, if there is one; the next read connects anew."""
        dump, self._dump, self._frames, self._at, self._bound = self._dump, None, None, None, None
        self._decoders.clear()
        self._prepared.clear()
        self._replay = None
        if dump is not None:
            dump.close()
        asking, self._asking = self._asking, None
        if asking is not None:
            with suppress(Exception):
                asking._force_close()  # type: ignore[attr-defined]

    def _read(
        self,
        after: Position,
        routes: Mapping[str, Route],
        until: Position | High | None,
        max_rows: int,
        max_bytes: int,
        wait_seconds: float,
        at_boundary: bool,
        stop: Stop | None,
    ) -> Changes:
        if stop is not None and stop.met_by(after):
            return Changes(position=after, rows=0, source_time=self._source_time, stopped=True)
        if until is not None and not after.inside and self._reaches(after, until):
            return Changes(position=after, rows=0, source_time=self._source_time)
        frames = self._frames
        self._after, self._until, self._stop, self._at_gate = after, until, stop, False
        if frames is None or after != self._at or (frames.tx_open and not routes.keys() <= self._routes.keys()):
            self.close()
            frames = self._open(after)
            # MariaDB's low watermarks tell no GTIDs: only now they are known
            if stop is not None and not after.inside and stop.met_by(here := self._given(frames)):
                self._at = here
                return Changes(position=here, rows=0, stopped=True)
        self._schemas, self._faults, self._made = [], [], 0
        self._refused.clear()
        self._began_here = not frames.tx_open and not frames.resume
        self._bind(routes)
        frames.begin(max_rows, max_bytes, at_boundary)
        frames.stop_soon = after.inside
        self._missing = self._lasts_missing()
        self._aim()
        idle = self._pump(frames, time.monotonic() + wait_seconds)
        if not idle:
            self._verified = time.monotonic()
        elif time.monotonic() - self._verified > _RESET_SECONDS:
            self._verify_end(self._position(frames))
        return self._changes(frames, idle)

    def _pump(self, frames: Frames, deadline: float) -> bool:
        """Take events until the read is over; whether it ended for want of events."""
        while True:
            code = self._step(frames)
            if code == NEED:
                now = time.monotonic()
                if now >= deadline:
                    if not frames.tx_open or now >= deadline + _GRACE_SECONDS:
                        return False
                    frames.stop_soon = True
                assert self._dump is not None
                if not self._dump.receive(frames, max(0.0, deadline - now)) and time.monotonic() >= deadline:
                    return True
            elif code == ENDED:
                if self._over(frames):
                    return False
            elif code != GO:
                self._at_gate = code == STOPPED
                return False

    def _step(self, frames: Frames) -> int:
        """Up to the next place where something must be decided: GO, NEED, ENDED, or another code that ends the read."""
        code: int = self._go_on_replaying(frames) if self._replay is not None else frames.scan()
        if code == EVENT:
            body, frames.event_body = frames.event_body, b""  # which may be a large one, of which nobody else knows
            code = self._event(frames, frames.event_type, body)
        if code == FAULT:
            plan = frames.fault
            where = f"{frames.file}:{frames.event_start}"
            decoder: EventDecoder = plan.decoder
            misfit = "; ".join(decoder.faults)
            cause = f"{plan.table_id} can't be followed at {where}: {misfit or frames.error}"
            self._refused[plan.table_id] = frames.fault_seq
            self._fault(plan.table_id, cause, restart=bool(misfit) and self._outdated(plan))
        elif code == SAID:
            assert self._dump is not None
            raise self._dump.said(frames)
        return code

    def _over(self, frames: Frames) -> bool:
        """At a transaction's end where something asked to stop: whether the read is over."""
        if self._completes(frames) or frames.enough():
            return True
        if self._faults or self._schemas:
            return True
        if self._until is not None and frames.stop_offset >= 0 and frames.pos >= frames.stop_offset:
            return self._reaches(self._position(frames), self._until)
        return bool(frames.stop_soon)

    def _changes(self, frames: Frames, idle: bool) -> Changes:
        found: dict[tuple[str, int, str], list[pa.RecordBatch]] = {}
        zero_dates: Counter[tuple[str, str]] = Counter()
        for key, decoder in list(self._decoders.items()):
            table_id, generation, schema_hash, _ = key
            before = decoder.zero_dates
            try:
                batch = decoder.take()
            except Damaged as error:
                del self._decoders[key]
                self._fault(table_id, f"{table_id} can't be followed: {error}", restart=False)
                continue
            if batch is None:
                continue
            self._decoders[key] = self._decoders.pop(key)
            if table_id in self._refused:  # none of that event is taken, so none of its rows is given out
                batch = batch.filter(pc.less(batch[SEQ], self._refused[table_id]))
                if not batch.num_rows:
                    continue
            zeros = {name: count - before.get(name, 0) for name, count in decoder.zero_dates.items()}
            zero_dates.update({(table_id, name): count for name, count in zeros.items()})
            if (name := next((name for name in decoder.schema.key if zeros.get(name)), None)) is not None:
                cause = f"{indistinct(decoder.schema, name)} (before {frames.file}:{frames.pos})"
                self._fault(table_id, cause, restart=False)
                continue
            if has_row_over(batch, MAX_ROW_BYTES):
                cause = f"{table_id} has, before {frames.file}:{frames.pos}, {_TOO_LARGE}"
                self._fault(table_id, cause, restart=False)
                continue
            batch = self._exact(table_id, self._appended(table_id, batch), frames)
            if batch is not None and batch.num_rows:
                found.setdefault((table_id, generation, schema_hash), []).append(batch)
        batches = [
            ChangeBatch(
                table_id=table_id, generation=generation, schema_hash=schema_hash, rows=rows.num_rows, batch=rows
            )
            for (table_id, generation, schema_hash), parts in found.items()
            for rows in [_in_order(parts)]
        ]
        self._drop_idle()
        self._tell_time(frames)
        position = self._given(frames)
        stopped = self._stop is not None and (self._at_gate or self._stop.met_by(position))
        self._at = None if stopped else position  # the event at the gate is gone
        return Changes(
            position=position,
            rows=frames.place.seq,
            rows_inside=frames.place.seq - frames.tx_seq if position.inside else 0,
            batches=tuple(batches),
            schemas=tuple(self._schemas),
            faults=tuple(self._faults),
            source_time=self._source_time,
            idle=idle,
            stopped=stopped,
            size=sum(batch.batch.nbytes for batch in batches),
            zero_dates=+zero_dates,
        )

    def _drop_idle(self) -> None:
        """Let the decoders go that were not used for longest, as far as there are too many."""
        dropped: set[str] = set()
        held = sum(decoder.held for decoder in self._decoders.values())
        while len(self._decoders) > _MAX_DECODERS or held > _DECODERS_BYTES:
            key = next(iter(self._decoders))
            held -= self._decoders.pop(key).held
            dropped.add(key[0])
        self._bind_plans(dropped)

    def _tell_time(self, frames: Frames) -> None:
        """The newest transaction's commit time is the source's, unless a heartbeat came after it."""
        if frames.tx_ts and frames.tx_number != self._timed:
            self._timed = frames.tx_number
            self._source_time = frames.tx_ts / 1e6

    def _appended(self, table_id: str, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Changes as they are, unless the table has no key and one of them is none that only adds rows (or all go)."""
        route = self._routes.get(table_id)
        if route is None or route.schema.key:
            return batch
        changed = pc.index(pc.is_in(batch[OP].cast(pa.string()), pa.array(["+U", "-D"])), True).as_py()
        if changed < 0:
            return batch
        self._fault(
            table_id,
            f"{table_id} has no key, so only its INSERTs can be copied, and a row was changed or deleted by the event"
            f" at {batch[FILE][changed]}:{batch[POS][changed]}; add a primary key, or a unique key over NOT NULL"
            " columns",
            restart=False,
        )
        return None

    def _exact(self, table_id: str, batch: pa.RecordBatch | None, frames: Frames) -> pa.RecordBatch | None:
        """In `exact`: what is past its chunk's high."""
        route = self._routes.get(table_id)
        server = self._server
        if batch is None or route is None or route.chunks is None or server is None:
            return batch
        try:
            changes = pa.Table.from_batches([batch])
            kept = route.chunks.kept(changes, server=server.identity, locate=self._locate(route.schema))
        except SourceLost as error:
            self._fault(table_id, error.cause, restart=True)
            return None
        return batch.filter(kept)

    def _locate(self, schema: TableSchema) -> Locate:
        """Where text keys belong, as MySQL compares them: asked on a connection that is opened when it is needed."""

        def ask(bounds: Sequence[Key], keys: Sequence[Key]) -> Sequence[int]:
            if self._asking is None:
                self._asking = self._connect()
            return locate(self._asking, schema, bounds, keys)

        return ask

    # ---- positions ----

    def _given(self, frames: Frames) -> Position:
        """The position to give out. ProtocolError if it is before the one that the read goes on from: who restores it
        would take again what was given out before."""
        position, after = self._position(frames), self._after
        if after.file and after.server == position.server and not position.not_before(after):
            raise ProtocolError(
                f"The binlog cursor of server {position.server} went back from {after} to {position}; restart the"
                " pipeline, and report it with the server's version if it happens again"
            )
        return position

    def _position(self, frames: Frames) -> Position:
        """After the last item taken; as long as the dump has not come again to where the read goes on from, that."""
        assert self._server is not None
        if frames.resume or frames.pos < max(frames.discard_to, frames.floor):
            return self._after
        if frames.runs or frames.run_prefix is not None:
            last = (frames.run_prefix, frames.run_last)
            frames.close_run()
            base = self._executed if isinstance(self._executed, GtidSet) else GtidSet.EMPTY
            self._executed = base | GtidSet.parse(",".join(f"{p}:{a}-{b}" for p, a, b in frames.runs))
            frames.runs.clear()
            frames.run_prefix, frames.run_last = last
            frames.run_first = frames.run_last  # what goes on from here begins with one that is in the set already
        for domain, server, number in frames.domains.values():
            base_m = self._executed if isinstance(self._executed, MariaGtid) else MariaGtid.parse("")
            self._executed = base_m.add(f"{domain}-{server}-{number}")
        frames.domains.clear()
        inside = frames.tx_open
        return Position(
            server=self._server.identity,
            file=frames.file,
            offset=frames.tx_start if inside else frames.pos,
            gtids="" if self._executed is None else str(self._executed),
            rows=(frames.ordinal << INSIDE_BITS) + frames.row_from if inside and frames.delivered else 0,
        )

    def _reaches(self, position: Position, until: Position | High) -> bool:
        if isinstance(until, High):
            return until.reached_by(position)
        if not position.not_before(until):
            return False
        theirs, mine = until.executed, position.executed
        # the set of `until` may be ahead of its file and offset
        return not (isinstance(theirs, GtidSet) and isinstance(mine, GtidSet)) or theirs <= mine

    def _aim(self) -> None:
        """Tell the frames where in this file a transaction's end is to be told; every one if the target can't be seen
        so."""
        frames, until = self._frames, self._until
        assert frames is not None
        assert self._server is not None
        frames.stop_offset = -1
        if until is None:
            pass
        elif until.server != self._server.identity or not until.file:
            frames.stop_offset = 0
        elif frames.file and FilePosition(frames.file, 1 << 62) >= FilePosition(until.file, until.offset):
            frames.stop_offset = until.offset if frames.file == until.file else 0
        self._gate(frames)

    def _gate(self, frames: Frames) -> None:
        """Tell the frames which transaction is not to begin any more; by GTIDs, every end is looked at instead."""
        stop = self._stop
        frames.gate_offset = frames.gate_time = _NO_GATE
        assert self._server is not None
        if stop is None:
            return
        if stop.time_us is not None:
            frames.gate_time = stop.time_us
        elif stop.file and stop.server == self._server.identity:
            if frames.file == stop.file:
                frames.gate_offset = stop.offset
            elif frames.file and FilePosition(frames.file, 4) > FilePosition(stop.file, stop.offset):
                frames.gate_offset = 0
        else:
            frames.stop_offset = 0

    def _lasts_missing(self) -> set[tuple[str, int]]:
        """What must have come before the GTID set of the stop can be complete: looked up instead of comparing sets."""
        wanted = parse_gtids(self._stop.gtids) if self._stop is not None else None
        if not isinstance(wanted, GtidSet):
            return set()
        return (wanted - self._executed if isinstance(self._executed, GtidSet) else wanted).lasts()

    def _completes(self, frames: Frames) -> bool:
        """Whether the transaction that ended completes the GTID set of the stop."""
        if self._stop is None or not self._stop.gtids or frames.stop_offset < 0:
            return False
        if self._missing:
            self._missing.discard((frames.gtid_prefix, frames.gtid_number))
        return not self._missing and self._stop.met_by(self._position(frames))

    def _taken(self, prefix: str, number: int) -> int:
        """The first number from that one on which was taken before the place where the dump began; 0 if none was."""
        return self._executed.next_from(prefix, number) if isinstance(self._executed, GtidSet) else 0

    # ---- routes ----

    def _bind(self, routes: Mapping[str, Route]) -> None:
        """Let every TABLE_MAP known find its route: again only where that is another one than before, where the table
        was given up, and where its low may be passed by now."""
        frames = self._frames
        assert frames is not None
        changed = {name for name, route in routes.items() if self._routes.get(name) is not route}
        changed |= (self._routes.keys() - routes.keys()) | self._dead
        self._dead = set()
        if changed:
            self._routes = dict(routes)
            self._decoders = {key: decoder for key, decoder in self._decoders.items() if self._decodes(key)}
        if len(frames.plans) > _MAX_PLANS and not frames.tx_open:
            frames.forget_tables()
        if frames is not self._bound:
            self._bound, self._guarded = frames, {}
            self._bind_plans(None)
            return
        for plan in list(self._guarded.values()):
            self._bind_plan(plan)
        self._bind_plans(changed)

    def _decodes(self, key: tuple[str, int, str, bytes]) -> bool:
        """Whether a decoder of that key is of a route."""
        route = self._routes.get(key[0])
        return route is not None and key[1:3] == (route.generation, route.schema.hash)

    def _bind_plans(self, tables: Collection[str] | None) -> None:
        """Bind the TABLE_MAPs of these tables, or all."""
        frames = self._frames
        assert frames is not None
        if tables is None or tables:
            for plans in (frames.plans, {} if self._replay is None else self._replay.plans):
                for plan in plans.values():
                    if tables is None or plan.table_id in tables:
                        self._bind_plan(plan)

    def _bind_plan(self, plan: Plan) -> None:
        route = self._routes.get(plan.table_id)
        frames = self._frames
        assert frames is not None
        self._guarded.pop(id(plan), None)
        if route is None or plan.table_id in self._dead:
            plan.decoder = plan.make = None
            return
        plan.decoder = self._decoders.get(_key(route, plan))
        plan.make = self._decoder
        plan.guard = route.looked_at is not None or not self._past(route)
        if plan.guard:
            self._guarded[id(plan)] = plan

    def _decoder(self, plan: Plan) -> EventDecoder:
        """The decoder of a table that is asked for, at a row event of it."""
        frames, route = self._frames, self._routes[plan.table_id]
        assert frames is not None
        key = _key(route, plan)
        if key not in self._decoders:
            self._decoders[key] = EventDecoder(plan.body, route.schema, frames.place)
            self._made += 1
            # each has memory of its own: many are enough at a transaction's end, and eightfold inside one
            if self._made >= _MAX_DECODERS:
                frames.soft_bytes = 0
            if self._made >= 8 * _MAX_DECODERS:
                frames.max_bytes = 0
        return self._decoders[key]

    def _past(self, route: Route) -> bool:
        """Whether nothing more can come that the route's low covers."""
        frames, low = self._frames, route.low
        assert frames is not None
        assert self._server is not None
        here = frames.tx_start if frames.tx_open else frames.pos
        executed = GtidSet.parse(low.gtids) if ":" in low.gtids else None
        if executed is not None:
            return isinstance(self._executed, GtidSet) and executed <= self._executed
        if low.server != self._server.identity:
            return False
        return FilePosition(frames.file, here) >= FilePosition(low.file, low.offset)

    def _judge(self, plan: Plan) -> bool:
        """Whether the transaction at hand is to be delivered to this table: its low does not cover it."""
        route = self._routes.get(plan.table_id)
        if route is None or self._covered(route):
            return False
        if route.looked_at is not None:
            self._settle(plan, route)
        return plan.make is not None

    def _ahead(self, route: Route) -> bool:
        """Whether the route's schema is of a later place than the transaction at hand."""
        try:
            return route.looked_at is not None and self._covers(route.looked_at)
        except SourceLost:  # another server's, whose places don't compare
            return False

    def _settle(self, plan: Plan, route: Route) -> None:
        """The table's first row event tells how it looks here; DDL carries that on."""
        frames = self._frames
        assert frames is not None
        try:
            then = schema_then(plan.body, route.schema, mariadb=not self._on_mysql) if self._ahead(route) else None
        except SourceLost as error:
            where = f"{frames.file}:{frames.event_start}"
            self._fault(plan.table_id, f"{plan.table_id} can't be followed at {where}: {error.cause}", restart=False)
            self._bind_plan(plan)
            return
        new = then or route.schema
        self._evolved(route, new, "")
        self._routes[plan.table_id] = replace(route, schema=new, looked_at=None)
        for one in (*frames.plans.values(), plan):
            if one.table_id == plan.table_id:
                self._bind_plan(one)

    def _covers(self, low: Low) -> bool:
        """Whether a low covers the transaction at hand."""
        frames = self._frames
        assert frames is not None
        assert self._server is not None
        return low.covers(
            server=self._server.identity, end=FilePosition(frames.file, frames.tx_start + 1), gtid=frames.tx_gtid
        )

    def _covered(self, route: Route) -> bool:
        try:
            return self._covers(route.low)
        except SourceLost as error:
            self._fault(route.table_id, error.cause, restart=True)
            return True

    def _fresh(self, route: Route) -> bool:
        """Whether the table is not past its high yet, at the transaction at hand."""
        frames = self._frames
        assert frames is not None
        assert self._server is not None
        if route.live:
            return False
        here = FilePosition(frames.file, frames.tx_start)
        return route.high.server != self._server.identity or here < route.high.file_position

    def _outdated(self, plan: Plan) -> bool:
        """Whether an event does not fit the schema because a DDL is between them, at a table that is being read yet."""
        route = self._routes.get(plan.table_id)
        if route is None or not self._fresh(route):
            return False
        assert self._server is not None
        if not self._server.gtid:  # its low may lie before a DDL that its chunks have seen, and that changed no name
            return True
        ours = {column.name.lower() for column in route.schema.columns}
        try:
            table = TableMap(plan.body)
        except Damaged:
            return False
        if len(table.names) != len(table.types):
            return False
        return ours != {
            name.lower() for i, name in enumerate(table.names) if name.lower() in ours or not table.hidden(i)
        }

    def _fault(self, table_id: str, cause: str, *, restart: bool) -> None:
        """The table can't go on: told once a read, and its events are passed over for the rest of it."""
        frames = self._frames
        route = self._routes.get(table_id)
        if route is None or table_id in self._dead or frames is None:
            return
        self._dead.add(table_id)
        self._faults.append(TableFault(table_id=table_id, generation=route.generation, cause=cause, restart=restart))
        frames.stop_soon = True

    # ---- the connection ----

    def _open(self, after: Position) -> Frames:
        """Connect, and begin a dump after that position."""
        try:
            return self._begin(after)
        except ConfigError as error:
            needed = "GRANT REPLICATION SLAVE, REPLICATION CLIENT (on MariaDB BINLOG MONITOR) ON *.* TO the user"
            raise ConfigError(*error.faults, f"The binlog needs a right that may be missing: {needed}") from error

    def _begin(self, after: Position) -> Frames:
        """Ask who is there, whether it has what we took, and begin the dump."""
        dump = self._dump = Dump(self._connect(), server_id=self._server_id, heartbeat_seconds=self._heartbeat)
        connection = dump.connection
        server = self._server = identify(connection)
        self._executed = after.executed
        self._idle_at, self._timed = None, 0
        place = Place()
        frames = self._frames = Frames(place, mariadb=not server.mysql, judge=self._judge, taken=self._taken)
        frames.file, frames.pos, frames.resume = after.file, after.offset, after.rows
        place.file = after.file
        state = maria_state(connection, server, after)
        if state is None:
            self._await_commits(connection, server, after)
            verify_position(connection, server, after)
            if not server.mysql and self._executed is None:
                # MariaDB's low watermarks tell no GTIDs; begun from nothing, positions would name just the
                # domains met since
                self._executed = position_at(connection, server, after.file_position).executed
        gtid_dump = (
            server.mysql
            and server.gtid
            and (not after.file or after.server != server.identity or after.offset >= 1 << 32)
        )
        if after.inside and after.server != server.identity:
            raise SourceLost(
                f"The source changed to server {server.identity} while a transaction of {after.server} was half"
                f" taken ({after});"
                " restore a checkpoint that stands between two transactions"
            )
        if state is not None or gtid_dump:
            frames.file, frames.pos = "", 4
        with translate_errors(f"the binlog at {after}"):
            if gtid_dump:
                dump.begin_after(server, after.executed)
            else:
                dump.begin(server, frames, state=state)
        self._verified = time.monotonic()
        while not frames.file:
            # by GTID the server chooses the file, and names it in its first event
            if self._step(frames) == NEED:
                dump.receive(frames, dump.silence)
        if gtid_dump or state is not None:
            # what is left out ends where we stand, and the events behind it state just 32 bits of their place
            frames.floor = after.offset if (server.identity, frames.file) == (after.server, after.file) else 0
        return frames

    def _verify_end(self, position: Position) -> None:
        """A dump only falls silent when the binlog is reset under it."""
        with suppress(Unavailable), closing(self._connect()) as connection:
            verify_end(connection, identify(connection), position)
        self._verified = time.monotonic()

    def _await_commits(self, connection: Connection, server: Server, after: Position) -> None:
        """Unavailable while MySQL has not committed yet what its dump delivered: come again."""
        taken = after.executed
        if not (server.mysql and server.gtid and isinstance(taken, GtidSet)):
            return
        verify_end(connection, server, after)  # for what a reset took there is nothing to wait
        executed = gtid_executed(connection)
        if self._commits.awaited(taken, executed, now=time.monotonic()):
            raise Unavailable(
                f"The server has not committed all of {after.gtids}, which its binlog delivered;"
                f" does a semi-synchronous replica hold it up? It is given {COMMIT_SECONDS:.0f} s"
            )

    # ---- events ----

    def _event(self, frames: Frames, kind: int, body: bytes) -> int:
        """An event that the frames don't handle by themselves: GO or a code as theirs."""
        if frames.hold and (kind == TABLE_MAP or kind in ROWS or kind in ROWS_COMPRESSED or kind in REFUSED):
            self._prepared.keep(kind, body)
            return GO
        if kind == TABLE_MAP:
            self._table_map(frames, body, frames.plans)
        elif kind == QUERY or kind == EXECUTE_LOAD or kind == QUERY_COMPRESSED:
            return self._query(frames, kind, body)
        elif kind == ROTATE:
            return self._rotate(frames, without_checksum(body))
        elif kind == FORMAT:
            take_format(frames, body)
        elif kind == HEARTBEAT or kind == HEARTBEAT_2:
            self._heartbeat_came(frames, kind, without_checksum(body))
        elif kind == GTID_TAGGED:
            prefix, number, ts = tagged_gtid(body)
            return int(frames.tagged(prefix, number, ts or frames.timestamp * 1_000_000))
        elif kind == MARIA_GTID:
            self._hold_xa(frames)
        elif kind == PAYLOAD:
            file, frames.spooled = frames.spooled, None
            if not frames.tx_skip and frames.event_end > frames.discard_to:
                frames.open_payload(payload(body) if file is None else payload_in(file))
            elif frames.tx_open:
                return int(frames.end_transaction())
        elif kind == XA_PREPARE:
            return self._xa_prepare(frames, body)
        elif kind in ROWS_COMPRESSED:
            return self._compressed_rows(frames, kind, body)
        elif kind in REFUSED:
            self._refuse(frames, body, _PARTIAL if kind == PARTIAL_ROWS else _TOO_LARGE, frames.plans)
            if kind == PARTIAL_ROWS:  # the frames have counted what is too large
                frames.pass_over()
        elif kind == INCIDENT:
            raise SourceLost(
                f"The binlog has an incident at {frames.file}:{frames.event_start}: the server lost changes"
                " there; the tables must"
                " be read again from a new snapshot"
            )
        elif kind not in _PASSED_OVER and not frames.event_flags & _IGNORABLE:
            raise SourceLost(
                f"The binlog has an event of type {kind} at {frames.file}:{frames.event_start}, which can't be"
                " handled; report it"
                " with the server's version"
            )
        return GO

    def _table_map(self, frames: Frames, body: bytes, plans: dict[int, Plan]) -> Plan:
        number, table_id = described(body)
        plan = Plan(table_id, body)
        self._bind_plan(plan)
        plans[number] = plan
        frames.table_changed()
        return plan

    def _refuse(self, frames: Frames, body: Body, what: str, plans: Mapping[int, Plan]) -> None:
        """A row event that can't be decoded, of a table that may be routed."""
        plan = plans.get(int.from_bytes(body[:6], "little"))
        if plan is None or plan.make is None or frames.tx_skip or (plan.guard and not self._judge(plan)):
            return
        self._fault(plan.table_id, f"{plan.table_id} has, at {frames.file}:{frames.event_start}, {what}", restart=False)
        self._bind_plan(plan)

    def _compressed_rows(self, frames: Frames, kind: int, body: bytes) -> int:
        """MariaDB's compressed row events."""
        plan = frames.plans.get(int.from_bytes(body[:6], "little"))
        if plan is None or plan.make is None or frames.tx_skip:
            return int(frames.pass_over())
        try:
            plain = inflated_rows(kind, body)
        except Damaged as error:
            what = f"a row event that can't be read: {error}; check the file with mysqlbinlog"
            self._refuse(frames, body, what, frames.plans)
            return int(frames.pass_over())
        self._replay = _Replay(frames.plans, iter(((plain_kind(kind), plain),)), ends=False)
        return self._go_on_replaying(frames)

    def _rotate(self, frames: Frames, event: bytes) -> int:
        """The log goes on in another file (the same, at the beginning of a dump); STOPPED if it stops in this one."""
        name = event[27:].decode(errors="replace")
        offset = int.from_bytes(event[19:27], "little")
        if not _FILE_NAME.fullmatch(name):
            raise Damaged(f"a ROTATE event names the file {name!r}")
        if offset >= _MAX_OFFSET:
            raise Damaged(f"a ROTATE event names the offset {offset}, which no file has")
        if name != frames.file:
            there = name.rpartition(".")[0] == frames.file.rpartition(".")[0]
            if frames.file and not (there and FilePosition(name, 0) > FilePosition(frames.file, 0)):
                raise Damaged(f"a ROTATE event leads to {name!r}, which is no later file of this binlog")
            if frames.pos >= frames.gate_offset and not frames.tx_open:
                return STOPPED
            if frames.tx_open or (frames.resume and frames.file == self._after.file):
                self._torn(frames)
            frames.file, frames.pos, frames.discard_to, frames.floor = name, offset, 0, 0
            frames.place.file = name
        elif not frames.tx_open and frames.discard_to == 0:
            if offset < frames.pos:
                raise Damaged(f"a ROTATE event leads back to offset {offset}")
            frames.pos = offset
        self._aim()
        return GO

    def _torn(self, frames: Frames) -> None:
        """A file ended inside a transaction (the server crashed): it was never committed."""
        if frames.delivered or frames.resume:
            start = frames.tx_start if frames.tx_open else self._after.offset
            raise SourceLost(
                f"The binlog file ends inside the transaction at {frames.file}:{start}, a part of which was"
                " taken: the server crashed and rolled it back; the tables must be read again from a new snapshot"
            )
        frames.drop_transaction()
        self._prepared.begin(None)

    def _heartbeat_came(self, frames: Frames, kind: int, event: bytes) -> None:
        """The server has nothing to send. Where it passed over transactions that we have, heartbeats alone move on: the
        second of one place, since while the server still passes over them it may tell a place inside of one."""
        file, offset = event[19:].decode(errors="replace"), int.from_bytes(event[13:17], "little")
        if kind == HEARTBEAT_2:
            file, offset = "", 0
            at = 19
            while at + 1 < len(event) and event[at]:
                size = event[at + 1]
                value = event[at + 2 : at + 2 + size]
                if event[at] == 1:
                    file = value.decode(errors="replace")
                elif event[at] == 2:
                    offset, _ = length_encoded(value, 0)
                at += 2 + size
        else:  # 32 bits of it, and it is not far behind us
            offset += frames.pos & ~0xFFFFFFFF
            offset += (offset < frames.pos - (1 << 31)) << 32
        if file != frames.file or frames.tx_open or frames.pending_events:
            return
        if offset >= _MAX_OFFSET:
            raise Damaged(f"a heartbeat names the offset {offset}, which no file has")
        if offset <= frames.pos or self._idle_at == (file, offset):
            self._timed = frames.tx_number
            self._source_time = time.time()
            if frames.discard_to == 0:
                frames.pos = max(frames.pos, offset)
        self._idle_at = (file, offset)

    # ---- statements ----

    def _query(self, frames: Frames, kind: int, body: bytes) -> int:
        """A statement: the frame of a transaction, or XA's, or DDL, or DML as a statement."""
        db, text, sql_mode = statement(kind, body)
        if not frames.tx_open:
            frames.start_anonymous(frames.event_start, frames.timestamp * 1_000_000)
        word = text[:12].upper()
        if word == "BEGIN":
            frames.tx_begun = True
        elif word == "COMMIT":
            return self._ends(frames)
        elif word == "ROLLBACK":
            self._undone(frames, "a transaction that had changed tables without transactions too was rolled back")
            return self._ends(frames)
        elif word.startswith("ROLLBACK TO") and frames.hold:
            self._prepared.keep(kind, body)
        elif word.startswith("ROLLBACK TO"):
            self._undone(frames, _TO_SAVEPOINT)
        elif word.startswith("SAVEPOINT") or word.startswith("RELEASE SAVE"):
            pass
        elif word.startswith("XA "):
            return self._xa(frames, text)
        else:
            if not frames.tx_skip and not frames.tx_unsettled:
                self._ddl(frames, db, text, sql_mode)
            if not frames.tx_begun:
                return self._ends(frames)
        return GO

    def _ends(self, frames: Frames) -> int:
        """The transaction at hand ends by this event, unless it is within a payload that goes on."""
        if frames.event_inner:
            frames.close_payload()
            return GO
        return int(frames.end_transaction())

    def _undone(self, frames: Frames, what: str) -> None:
        """Rows that were given out already did not come to stay."""
        if not (frames.delivered or frames.resume):
            return
        touched = {key[0] for key, decoder in self._decoders.items() if decoder.size}
        if not self._began_here:  # what was touched in an earlier read is not known any more: then every table
            replayed = {} if self._replay is None else self._replay.plans
            touched |= {plan.table_id for plan in (*frames.plans.values(), *replayed.values())}
        for table_id in sorted(touched):
            self._fault(
                table_id,
                f"At {frames.file}:{frames.event_start} {what}, after changes of {table_id} were given out",
                restart=True,
            )

    def _ddl(self, frames: Frames, db: str, text: str, sql_mode: int) -> None:
        """A DDL (or DML as a statement): what it does to our tables."""
        where = f"{frames.file}:{frames.event_start}"
        schemas = {table_id: route.schema for table_id, route in self._routes.items()}
        halts = self._schema_changes == "halt"
        for effect in ddl.classify(
            text,
            db,
            schemas,
            primary=self._by_primary_key(),
            unread={table_id for table_id, route in self._routes.items() if self._ahead(route)},
            mariadb=not self._on_mysql,
            folds_case=self._server is not None and self._server.folds_case,
            sql_mode=sql_mode,
        ):
            route = self._routes.get(effect.table_id)
            if route is None or route.table_id in self._dead or self._covered(route):
                continue
            fresh = self._fresh(route)
            new = effect.schema if isinstance(effect, ddl.Evolve) else None
            unseen = new is not None and new.look == route.schema.look
            match effect:
                case ddl.Quarantine():
                    self._fault(route.table_id, f"{effect.cause} (at {where})", restart=False)
                case ddl.Truncate() if not fresh:
                    self._truncated(frames, route)
                case ddl.Evolve() | ddl.Restart() if halts and not fresh and not unseen:
                    self._fault(
                        route.table_id,
                        f"{route.table_id} was changed at {where}, where schema_changes: halt stops it:"
                        f" {ddl.shown(text)}; see to those who read it, and have it read anew by another pipeline",
                        restart=False,
                    )
                case ddl.Evolve() if not fresh or unseen or (effect.nullable_add and not halts):
                    self._evolved(route, route.schema.followed(effect.schema, self._schema_changes), text)
                case ddl.Restart():
                    self._fault(route.table_id, f"{effect.cause} (at {where})", restart=True)
                case _:
                    self._fault(
                        route.table_id,
                        f"{route.table_id} was altered while it was being read, at {where}: {ddl.shown(text)}",
                        restart=True,
                    )

    def _evolved(self, route: Route, new: TableSchema, text: str) -> None:
        frames = self._frames
        assert frames is not None
        seq = frames.place.seq
        frames.place.seq = seq + 1
        frames.stop_soon = True
        self._schemas.append(
            SchemaChange(
                table_id=route.table_id, generation=route.generation, seq=seq, old=route.schema.hash, new=new, ddl=text
            )
        )

    @property
    def _on_mysql(self) -> bool:
        return self._server is not None and self._server.mysql

    def _by_primary_key(self) -> set[str]:
        """The routed tables whose identity is their primary key, as far as their row events have shown it: which call
        a unique key so where there is no primary one."""
        frames = self._frames
        assert frames is not None
        newest: dict[str, tuple[int, Plan]] = {}
        for number, plan in frames.plans.items():
            if plan.table_id in self._routes and number >= newest.get(plan.table_id, (0, plan))[0]:
                newest[plan.table_id] = number, plan
        return {
            table_id
            for table_id, (_, plan) in newest.items()
            if not (schema := self._routes[table_id].schema).unique_key
            and primary_key(plan.body).keys() == {name.lower() for name in schema.key}
        }

    def _truncated(self, frames: Frames, route: Route) -> None:
        frames.tell_place()
        frames.place.pos = frames.event_start
        for key, decoder in self._decoders.items():
            if key[:3] == (route.table_id, route.generation, route.schema.hash) and not decoder.faults:
                decoder.truncate()
                return
        decoder = EventDecoder(nameless(route.table_id), route.schema, frames.place)
        self._decoders[(route.table_id, route.generation, route.schema.hash, b"")] = decoder
        decoder.truncate()

    # ---- XA ----

    def _xa(self, frames: Frames, text: str) -> int:
        xid = xid_in(text)
        words = text.split(None, 2)
        verb = words[1].upper() if len(words) > 1 else ""
        if verb in ("START", "BEGIN"):
            frames.tx_begun = frames.hold = True
            self._hold_xa(frames)
        elif verb == "COMMIT":
            if frames.tx_skip or all(self._covered(route) for route in self._routes.values()):
                self._prepared.forget(xid)
                frames.resume = 0  # nobody wants its rows any more
                return self._ends(frames)
            return self._give_prepared(frames, xid)
        elif verb == "ROLLBACK":
            self._prepared.forget(xid)
            return self._ends(frames)
        return GO

    def _hold_xa(self, frames: Frames) -> None:
        self._prepared.begin(None if frames.tx_skip else FilePosition(frames.file, frames.tx_start))

    def _xa_prepare(self, frames: Frames, body: bytes) -> int:
        """An XA transaction is prepared, or (in one phase) committed."""
        frames.hold = False
        if frames.tx_skip:
            return self._ends(frames)
        xid = xid_of(body)
        self._prepared.prepare(xid)
        if not body[0]:
            return self._ends(frames)
        frames.ordinal = 0
        return self._give_prepared(frames, xid)

    def _give_prepared(self, frames: Frames, xid: Xid) -> int:
        """The transaction of that name is committed by the event at hand."""
        events = self._prepared.events(xid, FilePosition(frames.file, frames.tx_start))
        self._replay = _Replay({}, events, ends=True, xid=xid)
        return self._go_on_replaying(frames)

    def _go_on_replaying(self, frames: Frames) -> int:
        """Give out events that don't come from the frames, as far as the limits go."""
        replay = self._replay
        assert replay is not None
        while True:
            if replay.event is None:
                replay.event = next(replay.events, None)
            if replay.event is None:
                break
            kind, body = replay.event
            if kind == TABLE_MAP:
                self._table_map(frames, bytes(body), replay.plans)
                replay.event = None
                continue
            if kind == QUERY:
                self._undone(frames, _TO_SAVEPOINT)
                replay.event = None
                continue
            plan = replay.plans.get(int.from_bytes(body[:6], "little"))
            if plan is None:
                raise Damaged("a row event of a table that no table map has described")
            if kind in REFUSED:
                self._refuse(frames, body, _PARTIAL if kind == PARTIAL_ROWS else _TOO_LARGE, replay.plans)
            if plan.make is None or kind in REFUSED:
                frames.pass_over()
                replay.event = None
                continue
            code: int = frames.give_rows(plan, kind, body)
            if code in (FULL, FAULT):
                return code
            replay.event = None
            if code == FULL_TAKEN:
                return code
        self._replay = None
        if not replay.ends:
            return GO
        self._prepared.forget(replay.xid)
        return self._ends(frames)


@dataclass(slots=True)
class _Replay:
    """Events that are given out now and don't come from the dump as they are; `ends`: the transaction ends with
    them."""

    plans: dict[int, Plan]
    events: Iterator[tuple[int, Body]]
    ends: bool
    xid: Xid = (b"", b"", 0)
    event: tuple[int, Body] | None = None
