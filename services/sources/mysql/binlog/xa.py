"""XA transactions: their rows are in the binlog at PREPARE, and are delivered at COMMIT.

A prepared transaction is kept in memory while it is small. A large one, or one prepared before a restart, is read from
the binlog again on a second connection. Where it begins is remembered, or searched for backwards from the COMMIT, file
by file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from cutline.common.causes import Cause, Code
from cutline.common.errors import PositionLost
from cutline.common.positions import FilePosition
from cutline.services.sources.mysql.binlog.bytes import BinlogBytes, take_format
from cutline.services.sources.mysql.binlog.dump import Dump
from cutline.services.sources.mysql.binlog.event_bodies import (
    Body,
    Xid,
    described,
    inflated_rows,
    payload,
    payload_in,
    rotation,
    statement,
    tagged_gtid,
    xid_in,
    xid_of,
)
from cutline.services.sources.mysql.binlog.event_types import (
    FORMAT_DESCRIPTION,
    GTID_TAGGED,
    HEARTBEAT,
    HEARTBEAT_V2,
    QUERY,
    QUERY_COMPRESSED,
    REFUSED,
    ROTATE,
    ROWS,
    ROWS_COMPRESSED,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UNCOMPRESSED,
    XA_PREPARE,
)
from cutline.services.sources.mysql.binlog.scanner import EVENT, NEED, SERVER_MESSAGE, MappedTable, Scanner
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.row_event import Place
from cutline.services.sources.mysql.server import FIRST_OFFSET, binlogs

_HELD_BYTES = 8 << 20


@dataclass(slots=True)
class _Transaction:
    """A prepared XA transaction: where it begins, and its events while they are few."""

    at: FilePosition
    events: list[tuple[int, Body]] | None = field(default_factory=list)
    size: int = 0

    def keep(self, kind: int, body: Body) -> None:
        self.size += len(body)
        if self.size > _HELD_BYTES:
            self.events = None
        elif self.events is not None:
            self.events.append((kind, body))


class Prepared:
    """The XA transactions that one dump has seen prepared, by XID, in bounded memory. For each: `begin`, `keep` for
    each event, `prepare`; at its COMMIT `events` returns them, and `forget` drops it.

    `connect` and `server_id` are for the connections that read events again which are not in memory.
    """

    def __init__(self, connect: Callable[[], Connection], *, server_id: int) -> None:
        self._connect, self._server_id = connect, server_id
        self._open: _Transaction | None = None
        self._prepared: dict[Xid, _Transaction] = {}

    def begin(self, at: FilePosition | None) -> None:
        """A transaction begins at this place; None if it is skipped."""
        self._open = None if at is None else _Transaction(at)

    def keep(self, kind: int, body: Body) -> None:
        """Keep a TABLE_MAP, a row event or a ROLLBACK TO SAVEPOINT of the open transaction, if there is one."""
        if self._open is None:
            return
        if kind in ROWS_COMPRESSED:
            kind, body = UNCOMPRESSED[kind], inflated_rows(kind, body)
        self._open.keep(kind, body)

    def prepare(self, xid: Xid) -> None:
        """The open transaction is prepared. Damaged if there is none."""
        if self._open is None:
            raise Damaged("an XA PREPARE came without an XA START")
        self._prepared[xid], self._open = self._open, None
        while sum(held.size for held in self._prepared.values() if held.events) > 4 * _HELD_BYTES:
            next(held for held in self._prepared.values() if held.events).events = None

    def forget(self, xid: Xid) -> None:
        """The transaction is committed, or rolled back."""
        self._prepared.pop(xid, None)

    def events(self, xid: Xid, before: FilePosition) -> Iterator[tuple[int, Body]]:
        """The events kept (or to be kept) of a transaction whose COMMIT is at `before`. SourceLost if its PREPARE is
        purged."""
        held = self._prepared.get(xid)
        if held is not None and held.events is not None:
            return iter(held.events)
        return self._read_again(xid, None if held is None else held.at, before)

    def _read_again(self, xid: Xid, at: FilePosition | None, before: FilePosition) -> Iterator[tuple[int, Body]]:
        if at is None:
            with closing(self._connect()) as connection:
                files = [file for file in binlogs(connection) if FilePosition(file.file, FIRST_OFFSET) < before]
            for file in reversed(files):
                with closing(self._search(FilePosition(file.file, FIRST_OFFSET), before)) as search:
                    at = search.last_prepare(xid)
                if at is not None:
                    break
        if at is None:
            raise PositionLost(
                Cause(
                    Code.PURGED,
                    f"The XA transaction {xid} is committed at {before}, and its XA PREPARE is purged from the binlog",
                    "the tables must be read again from a new snapshot (with GRANT XA_RECOVER_ADMIN ON *.* to the user,"
                    " a snapshot on MySQL waits for such transactions)",
                )
            )
        with closing(self._search(at, None)) as search:
            yield from search.transaction()

    def _search(self, at: FilePosition, before: FilePosition | None) -> _Search:
        server_id = (self._server_id + (1 << 30)) & 0xFFFFFFFF or 1
        return _Search(Dump.open(self._connect, server_id=server_id), at, before)


class _Search:
    """A delivery of one file, from `at` to `before` or the file's end, to find or read a prepared XA transaction."""

    def __init__(self, delivery: BinlogBytes, at: FilePosition, before: FilePosition | None) -> None:
        self._delivery, self._at, self._before = delivery, at, before

    def close(self) -> None:
        self._delivery.close()

    def last_prepare(self, xid: Xid) -> FilePosition | None:
        """Where the transaction of this XID begins that the file prepares and does not end; None without one."""
        found: FilePosition | None = None
        for kind, body, scanner in self._walk():
            if kind == XA_PREPARE and xid_of(body) == xid and not body[0]:
                found = FilePosition(scanner.file, scanner.tx.start)
            elif kind in (QUERY, QUERY_COMPRESSED) and not scanner.tx.begun:
                text = statement(kind, body)[1]
                if _ends_xa(text) and xid_in(text) == xid:
                    found = None
        return found

    def transaction(self) -> Iterator[tuple[int, Body]]:
        """The events, as `Prepared.keep` takes them, of the XA transaction that begins here."""
        for kind, body, _ in self._walk():
            if kind == XA_PREPARE:
                return
            undone = kind == QUERY and statement(kind, body)[1][:11].upper() == "ROLLBACK TO"
            if kind == TABLE_MAP or kind in ROWS or kind in REFUSED or undone:
                yield kind, body
        sentence = f"The XA transaction at {self._at} has no end in the binlog"
        raise PositionLost(Cause(Code.BINLOG, sentence, "the tables must be read again"))

    def _walk(self) -> Iterator[tuple[int, Body, Scanner]]:
        """The events of transactions, and statements; all others are handled here."""
        for kind, body, scanner in self._events():
            if kind == FORMAT_DESCRIPTION:
                take_format(scanner, body)
            elif kind == ROTATE:
                name, _ = rotation(body)
                if name != scanner.file:
                    return
            elif kind in (HEARTBEAT, HEARTBEAT_V2):
                continue
            elif kind == TABLE_MAP and not scanner.tx.held:
                number, table_id = described(body)
                scanner.add_table(number, MappedTable(table_id, body))
            elif kind == TRANSACTION_PAYLOAD:
                file = scanner.take_spooled()
                scanner.open_payload(payload(body) if file is None else payload_in(file))
            elif kind == GTID_TAGGED:
                scanner.start_tagged(*tagged_gtid(body))
            elif kind in ROWS_COMPRESSED:
                yield UNCOMPRESSED[kind], inflated_rows(kind, body), scanner
            elif kind in (QUERY, QUERY_COMPRESSED):
                text = statement(kind, body)[1]
                if not scanner.tx.open:
                    scanner.start_anonymous(scanner.event.start, 0)
                yield kind, body, scanner
                if text[:8].upper() in ("XA START", "XA BEGIN"):
                    scanner.hold()
                elif text == "BEGIN":
                    scanner.begun()
                elif text in ("COMMIT", "ROLLBACK") or not scanner.tx.begun or _ends_xa(text):
                    scanner.end_with_event()
            elif kind == XA_PREPARE:
                yield kind, body, scanner
                scanner.end_with_event()
            else:
                yield kind, body, scanner

    def _events(self) -> Iterator[tuple[int, bytes, Scanner]]:
        """Every event that the scanner hands over, which includes those of XA transactions."""
        delivery = self._delivery
        scanner = Scanner(Place(), mariadb=not delivery.server.mysql, first_taken=lambda *_: 0)
        delivery.begin_at(scanner, self._at)
        while True:
            code = scanner.scan()
            if code == NEED:
                delivery.receive(scanner, math.inf)
            elif code == SERVER_MESSAGE:
                if scanner.event.body[:1] == b"\xfe":
                    return
                raise delivery.failure(scanner)
            elif code == EVENT:
                if scanner.file != self._at.file or (
                    self._before is not None and FilePosition(scanner.file, scanner.event.start) >= self._before
                ):
                    return
                yield scanner.event.type, scanner.event.body, scanner


def _ends_xa(text: str) -> bool:
    return text[:9].upper() in ("XA COMMIT", "XA ROLLBA")
