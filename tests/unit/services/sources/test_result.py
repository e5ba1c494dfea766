"""The decoder of SELECT on bytes made here: cuts, corruption, resuming, growth. Real values: test_types.py."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.binlog_bytes import schema_of
from tests.support.decoders import BOTH, Decoders
from tests.support.row_bytes import PLAIN, packets, row_of, rows

__all__ = ["rows"]  # the fixtures


def moment(*parts: int) -> bytes:
    """A date or a time of day in it (year, month, day, hour, minute, second, microsecond) as the protocol cuts it."""
    whole = struct.pack("<HBBBBBI", *parts, *(0,) * (7 - len(parts)))
    return next(whole[:size] for size in (0, 4, 7, 11) if not any(whole[size:]))


def span(sign: int, days: int, *parts: int) -> bytes:
    """A TIME (hour, minute, second, microsecond besides the days) in the same way."""
    whole = struct.pack("<BIBBBI", sign, days, *parts, *(0,) * (4 - len(parts)))
    return next(whole[:size] for size in (0, 8, 12) if not any(whole[size:]))


VALUES: list[list[Any]] = [
    [1, b"one", b"-12.50", moment(2020, 1, 2, 3, 4, 5, 6)],
    [2, None, None, None],
    [3, b"", b"0.00", moment()],
    [-2147483648, "é€😀".encode() * 99, b"99999999.99", moment(9999, 12, 31, 23, 59, 59, 999999)],
]
END = b"\xfe\0\0\x02\0"


# ---- SELECT ----------------------------------------------------------------------------------------------------------


def test_a_result_cut_anywhere_gives_the_same_rows(rows: Decoders) -> None:
    data = packets([*map(row_of, VALUES), END])
    whole = rows.ResultDecoder(PLAIN)
    whole.feed(data)
    assert whole.done
    expected = whole.take()
    assert expected.to_pylist()[1:3] == [
        {"id": 2, "name": None, "amount": None, "at": None},
        {"id": 3, "name": "", "amount": 0, "at": None},
    ]
    assert whole.zero_dates == {"at": 1}
    assert expected.schema.equals(PLAIN.arrow, check_metadata=True)
    for cut in range(1, len(data)):
        decoder = rows.ResultDecoder(PLAIN)
        decoder.feed(data[:cut])
        decoder.feed(memoryview(data)[cut:])
        assert decoder.done
        assert decoder.take().equals(expected)
    decoder = rows.ResultDecoder(PLAIN)
    for at in range(len(data)):
        assert not decoder.done
        decoder.feed(data[at : at + 1])
    assert decoder.take().equals(expected)


def test_batches_taken_in_between_make_up_the_whole(rows: Decoders) -> None:
    generator = random.Random(1)
    values = [[n, bytes([97 + n % 26]) * generator.randint(0, 400), b"1.00", None] for n in range(3000)]
    data = packets([*map(row_of, values), END])
    decoder, batches = rows.ResultDecoder(PLAIN), []
    for at in range(0, len(data), 5000):
        decoder.feed(data[at : at + 5000])
        assert decoder.rows == 0 or decoder.size > 0
        if decoder.size > 20_000 and (batch := decoder.take()) is not None:
            batch.validate(full=True)
            batches.append(batch)
    if (batch := decoder.take()) is not None:
        batches.append(batch)
    table = pa.Table.from_batches(batches)
    assert table.column("id").to_pylist() == list(range(3000))
    assert table.column("name").to_pylist() == [value[1].decode() for value in values if value[1] is not None]
    assert decoder.take() is None


def test_a_row_over_16_mib_is_put_together(rows: Decoders) -> None:
    schema = schema_of(("id", "int"), ("b", "longblob"))
    for size in (0xFFFFFF - 10, 0xFFFFFF - 9, 0xFFFFFF - 11, 0xFFFFFF + 5, 2 * 0xFFFFFF - 10):
        big = b"x" * (size - 1) + b"y"
        data = packets([*(row_of([n, value], schema) for n, value in ((1, b"a"), (2, big), (3, b"c"))), END])
        decoder = rows.ResultDecoder(schema)
        for at in range(0, len(data), 1 << 20):
            decoder.feed(data[at : at + (1 << 20)])
        batch = decoder.take()
        assert batch.column("b").to_pylist() == [b"a", big, b"c"]
        assert decoder.done


def test_a_row_over_64_mib_is_refused_before_it_is_collected(rows: Decoders) -> None:
    value = schema_of(("id", "int"), ("b", "longblob"))
    size, least = 64 << 20, len(row_of([1, b""], value)) + 8
    for more in (0, 1 << 20, 400 << 20):
        decoder = rows.ResultDecoder(value)
        whole = row_of([1, bytes(size)], value) if not more else row_of([1, b""], value)[:-1]
        whole = whole if not more else whole + b"\xfe" + (size + more).to_bytes(8, "little")
        assert len(whole) == (least + size if not more else least)
        first = memoryview(whole.ljust(0xFFFFFF, b"\0"))[:0xFFFFFF]
        given, left, number = 0, least + size + more, 0
        refused = None
        try:
            while left >= 0:
                part = min(left, 0xFFFFFF)
                decoder.feed(part.to_bytes(3, "little") + bytes([number]))
                decoder.feed(first[:part] if more else memoryview(whole)[given : given + part])
                given, left, number = given + part, left - part if part == 0xFFFFFF else -1, number + 1
        except ValueError as error:
            refused = str(error)
        if more:
            assert refused == "it has over 64 MiB: leave the table out of the list"
            assert given < size + (1 << 20)
        else:
            assert refused is None
            assert decoder.take().column("b")[0].as_buffer().size == size


def test_an_error_packet_raises_what_the_server_said(rows: Decoders) -> None:
    decoder = rows.ResultDecoder(PLAIN)
    decoder.feed(packets([row_of(VALUES[0])]))
    with pytest.raises(pymysql.err.OperationalError) as raised:
        decoder.feed(packets([b"\xff\x25\x05#70100Query execution was interrupted"], number=6))
    assert raised.value.args == (1317, "Query execution was interrupted")
    assert decoder.rows == 1


@pytest.mark.parametrize(
    ("data", "story"),
    [
        (packets([row_of(VALUES[0])], 5) + packets([row_of(VALUES[1])], 7), "packet 7 .* follows packet 5"),
        (packets([row_of([*VALUES[0], b"more"])]), "column at, byte"),
        (packets([row_of(VALUES[0])[:-12]]), "column at, byte 21"),
        (packets([b"\1" + row_of(VALUES[0])[1:]]), "column id, byte 4"),
        (packets([b"\0"]), "column id, byte 4"),
        (packets([b"\0\0\1\0\0"]), "column id, byte 6"),
        (packets([row_of([1, b"x", b"1.5", None])]), "column amount"),
        (packets([row_of([1, b"x", b"1.x0", None])]), "column amount"),
        (packets([row_of([1, b"x", b"-123456789.00", None])]), "column amount"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 1, 1, 24)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 1, 1, 0, 60)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 1, 1, 0, 0, 60)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 1, 1, 0, 0, 0, 1000000)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 13, 1)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(2020, 1, 32)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", moment(10000, 1, 1)])]), "column at"),
        (packets([row_of([1, b"x", b"1.50", b"12345"])]), "column at"),
        (packets([b"\0\0\1\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff"]), "column name"),
        (packets([b"\0\0\1\0\0\0\xfc\x01"]), "column name"),
        (packets([b"\0\0\1\0\0\0\xfb"]), "column name"),
        (packets([END]) + b"x", "follow the end"),
        (packets([b"\xfe\0\0\x0a\0"]), "another result set"),
        (packets([b""]), "empty packet"),
    ],
)
def test_what_is_no_result_of_the_schema_is_refused(rows: Decoders, data: bytes, story: str) -> None:
    with pytest.raises(ValueError, match=story):
        rows.ResultDecoder(PLAIN).feed(data)


def test_text_that_is_not_utf_8_is_refused_when_taken(rows: Decoders) -> None:
    decoder = rows.ResultDecoder(PLAIN)
    decoder.feed(packets([row_of([1, b"\xc3(", None, None])]))
    with pytest.raises(ValueError, match="column name holds bytes that are not UTF-8"):
        decoder.take()


def test_every_form_of_a_value_is_read_at_its_limits(rows: Decoders) -> None:
    """Each column's values, one a row, and what they are: days, microseconds, null for a date that no calendar has."""
    kinds: dict[str, list[tuple[Any, Any]]] = {
        "tinyint": [(-128, -128), (127, 127), (None, None)],
        "smallint": [(-32768, -32768), (32767, 32767)],
        "mediumint": [(-(1 << 23), -(1 << 23)), ((1 << 23) - 1, (1 << 23) - 1)],
        "int": [(-(1 << 31), -(1 << 31)), ((1 << 31) - 1, (1 << 31) - 1)],
        "int unsigned": [(0, 0), ((1 << 32) - 1, (1 << 32) - 1)],
        "bigint": [(-(1 << 63), -(1 << 63)), ((1 << 63) - 1, (1 << 63) - 1)],
        "bigint unsigned": [(0, 0), ((1 << 64) - 1, (1 << 64) - 1)],
        "year": [(0, 0), (1901, 1901), (2155, 2155)],
        "float": [(1.401298464324817e-45, 1.401298464324817e-45), (-3.4028234663852886e38, -3.4028234663852886e38)],
        "double": [(5e-324, 5e-324), (-1.7976931348623157e308, -1.7976931348623157e308)],
        "date": [(moment(1970, 1, 2), 1), (moment(), None), (moment(2021, 2, 29), None), (moment(2020, 0, 1), None)],
        "datetime(6)": [
            (moment(1970, 1, 2), 86_400_000_000), (moment(1970, 1, 1, 0, 0, 1), 1_000_000),
            (moment(1, 1, 1), -62_135_596_800_000_000), (moment(0, 0, 0, 12), None),
        ],
        "time(6)": [
            (span(0, 0), 0), (span(0, 0, 0, 0, 1), 1_000_000), (span(1, 0, 0, 0, 0, 1), -1),
            (span(1, 34, 22, 59, 59, 999_999), -3_020_399_999_999),
        ],
        "bit(1)": [(b"\1", True), (b"\0", False)],
        "bit(13)": [(b"\x12\x34", b"\x12\x34")],
        "decimal(38,0)": [(b"9" * 38, 10**38 - 1), (b"-0", 0)],
    }  # fmt: skip
    for kind, values in kinds.items():
        schema = schema_of(("id", kind))
        decoder = rows.ResultDecoder(schema)
        decoder.feed(packets([*(row_of([value], schema) for value, _ in values), END]))
        batch = decoder.take()
        batch.validate(full=True)
        found = [value.value if kind.startswith("date") else value.as_py() for value in batch.column(0)]
        assert found == [value for _, value in values], kind


@pytest.mark.parametrize(
    "value", [b"\2" + span(0, 0, 1)[1:], span(0, 35, 1), span(0, 0, 24), span(0, 0, 0, 60), b"1234567"]
)
def test_what_is_no_time_is_refused(rows: Decoders, value: bytes) -> None:
    schema = schema_of(("id", "time(6)"))
    with pytest.raises(ValueError, match="column id"):
        rows.ResultDecoder(schema).feed(packets([row_of([value], schema)]))


def test_equal_rows_have_equal_bytes_whatever_was_read_before(rows: Decoders) -> None:
    """Below a NULL too: the checksum of a chunk is over all bytes."""
    schema = schema_of(("id", "int"), ("a", "bigint"), ("b", "decimal(10,2)"), ("c", "bit(1)"), ("d", "date"))
    full, empty = [7, 8, b"9.00", b"\1", moment(2020, 1, 1)], [1, None, None, None, None]
    decoder = rows.ResultDecoder(schema)
    decoder.feed(packets([row_of(full, schema)]))
    decoder.take()
    decoder.feed(packets([row_of(empty, schema), END], number=6))
    for column in decoder.take().columns[1:]:
        assert not any(bytes(column.buffers()[1])), column.type


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 60))
def test_any_bytes_as_a_result_are_rows_or_refused(data: bytes, cut: int) -> None:
    found = []
    for module in BOTH:
        decoder = module.ResultDecoder(PLAIN)
        refusal = ""
        try:
            decoder.feed(data[:cut])
            decoder.feed(data[cut:])
        except (ValueError, pymysql.err.OperationalError) as error:
            refusal = str(error)
        found.append((refusal, decoder.rows, decoder.done))
    assert len(set(found)) == 1
