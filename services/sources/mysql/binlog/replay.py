"""Events that are not taken from the dump as they come: compressed ones, and those of XA transactions.

The rows of an XA transaction are in the binlog at its PREPARE, and are delivered at its COMMIT, with the COMMIT's place
and GTID. A position says nothing about prepared transactions, so nothing needs to be saved: xa.py keeps their events,
or reads them from the binlog again.

A replay may take several reads: while one is `under_way`, a read must call `go_on` before the scanner.
"""

from __future__ import annotations

from collections.abc import Iterator

from cutline.common.positions import FilePosition
from cutline.services.sources.mysql.binlog.event_bodies import (
    Body,
    Xid,
    inflated_rows,
    payload,
    payload_in,
    table_number,
    xid_of,
)
from cutline.services.sources.mysql.binlog.event_types import QUERY, REFUSED, TABLE_MAP, UNCOMPRESSED
from cutline.services.sources.mysql.binlog.routes import Routes
from cutline.services.sources.mysql.binlog.scanner import FAULT, FULL, FULL_TAKEN, GO, MappedTable, Scanner
from cutline.services.sources.mysql.binlog.xa import Prepared
from cutline.services.sources.mysql.damage import Damaged

ROLLED_BACK_TO_SAVEPOINT = "a transaction was rolled back to a savepoint in the binlog"


class Replay:
    """The replays of one dump, one at a time. Its methods take an event and return GO, or a code of the scanner's."""

    def __init__(self, scanner: Scanner, routes: Routes, prepared: Prepared) -> None:
        self._scanner, self._routes, self._prepared = scanner, routes, prepared
        self._events: Iterator[tuple[int, Body]] | None = None
        self._event: tuple[int, Body] | None = None  # not taken whole: it comes again
        self._tables: dict[int, MappedTable] = {}
        self._xid: Xid | None = None  # of the XA transaction that ends with the replay

    @property
    def under_way(self) -> bool:
        """Whether events are left of a replay."""
        return self._events is not None

    # ---- what begins a replay ----

    def payload(self, body: bytes) -> int:
        """MySQL's compressed transaction: its events come from the scanner, decompressed."""
        scanner = self._scanner
        file = scanner.take_spooled()
        if not scanner.tx.skipped and scanner.event.end > scanner.discard_to:
            scanner.open_payload(payload(body) if file is None else payload_in(file))
        elif scanner.tx.open:
            return int(scanner.end_transaction())
        return GO

    def compressed_rows(self, kind: int, body: bytes) -> int:
        """One of MariaDB's compressed row events."""
        scanner = self._scanner
        table = scanner.tables.get(table_number(body))
        if table is None or table.make_decoder is None or scanner.tx.skipped:
            return int(scanner.pass_over())
        try:
            plain = inflated_rows(kind, body)
        except Damaged as error:
            self._routes.refuse_damaged(body, error)
            return int(scanner.pass_over())
        self._begin(iter(((UNCOMPRESSED[kind], plain),)), scanner.tables, None)
        return self.go_on()

    def hold(self) -> None:
        """An XA transaction begins."""
        scanner = self._scanner
        self._prepared.begin(None if scanner.tx.skipped else FilePosition(scanner.file, scanner.tx.start))

    def keep(self, kind: int, body: Body) -> None:
        """Keep an event of the XA transaction at hand."""
        self._prepared.keep(kind, body)

    def drop(self) -> None:
        """The XA transaction at hand was never prepared."""
        self._prepared.begin(None)

    def prepare(self, body: bytes) -> int:
        """The XA transaction at hand is prepared, or committed in one phase."""
        scanner = self._scanner
        scanner.release()
        if scanner.tx.skipped:
            return int(scanner.end_with_event())
        xid = xid_of(body)
        self._prepared.prepare(xid)
        one_phase = bool(body[0])
        if not one_phase:
            return int(scanner.end_with_event())
        scanner.count_again()
        return self._deliver(xid)

    def commit(self, xid: Xid) -> int:
        """A prepared XA transaction is committed by the transaction at hand."""
        scanner = self._scanner
        if not scanner.tx.skipped and not self._routes.all_covered():
            return self._deliver(xid)
        self._prepared.forget(xid)
        scanner.drop_resume()
        return int(scanner.end_with_event())

    def roll_back(self, xid: Xid) -> int:
        """A prepared XA transaction is rolled back."""
        self._prepared.forget(xid)
        return int(self._scanner.end_with_event())

    # ---- the events of a replay ----

    def _deliver(self, xid: Xid) -> int:
        scanner = self._scanner
        events = self._prepared.events(xid, FilePosition(scanner.file, scanner.tx.start))
        self._begin(events, {}, xid)
        return self.go_on()

    def _begin(self, events: Iterator[tuple[int, Body]], tables: dict[int, MappedTable], xid: Xid | None) -> None:
        self._events, self._event, self._tables, self._xid = events, None, tables, xid
        self._routes.replayed = tables if xid is not None else {}

    def go_on(self) -> int:
        """Deliver the events of the replay up to its end or a limit of the read."""
        events, scanner = self._events, self._scanner
        assert events is not None
        while (event := self._event or next(events, None)) is not None:
            self._event = event
            code = self._take(*event)
            if code in (FULL, FAULT):
                return code  # the event comes again
            self._event = None
            if code == FULL_TAKEN:
                return code
        xid = self._xid
        self._events, self._routes.replayed = None, {}
        if xid is None:
            return GO
        self._prepared.forget(xid)
        return int(scanner.end_with_event())

    def _take(self, kind: int, body: Body) -> int:
        if kind == TABLE_MAP:
            self._routes.map_table(bytes(body), self._tables)
            return GO
        if kind == QUERY:  # xa.py keeps only one kind of statement
            self._routes.undo(ROLLED_BACK_TO_SAVEPOINT)
            return GO
        table = self._tables.get(table_number(body))
        if table is None:
            raise Damaged("a row event names a table that no table map has described")
        if kind in REFUSED:
            self._routes.refuse(kind, body, self._tables)
        if table.make_decoder is None or kind in REFUSED:
            return int(self._scanner.pass_over())
        return int(self._scanner.give_rows(table, kind, body))
