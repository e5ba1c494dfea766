"""A binlog that a test writes event by event, and a cursor that reads it."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cutline.common.gtids import GtidSet
from cutline.common.positions import High, Low, Position
from cutline.common.schema import TableSchema
from cutline.services.sources.contract import Changes, Route
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.binlog.dump import Dump
from cutline.services.sources.mysql.binlog.event_bodies import (
    MAX_ROW_BYTES,
)
from cutline.services.sources.mysql.binlog.event_types import (
    GTID,
    HEADER_BYTES,
    HEARTBEAT,
    MARIADB_GTID,
    QUERY,
    TABLE_MAP,
    WRITE_ROWS,
    XID,
)
from cutline.services.sources.mysql.binlog.scanner import MappedTable, Scanner
from cutline.services.sources.mysql.decode.row_event import Place
from cutline.services.sources.mysql.server import Server
from tests.support.binlog_bytes import event, image, schema_of, table_map

UUID = bytes(range(16))
TOO_LARGE = MAX_ROW_BYTES + (1 << 20)
PREFIX = "00010203-0405-0607-0809-0a0b0c0d0e0f"


class Log:
    """Packets of a dump, made event by event. With `states_ends=False` an event between a transaction's begin and its
    end does not state where it ends, as on MariaDB 11.8."""

    def __init__(self, at: int = 4, checksum: bool = True, states_ends: bool = True) -> None:
        self.at, self.checksum, self.number, self.states_ends = at, checksum, 1, states_ends
        self.bytes = b""

    def event(self, kind: int, body: bytes, *, flags: int = 0) -> Log:
        size = HEADER_BYTES + len(body) + 4 * self.checksum
        self.at += size
        end = self.at & 0xFFFFFFFF if self.states_ends or kind in (XID, GTID, MARIADB_GTID) else 0
        event = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, end, flags) + body
        if self.checksum:
            event += struct.pack("<I", zlib.crc32(event))
        self.packet(b"\0" + event)
        return self

    def large(self, kind: int, size: int, body: bytes = b"", *, flags: int = 0) -> Log:
        """An event of so many bytes, in several packets; without checksums."""
        self.at += size
        event = b"\0" + struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, self.at, flags) + body
        event = event.ljust(size + 1, b"\0")
        for at in range(0, len(event), 0xFFFFFF):
            self.packet(event[at : at + 0xFFFFFF])
        return self

    def packet(self, body: bytes) -> None:
        self.bytes += len(body).to_bytes(3, "little") + bytes([self.number & 255]) + body
        self.number += 1

    def gtid(self, number: int, server: bytes = UUID) -> Log:
        gtid = (
            b"\0"
            + server
            + struct.pack("<QBQQ", number, 2, 1, 2)
            + (1_700_000_000_000_000 + number).to_bytes(7, "little")
        )
        return self.event(GTID, gtid)

    def query(self, text: str) -> Log:
        return self.event(QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + text.encode())

    def begin(self, number: int) -> Log:
        return self.gtid(number).query("BEGIN")

    def transaction(self, number: int, *rows: bytes) -> Log:
        self.begin(number)
        for body in rows:
            self.event(TABLE_MAP, TABLE_MAP_BODY)
            self.event(WRITE_ROWS, body)
        return self.event(XID, struct.pack("<Q", number))


TABLE_MAP_BODY = struct.pack("<IHH", 7, 0, 1) + b"\1d\0\1t\0\1\3\0\0"


def scanning(
    module: ModuleType = scanner,
    *,
    checksum: bool = True,
    pos: int = 4,
    first_taken: Callable[[str, int], int] = lambda *_: 0,
) -> Scanner:
    made = module.Scanner(Place(), mariadb=False, first_taken=first_taken)
    made.start_at("binlog.000001", pos)
    made.use_checksums(checksum)
    made.begin(1 << 40, 1 << 40, False)
    return made  # type: ignore[no-any-return]


def feed(into: Scanner, data: bytes, step: int = 1 << 20) -> list[tuple[int, int]]:
    """Give the bytes in steps; the codes with the types of events that came up, table maps answered."""
    seen = []
    at = 0
    while at < len(data):
        room = into.room()
        size = min(step, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        room.release()
        into.filled(size)
        at += size
        while (code := into.scan()) != scanner.NEED:
            seen.append((code, into.event.type))
            if code == scanner.EVENT and into.event.type == TABLE_MAP:
                body = into.event.body
                into.add_table(int.from_bytes(body[:6], "little"), MappedTable("d.t", body))
    return seen


# --- the cursor -------------------------------------------------------------------------------------------------------
T = schema_of(("id", "int"))
U = replace(T, table_id="d.u")
MAPS = {"d.t": table_map(T, 7), "d.u": table_map(T, 8).replace(b"\1t\0", b"\1u\0", 1)}


def inserted(table_id: str, *keys: int) -> bytes:
    """A row event's body of one of the two tables."""
    return MAPS[table_id][:6] + event(T, [image(T, [key]) for key in keys])[6:]


def dump_of(connection: Any, server: Server) -> Dump:
    return Dump(connection, server, connect=lambda: pytest.fail("it connects"), server_id=7)


class FedCursor:
    """A cursor that reads made-up bytes, as if it had connected before them."""

    def __init__(self, log: Log, executed: GtidSet = GtidSet.EMPTY) -> None:
        self.cursor = BinlogCursor(lambda: pytest.fail("it connects"), server_id=1)
        self.server_end, cursor_end = socket.socketpair()
        server = Server(flavour="mysql", version=(9, 7), identity="s", gtid=True)
        self.delivery = dump_of(SimpleNamespace(_sock=cursor_end), server)
        self.at = Position(server="s", file="binlog.000001", offset=4, gtids=str(executed))
        self.stream = self.cursor.stream(self.delivery, self.at)
        self.scanner = self.stream.scanner
        self.scanner.use_checksums(log.checksum)
        self.cursor._stream = self.stream
        self.begin_at(self.at)
        if len(log.bytes) < 1 << 16:  # which the socket holds
            self.server_end.sendall(log.bytes)
        else:
            threading.Thread(target=self.server_end.sendall, args=(log.bytes,), daemon=True).start()
        self.end = High(server="s", file="binlog.000001", offset=log.at)

    def begin_at(self, at: Position) -> None:
        """As if the dump had been asked for from there on."""
        self.at = self.cursor._at = at
        self.scanner.start_at(at.file, at.offset, at.rows)

    def read(self, *schemas: TableSchema, max_rows: int = 100, wait: float = 30.0, whole: bool = False) -> Changes:
        """Up to the end of the log, or until there is enough."""
        low, high = self.low(4), High(server="s", file="binlog.000001", offset=4)
        routes = {
            schema.table_id: Route(table_id=schema.table_id, generation=1, schema=schema, low=low, high=high, live=True)
            for schema in schemas
        }
        return self.read_routes(routes, max_rows=max_rows, wait=wait, whole=whole)

    @staticmethod
    def low(offset: int) -> Low:
        return Low(server="s", file="binlog.000001", offset=offset)

    def read_routes(
        self, routes: dict[str, Route], *, max_rows: int = 100, wait: float = 30.0, whole: bool = False
    ) -> Changes:
        got = self.cursor.read(
            self.at,
            routes,
            until=self.end,
            max_rows=max_rows,
            max_bytes=1 << 20,
            wait_seconds=wait,
            at_boundary=whole,
        )
        self.at = got.position
        return got


def keys(changes: Changes, table_id: str) -> list[int]:
    return [key for each in changes.batches if each.table_id == table_id for key in each.batch["id"].to_pylist()]


def heartbeat(log: Log, at: int) -> None:
    name = b"binlog.000001"
    header = struct.pack("<IBIIIH", 0, HEARTBEAT, 1, HEADER_BYTES + len(name), at & 0xFFFFFFFF, 0)
    log.packet(b"\0" + header + name)


# --- a reconnect inside a transaction ---------------------------------------------------------------------------------


def inner(kind: int, body: bytes) -> bytes:
    """An event inside of a payload."""
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, HEADER_BYTES + len(body), 0, 0) + body
