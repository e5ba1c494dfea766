"""One dump connection: registers as a replica, asks for the binlog from a position on, and receives its bytes.

Sources: MySQL's and MariaDB's manuals, "Replication Protocol".
"""

from __future__ import annotations

import re
import socket
import struct
import time
import uuid
import zlib
from contextlib import suppress

from pymysql.constants import COMMAND, ER

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, ServerIdTaken, SourceLost, Unavailable
from cutline.common.positions import GtidSet, MariaGtid, Position
from cutline.services.sources.mysql.binlog.event_types import (
    ARTIFICIAL_FLAG,
    HEADER_BYTES,
    QUERY,
    TABLE_MAP,
    WRITE_ROWS,
)
from cutline.services.sources.mysql.binlog.scanner import Scanner
from cutline.services.sources.mysql.connection import PAUSE_SECONDS, Connection, gather
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.server import Server, binlog_gtid_pos

_POST_HEADERS = 57  # where a format description's post-header lengths begin
_CRC32 = 1  # the checksum algorithm
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
    """One dump connection, whose bytes go into a scanner. Synchronous; one thread at a time.

    `connection` is open, and takes queries until the dump begins. `server_id` must differ from that of every other
    replica of the source.
    """

    _got = 0  # bytes of the last receive

    def __init__(self, connection: Connection, *, server_id: int, heartbeat_seconds: float = 1.0) -> None:
        self.connection = connection
        # seconds without a byte after which the server counts as unreachable
        self.silence = max(10.0, 5 * heartbeat_seconds)
        self._server_id, self._heartbeat = server_id, heartbeat_seconds
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
        self._heard = time.monotonic()

    def begin(self, server: Server, scanner: Scanner, *, state: str | None = None, flags: int = 0) -> None:
        """Begin at the scanner's position, or after `state`, a GTID position of MariaDB's. Errors are PyMySQL's own.

        If events inside a transaction do not state where they end, the scanner adds up their sizes. So the dump must
        have every event of the file, also the statements' text, which a server sends only on request.
        """
        if not server.states_ends:
            flags |= _SEND_STATEMENTS
        if scanner.pos > MAX_DUMP_OFFSET:
            scanner.discard_before(scanner.pos)
        greet(self.connection, server, self._server_id, self._heartbeat, state)
        request_dump(self.connection, self._server_id, scanner.file, scanner.pos, flags)
        self._listen()

    def begin_after(self, server: Server, executed: GtidSet | MariaGtid | None) -> None:
        """Begin with MySQL's transactions outside `executed`; the server chooses the file. Errors as in `begin`."""
        greet(self.connection, server, self._server_id, self._heartbeat, None)
        request_dump_gtid(self.connection, self._server_id, executed)
        self._listen()

    def _listen(self) -> None:
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._heard = time.monotonic()

    def close(self) -> None:
        """End the connection."""
        with suppress(Exception):
            self.connection._force_close()  # type: ignore[attr-defined]

    def receive(self, scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        """Wait at most `seconds` for bytes; whether any came. Unavailable if the connection ended, or the server sent
        nothing for `silence` seconds. `leisurely`: a few milliseconds later is as good.
        """
        where = f"the binlog dump at {scanner.file}:{scanner.pos}"
        room = scanner.room()
        try:
            gather(self._socket, TRICKLE_SECONDS if leisurely and self._got < TRICKLE_BYTES else PAUSE_SECONDS)
            self._socket.settimeout(min(max(seconds, 0.001), self.silence))
            got = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError):
            if time.monotonic() - self._heard > self.silence:
                raise Unavailable(
                    f"The server has sent no heartbeat for {self.silence:.0f} s in {where}", "is it reachable?"
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
        """The error for the packet at hand, which the server sent instead of an event."""
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


def take_format(scanner: Scanner, event: bytes) -> None:
    """Take a format description, with header and checksum: it tells the form of the events that follow. Damaged if it
    can't be read, or tells a form that the scanner can't read."""
    body = event[HEADER_BYTES:]
    if len(body) < _POST_HEADERS + 30 or int.from_bytes(body[:2], "little") != 4 or body[56] != HEADER_BYTES:
        raise Damaged("the format description is not that of binlog version 4")
    lengths = body[_POST_HEADERS:-5]  # by event type
    if (
        lengths[TABLE_MAP - 1] != 8
        or lengths[QUERY - 1] != 13
        or (len(lengths) >= WRITE_ROWS and lengths[WRITE_ROWS - 1] != 10)
    ):
        raise Damaged("the format description's post-header lengths are not those of MySQL 5.6 or MariaDB 10 and later")
    if body[-5] > _CRC32:
        raise Damaged(f"the format description names checksum algorithm {body[-5]}")
    scanner.use_checksums(body[-5] == _CRC32)
    if scanner.checksum and zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise Damaged("the checksum of a format description does not match")
    end = int.from_bytes(event[13:17], "little")
    if end and not scanner.event.flags & ARTIFICIAL_FLAG and not scanner.tx.open:
        scanner.move_to(end)


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
