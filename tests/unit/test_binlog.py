"""The framing of the binlog on made-up bytes: limits, files over 4 GiB, damage; the readers of rare events."""

from __future__ import annotations

import importlib.util
import io
import random
import re
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.errors import ProtocolError, ServerIdTaken, SourceLost
from cutline.common.gtids import GtidSet
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.host import gave_up
from cutline.common.mesh.machine import MessageReceived, SavePart
from cutline.common.mesh.messages import IncludeTable, Marker, Message
from cutline.common.positions import FilePosition, High, Low, Position
from cutline.common.schema import POS, Column, SchemaChanges, TableSchema
from cutline.services.reader.events import ChangesRead, ReadChanges
from cutline.services.reader.machine import Reader
from cutline.services.sources.contract import Changes, GenerationEnded, Route
from cutline.services.sources.mysql.binlog import cursor as cursor_module
from cutline.services.sources.mysql.binlog import routes as routes_module
from cutline.services.sources.mysql.binlog import scanner
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor, Stream
from cutline.services.sources.mysql.binlog.dump import Dump, encoded_gtids
from cutline.services.sources.mysql.binlog.event_bodies import (
    MAX_ROW_BYTES,
    _inflated,
    _variable,
    inflated_rows,
    statement,
    tagged_gtid,
    xid_in,
    xid_of,
)
from cutline.services.sources.mysql.binlog.event_types import (
    ANNOTATE_ROWS,
    ANONYMOUS_GTID,
    ARTIFICIAL_FLAG,
    BINLOG_CHECKPOINT,
    DELETE_ROWS,
    FORMAT_DESCRIPTION,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    IGNORABLE_FLAG,
    MARIADB_GTID,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    QUERY_COMPRESSED,
    ROTATE,
    ROWS_QUERY,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    WRITE_ROWS,
    WRITE_ROWS_COMPRESSED,
    WRITE_ROWS_COMPRESSED_V1,
    WRITE_ROWS_V1,
    XA_PREPARE,
    XID,
)
from cutline.services.sources.mysql.binlog.progress import Progress
from cutline.services.sources.mysql.binlog.replay import Replay
from cutline.services.sources.mysql.binlog.routes import MAX_DECODERS, Routes
from cutline.services.sources.mysql.binlog.scanner import MappedTable, Scanner
from cutline.services.sources.mysql.binlog.statements import Statements
from cutline.services.sources.mysql.binlog.xa import Prepared
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import charset_of
from cutline.services.sources.mysql.decode.row_event import EventDecoder, Place
from cutline.services.sources.mysql.server import Server
from tests.support.binlog_bytes import compressed, event, image, schema_of, table_map

UUID = bytes(range(16))
TOO_LARGE = MAX_ROW_BYTES + (1 << 20)
PREFIX = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def interpreted() -> ModuleType:
    """The same source without its compiled form."""
    spec = importlib.util.spec_from_file_location("scanner_interpreted", Path(scanner.__file__).parent / "scanner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INTERPRETED = interpreted()
MODULES = [scanner, INTERPRETED]


def test_the_compilers_constants_are_the_interpreters() -> None:
    text = Path(scanner.__file__).with_name("scanner.pxd").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"^    (_\w+) = (\d+)$", text, re.MULTILINE)}
    assert numbers == {name: getattr(INTERPRETED, name) for name in numbers}
    assert numbers["_TABLE_MAP"] == 19


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
ROWS_BODY = struct.pack("<IHHH", 7, 0, 1, 2) + b"\1\xff\0\5\0\0\0"


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


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("checksum", [True, False])
def test_transactions_are_taken_whatever_the_pieces_they_come_in(step: int, checksum: bool) -> None:
    log = Log(checksum=checksum)
    for number in (1, 2, 3, 7):
        log.transaction(number, ROWS_BODY, ROWS_BODY)
    it = scanning(checksum=checksum)
    assert feed(it, log.bytes, step) == [(scanner.EVENT, TABLE_MAP)]
    assert it.gtids.take() == ([(PREFIX, 1, 3), (PREFIX, 7, 7)], [])
    assert it.pos == log.at
    assert it.tx.time_us == 1_700_000_000_000_007


def test_a_read_stops_at_the_transaction_where_it_is_told_to() -> None:
    log = Log()
    ends = []
    for number in range(1, 5):
        log.transaction(number)
        ends.append(log.at)
    it = scanning()
    it.stop_at(ends[1])
    assert feed(it, log.bytes) == [(scanner.ENDED, 0)] * 3
    it = scanning()
    it.stop_at_next_end()
    room = it.room()
    room[: len(log.bytes)] = log.bytes
    room.release()
    it.filled(len(log.bytes))
    assert it.scan() == scanner.ENDED
    assert it.pos == ends[0]


def test_positions_go_on_over_4_gib() -> None:
    begin = (1 << 32) - 300
    log = Log(at=begin)
    for number in range(1, 9):
        log.transaction(number, ROWS_BODY)
    assert log.at > 1 << 32
    it = scanning(pos=begin)
    feed(it, log.bytes)
    assert it.pos == log.at


@pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("begin", [4, (1 << 32) - 250])
def test_events_that_do_not_state_their_end_stand_one_behind_the_other(
    module: ModuleType, checksum: bool, begin: int
) -> None:
    """Each event is given by itself, so that the scanner is seen behind each: in one file, and over 4 GiB too."""
    log, it = Log(begin, checksum, states_ends=False), scanning(module, checksum=checksum, pos=begin)
    texts = (b"INSERT", b"", b"UPDATE and more")
    for number in range(1, 4):
        steps = [partial(log.gtid, number), partial(log.query, "BEGIN")]
        for text in texts[:number]:
            steps += [
                partial(log.event, kind, body)
                for kind, body in ((ANNOTATE_ROWS, text), (TABLE_MAP, TABLE_MAP_BODY), (WRITE_ROWS, ROWS_BODY))
            ]
        for step in [*steps, partial(log.event, XID, bytes(8))]:
            start, log.bytes = log.at, b""
            step()
            feed(it, log.bytes)
            assert (it.event.start, it.pos) == (start, log.at)
        assert not it.tx.open
    assert it.gtids.take()[0] == [(PREFIX, 1, 3)]


def test_what_a_dump_leaves_out_of_a_transaction_is_made_up_for_at_its_end() -> None:
    """Not exact within it, so a dump asks for everything; but never beyond the truth, and exact between two."""
    log, it = Log(states_ends=False), scanning()
    log.begin(1)
    unsent = len(log.bytes), log.number
    log.event(ANNOTATE_ROWS, b"INSERT INTO t VALUES (1)")
    log.bytes, log.number = log.bytes[: unsent[0]], unsent[1]
    feed(it, log.event(TABLE_MAP, TABLE_MAP_BODY).bytes)
    assert it.pos < log.at
    log.bytes = b""
    feed(it, log.event(XID, bytes(8)).gtid(2).bytes)
    assert (it.pos, it.tx.number) == (log.at, 2)


def test_an_artificial_event_and_one_outside_of_a_transaction_stand_nowhere_if_they_state_no_end() -> None:
    log, it = Log(states_ends=False), scanning()
    at = log.at
    feed(it, log.event(GTID_LIST, b"", flags=ARTIFICIAL_FLAG).event(BINLOG_CHECKPOINT, b"").bytes)
    assert (it.pos, log.at > at) == (at, True)
    log.bytes, log.at = b"", at
    feed(it, log.begin(1).bytes)
    inside, log.bytes = log.at, b""
    feed(it, log.event(GTID_LIST, b"", flags=ARTIFICIAL_FLAG).bytes)
    assert (it.pos, it.tx.open) == (inside, True)


def test_a_damaged_event_that_does_not_state_its_end_is_told_where_it_stands() -> None:
    log = Log(states_ends=False).begin(1).event(ANNOTATE_ROWS, b"INSERT").event(TABLE_MAP, TABLE_MAP_BODY)
    start, before = log.at, len(log.bytes)
    log.event(WRITE_ROWS, ROWS_BODY).event(XID, bytes(8))
    broken = bytearray(log.bytes)
    broken[before + 30] ^= 1
    it = scanning()
    with pytest.raises(ValueError, match="checksum of an event of type 30"):
        feed(it, bytes(broken))
    assert it.where == f"in the transaction at binlog.000001:4, after offset {start}"
    assert scanning().where == "after binlog.000001:4"


def test_an_event_over_16_mib_is_put_together() -> None:
    log = Log(checksum=False)
    body = struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + b"x" * (0xFFFFFF + 100)
    size = HEADER_BYTES + len(body)
    event = b"\0" + struct.pack("<IBIIIH", 0, QUERY, 1, size, size + 4, 0) + body
    log.packet(event[:0xFFFFFF])
    log.packet(event[0xFFFFFF:])
    it = scanning(checksum=False)
    assert feed(it, log.bytes, 3 << 20) == [(scanner.EVENT, QUERY)]
    assert it.event.body == body


def test_an_event_longer_than_it_says_is_not_put_together_without_end() -> None:
    for kind, says in ((QUERY, 100), (TRANSACTION_PAYLOAD, 40 << 20)):
        log = Log(checksum=False)
        event = b"\0" + struct.pack("<IBIIIH", 0, kind, 1, says, says, 0)
        parts = 0 if says < 0xFFFFFF else 2
        for part in range(4):
            log.packet((event if part == 0 else b"").ljust(0xFFFFFF, b"x"))
        it = scanning(checksum=False)
        with pytest.raises(ValueError, match=f"states a size of {says} bytes, and {(parts + 1) * 0xFFFFFF - 1} came"):
            feed(it, log.bytes, 8 << 20)
        if (spooled := it.take_spooled()) is not None:
            spooled.close()


def test_damage_is_told_and_never_passed_over() -> None:
    log = Log()
    log.transaction(1, ROWS_BODY).transaction(2, ROWS_BODY)
    for at in range(len(log.bytes)):
        broken = bytearray(log.bytes)
        broken[at] ^= 0x10
        it = scanning()
        try:
            feed(it, bytes(broken))
        except ValueError:
            continue
        assert it.pending  # a longer packet is waited for


FREQUENT = (
    QUERY, XID, TABLE_MAP, WRITE_ROWS_V1, WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, GTID, ANONYMOUS_GTID, ANNOTATE_ROWS,
    MARIADB_GTID,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_random_bytes_behind_a_right_checksum_end_in_an_error_or_an_event(seed: int) -> None:
    luck = random.Random(seed)
    log = Log(checksum=luck.random() < 0.5)
    for _ in range(20):
        kind = luck.choice((*FREQUENT, luck.randrange(256)))
        log.event(kind, luck.randbytes(luck.randrange(80)), flags=luck.choice((0, ARTIFICIAL_FLAG, IGNORABLE_FLAG)))
    for module in (scanner, INTERPRETED):
        it = scanning(module, checksum=log.checksum)
        it.add_table(7, module.MappedTable("d.t", TABLE_MAP_BODY))
        try:
            outcome: object = [code for code, _ in feed(it, log.bytes)]
        except ValueError as error:
            outcome = str(error)
        if module is scanner:
            first = outcome, it.pos
    assert (outcome, it.pos) == first


def test_what_interpreted_reads_is_what_compiled_reads() -> None:
    log = Log()
    for number in range(1, 20):
        log.transaction(number, *[ROWS_BODY] * (number % 3))
    outcomes = []
    for module in (scanner, INTERPRETED):
        it = scanning(module)
        feed(it, log.bytes, 100)
        outcomes.append((it.gtids.take(), it.pos, it.tx.number, it.tx.time_us))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("kind", [ROWS_QUERY, ANNOTATE_ROWS])
def test_a_statements_text_is_passed_over_whatever_its_size(kind: int) -> None:
    log = Log(checksum=False).begin(1).large(kind, TOO_LARGE, flags=IGNORABLE_FLAG).event(XID, bytes(8))
    it = scanning(checksum=False)
    assert feed(it, log.bytes) == []
    assert (it.pos, it.tx.open) == (log.at, False)


def test_a_large_event_that_may_be_ignored_is_known_by_its_own_flags() -> None:
    log = Log(checksum=False).begin(1).event(99, b"", flags=IGNORABLE_FLAG).large(98, TOO_LARGE)
    log.large(98, TOO_LARGE, flags=IGNORABLE_FLAG).event(XID, bytes(8))
    it = scanning(checksum=False)
    flags = []
    for at in range(0, len(log.bytes), 1 << 20):
        room = it.room()
        part = log.bytes[at : at + (1 << 20)]
        room[: len(part)] = part
        room.release()
        it.filled(len(part))
        while (code := it.scan()) != scanner.NEED:
            assert code == scanner.EVENT
            flags.append((it.event.type, it.event.flags))
    assert flags == [(99, IGNORABLE_FLAG), (-98, 0), (-98, IGNORABLE_FLAG)]


@pytest.mark.parametrize("module", MODULES, ids=["compiled", "interpreted"])
def test_events_over_the_limit_in_a_payload_are_passed_over_too(module: ModuleType) -> None:
    def inner(kind: int, body: bytes, size: int = 0) -> bytes:
        event = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size or HEADER_BYTES + len(body), 0, 0) + body
        return event.ljust(size, b"\0")

    events = [
        inner(ROWS_QUERY, b"", TOO_LARGE),
        inner(TABLE_MAP, TABLE_MAP_BODY),
        inner(WRITE_ROWS, ROWS_BODY, TOO_LARGE),
        inner(WRITE_ROWS, ROWS_BODY),
    ]
    whole = b"".join([*events, inner(XID, bytes(8))])
    for bytes_there in (len(whole), len(events[0]) + len(events[1]) + TOO_LARGE - 1):
        it = scanning(module)
        feed(it, Log().begin(1).bytes)
        it.add_table(7, module.MappedTable("d.t", TABLE_MAP_BODY))
        it.open_payload(io.BytesIO(whole[:bytes_there]))
        if bytes_there < len(whole):
            with pytest.raises(ValueError, match="ends inside an event"):
                it.scan()
            continue
        assert it.scan() == scanner.EVENT
        assert (it.event.type, it.event.inner, it.event.body[: len(ROWS_BODY)]) == (-WRITE_ROWS, True, ROWS_BODY)
        assert it.scan() == scanner.NEED
        assert not it.tx.open


# --- the cursor -------------------------------------------------------------------------------------------------------

T = schema_of(("id", "int"))
U = replace(T, table_id="d.u")
OTHER = schema_of(("other", "int"), key=("other",))
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


@pytest.mark.parametrize("states_ends", [True, False])
@pytest.mark.parametrize("faulty", [False, True])
def test_a_table_that_goes_within_its_row_event_takes_nothing_of_what_follows_with_it(
    faulty: bool, states_ends: bool
) -> None:
    log = Log(states_ends=states_ends).begin(1).event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"])
    log.event(WRITE_ROWS, inserted("d.t", *range(10))).event(WRITE_ROWS, inserted("d.u", *range(10))).event(
        XID, bytes(8)
    )
    first_end = log.at
    log.begin(2).event(TABLE_MAP, MAPS["d.u"])
    begin = log.at
    log.event(WRITE_ROWS, inserted("d.u", 77)).event(XID, bytes(8))
    dump = FedCursor(log)
    first = dump.read(OTHER if faulty else T, U, max_rows=4)
    assert [fault.table_id for fault in first.faults] == (["d.t"] if faulty else [])
    assert (keys(first, "d.t"), first.position.rows) == (([], 0) if faulty else ([0, 1, 2, 3], 4))
    second = dump.read(U, max_rows=12)
    assert keys(second, "d.u") == list(range(10))
    assert (second.position.offset, second.position.rows) == (first_end, 0)
    third = dump.read(U, max_rows=10)
    assert third.batches[0].batch.select(["id", POS]).to_pylist() == [{"id": 77, POS: begin}]
    assert third.position.offset == log.at


def test_an_event_that_can_not_be_read_gives_out_none_of_its_rows_as_its_position_says() -> None:
    """Not those before the damage either: here bytes of what follows, where only a damaged size places the event."""
    log = (
        Log(checksum=False, states_ends=False)
        .begin(1)
        .event(TABLE_MAP, MAPS["d.t"])
        .event(WRITE_ROWS, inserted("d.t", 1, 2))
    )
    log.event(WRITE_ROWS, inserted("d.t", 3, 4) + b"\xfc\1\2").event(XID, bytes(8))
    dump = FedCursor(log)
    got = dump.read(T)
    (fault,) = got.faults
    assert (fault.table_id, keys(got, "d.t")) == ("d.t", [1, 2])
    assert got.position.rows == 1 << scanner.INSIDE_BITS


def test_the_start_of_a_transaction_is_not_reached_inside_of_it() -> None:
    """What is to be reached lies between two transactions: who stands inside goes on to the end, and not for ever at
    the same place."""
    log = Log().transaction(1)
    start = log.at
    log.begin(2).event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", *range(10))).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.end = replace(dump.end, offset=start + 1)
    assert (dump.read(T, max_rows=4).position.offset, dump.at.rows) == (start, 4)
    dump.end = replace(dump.end, offset=start)
    assert keys(dump.read(T), "d.t") == list(range(4, 10))
    assert (dump.at.offset, dump.at.rows) == (log.at, 0)


WIDE = schema_of(("id", "int"), *((f"c{i}", "decimal(10,2)") for i in range(99)))
PACKED = schema_of(("id", "int"), ("z", "text /*M!100301 COMPRESSED*/"))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("schema", "values", "least"),
    [(WIDE, [None] * 99, 99 * 16), (PACKED, [compressed(b"x" * 4000)], 4000)],
    ids=["null", "compressed"],
)
def test_a_read_ends_where_its_rows_are_large_though_their_images_are_small(
    schema: TableSchema, values: list[Any], least: int, whole: bool
) -> None:
    """In the midst of an event, and each such place is one to resume at."""
    count, limit = 6000, (8 if whole else 1) << 20
    log = Log().begin(1).event(TABLE_MAP, table_map(schema))
    for first in (0, count // 2):
        images = [image(schema, [key, *values]) for key in range(first, first + count // 2)]
        log.event(WRITE_ROWS, event(schema, images))
    log.event(XID, bytes(8))
    dump = FedCursor(log)
    ids: list[int] = []
    while dump.at.offset < log.at:
        begin = dump.at
        got = dump.read(schema, max_rows=count + 1, whole=whole)
        ids += keys(got, "d.t")
        assert sum(batch.batch.nbytes for batch in got.batches) <= limit + 2 * least
        resumed = FedCursor(log)
        resumed.begin_at(begin)
        again = resumed.read(schema, max_rows=count + 1, whole=whole)
        assert (keys(again, "d.t"), again.position) == (keys(got, "d.t"), got.position)
        assert got.position.rows == 0 or len(ids) % (count // 2)
    assert ids == list(range(count))


def test_decoders_are_made_for_the_tables_that_change_and_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counting(body: bytes, schema: TableSchema, place: Place) -> EventDecoder:
        made.append(schema.table_id)
        return EventDecoder(body, schema, place)

    monkeypatch.setattr(routes_module, "EventDecoder", counting)
    tables = [replace(T, table_id=f"d.t{n:03}") for n in range(600)]
    maps = [table_map(T, n + 1).replace(b"\1t\0", f"\4t{n:03}\0".encode(), 1) for n in range(600)]
    log = Log()
    for n in range(4 * 600):
        log.begin(n + 1).event(TABLE_MAP, maps[n % 600])
        log.event(WRITE_ROWS, maps[n % 600][:6] + inserted("d.t", n)[6:]).event(XID, bytes(8))
    dump = FedCursor(log)
    bound, ids, made_in_all = MAX_DECODERS, [], []
    for rows in (1000, 1, *[60] * 20, *[1000] * 100):
        if dump.at.offset == log.at:
            break
        made.clear()
        got = dump.read(*tables, max_rows=rows)
        made_in_all += made
        routes = dump.stream.routes
        assert len(made) <= bound
        assert set(made) <= {batch.table_id for batch in got.batches}
        assert len(routes._decoders) <= bound
        assert all(decoder.held <= 1024 for decoder in routes._resting.values())
        assert sum(table.decoder is not None for table in dump.scanner.tables.values()) <= bound
        ids += sorted(key for each in got.batches for key in each.batch["id"].to_pylist())
    assert ids == list(range(4 * 600))
    assert sorted(made_in_all) == [table.table_id for table in tables]  # each once: those without memory are kept


def test_the_decoders_that_rest_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_module, "_RESTING_DECODERS", 10)
    log, tables = _of_many_tables(300, transactions_of=1)
    dump, ids = FedCursor(log), []
    while dump.at.offset < log.at:
        got = dump.read(*tables)
        ids += [key for each in got.batches for key in each.batch["id"].to_pylist()]
    assert len(dump.stream.routes._resting) == 10
    assert sorted(ids) == list(range(300))


def test_a_transaction_over_many_tables_is_read_in_parts_and_none_is_lost() -> None:
    log, tables = _of_many_tables(5 * MAX_DECODERS, transactions_of=5 * MAX_DECODERS)
    dump, parts, ids = FedCursor(log), [], []
    while dump.at.offset < log.at:
        got = dump.read(*tables, max_rows=10_000)
        parts.append(len(got.batches))
        ids += [key for each in got.batches for key in each.batch["id"].to_pylist()]
    assert parts == [2 * MAX_DECODERS, 2 * MAX_DECODERS, MAX_DECODERS]
    assert sorted(ids) == list(range(5 * MAX_DECODERS))


def _of_many_tables(count: int, *, transactions_of: int) -> tuple[Log, list[TableSchema]]:
    """A binlog with one row for each of these tables, in transactions of so many rows."""
    tables = [replace(T, table_id=f"d.t{n:04}") for n in range(count)]
    log = Log()
    for n in range(count):
        described = table_map(T, n + 1).replace(b"\1t\0", f"\5t{n:04}\0".encode(), 1)
        if n % transactions_of == 0:
            log.begin(n + 1)
        log.event(TABLE_MAP, described).event(WRITE_ROWS, described[:6] + inserted("d.t", n)[6:])
        if (n + 1) % transactions_of == 0:
            log.event(XID, bytes(8))
    return log, tables


def test_a_read_looks_only_at_tables_whose_route_is_another_one_or_whose_low_is_not_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [replace(T, table_id=f"d.t{n:03}") for n in range(200)]
    maps = [table_map(T, n + 1).replace(b"\1t\0", f"\4t{n:03}\0".encode(), 1) for n in range(200)]
    log = Log()
    for n in range(400):
        log.begin(n + 1).event(TABLE_MAP, maps[n % 200])
        log.event(WRITE_ROWS, maps[n % 200][:6] + inserted("d.t", n)[6:]).event(XID, bytes(8))
    dump = FedCursor(log)
    high = High(server="s", file="binlog.000001", offset=4)
    routes = {
        schema.table_id: Route(
            table_id=schema.table_id, generation=1, schema=schema, low=dump.low(4), high=high, live=True
        )
        for schema in tables
    }
    routes["d.t001"] = replace(routes["d.t001"], low=dump.low(log.at))
    bound: list[str] = []
    bind = Routes._bind

    def counted(routes: Routes, table: MappedTable) -> None:
        bound.append(table.table_id)
        bind(routes, table)

    while len(dump.scanner.tables) < 200:
        dump.read_routes(routes)
    monkeypatch.setattr(Routes, "_bind", counted)
    dump.read_routes(routes, max_rows=5)
    assert bound == ["d.t001"]
    bound.clear()
    changed = {**routes, "d.t007": replace(routes["d.t007"], low=dump.low(8))}
    del changed["d.t150"]
    got = dump.read_routes(changed)
    assert sorted(set(bound)) == ["d.t001", "d.t007", "d.t150"]
    while dump.at.offset < log.at:
        got = dump.read_routes(changed)
    assert {batch.table_id for batch in got.batches}.isdisjoint({"d.t001", "d.t150"})


def test_a_decoder_that_is_in_use_is_kept() -> None:
    log = Log()
    for n in range(900):
        at = f"d.{'tu'[n % 2]}"
        log.begin(n + 1).event(TABLE_MAP, MAPS[at]).event(WRITE_ROWS, inserted(at, n)).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.read(T, U, max_rows=10)
    first = dict(dump.stream.routes._decoders)
    while dump.at.offset < log.at:
        dump.read(T, U)
    assert dump.stream.routes._decoders == first


def heartbeat(log: Log, at: int) -> None:
    name = b"binlog.000001"
    header = struct.pack("<IBIIIH", 0, HEARTBEAT, 1, HEADER_BYTES + len(name), at & 0xFFFFFFFF, 0)
    log.packet(b"\0" + header + name)


def test_a_binlog_that_was_reset_is_found_though_a_heartbeat_ends_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose binlog was reset goes on with its heartbeats. 1. Transactions come: nothing is asked for. 2. Each
    read, of a second, ends as a heartbeat has come: the binlog's end is asked for once in 20 s, as beside none."""
    log = Log(checksum=False)
    fed, now, asked = FedCursor(log), 100.0, []
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(cursor_module, "time", clock)
    monkeypatch.setattr(fed.delivery, "check_end", lambda position: asked.append((now, position.offset)))
    receive = fed.delivery.receive

    def at_the_reads_end(scanner: Scanner, seconds: float, *, leisurely: bool = False) -> bool:
        nonlocal now
        fed.server_end.sendall(log.bytes)
        log.bytes, now = b"", now + seconds
        return receive(scanner, 1.0, leisurely=leisurely)

    def read() -> None:
        changes = fed.cursor.read(fed.at, {}, until=None, max_rows=9, max_bytes=1 << 20, wait_seconds=1.0)
        assert not changes.idle
        fed.at = changes.position

    monkeypatch.setattr(fed.delivery, "receive", at_the_reads_end)
    for number in range(1, 31):
        log.begin(number).event(XID, bytes(8))
        read()
    for _ in range(45):
        heartbeat(log, log.at)
        read()
    assert asked == [(151.0, log.at), (172.0, log.at)]


def test_a_place_that_one_heartbeat_tells_is_not_gone_on_from() -> None:
    """A server that passes over what a GTID set has may tell a place inside a transaction, once a second."""
    log = Log(checksum=False)
    heartbeat(log, 1000)
    heartbeat(log, 2000)
    dump = FedCursor(log)
    dump.end = replace(dump.end, offset=2000)
    while dump.stream._idle_at != ("binlog.000001", 2000):
        assert dump.read(T, wait=0.1).position.offset == 4
    log.bytes = b""
    heartbeat(log, 2000)
    dump.server_end.sendall(log.bytes)
    while dump.at.offset == 4:
        dump.read(T, wait=0.1)
    assert dump.at.offset == 2000


@pytest.mark.parametrize("kind", [PARTIAL_UPDATE_ROWS, WRITE_ROWS])
def test_what_can_not_be_read_is_refused_at_the_commit_of_an_xa_transaction_too(kind: int) -> None:
    log = Log(checksum=False).gtid(1).query("XA START X'61',X'62',1")
    log.event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"]).event(WRITE_ROWS, inserted("d.u", 1))
    if kind == PARTIAL_UPDATE_ROWS:
        log.event(kind, inserted("d.t", 1))
    else:  # one row over 64 MiB
        log.large(kind, TOO_LARGE, inserted("d.t", 1))
    log.event(WRITE_ROWS, inserted("d.u", 2)).query("XA END X'61',X'62',1")
    log.event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
    log.transaction(2).gtid(3).query("XA COMMIT X'61',X'62',1")
    dump = FedCursor(log)
    got = dump.read(T, U)
    assert [fault.table_id for fault in got.faults] == ["d.t"]
    assert str(got.faults[0].cause).startswith("d.t has, at binlog.000001:")
    assert ("partial update" in str(got.faults[0].cause)) == (kind == PARTIAL_UPDATE_ROWS)
    assert keys(got, "d.u") == [1, 2]
    assert got.position.offset == log.at


def test_rows_that_an_earlier_read_gave_are_undone_by_a_rollback_behind_a_reconnect() -> None:
    log = Log().begin(1).event(TABLE_MAP, MAPS["d.t"]).event(TABLE_MAP, MAPS["d.u"])
    log.event(WRITE_ROWS, inserted("d.t", 1))
    log.query("ROLLBACK TO `s`").event(WRITE_ROWS, inserted("d.u", 1)).event(XID, bytes(8))
    for given in (False, True):
        dump = FedCursor(log)
        if given:  # up to the second row event
            dump.begin_at(replace(dump.at, rows=1 << scanner.INSIDE_BITS))
        got = dump.read(T, U)
        assert {(fault.table_id, type(fault)) for fault in got.faults} >= {("d.t", GenerationEnded)}


def test_an_xa_transaction_that_went_back_to_a_savepoint_restarts_its_tables_at_its_commit() -> None:
    log = Log().gtid(1).query("XA START X'61',X'62',1")
    log.event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", 1))
    log.query("SAVEPOINT `s`").event(WRITE_ROWS, inserted("d.t", 2)).query("ROLLBACK TO `s`")
    log.query("XA END X'61',X'62',1").event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
    log.transaction(2).gtid(3).query("XA COMMIT X'61',X'62',1")
    got = FedCursor(log).read(T, U)
    assert [(fault.table_id, type(fault)) for fault in got.faults] == [("d.t", GenerationEnded)]


# --- a reconnect inside a transaction ---------------------------------------------------------------------------------


def inner(kind: int, body: bytes) -> bytes:
    """An event inside of a payload."""
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, HEADER_BYTES + len(body), 0, 0) + body


def one_transaction(form: str) -> Log:
    """Rows 0 to 9 of d.t in two events, behind and between events of d.u, which nobody asks for."""
    unrouted, routed = inserted("d.u", *range(5)), [inserted("d.t", *range(6)), inserted("d.t", *range(6, 10))]
    events = [
        (TABLE_MAP, MAPS["d.t"]),
        (TABLE_MAP, MAPS["d.u"]),
        (WRITE_ROWS, unrouted),
        (WRITE_ROWS, unrouted),
        (WRITE_ROWS, routed[0]),
    ]
    events += [(WRITE_ROWS, unrouted), (WRITE_ROWS, routed[1])]
    log = Log()
    if form == "payload":
        whole = b"".join(inner(kind, body) for kind, body in [*events, (XID, bytes(8))])
        packed = pa.compress(
            inner(QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0BEGIN") + whole, "zstd", asbytes=True
        )
        return log.gtid(1).event(TRANSACTION_PAYLOAD, b"\2\1\0\0" + packed)
    if form == "xa":
        log.gtid(1).query("XA START X'61',X'62',1")
        for kind, body in events:
            log.event(kind, body)
        log.query("XA END X'61',X'62',1").event(XA_PREPARE, b"\0" + struct.pack("<iii", 1, 1, 1) + b"ab")
        return log.gtid(2).query("XA COMMIT X'61',X'62',1")
    log.begin(1)
    for kind, body in events:
        if form == "compressed" and kind == WRITE_ROWS:
            kind = WRITE_ROWS_COMPRESSED
            body = body[:12] + b"\x82" + len(body[12:]).to_bytes(2, "big") + zlib.compress(body[12:])
        log.event(kind, body)
    return log.event(XID, bytes(8))


def packets(log: Log) -> list[int]:
    """Where each packet of a dump ends, from 0 on."""
    ends = [0]
    while ends[-1] < len(log.bytes):
        ends.append(ends[-1] + 4 + int.from_bytes(log.bytes[ends[-1] : ends[-1] + 3], "little"))
    return ends


def reconnected(log: Log, at: Position, came: bytes, first: FedCursor) -> FedCursor:
    """A cursor that begins anew at a place inside of the last transaction of the log, and what has come of it."""
    beginning = Log(at=at.offset)
    beginning.bytes = came
    dump = FedCursor(beginning)
    dump.begin_at(at)
    dump.end = High(server="s", file="binlog.000001", offset=log.at)
    # else they are read from the server
    dump.stream._replay._prepared._prepared.update(first.stream._replay._prepared._prepared)
    return dump


@pytest.mark.parametrize("form", ["plain", "payload", "compressed", "xa"])
@pytest.mark.parametrize("taken", [1, 6, 9])
def test_while_rows_are_to_be_skipped_again_the_position_stays_where_it_was(form: str, taken: int) -> None:
    """1. A read ends inside the transaction. 2. The cursor connects anew, and a read is over after any byte that it
    gets. 3. It stands where the first ended, or later, and from there each row comes once; 4. also to who restores that
    place."""
    log = one_transaction(form)
    first = FedCursor(log)
    before = first.read(T, max_rows=taken)
    begin = before.position
    assert (keys(before, "d.t"), begin.inside) == (list(range(taken)), True)
    ends = packets(log)
    start = ends[-3] if form == "xa" else 0
    bodies = log.bytes[start:]
    for cut in sorted({cut - start for end in ends for cut in (end, end - 9) if start <= cut < len(log.bytes)}):
        numbered = renumbered(bodies)
        dump = reconnected(log, begin, numbered[:cut], first)
        early = dump.read(T, max_rows=100, wait=0.01)
        assert early.position.inside
        assert early.position.not_before(begin), cut
        rows = keys(early, "d.t")
        for after, sent in ((dump, numbered[cut:]), (reconnected(log, early.position, numbered, first), b"")):
            after.server_end.sendall(sent)
            late = after.read(T, max_rows=100)
            assert rows + keys(late, "d.t") == list(range(taken, 10)), cut
            assert (late.position.offset, late.position.rows) == (log.at, 0)


def renumbered(data: bytes) -> bytes:
    """Packets as the first ones of a dump."""
    log, at = Log(), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        log.packet(data[at + 4 : at + 4 + size])
        at += 4 + size
    return log.bytes


def test_a_damaged_event_in_which_a_read_goes_on_does_not_take_the_position_back() -> None:
    log = Log(checksum=False).begin(1).event(TABLE_MAP, MAPS["d.t"])
    log.event(WRITE_ROWS, inserted("d.t", *range(4)) + b"\xfc\1\2").event(XID, bytes(8))
    begin = Position(server="s", file="binlog.000001", offset=4, rows=2)
    dump = reconnected(log, begin, log.bytes, FedCursor(Log()))
    dump.scanner.use_checksums(False)
    got = dump.read(T)
    assert [fault.table_id for fault in got.faults] == ["d.t"]
    assert got.position.not_before(begin)
    end = dump.read()
    assert (end.position.offset, end.batches) == (log.at, ())


def test_the_next_generation_of_a_table_that_joins_inside_a_transaction_gets_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A read ends inside a transaction that the table's low covers, so the position is its start. 2. The table's
    next generation, whose low does not cover it, joins there. 3. The cursor connects anew: the open dump is past the
    transaction's first row event."""
    log = Log().begin(1).event(TABLE_MAP, MAPS["d.t"]).event(WRITE_ROWS, inserted("d.t", 1, 2))
    sent = len(log.bytes)
    log.event(WRITE_ROWS, inserted("d.t", 3)).event(XID, bytes(8))
    dump, anew = FedCursor(Log()), FedCursor(log)
    monkeypatch.setattr(dump.cursor, "_open", lambda _: anew.stream)
    dump.end = anew.end
    dump.server_end.sendall(log.bytes[:sent])
    old = Route(
        table_id="d.t",
        generation=1,
        schema=T,
        low=dump.low(log.at),
        high=High(server="s", file="binlog.000001", offset=4),
    )
    first = dump.read_routes({"d.t": old}, wait=0.01)
    assert (first.position.offset, first.position.rows) == (4, 0)
    dump.server_end.sendall(log.bytes[sent:])
    got = dump.read_routes({"d.t": replace(old, generation=2, low=dump.low(4))})
    assert (keys(got, "d.t"), got.position.offset) == ([1, 2, 3], log.at)


def test_a_dump_that_begins_after_the_file_of_a_transaction_taken_in_part_reports_it_torn() -> None:
    """1. A part of a transaction is taken; a crash tore it. 2. A dump by GTIDs begins in the next file, before which
    no transaction is missing. 3. The part that was taken must not be skipped in the transaction that comes first."""
    log = Log().event(ROTATE, struct.pack("<Q", 4) + b"binlog.000002", flags=ARTIFICIAL_FLAG)
    log.at = 4
    log.begin(1).event(TABLE_MAP, MAPS["d.t"])
    log.event(WRITE_ROWS, inserted("d.t", 1)).event(WRITE_ROWS, inserted("d.t", 2)).event(XID, bytes(8))
    dump = FedCursor(log)
    dump.begin_at(Position(server="s", file="binlog.000001", offset=400, rows=1 << scanner.INSIDE_BITS))
    dump.scanner.start_at("", 4, dump.at.rows)
    dump.end = High(server="s", file="binlog.000002", offset=log.at)
    with pytest.raises(SourceLost, match=r"the transaction at binlog\.000001:400, a part of which was taken"):
        dump.read(T)


def test_a_transaction_that_is_shorter_than_what_was_taken_of_it_is_another_one() -> None:
    log = insert(Log(), 1)
    begin = Position(server="s", file="binlog.000001", offset=4, rows=7 << scanner.INSIDE_BITS)
    dump = reconnected(log, begin, log.bytes, FedCursor(Log()))
    with pytest.raises(SourceLost, match=r"binlog\.000001:4, .* after 1 row events, of which 7 were taken"):
        dump.read(T)


OVER = (1 << 32) + 1000


def insert(log: Log, number: int) -> Log:
    """One transaction with a row of d.t."""
    log.begin(number).event(TABLE_MAP, MAPS["d.t"])
    return log.event(WRITE_ROWS, inserted("d.t", number)).event(XID, bytes(8))


def over_4_gib(log: Log) -> tuple[FedCursor, Scanner]:
    """A cursor that goes on at `OVER`, though its dump begins at the file's start; and its scanner."""
    dump = FedCursor(log)
    dump.at = dump.cursor._at = replace(dump.at, offset=OVER)
    dump.end = High(server="s", file="binlog.000001", offset=OVER + 1)
    return dump, dump.scanner


def test_a_file_that_is_sent_from_its_start_since_a_command_has_32_bits_leaves_the_position_where_it_was() -> None:
    log = insert(Log(), 1)
    dump, it = over_4_gib(log)
    it.discard_before(OVER)
    for _ in range(2):
        got = dump.read(T, wait=0.01)
        assert (got.position.offset, got.batches) == (OVER, ())
    it.move_to(OVER - 100)  # as if 4 GiB had come
    rest = Log(at=OVER)
    rest.number = log.number
    dump.server_end.sendall(insert(rest, 2).bytes)
    got = dump.read(T)
    assert (keys(got, "d.t"), got.position.offset) == ([2], rest.at)


@pytest.mark.parametrize("left_out", [0, 500])
def test_the_first_transaction_that_a_dump_by_gtids_sends_is_not_before_the_place_where_we_stood(left_out: int) -> None:
    """An event has 32 bits of its place, and over 4 GiB may be left out before it."""
    log = insert(Log(at=OVER + left_out), 2)
    dump, it = over_4_gib(log)
    it.expect_from(OVER)
    assert dump.read(T).position.offset == log.at


@pytest.mark.parametrize(("at", "heartbeat_at"), [(OVER - 2000, OVER), (4, 3 << 30), (OVER, OVER + (3 << 30))])
def test_a_heartbeats_place_goes_on_over_4_gib_too(at: int, heartbeat_at: int) -> None:
    dump, _ = over_4_gib(Log(checksum=False))
    dump.begin_at(replace(dump.at, offset=at))
    dump.end = replace(dump.end, offset=heartbeat_at)
    log, until = Log(), time.monotonic() + 5
    while dump.at.offset == at and time.monotonic() < until:
        log.bytes = b""
        heartbeat(log, heartbeat_at)
        dump.server_end.sendall(log.bytes)
        dump.read(T, wait=0.01)
    assert dump.at.offset == heartbeat_at


def test_a_position_that_goes_back_is_an_error_of_ours_with_both_positions() -> None:
    dump = FedCursor(Log())
    dump.at = dump.cursor._at = replace(dump.at, offset=9999)
    dump.end = High(server="s", file="binlog.000001", offset=1 << 20)
    with pytest.raises(ProtocolError, match=r"went back from binlog\.000001:9999 to binlog\.000001:4;"):
        dump.read(T, wait=0.0)
    assert dump.cursor._stream is None  # it stands nowhere


# --- damage, and what is a mistake of ours ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, OverflowError, struct.error, ZeroDivisionError])
@pytest.mark.parametrize(
    ("part", "where"),
    [
        (Routes, "map_table"),
        (Routes, "evolve"),
        (Progress, "position"),
        (Stream, "changes"),
        (Routes, "begin"),
        (Statements, "change_tables"),
    ],
)
def test_a_mistake_of_ours_is_no_damage_of_the_source(
    error: type[Exception], part: type, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as it is, with the place in a note; the service says that it is a bug, and halts."""
    dump = FedCursor(insert(Log(), 1).gtid(2).query("ALTER TABLE d.t ADD n INT"))

    def broken(*_: object, **__: object) -> object:
        raise error("ours")

    monkeypatch.setattr(part, where, broken)
    with pytest.raises(error, match="ours") as raised:
        dump.read(T)
    assert any("binlog.000001:" in note for note in raised.value.__notes__)
    assert dump.cursor._stream is None
    report = gave_up(7, raised.value)
    assert (report.epoch, report.halts) == (7, True)
    assert "a bug of Cutline" in str(report.cause)
    assert error.__name__ in str(report.cause)
    assert "binlog.000001:" in str(report.cause)


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError])
def test_a_mistake_of_a_decoder_is_no_damage_of_its_table(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """Interpreted, or compiled: what a decoder raises that is not `Damaged` ends the read."""

        def __init__(self, *_: object) -> None:
            raise error("ours")

    monkeypatch.setattr(routes_module, "EventDecoder", Broken)
    with pytest.raises(error, match="ours"):
        FedCursor(insert(Log(), 1)).read(T)


def damaged_events() -> list[tuple[str, Log]]:
    """Events that are cut short, or say what can't be, each behind a right checksum, or where there are none."""
    name = b"binlog.000001"
    header = struct.pack("<IIBHH", 1, 0, 1, 0, 3) + b"\6\xff\0d\0"
    latin = struct.pack("<IIBHH", 1, 0, 1, 0, 7) + b"\4" + struct.pack("<HHH", 54, 8, 8) + b"d\0"  # utf16
    tagged = b"\2\x80\0\2" + b"\3\3" * 16
    return [
        ("a statement's session is cut short", Log().gtid(1).event(QUERY, header[:14])),
        ("a statement has half a character", Log().gtid(1).event(QUERY, latin + b"abc")),
        ("an XA transaction has half a byte", Log().gtid(1).query("XA COMMIT X'616',X'',1")),
        ("an XA transaction has no number", Log().gtid(1).query(f"XA COMMIT X'61',X'',{'9' * 5000}")),
        ("an XA PREPARE is cut short", Log().gtid(1).query("XA START X'61',X'',1").event(XA_PREPARE, b"\0abc")),
        ("a table map is cut short", Log().begin(1).event(TABLE_MAP, MAPS["d.t"][:9])),
        ("a table map has no table", Log().begin(1).event(TABLE_MAP, MAPS["d.t"][:8] + b"\xff\0d")),
        ("a tagged GTID is cut short", Log().event(GTID_TAGGED, tagged)),
        ("a tagged GTID has a tag that is none", Log().event(GTID_TAGGED, b"\2\2\2" + bytes(40))),
        ("a payload's head is cut short", Log().gtid(1).event(TRANSACTION_PAYLOAD, b"\2\xff")),
        ("a payload is cut short", Log().gtid(1).event(TRANSACTION_PAYLOAD, b"\2\xfe\1")),
        ("a compressed statement is none", Log().gtid(1).event(QUERY_COMPRESSED, header[:9] + bytes(4) + b"d\0abc")),
        ("MariaDB's GTID comes from MySQL", Log().event(MARIADB_GTID, struct.pack("<QIB", 1, 0, 0) + bytes(6))),
        ("a rotation names what is no file", Log().event(ROTATE, bytes(8) + b"\xff\xff")),
        ("a rotation names a number that no file has", Log().event(ROTATE, bytes(8) + b"binlog." + b"9" * 5000)),
        ("a rotation leads back", insert(Log(), 1).event(ROTATE, struct.pack("<Q", 4) + name)),
        ("a heartbeat's place has no end", Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\0")),
        ("a heartbeat's place is no number", Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\1\xff")),
        (
            "a heartbeat's place is beyond all",
            Log().event(HEARTBEAT_V2, b"\1\x0d" + name + b"\2\x09\xfe" + b"\xff" * 8),
        ),
        ("a format is cut short", Log().event(FORMAT_DESCRIPTION, b"\4\0")),
        ("a row event comes before its table map", Log().begin(1).event(WRITE_ROWS, inserted("d.t", 1))),
        ("a transaction ends twice", Log().event(XID, bytes(8))),
    ]


@pytest.mark.parametrize(("damage", "log"), damaged_events(), ids=[damage for damage, _ in damaged_events()])
def test_each_damaged_event_is_told_as_damage_with_its_place(damage: str, log: Log) -> None:
    dump = FedCursor(log)
    with pytest.raises(SourceLost, match=r"The binlog can't be read .*binlog\.000001:\d+.*check the file") as raised:
        dump.read(T, wait=5.0)
    assert isinstance(raised.value.__cause__, Damaged)


def test_a_binlog_that_was_given_another_name_is_no_bug_and_names_the_remedy() -> None:
    with pytest.raises(SourceLost, match="log_bin") as raised:
        assert FilePosition("b.000001", 4) < FilePosition("c.000001", 4)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("seed", range(40))
def test_a_transaction_that_was_torn_leaves_nothing_of_its_gtid(seed: int) -> None:
    """Of three servers' transactions some were taken before, and some are torn by a crash: a file ends within them. The
    next position has what was taken and no other, and what was taken before is not given out again."""
    luck = random.Random(seed)
    servers = {bytes([n]) * 16: str(uuid.UUID(bytes=bytes([n]) * 16)) for n in (1, 2, 3)}
    before = {(name, number) for name in servers.values() for number in range(1, 30) if luck.random() < 0.3}
    log, numbers, file = Log(), dict.fromkeys(servers, 0), 1
    expected, taken, key = [], set(before), 0
    for last in range(40):
        server = luck.choice(list(servers))
        number = numbers[server] + luck.choice((1, 1, 1, 2))
        log.gtid(number, server).query("BEGIN").event(TABLE_MAP, MAPS["d.t"])
        if last < 39 and luck.random() < 0.25:
            file += 1
            log.event(ROTATE, struct.pack("<Q", 4) + f"binlog.{file:06}".encode())
            log.at = 4
            continue
        key += 1
        log.event(WRITE_ROWS, inserted("d.t", key)).event(XID, bytes(8))
        numbers[server] = number
        if (servers[server], number) not in taken:
            expected.append(key)
            taken.add((servers[server], number))
    dump = FedCursor(log, GtidSet.parse(",".join(f"{name}:{number}" for name, number in before)))
    dump.end = High(server="s", file=f"binlog.{file:06}", offset=log.at)
    found: list[int] = []
    while not dump.end.reached_by(dump.at):
        found += keys(dump.read(T, max_rows=luck.choice((1, 3, 100))), "d.t")
    assert found == expected
    assert dump.at.executed == GtidSet.parse(",".join(f"{name}:{number}" for name, number in taken))


# --- where reads end --------------------------------------------------------------------------------------------------


def back_to_back(sizes: list[int]) -> Log:
    """A transaction of so many rows of d.t each, in events of at most 30 rows."""
    log, key = Log(), 0
    for number, size in enumerate(sizes, 1):
        log.begin(number).event(TABLE_MAP, MAPS["d.t"])
        for first in range(key, key + size, 30):
            log.event(WRITE_ROWS, inserted("d.t", *range(first, min(first + 30, key + size))))
        log.event(XID, bytes(8))
        key += size
    return log


@pytest.mark.parametrize("size", [50, 99, 100, 101, 120, 150, 200, 299, 300, 301])
def test_a_read_that_begins_inside_a_transaction_ends_with_it(size: int) -> None:
    """Also where the transactions are so large, or fit so ill, that each read by its limit would end inside of one."""
    log = back_to_back([size] * 12)
    dump = FedCursor(log)
    found: list[int] = []
    between = {4}
    while dump.at.offset < log.at:
        before = dump.at
        got = dump.read(T)
        found += keys(got, "d.t")
        if before.inside and got.position.offset != before.offset:
            assert not got.position.inside
        if not got.position.inside:
            between.add(got.position.offset)
            assert got.rows_inside == 0
        else:
            assert got.rows_inside == len(found) % size or size
            assert got.position.offset in between or not before.inside
    assert found == list(range(12 * size))


@pytest.mark.parametrize("size", [50, 60, 100, 110, 149, 150])
def test_a_waiting_marker_is_taken_at_the_next_transactions_end_however_long_the_load_lasts(
    size: int,
) -> None:
    """The reader's machine with a real cursor, and a marker that waits as soon as the last was taken: back-to-back
    transactions that are larger than a read's limit of 100 rows, or half as large."""
    log = back_to_back([size] * 60)
    dump = FedCursor(log)
    reader = Reader(name="reader-0", writers=("writer-0",), stream=True, inside_rows=4 * 100)
    process = Process(reader, inbound=("enumerator",), outbound=("writer-0", "enumerator"))
    low, high = Low(server="s", file="binlog.000001", offset=4), High(server="s", file="binlog.000001", offset=4)
    include: Message = IncludeTable(table_id="d.t", generation=1, schema=T, low=low, high=high)
    effects = process.handle(MessageReceived(channel="enumerator", message=include), 0.0)
    sent, cuts = 0, set()
    while True:
        if not process._held:  # the last one was taken
            sent += 1
            effects += process.handle(MessageReceived(channel="enumerator", message=Marker(checkpoint=sent)), 0.0)
        saved = [effect.state for effect in effects if isinstance(effect, SavePart)]
        cuts |= {Position.from_json(state.head["cursors"]["main"]["position"]) for state in saved}
        if dump.at.offset == log.at:
            break
        (order,) = [effect for effect in effects if isinstance(effect, ReadChanges)]
        assert order.after == dump.at
        got = dump.read(T)
        effects = process.handle(ChangesRead(cursor="main", changes=got), 0.0)
    assert not any(cut.inside for cut in cuts)
    assert len(cuts) >= 30  # a read takes up to two of them


def test_numbers_of_the_servers_serialization() -> None:
    for value in (0, 1, 127, 128, 300, 1 << 20, 1 << 40, (1 << 55) - 1):
        size = next(n for n in range(1, 9) if value < 1 << (7 * n))
        data = ((value << size) | ((1 << (size - 1)) - 1)).to_bytes(size, "little")
        assert _variable(data, 0) == (value, size)
    assert _variable(b"\xff" + (1 << 60).to_bytes(8, "little"), 0) == (1 << 60, 9)
    with pytest.raises(ValueError, match="cut short"):
        _variable(b"\x03", 0)


def test_a_tagged_gtid_is_read() -> None:
    def number(value: int) -> bytes:
        size = next(n for n in range(1, 10) if value < 1 << (7 * n))
        return ((value << size) | ((1 << (size - 1)) - 1)).to_bytes(size, "little")

    fields = number(0) + number(1)
    fields += number(1) + b"".join(number(byte) for byte in b"\xff" * 16)
    fields += number(2) + number(1234 << 1)
    fields += number(3) + number(3) + b"red"
    fields += number(6) + number(1_700_000_000_000_000)
    body = number(1) + number(len(fields) + 3) + number(0) + fields
    assert tagged_gtid(body) == ("ffffffff-ffff-ffff-ffff-ffffffffffff:red", 1234, 1_700_000_000_000_000)


def test_a_gtid_set_is_sent_half_open() -> None:
    data = encoded_gtids(f"{PREFIX}:1-3:5")
    assert data == struct.pack("<Q", 1) + UUID + struct.pack("<QQQQQ", 2, 1, 4, 5, 6)
    assert encoded_gtids("") == struct.pack("<Q", 0)
    tagged = encoded_gtids(f"{PREFIX}:1-3:red:4")
    assert tagged[7] == tagged[0] == 1
    assert int.from_bytes(tagged[1:7], "little") == 2


def test_statements_are_read_in_the_character_set_and_sql_mode_they_were_sent_in() -> None:
    def body(variables: bytes, text: bytes) -> bytes:
        return struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0" + text

    flags = b"\0" + bytes(4) + b"\1" + struct.pack("<Q", 1 << 20) + b"\6\3std"
    latin = flags + b"\4" + struct.pack("<HHH", 8, 8, 8)
    read = ("shop", "DROP TABLE `caf\u00e9`", 1 << 20)
    assert statement(QUERY, body(latin, "DROP TABLE `caf\u00e9`".encode("latin-1"))) == read
    assert statement(QUERY, body(flags, "DROP TABLE `caf\u00e9`".encode())) == read
    for collation in range(1, 350):  # of every character set: binary (63) is that of many clients
        sent = flags + b"\4" + struct.pack("<HHH", collation, 8, 8)
        if charset_of(collation) not in ("ucs2", "utf16", "utf16le", "utf32"):  # which no client can have
            assert statement(QUERY, body(sent, b"DROP TABLE `t`")) == ("shop", "DROP TABLE `t`", 1 << 20)
        if charset_of(collation) in ("binary", "utf8mb4", None):
            assert statement(QUERY, body(sent, "DROP TABLE `caf\u00e9`".encode())) == read


@pytest.mark.parametrize(
    ("sql_mode", "sent", "meant"),
    [
        (0, "TRUNCATE `t`", "TRUNCATE `t`"),
        (0, "/* it's */ TRUNCATE ```caf``@\\[`", "/* it's */ TRUNCATE `écaféÉÖÄ`"),
        (
            0,
            r"ADD c{ CHAR DEFAULT 'a\\b\'\n{`', ADD `d|`",
            "ADD c{ CHAR DEFAULT 'aÖb\\'\\näé', ADD `dö`",
        ),
        (1 << 20, r"ADD c CHAR DEFAULT 'a\', ADD `d\`", "ADD c CHAR DEFAULT 'aÖ', ADD `dÖ`"),
        (1 << 2, r'ADD "c\`" CHAR', 'ADD "cÖé" CHAR'),
    ],
)
def test_a_statement_in_swe7_is_cut_as_ascii_and_swedish_in_quotes(sql_mode: int, sent: str, meant: str) -> None:
    variables = b"\1" + struct.pack("<Q", sql_mode) + b"\4" + struct.pack("<HHH", 10, 10, 10)
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0" + sent.encode()
    assert statement(QUERY, body) == ("shop", meant, sql_mode)


def test_names_of_xa_transactions_are_the_same_in_statements_and_events() -> None:
    assert xid_in("XA COMMIT X'6f6e65',X'62',7") == (b"one", b"b", 7)
    assert xid_of(b"\0" + struct.pack("<iii", 7, 3, 1) + b"oneb") == (b"one", b"b", 7)
    for number in (1 << 31, (1 << 32) - 1, (1 << 32) + 7):  # the event has 4 bytes of it
        event = b"\0" + struct.pack("<Iii", number & 0xFFFFFFFF, 3, 1) + b"oneb"
        assert xid_in(f"XA COMMIT X'6f6e65',X'62',{number}") == xid_of(event)
    with pytest.raises(ValueError, match="cut short"):
        xid_of(b"\0" + struct.pack("<iii", 7, 30, 1) + b"oneb")


def test_mariadbs_compression_is_undone_within_bounds() -> None:
    data = b"a" * 1000
    packed = b"\x82" + len(data).to_bytes(2, "big") + zlib.compress(data)
    assert _inflated(memoryview(packed), b"head", 1000) == b"head" + data
    head = struct.pack("<IH", 7, 0) + b"\1\0" + b"\1\xff"
    assert inflated_rows(WRITE_ROWS_COMPRESSED_V1, head + packed) == head + data
    for broken in (b"", b"\x02ab", packed[:-5], b"\x82\0\5" + packed[3:]):
        with pytest.raises(ValueError, match="compressed event"):
            _inflated(memoryview(broken), b"", 1000)
    with pytest.raises(ValueError, match="1000 bytes, over the limit of 999"):
        _inflated(memoryview(packed), b"", 999)


# --- DDL --------------------------------------------------------------------------------------------------------------

TABLE = TableSchema(
    table_id="d.t",
    columns=(
        Column(name="id", field_id=1, mysql_type="int", nullable=False),
        Column(name="v", field_id=2, mysql_type="varchar(9)", nullable=True, charset="utf8mb4"),
    ),
    key=("id",),
    last_field_id=2,
)
KINDS = {
    "ADD n INT": ("follows", "follows"),
    "ADD n INT DEFAULT 5": ("follows", "restarts"),
    "DROP v": ("follows", "restarts"),
    "RENAME COLUMN v TO w": ("follows", "restarts"),
    "MODIFY v VARCHAR(90)": ("follows", "restarts"),
    "MODIFY v VARCHAR(9) FIRST": ("follows", "restarts"),
    "MODIFY v VARCHAR(3)": ("restarts", "restarts"),
    "ADD n INT DEFAULT (id)": ("restarts", "restarts"),
    "DROP PRIMARY KEY": ("restarts", "restarts"),
    "RENAME TO other": ("restarts", "restarts"),
}


def after_ddl(statement: str, policy: SchemaChanges, *, live: bool, server: str = "s") -> tuple[str, TableSchema]:
    """What a cursor makes of a statement at 500, of a table whose chunks end at 1000: with the schema after it."""
    low, high = Low(server=server, file="b.000001", offset=4), High(server="s", file="b.000001", offset=1000)
    route = Route(table_id="d.t", generation=1, schema=TABLE, low=low, high=high, live=live)
    kind = Server(flavour="mysql", version=(9, 7), identity=server, gtid=False)
    progress = Progress(kind, Position(server=server, file="b.000001", offset=500))
    progress.scanner.start_at("b.000001", 500)
    progress.scanner.start_anonymous(500, 0)
    routes = Routes(progress, lambda: pytest.fail("it connects"))
    routes.begin({"d.t": route})
    replay = Replay(progress.scanner, routes, Prepared(lambda: pytest.fail("it connects"), server_id=1))
    Statements(kind, progress.scanner, routes, replay, policy=policy).change_tables("d", statement, 0)
    for fault in routes.faults:
        return "restarts" if isinstance(fault, GenerationEnded) else "stops", TABLE
    if routes.schemas:
        return "follows", routes.schemas[0].new
    return "truncates" if routes._decoders else "nothing", TABLE


@pytest.mark.parametrize("policy", ["evolve", "exact", "ignore", "halt"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_policy_follows_stops_or_restarts_a_table_at_each_kind_of_change(kind: str, policy: SchemaChanges) -> None:
    live, early = KINDS[kind]
    halts = policy == "halt"
    assert after_ddl(f"ALTER TABLE t {kind}", policy, live=True)[0] == ("stops" if halts else live)
    assert after_ddl(f"ALTER TABLE t {kind}", policy, live=False)[0] == ("restarts" if halts else early)


@pytest.mark.parametrize("policy", ["evolve", "exact", "ignore", "halt"])
def test_what_no_reader_sees_is_followed_in_each_policy(policy: SchemaChanges) -> None:
    for live in (True, False):
        assert after_ddl("ALTER TABLE t ADD INDEX (v)", policy, live=live)[0] == "nothing"
        done, schema = after_ddl("ALTER TABLE t CHARACTER SET latin1", policy, live=live)
        assert (done, schema.charset, schema.shown) == ("follows", "latin1", None)
    assert after_ddl("TRUNCATE t", policy, live=True)[0] == "truncates"
    assert after_ddl("TRUNCATE t", policy, live=False)[0] == "restarts"


def test_the_lakes_columns_are_the_policys() -> None:
    shown = {
        policy: [column.name for column in after_ddl("ALTER TABLE t DROP v, ADD n INT", policy, live=True)[1].lake]
        for policy in ("evolve", "exact", "ignore")
    }
    assert shown == {"evolve": ["id", "v", "n"], "exact": ["id", "n"], "ignore": ["id", "v"]}


def test_a_live_table_is_followed_after_a_fail_over_and_no_other() -> None:
    assert after_ddl("ALTER TABLE t DROP v", "evolve", live=True, server="another")[0] == "follows"
    assert after_ddl("ALTER TABLE t DROP v", "evolve", live=False, server="another")[0] == "restarts"


# --- the dump's command, and the server's answers ---------------------------------------------------------------------


class Commands:
    """A connection that takes commands and agrees to each."""

    def __init__(self) -> None:
        self._sock = socket.socketpair()[0]
        self.sent: list[tuple[int, bytes]] = []

    def _execute_command(self, command: int, body: bytes) -> None:
        self.sent.append((command, body))

    def _read_ok_packet(self) -> None:
        pass

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        yield SimpleNamespace(execute=lambda _: None)


@pytest.mark.parametrize(("states_ends", "flags"), [(True, 0), (False, 2)])
@pytest.mark.parametrize("until_end", [0, 1])
def test_a_dump_has_the_statements_text_where_sizes_place_the_events(
    states_ends: bool, flags: int, until_end: int
) -> None:
    connection: Any = Commands()
    server = Server(flavour="mariadb", version=(11, 8), identity="s", gtid=True, states_ends=states_ends)
    dump_of(connection, server).request(scanning(), flags=until_end)
    (*_, (command, body)) = connection.sent
    assert (command, body) == (0x12, struct.pack("<IHI", 4, flags | until_end, 7) + b"binlog.000001")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1236, "A slave with the same server_uuid/server_id as this slave has connected to the master"),
        (4052, "A slave with the same server_uuid/server_id as this slave has connected to the master"),
        (4052, "A slave with the same server_id is already connected"),
    ],
)
def test_a_dump_that_ends_for_another_of_its_server_id_is_no_fault_of_the_source(code: int, text: str) -> None:
    error = answer(code, f"{text}; the first event 'binlog.000001' at 4, the last event read from 'x' at 9")
    assert isinstance(error, ServerIdTaken)
    assert "server id 7" in str(error)


def test_a_dump_that_the_server_can_not_go_on_with_is_told_alike_wherever_it_began() -> None:
    damage = "bogus data in log event; the first event 'binlog.000001' at {}, the last event read from 'x' at 9"
    first, second = (answer(1236, damage.format(at)) for at in (4, 1299))
    assert isinstance(first, SourceLost)
    assert str(first) == str(second)
    assert "the last event read from 'x' at 9" in str(first)


def answer(code: int, text: str) -> Exception:
    """What a dump with server id 7 makes of an error of the server's."""
    log, it = Log(), scanning()
    log.packet(b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode())
    assert feed(it, log.bytes) == [(scanner.SERVER_MESSAGE, 0)]
    connection: Any = Commands()
    return dump_of(connection, Server(flavour="mysql", version=(9, 7), identity="s", gtid=True)).failure(it)
