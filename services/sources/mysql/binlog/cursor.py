"""The binlog cursor: from one dump connection of a MySQL or MariaDB server to Arrow batches of row changes.

`BinlogCursor.read` is the only entry point; its docstring is the contract. The parts of one dump:

| part | does |
|---|---|
| bytes.py | who delivers the bytes: a contract |
| dump.py | delivers them from the source: authenticates and sends commands (by PyMySQL), receives |
| scanner.py (compiled) | cuts the bytes into events, and handles those that every transaction has |
| decode/ (compiled) | turns row events into Arrow |
| progress.py | positions, and which watermarks cover the transaction at hand |
| routes.py | which tables get which rows |
| statements.py, ddl.py, alter.py, sql.py | statements, and what DDL does to the routes |
| replay.py, xa.py | compressed events and XA transactions |
| this file | the stream of a delivery, the events between transactions, where a read ends |

**No retry here.** Each failure is raised at once; then the cursor is closed, and the next `read` connects anew.

Change together with: the files above, common/positions.py.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, CutlineError, PositionLost, SourceLost, SourceRefused
from cutline.common.gtids import GtidSet, parse_gtids
from cutline.common.masking import NO_MASKS, Masks
from cutline.common.positions import FilePosition, High, Position, Stop
from cutline.common.schema import SchemaChanges
from cutline.services.sources.contract import Changes, Route
from cutline.services.sources.mysql.binlog.bytes import BinlogBytes, take_format
from cutline.services.sources.mysql.binlog.dump import Dump
from cutline.services.sources.mysql.binlog.event_bodies import heartbeat_place, rotation, tagged_gtid
from cutline.services.sources.mysql.binlog.event_types import (
    APPEND_BLOCK,
    BEGIN_LOAD_QUERY,
    BINLOG_CHECKPOINT,
    CREATE_FILE,
    DELETE_FILE,
    EXECUTE_LOAD_QUERY,
    FORMAT_DESCRIPTION,
    GTID_LIST,
    GTID_TAGGED,
    HEARTBEAT,
    HEARTBEAT_V2,
    IGNORABLE,
    IGNORABLE_FLAG,
    INCIDENT,
    INTVAR,
    MARIADB_GTID,
    PARTIAL_UPDATE_ROWS,
    PREVIOUS_GTIDS,
    QUERY,
    QUERY_COMPRESSED,
    RAND,
    REFUSED,
    ROTATE,
    ROWS,
    ROWS_COMPRESSED,
    SLAVE,
    START_ENCRYPTION,
    STOP,
    TABLE_MAP,
    TRANSACTION_CONTEXT,
    TRANSACTION_PAYLOAD,
    USER_VAR,
    VIEW_CHANGE,
    XA_PREPARE,
)
from cutline.services.sources.mysql.binlog.progress import Progress
from cutline.services.sources.mysql.binlog.replay import Replay
from cutline.services.sources.mysql.binlog.routes import Routes
from cutline.services.sources.mysql.binlog.scanner import (
    ENDED,
    EVENT,
    FAULT,
    GO,
    NEED,
    NEVER,
    SERVER_MESSAGE,
    STOPPED,
)
from cutline.services.sources.mysql.binlog.statements import Statements
from cutline.services.sources.mysql.binlog.xa import Prepared
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.server import FIRST_OFFSET
from cutline.services.sources.mysql.watermark import Commits

_PASSED_OVER = frozenset(
    (
        STOP,
        INTVAR,
        SLAVE,
        CREATE_FILE,
        APPEND_BLOCK,
        DELETE_FILE,
        RAND,
        USER_VAR,
        BEGIN_LOAD_QUERY,
        IGNORABLE,
        PREVIOUS_GTIDS,
        TRANSACTION_CONTEXT,
        VIEW_CHANGE,
        BINLOG_CHECKPOINT,
        GTID_LIST,
        START_ENCRYPTION,
    )
)
_HELD = frozenset((TABLE_MAP, *ROWS, *ROWS_COMPRESSED, *REFUSED))
_FILE_NAME = re.compile(r"[^/\0]+\.[0-9]{6,10}")
_MAX_OFFSET = 1 << 60  # so far below NEVER that events after it can't reach NEVER, nor overflow C integers
_GRACE_SECONDS = 0.25  # how long a read whose time is over waits for the transaction's end
_RESET_SECONDS = 20.0  # of silence, between two checks whether the binlog was reset


class BinlogCursor:
    """Reads one source's binlog; owns one dump connection. Synchronous; one thread at a time.

    `connect` opens a connection as connection.py does. `server_id` must differ from that of every other replica of the
    source: of two with the same id the server disconnects the older one.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        server_id: int,
        heartbeat_seconds: float = 1.0,
        schema_changes: SchemaChanges = "evolve",
        masks: Masks = NO_MASKS,
    ) -> None:
        self._masks = masks
        self._connect, self._server_id, self._heartbeat = connect, server_id, heartbeat_seconds
        self._schema_changes = schema_changes
        self._stream: Stream | None = None
        self._at: Position | None = None  # the position that the last read returned
        self._source_time: float | None = None
        self._commits = Commits()

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

        Continues the open dump if `after` is the position that the last read returned, else connects there. Returns

        - when `max_rows` row changes or `max_bytes` (of row events, or of the decoded rows) are taken: inside a
          transaction if need be (then `position.rows` > 0), but from three quarters of the limit on at a transaction's
          end; with `at_boundary` inside one only at eight times the limit;
        - at the end of the transaction that `after` is inside of, so that transactions slightly larger than these
          limits do not make every read end inside one;
        - when `wait_seconds` have passed, even while events keep coming, if possible at a transaction's end;
        - at a DDL that concerns a route, or a fault, with everything before it;
        - when `until` is reached: a transaction's end at or after it (with MySQL's GTIDs its whole set taken too);
        - at `stop`, after which nothing is taken: then `stopped` is true.

        Transactions covered by a route's low are skipped (DDL too), and in `exact` the changes not past their chunk's
        high. An update that changes the bytes of the identity key is `-D` with the before-image, then `+I`.

        Errors: Unavailable (the connection; nothing is lost, the same call continues), SourceLost (purged, another
        source, damaged, an incident: names file and offset), SourceRefused (the login or TLS), ConfigError (a missing
        grant), ProtocolError (the position went back: a bug of ours). Any other error is a bug of ours too, and a note
        on it names the place. After an error the cursor is closed. The typical mistake: to continue from the returned
        position with new routes, and expect the rows that the old routes skipped.
        """
        try:
            return self._read(after, routes, until, max_rows, max_bytes, wait_seconds, at_boundary, stop)
        except Damaged as error:
            where = self._where(after)
            self.close()
            raise PositionLost(
                Cause(
                    Code.BINLOG,
                    f"The binlog can't be read {where}: {error}",
                    "check the file with mysqlbinlog, and read the tables again from a new snapshot if it is damaged",
                )
            ) from error
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, CutlineError):
                error.add_note(f"while the binlog was read {self._where(after)}")
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether a dump is open, which the next read can continue."""
        return self._stream is not None

    def close(self) -> None:
        """Close the dump connection, if there is one; the next read connects anew."""
        stream, self._stream, self._at = self._stream, None, None
        if stream is not None:
            self._source_time = stream.source_time
            stream.close()

    def _where(self, after: Position) -> str:
        """The place of an error, for its message."""
        scanner = None if self._stream is None else self._stream.scanner
        return f"after {after.file_position}" if scanner is None or not scanner.file else scanner.where

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
        stream = self._stream
        source_time = self._source_time if stream is None else stream.source_time
        if stop is not None and stop.met_by(after):
            return Changes(position=after, rows=0, source_time=source_time, stopped=True)
        if until is not None and not after.inside and _reaches(after, until):
            return Changes(position=after, rows=0, source_time=source_time)
        if stream is None or after != self._at or (stream.scanner.tx.open and not stream.routes.has_all(routes)):
            self.close()
            stream = self._open(after)
            # MariaDB's low watermarks have no GTIDs: they are known only now
            if stop is not None and not after.inside and stop.met_by(here := stream.progress.checked_position()):
                self._at = here
                return Changes(position=here, rows=0, stopped=True)
        stream.progress.after = after
        stream.begin(routes, until, stop)
        stream.scanner.begin(max_rows, max_bytes, at_boundary)
        if after.inside:
            stream.scanner.stop_at_next_end()
        idle = stream.pump(time.monotonic() + wait_seconds)
        stream.check_end()
        changes = stream.changes(idle)
        self._at = None if changes.stopped else changes.position  # the dump has lost the event at the gate
        return changes

    # ---- the connection ----

    def _open(self, after: Position) -> Stream:
        """Begin a dump after that position."""
        try:
            dump = Dump.open(
                self._connect,
                server_id=self._server_id,
                heartbeat_seconds=self._heartbeat,
                commits=self._commits,
            )
            stream = self._stream = self.stream(dump, after)
            stream.open(after)
            return stream
        except SourceRefused:
            raise
        except ConfigError as error:
            needed = "GRANT REPLICATION SLAVE, REPLICATION CLIENT (on MariaDB BINLOG MONITOR) ON *.* TO the user"
            lacking = Cause(Code.RIGHTS, "The binlog needs a right that may be missing", needed)
            raise ConfigError.several((*error.faults, lacking)) from error

    def stream(self, delivery: BinlogBytes, after: Position) -> Stream:
        """The stream of a delivery that begins after that position."""
        return Stream(
            delivery,
            after,
            connect=self._connect,
            server_id=self._server_id,
            schema_changes=self._schema_changes,
                masks=self._masks,
            source_time=self._source_time,
        )


class Stream:
    """One open delivery of the binlog, and all state that ends with it.

    For each read: `begin`, then the scanner's `begin`, then `pump`, then `changes`.
    """

    def __init__(
        self,
        delivery: BinlogBytes,
        after: Position,
        *,
        connect: Callable[[], Connection],
        server_id: int,
        schema_changes: SchemaChanges,
        source_time: float | None,
        masks: Masks = NO_MASKS,
    ) -> None:
        server = delivery.server
        self.progress = Progress(server, after)
        self.scanner = self.progress.scanner
        self.routes = Routes(self.progress, connect, masks)
        self.source_time = source_time
        self._still = ("", 0), 0.0  # the dump's place, and since when it is there or its binlog's end was asked for
        self._delivery, self._server = delivery, server
        self._replay = Replay(self.scanner, self.routes, Prepared(connect, server_id=server_id))
        self._statements = Statements(server, self.scanner, self.routes, self._replay, policy=schema_changes)
        self._until: Position | High | None = None
        self._stop: Stop | None = None
        self._missing: set[tuple[str, int]] = set()  # see `_last_gtids_missing`
        self._stopped_at_gate = False
        self._timed = 0  # the transaction that `source_time` accounts for
        self._idle_at: tuple[str, int] | None = None  # the place in the last heartbeat

    def close(self) -> None:
        """Close the dump, and the connection that compares keys."""
        self._delivery.close()
        self.routes.close()

    def open(self, after: Position) -> None:
        """Begin the delivery after that position, and take its first events until the file is known."""
        scanner, server = self.scanner, self._server
        self.progress.executed = self._delivery.begin(scanner, after)
        chooses = not scanner.file
        while not scanner.file:
            if self.step() == NEED:
                self._delivery.receive(scanner, math.inf)
        if chooses and (server.identity, scanner.file) == (after.server, after.file):
            # the server leaves out transactions up to `after`, and later events state only 32 bits of their position
            scanner.expect_from(after.offset)

    # ---- a read ----

    def begin(self, routes: Mapping[str, Route], until: Position | High | None, stop: Stop | None) -> None:
        """A read begins, with these routes, to end at `until` or `stop`."""
        self._until, self._stop, self._stopped_at_gate = until, stop, False
        self.routes.begin(routes)
        self._missing = self._last_gtids_missing()
        self._aim()

    def pump(self, deadline: float) -> bool:
        """Take events until the read is over; whether it ended because none came."""
        while True:
            code = self.step()
            if code == NEED:
                now = time.monotonic()
                if now >= deadline:
                    if not self.scanner.tx.open or now >= deadline + _GRACE_SECONDS:
                        return False
                    self.scanner.stop_at_next_end()
                came = self._delivery.receive(self.scanner, max(0.0, deadline - now), leisurely=self._until is None)
                if not came and time.monotonic() >= deadline:
                    return True
            elif code == ENDED:
                if self._is_over():
                    return False
            elif code != GO:
                self._stopped_at_gate = code == STOPPED
                return False

    def step(self) -> int:
        """Take events up to the next decision: GO, NEED, ENDED, or another code, which ends the read."""
        code = self._replay.go_on() if self._replay.under_way else self.scanner.scan()
        if code == EVENT:
            code = self._event(self.scanner.event.type, self.scanner.take_body())
        if code == FAULT:
            self.routes.refused_by_decoder()
        elif code == SERVER_MESSAGE:
            raise self._delivery.failure(self.scanner)
        return code

    def _is_over(self) -> bool:
        """Whether the read is over at this transaction's end, where a limit or a stop applies."""
        scanner = self.scanner
        if self._completes_stop() or scanner.enough() or self.routes.faults or self.routes.schemas:
            return True
        if self._until is not None and scanner.at_stop:
            return _reaches(self.progress.position(), self._until)
        return bool(scanner.limits.stop_soon)

    def changes(self, idle: bool) -> Changes:
        """The answer to the read."""
        scanner = self.scanner
        batches, zero_dates = self.routes.take()
        if scanner.tx.time_us and scanner.tx.number != self._timed:  # newer than the last heartbeat
            self._timed = scanner.tx.number
            self.source_time = scanner.tx.time_us / 1e6
        position = self.progress.checked_position()
        return Changes(
            position=position,
            rows=scanner.place.seq,
            rows_inside=scanner.place.seq - scanner.tx.first_seq if position.inside else 0,
            batches=tuple(batches),
            schemas=tuple(self.routes.schemas),
            faults=tuple(self.routes.faults),
            source_time=self.source_time,
            idle=idle,
            stopped=self._stop is not None and (self._stopped_at_gate or self._stop.met_by(position)),
            zero_dates=+zero_dates,
        )

    def check_end(self) -> None:
        """SourceLost if the binlog was reset. Asked when the delivery has stayed at its place for long.

        Heartbeats don't count: a server goes on with them after a reset, and one may end any read.
        """
        now, at = time.monotonic(), (self.scanner.file, self.scanner.pos)
        place, since = self._still
        stays = at == place
        due = stays and now - since > _RESET_SECONDS
        if due or not stays:
            self._still = at, now
        if due:
            self._delivery.check_end(self.progress.position())

    # ---- where a read ends ----

    def _aim(self) -> None:
        """Set the scanner's stop and gate for this file; where no offset will do, stop at every transaction's end."""
        until, stop, scanner, identity = self._until, self._stop, self.scanner, self._server.identity
        stop_offset: int | None = None
        if until is None:
            pass
        elif until.server != identity or not until.file:
            stop_offset = 0
        elif scanner.file and FilePosition(scanner.file, NEVER) >= FilePosition(until.file, until.offset):
            stop_offset = until.offset if scanner.file == until.file else 0
        gate_offset = gate_time_us = NEVER
        if stop is None:
            pass
        elif stop.time_us is not None:
            gate_time_us = stop.time_us
        elif stop.file and stop.server == identity:
            if scanner.file == stop.file:
                gate_offset = stop.offset
            elif scanner.file and FilePosition(scanner.file, FIRST_OFFSET) > FilePosition(stop.file, stop.offset):
                gate_offset = 0
        else:
            stop_offset = 0  # a set of GTIDs may be complete at any transaction's end
        scanner.stop_at(stop_offset)
        scanner.gate(offset=gate_offset, time_us=gate_time_us)

    def _last_gtids_missing(self) -> set[tuple[str, int]]:
        """The last GTID of each interval that the stop's set lacks; whole sets are compared only once none is left."""
        wanted = parse_gtids(self._stop.gtids) if self._stop is not None else None
        if not isinstance(wanted, GtidSet):
            return set()
        executed = self.progress.executed
        return (wanted - executed if isinstance(executed, GtidSet) else wanted).lasts()

    def _completes_stop(self) -> bool:
        """Whether the transaction that ended completes the GTID set of the stop."""
        if self._stop is None or not self._stop.gtids or self.scanner.limits.stop_offset < 0:
            return False
        if self._missing:
            self._missing.discard((self.scanner.gtids.prefix, self.scanner.gtids.number))
        return not self._missing and self._stop.met_by(self.progress.position())

    # ---- events ----

    def _event(self, kind: int, body: bytes) -> int:
        """Take an event that the scanner hands over: GO, or a code of the scanner's."""
        scanner = self.scanner
        if scanner.tx.held and kind in _HELD:
            self._replay.keep(kind, body)
        elif kind == TABLE_MAP:
            self.routes.map_table(body)
        elif kind in (QUERY, EXECUTE_LOAD_QUERY, QUERY_COMPRESSED):
            return self._statements.take(kind, body)
        elif kind == ROTATE:
            return self._rotate(*rotation(body))
        elif kind == FORMAT_DESCRIPTION:
            take_format(scanner, body)
        elif kind in (HEARTBEAT, HEARTBEAT_V2):
            self._heartbeat(kind, body)
        elif kind == GTID_TAGGED:
            prefix, number, time_us = tagged_gtid(body)
            return int(scanner.start_tagged(prefix, number, time_us or scanner.event.timestamp * 1_000_000))
        elif kind == MARIADB_GTID:
            self._replay.hold()
        elif kind == TRANSACTION_PAYLOAD:
            return self._replay.payload(body)
        elif kind == XA_PREPARE:
            return self._replay.prepare(body)
        elif kind in ROWS_COMPRESSED:
            return self._replay.compressed_rows(kind, body)
        elif kind in REFUSED:
            self.routes.refuse(kind, body, scanner.tables)
            if kind == PARTIAL_UPDATE_ROWS:  # the scanner has counted one that is too large
                scanner.pass_over()
        elif kind == INCIDENT:
            raise PositionLost(
                Cause(
                    Code.BINLOG,
                    f"The binlog has an incident at {scanner.event_place}: the server lost changes there",
                    "the tables must be read again from a new snapshot",
                )
            )
        elif kind not in _PASSED_OVER and not scanner.event.flags & IGNORABLE_FLAG:
            raise SourceLost(
                Cause(
                    Code.BINLOG,
                    f"The binlog has an event of type {kind} at {scanner.event_place}, which can't be handled",
                    "report it with the server's version",
                )
            )
        return GO

    def _rotate(self, name: str, offset: int) -> int:
        """The binlog continues in another file (at a dump's beginning in the same one). STOPPED if nothing is left
        before the gate."""
        scanner, after = self.scanner, self.progress.after
        if not _FILE_NAME.fullmatch(name):
            raise Damaged(f"a ROTATE event names the file {name!r}")
        if offset >= _MAX_OFFSET:
            raise Damaged(f"a ROTATE event names the offset {offset}, which no file has")
        if name != scanner.file:
            same_binlog = name.rpartition(".")[0] == scanner.file.rpartition(".")[0]
            if scanner.file and not (same_binlog and FilePosition(name, 0) > FilePosition(scanner.file, 0)):
                raise Damaged(f"a ROTATE event leads to {name!r}, which is no later file of this binlog")
            if scanner.at_gate:
                return STOPPED
            # A dump by GTIDs begins in the newest file before which nothing is missing. A torn transaction is not
            # missing, so that file may be later than the one that the dump resumes in.
            if scanner.tx.open or (scanner.resume and FilePosition(name, 0) > FilePosition(after.file, 0)):
                self._drop_torn_transaction()
            scanner.rotate(name, offset)
        elif not scanner.tx.open and scanner.discard_to == 0:
            if offset < scanner.pos:
                raise Damaged(f"a ROTATE event leads back to offset {offset}")
            scanner.move_to(offset)
        self._aim()
        return GO

    def _drop_torn_transaction(self) -> None:
        """A file ended inside a transaction, because the server crashed: it was never committed."""
        scanner = self.scanner
        if scanner.tx.delivered or scanner.resume:
            opened = FilePosition(scanner.file, scanner.tx.start)
            start = opened if scanner.tx.open else self.progress.after.file_position
            raise PositionLost(
                Cause(
                    Code.PURGED,
                    f"The binlog file ends inside the transaction at {start}, a part of which was taken: the server"
                    " crashed and rolled it back",
                    "the tables must be read again from a new snapshot",
                )
            )
        scanner.drop_transaction()
        self._replay.drop()

    def _heartbeat(self, kind: int, body: bytes) -> None:
        """The server has nothing to send. While it skips transactions that we have, only heartbeats move the position,
        and only the second one with the same place: the first may be inside a transaction."""
        scanner = self.scanner
        file, offset = heartbeat_place(kind, body, near=scanner.pos)
        if file != scanner.file or scanner.tx.open or scanner.pending_events:
            return
        if offset >= _MAX_OFFSET:
            raise Damaged(f"a heartbeat names the offset {offset}, which no file has")
        if offset <= scanner.pos or self._idle_at == (file, offset):
            self._timed = scanner.tx.number
            self.source_time = time.time()
            if scanner.discard_to == 0:
                scanner.move_to(offset)
        self._idle_at = (file, offset)


def _reaches(position: Position, until: Position | High) -> bool:
    if isinstance(until, High):
        return until.reached_by(position)
    if not position.not_before(until):
        return False
    wanted, taken = until.executed, position.executed
    # the set of `until` may be ahead of its file and offset
    return not (isinstance(wanted, GtidSet) and isinstance(taken, GtidSet)) or wanted <= taken
