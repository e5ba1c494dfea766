"""One dump connection: registers as a replica, asks for the binlog from a position on, and receives its bytes.

Sources: MySQL's and MariaDB's manuals, "Replication Protocol".
"""

from __future__ import annotations

import re
import socket
import struct
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress

from pymysql.constants import COMMAND, ER

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, ServerIdTaken, SourceLost, SourceRefused, Unavailable
from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.positions import FilePosition, Position
from cutline.services.sources.mysql.binlog.scanner import Scanner
from cutline.services.sources.mysql.connection import PAUSE_SECONDS, Connection, gather, translate_errors
from cutline.services.sources.mysql.server import (
    FIRST_OFFSET,
    Server,
    binlog_gtid_pos,
    gtid_executed,
    identify,
    position_at,
    verify_end,
    verify_position,
)
from cutline.services.sources.mysql.watermark import COMMIT_SECONDS, Commits

_FIRST_EVENT = re.compile(r"the first event '[^']*' at \d+, ")  # where the dump began, which does not matter
UP_TO_END = 1
"""A flag of COM_BINLOG_DUMP (BINLOG_DUMP_NON_BLOCK): the server ends the dump where the binlog ends."""
_SEND_STATEMENTS = 2  # another (BINLOG_SEND_ANNOTATE_ROWS_EVENT): MariaDB sends the text of each statement too
TRICKLE_BYTES = 1 << 14
TRICKLE_SECONDS = 0.01
"""The pause before a receive if the last one brought fewer bytes. With 2 ms, a reader of 1,000 small transactions a
second spent a quarter of its CPU time on waking up."""
MAX_DUMP_OFFSET = (1 << 32) - 1
"""COM_BINLOG_DUMP has 32 bits for the offset."""
UNREAD_SECONDS = 60
"""For how long the server may wait for us to take its bytes; its own default, and not the hour of other sessions. If a
reader's host is gone and no packet says so, its dump hangs in a write, and MariaDB begins no other dump with its server
id meanwhile, though it has killed the old one. A reader that takes no bytes for longer begins its dump anew."""
_SAME_SERVER_ID = 4052  # MariaDB's error for the older of two dumps with one server id; its text differs by version


class Dump:
    """One dump connection: the `BinlogBytes` (bytes.py) of a source.

    `connection` is open to `server`, and takes queries until the dump begins; `connect` opens others. `server_id` must
    differ from that of every other replica of the source. `commits` outlives a dump: transactions that the dumps of one
    cursor have delivered and the server has not committed.
    """

    _got = 0  # bytes of the last receive

    def __init__(
        self,
        connection: Connection,
        server: Server,
        *,
        connect: Callable[[], Connection],
        server_id: int,
        heartbeat_seconds: float = 1.0,
        commits: Commits | None = None,
    ) -> None:
        self.server = server
        self._connection, self._connect, self._commits = connection, connect, commits or Commits()
        # seconds without a byte after which the server counts as unreachable
        self._silence = max(10.0, 5 * heartbeat_seconds)
        self._server_id, self._heartbeat = server_id, heartbeat_seconds
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
        self._heard = time.monotonic()

    @classmethod
    def open(
        cls,
        connect: Callable[[], Connection],
        *,
        server_id: int,
        heartbeat_seconds: float = 1.0,
        commits: Commits | None = None,
    ) -> Dump:
        """Connect to the source."""
        connection = connect()
        try:
            server = identify(connection)
        except BaseException:
            with suppress(Exception):
                connection._force_close()  # type: ignore[attr-defined]
            raise
        return cls(
            connection,
            server,
            connect=connect,
            server_id=server_id,
            heartbeat_seconds=heartbeat_seconds,
            commits=commits,
        )

    def begin(self, scanner: Scanner, after: Position) -> GtidSet | MariaGtid | None:
        """See `BinlogBytes`. SourceLost also if the source changed while a transaction was half taken."""
        server, connection, executed = self.server, self._connection, after.executed
        state = maria_state(connection, server, after)
        if state is None:
            self._await_commits(after)
            verify_position(connection, server, after)
            if not server.mysql and executed is None:
                # MariaDB's low watermarks have no GTIDs; begun from nothing, positions would name just the domains
                # read since
                executed = position_at(connection, server, after.file_position).executed
        elsewhere = not after.file or after.server != server.identity or after.offset > MAX_DUMP_OFFSET
        by_gtids = server.mysql and server.gtid and elsewhere
        if after.inside and after.server != server.identity:
            raise SourceLost(
                Cause(
                    Code.OTHER_SERVER,
                    f"The source changed to server {server.identity} while a transaction of {after.server} was half"
                    f" taken ({after})",
                    "restore a checkpoint that is between two transactions",
                )
            )
        if state is not None or by_gtids:
            scanner.start_at("", FIRST_OFFSET, after.rows)
        else:
            scanner.start_at(after.file, after.offset, after.rows)
        with translate_errors(f"the binlog at {after}"):
            if by_gtids:
                greet(connection, server, self._server_id, self._heartbeat, None)
                request_dump_gtid(connection, self._server_id, after.executed)
                self._listen()
            else:
                self.request(scanner, state=state)
        return executed

    def begin_at(self, scanner: Scanner, at: FilePosition) -> None:
        """See `BinlogBytes`."""
        scanner.start_at(at.file, at.offset)
        with translate_errors(f"the binlog at {at}"):
            self.request(scanner, flags=UP_TO_END)

    def request(self, scanner: Scanner, *, state: str | None = None, flags: int = 0) -> None:
        """Request the binlog from the scanner's position on, or after `state`, a GTID position of MariaDB's. Errors are
        PyMySQL's own.

        If events inside a transaction do not state where they end, the scanner adds up their sizes. So the dump must
        have every event of the file, also the statements' text, which a server sends only on request.
        """
        if not self.server.states_ends:
            flags |= _SEND_STATEMENTS
        if scanner.pos > MAX_DUMP_OFFSET:
            scanner.discard_before(scanner.pos)
        greet(self._connection, self.server, self._server_id, self._heartbeat, state)
        request_dump(self._connection, self._server_id, scanner.file, scanner.pos, flags)
        self._listen()

    def _await_commits(self, after: Position) -> None:
        """Unavailable (to be called again) while MySQL has not committed transactions that its dump has delivered."""
        server, connection, taken = self.server, self._connection, after.executed
        if not (server.mysql and server.gtid and isinstance(taken, GtidSet)):
            return
        verify_end(connection, server, after)  # transactions that a reset removed will never be committed
        executed = gtid_executed(connection)
        if self._commits.awaited(taken, executed, now=time.monotonic()):
            raise Unavailable(
                f"The server has not committed all of {after.gtids}, which its binlog delivered",
                f"does a semi-synchronous replica delay it? Cutline waits {COMMIT_SECONDS:.0f} s",
            )

    def check_end(self, position: Position) -> None:
        """See `BinlogBytes`."""
        with suppress(Unavailable, SourceRefused), closing(self._connect()) as connection:
            verify_end(connection, identify(connection), position)

    def _listen(self) -> None:
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._heard = time.monotonic()

    def close(self) -> None:
        """End the connection."""
        with suppress(Exception):
            self._connection._force_close()  # type: ignore[attr-defined]

    def receive(self, scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        """See `BinlogBytes`."""
        where = f"the binlog dump at {scanner.file}:{scanner.pos}"
        room = scanner.room()
        try:
            gather(self._socket, TRICKLE_SECONDS if leisurely and self._got < TRICKLE_BYTES else PAUSE_SECONDS)
            self._socket.settimeout(min(max(seconds, 0.001), self._silence))
            got = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError):
            if time.monotonic() - self._heard > self._silence:
                raise Unavailable(
                    f"The server has sent no heartbeat for {self._silence:.0f} s in {where}", "is it reachable?"
                ) from None
            return False
        except (OSError, ValueError) as error:
            raise Unavailable(f"The connection broke in {where} ({error})", "is the server up?") from error
        finally:
            room.release()
        self._got = got
        if not got:
            raise Unavailable(f"The server ended the connection in {where}", "is it up?")
        self._heard = time.monotonic()
        scanner.filled(got)
        return True

    def failure(self, scanner: Scanner) -> Exception:
        """See `BinlogBytes`."""
        packet = scanner.event.body
        where = f"{scanner.file}:{scanner.pos}"
        if packet[:1] != b"\xff" or len(packet) < 3:
            return Unavailable(
                f"The server ended the binlog dump at {where}", "is another replica using our server_id?"
            )
        code = int.from_bytes(packet[1:3], "little")
        text = packet[3:].decode(errors="replace")
        text = _FIRST_EVENT.sub("", text[6:] if text.startswith("#") else text)
        if code == ER.MASTER_FATAL_ERROR_READING_BINLOG and "server_uuid/server_id" not in text:
            return SourceLost(
                Cause(
                    Code.PURGED,
                    f"The server can't continue its binlog {scanner.where}: {text} ({code})",
                    "if it is purged or was reset, read the tables again from a new snapshot, and keep binlogs longer:"
                    " binlog_expire_logs_seconds",
                )
            )
        if code in (ER.ACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR):
            return ConfigError(
                f"The server refused the binlog: {text} ({code})", "GRANT REPLICATION SLAVE ON *.* to the user"
            )
        if code == _SAME_SERVER_ID or "server_uuid/server_id" in text:
            return ServerIdTaken(
                f"Another client reads the binlog with the server id {self._server_id}, so the server ended our dump"
                f" at {where}",
                "set source.server_id to a number that no replica of this server has",
            )
        return Unavailable(f"The server ended the binlog dump at {where}: {text} ({code})")


def maria_state(connection: Connection, server: Server, after: Position) -> str | None:
    """MariaDB: the GTID position to begin after; None to begin by file and offset, if they mean the same place."""
    if server.mysql or not isinstance(after.executed, MariaGtid):
        return None
    if after.server != server.identity or not after.file:
        return after.gtids
    # `start: {gtid:}` names a file that precedes the GTIDs; one domain may be far ahead of the others
    found = binlog_gtid_pos(connection, after.file_position)
    if found is not None and found != after.gtids and MariaGtid.parse(found) <= after.executed:
        return after.gtids
    return None


def greet(connection: Connection, server: Server, server_id: int, heartbeat_seconds: float, state: str | None) -> None:
    """Set what a dump needs of its session, and register as a replica."""
    period = int(heartbeat_seconds * 1e9)
    settings = {"master_binlog_checksum": "'CRC32'", "master_heartbeat_period": str(period)}
    if server.mysql:
        settings |= {"source_binlog_checksum": "'CRC32'", "source_heartbeat_period": str(period)}
        name = f"'{uuid.uuid4()}'"
        settings |= {"slave_uuid": name, "replica_uuid": name}
    else:
        settings["mariadb_slave_capability"] = "4"
        if state is not None:
            settings["slave_connect_state"] = f"'{state}'"
            settings |= {"slave_gtid_strict_mode": "1", "slave_gtid_ignore_duplicates": "0"}
    variables = ", ".join(f"@{name} = {value}" for name, value in settings.items())
    with connection.cursor() as cursor:
        cursor.execute(f"SET {variables}, SESSION net_write_timeout = {UNREAD_SECONDS}")
    _send(connection, COMMAND.COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
    connection._read_ok_packet()  # type: ignore[attr-defined]


def request_dump(connection: Connection, server_id: int, file: str, offset: int, flags: int = 0) -> None:
    """Request the binlog from a position on; `flags` such as UP_TO_END."""
    _send(connection, COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", offset, flags, server_id) + file.encode())


def request_dump_gtid(connection: Connection, server_id: int, executed: GtidSet | MariaGtid | None) -> None:
    """Request every transaction outside that set from MySQL."""
    data = encoded_gtids(str(executed)) if isinstance(executed, GtidSet) else struct.pack("<Q", 0)
    body = struct.pack("<HIIQI", 4, server_id, 0, 4, len(data)) + data
    _send(connection, COMMAND.COM_BINLOG_DUMP_GTID, body)


def _send(connection: Connection, command: int, body: bytes) -> None:
    connection._execute_command(command, body)  # type: ignore[attr-defined]


def encoded_gtids(gtids: str) -> bytes:
    """A GTID set in MySQL's encoding: the half-open intervals of each server, with tags if the set has any."""
    sids: list[tuple[bytes, str, list[tuple[int, int]]]] = []
    for part in filter(None, gtids.split(",")):
        sid, *words = part.split(":")
        tag = ""
        intervals: list[tuple[int, int]] = []
        for word in words:
            if word[0].isdigit():
                first, _, last = word.partition("-")
                intervals.append((int(first), int(last or first) + 1))
            else:
                if intervals:
                    sids.append((uuid.UUID(sid).bytes, tag, intervals))
                tag, intervals = word, []
        sids.append((uuid.UUID(sid).bytes, tag, intervals))
    tagged = any(tag for _, tag, _ in sids)
    # with tags the number of entries stands between two bytes of 1
    out = bytearray(struct.pack("<Q", (1 << 56) | (len(sids) << 8) | 1 if tagged else len(sids)))
    for raw, tag, intervals in sids:
        out += raw
        if tagged:
            out += bytes([len(tag) << 1]) + tag.encode()
        out += struct.pack("<Q", len(intervals))
        for interval in intervals:
            out += struct.pack("<QQ", *interval)
    return bytes(out)
