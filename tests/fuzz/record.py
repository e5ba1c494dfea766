"""`python -m tests.fuzz.record`: the seeds, tests/fuzz/seeds.json.xz, recorded from MySQL 9.7 and MariaDB 10.11.

A seed is what a server really sent: the packets of a SELECT (what follows the column definitions), and the events of
a dump, without packet headers and checksums, which `targets.py` puts back. Tables are narrow, a kind of type each, so
that a changed byte is likely to meet the reader of that type. Run it again when the decoders learn something new.
"""

from __future__ import annotations

import base64
import json
import lzma
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutline.common.schema import Column, TableSchema
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.connection import RowStream
from cutline.services.sources.mysql.decode.result import ResultDecoder
from cutline.services.sources.mysql.keys import select_rows
from tests.support.databases import Database, MariaDB, MySQL

SEEDS = Path(__file__).with_name("seeds.json.xz")
DATABASE = "fuzz"

_TABLES: dict[str, tuple[str, list[str]]] = {
    "integers": (
        "a TINYINT, b TINYINT UNSIGNED, c SMALLINT, d MEDIUMINT, e MEDIUMINT UNSIGNED, f INT UNSIGNED, g BIGINT,"
        " h BIGINT UNSIGNED, y YEAR, i1 BIT, i9 BIT(9), i64 BIT(64)",
        [
            "-128, 255, -32768, -8388608, 16777215, 4294967295, -9223372036854775808, 18446744073709551615, 2155, b'1',"
            " b'101010101', x'8000000000000001'",
            "1, 2, 3, 4, 5, 6, 7, 8, 0, b'0', b'1', x'01'",
            "NULL, 2, NULL, 4, NULL, 6, NULL, 8, NULL, NULL, NULL, NULL",
        ],
    ),
    "numbers": (
        "a DECIMAL(10,2), b DECIMAL(38,10), c DECIMAL(65,30), d DECIMAL(5,5), e DECIMAL(9,0), f FLOAT, g DOUBLE",
        [
            "-12345678.90, 1234567890123456789012345678.0123456789, -99999999999999999999999999999999999.000000000001,"
            " 0.12345, -999999999, 3.1415927, 1.7976931348623157e308",
            "0, 0, 0, 0, 0, -16777216, -2.2250738585072014e-308",
            "NULL, 1, 1, NULL, 12, 1e-38, 0.1",
        ],
    ),
    "times": (
        "a DATE, b DATETIME, c DATETIME(3), d DATETIME(6), e TIMESTAMP NULL, f TIMESTAMP(2) NULL, g TIME, h TIME(1),"
        " i TIME(6)",
        [
            "'2020-02-29', '9999-12-31 23:59:59', '1000-01-01 00:00:00.123', '2020-01-02 03:04:05.000006',"
            " '2020-01-01 00:00:01', '2038-01-19 03:14:07.99', '-838:59:59', '12:34:56.7', '-00:00:00.000001'",
            "'0000-00-00', '2020-00-00 00:00:00', NULL, NULL, '0000-00-00 00:00:00', NULL, '00:00:00', NULL, NULL",
        ],
    ),
    "texts": (
        "a CHAR(10), b VARCHAR(20), c VARCHAR(300), d TINYTEXT, e TEXT, f MEDIUMTEXT, g LONGTEXT, h CHAR(200)",
        [
            "'abc', 'é€😀', REPEAT('x', 260), '', 'text', REPEAT('é', 400), 'long', REPEAT('€', 100)",
            "NULL, '', NULL, 'tiny', NULL, NULL, NULL, ''",
        ],
    ),
    "charsets": (
        "a VARCHAR(20) CHARACTER SET latin1, b VARCHAR(20) CHARACTER SET utf16, c TEXT CHARACTER SET utf32,"
        " d VARCHAR(20) CHARACTER SET gbk, e VARCHAR(20) CHARACTER SET ucs2, f VARCHAR(20) CHARACTER SET ujis,"
        " g CHAR(9) CHARACTER SET utf16le, h VARCHAR(20) CHARACTER SET koi8r, i VARCHAR(20) CHARACTER SET sjis",
        [
            "'café', 'é😀', '€uro😀', '中文', 'né', '日本', 'ab😀', 'Привет', 'カナ'",
            "'', 'plain', NULL, 'ascii', NULL, NULL, '', NULL, 'x'",
        ],
    ),
    "members": (
        "a ENUM('red','green','','é'), b SET('x','y','z','','w'), c ENUM('a','b') CHARACTER SET latin1,"
        f" d SET({','.join(repr(f'm{i}') for i in range(64))})",
        ["'green', 'x,z', 'b', 'm0,m63'", "'', '', NULL, ''", "'é', 'w', 'a', 'm1'"],
    ),
    "blobs": (
        "a BINARY(8), b VARBINARY(20), c TINYBLOB, d BLOB, e MEDIUMBLOB, f LONGBLOB, g BINARY(255)",
        [
            "x'00FF', x'DEADBEEF', x'', x'0001', REPEAT(x'AB', 300), x'FF', x'01'",
            "x'0000000000000000', x'', NULL, NULL, NULL, NULL, NULL",
        ],
    ),
    "shapes": (
        "a GEOMETRY, b POINT, c POLYGON",
        [
            "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))'), ST_GeomFromText('POINT(1 -2)',"
            " 4326), ST_GeomFromText('POLYGON((0 0, 4 0, 4 4, 0 0))')",
            "NULL, ST_GeomFromText('POINT(0 0)'), NULL",
        ],
    ),
    "documents": (
        "j JSON",
        [
            """'{"b": 1, "a": [true, false, null, -1, 300, 70000, 5000000000, -5000000000, 1.5, "text\\\\n"]}'""",
            "JSON_OBJECT('k', CAST('12.50' AS DECIMAL(10,2)), 'big', REPEAT('x', 200))",
            "CONCAT('[', REPEAT('{\"k\": [1, \"é\"]},', 40), '[[[[]]]], {}]')",
            "'18446744073709551615'",
            "NULL",
        ],
    ),
    "plain": ("a INT, b VARCHAR(40)", ["1, 'one'", "2, NULL", "NULL, 'three'"]),
}
_ONLY: dict[str, dict[str, tuple[str, list[str]]]] = {
    "mysql": {
        "vectors": ("v VECTOR(8)", ["TO_VECTOR('[1,2.5,-0.001]')", "NULL"]),
        "scalars": (
            "j JSON",
            [
                "CAST(CAST('2020-02-29 01:02:03.000045' AS DATETIME(6)) AS JSON)",
                "CAST(CAST('-838:59:59' AS TIME) AS JSON)",
                "CAST(CAST('2020-02-29' AS DATE) AS JSON)",
                "CAST(CAST('-123.4500' AS DECIMAL(65,30)) AS JSON)",
                "JSON_OBJECT('a', x'CAFEBABE01', 'b', b'1010', 'd', 1e300)",
            ],
        ),
        "large": ("j JSON", ["JSON_OBJECT('k', REPEAT('x', 66000), 'l', JSON_ARRAY(1, 70000, true, 1.5))"]),
    },
    "mariadb": {
        "squeezed": (
            "a VARCHAR(200) COMPRESSED, b TEXT COMPRESSED, c VARBINARY(300) COMPRESSED, d LONGBLOB COMPRESSED",
            ["REPEAT('é', 150), REPEAT('text ', 100), REPEAT(x'AB', 290), REPEAT('z', 400)", "'short', '', x'', NULL"],
        ),
        "addresses": (
            "u UUID, i6 INET6, i4 INET4",
            [
                "'123e4567-e89b-12d3-a456-426614174000', '2001:db8::ff00:42:8329', '192.0.2.1'",
                "'00000000-0000-0000-0000-000000000000', '::ffff:192.0.2.1', '255.255.255.0'",
                "NULL, '::', NULL",
            ],
        ),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one server sent. `events` are without checksum; `checksum`: whether their format description promises one.

    `tables` are the schemas as of the recording's begin, of the tables that it changes.
    """

    name: str
    flavour: str
    checksum: bool
    tables: tuple[TableSchema, ...]
    events: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The packets of one SELECT, as they were on the wire."""

    schema: TableSchema
    packets: bytes


def _described(schema: TableSchema) -> dict[str, Any]:
    """What a server says of a table; not the stored form, which changes with the product."""
    columns = [[column.name, column.mysql_type, column.nullable, column.charset] for column in schema.columns]
    return {"table_id": schema.table_id, "columns": columns, "key": list(schema.key)}


def _schema(body: dict[str, Any]) -> TableSchema:
    columns = tuple(
        Column(name=name, field_id=number, mysql_type=kind, nullable=nullable, charset=charset)
        for number, (name, kind, nullable, charset) in enumerate(body["columns"], 1)
    )
    return TableSchema(table_id=body["table_id"], columns=columns, key=tuple(body["key"]), last_field_id=len(columns))


def load() -> tuple[list[Recording], list[Result]]:
    """The seeds as they were recorded."""
    body = json.loads(lzma.decompress(SEEDS.read_bytes()))
    recordings = [
        Recording(
            name=recording["name"],
            flavour=recording["flavour"],
            checksum=recording["checksum"],
            tables=tuple(map(_schema, recording["tables"])),
            events=tuple(map(base64.b64decode, recording["events"])),
        )
        for recording in body["recordings"]
    ]
    results = [
        Result(schema=_schema(result["schema"]), packets=base64.b64decode(result["packets"]))
        for result in body["results"]
    ]
    return recordings, results


def _dumped(server: Database, file: str, offset: int, checksum: str) -> Iterator[bytes]:
    """Each event from there to the end, with its header, without checksum."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'")
        cursor.execute("SET @mariadb_slave_capability = 4")
        command: Any = connection
        command._execute_command(0x12, struct.pack("<IHI", offset, 1, 4_000_000_003) + file.encode())
        while not (packet := command._read_packet()).is_eof_packet():
            event = packet._data[1:]
            yield event[:-4] if checksum == "CRC32" else event


class Recorder:
    """Makes tables on one server and keeps what it sends."""

    def __init__(self, server: Database) -> None:
        self.server = server
        self.recordings: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def schema(self, table: str) -> TableSchema:
        with closing(self.server.connect(conv={})) as connection:
            return table_schema(connection, f"{DATABASE}.{table}")

    def changed(
        self, name: str, tables: list[str], *statements: str, checksum: str = "NONE", session: str = ""
    ) -> None:
        """Record what these statements write to the binlog, on one connection."""
        schemas = [_described(self.schema(table)) for table in tables]
        self.server.execute(f"SET GLOBAL binlog_checksum = '{checksum}'", "FLUSH BINARY LOGS")
        status = "SHOW BINARY LOG STATUS" if self.server.flavour == "mysql" else "SHOW MASTER STATUS"
        file = self.server.execute(status)[0][0]
        options = f", {session}" if session else ""
        begun = f"SET time_zone = '+00:00', sql_mode = ''{options}"
        with closing(self.server.connect(database=DATABASE, init_command=begun)) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        events = [base64.b64encode(event).decode() for event in _dumped(self.server, file, 4, checksum)]
        kept = {"name": name, "flavour": self.server.flavour, "checksum": checksum == "CRC32"}
        self.recordings.append(kept | {"tables": schemas, "events": events})

    def selected(self, table: str) -> None:
        """Record the whole table as a chunk's SELECT."""
        schema = self.schema(table)
        with closing(self.server.connect(database=DATABASE)) as connection:
            decoder, packets = ResultDecoder(schema), b""
            blocks = RowStream(connection, select_rows(schema, None, None))
            while not decoder.done:
                packets += (block := next(blocks))
                decoder.feed(block)
        self.results.append({"schema": _described(schema), "packets": base64.b64encode(packets).decode()})

    def run(self) -> None:
        """All of it."""
        server = self.server
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
        for name, (columns, rows) in (_TABLES | _ONLY[server.flavour]).items():
            server.execute(f"CREATE TABLE {DATABASE}.{name} (id INT PRIMARY KEY, {columns})")
            inserts = [f"INSERT INTO {name} VALUES ({number}, {row})" for number, row in enumerate(rows, 1)]
            self.changed(name, [name], *inserts, f"UPDATE {name} SET id = id + 100", f"DELETE FROM {name} LIMIT 1")
            self.selected(name)
        wide = ", ".join(f"c{i} {('INT', 'VARCHAR(9)', 'DATE')[i % 3]}" for i in range(70))
        server.execute(
            f"CREATE TABLE {DATABASE}.wide (id INT PRIMARY KEY, {wide})",
            f"CREATE TABLE {DATABASE}.other (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
            f"CREATE TABLE {DATABASE}.composite (a VARCHAR(9), b INT, n INT, PRIMARY KEY (a, b))",
            f"CREATE TABLE {DATABASE}.partial (id INT PRIMARY KEY, j JSON)",
        )
        self.changed(
            "wide", ["wide"], "INSERT INTO wide (id, c1, c2, c69) VALUES (1, 'x', '2020-01-01', 7), (2, 'y', NULL, 8)"
        )
        self.selected("wide")
        several = [
            "BEGIN", "INSERT INTO plain VALUES (50, 1, 'a'), (51, 2, 'b')", "INSERT INTO other (v) VALUES (1), (2)",
            "SAVEPOINT s", "INSERT INTO composite VALUES ('k', 1, 1), ('K2', 2, 2)",
            "UPDATE composite SET b = b + 1, n = 9", "UPDATE plain SET b = REPEAT('z', 30) WHERE id > 49", "COMMIT",
        ]  # fmt: skip
        self.changed("transaction", ["plain", "composite"], *several)
        self.changed(
            "checksums",
            ["plain", "composite"],
            "DELETE FROM plain",
            "DELETE FROM composite",
            *several,
            checksum="CRC32",
        )
        prepared = ["XA START 'x','y',7", "INSERT INTO plain VALUES (70, 1, 'xa')", "XA END 'x','y',7"]
        self.changed("xa", ["plain"], *prepared, "XA PREPARE 'x','y',7", "XA COMMIT 'x','y',7")
        prepared[1] = "INSERT INTO plain VALUES (71, 1, 'xa')"
        self.changed("xa in one phase", ["plain"], *prepared, "XA COMMIT 'x','y',7 ONE PHASE")
        prepared[1] = "INSERT INTO plain VALUES (72, 1, 'xa')"
        self.changed("xa rolled back", ["plain"], *prepared, "XA PREPARE 'x','y',7", "XA ROLLBACK 'x','y',7")
        self.changed(
            "statements", ["plain", "composite"], "ALTER TABLE composite ADD COLUMN added INT",
            "INSERT INTO composite VALUES ('n', 1, 1, 1)", "TRUNCATE TABLE plain",
            "INSERT INTO plain VALUES (1, 1, 'x')", "RENAME TABLE composite TO composed", "DROP TABLE composed",
            "FLUSH BINARY LOGS", "INSERT INTO plain VALUES (2, 1, 'in the next file')",
        )  # fmt: skip
        many = ", ".join(f"({n}, {n}, REPEAT('{n % 10}', 20))" for n in range(200, 260))
        packed = ["BEGIN", f"INSERT INTO plain VALUES {many}", "UPDATE plain SET a = a + 1 WHERE id > 240", "COMMIT"]
        if server.flavour == "mysql":
            self.changed("payload", ["plain"], *packed, session="binlog_transaction_compression = ON")
            self.changed(
                "partial", ["partial"], "INSERT INTO partial VALUES (1, '{\"a\": 1, \"b\": 2}')",
                "UPDATE partial SET j = JSON_SET(j, '$.a', 3)", session="binlog_row_value_options = PARTIAL_JSON",
            )  # fmt: skip
            self.changed(
                "tagged", ["plain"], "SET gtid_next = 'AUTOMATIC:red'", "INSERT INTO plain VALUES (301, 1, 't')",
                "INSERT INTO plain VALUES (302, 1, 't')",
            )  # fmt: skip
            self.changed(
                "without text", ["plain"], "UPDATE plain SET a = 1 LIMIT 3", session="binlog_row_image = MINIMAL"
            )
        else:
            server.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
            self.changed(
                "compressed", ["plain"], *packed, "ALTER TABLE plain COMMENT 'a long comment that is deflated'"
            )
            server.execute("SET GLOBAL log_bin_compress = OFF")


def main() -> None:
    """Record, and say how much."""
    body: dict[str, list[dict[str, Any]]] = {"recordings": [], "results": []}
    for kind in (MySQL, MariaDB):
        with kind() as server:
            recorder = Recorder(server)
            recorder.run()
            body["recordings"] += recorder.recordings
            body["results"] += recorder.results
    SEEDS.write_bytes(lzma.compress(json.dumps(body).encode(), preset=9))
    print(f"{len(body['recordings'])} recordings, {len(body['results'])} results, {SEEDS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
