"""A table's rows by every way in which Cutline reads them, on a real server.

Every table is read four ways (SELECT, after-image of the INSERT, before-image of an UPDATE that touches another column,
its after-image) by the compiled decoders and by the interpreted ones, and compared as Arrow arrays.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cutline.common.errors import SourceLost
from cutline.common.schema import OP, TableSchema, arrow_type, parse_type
from cutline.common.shape import Shape
from cutline.services.sources.mysql import keys
from cutline.services.sources.mysql.binlog.earlier_schema import earlier_schema
from cutline.services.sources.mysql.catalogue import describe
from cutline.services.sources.mysql.connection import RowStream
from cutline.services.sources.mysql.decode import charsets
from cutline.services.sources.mysql.server import identify
from tests.support.databases import Database
from tests.support.decoders import BOTH, INSTALLED, Decoders

TABLE_MAP = 19
ROW_EVENTS = (23, 24, 25, 30, 31, 32)


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
    for column in schema.captured:
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
            few = replace(schema, shape=Shape(select=tuple(f"`{c.name}`" for c in schema.columns[1::2])))
            alone = changed(module, server, middle, few)
            same(selected(module, connection, few), alone, few, f"{name}: SELECT and after-image of every other column")
            same(by_select.select(few.arrow.names), alone, few, f"{name}: every other column and all")
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


def fraction(text: str, digits: int) -> str:
    """Cut the fraction, so that no server rounds."""
    whole, _, part = text.partition(".")
    return whole + ("." + part[:digits] if part and digits else "")


# ---- character sets --------------------------------------------------------------------------------------------------
CHARACTER_SETS = sorted(charsets._COLLATIONS.keys() - {"binary"})


def character_sets(server: Database) -> list[str]:
    known = {name for (name,) in server.execute("SELECT character_set_name FROM information_schema.character_sets")}
    return [name for name in CHARACTER_SETS if name in known]


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
