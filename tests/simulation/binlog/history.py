"""A random history of a binlog, event by event as MySQL 9.7 and MariaDB 10.11 and 11.8 write them: files rotate, are
stopped, end torn, or pass 4 GiB."""

from __future__ import annotations

import random
import struct
import uuid
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from cutline.common.gtids import GtidSet, MariaGtid
from cutline.common.schema import TableSchema
from tests.simulation.clock import EPOCH, SimulatedClock
from tests.support.binlog_bytes import event, image, packed, schema_of, table_map

MYSQL, PLAIN, MARIADB, MARIADB_11 = "mysql with GTID", "mysql without GTID", "mariadb", "mariadb 11.8"
SID = ("3e11fa47-71ca-11e1-9e33-c80aa9429561", "3e11fa47-71ca-11e1-9e33-c80aa9429562")
ARTIFICIAL = 0x20
QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, IGNORABLE, ROWS_QUERY = 2, 3, 4, 15, 16, 19, 27, 28, 29
GTID, ANONYMOUS, PREVIOUS, XA_PREPARE, PAYLOAD, ANNOTATE, MARIA_GTID, GTID_LIST = (
    33,
    34,
    35,
    38,
    40,
    160,
    162,
    163,
)
COM_DUMP, COM_REGISTER, COM_DUMP_GTID = 0x12, 0x15, 0x1E

Out = tuple[str, int, str]
"""What a cursor gives out of one row: its kind, and the values of id and v."""


@dataclass(slots=True)
class DumpedTxn:
    """One transaction of the log. `rows`: the row events that a cursor gives out at it, in order, each with its row
    changes; at an XA COMMIT those of its PREPARE."""

    number: int
    kind: str  # rows, prepare, commit, rollback, statement, torn, undone
    gtid: str | None
    file: str
    start: int
    end: int = 0
    rows: list[tuple[str, list[list[Out]]]] = field(default_factory=list)
    xid: bytes = b""

    def __str__(self) -> str:
        return f"{self.gtid or self.number} ({self.kind}) at {self.file}:{self.start}"


@dataclass(slots=True)
class Piece:
    """One event of a file."""

    file: str
    start: int
    end: int
    kind: int
    data: bytes
    txn: DumpedTxn | None
    payload: bool = False


class History:
    """Writes the events of one server's history; what of it is flushed, grows with the clock (`flushed`)."""

    def __init__(self, rng: random.Random, clock: SimulatedClock, count: Counter[str]) -> None:
        self.rng, self.clock, self.count = rng, clock, count
        self.flavour = rng.choice((MYSQL, MYSQL, PLAIN, MARIADB, MARIADB_11))
        self.mysql, self.gtid = self.flavour in (MYSQL, PLAIN), self.flavour != PLAIN
        self.states_ends = self.flavour != MARIADB_11
        self.checksum = rng.random() < 0.7
        self.identity = "s" if self.mysql else "1-u"
        tables = tuple(f"d.t{i}" for i in range(rng.choice((1, 2, 3, 6))))
        self.schemas = {name: replace(SCHEMA, table_id=name) for name in (*tables, "d.x")}
        self.tables = tables  # that may be asked for; d.x never is
        self.txns: list[DumpedTxn] = []
        self.pieces: list[Piece] = []
        self.flushed: list[tuple[float, int]] = []  # from when on how many pieces are there
        self.starts: dict[str, tuple[str, int]] = {}  # file -> GTIDs before it, its format description's number
        self._first = rng.choice((1, 999_999))
        self._files = 0
        self._file, self._at = "", 4
        self._map_number = 100
        self._stamp = 0
        self._numbers: Counter[Any] = Counter()
        self._prepared: list[DumpedTxn] = []
        self._txn: DumpedTxn | None = None
        self._write()

    def _write(self) -> None:
        rng = self.rng
        self._open_file()
        if rng.random() < 0.25:
            self._far()
        moment = self.clock.now
        late = rng.choice((0.0, 0.02, 0.1))
        pauses = rng.choice((0.0, 0.02))
        for _ in range(rng.choice((4, 10, 25))):
            luck = rng.random()
            if luck < 0.1 and self._prepared:
                self._xa_end(self._prepared.pop(rng.randrange(len(self._prepared))))
            elif luck < 0.2:
                self._xa()
            elif luck < 0.27:
                self._statement()
            elif luck < 0.33:
                self._rotate(rng.choice((True, False)))
            elif luck < 0.36:
                self._crash()
            elif luck < 0.4:
                self._transaction("undone")
            else:
                self._transaction("rows")
            moment += rng.expovariate(1 / late) if late else 0.0
            moment += 25.0 if rng.random() < pauses else 0.0  # so long that a cursor looks whether it was reset
            self.flushed.append((moment, len(self.pieces)))

    def _open_file(self) -> None:
        self._file, self._at = f"binlog.{self._first + self._files:06d}", 4
        self._files += 1
        self.starts[self._file] = (executed_of(self.txns, mysql=self.mysql), len(self.pieces))
        self._put(FORMAT, FORMAT_BODY + bytes([self.checksum]))
        if self.mysql:
            self._put(PREVIOUS, bytes(8))
        else:
            self._put(GTID_LIST, bytes(4))

    def _far(self) -> None:
        """The file has nearly 4 GiB, of which a dump has only what may be left out."""
        end = (1 << 32) - self.rng.choice((60, 400, 3000))
        for at in (1 << 30, 2 << 30, 3 << 30, end):  # further than 2 GiB no event leads
            self._put(IGNORABLE, b"", to=at)

    def _rotate(self, restart: bool) -> None:
        if restart:
            self._put(STOP, b"")
        else:
            name = f"binlog.{self._first + self._files:06d}"
            self._put(ROTATE, struct.pack("<Q", 4) + name.encode())
        self.count["stream: file stopped" if restart else "stream: file rotated"] += 1
        self._open_file()

    def _put(self, kind: int, body: bytes, *, to: int = 0, ts: int = 0, payload: bool = False) -> None:
        size = 19 + len(body) + 4 * (self.checksum or kind == FORMAT)
        if self._at + size == 1 << 32 and kind in (GTID, ANONYMOUS, MARIA_GTID):
            assert self._txn is not None
            txn, self._txn = self._txn, None  # its 32 bits would say that it ends nowhere
            self._put(IGNORABLE, b"")
            self._txn, txn.start = txn, self._at
        start, self._at = self._at, to or self._at + size
        inside = self._txn is not None and kind not in (GTID, ANONYMOUS, MARIA_GTID, XID)
        stated = 0 if inside and not self.states_ends else self._at & 0xFFFFFFFF
        data = sealed(kind, body, stated, self.checksum, ts=ts or self._seconds())
        self.pieces.append(Piece(self._file, start, self._at, kind, data, self._txn, payload))

    def _seconds(self) -> int:
        return EPOCH + len(self.pieces)

    def _begin(self, kind: str, *, flags: int = 4, gtid: str | None = None) -> DumpedTxn:
        """A GTID event, and what else begins a transaction."""
        domain = self.rng.choice((0, 0, 1, 2))
        if gtid is None and self.flavour == MYSQL:
            sid = self.rng.choice(SID)
            self._numbers[sid] += self.rng.choice((1, 1, 1, 2))
            gtid = f"{sid}:{self._numbers[sid]}"
        elif gtid is None and not self.mysql:
            self._numbers[domain] += self.rng.choice((1, 1, 2))
            gtid = f"{domain}-1-{self._numbers[domain]}"
        txn = self._txn = DumpedTxn(len(self.txns), kind, gtid, self._file, self._at)
        self.txns.append(txn)
        if self.mysql:
            sid, _, number = (gtid or f"{uuid.UUID(int=0)}:0").rpartition(":")
            body = b"\0" + uuid.UUID(sid).bytes + struct.pack("<QBQQ", int(number), 2, 1, 2)
            self._put(GTID if gtid else ANONYMOUS, body + (self._seconds() * 1_000_000).to_bytes(7, "little"))
        else:
            assert gtid is not None
            in_domain, _, number = gtid.split("-")
            self._put(MARIA_GTID, struct.pack("<QIB", int(number), int(in_domain), flags) + bytes(6))
        return txn

    def _end(self) -> None:
        assert self._txn is not None
        self._txn.end, self._txn = self._at, None

    def _query(self, text: str) -> bytes:
        return struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + text.encode()

    def _transaction(self, kind: str) -> None:
        txn = self._begin(kind)
        inner = self._inner(txn)
        packs = self.flavour in (MYSQL, PLAIN) and kind == "rows" and self.rng.random() < 0.3
        ending = (QUERY, self._query("ROLLBACK")) if kind == "undone" else (XID, bytes(8))
        if self.mysql:
            inner.insert(0, (QUERY, self._query("BEGIN")))
        inner.append(ending)
        if packs:
            self._put_payload(inner)
        else:
            for number, body in inner:
                self._put(number, body)
        self._end()

    def _put_payload(self, inner: list[tuple[int, bytes]]) -> None:
        plain = b"".join(sealed(kind, body, 0, False, ts=self._seconds()) for kind, body in inner)
        zstd = self.rng.random() < 0.8
        data = pa.compress(plain, codec="zstd", asbytes=True) if zstd else plain
        head = [(2, packed(0 if zstd else 255)), (3, packed(len(plain))), (1, packed(len(data)))]
        fields = b"".join(packed(number) + packed(len(value)) + value for number, value in head)
        self._put(PAYLOAD, fields + b"\0" + data, payload=True)
        self.count["stream: compressed transaction"] += zstd

    def _inner(self, txn: DumpedTxn) -> list[tuple[int, bytes]]:
        """The statements of a transaction: table maps and row events."""
        rng = self.rng
        made: list[tuple[int, bytes]] = []
        large = rng.random() < 0.15
        for _ in range(rng.choice((1, 1, 2, 4)) + (10 if large else 0)):
            if rng.random() < 0.3:
                made.append((ROWS_QUERY if self.mysql else ANNOTATE, b"UPDATE something"))
            named = rng.sample(sorted(self.schemas), k=min(rng.choice((1, 1, 2)), len(self.schemas)))
            if rng.random() < 0.15:
                named = ["d.x"]
            numbers = {}
            for name in named:
                self._map_number += rng.random() < 0.3
                numbers[name] = self._map_number = self._map_number + 1
                made.append((TABLE_MAP, table_map(self.schemas[name], numbers[name])))
            for _ in range(rng.choice((1, 1, 3))):
                name = rng.choice(named)
                kind, body, outs = self._row_event(name, numbers[name], large)
                made.append((kind, body))
                txn.rows.append((name, outs))
        return made

    def _row_event(self, name: str, number: int, large: bool) -> tuple[int, bytes, list[list[Out]]]:
        rng, schema = self.rng, self.schemas[name]
        kind = rng.choice((30, 31, 32))
        images, outs = [], []
        for _ in range(rng.choice((1, 1, 2, 5)) * (4 if large else 1)):
            key, text = rng.randrange(1000), self._text()
            if kind == 31:
                before, new = self._text(), key if rng.random() < 0.7 else key + 1000
                images += [image(schema, [key, before.encode()]), image(schema, [new, text.encode()])]
                outs.append([("+U", key, text)] if new == key else [("-D", key, before), ("+I", new, text)])
            else:
                images.append(image(schema, [key, text.encode()]))
                outs.append([("+I" if kind == 30 else "-D", key, text)])
        body = number.to_bytes(6, "little") + event(schema, images, kind)[6:]
        if not self.mysql:  # version 1, of which some are compressed
            kind, body = kind - 7, body[:8] + body[10:]
            if rng.random() < 0.3:
                head = 8 + 1 + (1 if kind != 24 else 2)
                body = body[:head] + b"\x82" + struct.pack(">H", len(body) - head) + zlib.compress(body[head:])
                kind += 143
                self.count["stream: compressed row event"] += 1
        return kind, body, outs

    def _text(self) -> str:
        self._stamp += 1
        return f"v{self._stamp}".ljust(self.rng.choice((1, 1, 40)), ".")

    def _statement(self) -> None:
        """A DDL of a table that nobody asked for."""
        self._begin("statement", flags=1)
        self._put(QUERY, self._query(f"CREATE TABLE other{len(self.txns)} (a INT)"))
        self._end()

    def _xa(self) -> None:
        """XA START ... XA PREPARE, or all in one phase."""
        once = self.mysql and self.rng.random() < 0.2
        txn = self._begin("rows" if once else "prepare", flags=4 if once else 64)
        txn.xid = b"x%d" % txn.number
        name = f"X'{txn.xid.hex()}',X'62',1"
        inner = self._inner(txn)
        if self.mysql:
            inner.insert(0, (QUERY, self._query(f"XA START {name}")))
        inner.append((QUERY, self._query(f"XA END {name}")))
        inner.append((XA_PREPARE, bytes([once]) + struct.pack("<iii", 1, len(txn.xid), 1) + txn.xid + b"b"))
        for number, body in inner:
            self._put(number, body)
        self._end()
        if not once:
            self._prepared.append(txn)

    def _xa_end(self, prepared: DumpedTxn) -> None:
        commits = self.rng.random() < 0.8
        txn = self._begin("commit" if commits else "rollback", flags=128)
        verb = "COMMIT" if commits else "ROLLBACK"
        self._put(QUERY, self._query(f"XA {verb} X'{prepared.xid.hex()}',X'62',1"))
        self._end()
        if commits:
            txn.rows = prepared.rows
            self.count["stream: XA COMMIT"] += 1
        prepared.rows = []

    def _crash(self) -> None:
        """The server crashes while it writes a transaction, and goes on in the next file; a GTID is used again."""
        txn = self._begin("torn")
        inner = self._inner(txn)
        if self.mysql:
            inner.insert(0, (QUERY, self._query("BEGIN")))
        for number, body in inner[: self.rng.randrange(len(inner) + 1)]:
            self._put(number, body)
        self._end()
        txn.end = 1 << 62
        self._open_file()
        if txn.gtid is not None:
            again = self._begin("rows", gtid=txn.gtid)
            inner = self._inner(again)
            for number, body in [(QUERY, self._query("BEGIN"))] * self.mysql + [*inner, (XID, bytes(8))]:
                self._put(number, body)
            self._end()


def executed_of(txns: Sequence[DumpedTxn], *, mysql: bool) -> str:
    """The GTIDs of these transactions, as the server prints them."""
    found = ",".join(t.gtid for t in txns if t.gtid and t.kind != "torn")
    return str(GtidSet.parse(found) if mysql else MariaGtid.parse(found))


SCHEMA: TableSchema = schema_of(("id", "int"), ("v", "varchar(60)"))
LENGTHS = bytearray(45)
LENGTHS[1], LENGTHS[18], LENGTHS[29] = 13, 8, 10
FORMAT_BODY = struct.pack("<H50sIB", 4, b"simulated", 0, 19) + bytes(LENGTHS)


def sealed(kind: int, body: bytes, end: int, checksum: bool, *, ts: int = 0, flags: int = 0) -> bytes:
    """An event with its header and, if there is to be one, its checksum; a format description has one always."""
    checksum = checksum or kind == FORMAT
    made = struct.pack("<IBIIIH", ts, kind, 1, 19 + len(body) + 4 * checksum, end, flags) + body
    return made + struct.pack("<I", zlib.crc32(made)) if checksum else made
