"""A server of which nothing is real but its bytes: a random binlog, and connections that give a replica a dump of it.

`Binlog` makes a history from a seed, event by event as MySQL 9.7 and MariaDB 10.11 and 11.8 write them, in files that
rotate, are stopped, end torn, or pass 4 GiB. It knows what each transaction changes (`DumpedTxn.rows`), so it is the
model too: `Binlog.place` says what a position has taken, and refuses one that is none. `Connection` has what
binlog/dump.py, binlog/xa.py, connection.py and server.py in services/sources/mysql use of PyMySQL's: questions are
answered, COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID begin a dump, whose bytes come from `DumpSocket` in pieces, late, or
not at all.

Nothing waits: `SimulatedClock` (tests/simulation/clock.py) moves when somebody would have waited.
"""

from __future__ import annotations

import random
import struct
import uuid
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from cutline.common.errors import Unavailable
from cutline.common.positions import FilePosition, GtidSet, Low, MariaGtid, Position, parse_gtids
from cutline.common.schema import TableSchema
from cutline.services.sources.mysql.binlog.scanner import INSIDE_BITS
from tests.simulation.clock import EPOCH, SimulatedClock, Wrong
from tests.support.binlog_bytes import event, image, packed, schema_of, table_map

MYSQL, PLAIN, MARIADB, MARIADB_11 = "mysql with GTID", "mysql without GTID", "mariadb", "mariadb 11.8"
_SID = ("3e11fa47-71ca-11e1-9e33-c80aa9429561", "3e11fa47-71ca-11e1-9e33-c80aa9429562")
_ARTIFICIAL = 0x20
_QUERY, _STOP, _ROTATE, _FORMAT, _XID, _TABLE_MAP, _HEARTBEAT, _IGNORABLE, _ROWS_QUERY = 2, 3, 4, 15, 16, 19, 27, 28, 29
_GTID, _ANONYMOUS, _PREVIOUS, _XA_PREPARE, _PAYLOAD, _ANNOTATE, _MARIA_GTID, _GTID_LIST = (
    33,
    34,
    35,
    38,
    40,
    160,
    162,
    163,
)
_COM_DUMP, _COM_REGISTER, _COM_DUMP_GTID = 0x12, 0x15, 0x1E

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


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """What a position has taken: the transactions, as bits by their numbers; and of the one that it is inside of, the
    row events and the row changes of the next."""

    taken: int
    txn: DumpedTxn | None = None
    events: int = 0
    rows: int = 0

    def not_before(self, other: ModelPlace) -> bool:
        """Whether all that `other` has taken is taken here."""
        if other.taken & ~self.taken:
            return False
        if other.txn is None or self.taken >> other.txn.number & 1:
            return True
        return self.txn is other.txn and (self.events, self.rows) >= (other.events, other.rows)


class Binlog:
    """One server's history; what of it is flushed, grows with the clock."""

    def __init__(self, rng: random.Random, clock: SimulatedClock, count: Counter[str]) -> None:
        self.rng, self.clock, self.count = rng, clock, count
        self.flavour = rng.choice((MYSQL, MYSQL, PLAIN, MARIADB, MARIADB_11))
        self.mysql, self.gtid = self.flavour in (MYSQL, PLAIN), self.flavour != PLAIN
        self.states_ends = self.flavour != MARIADB_11
        self.checksum = rng.random() < 0.7
        self.identity = "s" if self.mysql else "1-u"
        tables = tuple(f"d.t{i}" for i in range(rng.choice((1, 2, 3, 6))))
        self.schemas = {name: replace(_SCHEMA, table_id=name) for name in (*tables, "d.x")}
        self.tables = tables  # that may be asked for; d.x never is
        self.txns: list[DumpedTxn] = []
        self.pieces: list[Piece] = []
        self._torn: list[DumpedTxn] = []
        self.flushed: list[tuple[float, int]] = []  # from when on how many pieces are there
        self._there = 0  # of these moments, how many have passed
        self.starts: dict[str, tuple[str, int]] = {}  # file -> GTIDs before it, its format description's number
        self._first = rng.choice((1, 999_999))
        self._files = 0
        self._file, self._at = "", 4
        self._map_number = 100
        self._stamp = 0
        self._numbers: Counter[Any] = Counter()
        self._prepared: list[DumpedTxn] = []
        self._txn: DumpedTxn | None = None
        self._places: dict[str, int] = {}
        self._write()
        self._ranks = {file: i << 48 for i, file in enumerate(self.starts)}  # of a file's first byte among all bytes
        whole, self._torn = ([t for t in self.txns if (t.kind == "torn") == is_torn] for is_torn in (False, True))
        self._starts = [self._ranks[t.file] + t.start for t in self.txns]
        self._ends = [self._ranks[t.file] + t.end for t in whole]
        self._prefixes = list(accumulate((1 << t.number for t in whole), int.__or__, initial=0))

    # --- the history ---

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
        self.starts[self._file] = (self.executed(len(self.txns)), len(self.pieces))
        self._put(_FORMAT, _FORMAT_BODY + bytes([self.checksum]))
        if self.mysql:
            self._put(_PREVIOUS, bytes(8))
        else:
            self._put(_GTID_LIST, bytes(4))

    def _far(self) -> None:
        """The file has nearly 4 GiB, of which a dump has only what may be left out."""
        end = (1 << 32) - self.rng.choice((60, 400, 3000))
        for at in (1 << 30, 2 << 30, 3 << 30, end):  # further than 2 GiB no event leads
            self._put(_IGNORABLE, b"", to=at)

    def _rotate(self, restart: bool) -> None:
        if restart:
            self._put(_STOP, b"")
        else:
            name = f"binlog.{self._first + self._files:06d}"
            self._put(_ROTATE, struct.pack("<Q", 4) + name.encode())
        self.count["stream: file stopped" if restart else "stream: file rotated"] += 1
        self._open_file()

    def _put(self, kind: int, body: bytes, *, to: int = 0, ts: int = 0, payload: bool = False) -> None:
        size = 19 + len(body) + 4 * (self.checksum or kind == _FORMAT)
        if self._at + size == 1 << 32 and kind in (_GTID, _ANONYMOUS, _MARIA_GTID):
            assert self._txn is not None
            txn, self._txn = self._txn, None  # its 32 bits would say that it ends nowhere
            self._put(_IGNORABLE, b"")
            self._txn, txn.start = txn, self._at
        start, self._at = self._at, to or self._at + size
        inside = self._txn is not None and kind not in (_GTID, _ANONYMOUS, _MARIA_GTID, _XID)
        stated = 0 if inside and not self.states_ends else self._at & 0xFFFFFFFF
        data = sealed(kind, body, stated, self.checksum, ts=ts or self._seconds())
        self.pieces.append(Piece(self._file, start, self._at, kind, data, self._txn, payload))

    def _seconds(self) -> int:
        return EPOCH + len(self.pieces)

    def _begin(self, kind: str, *, flags: int = 4, gtid: str | None = None) -> DumpedTxn:
        """A GTID event, and what else begins a transaction."""
        domain = self.rng.choice((0, 0, 1, 2))
        if gtid is None and self.flavour == MYSQL:
            sid = self.rng.choice(_SID)
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
            self._put(_GTID if gtid else _ANONYMOUS, body + (self._seconds() * 1_000_000).to_bytes(7, "little"))
        else:
            assert gtid is not None
            in_domain, _, number = gtid.split("-")
            self._put(_MARIA_GTID, struct.pack("<QIB", int(number), int(in_domain), flags) + bytes(6))
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
        ending = (_QUERY, self._query("ROLLBACK")) if kind == "undone" else (_XID, bytes(8))
        if self.mysql:
            inner.insert(0, (_QUERY, self._query("BEGIN")))
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
        self._put(_PAYLOAD, fields + b"\0" + data, payload=True)
        self.count["stream: compressed transaction"] += zstd

    def _inner(self, txn: DumpedTxn) -> list[tuple[int, bytes]]:
        """The statements of a transaction: table maps and row events."""
        rng = self.rng
        made: list[tuple[int, bytes]] = []
        large = rng.random() < 0.15
        for _ in range(rng.choice((1, 1, 2, 4)) + (10 if large else 0)):
            if rng.random() < 0.3:
                made.append((_ROWS_QUERY if self.mysql else _ANNOTATE, b"UPDATE something"))
            named = rng.sample(sorted(self.schemas), k=min(rng.choice((1, 1, 2)), len(self.schemas)))
            if rng.random() < 0.15:
                named = ["d.x"]
            numbers = {}
            for name in named:
                self._map_number += rng.random() < 0.3
                numbers[name] = self._map_number = self._map_number + 1
                made.append((_TABLE_MAP, table_map(self.schemas[name], numbers[name])))
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
        self._put(_QUERY, self._query(f"CREATE TABLE other{len(self.txns)} (a INT)"))
        self._end()

    def _xa(self) -> None:
        """XA START ... XA PREPARE, or all in one phase."""
        once = self.mysql and self.rng.random() < 0.2
        txn = self._begin("rows" if once else "prepare", flags=4 if once else 64)
        txn.xid = b"x%d" % txn.number
        name = f"X'{txn.xid.hex()}',X'62',1"
        inner = self._inner(txn)
        if self.mysql:
            inner.insert(0, (_QUERY, self._query(f"XA START {name}")))
        inner.append((_QUERY, self._query(f"XA END {name}")))
        inner.append((_XA_PREPARE, bytes([once]) + struct.pack("<iii", 1, len(txn.xid), 1) + txn.xid + b"b"))
        for number, body in inner:
            self._put(number, body)
        self._end()
        if not once:
            self._prepared.append(txn)

    def _xa_end(self, prepared: DumpedTxn) -> None:
        commits = self.rng.random() < 0.8
        txn = self._begin("commit" if commits else "rollback", flags=128)
        verb = "COMMIT" if commits else "ROLLBACK"
        self._put(_QUERY, self._query(f"XA {verb} X'{prepared.xid.hex()}',X'62',1"))
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
            inner.insert(0, (_QUERY, self._query("BEGIN")))
        for number, body in inner[: self.rng.randrange(len(inner) + 1)]:
            self._put(number, body)
        self._end()
        txn.end = 1 << 62
        self._open_file()
        if txn.gtid is not None:
            again = self._begin("rows", gtid=txn.gtid)
            inner = self._inner(again)
            for number, body in [(_QUERY, self._query("BEGIN"))] * self.mysql + [*inner, (_XID, bytes(8))]:
                self._put(number, body)
            self._end()

    # --- what is there ---

    def available(self) -> int:
        """How many pieces are flushed by now."""
        while self._there < len(self.flushed) and self.flushed[self._there][0] <= self.clock.now:
            self._there += 1
        return self.flushed[self._there - 1][1] if self._there else 2

    def all_there(self) -> bool:
        return self.available() == len(self.pieces)

    def end(self) -> FilePosition:
        """The end of what is flushed."""
        last = self.pieces[self.available() - 1]
        return FilePosition(last.file, last.end)

    def committed(self) -> list[DumpedTxn]:
        """Every transaction that is whole and flushed."""
        bits = self.before(self.end())
        return [t for t in self.txns if bits >> t.number & 1]

    def executed(self, many: int) -> str:
        """The GTIDs of the first so many transactions, as the server prints them."""
        return self.executed_of(self.txns[:many])

    def executed_of(self, txns: Sequence[DumpedTxn]) -> str:
        """The GTIDs of these transactions."""
        found = ",".join(t.gtid for t in txns if t.gtid and t.kind != "torn")
        return str(GtidSet.parse(found) if self.mysql else MariaGtid.parse(found))

    def some_gtids(self) -> str | None:
        """A GTID set that a person may name: of each server or domain the first so many."""
        if not self.gtid:
            return None
        many = [self.rng.randrange(len(self.committed()) + 1) for _ in range(3)]
        found = [t for t in self.committed() if t.number < many[_stretch(t.gtid or "")]]
        return self.executed_of(found)

    # --- the model ---

    def bits(self, gtids: str) -> int:
        """The transactions of a GTID set, as bits."""
        if gtids not in self._places:
            taken, made = parse_gtids(gtids), 0
            if taken is not None:
                for txn in self.txns:
                    if txn.gtid and txn.kind != "torn" and taken.contains(txn.gtid):
                        made |= 1 << txn.number
            self._places[gtids] = made
        return self._places[gtids]

    def before(self, at: FilePosition) -> int:
        """The transactions that end at or before a place, as bits."""
        many = bisect_right(self._ends, at.offset + self._ranks.get(at.file, 0))
        return self._prefixes[many]

    def place(self, position: Position, *, given: bool = True) -> ModelPlace:
        """What a position has taken. Wrong if it is no place; `given`: by a cursor, which knows all of it."""
        at = position.file_position
        taken, passed = self.bits(position.gtids), self.before(at)
        here = bisect_right(self._starts, at.offset + self._ranks[at.file]) - 1
        around = [t for t in self.txns[max(here, 0) : here + 1] if t.file == at.file and at.offset < t.end]
        if given and self.gtid and (lost := passed & ~taken):
            raise Wrong(f"{position} has not the GTIDs of transactions {lost:b}, which end before it")
        if self.flavour != MYSQL:  # a cursor begins at a low, and MariaDB's lows name a file and an offset alone
            taken |= passed
        if not position.rows:
            if around and around[0].start < at.offset and around[0].end < 1 << 62:
                raise Wrong(f"{position} is said to be between two transactions, inside {around[0]}")
            return ModelPlace(taken)
        if not around or around[0].start != at.offset:
            raise Wrong(f"{position} is inside a transaction, and none starts there")
        events, rows = position.rows >> INSIDE_BITS, position.rows & (1 << INSIDE_BITS) - 1
        if taken >> around[0].number & 1:
            raise Wrong(f"{position} has the GTID of the transaction that it is inside of")
        whole = around[0].rows
        if events > len(whole) or (rows and (events == len(whole) or rows > len(whole[events][1]))):
            raise Wrong(f"{position} is behind the last row of a transaction of {len(whole)} row events")
        return ModelPlace(taken, around[0], events, rows)

    def low_bits(self, low: Low) -> int:
        """The transactions that a low watermark covers, as bits; those that were never committed too."""
        if self.flavour == MYSQL:
            taken = GtidSet.parse(low.gtids)
            torn = [t for t in self._torn if taken.contains(t.gtid or "")]
        else:
            torn = [t for t in self._torn if FilePosition(t.file, t.start) < FilePosition(low.file, low.offset)]
        whole = self.bits(low.gtids) if self.flavour == MYSQL else self.before(FilePosition(low.file, low.offset))
        return whole | sum(1 << t.number for t in torn)

    def changes(self, after: ModelPlace, to: ModelPlace, lows: dict[str, int]) -> list[tuple[str, Out]]:
        """What a cursor has to give out between two places, in order, of the tables in `lows`, each with what its low
        covers."""
        found: list[tuple[str, Out]] = []
        for txn in self.txns:
            bit = 1 << txn.number
            whole = to.taken & ~after.taken & bit
            if not (whole or to.txn is txn) or txn.kind in ("prepare", "rollback", "statement"):
                continue
            first = (after.events, after.rows) if after.txn is txn else (0, 0)
            last = (len(txn.rows), 0) if whole else (to.events, to.rows)
            for i, (table, outs) in enumerate(txn.rows):
                if table not in lows or lows[table] & bit:
                    continue
                for k, row in enumerate(outs):
                    if first <= (i, k) < last:
                        found += [(table, out) for out in row]
        return found


_SCHEMA: TableSchema = schema_of(("id", "int"), ("v", "varchar(60)"))
_LENGTHS = bytearray(45)
_LENGTHS[1], _LENGTHS[18], _LENGTHS[29] = 13, 8, 10
_FORMAT_BODY = struct.pack("<H50sIB", 4, b"simulated", 0, 19) + bytes(_LENGTHS)


def _stretch(gtid: str) -> int:
    """By which of three limits a GTID goes: its server's, or its domain's."""
    return int(gtid[0]) if "-1-" in gtid and ":" not in gtid else _SID.index(gtid.partition(":")[0])


def sealed(kind: int, body: bytes, end: int, checksum: bool, *, ts: int = 0, flags: int = 0) -> bytes:
    """An event with its header and, if there is to be one, its checksum; a format description has one always."""
    checksum = checksum or kind == _FORMAT
    made = struct.pack("<IBIIIH", ts, kind, 1, 19 + len(body) + 4 * checksum, end, flags) + body
    return made + struct.pack("<I", zlib.crc32(made)) if checksum else made


@dataclass(slots=True)
class NetworkTrouble:
    """How bad a network is; `rng` draws what happens next."""

    rng: random.Random = field(repr=False)
    cut: float  # chances at each receive
    slow: float
    piece: int  # bytes that come together, at most
    refuse: float  # chance at each connect

    @classmethod
    def drawn(cls, rng: random.Random) -> NetworkTrouble:
        return cls(
            rng, cut=rng.choice((0.0, 0.01, 0.05, 0.1)), slow=rng.choice((0.0, 0.05, 0.3)),
            piece=rng.choice((40, 300, 2000, 1 << 20)), refuse=rng.choice((0.0, 0.1)),
        )  # fmt: skip

    def calm(self) -> None:
        self.cut = self.slow = self.refuse = 0.0
        self.piece = max(self.piece, 600)


class Connection:
    """What of PyMySQL's connection is used; `server` is the log that it shows."""

    user, host, port = "cdc", "simulated", 3306

    def __init__(self, log: Binlog, trouble: NetworkTrouble) -> None:
        if trouble.rng.random() < trouble.refuse:
            log.count["stream: connection refused"] += 1
            raise Unavailable("the simulated server takes no connection now")
        self.log, self.trouble = log, trouble
        self._sock = DumpSocket(self)
        self._rows: list[tuple[Any, ...]] = []
        self._state: str | None = None
        self.open = True

    def close(self) -> None:
        self.open = False

    _force_close = close

    # --- questions ---

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        yield self

    def execute(self, sql: str, args: Sequence[Any] | None = None) -> None:
        self._rows = self._answer(sql, args or ())

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def _answer(self, sql: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        log = self.log
        if sql.startswith("SELECT @@version"):
            version = {MARIADB: "10.11.19-MariaDB", MARIADB_11: "11.8.3-MariaDB"}.get(log.flavour, "9.7.4")
            own = (log.identity, "ON" if log.gtid else "OFF") if version == "9.7.4" else ()
            return [(version, "1", "0", *own)]
        if sql.startswith("SHOW GLOBAL VARIABLES"):
            known = {"server_uid": "u"}
            if log.flavour == MARIADB_11:
                known["binlog_legacy_event_pos"] = "OFF"
            return [(name, known[name]) for name in args if name in known]
        if sql.startswith("SELECT @@GLOBAL.gtid_executed"):
            return [(log.executed(1 + max((t.number for t in log.committed()), default=-1)),)]
        if sql.startswith("SELECT @@GLOBAL.gtid_purged"):
            return [("",)]
        if sql == "SHOW BINARY LOGS":
            ends: dict[str, int] = {}
            for piece in log.pieces[: log.available()]:
                ends[piece.file] = piece.end
            return list(ends.items())
        if sql in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):
            return [(log.end().file, log.end().offset)]
        if sql.startswith("SELECT BINLOG_GTID_POS"):
            return [(self._gtid_pos(FilePosition(*args)),)]
        if sql.startswith("SET @"):
            _, found, state = sql.partition("@slave_connect_state = '")
            self._state = state.partition("'")[0] if found else None
            return []
        raise AssertionError(f"the simulated server does not know {sql!r}")

    def _gtid_pos(self, at: FilePosition) -> str | None:
        if not any(p.file == at.file and at.offset in (p.start, p.end) for p in self.log.pieces):
            return None
        bits = self.log.before(at)
        return str(MariaGtid.parse(",".join(t.gtid for t in self.log.txns if t.gtid and bits >> t.number & 1)))

    # --- the dump ---

    def _execute_command(self, command: int, body: bytes) -> None:
        if command == _COM_DUMP:
            offset, flags, _ = struct.unpack_from("<IHI", body)
            file, skip = body[10:].decode(), 0
            if self._state is not None:
                skip = self.log.bits(self._state)
                file, offset = self._first_file(skip), 4
            self.log.count["stream: XA PREPARE read again"] += flags & 1
            self.log.count["stream: dump after MariaDB's GTIDs"] += self._state is not None
            self._sock.begin(self._dump(file, offset, skip, bool(flags & 1), bool(flags & 2)))
        elif command == _COM_DUMP_GTID:
            (named,) = struct.unpack_from("<I", body, 6)
            data = body[6 + 4 + named + 8 + 4 :]
            skip = self.log.bits(_decoded(data))
            self.log.count["stream: dump after MySQL's GTIDs"] += 1
            self._sock.begin(self._dump(self._first_file(skip), 4, skip, False, True))
        else:
            assert command == _COM_REGISTER

    def _read_ok_packet(self) -> None:
        pass

    def _first_file(self, taken: int) -> str:
        """The newest file before which nothing is that is not taken."""
        files = {piece.file for piece in self.log.pieces[: self.log.available()]}
        return [f for f, (before, _) in self.log.starts.items() if f in files and not self.log.bits(before) & ~taken][
            -1
        ]

    def _dump(self, file: str, offset: int, skip: int, ends: bool, whole: bool) -> Iterator[Piece | bytes | None]:
        """Each event from a place on, and None while nothing more is there; its artificial ones as bytes."""
        log = self.log
        yield self._rotate_to(file, offset)
        number = log.starts[file][1]
        if offset > 4:
            yield sealed(_FORMAT, log.pieces[number].data[19:-4], 0, log.checksum)
            while number < len(log.pieces) and log.pieces[number].file == file and log.pieces[number].start < offset:
                number += 1
            last = log.pieces[number - 1]
            if last.end != offset or (last.txn is not None and offset < last.txn.end < 1 << 62):
                raise Wrong(f"a dump was asked for from {file}:{offset}, which is not between two transactions")
        passed = 0
        while True:
            if number >= log.available():
                if ends:
                    yield b"\xfe\0\0\0\0"
                    return
                yield None
                continue
            piece = log.pieces[number]
            number += 1
            if piece.file != file:
                file = piece.file
                yield self._rotate_to(file, 4)
            if piece.txn is not None and skip >> piece.txn.number & 1:
                passed += 1
                if passed % 20 == 9:  # it says that it lives, at a place inside of what it passes over
                    yield self._heartbeat(piece.file, piece.end)
                continue
            if piece.kind == _ANNOTATE and not whole:
                continue
            yield piece

    def _rotate_to(self, file: str, offset: int) -> bytes:
        body = struct.pack("<Q", offset) + file.encode()
        return sealed(_ROTATE, body, 0, self.log.checksum, flags=_ARTIFICIAL)

    def _heartbeat(self, file: str, offset: int) -> bytes:
        return sealed(_HEARTBEAT, file.encode(), offset & 0xFFFFFFFF, self.log.checksum)

    def heartbeat(self) -> bytes:
        """That nothing more is there."""
        end = self.log.end()
        return self._heartbeat(end.file, end.offset)


def _decoded(data: bytes) -> str:
    """A GTID set as COM_BINLOG_DUMP_GTID has it, in text."""
    (sids,) = struct.unpack_from("<Q", data)
    at, found = 8, []
    for _ in range(sids):
        sid, (many,) = uuid.UUID(bytes=data[at : at + 16]), struct.unpack_from("<Q", data, at + 16)
        at += 24
        for _ in range(many):
            first, behind = struct.unpack_from("<QQ", data, at)
            at += 16
            found.append(f"{sid}:{first}-{behind - 1}")
    return ",".join(found)


class DumpSocket:
    """The socket of one connection: bytes of its dump, in pieces."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._source: Iterator[Piece | bytes | None] = iter(())
        self._bytes = bytearray()
        self._number = 1
        self._timeout = 0.0
        self._quiet = 0.0
        self._last: Piece | None = None

    def begin(self, source: Iterator[Piece | bytes | None]) -> None:
        self._source = source

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: int) -> None:
        pass

    def recv_into(self, room: memoryview) -> int:
        trouble, log = self._connection.trouble, self._connection.log
        rng, count = trouble.rng, log.count
        if not self._connection.open:
            raise ConnectionResetError("it is closed")
        piece = rng.randint(1, trouble.piece)
        while len(self._bytes) < piece and (found := next(self._source, None)) is not None:
            self._take(found)
        luck = rng.random()
        if luck < trouble.cut:
            self._connection.close()
            count["stream: connection cut"] += 1
            if self._last is not None and self._last.txn is not None:
                count["stream: connection cut inside a transaction"] += 1
                count["stream: connection cut inside a payload"] += self._last.payload and bool(self._bytes)
            if rng.random() < 0.5:
                return 0
            raise ConnectionResetError("cut")
        if not self._bytes or luck < trouble.cut + trouble.slow:
            log.clock.now += (waits := max(self._timeout, 0.02))
            count["stream: nothing came in time"] += 1
            self._quiet = 0.0 if self._bytes else self._quiet + waits
            if self._quiet >= 1.0:
                self._quiet = 0.0
                self._take(self._connection.heartbeat())
                count["stream: heartbeat"] += 1
            raise TimeoutError
        size = min(len(self._bytes), len(room), piece)
        room[:size] = self._bytes[:size]
        del self._bytes[:size]
        count["stream: event came in pieces"] += bool(self._bytes)
        return size

    def _take(self, found: Piece | bytes) -> None:
        data = b"\0" + found.data if isinstance(found, Piece) else found if found[:1] == b"\xfe" else b"\0" + found
        if isinstance(found, Piece):
            self._last = found
        self._bytes += len(data).to_bytes(3, "little") + bytes([self._number & 255]) + data
        self._number += 1
