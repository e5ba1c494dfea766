"""Connections that give a replica a dump of a simulated binlog.

`Connection` has what binlog/dump.py, binlog/xa.py, connection.py and server.py in services/sources/mysql use of
PyMySQL's: questions are answered, COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID begin a dump, whose bytes come from
`DumpSocket` in pieces, late, or not at all. Nothing waits: `SimulatedClock` moves when somebody would have waited."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cutline.common.errors import Unavailable
from cutline.common.gtids import MariaGtid
from cutline.common.positions import FilePosition
from tests.simulation.binlog.history import (
    ANNOTATE,
    ARTIFICIAL,
    FORMAT,
    HEARTBEAT,
    MARIADB,
    MARIADB_11,
    ROTATE,
    Piece,
    sealed,
)
from tests.simulation.binlog.model import Binlog
from tests.simulation.clock import Wrong
from tests.simulation.steps import Steps

COM_DUMP, COM_REGISTER, COM_DUMP_GTID = 0x12, 0x15, 0x1E


@dataclass(slots=True)
class NetworkTrouble:
    """How bad a network is; `rng` draws what happens next."""

    rng: random.Random = field(repr=False)
    steps: Steps = field(repr=False)
    cut: float  # chances at each receive
    slow: float
    piece: int  # bytes that come together, at most
    refuse: float  # chance at each connect

    @classmethod
    def drawn(cls, rng: random.Random, steps: Steps) -> NetworkTrouble:
        return cls(
            rng, steps, cut=rng.choice((0.0, 0.01, 0.05, 0.1)), slow=rng.choice((0.0, 0.05, 0.3)),
            piece=rng.choice((40, 300, 2000, 1 << 20)), refuse=rng.choice((0.0, 0.1)),
        )  # fmt: skip

    def calm(self) -> None:
        self.cut = self.slow = self.refuse = 0.0
        self.piece = max(self.piece, 600)


class Connection:
    """What of PyMySQL's connection is used; `server` is the log that it shows."""

    user, host, port = "cdc", "simulated", 3306

    def __init__(self, log: Binlog, trouble: NetworkTrouble) -> None:
        if trouble.rng.random() < trouble.refuse and trouble.steps.happens("connection refused"):
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
        if command == COM_DUMP:
            offset, flags, _ = struct.unpack_from("<IHI", body)
            file, skip = body[10:].decode(), 0
            if self._state is not None:
                skip = self.log.bits(self._state)
                file, offset = self._first_file(skip), 4
            self.log.count["stream: XA PREPARE read again"] += flags & 1
            self.log.count["stream: dump after MariaDB's GTIDs"] += self._state is not None
            self._sock.begin(self._dump(file, offset, skip, bool(flags & 1), bool(flags & 2)))
        elif command == COM_DUMP_GTID:
            (named,) = struct.unpack_from("<I", body, 6)
            data = body[6 + 4 + named + 8 + 4 :]
            skip = self.log.bits(_decoded(data))
            self.log.count["stream: dump after MySQL's GTIDs"] += 1
            self._sock.begin(self._dump(self._first_file(skip), 4, skip, False, True))
        else:
            assert command == COM_REGISTER

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
            yield sealed(FORMAT, log.pieces[number].data[19:-4], 0, log.checksum)
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
            if piece.kind == ANNOTATE and not whole:
                continue
            yield piece

    def _rotate_to(self, file: str, offset: int) -> bytes:
        body = struct.pack("<Q", offset) + file.encode()
        return sealed(ROTATE, body, 0, self.log.checksum, flags=ARTIFICIAL)

    def _heartbeat(self, file: str, offset: int) -> bytes:
        return sealed(HEARTBEAT, file.encode(), offset & 0xFFFFFFFF, self.log.checksum)

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
        if luck < trouble.cut and trouble.steps.happens("connection cut"):
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
