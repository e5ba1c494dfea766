"""Rows as a SELECT's packets and as the binlog's images have them, for tests of the decoders."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from cutline.common.schema import TableSchema
from tests.support.binlog_bytes import packed, schema_of
from tests.support.decoders import BOTH, Decoders


@pytest.fixture(params=BOTH, ids=str)
def rows(request: pytest.FixtureRequest) -> Decoders:
    decoders: Decoders = request.param
    return decoders


PLAIN = schema_of(("id", "int"), ("name", "varchar(60)"), ("amount", "decimal(10,2)"), ("at", "datetime(6)"))
WIRE = {"tinyint": "<b", "smallint": "<h", "year": "<h", "int": "<i", "bigint": "<q", "float": "<f", "double": "<d"}
WIRE |= {"tinyint(1)": "<b", "mediumint": "<i", "bigint unsigned": "<Q", "int unsigned": "<I"}


def row_of(values: list[Any], schema: TableSchema | None = None) -> bytes:
    """A row of the binary protocol: what has no number's type has its length before it."""
    kinds = [column.mysql_type for column in (schema or PLAIN).columns]
    nulls = sum((value is None) << (2 + at) for at, value in enumerate(values)).to_bytes(
        (len(values) + 9) // 8, "little"
    )
    body = b""
    for kind, value in zip(kinds + ["blob"] * 9, values, strict=False):
        if value is not None:
            body += struct.pack(WIRE[kind], value) if kind in WIRE else packed(len(value)) + value
    return b"\0" + nulls + body


def packets(payloads: list[bytes], number: int = 5) -> bytes:
    made = b""
    for payload in payloads:
        while True:
            part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            made += len(part).to_bytes(3, "little") + bytes([number % 256]) + part
            number += 1
            if len(part) < 0xFFFFFF:
                break
    return made
