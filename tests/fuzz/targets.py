"""What is fuzzed: four doors of the decoders, each a function from bytes, its seeds, and its mutations.

| target | an input is | may end in |
|---|---|---|
| `rows` | a row event's body for one of the recorded table maps | rows, or Damaged |
| `table_map` | a TABLE_MAP's body and a row event's | faults, rows, or Damaged |
| `result` | the packets behind a SELECT's column definitions | rows, Damaged, or the server's error |
| `stream` | a dump, to `BinlogCursor.read` | changes, SourceLost with file and offset, Unavailable |

Any other exception, an Arrow array that does not validate, a position that goes back, or reading that goes on without
end is a finding; so is what the sanitizers, the memory limit and the watchdog of `__main__.py` see. Inputs of `result`
and `stream` are lists of packets (`items`): `run` puts numbers, sizes and checksums right unless a packet's flags say
not to, since else nearly every mutation would end at the first of these checks.
"""

from __future__ import annotations

import os
import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Protocol

import pyarrow as pa
import pymysql

from cutline.common.errors import ConfigError, SourceLost, Unavailable
from cutline.common.positions import High, Low, Position
from cutline.common.schema import TableSchema
from cutline.services.sources.contract import Route
from cutline.services.sources.mysql.binlog import cursor as cursor_module
from cutline.services.sources.mysql.binlog import dump, event_bodies, event_types, scanner
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.result import ResultDecoder
from cutline.services.sources.mysql.decode.row_event import EventDecoder, Place
from cutline.services.sources.mysql.decode.row_plan import TableMap
from cutline.services.sources.mysql.server import Server
from tests.fuzz import record

MAX_BYTES = 1 << 17
"""No input is longer."""
RAW, KEEP_SIZE, KEEP_CHECKSUM = 1, 2, 4
_ROW_EVENTS = (23, 24, 25, 30, 31, 32)
_PACKED_ROWS = (166, 167, 168, 169, 170, 171)
_TABLE_MAP, _PAYLOAD = 19, 40
_BETWEEN = (4, 15, 27, 161, 162, 163)
"""Events of MariaDB that begin a transaction, or stand between two."""
_LENGTHS = (0, 1, 2, 7, 8, 63, 64, 127, 128, 250, 251, 252, 253, 254, 255, 256, 65535, 65536, 1 << 24, (1 << 31) - 1)
_LENGTHS += (1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_PLACE = re.compile(r"\S+:\d+")

Outcome = tuple[object, ...]


class Finding(Exception):
    """A promise of the decoders that did not hold."""


class Target(Protocol):
    """One fuzzed door. `run` gives what came of it, the same from the compiled modules and the interpreted ones."""

    name: str
    seeds: list[bytes]

    def run(self, data: bytes, *, tell: bool = False) -> Outcome:
        """Give it one input; with `tell`, the outcome holds the rows too. Raises only what is a finding."""

    def mutate(self, data: bytes, luck: random.Random) -> bytes:
        """Another input like this one."""


# ---- mutations -------------------------------------------------------------------------------------------------------


def damaged(data: bytes, luck: random.Random, front: int = 0) -> bytes:
    """One change of what a decoder may stumble over: a bit, a length, a cut, a repetition; half of them in `front`."""
    if not data:
        return luck.randbytes(luck.randrange(1, 20))
    made = bytearray(data)
    at = luck.randrange(min(front, len(made))) if front and luck.random() < 0.5 else luck.randrange(len(made))
    match luck.randrange(10):
        case 0 | 1:
            made[at] ^= 1 << luck.randrange(8)
        case 2:
            made[at] = luck.choice((0, 1, 127, 128, 250, 251, 252, 253, 254, 255, luck.randrange(256)))
        case 3 | 4:
            width = luck.choice((1, 2, 3, 4, 8))
            number = luck.choice((*_LENGTHS, len(made), len(made) - at, luck.randrange(1 << 16)))
            number = (number + luck.choice((-1, 0, 0, 1))) % (1 << 8 * width)
            made[at : at + width] = number.to_bytes(width, "little")
        case 5:
            del made[at:]
        case 6:
            del made[at : at + luck.randrange(1, 9)]
        case 7:
            made[at:at] = luck.randbytes(luck.randrange(1, 9))
        case 8:
            size = luck.randrange(1, 1 + min(200, len(made)))
            start = luck.randrange(len(made))
            made[at:at] = made[start : start + size]
        case _:
            start = luck.randrange(len(made))
            size = luck.randrange(1, 17)
            made[at : at + size] = made[start : start + size]
    return bytes(made)


def items(data: bytes) -> list[tuple[int, bytes]]:
    """Flags and bytes of each packet of an input."""
    found = []
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 4], "little")
        found.append((data[at], data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def joined(packets: list[tuple[int, bytes]]) -> bytes:
    """The input with these packets."""
    return b"".join(bytes([flags]) + len(body).to_bytes(3, "little") + body for flags, body in packets)


def _shuffled(packets: list[tuple[int, bytes]], others: list[tuple[int, bytes]], luck: random.Random) -> None:
    """Leave one out, repeat it, move it, take one of another recording, or change its flags."""
    at = luck.randrange(len(packets) + 1)
    match luck.randrange(5):
        case 0 if packets:
            del packets[at - 1]
        case 1 if packets:
            packets.insert(at, luck.choice(packets))
        case 2 if packets:
            packets.insert(at - 1, packets.pop(luck.randrange(len(packets))))
        case 3 if packets:
            packets[at - 1] = (luck.choice((RAW, KEEP_SIZE, KEEP_CHECKSUM, 0)), packets[at - 1][1])
        case _:
            packets.insert(at, luck.choice(others))


def _wire(bodies: list[tuple[int, bytes]], number: int) -> bytes:
    """Packets with their headers; a RAW one is put there as it is."""
    made = bytearray()
    for flags, body in bodies:
        if not flags & RAW:
            made += struct.pack("<I", (len(body) & 0xFFFFFF) | number << 24)
            number = (number + 1) & 255
        made += body
    return bytes(made)


# ---- row events ------------------------------------------------------------------------------------------------------


def _pairs(recording: record.Recording) -> list[tuple[TableSchema, bytes, int, bytes]]:
    """Each row event with its table map and the table's schema, of tables that were recorded."""
    schemas = {schema.table_id: schema for schema in recording.tables}
    maps: dict[bytes, bytes] = {}
    found = []
    for event in recording.events:
        kind, body = event[4], event[19:]
        if kind == _TABLE_MAP:
            maps[body[:6]] = body
        elif kind in _PACKED_ROWS:
            kind, body = event_types.UNCOMPRESSED[kind], bytes(event_bodies.inflated_rows(kind, body))
        if kind in _ROW_EVENTS and body[:6] in maps:
            table = TableMap(maps[body[:6]])
            schema = schemas.get(f"{table.database}.{table.table}")
            if schema is not None and not EventDecoder(maps[body[:6]], schema, Place()).faults:
                found.append((schema, maps[body[:6]], kind, body))
    return found


def _content(batch: pa.RecordBatch | None) -> object:
    return None if batch is None else repr(batch.to_pylist())


class Rows:
    """`EventDecoder.rows`: an input is the case, the event's type, the rows asked for, and the body."""

    name = "rows"
    _TAKEN_ROWS = 64

    def __init__(self, recordings: list[record.Recording]) -> None:
        self._cases: list[tuple[TableSchema, bytes]] = []
        self._decoders: dict[int, tuple[Any, Any]] = {}
        self.seeds: list[bytes] = []
        for recording in recordings:
            for schema, table_map, kind, body in _pairs(recording):
                case = (schema, table_map[8:])
                if case not in self._cases:
                    self._cases.append(case)
                self.seeds.append(bytes([self._cases.index(case) * 2, kind, 0, 255]) + body)
                self.seeds.append(bytes([self._cases.index(case) * 2 + 1, kind, 1, 2]) + body)

    def _decoder(self, number: int, fresh: bool) -> tuple[Any, Any]:
        """A case's decoder and place; odd numbers give before-images too, which may lack all columns but the key, as if
        the others were generated. Kept, because to make one costs the most.
        """
        if fresh or number not in self._decoders:
            schema, table_map = self._cases[number // 2]
            if number % 2:
                columns = tuple(replace(column, generated=column.name not in schema.key) for column in schema.columns)
                schema = replace(schema, columns=columns)
            place = Place()
            place.file = "binlog.000001"
            place.transaction("gtid", 1_000_000)
            self._decoders[number] = EventDecoder(bytes(8) + table_map, schema, place, bool(number % 2)), place
        return self._decoders[number]

    def run(self, data: bytes, *, tell: bool = False) -> Outcome:
        if len(data) < 4:
            return ()
        number, kind, first, last = data[0] % (2 * len(self._cases)), *data[1:4]
        decoder, place = self._decoder(number, tell)
        result: object
        try:
            result = decoder.rows(kind, data[4:], first, last if last < 255 else -1)
        except Damaged as error:
            result = repr(error)
        if not tell and decoder.waiting < self._TAKEN_ROWS:
            return ()
        batch = None
        with suppress(Damaged):  # text that is not UTF-8
            batch = decoder.take()
        if batch is None and decoder.waiting:
            del self._decoders[number]
        elif batch is not None:
            batch.validate(full=True)
        return result, decoder.ended, place.row, _content(batch) if tell else None

    def mutate(self, data: bytes, luck: random.Random) -> bytes:
        if luck.random() < 0.1:
            return bytes([data[0], *(luck.choice((0, 1, 2, 255, *_ROW_EVENTS)) for _ in range(3))]) + data[4:]
        return data[:4] + damaged(data[4:], luck, front=40)


class TableMaps:
    """`EventDecoder`: an input is the case, the map's length, the map, and a row event (type and body)."""

    name = "table_map"

    def __init__(self, recordings: list[record.Recording]) -> None:
        self._schemas: list[TableSchema] = []
        self.seeds = []
        for recording in recordings:
            for schema, table_map, kind, body in _pairs(recording):
                if schema not in self._schemas:
                    self._schemas.append(schema)
                head = struct.pack("<BH", self._schemas.index(schema), len(table_map))
                self.seeds.append(head + table_map + bytes([kind]) + body)

    def run(self, data: bytes, *, tell: bool = False) -> Outcome:
        if len(data) < 4:
            return ()
        schema = self._schemas[data[0] % len(self._schemas)]
        end = 3 + int.from_bytes(data[1:3], "little")
        table_map, event = data[3:end], data[end:]
        event_bodies.primary_key(table_map)
        try:
            decoder = EventDecoder(table_map, schema, Place())
        except Damaged as error:
            return (repr(error),)
        if decoder.faults or not event:
            return decoder.faults
        refusal = ""
        batch = None
        try:
            decoder.rows(event[0], event[1:])
            batch = decoder.take()
        except Damaged as error:
            refusal = repr(error)
        if batch is not None:
            batch.validate(full=True)
        return refusal, _content(batch) if tell else None

    def mutate(self, data: bytes, luck: random.Random) -> bytes:
        end = 3 + int.from_bytes(data[1:3], "little")
        table_map, event = data[3:end], data[end:]
        if luck.random() < 0.7:
            table_map = damaged(table_map, luck)[:65535]
        else:
            event = damaged(event, luck, front=40)
        return data[:1] + len(table_map).to_bytes(2, "little") + table_map + event


# ---- SELECT ----------------------------------------------------------------------------------------------------------


class Results:
    """`ResultDecoder`: an input is the case, the size of the pieces fed, and packets."""

    name = "result"

    def __init__(self, results: list[record.Result]) -> None:
        self._schemas = [result.schema for result in results]
        self.seeds = []
        answers = (b"\xff\x15\x04#28000Access denied", b"\xfe\0\0\x0a\0", b"")
        self._others: list[tuple[int, bytes]] = [(0, packet) for packet in answers]
        for number, result in enumerate(results):
            packets, at = [], 0
            while at < len(result.packets):
                size = int.from_bytes(result.packets[at : at + 3], "little")
                packets.append((0, result.packets[at + 4 : at + 4 + size]))
                at += 4 + size
            self._others += packets
            self.seeds += [bytes([number, step]) + joined(packets) for step in (0, 5)]

    def run(self, data: bytes, *, tell: bool = False) -> Outcome:
        if len(data) < 2:
            return ()
        decoder = ResultDecoder(self._schemas[data[0] % len(self._schemas)])
        wire = _wire(items(data[2:]), 5)
        step = data[1] * 8 + 1 if data[1] else len(wire)
        refusal = ""
        try:
            for at in range(0, len(wire), max(1, step)):
                decoder.feed(wire[at : at + step])
        except (Damaged, pymysql.err.OperationalError) as error:
            refusal = repr(error)
        batch = None
        try:
            batch = decoder.take()
        except Damaged as error:
            refusal += repr(error)
        if batch is not None:
            batch.validate(full=True)
        return refusal, decoder.done, _content(batch) if tell else None

    def mutate(self, data: bytes, luck: random.Random) -> bytes:
        packets = items(data[2:])
        if luck.random() < 0.2:
            _shuffled(packets, self._others, luck)
        elif packets:
            at = luck.randrange(len(packets))
            packets[at] = (packets[at][0], damaged(packets[at][1], luck))
        return bytes([data[0], luck.choice((0, 0, data[1], luck.randrange(9)))]) + joined(packets)


# ---- the dump --------------------------------------------------------------------------------------------------------


_READABLE = os.open(os.devnull, os.O_RDONLY)


class _InputSocket:
    """A socket that gives these bytes, so many at a time, and the clock of a world in which only waiting takes time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step, self._at, self._now = data, step, 0, 0.0

    def monotonic(self) -> float:
        return self._now

    time = monotonic

    def fileno(self) -> int:
        """A file that always has something to read."""
        return _READABLE

    def settimeout(self, seconds: float) -> None:
        """There are bytes, or there will be none."""

    def recv_into(self, room: memoryview) -> int:
        part = self._data[self._at : self._at + min(self._step, len(room))]
        if not part:
            self._now += 2.0
            raise TimeoutError
        room[: len(part)] = part
        self._at += len(part)
        return len(part)


def _refused() -> Connection:
    raise Unavailable("there is no server")


class Streams:
    """`BinlogCursor.read`: an input is the case, the limits, and a dump's events."""

    name = "stream"

    def __init__(self, recordings: list[record.Recording]) -> None:
        self._recordings = recordings
        self._others = [(0, event) for recording in recordings for event in recording.events]
        self.seeds = []
        for number, recording in enumerate(recordings):
            dumps = [recording.events]
            if any(event[4] == _PAYLOAD for event in recording.events):
                dumps.append(tuple(map(_unpacked, recording.events)))
            if recording.flavour == "mariadb":
                dumps.append(_without_ends(recording.events))
            for events in dumps:
                packets = joined([(0, event) for event in events])
                self.seeds += [bytes([number, limits]) + packets for limits in (0, 1, 0x22)]

    def run(self, data: bytes, *, tell: bool = False) -> Outcome:
        if len(data) < 2:
            return ()
        recording = self._recordings[data[0] % len(self._recordings)]
        limits = data[1]
        bodies = []
        for flags, event in items(data[2:]):
            body = event
            if not flags & RAW:
                end = 4 * recording.checksum
                if not flags & KEEP_SIZE and len(body) >= 19:
                    body = body[:9] + struct.pack("<I", len(body) + end) + body[13:]
                if recording.checksum:
                    body += struct.pack("<I", zlib.crc32(body) ^ (flags & KEEP_CHECKSUM))
                body = b"\0" + body
            bodies.append((flags, body))
        outcome: list[object] = []
        clock = cursor_module.time
        try:
            self._read(recording, _wire(bodies, 1), limits, outcome if tell else None)
        except SourceLost as error:
            outcome.append(str(error.cause))
            if not _PLACE.search(error.cause.sentence):
                raise Finding(f"no file and offset: {error.cause}") from error
        except (Unavailable, ConfigError) as error:
            outcome.append(repr(error))
        finally:
            cursor_module.time = dump.time = clock
        return tuple(outcome)

    def _read(self, recording: record.Recording, wire: bytes, limits: int, outcome: list[object] | None) -> None:
        """Read the dump to its end, as a reader does: tables leave at a fault, schemas change."""
        server = Server(flavour=recording.flavour, version=(9, 7), identity="server", gtid=True)  # type: ignore[arg-type]
        position = Position(server="server", file="binlog.000001", offset=4)
        low = Low(server="server", file=position.file, offset=4, gtids="")
        high = High(server="server", file=position.file, offset=4)
        every = {
            schema.table_id: Route(table_id=schema.table_id, generation=1, schema=schema, low=low, high=high)
            for schema in recording.tables
        }
        cursor = cursor_module.BinlogCursor(_refused, server_id=1)
        given = _InputSocket(wire, 7 if limits & 4 else len(wire) + 1)
        cursor_module.time = dump.time = given  # type: ignore[assignment]
        connection: Any = SimpleNamespace(_sock=given)
        delivery = dump.Dump(connection, server, connect=_refused, server_id=1)
        # no larger than the packets, so that the sanitizer sees what reads behind them
        usual, scanner._BUFFER = scanner._BUFFER, max(len(wire), 64)
        cursor._stream, cursor._at = cursor.stream(delivery, position), position
        scanner._BUFFER = usual
        cursor._stream.scanner.start_at(position.file, position.offset)
        routes = {} if limits & 8 else every
        for _ in range(4 * len(wire) + 100):
            changes = cursor.read(
                position,
                routes,
                until=None,
                max_rows=(100_000, 1, 3, 10)[limits & 3],
                max_bytes=1 << (20 if limits & 16 else 8),
                wait_seconds=1.0,
                at_boundary=bool(limits & 32),
            )
            for batch in changes.batches:
                batch.batch.validate(full=True)
            if not changes.position.not_before(position):
                raise Finding(f"{changes.position} is before {position}")
            if outcome is not None:
                outcome += [str(changes.position), [_content(batch.batch) for batch in changes.batches]]
                outcome += [changes.faults, [change.ddl for change in changes.schemas]]
            if changes.idle:
                return
            position = changes.position
            routes = dict(routes or every)
            for change in changes.schemas:
                routes[change.table_id] = replace(routes[change.table_id], schema=change.new)
            for fault in changes.faults:
                del routes[fault.table_id]
                if not _PLACE.search(fault.cause.sentence):
                    raise Finding(f"no file and offset: {fault.cause}")
        raise Finding(f"reading {len(wire)} bytes does not end")

    def mutate(self, data: bytes, luck: random.Random) -> bytes:
        packets = items(data[2:])
        limits = data[1]
        chance = luck.random()
        if chance < 0.05:
            limits = luck.randrange(64)
        elif chance < 0.2 or not packets:
            _shuffled(packets, self._others, luck)
        else:
            at = luck.randrange(len(packets))
            flags, event = packets[at]
            if chance < 0.3:
                event = damaged(event[:19], luck) + event[19:]
            elif chance < 0.5 and len(event) > 19 and event[4] in _PACKED_ROWS:
                event = _repacked(event, lambda body: damaged(body, luck, front=40))
            else:
                event = event[:19] + damaged(event[19:], luck, front=40)
            packets[at] = (flags, event)
        return bytes([data[0], limits]) + joined(packets)


def _unpacked(event: bytes) -> bytes:
    """A TRANSACTION_PAYLOAD with its events as they are; any other event as it is."""
    if event[4] != _PAYLOAD:
        return event
    inner = event_bodies.payload(event[19:]).read()
    size = b"\xfe" + struct.pack("<Q", len(inner))
    fields = ((2, b"\xfc\xff\0"), (3, size), (1, size))
    return event[:19] + b"".join(bytes([number, len(value)]) + value for number, value in fields) + b"\0" + inner


def _without_ends(events: Sequence[bytes]) -> tuple[bytes, ...]:
    """As MariaDB 11.8 writes them: of a transaction, only the first event and the last state where they end."""
    written = []
    for event, following in pairwise((*events, b"")):
        between = event[4] in _BETWEEN or not following or following[4] in _BETWEEN
        written.append(event if between else event[:13] + bytes(4) + event[17:])
    return tuple(written)


def _repacked(event: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """One of MariaDB's compressed row events with another body inside."""
    with suppress(Damaged):
        plain, head = bytes(event_bodies.inflated_rows(event[4], event[19:])), _head_size(event)
        inner = change(plain[head:])
        return event[:19] + plain[:head] + b"\x84" + struct.pack(">I", len(inner)) + zlib.compress(inner)
    return event


def _head_size(event: bytes) -> int:
    """How much stands before the compressed part of a compressed row event's body."""
    body = event[19:]
    at = 8 + (int.from_bytes(body[8:10], "little") if event[4] >= 169 else 0)
    return at + 1 + (body[at] + 7) // 8 * (2 if event[4] in (167, 170) else 1)


# ---- all -------------------------------------------------------------------------------------------------------------


def targets() -> dict[str, Target]:
    """The targets by name, over the recorded seeds."""
    recordings, results = record.load()
    # tables of multi-byte character sets take 30 ms to plan, and only `rows` plans once
    quick = [recording for recording in recordings if recording.name not in ("charsets", "large")]
    made: tuple[Target, ...] = (Rows(recordings), TableMaps(quick), Results(results), Streams(quick))
    return {target.name: target for target in made}
