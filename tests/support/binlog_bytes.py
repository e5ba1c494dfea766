"""The bytes of tables and rows as a binlog has them, made here: for unit tests and for the simulated server."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

from cutline.common.schema import Column, TableSchema
from cutline.common.table_id import split_table_id
from cutline.services.sources.mysql.binlog.event_types import UPDATE_ROWS, WRITE_ROWS


def schema_of(*columns: tuple[str, str], key: tuple[str, ...] = ("id",)) -> TableSchema:
    """The table d.t with these columns (name, type), each nullable."""
    made = tuple(
        Column(
            name=name,
            field_id=number,
            mysql_type=kind,
            nullable=True,
            charset="utf8mb4" if "char" in kind or "text" in kind else None,
        )
        for number, (name, kind) in enumerate(columns, 1)
    )
    return TableSchema(table_id="d.t", columns=made, key=key, last_field_id=len(made))


def packed(n: int) -> bytes:
    """A length-encoded integer."""
    if n < 251:
        return bytes([n])
    first, size = (252, 2) if n < 1 << 16 else (253, 3) if n < 1 << 24 else (254, 8)
    return bytes([first]) + n.to_bytes(size, "little")


TYPES = {
    "int": (3, b"", 4), "bigint unsigned": (8, b"", 8), "varchar(60)": (15, b"\xf0\x00", None),
    "decimal(10,2)": (246, b"\x0a\x02", 5), "datetime(6)": (18, b"\x06", 8), "json": (245, b"\x04", None),
    "longblob": (252, b"\x04", None), "time(6)": (19, b"\x06", 6), "bit(13)": (16, b"\x05\x01", 2),
    "date": (10, b"", 3), "tinyint": (1, b"", 1), "tinyint(1)": (1, b"", 1),
    "text /*M!100301 COMPRESSED*/": (140, b"\x02", None),
}  # fmt: skip


def table_map(schema: TableSchema, number: int = 7) -> bytes:
    """A TABLE_MAP event's body with full metadata."""
    kinds = [TYPES[column.mysql_type] for column in schema.columns]
    count = len(kinds)
    metadata = b"".join(meta for _, meta, _ in kinds)
    numeric = [column for column, kind in zip(schema.columns, kinds, strict=True) if kind[0] in (1, 3, 8, 246)]
    signs = bytearray((len(numeric) + 7) // 8)
    for i, column in enumerate(numeric):
        if "unsigned" in column.mysql_type:
            signs[i // 8] |= 0x80 >> i % 8
    names = b"".join(bytes([len(column.name)]) + column.name.encode() for column in schema.columns)
    texts = [
        63 if kind[0] == 252 else {"gb18030": 248}.get(column.charset or "", 255)
        for column, kind in zip(schema.columns, kinds, strict=True)
        if kind[0] in (15, 140, 252)
    ]
    charsets = b"".join(packed(text) for text in texts)
    fields = [(1, bytes(signs)), (3, charsets), (4, names), (12, b"\xff" * ((count + 7) // 8))]
    named = b"".join(bytes([len(name)]) + name.encode() + b"\0" for name in split_table_id(schema.table_id))
    body = number.to_bytes(6, "little") + b"\1\0" + named + packed(count)
    body += bytes(kind[0] for kind in kinds) + packed(len(metadata)) + metadata + b"\xff" * ((count + 7) // 8)
    return body + b"".join(bytes([field]) + packed(len(data)) + data for field, data in fields)


def image(schema: TableSchema, values: list[Any], lacking: Collection[str] = ()) -> bytes:
    """A row image without these columns; values are ints or bytes as they stand in the row."""
    pairs = [pair for pair in zip(schema.columns, values, strict=True) if pair[0].name not in lacking]
    nulls = bytearray((len(pairs) + 7) // 8)
    made = b""
    for i, (column, value) in enumerate(pairs):
        if value is None:
            nulls[i // 8] |= 1 << i % 8
            continue
        _, meta, size = TYPES[column.mysql_type]
        if isinstance(value, int):
            value = value.to_bytes(size or 8, "little", signed=value < 0)
        if size is None:
            made += len(value).to_bytes(meta[0] if len(meta) == 1 else 1, "little")
        made += value
    return bytes(nulls) + made


def event(
    schema: TableSchema, images: list[bytes], kind: int = WRITE_ROWS, lacking: Sequence[Collection[str]] = ((), ())
) -> bytes:
    """A row event's body (version 2, of table 7): for updates before- and after-images in turn. `lacking`: the columns
    that its first images lack, and its second ones.
    """
    count = len(schema.columns)
    head = b"\7\0\0\0\0\0\1\0" + b"\2\0" + packed(count)
    for absent in lacking[: 2 if kind == UPDATE_ROWS else 1]:
        bits = (1 << (count + 7) // 8 * 8) - 1
        for i, column in enumerate(schema.columns):
            bits -= (column.name in absent) << i
        head += bits.to_bytes((count + 7) // 8, "little")
    return head + b"".join(images)


def compressed(value: bytes, length: int | None = None) -> bytes:
    """A value as MariaDB stores it in a COMPRESSED column."""
    deflate = zlib.compressobj(wbits=-15)
    size = (len(value) if length is None else length).to_bytes(3, "big")
    return b"\x8b" + size + deflate.compress(value) + deflate.flush()
