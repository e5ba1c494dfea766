"""The proof of fidelity: a row has the same bytes by SELECT, in the binlog's after-image and in the next before-image.

Every table is read four ways (SELECT, after-image of the INSERT, before-image of an UPDATE that touches another column,
its after-image) by the compiled decoders and by the interpreted ones, and compared as Arrow arrays. PyMySQL and
mysql-replication read the same rows where they are right.
"""

from __future__ import annotations

import datetime
import decimal
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from cutline.common.errors import SourceLost
from cutline.common.schema import OP, ROW, SEQ, TableSchema, arrow_type, parse_type
from cutline.services.sources.mysql import keys
from cutline.services.sources.mysql.binlog.earlier_schema import earlier_schema
from cutline.services.sources.mysql.catalogue import describe
from cutline.services.sources.mysql.connection import Connection, RowStream, Source
from cutline.services.sources.mysql.connection import connect as cutline_connect
from cutline.services.sources.mysql.decode import charsets, codes
from cutline.services.sources.mysql.server import identify
from tests.conftest import FULL
from tests.support.databases import Database
from tests.support.decoders import BOTH, INSTALLED, Decoders

TABLE_MAP = 19
ROW_EVENTS = (23, 24, 25, 30, 31, 32)
EXAMPLES = 2000 if FULL else 20
"""How many generated tables a server is asked for."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def connect(server: Database, database: str, **session: str) -> pymysql.connections.Connection[Any]:
    assignments = {"time_zone": "'+00:00'", "sql_mode": "''"} | session
    setting = ", ".join(f"{name} = {value}" for name, value in assignments.items())
    return server.connect(database=database, init_command=f"SET {setting}")


def flushed(connection: pymysql.connections.Connection[Any], server: Database) -> tuple[str, int]:
    with connection.cursor() as cursor:
        newer = server.flavour == "mysql" and not server.version.startswith("8.0.")
        cursor.execute("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchone()
    return file, int(offset)


def dumped(server: Database, file: str, offset: int) -> Iterator[tuple[int, bytes]]:
    """Type and body of each event from there to the end, by COM_BINLOG_DUMP."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
        cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4")
        cursor.execute("SELECT @@global.binlog_checksum")
        check = 0 if cursor.fetchone()[0] == "NONE" else 4
        command: Any = connection
        command._execute_command(0x12, struct.pack("<IHI", offset, 1, 4_000_000_001) + file.encode())
        while not (packet := command._read_packet()).is_eof_packet():
            event = packet._data
            yield event[5], event[20 : len(event) - check]


def changed(
    module: Decoders, server: Database, at: tuple[str, int], schema: TableSchema, before: bool = False
) -> pa.Table:
    """The row changes of one table from there on."""
    place = module.Place()
    place.file = at[0]
    place.transaction("gtid", 1_000_000)
    decoders: dict[bytes, Any] = {}
    decoder = None
    for kind, body in dumped(server, *at):
        if kind == TABLE_MAP:
            table = module.TableMap(body)
            decoder = None
            if f"{table.database}.{table.table}" == schema.table_id:
                if body[8:] not in decoders:
                    decoders[body[8:]] = module.EventDecoder(body, schema, place, before)
                    tells_the_schema(server, body, schema)
                decoder = decoders[body[8:]]
                assert decoder.faults == ()
        elif kind in ROW_EVENTS and decoder is not None:
            decoder.rows(kind, body)
            assert decoder.ended
    batches = [batch for decoder in decoders.values() if (batch := decoder.take()) is not None]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


def logs_generated_columns(server: Database, database: str) -> bool:
    """Whether row images of updates have generated columns. MariaDB 11.8.9 leaves them out; then updates are refused.
    Deletes need only their key.
    """
    table = f"{database}.probe"
    with closing(connect(server, database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE probe (id INT PRIMARY KEY, n INT, v INT AS (n + 1) VIRTUAL, s INT AS (n + 2) STORED)"
        )
        schema = described(server, connection, table)
        start = flushed(connection, server)
        cursor.execute("INSERT INTO probe (id, n) VALUES (1, 10), (2, 20)")
        cursor.execute("DELETE FROM probe WHERE id = 2")
        rows = changed(INSTALLED, server, start, schema).to_pylist()
        assert [(row[OP], row["id"], row["n"]) for row in rows] == [("+I", 1, 10), ("+I", 2, 20), ("-D", 2, 20)]
        assert [(row["v"], row["s"]) for row in rows[:2]] == [(11, 12), (21, 22)]
        cursor.execute("UPDATE probe SET n = 30")
        try:
            rows = changed(INSTALLED, server, start, schema).to_pylist()
        except INSTALLED.PartialImage as error:
            if f"a row image of {table} lacks the generated column" not in str(error):
                raise
            return False
        assert (rows[-1]["v"], rows[-1]["s"]) == (31, 32)
        return True


ALIKE = (("binary", (4,)), ("binary", (16,)), ("uuid", ()), ("inet6", ()), ("inet4", ()))
"""MariaDB's types that a TABLE_MAP does not tell apart."""


def tells_the_schema(server: Database, body: bytes, schema: TableSchema) -> None:
    """A TABLE_MAP tells the catalogue's schema, and its types also if every column had another name since."""
    mariadb = server.flavour == "mariadb"
    assert earlier_schema(body, schema, mariadb=mariadb) == schema
    renamed = tuple(replace(column, name=f"was {column.name}") for column in schema.columns)
    types = [parse_type(column.mysql_type) for column in schema.columns]
    stranger = replace(schema, columns=renamed, key=())
    if mariadb and any((kind.base, kind.numbers) in ALIKE for kind in types):
        with pytest.raises(SourceLost, match=r"UUID|INET4"):
            earlier_schema(body, stranger, mariadb=mariadb)
        return
    then = earlier_schema(body, stranger, mariadb=mariadb)
    assert INSTALLED.EventDecoder(body, then, INSTALLED.Place()).faults == ()
    assert [arrow_type(column.mysql_type) for column in then.columns] == [
        arrow_type(column.mysql_type) for column in schema.columns
    ]
    for column, was, kind in zip(then.columns, schema.columns, types, strict=True):
        assert (column.name, column.nullable, column.charset) == (was.name, was.nullable, was.charset)
        assert column.field_id > schema.last_field_id
        if kind.base in ("char", "varchar", "varbinary", "enum", "set"):
            assert parse_type(column.mysql_type) == kind


def selected(
    module: Decoders, connection: pymysql.connections.Connection[Any], schema: TableSchema, cuts: int = 0
) -> pa.Table:
    """All rows by the SELECT that chunks are read with; with `cuts`, the bytes are fed in pieces of at most so many."""
    decoder = module.ResultDecoder(schema)
    random_sizes = random.Random(cuts)
    for block in RowStream(connection, keys.select_rows(schema, None, None)):
        at = 0
        while at < len(block):
            size = random_sizes.randint(1, cuts) if cuts else len(block)
            decoder.feed(block[at : at + size])
            at += size
        if decoder.done:
            break
    batch = decoder.take()
    if batch is None:
        return schema.arrow.empty_table()
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def feed(decoder: Any, blocks: Iterator[bytes]) -> None:
    """Feed blocks up to the result's end."""
    while not decoder.done:
        decoder.feed(next(blocks))


def described(server: Database, connection: pymysql.connections.Connection[Any], table_id: str) -> TableSchema:
    with closing(server.connect(conv={}, autocommit=True)) as plain:
        return describe(plain, identify(plain), table_id).schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the ways of reading one table gave."""

    schema: TableSchema
    start: tuple[str, int]
    by_select: pa.Table
    inserted: pa.Table
    before: pa.Table
    after: pa.Table

    def column(self, name: str) -> list[Any]:
        values: list[Any] = self.by_select.column(name).to_pylist()
        return values


def same(expected: pa.Table, found: pa.Table, schema: TableSchema, ways: str, without: Sequence[str] = ()) -> None:
    """Equal values and types, byte for byte (a NaN can't come, and -0.0 differs from 0.0)."""
    assert found.num_rows == expected.num_rows, ways
    for column in schema.columns:
        if column.name in without:
            continue
        left = expected.column(column.name).combine_chunks()
        right = found.column(column.name).combine_chunks()
        assert left.type == right.type, f"{ways}, {column.name}"
        if not _identical(left, right):
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            differing = [(row, a, b) for row, (a, b) in enumerate(pairs) if repr(a) != repr(b)]
            raise AssertionError(f"{ways}: {column.name} {column.mysql_type}: {differing[:3]} of {len(differing)}")


def _identical(left: pa.Array, right: pa.Array) -> bool:
    if pa.types.is_floating(left.type):
        return bool(left.equals(right)) and [repr(x) for x in left.to_pylist()] == [repr(x) for x in right.to_pylist()]
    return bool(left.equals(right))


def read_all_ways(server: Database, database: str, columns: str, inserts: Sequence[Any], **session: str) -> Readings:
    """Make `t` (id, touched and these columns), insert, touch every row, read it in all ways and compare them.

    An insert is the text of a row's values after id and touched, or a pair of such a text and its parameters.
    """
    with closing(connect(server, database, **session)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL{', ' if columns else ''}{columns})")
        schema = described(server, connection, f"{database}.t")
        start = flushed(connection, server)
        for number, insert in enumerate(inserts):
            text, parameters = insert if isinstance(insert, tuple) else (insert, None)
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0{', ' if text else ''}{text})", parameters)
        middle = flushed(connection, server)
        # every other way of making an event: one statement for all rows
        cursor.execute("UPDATE t SET touched = touched + 1 ORDER BY id")
    with closing(connect(server, database)) as connection:
        found: list[Readings] = []
        for module in BOTH:
            every = changed(module, server, start, schema, before=True)
            ops = every.column(OP).to_pylist()
            count = len(inserts)
            assert ops == ["+I"] * count + ["-U", "+U"] * count
            inserted, updates = every.slice(0, count), every.slice(count)
            before = updates.take(list(range(0, 2 * count, 2)))
            after = updates.take(list(range(1, 2 * count, 2)))
            by_select = selected(module, connection, schema)
            name = str(module)
            same(by_select, after, schema, f"{name}: SELECT and after-image")
            same(by_select, inserted, schema, f"{name}: SELECT and inserted image", ["touched"])
            same(inserted, before, schema, f"{name}: inserted image and before-image")
            same(by_select, selected(module, connection, schema, cuts=7), schema, f"{name}: SELECT cut in pieces")
            plain = changed(module, server, middle, schema)
            assert plain.column(OP).to_pylist() == ["+U"] * count
            same(by_select, plain, schema, f"{name}: SELECT and after-image alone")
            found.append(
                Readings(
                    schema=schema, start=start, by_select=by_select, inserted=inserted, before=before, after=after
                )
            )  # fmt: skip
        for other in found[1:]:
            same(found[0].by_select, other.by_select, schema, "compiled and interpreted SELECT")
            same(found[0].after, other.after, schema, "compiled and interpreted binlog")
    return found[0]


# ---- every type at its limits ----------------------------------------------------------------------------------------

INTEGERS = {
    "TINYINT": (8, True), "TINYINT UNSIGNED": (8, False), "TINYINT(1)": (8, True),
    "SMALLINT": (16, True), "SMALLINT UNSIGNED": (16, False),
    "MEDIUMINT": (24, True), "MEDIUMINT UNSIGNED": (24, False),
    "INT": (32, True), "INT UNSIGNED": (32, False), "INT(255) ZEROFILL": (32, False),
    "BIGINT": (64, True), "BIGINT UNSIGNED": (64, False), "BIGINT(30) UNSIGNED ZEROFILL": (64, False),
    "TINYINT(5) ZEROFILL": (8, False), "SMALLINT(9) ZEROFILL": (16, False), "MEDIUMINT(12) ZEROFILL": (24, False),
}  # fmt: skip


def limits(bits: int, signed: bool) -> tuple[int, int]:
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def test_integers_come_at_their_limits(source: Database, database: str) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(INTEGERS))
    ranges = [limits(*spec) for spec in INTEGERS.values()]
    rows = [[low for low, _ in ranges], [high for _, high in ranges], [0] * len(ranges), [1] * len(ranges)]
    rows.append([max(low, -1) for low, _ in ranges])
    nulls = ", ".join(["NULL"] * len(ranges))
    found = read_all_ways(source, database, columns, [*(", ".join(map(str, row)) for row in rows), nulls])
    for i in range(len(INTEGERS)):
        assert found.column(f"c{i}") == [row[i] for row in rows] + [None]


DECIMALS = [(1, 0), (5, 2), (9, 9), (10, 0), (18, 9), (19, 0), (20, 10), (28, 10), (37, 1), (38, 0), (38, 30)]
WIDE_DECIMALS = [(39, 0), (40, 2), (45, 30), (65, 0), (65, 30)]


def test_decimals_are_exact_up_to_65_digits(source: Database, database: str) -> None:
    shapes = DECIMALS + WIDE_DECIMALS
    columns = ", ".join(f"c{i} DECIMAL({p},{s})" for i, (p, s) in enumerate(shapes))
    columns += ", z1 DECIMAL(12,3) UNSIGNED ZEROFILL, z2 DECIMAL(45,3) UNSIGNED ZEROFILL"

    def number(digits: str, scale: int) -> str:
        digits = digits.rjust(scale + 1, "0")
        return digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")

    rows = []
    for pattern in ("9", "1234567890", "0", "1000000000", "10", "0000000001"):
        for sign in ("", "-"):
            values = [sign + number((pattern * 65)[:p], s) for p, s in shapes]
            rows.append(", ".join(f"'{value}'" for value in [*values, "7.5", "00012.250"]))
    smallest = ["0." + "1".rjust(s, "0") if s else "1" for _, s in shapes]
    rows += [", ".join(f"'{sign}{value}'" for value in smallest) + ", 0, 0" for sign in ("", "-")]
    rows.append(", ".join(["NULL"] * (len(shapes) + 2)))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("c15")[0] == "9" * 35 + "." + "9" * 30
    assert str(found.column("c10")[0]) == "9" * 8 + "." + "9" * 30
    assert set(found.column("z2")[:1]) == {"12.250"}
    values: list[Any] = found.column("c4")
    assert str(values[1]) == "-" + "9" * 9 + "." + "9" * 9


def test_floats_and_doubles_are_exact(source: Database, database: str) -> None:
    columns = "f FLOAT, d DOUBLE, fd FLOAT(7,4), dd DOUBLE(20,6), fp FLOAT(30), du DOUBLE UNSIGNED"
    columns += ", fz FLOAT ZEROFILL, dz DOUBLE ZEROFILL, fdz FLOAT(9,3) ZEROFILL"
    floats = ["16777216", "3.1415927", "3.4028234e38", "1.17549435e-38", "1.4e-45", "-0.1", "1e-10", "0", "123456.79"]
    floats += ["-3.4028234e38", "-1.17549435e-38", "-1.4e-45"]
    doubles = ["1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "0.1", "123456789012345678", "-1e-7"]
    doubles += ["-1.7976931348623157e308", "-2.2250738585072014e-308", "-5e-324"]
    doubles += ["9007199254740993", "0.30000000000000004", "1e22", "1e23", "123.456"]
    generator = random.Random(4)
    for _ in range(150):
        bits = generator.getrandbits(64) & ~(0x7FF << 52) | generator.randrange(0x7FF) << 52
        doubles.append(repr(struct.unpack("<d", struct.pack("<Q", bits))[0]))
        bits = generator.getrandbits(32) & ~(0xFF << 23) | generator.randrange(0xFF) << 23
        floats.append(repr(struct.unpack("<f", struct.pack("<I", bits))[0]))
    rows = []
    for i in range(len(doubles)):
        f, d = floats[i % len(floats)], doubles[i]
        rows.append(f"{f}, {d}, {generator.uniform(-999, 999)}, {generator.uniform(-1e13, 1e13)}, {f}, ABS({d})")
        rows[-1] += f", ABS({f}), ABS({d}), {generator.uniform(0, 999)}"
    found = read_all_ways(source, database, columns, [*rows, ", ".join(["NULL"] * 9)])
    assert found.by_select.slice(len(rows)).drop(["id", "touched"]).to_pylist() == [
        dict.fromkeys("f d fd dd fp du fz dz fdz".split())
    ]
    for i, value in enumerate(found.column("d")[:-1]):
        assert value == float(doubles[i]), doubles[i]
    for i, value in enumerate(found.column("f")[:-1]):
        assert value == struct.unpack("<f", struct.pack("<f", float(floats[i % len(floats)])))[0]


def test_bits_and_binary_keep_every_byte(source: Database, database: str) -> None:
    widths = range(1, 65)
    columns = ", ".join(f"b{w} BIT({w})" for w in widths)
    columns += ", f1 BINARY, f20 BINARY(20), f255 BINARY(255), v0 VARBINARY(5), v400 VARBINARY(400)"
    columns += ", tb TINYBLOB, b BLOB, mb MEDIUMBLOB, lb LONGBLOB"
    patterns = [0x8000000000000001, 0x0123456789ABCDEF, 0, (1 << 64) - 1, 0xF0F0F0F00F0F0F0E]
    texts = [b"", b"\0", b" ", b"a ", b"\0\0a\0", b"\xff\xfe\0"]
    rows: list[Any] = []
    for i, text in enumerate(texts):
        bits = ", ".join(str(patterns[i % 5] >> (64 - w)) for w in widths)
        parts = [text[:1], text * 2, text * 9, text, text * 80, text, text * 99, text * 2000, text * 70000]
        rows.append((bits + ", %s" * 9, parts))
    rows.append((", ".join(["NULL"] * (len(widths) + 9)), None))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("b1") == [bool(patterns[i % 5] >> 63) for i in range(6)] + [None]
    assert found.column("b9")[0] == b"\x01\x00"
    assert found.column("f20")[:2] == [b"\0" * 20] * 2
    assert found.column("f20")[3] == b"a a " + b"\0" * 16
    assert found.column("lb")[5] == texts[5] * 70000


def test_times_keep_every_fraction_and_zero_dates_are_null(source: Database, database: str) -> None:
    columns = "d DATE, y YEAR" + "".join(
        f", dt{n} DATETIME({n}), ts{n} TIMESTAMP({n}) NULL, t{n} TIME({n})" for n in range(7)
    )
    stamps = [
        ("0001-01-01 00:00:00", "1970-01-01 00:00:01", "-838:59:59"),
        ("9999-12-31 23:59:59.999999", "2038-01-19 03:14:07.999999", "838:59:59"),
        ("2024-02-29 12:34:56.789012", "2024-02-29 12:34:56.789012", "-00:00:00.000001"),
        ("1000-01-01 00:00:00.000001", "2000-01-01 00:00:00.000010", "00:00:00.1"),
        ("1582-10-10 01:02:03.4", "1999-12-31 23:59:59.9", "-12:34:56.789012"),
        ("1901-01-01 00:00:00.5", "2001-09-09 01:46:40.5", "-838:59:58.999999"),
        ("0000-00-00 00:00:00", "0000-00-00 00:00:00", "00:00:00"),
        ("2024-00-10 00:00:00", "0000-00-00 00:00:00", "23:59:59.999999"),
        ("2024-10-00 11:22:33", "0000-00-00 00:00:00", "-00:59:59.5"),
        ("2023-02-31 11:22:33", "0000-00-00 00:00:00", "-00:00:01"),
    ]
    rows = []
    for moment, stamp, time in stamps:
        values = [moment[:10], "0000" if moment < "1901" else str(min(2155, int(moment[:4])))]
        for n in range(7):
            values += [_fraction(moment, n), _fraction(stamp, n), _fraction(time, n)]
        rows.append(", ".join(f"'{value}'" for value in values))
    rows.append(", ".join(["NULL"] * 23))
    found = read_all_ways(source, database, columns, rows, sql_mode="'ALLOW_INVALID_DATES'")
    zero = [6, 7, 8, 9, 10]
    for name in ("d", *(f"dt{n}" for n in range(7)), *(f"ts{n}" for n in range(7))):
        assert [row for row, value in enumerate(found.column(name)) if value is None] == zero, name
    assert found.column("t6")[:3] == [-3_020_399_000_000, 3_020_399_000_000, -1]
    assert found.column("y")[:6] == [0, 2155, 2024, 0, 0, 1901]
    micros = found.by_select.column("dt6").cast(pa.int64()).to_pylist()
    assert micros[:2] == [-62_135_596_800_000_000, 253_402_300_799_999_999]
    with closing(connect(source, database)) as connection:
        for module in BOTH:
            decoder = module.ResultDecoder(found.schema)
            feed(decoder, RowStream(connection, keys.select_rows(found.schema, None, None)))
            decoder.take()
            assert decoder.zero_dates["d"] == 4
            assert decoder.zero_dates["ts3"] == 4


def test_years_of_two_digits_are_whole_years(mariadb: Database, fresh_database: Any) -> None:
    """SELECT tells the last two digits alone, of years that only an INSERT of before YEAR(2) can have too."""
    rows = ["70, 1970", "99, 1999", "'00', 2000", "24, 2024", "69, 2069", "2155, 2155", "'x', 0", "NULL, NULL"]
    found = read_all_ways(mariadb, fresh_database(mariadb), "y YEAR(2), z YEAR", rows)
    assert found.column("y") == [1970, 1999, 2000, 2024, 2069, 2055, 2000, None]
    assert found.column("z") == [1970, 1999, 2000, 2024, 2069, 2155, 0, None]


def _fraction(text: str, digits: int) -> str:
    """Cut the fraction, so that no server rounds."""
    whole, _, part = text.partition(".")
    return whole + ("." + part[:digits] if part and digits else "")


ZONE = "Cutline/Vienna"
SPRING, AUTUMN = 1_616_893_200, 1_635_642_000
"""When Vienna's clocks went from 01:59:59 to 03:00:00 on 2021-03-28, and from 02:59:59 to 02:00:00 on 2021-10-31."""


@pytest.fixture
def zone(source: Database) -> Iterator[str]:
    """A time zone with the two changes of 2021, as the server's own; it is taken away after the test."""
    tables = ("time_zone", "time_zone_name", "time_zone_transition", "time_zone_transition_type")
    source.execute(
        "INSERT INTO time_zone (Time_zone_id, Use_leap_seconds) VALUES (9999, 'N')",
        f"INSERT INTO time_zone_name VALUES ('{ZONE}', 9999)",
        "INSERT INTO time_zone_transition_type VALUES (9999, 0, 3600, 0, 'CET'), (9999, 1, 7200, 1, 'CEST')",
        f"INSERT INTO time_zone_transition VALUES (9999, {SPRING}, 1), (9999, {AUTUMN}, 0)",
        f"SET GLOBAL time_zone = '{ZONE}'",
        database="mysql",
    )
    yield ZONE
    source.execute("SET GLOBAL time_zone = 'SYSTEM'", database="mysql")
    source.execute(*(f"DELETE FROM {table} WHERE Time_zone_id = 9999" for table in tables), database="mysql")


def test_timestamps_around_a_dst_change_are_told_apart_whatever_the_zones_are(
    source: Database, database: str, zone: str
) -> None:
    """Sessions in the zone, in the server's (the same), and in fixed offsets, at both hours that are called 02:30."""
    moments = [at + second for at in (SPRING, AUTUMN) for second in (-3601, -3600, -1800, -1, 0, 1800, 3599, 3600)]
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, d TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
            " ts TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6))"
        )
        start = flushed(connection, source)
        expected = []
        for session in ("DEFAULT", f"'{zone}'", "'+05:30'", "'-11:00'"):
            cursor.execute(f"SET time_zone = {session}")
            for moment in moments:
                cursor.execute(f"SET timestamp = {moment}.5")
                cursor.execute(f"INSERT INTO t (id, touched) VALUES ({len(expected)}, 0)")
                expected.append(moment)
        cursor.execute(f"SET time_zone = '{zone}'")  # and what a clock in Vienna showed
        cursor.execute(f"INSERT INTO t VALUES ({len(expected)}, 0, '2021-10-31 03:00:00', '2021-10-31 03:00:00.5')")
        expected.append(AUTUMN + 3600)
        cursor.execute("SET time_zone = '+00:00'")
        schema = described(source, connection, f"{database}.t")
    with closing(seam_connection(source)) as seam:
        for module in BOTH:
            by_select = selected(module, seam, schema)
            assert by_select.column("ts").cast(pa.int64()).to_pylist() == [at * 10**6 + 500_000 for at in expected]
            assert by_select.column("d").cast(pa.int64()).to_pylist() == [at * 10**6 for at in expected]
            same(by_select, changed(module, source, start, schema), schema, "SELECT and inserted image")


def seam_connection(server: Database) -> Connection:
    """A connection as Cutline opens it."""
    return cutline_connect(Source(host=server.host, port=server.port, user=server.user, password=server.password))


def test_enums_and_sets_come_as_utf_8_from_any_character_set(source: Database, database: str) -> None:
    sets = character_sets(source)
    assert len(sets) >= 37
    columns, many = [], ",".join(f"'m{i}'" for i in range(64))
    for name in sets:
        columns.append(f"e_{name} ENUM('a','{letter(name)}','c d') CHARACTER SET {name}")
        columns.append(f"s_{name} SET('a','{letter(name)}','c d') CHARACTER SET {name}")
    wide = ",".join(f"'m{i}'" for i in range(300))
    columns += [f"e300 ENUM({wide})", f"s64 SET({many})"]
    rows = []
    for member, mask, index, bits in ((1, 1, 300, 1 << 63), (2, 7, 1, (1 << 64) - 1), (3, 0, 256, 5), (0, 6, 255, 0)):
        rows.append(", ".join([f"{member}, {mask}"] * len(sets) + [f"{index}, {bits}"]))
    rows.append(", ".join(["NULL"] * len(columns)))
    found = read_all_ways(source, database, ", ".join(columns), rows)
    for name in sets:
        assert found.column(f"e_{name}") == ["a", letter(name), "c d", "", None], name
        assert found.column(f"s_{name}") == ["a", f"a,{letter(name)},c d", "", f"{letter(name)},c d", None], name
    assert found.column("s64")[:2] == ["m63", ",".join(f"m{i}" for i in range(64))]
    assert found.column("e300")[:2] == ["m299", "m0"]


def letter(name: str) -> str:
    """A letter of a character set that is not ASCII's, if it has one."""
    if name in charsets.EIGHT_BIT:
        return next((chr(point) for point in charsets.code_points(name) if point > 127 and chr(point).isalpha()), "~")
    return "ア" if name in ("ujis", "eucjpms", "sjis", "cp932") else "中" if name in charsets.MULTI_BYTE else "é"


# ---- character sets --------------------------------------------------------------------------------------------------

CHARACTER_SETS = sorted(charsets._COLLATIONS.keys() - {"binary"})


def character_sets(server: Database) -> list[str]:
    known = {name for (name,) in server.execute("SELECT character_set_name FROM information_schema.character_sets")}
    return [name for name in CHARACTER_SETS if name in known]


def test_text_of_every_character_set_comes_as_utf_8(source: Database, database: str) -> None:
    """All single bytes, and a sample of all longer characters, of each character set the server has."""
    generator = random.Random(7)
    names = character_sets(source)
    assert len(names) >= 37
    columns = ", ".join(
        f"c_{name} CHAR(9) CHARACTER SET {name}, v_{name} VARCHAR(300) CHARACTER SET {name},"
        f" t_{name} TEXT CHARACTER SET {name}"
        for name in names
    )
    rows: list[Any] = []
    for number in range(12):
        values = []
        for name in names:
            letters = sample(name, generator, number)
            values += [letters[:9], letters[:300], letters]
        rows.append((", ".join(["%s"] * len(values)), values))
    rows.append((", ".join(["%s"] * 3 * len(names)), ["  a  ", " ", "a \t"] * len(names)))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("c_utf8mb4")[12] == "  a"
    assert found.column("v_utf16")[12] == " "
    assert found.column("t_latin1")[12] == "a \t"


def sample(name: str, generator: random.Random, number: int) -> str:
    """Text of a character set; the first one of an 8-bit set has all its characters."""
    if name in charsets.EIGHT_BIT:
        points = [point for point in charsets.code_points(name) if point not in (0xFFFD,)]
        return "".join(map(chr, points if number == 0 else generator.choices(points, k=40)))
    if name in charsets.MULTI_BYTE:
        points = [point for point in set(charsets.multi_byte_points(name)) if point > 0 and point != 0xFFFD]
        return "".join(map(chr, generator.choices(points, k=400)))
    top = 0xFFFF if name in ("ucs2", "utf8mb3") else 0x10FFFF
    return "".join(chr(p) for p in (generator.randint(1, top) for _ in range(300)) if not 0xD800 <= p < 0xE000)


def again(raw: str, name: str) -> str:
    """Whether a server makes the same bytes of the text that it makes of them."""
    return f"CAST(CONVERT(CONVERT(CONVERT({raw} USING {name}) USING utf8mb4) USING {name}) AS BINARY) = {raw}"


def test_the_tables_of_character_sets_are_the_servers(source: Database, database: str) -> None:
    for name in character_sets(source):
        if name in charsets.EIGHT_BIT:
            points = charsets.code_points(name)
            asked = ", ".join(
                f"HEX(CONVERT(CONVERT(UNHEX('{byte:02X}') USING {name}) USING utf32))" for byte in range(256)
            )
            ((*found,),) = source.execute(f"SELECT {asked}")
            assert tuple(int(code, 16) for code in found) == points, name
            asked = ", ".join(again(f"x'{byte:02X}'", name) for byte in range(256))
            ((*same,),) = source.execute(f"SELECT {asked}")
            expected = [
                point if unchanged and point != 0xFFFD else codes.P_AMBIGUOUS
                for unchanged, point in zip(same, points, strict=True)
            ]
            assert charsets.key_points(name) == tuple(expected), name
            assert (codes.P_AMBIGUOUS not in expected) == (name in keys._ONE_TO_ONE), name
    for number, name in source.execute(
        "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
    ):
        assert charsets.charset_of(int(number)) == name or name is None, number


def test_pairs_of_the_multi_byte_character_sets_are_the_servers(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE pairs (b VARBINARY(4) PRIMARY KEY)")
        units = [bytes((first, second)) for first in range(0x80, 0x100) for second in range(0x40, 0x100)]
        units += [bytes((0x8F, first, second)) for first in range(0xA1, 0xFF) for second in range(0xA1, 0xFF)]
        cursor.execute("INSERT INTO pairs VALUES " + ",".join(f"(x'{unit.hex()}')" for unit in units))
        compared = 0
        for name in character_sets(source):
            if name not in charsets.MULTI_BYTE and name != "gb18030":
                continue
            cursor.execute(
                f"SELECT b, HEX(CONVERT(CONVERT(b USING {name}) USING utf32)), {again('b', name)} FROM pairs"
            )
            for raw, code, same in cursor.fetchall():
                begins_a_pair = name == "gb18030" or charsets.multi_byte_points(name)[raw[0]] == codes.P_PAIR
                if not begins_a_pair if len(raw) == 2 else name not in ("ujis", "eucjpms"):
                    continue  # two characters, or a broken one
                if code is not None and len(code) == 8:  # one well-formed character
                    assert charsets.to_text(raw, name) == chr(int(code, 16)), (name, raw.hex())
                    if name != "gb18030":
                        at = 256 * (raw[-2] + 1) + raw[-1] + (0x10000 if len(raw) == 3 else 0)
                        unambiguous = charsets.key_points(name)[at] != codes.P_AMBIGUOUS
                        assert unambiguous == (same and code != "0000FFFD"), (name, raw.hex())
                    compared += 1
        assert compared > 90_000


# ---- JSON ------------------------------------------------------------------------------------------------------------

JSON_TEXTS = [
    "null", "true", "false", "0", "-1", "32767", "-32768", "65535", "2147483647", "-2147483648", "4294967295",
    "9223372036854775807", "-9223372036854775808", "18446744073709551615", "1.0", "-0.0", "1e20", "1e-7", "1.5e300",
    "123456789012345678901234567890", "0.1", "1e15", "1e16", "123456789012345.5", "1234567890123456.5", "5e-324",
    "1e-14", "1e-15", "1e-16", "1.25e-15", "12345678901234567", "1e14", '""', '"a"', '"\\u0000\\u001f\\u007f\\"\\\\/"',
    '"\\b\\f\\n\\r\\t"', '"é€😀"', "[]", "{}", "[[], {}, [1, [2, [3]]]]", '{"b": 1, "a": 2, "ab": 3, "": 4, "é": 5}',
    '{"k": {"k": {"k": [null, true, false, -5, 1.5, "x"]}}}', "[1.7976931348623157e308, 2.2250738585072014e-308]",
]  # fmt: skip

JSON_CALLS = [
    "CAST(CAST('2020-02-29' AS DATE) AS JSON)", "CAST(CAST('2020-02-29 01:02:03.000045' AS DATETIME(6)) AS JSON)",
    "CAST(CAST('0001-01-01 00:00:00' AS DATETIME) AS JSON)",
    "CAST(CAST('9999-12-31 23:59:59.999999' AS DATETIME(6)) AS JSON)",
    "CAST(CAST('-838:59:59' AS TIME) AS JSON)", "CAST(CAST('12:34:56.000789' AS TIME(6)) AS JSON)",
    "CAST(CAST('-00:00:00.5' AS TIME(6)) AS JSON)", "JSON_ARRAY(TIMESTAMP '2020-01-01 00:00:00')",
    "CAST(CAST('123.4500' AS DECIMAL(65,30)) AS JSON)", "CAST(CAST('-0.001' AS DECIMAL(10,3)) AS JSON)",
    "CAST(CAST('0.00' AS DECIMAL(10,2)) AS JSON)", "CAST(CAST('-99999999999' AS DECIMAL(11,0)) AS JSON)",
    "CAST(CAST('-0' AS DECIMAL(5,5)) AS JSON)", "CAST(x'' AS JSON)", "CAST(x'00' AS JSON)",
    "CAST(x'0001FF' AS JSON)",
    "CAST(x'DEADBEEF' AS JSON)", "JSON_OBJECT('a', x'CAFEBABE01', 'b', b'1010')", "JSON_ARRAY(b'10000000001')",
    "JSON_OBJECT('y', YEAR('2020-01-01'), 'f', 1.5e0, 'd', 1.50)",
    "JSON_ARRAY(CAST(1.1 AS FLOAT), CAST(7 AS UNSIGNED))",
    "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "JSON_ARRAY(CAST('2020' AS YEAR))",
]  # fmt: skip


def large_json(generator: random.Random, depth: int) -> list[str]:
    """Documents in the large format (over 64 KiB), deep ones, and ones with many keys."""
    numbers = [generator.choice([generator.getrandbits(70), generator.random(), -generator.getrandbits(31), None, True])
               for _ in range(9000)]  # fmt: skip
    keys = {f"key {generator.getrandbits(48):x}" * generator.randint(1, 4): i - 500 for i in range(3000)}
    half = depth // 2
    deep = [
        '[{"k": ' * half + "7" + "}]" * half,
        '{"k": ' * depth + "7" + "}" * depth,
        "[" * depth + "7" + "]" * depth,
    ]
    texts = {"k": ["x" * 200, "y" * 20000]}
    wide = {"l": ["x" * 66000, "y" * 127, "z" * 128, "w" * 16384, numbers[:50]], "m": {"n": [1] * 70}}
    return [json.dumps(value) for value in (numbers, keys, texts, wide)] + deep


def test_json_has_mysqls_own_text_form(source: Database, database: str) -> None:
    deepest = 100 if source.flavour == "mysql" else 31
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE deep (j JSON)")
        with pytest.raises(pymysql.err.OperationalError, match=r"3157|4025"):
            cursor.execute("INSERT INTO deep VALUES (%s)", large_json(random.Random(3), deepest + 1)[-1])
    large = large_json(random.Random(3), deepest)
    if source.flavour != "mysql":
        texts: list[Any] = [("%s", [text]) for text in [*JSON_TEXTS, '{ "a":1,"a":2 }', *large]]
        found = read_all_ways(source, database, "j JSON", texts)
        assert found.column("j")[len(JSON_TEXTS)] == '{ "a":1,"a":2 }'
        return
    rows: list[Any] = [("%s", [text]) for text in [*JSON_TEXTS, *large]]
    rows += [(call, None) for call in JSON_CALLS]
    found = read_all_ways(source, database, "j JSON", rows)
    texts = found.column("j")
    assert texts[JSON_TEXTS.index("1e20")] == "1e20"
    assert texts[JSON_TEXTS.index("-0.0")] == "-0.0"
    assert texts[JSON_TEXTS.index('{"b": 1, "a": 2, "ab": 3, "": 4, "é": 5}')] == (
        '{"": 4, "a": 2, "b": 1, "ab": 3, "é": 5}'
    )
    assert '"2020-02-29 01:02:03.000045"' in texts
    assert '"base64:type15:3q2+7w=="' in texts or '"base64:type253:3q2+7w=="' in texts


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_geometry_of_every_kind_keeps_its_srid(source: Database, database: str) -> None:
    kinds = [
        ("POINT", "POINT(1 -2)"), ("LINESTRING", "LINESTRING(0 0, 1 1, 2 0)"),
        ("POLYGON", "POLYGON((0 0, 4 0, 4 4, 0 0), (1 1, 2 1, 2 2, 1 1))"), ("MULTIPOINT", "MULTIPOINT(1 1, 2 2)"),
        ("MULTILINESTRING", "MULTILINESTRING((0 0, 1 1), (2 2, 3 3))"),
        ("MULTIPOLYGON", "MULTIPOLYGON(((0 0, 4 0, 4 4, 0 0)))"),
        ("GEOMETRYCOLLECTION", "GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))"), ("GEOMETRY", "POINT(5 6)"),
    ]  # fmt: skip
    columns = ", ".join(f"g{i} {kind}" for i, (kind, _) in enumerate(kinds)) + ", text VARCHAR(9) CHARACTER SET gbk"
    rows = [", ".join(f"ST_GeomFromText('{text}', {srid})" for _, text in kinds) + ", '中'" for srid in (0, 4326)]
    rows.append(", ".join(["NULL"] * 9))
    found = read_all_ways(source, database, columns, rows)
    assert found.column("g0")[1][:4] == struct.pack("<I", 4326)
    assert found.column("g0")[0][4:] == struct.pack("<BIdd", 1, 1, 1.0, -2.0)


def test_vectors_are_lists_of_floats(mysql: Database, fresh_database: Any) -> None:
    database = fresh_database(mysql)
    vectors = ["TO_VECTOR('[1,2.5,-1e-3]')", "TO_VECTOR('[0.1]')", "NULL", f"TO_VECTOR('{[0.5] * 2000}')"]
    vectors += [f"TO_VECTOR('{[3.4028234e38, -1.17549435e-38, 16777216, 3.1415927] * 4095 + [0, 1, 2]}')"]
    rows = [f"{vector}, '中'" for vector in vectors]
    found = read_all_ways(mysql, database, "v VECTOR(16383), text VARCHAR(9) CHARACTER SET gbk", rows)
    exact = [
        struct.unpack("<f", struct.pack("<f", value))[0]
        for value in (3.4028234e38, -1.17549435e-38, 16777216, 3.1415927)
    ]
    assert found.column("v")[4] == exact * 4095 + [0, 1, 2]
    assert found.column("v")[0] == [1.0, 2.5, struct.unpack("<f", struct.pack("<f", -1e-3))[0]]
    assert len(found.column("v")[3]) == 2000


def test_mariadbs_own_types_come_as_it_prints_them(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    uuids = [
        "123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff", "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "f47ac10b-58cc-4372-a567-0e02b2c3d479", "018f3d5e-7c00-7abc-8def-0123456789ab",
        "1ec9414c-232a-6b00-b3c8-9e6bdeced846", "01234567-89ab-0def-0123-456789abcdef",
        "01234567-89ab-8def-c123-456789abcdef", "01234567-89ab-1def-e123-456789abcdef",
        "11111111-2222-3333-4444-555555555555", "11111111-2222-f333-8444-555555555500",
    ]  # fmt: skip
    generator = random.Random(5)
    uuids += [f"{generator.getrandbits(128):032x}" for _ in range(200)]
    addresses = [
        "::", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:192.0.2.1", "::192.0.2.1", "fe80::1:0:0:1", "::1:2",
        "1:0:0:2:0:0:0:3", "1:0:0:0:2:0:0:3", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "0:1:0:1:0:1:0:1",
        "::ffff:0:0",
        "1:2:3:4:5:6:7::", "1:2:3:4:5:6::", "::2:3:4:5:6:7:8", "a:b:c:d:e:f:0:1", "::ffff:1:2:3", "::a00", "::1:0",
    ]  # fmt: skip
    rows = []
    for i, value in enumerate(uuids):
        rows.append(f"'{value}', '{addresses[i % len(addresses)]}', '{i % 256}.0.{255 - i % 256}.1'")
    rows += ["NULL, NULL, NULL", f"'{uuids[0]}', '::', '0.0.0.0'", f"'{uuids[0]}', '::', '255.255.255.0'"]
    found = read_all_ways(mariadb, database, "u UUID, i6 INET6, i4 INET4", rows)
    assert found.column("u")[:12] == uuids[:12]
    assert found.column("i6")[3:6] == addresses[3:6]


def test_compressed_columns_of_mariadb_are_inflated(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    texts = {name: sample(name, random.Random(9), 1) for name in ("latin1", "utf8mb4", "utf16", "gbk", "sjis")}
    columns = [f"t_{name} TEXT COMPRESSED CHARACTER SET {name}" for name in texts]
    columns += [f"v_{name} VARCHAR(500) COMPRESSED CHARACTER SET {name}" for name in texts]
    columns += [f"v{n} VARBINARY({n}) COMPRESSED" for n in (1, 50, 254, 255, 256, 4000)]
    columns += [f"c_{kind} {kind} COMPRESSED" for kind in ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "LONGTEXT")]
    rows: list[Any] = []
    for number, text in enumerate(("", "x", "ab" * 49, "no two \0 alike", "z" * 3000)):
        values = [(letters * number)[:500] for letters in texts.values()] * 2
        values += [text[:n] for n in (1, 50, 254, 255, 256, 4000)]
        values += [text[:255], text * 9, text * 9, text * 30, text * 30]
        rows.append((", ".join(["%s"] * len(values)), values))
    rows.append((", ".join(["NULL"] * len(columns)), None))
    for wrap in ("OFF", "ON"):
        found = read_all_ways(mariadb, database, ", ".join(columns), rows, column_compression_zlib_wrap=wrap)
    assert found.column("c_LONGBLOB")[4] == b"z" * 90_000
    assert found.column("t_gbk")[3] == (texts["gbk"] * 3)[:500]


def test_generated_invisible_and_hidden_columns_are_read(source: Database, database: str) -> None:
    columns = (
        "a INT, v INT GENERATED ALWAYS AS (a + 1) VIRTUAL, s VARCHAR(20) GENERATED ALWAYS AS (CONCAT('s', a)) STORED,"
        " i INT INVISIBLE DEFAULT 5, z VARCHAR(5)"
    )
    if source.flavour == "mysql":
        columns += ", j JSON, KEY hidden ((a * 2)), KEY many ((CAST(j AS UNSIGNED ARRAY)))"
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, {columns})")
        start = flushed(connection, source)
        cursor.execute("INSERT INTO t (id, touched, a, z) VALUES (1, 0, 10, 'x'), (2, 0, NULL, 'y')")
        cursor.execute("INSERT INTO t (id, touched, a, i, z) VALUES (3, 0, -1, NULL, NULL)")
        if source.flavour == "mysql":
            cursor.execute("UPDATE t SET j = '[1, 5, 9]' WHERE id = 1")
        schema = described(source, connection, f"{database}.t")
        for module in BOTH:
            by_select = selected(module, connection, schema)
            events = changed(module, source, start, schema)
            assert by_select.column("v").to_pylist() == [11, None, 0]
            assert by_select.column("i").to_pylist() == [5, 5, None]
            last = {row["id"]: row for row in events.to_pylist()}
            assert [{name: last[row["id"]][name] for name in row} for row in by_select.to_pylist()] == (
                by_select.to_pylist()
            )
    if not logs_generated_columns(source, database):
        return
    more = ", '[1, 5]'" if source.flavour == "mysql" else ""
    found = read_all_ways(source, database, columns, [f"{a}, DEFAULT, DEFAULT, 'x'{more}" for a in ("10", "NULL")])
    assert found.column("v") == [11, None]
    assert found.column("i") == [5, 5]


def test_a_table_of_500_columns_is_read(source: Database, database: str) -> None:
    columns = ", ".join(
        f"c{i} {('INT', 'VARCHAR(20) CHARACTER SET ascii', 'DATE', 'DECIMAL(12,2)', 'DOUBLE')[i % 5]}"
        for i in range(498)
    )
    values = ["{n}", "'text {n}'", "'2020-01-0{n}'", "{n}.25", "{n}.5"]
    rows = [", ".join(values[i % 5].format(n=n) for i in range(498)) for n in range(1, 6)]
    rows += [", ".join(["NULL"] * 498), ", ".join("NULL" if i % 3 else values[i % 5].format(n=7) for i in range(498))]
    read_all_ways(source, database, columns, rows)


def test_rows_over_16_mib_are_read(source: Database, database: str) -> None:
    sizes = [16_777_215, 16_777_216, 0x1000000 - 30, 20_000_000]
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, touched INT NOT NULL, b LONGBLOB, c LONGTEXT)")
        start = flushed(connection, source)
        for number, size in enumerate(sizes):
            cursor.execute(f"INSERT INTO t VALUES ({number}, 0, REPEAT('ab', {size // 2}), REPEAT('é', 3))")
        cursor.execute(f"INSERT INTO t VALUES ({len(sizes)}, 0, '', REPEAT('€', 6000000))")
        schema = described(source, connection, f"{database}.t")
        by_select = selected(INSTALLED, connection, schema)
        events = changed(INSTALLED, source, start, schema)
        assert [len(value) for value in by_select.column("b").to_pylist()] == [*(size // 2 * 2 for size in sizes), 0]
        same(by_select, events, schema, "SELECT and binlog")


def test_an_update_of_the_key_is_a_delete_and_an_insert(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_general_ci, b INT, n INT, PRIMARY KEY (a, b), id INT)"
        )
        start = flushed(connection, source)
        cursor.execute("INSERT INTO t VALUES ('x', 1, 0, 1), ('y', 1, 0, 2)")
        cursor.execute("UPDATE t SET n = 1 WHERE a = 'x'")
        cursor.execute("UPDATE t SET a = 'X' WHERE a = 'x'")  # equal for MySQL, other bytes
        cursor.execute("UPDATE t SET b = b + 1")
        cursor.execute("DELETE FROM t WHERE a = 'y'")
        schema = described(source, connection, f"{database}.t")
        for module in BOTH:
            rows = changed(module, source, start, schema).to_pylist()
            assert [(row[OP], row["a"], row["b"], row["n"]) for row in rows] == [
                ("+I", "x", 1, 0), ("+I", "y", 1, 0), ("+U", "x", 1, 1), ("-D", "x", 1, 1), ("+I", "X", 1, 1),
                ("-D", "X", 1, 1), ("+I", "X", 2, 1), ("-D", "y", 1, 0), ("+I", "y", 2, 0), ("-D", "y", 2, 0),
            ]  # fmt: skip
            assert [row[SEQ] for row in rows] == list(range(10))
            assert [row[ROW] for row in rows] == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]


def test_an_image_without_all_columns_is_refused_by_name(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)")
        cursor.execute("INSERT INTO t VALUES (1, 1, 'b')")
        schema = described(source, connection, f"{database}.t")
        start = flushed(connection, source)
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        cursor.execute("UPDATE t SET a = 2")
        for module in BOTH:
            with pytest.raises(module.PartialImage, match=f"{database}.t lacks column"):
                changed(module, source, start, schema)


def test_an_error_in_the_middle_of_a_result_is_raised_with_its_number(source: Database, database: str) -> None:
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, j LONGTEXT)")
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(i, "7" * 20000) for i in range(40)])
        schema = described(source, connection, f"{database}.t")
        sql = f"SELECT id, IF(id < 30, j, (SELECT a.id FROM t a, t b)) FROM {database}.t ORDER BY id"
        for module in BOTH:
            decoder = module.ResultDecoder(schema)
            with pytest.raises(pymysql.err.OperationalError, match="1242"):
                feed(decoder, RowStream(connection, sql))


# ---- generated schemas and rows --------------------------------------------------------------------------------------


def _text(maximum: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=maximum)


def _letters(name: str) -> st.SearchStrategy[str]:
    """Text of a character set's own characters, and some of any."""
    generator = random.Random(name)
    own = sorted(set("".join(sample(name, generator, number) for number in range(3))) - {"\0"})
    return st.text(
        st.sampled_from(own) | st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40
    )


KEYED = re.compile(
    r"(TINY|SMALL|MEDIUM|BIG)?INT|DECIMAL|FLOAT|DOUBLE|BIT|DATE|TIME|YEAR|ENUM|SET|(VAR)?BINARY|(VAR)?CHAR"
)
"""Types that may be in a key."""


def _column(names: Sequence[str]) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    def decimal(shape: tuple[int, int]) -> tuple[str, st.SearchStrategy[Any]]:
        p, s = max(shape), min(*shape, 30)
        digits = st.text("0123456789", min_size=p, max_size=p)
        signs = st.sampled_from(["", "-"])
        whole = p - s
        return f"DECIMAL({p},{s})", st.builds(lambda d, g: f"{g}{d[:whole] or 0}.{d[whole:] or 0}", digits, signs)

    integers = st.sampled_from([(kind, st.integers(*limits(*spec))) for kind, spec in INTEGERS.items()])
    letters = {name: _letters(name) for name in names}
    texts = st.tuples(
        st.sampled_from(["CHAR(40)", "VARCHAR(60)", "VARCHAR(300)", "TEXT", "MEDIUMTEXT"]), st.sampled_from(names)
    ).map(lambda pair: (f"{pair[0]} CHARACTER SET {pair[1]}", letters[pair[1]]))
    binaries = st.sampled_from(["BINARY(40)", "VARBINARY(60)", "VARBINARY(300)", "BLOB", "TINYBLOB"]).map(
        lambda kind: (kind, st.binary(max_size=40))
    )
    bits = st.integers(1, 64).map(lambda n: (f"BIT({n})", st.integers(0, (1 << n) - 1)))
    fractions = st.integers(0, 6)
    moments = fractions.map(lambda n: (f"DATETIME({n})", st.datetimes().map(lambda at: _fraction(str(at), n))))
    stamps = fractions.map(
        lambda n: (f"TIMESTAMP({n}) NULL", st.integers(1, (1 << 31) - 1).map(lambda at: _stamp(at, n)))
    )
    times = fractions.map(
        lambda n: (
            f"TIME({n})",
            st.builds(
                lambda g, h, m, s, f: _fraction(f"{g}{h}:{m:02}:{s:02}.{f:06}", n),
                st.sampled_from(["", "-"]), st.integers(0, 838), st.integers(0, 59), st.integers(0, 58),
                st.integers(0, 999_999),
            ),
        )
    )  # fmt: skip
    floats = st.sampled_from(
        [
            ("FLOAT", st.floats(allow_nan=False, allow_infinity=False, width=32)),
            ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
        ]
    )
    members = st.lists(_text(6).map(lambda text: text.replace(",", "").rstrip()), min_size=1, max_size=20)
    chosen = members.map(lambda names: sorted({name.casefold(): name for name in names if name.isascii()}.values()))
    sets = chosen.filter(bool).map(
        lambda names: (
            f"SET({','.join(_quoted(name) for name in names)}) COLLATE utf8mb4_bin",
            st.integers(0, (1 << len(names)) - 1),
        )
    )
    enums = chosen.filter(bool).map(
        lambda names: (
            f"ENUM({','.join(_quoted(name) for name in names)}) COLLATE utf8mb4_bin",
            st.integers(1, len(names)),
        )
    )
    simple = st.sampled_from([("DATE", st.dates().map(str)), ("YEAR", st.one_of(st.just(0), st.integers(1901, 2155)))])
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | _text(20)
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text(8), inner, max_size=4),
        max_leaves=12,
    )  # fmt: skip
    documents = st.just(("JSON", values.map(_json)))
    decimals = st.tuples(st.integers(1, 65), st.integers(0, 30)).map(decimal)
    return st.one_of(
        integers, texts, binaries, bits, moments, stamps, times, floats, sets, enums, simple, documents, decimals
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "''") + "'"


def _stamp(seconds: int, digits: int) -> str:
    at = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None, microsecond=seconds % 1_000_000)
    return _fraction(str(at), digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A table: its columns' types, rows of their values, how many columns are computed from others, and of the key."""

    kinds: list[str]
    rows: list[list[Any]]
    computed: dict[int, str]
    key: int | None

    @property
    def columns(self) -> str:
        """What follows id and touched in CREATE TABLE."""
        parts = [f"c{i} {kind}{' NOT NULL' if i == self.key else ''}" for i, kind in enumerate(self.kinds)]
        parts += [
            f"g{i} {self.kinds[i].removesuffix(' NULL')} GENERATED ALWAYS AS (c{i}) {storage}"
            for i, storage in self.computed.items()
        ]
        return ", ".join([*parts, f"UNIQUE KEY (c{self.key}, id)"] if self.key is not None else parts)

    @property
    def places(self) -> str:
        """Where a row's values go."""
        return ", ".join(["%s"] * len(self.kinds) + ["DEFAULT"] * len(self.computed))


@st.composite
def tables(draw: st.DrawFn, column: st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]) -> Generated:
    columns = draw(st.lists(column, min_size=1, max_size=12))
    kinds = [kind for kind, _ in columns]
    able = [i for i, kind in enumerate(kinds) if KEYED.match(kind)]
    key = draw(st.none() | st.sampled_from(able)) if able else None
    values = [strategy if i == key else st.none() | strategy for i, (_, strategy) in enumerate(columns)]
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=6))
    computed = draw(st.dictionaries(st.integers(0, len(kinds) - 1), st.sampled_from(["VIRTUAL", "STORED"]), max_size=3))
    return Generated(kinds=kinds, rows=[list(row) for row in rows], computed=computed, key=key)


@pytest.mark.timeout(3600 if FULL else 300)
def test_generated_tables_read_the_same_in_all_ways(source: Database, database: str) -> None:
    names = character_sets(source)
    assert len(names) >= 37
    refused: Counter[int] = Counter()
    computed = logs_generated_columns(source, database)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(tables(_column(names)))
    def agree(table: Generated) -> None:
        if not computed:
            table = replace(table, computed={})
        try:
            found = read_all_ways(source, database, table.columns, [(table.places, row) for row in table.rows])
        except pymysql.err.MySQLError as error:
            # a row too large, members alike, no JSON, equal keys, a key too long
            if error.args[0] not in (1118, 1291, 3140, 3141, 3157, 4025, 1071):
                raise
            refused[error.args[0]] += 1
        else:
            as_pymysql_reads(source, database, found)
            as_mysql_replication_reads(source, database, found)

    agree()
    assert refused.total() < EXAMPLES // 2, refused


def as_pymysql_reads(source: Database, database: str, found: Readings) -> None:
    """PyMySQL is right about all but FLOAT (six digits), TIME below zero, and dates that Python has not."""
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM t ORDER BY id")
        their_rows = cursor.fetchall()
    for at, column in enumerate(found.schema.columns):
        kind = parse_type(column.mysql_type)
        if kind.base in ("float", "vector"):
            continue
        for row, value in enumerate(found.column(column.name)):
            theirs = their_rows[row][at]
            if value is None or theirs is None:
                assert value is theirs, column
            elif kind.base == "time":
                if value >= 0:
                    assert datetime.timedelta(microseconds=value) == theirs, column
            elif kind.base == "bit" and kind.numbers in ((), (1,)):
                assert value == bool(theirs[0]), column
            elif kind.base == "timestamp":
                assert value.replace(tzinfo=None) == theirs, column
            elif kind.base == "decimal" or isinstance(value, decimal.Decimal):
                assert decimal.Decimal(value) == theirs, column
            else:
                assert value == theirs, column


def replicated(source: Database, database: str, found: Readings) -> list[dict[str, Any]]:
    """The rows as mysql-replication reads their INSERTs."""
    stream = BinLogStreamReader(
        connection_settings={
            "host": source.host, "port": source.port, "user": source.root_user, "password": "", "ssl_disabled": True,
        },
        server_id=4_000_000_002,
        log_file=found.start[0],
        log_pos=found.start[1],
        only_events=[WriteRowsEvent],
        only_schemas=[database],
        blocking=False,
        resume_stream=True,
        ignore_decode_errors=True,
    )  # fmt: skip
    with closing(stream):
        return [row["values"] for event in stream for row in event.rows]


PYTHONS = ("utf8mb4", "utf8mb3", "ascii", "latin2", "latin5", "cp850", "cp852", "cp1250", "cp1251", "koi8r", "koi8u")
"""Character sets that mysql-replication reads as MySQL does; elsewhere it has Python's codec, or leaves the bytes."""


def as_mysql_replication_reads(source: Database, database: str, found: Readings) -> None:
    """mysql-replication is right about all but what `test_where_mysql_replication_is_wrong` shows."""
    their_rows = replicated(source, database, found)
    for column in found.schema.columns:
        kind = parse_type(column.mysql_type)
        for ours, row in zip(found.inserted.column(column.name).to_pylist(), their_rows, strict=True):
            theirs = row[column.name]
            if ours is None:
                assert theirs is None, column
            elif kind.base == "set":
                assert (theirs or set()) - {""} == set(ours.split(",")) - {""}, column
            elif kind.base == "bit":
                assert (int.from_bytes(ours, "big") if isinstance(ours, bytes) else ours) == int(theirs, 2), column
            elif kind.base == "year":
                assert ours == theirs or (ours, theirs) == (0, 1900), column
            elif kind.base == "time":
                assert ours < 0 or datetime.timedelta(microseconds=ours) == theirs, column
            elif kind.base == "timestamp":
                assert ours.replace(tzinfo=None) == theirs, column
            elif kind.base == "binary":
                assert ours.rstrip(b"\0") == (theirs or b"").rstrip(b"\0"), column
            elif kind.base == "decimal" or isinstance(ours, decimal.Decimal):
                assert decimal.Decimal(ours) == theirs, column
            elif isinstance(ours, bytes):
                assert ours == (theirs or b""), column
            elif kind.base == "json":
                assert json.loads(ours) == _decoded(theirs), column
            elif kind.base == "enum" or column.charset is None or column.charset in PYTHONS:
                assert ours == theirs, column


def _decoded(value: Any) -> Any:
    """A document of mysql-replication's, whose texts are bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_decoded(name): _decoded(inner) for name, inner in value.items()}
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


def test_where_mysql_replication_is_wrong(source: Database, database: str) -> None:
    wrong: list[tuple[str, str, Any, Any]] = [
        # type, value, what it is, what mysql-replication makes of it
        ("YEAR", "0", 0, 1900),
        ("TIME(6)", "'-00:00:01.25'", -1_250_000, datetime.timedelta(seconds=-1, microseconds=-750_000)),
        ("BINARY(3)", "'a'", b"a\0\0", b"a"),
        ("VARBINARY(3)", "''", b"", ""),
        ("SET('a')", "''", "", None),
        ("VARCHAR(3) CHARACTER SET latin1", "x'81'", "\x81", ""),
        ("VARCHAR(3) CHARACTER SET swe7", "'ä'", "ä", b"{"),
        ("VARCHAR(3) CHARACTER SET sjis", "x'815F'", "\\", "\uff3c"),
    ]
    columns = ", ".join(f"c{at} {kind}" for at, (kind, *_) in enumerate(wrong))
    found = read_all_ways(source, database, columns, [", ".join(value for _, value, *_ in wrong)])
    (their_row,) = replicated(source, database, found)
    for at, (kind, _, ours, theirs) in enumerate(wrong):
        assert found.column(f"c{at}") == [ours], kind
        assert their_row[f"c{at}"] == theirs, kind


def test_peers_read_the_same_where_they_are_right(source: Database, database: str) -> None:
    columns = (
        "a BIGINT, b DECIMAL(20,5), c VARCHAR(99), d DATETIME(6), e DATE, f DOUBLE, g BLOB, i INT UNSIGNED, y YEAR,"
        " m MEDIUMINT"
    )
    rows = ["-5, '123456789012345.12345', 'é€', '2020-01-02 03:04:05.000006', '1999-12-31', 1.5, 'abc', 4000000000,"
            " 2001, -8388608", ", ".join(["NULL"] * 10)]  # fmt: skip
    found = read_all_ways(source, database, columns, rows)
    with closing(connect(source, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM t ORDER BY id")
        ours = [list(row.values()) for row in found.by_select.to_pylist()]
        assert [list(row) for row in cursor.fetchall()] == ours
    ours = found.inserted.select([column.name for column in found.schema.columns]).to_pylist()
    assert replicated(source, database, found) == ours


def test_a_column_that_no_decoder_can_read_is_refused_by_name(mariadb: Database, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    with closing(connect(mariadb, database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, d DATETIME)")
        finally:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")
        start = flushed(connection, mariadb)
        cursor.execute("INSERT INTO t VALUES (1, NOW())")
        schema = described(mariadb, connection, f"{database}.t")
        ((_, body),) = [event for event in dumped(mariadb, *start) if event[0] == TABLE_MAP]
        for module in BOTH:
            decoder = module.EventDecoder(body, schema, module.Place())
            assert len(decoder.faults) == 1
            assert "column d" in decoder.faults[0]
            with pytest.raises(ValueError, match="can't be decoded"):
                decoder.rows(30, b"")
