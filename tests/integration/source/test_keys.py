"""Keys of every kind: tiny chunks read while rows and keys change, and the stream after them, are the table.

The key pools hold values that are equal for MySQL and differ in bytes (case, accents, trailing spaces, -0.0), so that
inserts, updates, moves of keys and REPLACE meet each other; chunks are of a few rows, and what MySQL compares
as text must fall into the chunk where MySQL has it.
"""

from __future__ import annotations

import random
import threading
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import pymysql
import pytest

from cutline.common.errors import SourceLost
from cutline.common.mesh.messages import CompletedSplit, Key, SnapshotSplit
from cutline.common.positions import High, Low, Position
from cutline.common.schema import TableSchema
from cutline.services.sources.contract import Changes, ChunkResult, Route, TableUnreadable
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.chunk import Mode, Window, read_chunk
from cutline.services.sources.mysql.connection import connect
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.keys import next_bound
from cutline.services.sources.mysql.watermark import fold
from tests.conftest import FULL
from tests.support.databases import Database
from tests.support.sources import connected, here, rows_of, source_of
from tests.support.streams import Content, as_text, follow

ROUNDS, STEP = (400, 1) if FULL else (60, 4)
"""Changes that a table sees at least while it is read, and rows a chunk, or one more."""

UUIDS = (
    "00000000-0000-0000-0000-000000000001", "123e4567-e89b-12d3-a456-426614174000",
    "123e4567-e89b-12d3-a456-426614174001", "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    "018f3d5e-7c00-7abc-8def-0123456789ab", "018f3d5e-7c01-7abc-8def-000000000000",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "11111111-2222-f333-8444-555555555500", "1ec9414c-232a-6b00-b3c8-9e6bdeced846",
)  # fmt: skip


def quoted(*values: object) -> tuple[str, ...]:
    return tuple(f"'{value}'" for value in values)


PLAIN = quoted("a", "A", "a ", "b", "B", "z", "_", "10", "9", "", "aa", "~", "a\t", "ab")
TEXT = PLAIN + quoted("á", "Á", "ä", "ss", "ß", "é", "e", "E", "Ǆ", "å", "ij", "ĳ", "ñ", "n")
KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    # name: the type of the key's column, and the values it takes
    "tinyint": ("TINYINT", ("-128", "-1", "0", "1", "127", "5", "6")),
    "unsigned": ("BIGINT UNSIGNED", ("0", "1", "18446744073709551615", "9223372036854775807", "9223372036854775808",
                                     "18446744073709551614", "7", "8")),
    "sparse": ("BIGINT", ("-9223372036854775808", "-1", "0", "1", "2", "3", "4", "9223372036854775807", "1000000")),
    "decimal": ("DECIMAL(30,10)", ("-1.5", "0", "0.0000000001", "-0.0000000001", "1", "10", "9", "-10")),
    "wide": ("DECIMAL(65,30)", ("-9.5", "10", "9", "99999999999999999999999999999999999", "-10", "0",
                                "0.000000000000000000000000000001", "1", "-99999999999999999999999999999999999")),
    "float": ("FLOAT", ("3.1415927", "16777216", "16777217", "0.1", "0e0", "-0e0", "-1e30", "5", "1e-45")),
    "double": ("DOUBLE", ("-1e300", "0.1", "0e0", "-0e0", "1e-300", "5e-324", "123456789.123456789",
                          "0.30000000000000004")),
    "bit": ("BIT(64)", ("b'1'", "b'0'", "18446744073709551615", "9223372036854775808", "18446744073709551614",
                        "9007199254740993", "9007199254740992", "256", "255")),
    "flag": ("BIT(1)", ("0", "1")),
    "enum": ("ENUM('z','b','','a','y','é')", quoted("z", "b", "a", "y", "é", "")),
    "set": (f"SET({','.join(f'{chr(39)}m{i}{chr(39)}' for i in range(64))})",
            ("0", "1", "9223372036854775808", "18446744073709551615", "18446744073709551614", "9007199254740993",
             "9007199254740992", "5", "6")),
    "date": ("DATE", quoted("0001-01-01", "1000-01-01", "2020-02-29", "2020-03-01", "9999-12-31", "1969-12-31")),
    "datetime": ("DATETIME(6)", quoted("0001-01-01 00:00:00.000001", "2020-01-01", "2020-01-01 00:00:00.000001",
                                       "9999-12-31 23:59:59.999999", "0999-12-31 01:02:03", "1999-12-31")),
    "timestamp": ("TIMESTAMP(3)", quoted("1970-01-01 00:00:01", "2021-10-31 00:30:00", "2021-10-31 01:30:00.001",
                                         "2038-01-19 03:14:07.999", "2021-03-28 02:30:00")),
    "time": ("TIME(2)", quoted("-838:59:59", "-00:00:01.5", "-00:00:01.49", "00:00:00", "99:00:00", "100:00:00",
                               "838:59:59")),
    "year": ("YEAR", ("0", "1901", "1999", "2000", "2155", "1970")),
    "binary": ("BINARY(4)", ("'a'", "'ab'", "x'ff00'", "x'00'", "x'61000001'", "''", "'A'", "x'80000000'")),
    "varbinary": ("VARBINARY(9)", ("''", "'a'", "x'6100'", "x'ff'", "x'00'", "x'0000'", "'A'", "'a '")),
    "uuid_binary": ("BINARY(16)", tuple(f"x'{uuid.replace('-', '')}'" for uuid in UUIDS)),
    "uuid_text": ("CHAR(36) CHARACTER SET ascii", tuple(f"'{key}'" for uuid in UUIDS for key in (uuid, uuid.upper()))),
    "general": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", TEXT),
    "unicode": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci",
                (*TEXT, "'\U0001f600'", "'\U0001f601'")),
    "bin": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", (*TEXT, "'\U0001f600'", "'\uffee'")),
    "char": ("CHAR(9) CHARACTER SET utf8mb3 COLLATE utf8mb3_swedish_ci", TEXT),
    "latin1": ("VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_german2_ci", PLAIN + quoted("ä", "ae", "Ä", "ß", "ss")),
    "cp1250": ("VARCHAR(9) CHARACTER SET cp1250 COLLATE cp1250_czech_cs", PLAIN + quoted("ch", "c", "d", "č")),
    "utf16": ("VARCHAR(9) CHARACTER SET utf16 COLLATE utf16_unicode_ci", TEXT),
    "gbk": ("VARCHAR(9) CHARACTER SET gbk COLLATE gbk_chinese_ci", PLAIN + quoted("中", "国", "啊")),
    "sjis": ("VARCHAR(9) CHARACTER SET sjis COLLATE sjis_japanese_ci", PLAIN + quoted("あ", "ア", "ｱ", "亜")),
    "ujis": ("VARCHAR(9) CHARACTER SET ujis COLLATE ujis_bin", PLAIN + quoted("あ", "ア", "ｱ", "亜")),
    "tis620": ("VARCHAR(9) CHARACTER SET tis620 COLLATE tis620_thai_ci", PLAIN + quoted("ก", "เก", "แก", "ข")),
    "turkish": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_turkish_ci", PLAIN + quoted("I", "\u0131", "i", "İ")),
}  # fmt: skip

MYSQL_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no_pad": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci", TEXT),
    "sensitive": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs", TEXT),
    "japanese": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_ja_0900_as_cs_ks", TEXT + quoted("あ", "ア", "ｱ")),
}
MARIADB_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "no_pad": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_nopad_ci", TEXT),
    "uca1400": ("VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci", TEXT),
    "uuid": ("UUID", quoted(*UUIDS)),
    "inet6": ("INET6", quoted("::", "::1", "fe80::1", "::ffff:1.2.3.4", "ffff::", "1::", "::2")),
    "inet4": ("INET4", quoted("0.0.0.0", "10.0.0.1", "9.255.255.255", "255.255.255.255", "128.0.0.0")),
}


class Tables:
    """One table for each kind of key, and changes of all of them."""

    def __init__(self, server: Database, database: str) -> None:
        self.server, self.database = server, database
        own = MYSQL_KEYS if server.flavour == "mysql" else MARIADB_KEYS
        kinds = {f"k_{name}": key for name, key in (KEYS | own).items()}
        self.pools = {name: pool for name, (_, pool) in kinds.items()}
        create = [f"CREATE TABLE {name} (v INT, k {kind} NOT NULL PRIMARY KEY)" for name, (kind, _) in kinds.items()]
        create += [
            "CREATE TABLE composite (v INT, a INT, k VARCHAR(9) CHARACTER SET latin1, c DATE, PRIMARY KEY (k, a, c))",
            "CREATE TABLE only_unique (v INT, k VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL,"
            " n INT UNIQUE, UNIQUE (k))",
        ]
        self.pools |= {"composite": PLAIN, "only_unique": TEXT}
        server.execute(*create, database=database)
        self.luck = random.Random(11)
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for name in self.pools:
                for _ in range(20):
                    self.insert(cursor, name)

    def connect(self) -> pymysql.connections.Connection[Any]:
        return self.server.connect(database=self.database, init_command="SET time_zone = '+00:00', sql_mode = ''")

    def insert(self, cursor: Any, name: str, verb: str = "INSERT IGNORE") -> None:
        key, number = self.luck.choice(self.pools[name]), self.luck.randrange(1000)
        more = f", a = {number % 3}, c = '2020-01-0{number % 2 + 1}'" if name == "composite" else ""
        cursor.execute(f"{verb} INTO {name} SET v = {number}, k = {key}{more}")

    def change(self, cursor: Any) -> None:
        """One random change of every table."""
        for name, pool in self.pools.items():
            key, other = self.luck.choice(pool), self.luck.choice(pool)
            match self.luck.randrange(8):
                case 0 | 1:
                    self.insert(cursor, name)
                case 2:
                    self.insert(cursor, name, "REPLACE")
                case 3:
                    cursor.execute(f"DELETE FROM {name} WHERE k = {key}")
                case 4:
                    cursor.execute(f"UPDATE {name} SET v = v + 1 WHERE k = {key}")
                case 5 | 6:
                    cursor.execute(f"UPDATE IGNORE {name} SET k = {other} WHERE k = {key}")
                case _:  # the same key for MySQL, other bytes
                    cursor.execute(f"UPDATE {name} SET k = {other} WHERE k = {other}")


class Churn:
    """Changes all tables until the end of the `with`, and for so many rounds at least."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self._stop, self.rounds = tables, threading.Event(), 0
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            with closing(self.tables.connect()) as connection, connection.cursor() as cursor:
                while self.rounds < ROUNDS or not self._stop.is_set():
                    self.tables.change(cursor)
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None


def chunks(server: Database, schema: TableSchema, mode: Mode, step: int) -> tuple[list[Key | None], list[Any]]:
    """The table in chunks of `step` rows, as an enumerator and a reader take turns: bounds, and what each gave."""
    bounds: list[Key | None] = [None]
    read: list[Any] = []
    opened = partial(connect, source_of(server))
    with closing(Window(BinlogCursor(opened, server_id=77_007))) as window, closing(KeptConnection(opened)) as kept:
        while True:
            with connected(server) as (conn, _):
                end = next_bound(conn, schema, bounds[-1], step)
            split = SnapshotSplit(
                split_id="s", table_id=schema.table_id, generation=1, attempt=1, split_key_type=schema.split_key_type,
                split_start=bounds[-1], split_end=end, schema=schema,
            )  # fmt: skip
            read.append(list(read_chunk(kept, split, mode=mode, window=window)))
            bounds.append(end)
            if end is None:
                return bounds, read


@pytest.mark.parametrize("mode", ["replay", "exact"])
def test_tables_of_every_key_come_out_exact_while_rows_and_keys_change(
    source: Database, database: str, mode: Mode
) -> None:
    """1. Rows and keys of all tables change. 2. Each is read in tiny chunks. 3. The stream from the lowest low on.
    4. Chunks and stream, put together by the bytes of the keys, are the tables.
    """
    tables = Tables(source, database)
    with connected(source) as (conn, _):
        schemas = {name: table_schema(conn, f"{database}.{name}") for name in tables.pools}
    lake: dict[str, Content] = {}
    routes: dict[str, Route] = {}
    with Churn(tables):
        for number, (name, schema) in enumerate(schemas.items()):
            bounds, read = chunks(source, schema, mode, STEP + number % 2)
            ends: list[ChunkResult] = [parts[-1] for parts in read]
            rows = [row for parts in read for batch in parts[:-1] for row in batch.to_pylist()]
            lake[schema.table_id] = dict(as_text(row, schema) for row in rows)
            if len(rows) != len(lake[schema.table_id]):
                raise AssertionError(f"{name}: a key is in two chunks: {rows}, {bounds}")
            low, high = fold([(end.low, end.high) for end in ends])
            splits = [
                CompletedSplit(split_start=start, split_end=end, high=chunk_end.high)
                for start, end, chunk_end in zip(bounds, bounds[1:], ends, strict=False)
            ]
            routes[schema.table_id] = Route(
                table_id=schema.table_id, generation=1, schema=schema, low=low, high=high,
                splits=tuple(splits) if mode == "exact" else (),
            )  # fmt: skip
    faults = follow(source, routes, lake, strict=mode == "exact")
    with connected(source) as (conn, _):
        for name, schema in schemas.items():
            truth = dict(as_text(row, schema) for row in rows_of(conn, schema, None, None).to_pylist())
            if truth != lake[schema.table_id]:
                faults.append(f"{name}: the table has {truth}, chunks and stream {lake[schema.table_id]}")
    assert not faults, "\n".join(faults)


UNTOLD: dict[str, tuple[str, str, str]] = {
    # what can't be told from others: the type of the key's column, such a value, and one that reads the same or nearly
    "nothing stands for it": ("VARCHAR(9) CHARACTER SET cp1256 COLLATE cp1256_bin", "x'618A'", "'a?'"),
    "a pair without a character": ("CHAR(9) CHARACTER SET sjis COLLATE sjis_bin", "x'F040'", "'?'"),
    "a replacement character": ("VARCHAR(9) CHARACTER SET big5 COLLATE big5_bin", "x'A15A'", "x'A440'"),
    "two pairs of one character": ("VARCHAR(9) CHARACTER SET cp932 COLLATE cp932_bin", "x'ED40'", "x'FA5C'"),
    "three bytes and two": ("VARCHAR(9) CHARACTER SET eucjpms COLLATE eucjpms_bin", "x'8FA2B7'", "x'A1C1'"),
    "a backslash": ("VARCHAR(9) CHARACTER SET sjis COLLATE sjis_bin", "x'5C'", "x'815F'"),
    "two bytes of one character": ("VARCHAR(9) CHARACTER SET armscii8 COLLATE armscii8_bin", "x'A5'", "'('"),
    "half of a surrogate pair": ("VARCHAR(9) CHARACTER SET ucs2 COLLATE ucs2_bin", "x'D800'", "'?'"),
    "the invalid value": ("ENUM('z','','a')", "0", "''"),
    "an empty member": ("SET('z','','a')", "3", "1"),
    "an empty first member": ("SET('','z')", "1", "2"),
}


@pytest.mark.parametrize("case", UNTOLD)
def test_a_key_that_is_another_s_in_the_lake_is_refused_by_name_on_both_paths(
    source: Database, database: str, case: str
) -> None:
    """1. A table with only the other value is read and followed. 2. With both: by SELECT, as a bound, as a change."""
    kind, odd, other = UNTOLD[case]
    table = f"{database}.t"
    source.execute("SET sql_mode = ''", f"CREATE TABLE {table} (v INT, k {kind} PRIMARY KEY)")
    begin = here(source)
    source.execute(f"INSERT INTO {table} VALUES (1, {other})")
    with connected(source) as (conn, _):
        schema = table_schema(conn, table)
    (batch, end), *_ = chunks(source, schema, "replay", 5)[1]
    low = Low(server=begin.server, file=begin.file, offset=begin.offset, gtids=begin.gtids)
    route = Route(table_id=table, generation=1, schema=schema, low=low, high=end.high)
    with closing(BinlogCursor(lambda: connect(source_of(source)), server_id=77_009)) as cursor:

        def read(position: Position) -> Changes:
            at = here(source)
            until = High(server=at.server, file=at.file, offset=at.offset)
            return cursor.read(position, {table: route}, until=until, max_rows=99, max_bytes=9999, wait_seconds=30.0)

        got = read(begin)
        assert not got.faults
        assert [row["k"] for streamed in got.batches for row in streamed.batch.to_pylist()] == batch["k"].to_pylist()
        source.execute("SET sql_mode = ''", f"INSERT INTO {table} VALUES (2, {odd})")
        (fault,) = read(got.position).faults
    assert (fault.table_id, type(fault)) == (table, TableUnreadable)
    assert "column k" in str(fault.cause)
    with pytest.raises(SourceLost, match="column k"):
        chunks(source, schema, "replay", 5)
    by_number = kind.startswith(("ENUM", "SET"))  # as are their bounds
    with connected(source) as (conn, _), nullcontext() if by_number else pytest.raises(SourceLost, match=table):
        for rows in (0, 1):
            next_bound(conn, schema, None, rows)
