"""What a MySQL or MariaDB server is, and where its binlog stands: identity, GTIDs, positions, watermarks.

Each question to the server is one function. Their answers are only as safe as their docstrings state: a flushed
position runs ahead of what a SELECT can see, `@@gtid_executed` does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pymysql
from pymysql.constants import COMMAND, ER

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, CutlineError, PositionLost, ProtocolError, SourceLost
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, Low, Position
from cutline.services.sources.mysql.connection import Connection, address, ask, translate_errors

FIRST_OFFSET = 4
"""Where the first event of a binlog file begins."""

NO_BINLOG = Cause(Code.CONFIGURATION, "The server writes no binlog (log_bin is off)", "start it with log_bin")
_READ_AGAIN = "the tables must be read again (keep binlogs longer: binlog_expire_logs_seconds)"
_NO_XA_RECOVER = frozenset((ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.XAER_RMERR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The identity and the capabilities of a server.

    `identity` names one server history: MySQL's `@@server_uuid`; on MariaDB `@@server_id` with `@@server_uid` (a hash
    of network card and port; before 10.11.9 of host name, port and data folder). It stays the same over RESET MASTER,
    and on MariaDB over a new data folder: `verify_position` detects those by the binlog's content. `gtid`: every
    transaction has a GTID (always so on MariaDB). `folds_case`: table names are the same in upper and lower case.
    `states_ends`: each event of the binlog states where it ends; MariaDB from 11.8 on leaves that out inside a
    transaction, unless `binlog_legacy_event_pos` is on, which can be switched while the server runs.
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


def identify(conn: Connection) -> Server:
    """Ask the server for its identity; at each connect, since another server may answer at the same address."""
    # MariaDB ignores the comment.
    (version, server_id, lower_case, *own), *_ = ask(
        conn,
        "SELECT @@version, @@server_id, @@lower_case_table_names /*!50700 , @@server_uuid, @@GLOBAL.gtid_mode */",
    )
    folds_case = lower_case != "0"
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
    identity, gtid_mode = own or ("", "OFF")
    gtid = gtid_mode.upper() == "ON"
    return Server(flavour="mysql", version=numbers, identity=identity, gtid=gtid, folds_case=folds_case)


def variables(conn: Connection, *names: str) -> dict[str, str]:
    """Those of the named global variables that the server has, by lower-case name."""
    marks = ", ".join(["%s"] * len(names))
    found = ask(conn, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name.lower(): value for name, value in found}


def clock(conn: Connection) -> int:
    """The server's time now, in microseconds since 1970."""
    seconds, _, fraction = str(ask(conn, "SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]).partition(".")
    return int(seconds) * 1_000_000 + int(fraction.ljust(6, "0"))


def threads_running(conn: Connection) -> int:
    """How many threads of the server are at work, including the one that answers this."""
    return int(ask(conn, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])


def oldest_transaction_seconds(conn: Connection) -> float:
    """How long the oldest open transaction of this connection's user has been open, by the server; 0 if none is.

    Without PROCESS the server shows no transactions, but how long each of the user's statements runs: with autocommit,
    which every session of Cutline has, that is the same.
    """
    elsewhere = "id <> CONNECTION_ID() AND user = SUBSTRING_INDEX(USER(), '@', 1)"
    try:
        found = ask(
            conn,
            "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, trx_started, CONVERT_TZ(NOW(6), @@time_zone, 'SYSTEM'))) / 1e6"
            " FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id"
            f" WHERE {elsewhere}",
        )
    except ConfigError:
        found = ask(
            conn,
            f"SELECT MAX(time) FROM information_schema.processlist WHERE {elsewhere}"
            " AND command IN ('Query', 'Execute')",
        )
    return max(0.0, float(found[0][0] or 0.0))


def limit_statements(conn: Connection, server: Server, seconds: float) -> None:
    """Have the server end, after `seconds`: a statement on this connection, a write that we don't receive, and on
    MariaDB an idle transaction. A SELECT that the server ends raises Unavailable."""
    whole = max(1, round(seconds))
    if server.mysql:
        limits = f"max_execution_time={max(1, round(seconds * 1000))}"
    else:
        limits = f"max_statement_time={seconds:f}, idle_transaction_timeout={whole}"
    ask(conn, f"SET SESSION net_write_timeout={whole}, {limits}")


# --- binlog positions -------------------------------------------------------------------------------------------------


def log_status(conn: Connection, server: Server) -> tuple[str, ...]:
    """The row of SHOW BINARY LOG STATUS. ConfigError if the server writes no binlog, or the user may not ask."""
    found = ask(conn, _show_log_status(server))
    if not found:
        raise ConfigError(NO_BINLOG)
    row: tuple[str, ...] = found[0]
    return row


def _show_log_status(server: Server) -> str:
    return "SHOW BINARY LOG STATUS" if server.mysql and server.version >= (8, 2) else "SHOW MASTER STATUS"


def flushed_position(conn: Connection, server: Server) -> FilePosition:
    """The end of the binlog as flushed.

    A high watermark, never a low one: it covers transactions that the engine has not committed yet (measured on MySQL
    9.7 under load: in nearly every second try the next SELECT did not see all of them).
    """
    file, offset, *_ = log_status(conn, server)
    return FilePosition(file, int(offset))


def gtid_executed(conn: Connection) -> GtidSet:
    """MySQL's `@@gtid_executed`, which grows when the engine commits: a low watermark."""
    return GtidSet.parse(ask(conn, "SELECT @@GLOBAL.gtid_executed")[0][0])


def gtid_purged(conn: Connection) -> GtidSet:
    """The GTIDs whose transactions the binlog no longer holds."""
    return GtidSet.parse(ask(conn, "SELECT @@GLOBAL.gtid_purged")[0][0])


def previous_gtids(conn: Connection, file: str) -> str:
    """MySQL: the GTIDs of all transactions before a binlog file, from the file's own Previous_gtids event."""
    events = ask(conn, "SHOW BINLOG EVENTS IN %s LIMIT 2", (file,))
    return next((str(GtidSet.parse(event[5])) for event in events if event[2] == "Previous_gtids"), "")


def event_at(conn: Connection, at: FilePosition) -> str | None:
    """The type of the event that begins at this file and offset; None if none begins there."""
    try:
        events = ask(conn, "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (at.file, at.offset))
    except ProtocolError:  # the server's error for an offset at which no event begins
        return None
    return next((event[2] for event in events if int(event[1]) == at.offset), None)


def binlog_gtid_pos(conn: Connection, at: FilePosition) -> str | None:
    """MariaDB: the GTID position at this file and offset; None if no event begins or ends there."""
    found = ask(conn, "SELECT BINLOG_GTID_POS(%s, %s)", (at.file, at.offset))[0][0]
    return None if found is None else str(MariaGtid.parse(found))


def binlogs(conn: Connection) -> list[FilePosition]:
    """The binlog files that the server still has, oldest first, each with its size."""
    return [FilePosition(row[0], int(row[1])) for row in ask(conn, "SHOW BINARY LOGS")]


def first_position(conn: Connection, server: Server) -> Position:
    """The beginning of the oldest binlog file (`start: earliest`)."""
    at = FilePosition(binlogs(conn)[0].file, FIRST_OFFSET)
    gtids = str(gtid_purged(conn)) if server.mysql and server.gtid else ""
    if not server.mysql:
        gtids = binlog_gtid_pos(conn, at) or ""
    return Position(server=server.identity, file=at.file, offset=at.offset, gtids=gtids)


def file_start(conn: Connection, server: Server) -> FilePosition:
    """The start of the binlog file in use: all transactions in earlier files are committed in the engine and visible.

    The server itself relies on this: before it begins a file it waits until every transaction of the old one is
    committed, since after a crash it looks for prepared transactions in the last file only.
    """
    return FilePosition(flushed_position(conn, server).file, FIRST_OFFSET)


def current_position(conn: Connection, server: Server) -> Position:
    """A position from which a stream sends every change that no SELECT saw before this call (`start: latest`).

    MySQL with GTIDs: `@@gtid_executed`, and the start of the file in use, from which events in that set are skipped.
    Elsewhere the flushed position.
    """
    if server.mysql and server.gtid:
        at = file_start(conn, server)
        return Position(server=server.identity, file=at.file, offset=at.offset, gtids=str(gtid_executed(conn)))
    at = flushed_position(conn, server)
    return position_at(conn, server, at)


def position_at(conn: Connection, server: Server, at: FilePosition) -> Position:
    """The position at a file and offset between two transactions; SourceLost if the binlog has no event boundary
    there (any more)."""
    gtids = ""
    if not server.mysql:
        found = binlog_gtid_pos(conn, at)
        if found is None:
            raise SourceLost(
                Cause(
                    Code.PLACE,
                    f"The binlog has no event that begins or ends at {at}",
                    "name a position between two transactions",
                )
            )
        gtids = found
    return Position(server=server.identity, file=at.file, offset=at.offset, gtids=gtids)


def verify_position(conn: Connection, server: Server, at: Position) -> None:
    """SourceLost unless this server can continue from `at`: same history, not purged. At each connect of a cursor.

    With MySQL's GTIDs the set must lie within `@@gtid_executed` and contain `@@gtid_purged`; else the server must be
    the same, and the file still present and long enough. MariaDB is asked for the GTID at that file and offset, which
    detects RESET MASTER and a new data folder. Not detected: RESET on MySQL without GTIDs, once the new file of that
    number is long enough.
    """
    executed = at.executed
    if server.mysql and server.gtid and isinstance(executed, GtidSet):
        if not executed <= gtid_executed(conn):
            lost = PositionLost if at.server == server.identity else SourceLost
            raise lost(
                Cause(
                    Code.OTHER_SERVER,
                    f"The server lacks transactions that were read from it ({at.gtids}): it was restored from a backup,"
                    " its binlog was reset, or it is another server",
                    "point the pipeline at the right server and start it, or read the tables again",
                )
            )
        if not gtid_purged(conn) <= executed:
            raise PositionLost(Cause(Code.PURGED, f"The binlog after {at.gtids} is purged", _READ_AGAIN))
        return
    if at.server != server.identity:
        if isinstance(executed, MariaGtid):
            return  # a failover: the server itself refuses a GTID position that it does not have
        raise SourceLost(
            Cause(
                Code.OTHER_SERVER,
                f"The source changed from server {at.server} to {server.identity}, and without GTIDs the position can't"
                " be found there",
                "point the pipeline at the old server and start it, or read the tables again",
            )
        )
    *_, end = listed = binlogs(conn)
    if at.file:
        _verify_not_past(end, at)
    files = {file.file: file for file in listed}
    if at.file not in files:
        raise PositionLost(Cause(Code.PURGED, f"The binlog file {at.file} is purged", _READ_AGAIN))
    if files[at.file] < at.file_position:
        raise PositionLost(
            Cause(
                Code.PURGED,
                f"The binlog file {at.file} ends before {at.offset}, which was read from it: the binlog was reset",
                "the tables must be read again",
            )
        )
    if not server.mysql and at.gtids and (binlog_gtid_pos(conn, at.file_position) or "") != at.gtids:
        raise PositionLost(
            Cause(
                Code.PURGED,
                f"{at.file_position} is not the place of GTID {at.gtids} any more: the binlog was reset",
                "the tables must be read again",
            )
        )


def verify_end(conn: Connection, server: Server, at: Position) -> None:
    """SourceLost if the binlog ends before `at`, up to which it was read: a dump that continues does not report that.

    A position of GTIDs alone, without a file, has nothing to compare.
    """
    if at.file and at.server == server.identity:
        _verify_not_past(flushed_position(conn, server), at)


def _verify_not_past(end: FilePosition, at: Position) -> None:
    if end < at.file_position:
        raise PositionLost(
            Cause(
                Code.PURGED,
                f"The binlog ends at {end}, before {at.file_position}, up to which it was read: it was reset, or lost"
                " its end in a crash",
                "the tables must be read again",
            )
        )


# --- watermarks -------------------------------------------------------------------------------------------------------


def low_at(conn: Connection, server: Server, at: FilePosition) -> Low:
    """The low watermark of now. `at` was taken before: reading the binlog from there finds every transaction that
    MySQL's executed GTIDs lack. Without GTIDs `at` alone is the watermark."""
    gtids = str(gtid_executed(conn)) if server.mysql and server.gtid else ""
    return Low(server=server.identity, file=at.file, offset=at.offset, gtids=gtids)


def begin_snapshot(conn: Connection) -> FilePosition:
    """MariaDB: begin a transaction that sees exactly what was committed at the position returned."""
    begin_reading(conn)
    found = {name.lower(): value for name, value in ask(conn, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    if not found.get("binlog_snapshot_file"):
        raise ConfigError(NO_BINLOG)
    return FilePosition(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))


def begin_reading(conn: Connection) -> None:
    """Begin a transaction that sees what is committed now, and nothing that is committed later."""
    ask(conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT")


def begin_reading_between(conn: Connection, server: Server) -> tuple[GtidSet, FilePosition]:
    """MySQL: `gtid_executed`, `begin_reading` and `flushed_position` in one query text, without a network round trip in
    between."""
    with translate_errors(address(conn)), conn.cursor() as cursor:
        # MYSQL_OPTION_MULTI_STATEMENTS_ON: from here on a query text may have several statements
        conn._execute_command(COMMAND.COM_SET_OPTION, b"\0\0")  # type: ignore[attr-defined]
        conn._read_packet()  # type: ignore[no-untyped-call]
        cursor.execute(
            f"SELECT @@GLOBAL.gtid_executed; START TRANSACTION WITH CONSISTENT SNAPSHOT; {_show_log_status(server)}"
        )
        ((gtids,),) = cursor.fetchall()
        cursor.nextset()
        cursor.nextset()
        ((file, offset, *_),) = cursor.fetchall()
    return GtidSet.parse(gtids), FilePosition(file, int(offset))


def end_snapshot(conn: Connection) -> None:
    """End the transaction that one of the three functions above began, if one is open."""
    ask(conn, "COMMIT")


# --- XA transactions --------------------------------------------------------------------------------------------------


def xa_prepared(conn: Connection) -> int | None:
    """How many XA transactions are prepared: their rows are in the binlog, and no SELECT sees them yet. None if the
    user may not ask (MySQL requires XA_RECOVER_ADMIN, MariaDB nothing)."""
    try:
        return len(ask(conn, "XA RECOVER"))
    except CutlineError as error:
        if isinstance(error.__cause__, pymysql.MySQLError) and error.__cause__.args[0] in _NO_XA_RECOVER:
            return None
        raise


def unseen_xa(conn: Connection) -> str | None:
    """A warning, as one sentence, if the user may not list prepared XA transactions; else None."""
    if xa_prepared(conn) is not None:
        return None
    return (
        "The user may not list prepared XA transactions, so one that is prepared while a table's snapshot begins is"
        " found only in the binlog, and the pipeline stops if it is purged there; if XA is used, GRANT XA_RECOVER_ADMIN"
        " ON *.* to the user"
    )


def xa_prepares(conn: Connection) -> int:
    """How many XA PREPARE the server has run since it started: the same count twice means none in between."""
    return int(ask(conn, "SHOW GLOBAL STATUS LIKE 'Com_xa_prepare'")[0][1])
