"""What a replica says to its source: who it is, and from where on it wants the binlog.

Sources: MySQL's and MariaDB's manuals, "Replication Protocol".
"""

from __future__ import annotations

import struct
import uuid

from pymysql.constants import COMMAND

from common import mysql
from common.mysql import Connection
from common.positions import GtidSet, MariaGtid, Position


def maria_state(connection: Connection, server: mysql.Server, after: Position) -> str | None:
    """MariaDB: the GTID position to begin after, where file and offset don't say it; None to begin by file and
    offset."""
    if server.mysql or not isinstance(after.executed, MariaGtid):
        return None
    if after.server != server.identity or not after.file:
        return after.gtids
    # `start: {gtid:}` names a file from which on the GTIDs are to be found; a domain may be far ahead of the others
    found = mysql.binlog_gtid_pos(connection, after.file_position)
    if found is not None and found != after.gtids and MariaGtid.parse(found) <= after.executed:
        return after.gtids
    return None


def greet(
    connection: Connection, server: mysql.Server, server_id: int, heartbeat_seconds: float, state: str | None
) -> None:
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
    """Ask for the binlog from a place on; with `flags` 1 up to its end only."""
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
