"""The seam to MySQL and MariaDB: connections, and what Cutline asks of a server, each question with a name.

Those about keys, and the SELECTs between them, are in keys.py.

The source is only read: sessions are `TRANSACTION READ ONLY`, and nothing here locks, creates or sets a global
variable.

PyMySQL's errors become the tree of common/errors.py here (`seam`), by what the driver does next:

| the server or the network says | becomes |
|---|---|
| wrong password, missing privilege, no such host name | ConfigError: a person must change something |
| connection refused or lost, shutting down, offline, no memory or room for more, deadlock, time-out | Unavailable |
| no such table or column, definition changed, binlog purged, row over max_allowed_packet | SourceLost (with the
table) |
| anything else, as a syntax error | ProtocolError: a statement of ours is wrong |
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias, cast

import pymysql
from pymysql.connections import Connection as _Connection
from pymysql.constants import COMMAND
from pymysql.converters import encoders
from pymysql.cursors import Cursor

from cutline.common.config.pipeline import PipelineConfig, SourceConfig
from cutline.common.errors import (
    ConfigError,
    CutlineError,
    NextGeneration,
    NoTable,
    ProtocolError,
    SourceLost,
    Unavailable,
)
from cutline.common.positions import FilePosition, GtidSet, High, Low, MariaGtid, Position
from cutline.common.schema import Column, TableSchema, arrow_type, parse_type, split_table_id

Connection: TypeAlias = "_Connection[Cursor]"

SYSTEM_SCHEMAS = ("information_schema", "mysql", "performance_schema", "sys")

_NO_XA_RECOVER = frozenset((1227, 1401))
_REFUSED = frozenset((1044, 1045, 1130, 1142, 1143, 1227, 1251, 1370, 1698, 1820, 1862, 2059, 2061, 3118, 3955, 4151))
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

FIRST_OFFSET = 4
"""Where the first event of a binlog file begins."""

_BLOCK_BYTES = 1 << 20
_HANDSHAKE_SECONDS = 30
_PAUSE_SECONDS = 0.002

_NO_ROOM = (1021, 1037, 1038, 1040, 1041, 1129, 1135, 1203, 1226, 1461)
_BUSY_SERVER = (1053, 1152, 1158, 1159, 1160, 1161, 1205, 1213, 1317, 1615, 1836, 1927, 1969, 3032, 3168, 3169, 4031)
_BUSY = frozenset((*_NO_ROOM, *_BUSY_SERVER, 3024, 2002, 2003, 2005, 2006, 2012, 2013, 2014, 2027, 2055))
_GONE = frozenset((1030, 1034, 1194, 1195, 1236, 1712, 1815, 1932))
_NO_TABLE = frozenset((1049, 1051, 1146))
_CHANGED = frozenset((1054, 1109, 1176, 1356, 1412))
_NO_SELECT = frozenset((1142, 1143))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the server is, and as whom we read it."""

    host: str
    port: int = 3306
    user: str
    password: str = field(default="", repr=False)
    connect_timeout_seconds: int = 10
    read_timeout_seconds: int = 900

    @classmethod
    def of(cls, config: SourceConfig) -> Source:
        """The source that a pipeline file names, its password read now. ConfigError if that can't be found."""
        return cls(host=config.host, port=config.port, user=config.user, password=config.password())

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server says of itself.

    `identity` names one server history: MySQL's `@@server_uuid`; on MariaDB `@@server_id` with `@@server_uid` (a hash
    of network card and port; before 10.11.9 of host name, port and data folder). It stays the same over RESET MASTER,
    and on MariaDB over a new data folder: `verify_position` sees those by what the binlog holds. `gtid` says that
    every transaction has a GTID (always so on MariaDB), `folds_case` that names of tables are the same in upper and
    lower case, `states_ends` that each event of its binlog states where it ends: MariaDB from 11.8 on leaves that out
    inside a transaction, unless `binlog_legacy_event_pos` is on, which anyone may switch while it runs.
    """

    flavour: Literal["mysql", "mariadb"]
    version: tuple[int, ...]
    identity: str
    gtid: bool
    folds_case: bool = False
    states_ends: bool = True

    @property
    def mysql(self) -> bool:
        """MySQL, or a server that behaves as MySQL does (Percona)."""
        return self.flavour == "mysql"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table as the catalogue shows it now.

    `rows` and `row_bytes` are the server's estimates (rows may be off by half); `chunk_key` is what its chunks are cut
    by, and `integer_key` says that this is one integer column; `faults` are the reasons, each a sentence with its
    remedy, why the table can't be captured (then it is to be quarantined), empty if it can.
    """

    schema: TableSchema
    engine: str
    rows: int
    row_bytes: int
    integer_key: bool
    chunk_key: tuple[str, ...]
    faults: tuple[str, ...]


# --- connections and errors -------------------------------------------------------------------------------------------


def connect(source: Source) -> Connection:
    """Open a connection with Cutline's session: UTC, utf8mb4, no sql_mode, repeatable read, read only, long waits.

    It is encrypted if the server can and is not on this machine. Values come back as `str` (text, numbers, times)
    or `bytes` (binary), never converted. ConfigError if the server refuses us or its name is unknown, Unavailable if it
    can't be reached now.
    """
    with seam(str(source)):
        connection: Connection = pymysql.Connection(
            host=source.host,
            port=source.port,
            user=source.user,
            password=source.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=source.connect_timeout_seconds,
            read_timeout=source.read_timeout_seconds,
            write_timeout=source.read_timeout_seconds,
            max_allowed_packet=1 << 30,
            conv=dict[Any, Any](encoders),  # no decoders: values stay what MySQL prints
            init_command=(
                "SET SESSION time_zone='+00:00', sql_mode='', net_write_timeout=3600, net_read_timeout=3600,"
                " wait_timeout=28800, lock_wait_timeout=60, sql_select_limit=18446744073709551615, sql_big_selects=1"
                " /*!80000 , information_schema_stats_expiry=0, max_execution_time=0 */"
                " /*!80030 , show_gipk_in_create_table_and_information_schema=1 */ /*M! , max_statement_time=0 */"
            ),
            ssl_disabled=True,
            defer_connect=True,
        )
        answers: Any = connection
        answers._read_timeout = _HANDSHAKE_SECONDS  # who accepts and never answers shall not hold us for longer
        if source.host not in _LOOPBACK:
            # TLS if the server has it, as PyMySQL does, but with one context: each costs it 35 ms
            connection.ssl, connection.ctx = True, _tls()  # type: ignore[attr-defined]
        connection.connect()
        # a host that vanished without a word is noticed in half a minute, not after TCP's two hours
        wire: socket.socket = connection._sock  # type: ignore[attr-defined]
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            wire.setsockopt(socket.IPPROTO_TCP, option, value)
        ask(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        answers._read_timeout = source.read_timeout_seconds
        wire.settimeout(source.read_timeout_seconds)
    return connection


def cut(conn: Connection) -> None:
    """Break the connection, from any thread: whoever waits there for an answer gets Unavailable at once."""
    wire: socket.socket | None = conn._sock  # type: ignore[attr-defined]
    with suppress(OSError):
        if wire is not None:
            wire.shutdown(socket.SHUT_RDWR)


@cache
def _tls() -> ssl.SSLContext:
    """As MySQL's own clients by default: what passes the network is encrypted, who answers is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def seam(what: str, table: str | None = None) -> Iterator[None]:
    """Turn PyMySQL's errors inside the block into ours, by the table in this file's head.

    `what` names the server or the work in the sentence; with `table` what is wrong with that table alone is
    SourceLost of it.
    """
    try:
        yield
    except CutlineError:
        raise
    except pymysql.MySQLError as error:
        raise _ours(error, what, table) from error
    except UnicodeDecodeError as error:  # MySQL keeps half of a surrogate pair in ucs2, MariaDB in others too
        raise SourceLost(f"{table or what} has text that is not Unicode ({error}); correct it", table) from error
    except (OSError, EOFError, struct.error, AttributeError) as error:
        # AttributeError: PyMySQL's own after its socket was closed under it
        if isinstance(error, AttributeError) and "NoneType" not in str(error):
            raise
        raise Unavailable(f"The connection to {what} broke ({error}); is the server up?") from error


def _ours(error: pymysql.MySQLError, what: str, table: str | None) -> CutlineError:
    code, text = (*error.args, "", "")[:2]
    said = f"{text or error} ({code})" if isinstance(code, int) and code else str(error)
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, socket.gaierror) and cause.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", -5)):
        return ConfigError(f"There is no host of the name in {what}; correct source.host")
    if code in _NO_SELECT and table is not None:
        return SourceLost(
            f"{table} may not be read: {said}; GRANT SELECT ON {quoted_table(table)} to the user of {what}", table
        )
    if code in _REFUSED:
        return ConfigError(f"{what} refuses us: {said}; correct source.user, its password or its grants")
    if code == 1153:
        return SourceLost(f"A row of {table or what} is larger than max_allowed_packet; leave the table out", table)
    if code in _NO_TABLE:
        return NoTable(f"There is no table {table or what} (any more): {said}", table)
    if code in _CHANGED:
        return NextGeneration(f"{table or what} is not as it was: {said}", table)
    if code in _GONE:
        return SourceLost(f"{table or what}: {said}", table)
    if code in _BUSY or isinstance(error, pymysql.InterfaceError) or not isinstance(code, int) or code == 0:
        return Unavailable(f"{what} did not answer: {said}; is the server up?")
    return ProtocolError(f"{what} does not accept a statement of ours: {said}; report this with the server's version")


def ask(conn: Connection, sql: str, args: Sequence[object] | None = None, *, table: str | None = None) -> list[Any]:
    """All rows that a statement gives, as tuples of what the server prints. With `table` what is wrong with that table
    alone is SourceLost of it."""
    with seam(f"{_text(conn.user)}@{conn.host}:{conn.port}", table), conn.cursor() as cursor:
        cursor.execute(sql, args)
        return list(cursor.fetchall())


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def quoted(name: str) -> str:
    """A name in back-ticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table_id: str) -> str:
    """A table's name, with its database's, in back-ticks."""
    return ".".join(quoted(part) for part in split_table_id(table_id))


def bound_statements(conn: Connection, of: Server, seconds: float) -> None:
    """Have the server end what runs longer on this connection, what we don't take from it in time, and on MariaDB a
    transaction that we don't go on with. A SELECT so ended is Unavailable."""
    whole = max(1, round(seconds))
    if of.mysql:
        own = f"max_execution_time={max(1, round(seconds * 1000))}"
    else:
        own = f"max_statement_time={seconds:f}, idle_transaction_timeout={whole}"
    ask(conn, f"SET SESSION net_write_timeout={whole}, {own}")


def stream(conn: Connection, sql: str) -> Iterator[memoryview]:
    """Run a SELECT and give its rows in the binary protocol as they come: what follows the column definitions, cut
    anywhere.

    A block is good until the next one is asked for. The caller finds the end of the rows (an EOF or ERR packet) in the
    bytes and asks for no more after it; a connection whose rows were not all taken is of no further use. The statement
    stays prepared as long as the connection. Errors come as PyMySQL's own: wrap each step in `seam`.
    """
    conn._execute_command(COMMAND.COM_STMT_PREPARE, sql)  # type: ignore[attr-defined]
    statement, columns = struct.unpack_from("<xIH", conn._read_packet().get_all_data())  # type: ignore[no-untyped-call]
    for _ in range(columns + 1):  # the column definitions, and the EOF packet after them
        conn._read_packet()  # type: ignore[no-untyped-call]
    conn._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1))  # type: ignore[attr-defined]
    columns = conn._read_packet().read_length_encoded_integer()  # type: ignore[no-untyped-call]
    for _ in range(columns + 1):
        conn._read_packet()  # type: ignore[no-untyped-call]
    begun = memoryview(conn._rfile.read1(-1))  # type: ignore[attr-defined]  # what was read with them, or what follows
    yield from (begun[at : at + _BLOCK_BYTES] for at in range(0, len(begun), _BLOCK_BYTES))
    wire: socket.socket = conn._sock  # type: ignore[attr-defined]
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while size := wire.recv_into(buffer):
        yield buffer[:size]
        gather(wire)
    raise EOFError("the server closed the connection within a result")


def gather(wire: socket.socket) -> None:
    """Pause for 2 ms if nothing is there to receive, so that what comes next comes together.

    A server sends 16 KiB of a result at a time, and of a binlog each event by itself. Whoever waits for each wakes up
    6,000 times for a million rows, which takes a third of the reader's CPU and a tenth of the server's.
    """
    ready = select.poll()
    ready.register(wire, select.POLLIN)
    if not ready.poll(0):
        time.sleep(_PAUSE_SECONDS)


# --- the server: identity and positions -------------------------------------------------------------------------------


def server(conn: Connection) -> Server:
    """Ask who the server is; at each connect, since another server may answer at the same address."""
    (version, server_id, names), *_ = ask(conn, "SELECT @@version, @@server_id, @@lower_case_table_names")
    folds_case = names != "0"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if "mariadb" in version.lower():
        known = variables(conn, "server_uid", "hostname", "port", "datadir", "binlog_legacy_event_pos")
        uid = known.get("server_uid") or "{hostname}:{port}:{datadir}".format(**known)
        identity = f"{server_id}-{uid}"
        return Server(
            flavour="mariadb",
            version=numbers,
            identity=identity,
            gtid=True,
            folds_case=folds_case,
            states_ends="binlog_legacy_event_pos" not in known,
        )
    known = variables(conn, "server_uuid", "gtid_mode")
    gtid = known.get("gtid_mode", "OFF").upper() == "ON"
    identity = known["server_uuid"]
    return Server(flavour="mysql", version=numbers, identity=identity, gtid=gtid, folds_case=folds_case)


def variables(conn: Connection, *names: str) -> dict[str, str]:
    """The global variables of those names that the server has, by lower-case name."""
    marks = ", ".join(["%s"] * len(names))
    found = ask(conn, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name.lower(): value for name, value in found}


def _log_status(conn: Connection, of: Server) -> tuple[str, ...]:
    found = ask(conn, _show_log_status(of))
    if not found:
        raise ConfigError("The server writes no binlog (log_bin is off); start it with log_bin")
    row: tuple[str, ...] = found[0]
    return row


def _show_log_status(of: Server) -> str:
    return "SHOW BINARY LOG STATUS" if of.mysql and of.version >= (8, 2) else "SHOW MASTER STATUS"


def flushed_position(conn: Connection, of: Server) -> FilePosition:
    """The end of the binlog as flushed.

    A high watermark, never a low one: it shows transactions that the engine has not committed yet (measured: ahead of
    the next SELECT in nearly every second try on MySQL 9.7 under load).
    """
    file, offset, *_ = _log_status(conn, of)
    return FilePosition(file, int(offset))


def gtid_executed(conn: Connection) -> GtidSet:
    """MySQL's `@@gtid_executed`, which grows when the engine commits: a low watermark."""
    return GtidSet.parse(ask(conn, "SELECT @@GLOBAL.gtid_executed")[0][0])


def gtid_purged(conn: Connection) -> GtidSet:
    """The GTIDs whose transactions the binlog no longer holds."""
    return GtidSet.parse(ask(conn, "SELECT @@GLOBAL.gtid_purged")[0][0])


def previous_gtids(conn: Connection, file: str) -> str:
    """MySQL: the GTIDs of all transactions before a binlog file, as the file itself says."""
    events = ask(conn, "SHOW BINLOG EVENTS IN %s LIMIT 2", (file,))
    return next((str(GtidSet.parse(event[5])) for event in events if event[2] == "Previous_gtids"), "")


def event_at(conn: Connection, at: FilePosition) -> str | None:
    """The type of the event that begins at a place of the binlog; None if none begins there."""
    try:
        events = ask(conn, "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (at.file, at.offset))
    except ProtocolError:  # the server's word for "no event begins there"
        return None
    return next((event[2] for event in events if int(event[1]) == at.offset), None)


def clock(conn: Connection) -> int:
    """The server's time now, in microseconds since 1970."""
    seconds, _, fraction = str(ask(conn, "SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]).partition(".")
    return int(seconds) * 1_000_000 + int(fraction.ljust(6, "0"))


def binlog_gtid_pos(conn: Connection, at: FilePosition) -> str | None:
    """MariaDB: the GTID position that belongs to a place in the binlog; None if there is no event boundary there."""
    found = ask(conn, "SELECT BINLOG_GTID_POS(%s, %s)", (at.file, at.offset))[0][0]
    return None if found is None else str(MariaGtid.parse(found))


def binlogs(conn: Connection) -> list[FilePosition]:
    """The binlog files that are still there, oldest first, each with its size."""
    return [FilePosition(row[0], int(row[1])) for row in ask(conn, "SHOW BINARY LOGS")]


def first_position(conn: Connection, of: Server) -> Position:
    """The beginning of the oldest binlog file (`start: earliest`)."""
    at = FilePosition(binlogs(conn)[0].file, FIRST_OFFSET)
    gtids = str(gtid_purged(conn)) if of.mysql and of.gtid else ""
    if not of.mysql:
        gtids = binlog_gtid_pos(conn, at) or ""
    return Position(server=of.identity, file=at.file, offset=at.offset, gtids=gtids)


def file_start(conn: Connection, of: Server) -> FilePosition:
    """The start of the binlog file in use: everything in the files before it is committed in the engine and visible.

    The server itself rests on this: before it begins a file it waits until every transaction of the old one is
    committed, since after a crash it looks for prepared transactions in the last file only.
    """
    return FilePosition(flushed_position(conn, of).file, FIRST_OFFSET)


def flushed(config: PipelineConfig) -> High:
    """The flushed end of a pipeline's source now, on a connection of its own."""
    with closing(connect(Source.of(config.source))) as conn:
        of = server(conn)
        at = flushed_position(conn, of)
    return High(server=of.identity, file=at.file, offset=at.offset)


def current_position(conn: Connection, of: Server) -> Position:
    """A position from which on nothing is missing that a SELECT did not see before this call (`start: latest`).

    MySQL with GTIDs: `@@gtid_executed`, and the start of the file in use, from which events in that set are passed
    over. Elsewhere the flushed position.
    """
    if of.mysql and of.gtid:
        at = file_start(conn, of)
        return Position(server=of.identity, file=at.file, offset=at.offset, gtids=str(gtid_executed(conn)))
    at = flushed_position(conn, of)
    return position_at(conn, of, at)


def position_at(conn: Connection, of: Server, at: FilePosition) -> Position:
    """The position at a place that lies between two transactions; SourceLost if there is no such place (any more)."""
    gtids = ""
    if not of.mysql:
        found = binlog_gtid_pos(conn, at)
        if found is None:
            raise SourceLost(
                f"The binlog has no event that begins or ends at {at}; give a place between two transactions"
            )
        gtids = found
    return Position(server=of.identity, file=at.file, offset=at.offset, gtids=gtids)


def verify_position(conn: Connection, of: Server, at: Position) -> None:
    """SourceLost unless this server can go on from `at`: the same history, not purged. At each connect of a cursor.

    With MySQL's GTIDs the set must lie within `@@gtid_executed` and hold `@@gtid_purged`; else the server must be the
    same and the file still there and long enough. MariaDB is asked which GTID belongs to the place, which shows RESET
    MASTER and a new data folder. What can't be seen: RESET on MySQL without GTIDs, once the new file of that number
    is long enough.
    """
    executed = at.executed
    if of.mysql and of.gtid and isinstance(executed, GtidSet):
        if not executed <= gtid_executed(conn):
            raise SourceLost(
                f"The server lacks transactions that were taken from it ({at.gtids}): it was restored from a backup,"
                " its binlog was reset, or it is another one; point the pipeline at the right server, or start it again"
            )
        if not gtid_purged(conn) <= executed:
            raise SourceLost(
                f"The binlog after {at.gtids} is purged; the tables must be read again (keep binlogs longer:"
                " binlog_expire_logs_seconds)"
            )
        return
    if at.server != of.identity:
        if isinstance(executed, MariaGtid):
            return  # a fail-over: the server itself refuses a GTID position that it does not have
        raise SourceLost(
            f"The source changed from server {at.server} to {of.identity} and has no GTIDs to find the place by;"
            " point the pipeline at the old server, or start it again"
        )
    *_, end = listed = binlogs(conn)
    if at.file:
        _not_past(end, at)
    files = {one.file: one for one in listed}
    if at.file not in files:
        raise SourceLost(
            f"The binlog file {at.file} is purged; the tables must be read again (keep binlogs longer:"
            " binlog_expire_logs_seconds)"
        )
    if files[at.file] < at.file_position:
        raise SourceLost(
            f"The binlog file {at.file} ends before {at.offset}, which was read from it: the binlog was reset;"
            " the tables must be read again"
        )
    if not of.mysql and at.gtids and (binlog_gtid_pos(conn, at.file_position) or "") != at.gtids:
        raise SourceLost(
            f"{at.file_position} is not the place of GTID {at.gtids} any more: the binlog was reset; the tables"
            " must be read again"
        )


def verify_end(conn: Connection, of: Server, at: Position) -> None:
    """SourceLost if the binlog ends before `at`, to which it was read. A dump that goes on does not tell.

    A position of GTIDs alone, without a file, has nothing to compare.
    """
    if at.file and at.server == of.identity:
        _not_past(flushed_position(conn, of), at)


def _not_past(end: FilePosition, at: Position) -> None:
    if end < at.file_position:
        raise SourceLost(
            f"The binlog ends at {end}, before {at.file_position}, to which it was read: it was reset, or lost its end"
            " in a crash; the tables must be read again"
        )


# --- watermarks -------------------------------------------------------------------------------------------------------


def low_at(conn: Connection, of: Server, at: FilePosition) -> Low:
    """The low watermark of now, with a place that was taken before: from there on all is found that MySQL's executed
    GTIDs lack. Without GTIDs the place alone decides."""
    gtids = str(gtid_executed(conn)) if of.mysql and of.gtid else ""
    return Low(server=of.identity, file=at.file, offset=at.offset, gtids=gtids)


def begin_snapshot(conn: Connection) -> FilePosition:
    """MariaDB: begin a transaction that sees exactly what was committed at the position returned."""
    begin_reading(conn)
    found = {name.lower(): value for name, value in ask(conn, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    if not found.get("binlog_snapshot_file"):
        raise ConfigError("The server writes no binlog (log_bin is off); start it with log_bin")
    return FilePosition(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))


def begin_reading(conn: Connection) -> None:
    """Begin a transaction that sees what is committed now, whatever is committed later."""
    ask(conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT")


def begin_reading_between(conn: Connection, of: Server) -> tuple[GtidSet, FilePosition]:
    """MySQL: `gtid_executed`, `begin_reading` and `flushed_position`, one right after the other.

    They are one text, so that only the server's own time lies between them, however long our messages take.
    """
    with seam(f"{_text(conn.user)}@{conn.host}:{conn.port}"), conn.cursor() as cursor:
        conn._execute_command(0x1B, b"\0\0")  # type: ignore[attr-defined]  # several statements in a text, from here on
        conn._read_packet()  # type: ignore[no-untyped-call]
        cursor.execute(
            f"SELECT @@GLOBAL.gtid_executed; START TRANSACTION WITH CONSISTENT SNAPSHOT; {_show_log_status(of)}"
        )
        ((gtids,),) = cursor.fetchall()
        cursor.nextset()
        cursor.nextset()
        ((file, offset, *_),) = cursor.fetchall()
    return GtidSet.parse(gtids), FilePosition(file, int(offset))


def end_snapshot(conn: Connection) -> None:
    """End the transaction that one of these began, if there is one."""
    ask(conn, "COMMIT")


def xa_prepared(conn: Connection) -> int | None:
    """How many XA transactions stand prepared: their rows are in the binlog, and no SELECT sees them yet. None if
    MySQL does not tell us (XA_RECOVER_ADMIN; MariaDB tells everybody)."""
    try:
        return len(ask(conn, "XA RECOVER"))
    except CutlineError as error:
        if isinstance(error.__cause__, pymysql.MySQLError) and error.__cause__.args[0] in _NO_XA_RECOVER:
            return None
        raise


def unseen_xa(conn: Connection) -> str | None:
    """What is not covered where prepared XA transactions are not told to us, as one sentence; None if they are."""
    if xa_prepared(conn) is not None:
        return None
    return (
        "The server does not tell which XA transactions stand prepared, so one that is prepared while a table's"
        " snapshot begins is found only in the binlog, and the pipeline stops if it is purged there; if XA is used,"
        " GRANT XA_RECOVER_ADMIN ON *.* to the user"
    )


def xa_prepares(conn: Connection) -> int:
    """How many XA PREPARE the server has run; unchanged over a while, none was prepared in it."""
    return int(ask(conn, "SHOW GLOBAL STATUS LIKE 'Com_xa_prepare'")[0][1])


def threads_running(conn: Connection) -> int:
    """How many threads of the server are at work, the one that answers this included."""
    return int(ask(conn, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(conn: Connection) -> list[str]:
    """Every table that we may see, as "db.table", sorted; no views, none of the server's own."""
    marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
    found = ask(
        conn,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
        f" WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN ({marks})",
        SYSTEM_SCHEMAS,
    )
    return sorted(f"{database}.{table}" for database, table in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAsked:
    """A table to be described, and the columns that table_options names for it."""

    table_id: str
    identity: tuple[str, ...] = ()
    chunk_by: tuple[str, ...] = ()


_ONE_BY_ONE = 20
_BATCH_NAMES = 1000


def _of_tables(conn: Connection, sql: str, table_ids: Iterable[str]) -> dict[str, list[Any]]:
    """The rows that a query of the catalogue has for each of these tables; its first two columns, which are left out,
    are the table's database and name, and `{tables}` stands where it says which.

    Few tables are asked for one by one, which both servers look up; many of a database together, for which MariaDB
    looks through all of it. Both compare names there without case, so rows of others may come, which are dropped.
    """
    found: dict[str, list[Any]] = {table_id: [] for table_id in table_ids}
    databases: dict[str, list[str]] = {}
    for table_id in found:
        database, table = split_table_id(table_id)
        databases.setdefault(database, []).append(table)
    for database, names in databases.items():
        step = 1 if len(names) <= _ONE_BY_ONE else _BATCH_NAMES
        for at in range(0, len(names), step):
            some = names[at : at + step]
            marks = ", ".join(["%s"] * len(some))
            where = "TABLE_SCHEMA = %s AND TABLE_NAME " + (f"IN ({marks})" if step > 1 else "= %s")
            for schema, name, *row in ask(conn, sql.replace("{tables}", where), (database, *some)):
                if (rows := found.get(f"{schema}.{name}")) is not None:
                    rows.append(row)
    return found


@dataclass(slots=True, kw_only=True)
class _Catalogue:
    """What information_schema says of some tables: of each its own row (none: it is not there, or hidden), its columns
    and the parts of its unique indexes."""

    tables: dict[str, list[Any]]
    columns: dict[str, list[Any]]
    unique: dict[str, list[Any]]

    @classmethod
    def read(cls, conn: Connection, table_ids: Sequence[str]) -> _Catalogue:
        """Ask for all of it: three questions, however many tables of a database there are."""
        tables = _of_tables(
            conn,
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, AVG_ROW_LENGTH, TABLE_COLLATION"
            " FROM information_schema.TABLES WHERE {tables} AND TABLE_TYPE <> 'VIEW'",
            table_ids,
        )
        columns = _of_tables(
            conn,
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, EXTRA"
            " FROM information_schema.COLUMNS WHERE {tables} ORDER BY TABLE_NAME, ORDINAL_POSITION",
            (table_id for table_id, rows in tables.items() if rows),
        )
        unique = _of_tables(
            conn,
            "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE"
            " FROM information_schema.STATISTICS WHERE {tables} AND NON_UNIQUE = 0"
            " ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
            columns,
        )
        return cls(tables=tables, columns=columns, unique=unique)


def table_schema(conn: Connection, table_id: str, identity: Sequence[str] = ()) -> TableSchema:
    """What the table looks like now, field ids 1..n, `key` empty without identity. NextGeneration if it is gone.

    `identity`: columns that a person vouches for; they are the key if none is declared.
    """
    known = _Catalogue.read(conn, [table_id])
    if not known.tables[table_id] or not known.columns[table_id]:
        raise NextGeneration(f"There is no table {table_id} (any more), or its SELECT was revoked", table_id)
    return _schema(known, table_id, identity)[0]


def _schema(known: _Catalogue, table_id: str, identity: Sequence[str]) -> tuple[TableSchema, str | None]:
    """The table's schema, and why it has no identity if it has none."""
    described = known.columns[table_id]
    element_id = len(described)
    columns = []
    for field_id, (name, kind, nullable, charset, extra) in enumerate(described, start=1):
        vector = parse_type(kind).base == "vector"
        element_id += vector
        columns.append(
            Column(
                name=name,
                field_id=field_id,
                mysql_type=kind,
                nullable=nullable == "YES",
                charset=charset,
                generated="GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper(),
                element_id=element_id if vector else None,
            )
        )
    key, unique, fault = _identity(table_id, known.unique[table_id])
    if identity and not key:
        key, fault = _named(table_id, columns, "identity", identity)
    charset = (known.tables[table_id][0][-1] or "utf8mb4").partition("_")[0]
    return TableSchema(
        table_id=table_id,
        columns=tuple(columns),
        key=key,
        last_field_id=element_id,
        charset=charset,
        unique_key=unique,
    ), fault


def _unseen(conn: Connection, table_id: str) -> SourceLost:
    """Why the catalogue doesn't show a table: it is gone, or hidden from us, which the table's own answer tells."""
    try:
        ask(conn, f"SELECT 1 FROM {quoted_table(table_id)} LIMIT 0", table=table_id)
    except SourceLost as error:
        return error
    return NoTable(f"There is no table {table_id}, but a view, or it was made just now", table_id)


def _confused(conn: Connection, table_id: str, columns: Sequence[Column]) -> list[str]:
    """Say which columns can't be read by their names, as sentences.

    MariaDB looks a name up by a hash where a table has over 32 columns, and takes some letters there for each other
    that it holds apart elsewhere (the micro sign and the Greek mu, a final sigma and another): a SELECT would give the
    values of the wrong column.
    """
    if all(column.name.isascii() for column in columns):
        return []
    names = ", ".join(quoted(column.name) for column in columns)
    with seam(table_id, table_id), conn.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {quoted_table(table_id)} LIMIT 0")
        given = [str(field.org_name) for field in cast(Any, cursor)._result.fields]
    return [
        f"{table_id} has the columns {column.name} and {name}, and the server gives the latter where the former is"
        " named; rename one of them"
        for column, name in zip(columns, given, strict=True)
        if column.name != name
    ]


def _named(
    table_id: str, columns: Sequence[Column], option: str, names: Sequence[str]
) -> tuple[tuple[str, ...], str | None]:
    """The columns that a table option names, as the table spells them; none, and the fault, if they won't do."""
    known = {column.name.lower(): column for column in columns}
    found = [known.get(name.lower()) for name in names]
    for name, column in zip(names, found, strict=True):
        if column is None or column.nullable:
            what = "no column" if column is None else "NULLs allowed in"
            return (), f"{table_id} has {what} {name}, which {option} names in table_options; correct that"
    return tuple(column.name for column in found if column is not None), None


def _identity(table_id: str, parts_of_unique: Sequence[Any]) -> tuple[tuple[str, ...], bool, str | None]:
    """The key, whether it is another than the primary one, and why there is none."""
    indexes: dict[str, list[tuple[str | None, str | None, str | None]]] = {}
    for index, column, part, nullable in parts_of_unique:
        indexes.setdefault(index, []).append((column, part, nullable))
    not_null = {
        index: parts
        for index, parts in indexes.items()
        if all(column is not None and nullable != "YES" for column, _, nullable in parts)
    }
    whole = {index: parts for index, parts in not_null.items() if all(part is None for _, part, _ in parts)}
    if whole:
        best = min(whole, key=lambda index: (index != "PRIMARY", len(whole[index]), index))
        return tuple(str(column) for column, _, _ in whole[best]), best != "PRIMARY", None
    fault = f"{table_id} has no identity; add a primary key, or a unique key over NOT NULL columns"
    if not_null:
        fault = (
            f"{table_id} has no identity: its key {min(not_null)} covers only a prefix of a column;"
            " add a primary key, or a unique key over whole NOT NULL columns"
        )
    return (), False, fault


def index_of(conn: Connection, table_id: str, columns: Sequence[str], *, least: int = 1) -> str | None:
    """The index that gives rows in the order of these columns, the primary key before others; None without one.

    Not one that the optimizer does not see (invisible; MariaDB: ignored), which can't be forced. It may end after
    `least` of them: InnoDB goes on with the primary key by itself.
    """
    database, table = split_table_id(table_id)
    found: dict[str, list[str]] = {}
    for index, column, part, owner in ask(
        conn,
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, TABLE_NAME FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE = 'BTREE'"
        " /*!80000 AND IS_VISIBLE = 'YES' */ /*M!100600 AND IGNORED = 'NO' */ ORDER BY INDEX_NAME, SEQ_IN_INDEX",
        (database, table),
    ):
        if owner == table:
            found.setdefault(index, []).append(column if part is None else "")
    fitting = [
        index
        for index, parts in found.items()
        if len(parts) >= least and all(part == column for part, column in zip(parts, columns, strict=False))
    ]
    return min(fitting, key=lambda index: (index != "PRIMARY", -len(found[index]), index), default=None)


def describe(
    conn: Connection,
    of: Server,
    table_id: str,
    *,
    keyless: bool = False,
    identity: Sequence[str] = (),
    chunk_by: Sequence[str] = (),
    unlogged_cascades: bool = False,
) -> TableInfo:
    """All that is to be known of a table before it is captured: `describe_all` of one table, whose error is raised."""
    asked = TableAsked(table_id=table_id, identity=tuple(identity), chunk_by=tuple(chunk_by))
    (found,) = describe_all(conn, of, [asked], keyless=keyless, unlogged_cascades=unlogged_cascades).values()
    if isinstance(found, SourceLost):
        raise found
    return found


def describe_all(
    conn: Connection,
    of: Server,
    tables: Sequence[TableAsked],
    *,
    keyless: bool = False,
    unlogged_cascades: bool = False,
) -> dict[str, TableInfo | SourceLost]:
    """All that is to be known of tables before they are captured, by name. Instead of that it is NoTable where there is
    no such table (a view is none), NextGeneration where it is being changed, SourceLost where we may not look at it.

    With `keyless` it is no fault to have no identity, where the server can say which rows a SELECT saw; with
    `unlogged_cascades`, that a table changes by a foreign key without the binlog telling.
    """
    known = _Catalogue.read(conn, [one.table_id for one in tables])
    engines = _transactional(conn) if tables else frozenset()
    cascades = not unlogged_cascades and bool(tables) and _hides_cascades(conn, of)
    found: dict[str, TableInfo | SourceLost] = {}
    for one in tables:
        try:
            found[one.table_id] = _described(conn, of, known, one, engines, keyless=keyless, cascades=cascades)
        except SourceLost as error:
            found[one.table_id] = error
    return found


def _described(
    conn: Connection,
    of: Server,
    known: _Catalogue,
    one: TableAsked,
    engines: frozenset[str],
    *,
    keyless: bool,
    cascades: bool,
) -> TableInfo:
    table_id = one.table_id
    if not known.tables[table_id] or not known.columns[table_id]:
        raise _unseen(conn, table_id)
    kind, engine, rows, row_bytes, _ = known.tables[table_id][0]
    schema, unidentified = _schema(known, table_id, one.identity)
    faults = []
    if unidentified is not None and (one.identity or not keyless):
        faults.append(unidentified)
    elif unidentified is not None and of.mysql and not of.gtid:
        faults.append(f"{unidentified}; or set gtid_mode=ON, which keyless: append needs on MySQL")
    first, fault = _named(table_id, schema.columns, "chunk_by", one.chunk_by if schema.key else ())
    asked = first or (schema.key if one.identity else ())
    if fault is None and asked and index_of(conn, table_id, asked, least=len(asked)) is None:
        fault = f"{table_id} has no index that begins with {', '.join(asked)}, to be read by; add one"
    faults += [fault] if fault is not None else []
    if kind == "SYSTEM VERSIONED":
        faults.append(
            f"{table_id} keeps its history (system versioning), which can't be captured; leave it out of the list"
        )
    if (engine or "").lower() not in engines:
        faults.append(
            f"{table_id} has the engine {engine}, which has no transactions, so no consistent snapshot;"
            f" ALTER TABLE {quoted_table(table_id)} ENGINE=InnoDB, or leave it out of the list"
        )
    faults += _confused(conn, table_id, schema.columns)
    for column in schema.columns:
        try:
            arrow_type(column.mysql_type)
        except SourceLost as error:
            faults.append(f"{table_id}, column {column.name}: {error.cause}")
    if cascades:
        faults += _unlogged_cascades(conn, table_id)
    chunk_key = (*first, *(name for name in schema.key if name not in first))
    integer_key = len(chunk_key) == 1 and parse_type(schema.column(chunk_key[0]).mysql_type).base in _INTEGER_BASES
    return TableInfo(
        schema=schema,
        engine=engine or "",
        rows=int(rows or 0),
        row_bytes=int(row_bytes or 0),
        integer_key=integer_key,
        chunk_key=chunk_key,
        faults=tuple(faults),
    )


_INTEGER_BASES = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint"))


def _transactional(conn: Connection) -> frozenset[str]:
    found = ask(conn, "SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES'")
    return frozenset(engine.lower() for (engine,) in found)


_FOREIGN_KEY = re.compile(r"^\s+CONSTRAINT (\S+) FOREIGN KEY .* REFERENCES (.+?) \(.*\)(.*?),?$", re.MULTILINE)


def _hides_cascades(conn: Connection, of: Server) -> bool:
    # MySQL logs the child's rows since 9.6, unless InnoDB is told to cascade itself; MariaDB and older ones never.
    known = variables(conn, "innodb_native_foreign_keys") if of.mysql else {}
    return known.get("innodb_native_foreign_keys", "ON") != "OFF"


def _unlogged_cascades(conn: Connection, table_id: str) -> list[str]:
    # not from information_schema, which MariaDB leaves empty for a user that may only SELECT
    (_, created, *_), *_ = ask(conn, f"SHOW CREATE TABLE {quoted_table(table_id)}", table=table_id)
    return [
        f"{table_id} changes by the foreign key {found[1]} (from {found[2]}{found[3]}), which this server doesn't write"
        " to its binlog; make the key RESTRICT, leave the table out of the list, or set unlogged_cascades: allow"
        for found in _FOREIGN_KEY.finditer(created)
        if re.search(r"CASCADE|SET NULL|SET DEFAULT", found[3])
    ]


# --- preflight --------------------------------------------------------------------------------------------------------


def preflight(config: PipelineConfig, *, begun: bool = False) -> None:
    """Check the source of a pipeline before anything is written: ConfigError with every fault, each with its remedy.

    Faults are: an unknown host, a refused user, the server's settings, missing grants, a list of tables that matches
    nothing (unless the pipeline has `begun`: its tables may be dropped since). Unavailable if the server can't be
    reached now. Nothing is changed on it.
    """
    source = Source.of(config.source)
    with closing(connect(source)) as conn:
        chosen = config.select(tables(conn))
        found = faults(conn, tables=chosen)
        if not chosen and not begun:
            found.append(
                f"tables: {', '.join(config.tables)} matches none of the tables that {source} may see; correct the"
                " list, or GRANT SELECT on them"
            )
        of = server(conn)
        if config.snapshot.chunks == "exact" and of.mysql and not of.gtid:
            found.append("snapshot.chunks: exact needs GTIDs on MySQL; set gtid_mode=ON there, or use replay")
    if found:
        raise ConfigError(*found)


def faults(conn: Connection, *, tables: Sequence[str] = ()) -> list[str]:
    """Every fault of the server, our grants and the visibility of `tables`, each a sentence with its remedy."""
    found: list[str] = []
    of = server(conn)
    user = ask(conn, "SELECT CURRENT_USER()")[0][0]
    account = "@".join(f"'{part}'" for part in user.rsplit("@", 1))
    found += _settings(conn, of)
    if not any("log_bin" in fault for fault in found):
        found += _replication_grants(conn, of, account)
    for table_id in tables:
        found += _readable(conn, table_id, account)
    return found


def _settings(conn: Connection, of: Server) -> list[str]:
    wanted = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
    more = ("binlog_row_value_options", "binlog_order_commits", "log_slave_updates", "log_replica_updates")
    found = variables(conn, "log_bin", *wanted, *more)
    if found.get("log_bin", "OFF") != "ON":
        return ["The server writes no binlog (log_bin is off); start it with log_bin"]
    faults = []
    for name, value in wanted.items():
        is_now = found.get(name)
        if is_now is None and name == "binlog_row_metadata":
            faults.append(f"The server has no {name}: it is too old; use MySQL 8.0 or MariaDB 10.5 and newer")
        elif is_now is not None and is_now.upper() != value:
            faults.append(f"{name} is {is_now}, not {value}; SET GLOBAL {name} = '{value}' and let sessions reconnect")
    if found.get("binlog_row_value_options"):
        faults.append(
            "binlog_row_value_options is PARTIAL_JSON, so the binlog lacks whole JSON values;"
            " SET GLOBAL binlog_row_value_options = '' and let sessions reconnect"
        )
    if found.get("binlog_order_commits", "ON") == "OFF":
        # gtid_executed may then name a commit before one that it builds on, which no low watermark survives
        faults.append("binlog_order_commits is OFF, not ON; SET GLOBAL binlog_order_commits = 'ON'")
    logged = found.get("log_replica_updates", found.get("log_slave_updates", "ON"))
    if logged == "OFF" and _replicates(conn, of):
        name = "log_replica_updates" if "log_replica_updates" in found else "log_slave_updates"
        faults.append(
            f"The server is a replica and {name} is off, so its binlog lacks its source's changes; turn it on"
        )
    return faults


def _replicates(conn: Connection, of: Server) -> bool:
    if of.mysql:  # which has no such status variable since 8.0
        return bool(ask(conn, "SHOW REPLICA STATUS"))
    status = ask(conn, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slave_running', 'Slaves_running')")
    return any(value not in ("OFF", "0") for _, value in status)


def _replication_grants(conn: Connection, of: Server, account: str) -> list[str]:
    faults = []
    try:
        _, _, do_db, ignore_db, *_ = _log_status(conn, of)
        if do_db or ignore_db:
            faults.append(
                f"The server leaves databases out of its binlog (binlog-do-db={do_db}, binlog-ignore-db={ignore_db}),"
                " so their changes can't be seen; remove these options"
            )
    except ConfigError:
        grant = "REPLICATION CLIENT" if of.mysql else "BINLOG MONITOR"
        faults.append(f"{account} may not see the binlog's position; GRANT {grant} ON *.* TO {account}")
    if not _may_replicate(conn):
        faults.append(f"{account} may not read the binlog; GRANT REPLICATION SLAVE ON *.* TO {account}")
    return faults


def _may_replicate(conn: Connection) -> bool:
    """Register as a replica, which is over when the connection ends: no other question is the same on all servers."""
    # COM_REGISTER_SLAVE: server id, three empty strings (host, user, password), port, rank, source's id
    payload = struct.pack("<IBBBHII", 0xFFFF_FFFE, 0, 0, 0, 0, 0, 0)
    try:
        with seam(f"{conn.host}:{conn.port}"):
            conn._execute_command(0x15, payload)  # type: ignore[attr-defined]
            conn._read_packet()  # type: ignore[no-untyped-call]
    except ConfigError:
        return False
    return True


def _readable(conn: Connection, table_id: str, account: str) -> list[str]:
    database, _ = split_table_id(table_id)
    try:
        ask(conn, f"SELECT * FROM {quoted_table(table_id)} LIMIT 0", table=table_id)
    except SourceLost as error:
        if isinstance(error.__cause__, pymysql.MySQLError) and error.__cause__.args[0] in _NO_SELECT:
            return [f"{account} may not read {table_id}; GRANT SELECT ON {quoted(database)}.* TO {account}"]
        return [f"{table_id} can't be read: {error.cause}"]
    return []
