"""The bodies of rare binlog events: statements, XA, tagged GTIDs, rotations, heartbeats, compressed events.

decode/ reads row events and TABLE_MAPs. A body that can't be read raises Damaged. Sources: MySQL's documentation of its
sources (`mysql::binlog::event`, `mysql::serialization`), MariaDB's knowledge base on replication events.
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from typing import Any

import pyarrow as pa

from cutline.common.table_id import split_table_id, table_id_of
from cutline.services.sources.mysql.binlog.event_types import (
    EXECUTE_LOAD_QUERY,
    HEADER_BYTES,
    HEARTBEAT,
    QUERY_COMPRESSED,
    UPDATES,
    WRITE_ROWS_COMPRESSED,
)
from cutline.services.sources.mysql.binlog.sql import from_swe7
from cutline.services.sources.mysql.damage import Damaged
from cutline.services.sources.mysql.decode.charsets import charset_of, to_text
from cutline.services.sources.mysql.decode.row_plan import TableMap

MAX_ROW_BYTES = 64 << 20
_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 14  # inflated at a time, to at most 16 MiB
_ZSTD, _UNCOMPRESSED = 0, 255  # compression types of a transaction payload
_UTF_8 = ("utf8mb4", "utf8mb3", "binary")  # of sessions: their statements have names in UTF-8
_XID_TEXT = re.compile(r"X'((?:[0-9a-fA-F]{2})*)'\s*,\s*X'((?:[0-9a-fA-F]{2})*)'\s*,\s*([0-9]{1,20})\b")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_LENGTHS = {252: 2, 253: 3, 254: 8}  # by the first byte of a length-encoded integer
# status variables of a statement's event (Query_event_status_vars)
_FLAGS2, _SQL_MODE, _CATALOG, _AUTO_INCREMENT, _CHARSET, _CATALOG_NZ = 0, 1, 2, 3, 4, 6
_STATUS_BYTES = {_FLAGS2: 4, _SQL_MODE: 8, _AUTO_INCREMENT: 4}
# fields of a tagged GTID event, and of a TABLE_MAP's optional metadata
_GTID_UUID, _GTID_NUMBER, _GTID_TAG, _GTID_IMMEDIATE_COMMIT = 1, 2, 3, 6
_PRIMARY_KEY, _PRIMARY_KEY_WITH_PREFIX = 8, 9
_HEARTBEAT_FILE, _HEARTBEAT_OFFSET = 1, 2  # fields of a heartbeat of version 2

Xid = tuple[bytes, bytes, int]
Body = bytes | bytearray


def event_limit(kind: int) -> int:
    """The most bytes that an event of this type may have: a header and MAX_ROW_BYTES, or twice that for the two images
    of an update."""
    return (MAX_ROW_BYTES << (kind in UPDATES)) + _HEAD_BYTES


def _byte(data: Body, at: int) -> int:
    if at >= len(data):
        raise Damaged("an event is cut short")
    return data[at]


def length_encoded(data: Body, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where it ends."""
    first = _byte(data, at)
    if first < 251:
        return first, at + 1
    size = _LENGTHS.get(first)
    if size is None or at + size >= len(data):
        raise Damaged("an event has a length that can't be read")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _variable(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned integer of mysql::serialization, and where it ends: as many bytes follow the first as it has low 1
    bits."""
    first = _byte(data, at)
    more = 0
    while more < 8 and first >> more & 1:
        more += 1
    size = more + 1
    if at + size > len(data):
        raise Damaged("a tagged GTID event is cut short")
    value = int.from_bytes(data[at : at + size], "little")
    return (value >> (more + 1) if more < 8 else value >> 8), at + size


def tagged_gtid(body: bytes) -> tuple[str, int, int]:
    """UUID:TAG, number, and this server's commit time in microseconds, from a tagged GTID event."""
    _, at = _variable(body, 0)  # version
    size, at = _variable(body, at)
    _, at = _variable(body, at)  # last field that must be understood
    end = min(size, len(body))
    sid, tag, number, ts = b"", "", 0, 0
    while at < end:
        field_id, at = _variable(body, at)
        if field_id == _GTID_UUID:
            raw = bytearray()
            for _ in range(16):
                value, at = _variable(body, at)
                if value > 0xFF:
                    raise Damaged("a tagged GTID event has an invalid server UUID")
                raw.append(value)
            sid = bytes(raw)
        elif field_id == _GTID_TAG:
            length, at = _variable(body, at)
            tag, at = body[at : at + length].decode(errors="replace"), at + length
        else:
            value, at = _variable(body, at)
            if field_id == _GTID_NUMBER:
                number = value >> 1  # signed
            elif field_id == _GTID_IMMEDIATE_COMMIT:
                ts = value
            elif field_id > _GTID_IMMEDIATE_COMMIT:
                break
    if len(sid) != 16 or number < 1 or ts >= 1 << 62 or (tag and not _TAG.fullmatch(tag)):
        raise Damaged("a tagged GTID event can't be read")
    prefix = str(uuid.UUID(bytes=sid))
    return (f"{prefix}:{tag}" if tag else prefix), number, ts


def payload(body: bytes) -> Any:
    """The events of a compressed transaction, as a stream of bytes."""
    at, kind = _payload_head(body)
    return _plain_bytes(pa.BufferReader(pa.py_buffer(body)[at:]), kind)


def payload_in(file: Any) -> Any:
    """As `payload`, from a temporary file with the event, which it closes; the stream keeps the file's contents."""
    file.seek(HEADER_BYTES)
    at, kind = _payload_head(file.read(100))
    source = pa.OSFile(file.name)
    source.seek(HEADER_BYTES + at)
    file.close()
    return _plain_bytes(source, kind)


def _plain_bytes(source: Any, kind: int) -> Any:
    if kind == _UNCOMPRESSED:
        return source
    if kind != _ZSTD:
        raise Damaged(f"a transaction payload is compressed by the unknown method {kind}")
    return pa.CompressedInputStream(source, "zstd")


def _payload_head(body: bytes) -> tuple[int, int]:
    """Where a transaction payload's events begin after its fields, and its compression type."""
    at, kind = 0, _UNCOMPRESSED
    while True:
        if at >= len(body):
            raise Damaged("the head of a transaction payload has no end")
        field_id, at = length_encoded(body, at)
        if field_id == 0:
            return at, kind
        size, at = length_encoded(body, at)
        value, _ = length_encoded(body, at)
        at += size
        if field_id == 2:
            kind = value


def statement(kind: int, body: Body) -> tuple[str, str, int]:
    """Database, text and `sql_mode` of a statement's event."""
    head = 26 if kind == EXECUTE_LOAD_QUERY else 13
    if len(body) < head:
        raise Damaged("a statement's event is cut short")
    size = int.from_bytes(body[11:13], "little")
    charset, sql_mode = _session(body[head : head + size])
    at = head + size
    db = body[at : at + body[8]].decode(errors="replace")
    text = body[at + body[8] + 1 :]
    if kind == QUERY_COMPRESSED:
        text = bytes(_inflated(memoryview(text), b"", event_limit(kind)))
    if charset in _UTF_8:
        decoded = text.decode(errors="replace")
    elif charset == "swe7":
        decoded = from_swe7(text.decode("latin-1"), sql_mode)
    else:
        try:
            decoded = to_text(bytes(text), charset)
        except UnicodeError as error:
            raise Damaged(f"a statement is not in the character set {charset} of its session") from error
    return db, decoded.strip(), sql_mode


def _session(variables: Body) -> tuple[str, int]:
    """The character set and the `sql_mode` of the session that sent a statement, from the event's status variables."""
    at, charset, sql_mode = 0, "utf8mb4", 0
    while at < len(variables):
        code = variables[at]
        at += 1
        if code == _SQL_MODE:
            sql_mode = int.from_bytes(variables[at : at + 8], "little")
        if code == _CHARSET:
            number = int.from_bytes(variables[at : at + 2], "little")
            charset = charset_of(number) or charset
            break
        if code == _CATALOG_NZ:
            at += 1 + _byte(variables, at)
        elif code == _CATALOG:
            at += 2 + _byte(variables, at)
        elif code in _STATUS_BYTES:
            at += _STATUS_BYTES[code]
        else:
            break
    return charset, sql_mode


def xid_in(text: str) -> Xid:
    """The XID in the text of an XA statement."""
    found = _XID_TEXT.search(text)
    if found is None:
        raise Damaged(f"the statement {text!r} names no XA transaction")
    return bytes.fromhex(found[1]), bytes.fromhex(found[2]), int(found[3]) & 0xFFFFFFFF  # its event has 4 bytes


def xid_of(body: Body) -> Xid:
    """The XID in an XA_PREPARE event."""
    if len(body) < 13:
        raise Damaged("an XA_PREPARE event is cut short")
    kind, first, second = struct.unpack_from("<Iii", body, 1)
    if first < 0 or second < 0 or 13 + first + second > len(body):
        raise Damaged("an XA_PREPARE event is cut short")
    return bytes(body[13 : 13 + first]), bytes(body[13 + first : 13 + first + second]), kind


def primary_key(body: bytes) -> dict[str, int]:
    """The columns of the primary key in a TABLE_MAP, in lower case and in the key's order, each with its prefix length
    (0: the whole column); empty if the TABLE_MAP has none."""
    try:
        names = TableMap(body).names
        at = 9 + _byte(body, 8) + 1
        at += 1 + _byte(body, at) + 1
        count, at = length_encoded(body, at)
        at += count
        size, at = length_encoded(body, at)
        at += size + (count + 7) // 8
        found: dict[str, int] = {}
        while at < len(body):
            kind = body[at]
            size, at = length_encoded(body, at + 1)
            end = at + size
            while kind in (_PRIMARY_KEY, _PRIMARY_KEY_WITH_PREFIX) and at < end:
                column, at = length_encoded(body, at)
                prefix = 0
                if kind == _PRIMARY_KEY_WITH_PREFIX:
                    prefix, at = length_encoded(body, at)
                if column >= len(names):
                    return {}
                found[names[column].lower()] = prefix
            at = end
        return found
    except Damaged:
        return {}


def described(body: bytes) -> tuple[int, str]:
    """The table id in a TABLE_MAP (a number), and the table's own."""
    size = _byte(body, 8)
    database = body[9 : 9 + size].decode(errors="replace")
    at = 9 + size + 1
    table = body[at + 1 : at + 1 + _byte(body, at)].decode(errors="replace")
    return table_number(body), table_id_of(database, table)


def table_number(body: Body) -> int:
    """The table id (a number) in a row event or a TABLE_MAP."""
    return int.from_bytes(body[:6], "little")


def map_without_columns(table_id: str) -> bytes:
    """A TABLE_MAP without columns, for a decoder that gets no rows."""
    names = b"".join(bytes([len(name.encode())]) + name.encode() + b"\0" for name in split_table_id(table_id))
    return bytes(8) + names + b"\0\0"


def without_checksum(event: bytes) -> bytes:
    """An event without its checksum, if it has one. (For ROTATE and heartbeats only the bytes themselves tell.)"""
    if len(event) >= 23 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
        return event[:-4]
    return event


def rotation(event: bytes) -> tuple[str, int]:
    """The file and offset at which a ROTATE event says that the binlog continues."""
    body = without_checksum(event)[HEADER_BYTES:]
    return body[8:].decode(errors="replace"), int.from_bytes(body[:8], "little")


def heartbeat_place(kind: int, event: bytes, *, near: int) -> tuple[str, int]:
    """The file and offset in a heartbeat. Version 1 has the offset's low 32 bits: it is at most 2 GiB before `near`."""
    event = without_checksum(event)
    if kind == HEARTBEAT:
        offset = int.from_bytes(event[13:17], "little") + (near & ~0xFFFFFFFF)
        if offset < near - (1 << 31):
            offset += 1 << 32
        return event[HEADER_BYTES:].decode(errors="replace"), offset
    file, offset, at = "", 0, HEADER_BYTES
    while at + 1 < len(event) and event[at]:
        size = event[at + 1]
        value = event[at + 2 : at + 2 + size]
        if event[at] == _HEARTBEAT_FILE:
            file = value.decode(errors="replace")
        elif event[at] == _HEARTBEAT_OFFSET:
            offset, _ = length_encoded(value, 0)
        at += 2 + size
    return file, offset


def _inflated(data: memoryview, head: Body, limit: int) -> bytearray:
    """`head`, and data that MariaDB compressed (`log_bin_compress`), inflated. Damaged if it can't be inflated."""
    if not data or data[0] & 0x80 == 0 or data[0] & 0x70 != 0 or not 1 <= data[0] & 7 <= 4:
        raise Damaged("the compressed event has an unknown form")
    width = data[0] & 7
    size = int.from_bytes(data[1 : 1 + width], "big")
    if size > limit:
        raise Damaged(f"the compressed event has {size} bytes, over the limit of {limit}")
    inflate, out, at = zlib.decompressobj(), bytearray(len(head) + size), len(head)
    out[:at] = head
    try:
        for begin in range(1 + width, len(data), _PIECE_BYTES):
            piece = inflate.decompress(data[begin : begin + _PIECE_BYTES])
            at += len(piece)
            if at > len(out):
                break
            out[at - len(piece) : at] = piece
    except zlib.error as error:
        raise Damaged(f"the compressed event can't be inflated ({error})") from error
    if at != len(out) or not inflate.eof:
        raise Damaged(f"the compressed event has {at - len(head)} bytes of {size}")
    return out


def inflated_rows(event_type: int, body: Body) -> bytearray:
    """The body of one of MariaDB's compressed row events, as the uncompressed event has it."""
    at = 8
    if event_type >= WRITE_ROWS_COMPRESSED:
        at += int.from_bytes(body[8:10], "little")
    width = _byte(body, at)
    at += 1
    if width == 252:
        width = int.from_bytes(body[at : at + 2], "little")
        at += 2
    at += (width + 7) // 8 * (2 if event_type in UPDATES else 1)
    return _inflated(memoryview(body)[at:], body[:at], event_limit(event_type))
