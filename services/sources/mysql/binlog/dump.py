"""One dump connection: what a replica says to its source (who it is, and from where on it wants the binlog), and hears.

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

from cutline.common.errors import ConfigError, ServerIdTaken, SourceLost, Unavailable
from cutline.common.positions import GtidSet, MariaGtid, Position
from cutline.services.sources.mysql.binlog.event_bodies import QUERY, TABLE_MAP
from cutline.services.sources.mysql.binlog.frames import Frames
from cutline.services.sources.mysql.connection import Connection, gather
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.server import Server, binlog_gtid_pos

_ARTIFICIAL = 0x20
_FIRST_EVENT = re.compile(r"the first event '[^']*' at \d+, ")  # where a dump began, which says nothing of its end
_SEND_STATEMENTS = 2  # in the command that asks for a dump: MariaDB sends the text of each statement too
_SAME_SERVER_ID = 4052  # MariaDB to the older of two dumps with one server id; the wording differs between versions


class Dump:
    """The dump connection of one cursor: the bytes of the binlog, into frames. Synchronous; one thread at a time.

    `connection` is open, and can be asked until the dump begins. `server_id` must be unlike that of every other replica
    of the source.
    """

    def __init__(self, connection: Connection, *, server_id: int, heartbeat_seconds: float = 1.0) -> None:
        self.connection = connection
        self.silence = max(10.0, 5 * heartbeat_seconds)  # seconds without a byte after which the server is away
        self._server_id, self._heartbeat = server_id, heartbeat_seconds
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
        self._heard = time.monotonic()

    def begin(self, server: Server, frames: Frames, *, state: str | None = None, flags: int = 0) -> None:
        """Begin at the place of the frames, or with `state` after MariaDB's GTIDs; with `flags` 1 up to the end only.
        Errors are PyMySQL's own.

        Where the events inside a transaction do not state where they end, the frames add up their sizes, so the dump
        has to have every event of the file: also the statements' text, which a server sends only on request.
        """
        if not server.states_ends:
            flags |= _SEND_STATEMENTS
        if frames.pos >= 1 << 32:  # the command has 32 bits
            frames.discard_to, frames.pos = frames.pos, 4
        greet(self.connection, server, self._server_id, self._heartbeat, state)
        request_dump(self.connection, self._server_id, frames.file, frames.pos, flags)
        self._listen()

    def begin_after(self, server: Server, executed: GtidSet | MariaGtid | None) -> None:
        """Begin with what is not in that set of MySQL's GTIDs; the server chooses the file. Errors as `begin`'s."""
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

    def receive(self, frames: Frames, seconds: float) -> bool:
        """Wait that long for bytes; whether some came. Unavailable if the connection ended, or the server fell
        silent."""
        where = f"the binlog dump at {frames.file}:{frames.pos}"
        room = frames.room()
        try:
            gather(self._socket)
            self._socket.settimeout(min(max(seconds, 0.001), self.silence))
            got = self._socket.recv_into(room)
        except (TimeoutError, BlockingIOError):
            if time.monotonic() - self._heard > self.silence:
                raise Unavailable(
                    f"The server has sent no heartbeat for {self.silence:.0f} s in {where}; is it reachable?"
                ) from None
            return False
        except (OSError, ValueError) as error:
            raise Unavailable(f"The connection broke in {where} ({error}); is the server up?") from error
        finally:
            room.release()
        if not got:
            raise Unavailable(f"The server ended the connection in {where}; is it up?")
        self._heard = time.monotonic()
        frames.filled(got)
        return True

    def said(self, frames: Frames) -> Exception:
        """What the server said instead of an event."""
        packet = frames.event_body
        where = f"{frames.file}:{frames.pos}"
        if packet[:1] != b"\xff" or len(packet) < 3:
            return Unavailable(f"The server ended the binlog dump at {where}; is another replica using our server_id?")
        code = int.from_bytes(packet[1:3], "little")
        text = packet[3:].decode(errors="replace")
        text = _FIRST_EVENT.sub("", text[6:] if text.startswith("#") else text)
        if code == ER.MASTER_FATAL_ERROR_READING_BINLOG and "server_uuid/server_id" not in text:
            return SourceLost(
                f"The server can't go on with its binlog {frames.where}: {text} ({code}); if it is purged or was reset,"
                " the tables must be read again (and binlogs kept longer: binlog_expire_logs_seconds)"
            )
        if code in (ER.ACCESS_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR):
            return ConfigError(
                f"The server refuses the binlog: {text} ({code}); GRANT REPLICATION SLAVE ON *.* to the user"
            )
        if code == _SAME_SERVER_ID or "server_uuid/server_id" in text:
            return ServerIdTaken(
                f"Another client reads the binlog with the server id {self._server_id}, so the server ended our dump at"
                f" {where}; set source.server_id to a number that no replica of this server has"
            )
        return Unavailable(f"The server ended the binlog dump at {where}: {text} ({code})")


def take_format(frames: Frames, event: bytes) -> None:
    """A format description, whole: the form of the events that follow. Damaged if it can't be read."""
    body = event[19:]
    if len(body) < 57 + 30 or int.from_bytes(body[:2], "little") != 4 or body[56] != 19:
        raise Damaged("the format description is not that of binlog version 4")
    lengths = body[57:-5]
    if lengths[TABLE_MAP - 1] != 8 or lengths[QUERY - 1] != 13 or (len(lengths) >= 30 and lengths[29] != 10):
        raise Damaged("the format description has other event heads than MySQL 5.6 and later, MariaDB 10 and later")
    if body[-5] > 1:
        raise Damaged(f"the format description names checksum algorithm {body[-5]}")
    frames.checksum = body[-5] == 1
    if frames.checksum and zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise Damaged("the checksum of a format description does not match")
    if int.from_bytes(event[13:17], "little") and not frames.event_flags & _ARTIFICIAL and not frames.tx_open:
        frames.pos = max(frames.pos, int.from_bytes(event[13:17], "little"))


def maria_state(connection: Connection, server: Server, after: Position) -> str | None:
    """MariaDB: the GTID position to begin after, where file and offset don't say it; None to begin by file and
    offset."""
    if server.mysql or not isinstance(after.executed, MariaGtid):
        return None
    if after.server != server.identity or not after.file:
        return after.gtids
    # `start: {gtid:}` names a file from which on the GTIDs are to be found; a domain may be far ahead of the others
    found = binlog_gtid_pos(connection, after.file_position)
    if found is not None and found != after.gtids and MariaGtid.parse(found) <= after.executed:
        return after.gtids
    return None


def greet(connection: Connection, server: Server, server_id: int, heartbeat_seconds: float, state: str | None) -> None:
    """Say who we are and what we understand, as a replica does."""
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
    with connection.cursor() as cursor:
        cursor.execute("SET " + ", ".join(f"@{name} = {value}" for name, value in settings.items()))
    _send(connection, COMMAND.COM_REGISTER_SLAVE, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
    connection._read_ok_packet()  # type: ignore[attr-defined]


def request_dump(connection: Connection, server_id: int, file: str, offset: int, flags: int = 0) -> None:
    """Ask for the binlog from a place on; with `flags` 1 up to its end only, with 2 the statements' text too."""
    _send(connection, COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", offset, flags, server_id) + file.encode())


def request_dump_gtid(connection: Connection, server_id: int, executed: GtidSet | MariaGtid | None) -> None:
    """Ask MySQL for everything that is not in that set."""
    data = encoded_gtids(str(executed)) if isinstance(executed, GtidSet) else struct.pack("<Q", 0)
    body = struct.pack("<HIIQI", 4, server_id, 0, 4, len(data)) + data
    _send(connection, COMMAND.COM_BINLOG_DUMP_GTID, body)


def _send(connection: Connection, command: int, body: bytes) -> None:
    connection._execute_command(command, body)  # type: ignore[attr-defined]


def encoded_gtids(gtids: str) -> bytes:
    """A GTID set as the server takes it: each server's intervals, half open; the form with tags where there is one."""
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
