"""The whole path into a real Iceberg lake: mesh processes, the Spark writer on a real Spark, a reader's view."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cutline.common.schema import Column, parse_type
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.bank import ACCOUNTS, BALANCE, Bank
from tests.support.databases import Database, MariaDB
from tests.support.history import content, differences
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline, connection, place
from tests.support.modelled_lake import Content


def test_the_sum_over_two_tables_is_constant_in_every_publication_of_the_lake(
    mariadb: MariaDB, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Amounts move between two tables, the Spark writer applies; both come to be shown.
    2. A savepoint; a reader gets SIGKILL; the Spark writer ends and another one starts; a second savepoint.
    3. The movers stop, the pipeline catches up, a last savepoint.
    Each publication that shows both tables has the sum and the source's content, read by its snapshots; so have the
    tags `checkpoint_N` by VERSION AS OF, and `main`; `_cutline.publications` names each of them.
    """
    bank = Bank(mariadb, fresh_database)
    kept = []
    with Mesh(tmp_path) as mesh, bank.moving() as movers:
        pipeline = mesh.pipeline("bank", mariadb, [f"{bank.schema}.*"], chunk_rows=20, interval_seconds=1.0)
        definition: Any = pipeline.store.definition()
        with writing(mesh):
            pipeline.until(lambda: _shows(pipeline, bank), "both tables in a publication", 120)
            kept.append(savepoint(pipeline, "first"))
            mesh.kill(mesh.running("reader")[0])
            mesh.start("reader")
            pipeline.next_epoch(1)
        with writing(mesh):
            kept.append(savepoint(pipeline, "second"))
            movers.stop()
            pipeline.catches_up(*bank.names)
            kept.append(savepoint(pipeline, "last"))
    reader = session.for_pipeline(spark, definition["sink"])
    records = pipeline.store.publications()
    showing = [
        record for record in records if all(name in record.tables and record.tables[name].shown for name in bank.names)
    ]
    assert {record.n for record in showing if record.kept} >= set(kept)
    assert len(showing) > len(kept)
    truth = bank.history.at(bank.tables, [place(record) for record in showing])
    for record, held in zip(showing, truth, strict=True):
        versions = [[snapshot_of(record.tables[name].main.content) for name in bank.names]]
        if record.n in kept:
            versions.append([f"'checkpoint_{record.n}'"] * 2)
        for pair in versions:
            found = {name: _rows(reader, name, version) for name, version in zip(bank.names, pair, strict=True)}
            assert sum(row["amount"] for rows in found.values() for row in rows.values()) == 2 * ACCOUNTS * BALANCE
            for name in bank.names:
                assert differences(found[name], held[name]) == [], f"{name}, publication {record.n} by {pair}"
    for name in bank.names:
        assert differences(_rows(reader, name), content(mariadb, name, ["id"])) == []
    listed = reader.sql("SELECT checkpoint FROM lake._cutline.publications WHERE pipeline = 'bank'").toArrow()
    assert set(listed["checkpoint"].to_pylist()) >= set(kept)


def _shows(pipeline: Pipeline, bank: Bank) -> bool:
    return any(
        all(name in record.tables and record.tables[name].shown for name in bank.names)
        for record in pipeline.store.publications()
    )


def _rows(reader: Any, table: str, version: object = None) -> Content:
    version_clause = f" VERSION AS OF {version}" if version is not None else ""
    rows = reader.sql(f"SELECT * FROM lake.{table}{version_clause}").toArrow().to_pylist()
    found = {(row["id"],): row for row in rows}
    assert len(found) == len(rows), f"{table}{version_clause} has a key twice"
    return found


COLUMNS = {
    "i1": "TINYINT", "u8": "BIGINT UNSIGNED", "b8": "BIGINT", "n38": "DECIMAL(38,10)", "n65": "DECIMAL(65,30)",
    "f": "FLOAT", "d": "DOUBLE", "bits": "BIT(13)", "flag": "BIT(1)", "day": "DATE", "at": "DATETIME(6)",
    "ts": "TIMESTAMP(3) NULL", "span": "TIME(4)", "y": "YEAR", "c": "CHAR(9) CHARACTER SET latin1",
    "v": "VARCHAR(40) CHARACTER SET utf8mb4", "t": "MEDIUMTEXT CHARACTER SET gbk", "bin": "BINARY(5)",
    "blb": "LONGBLOB", "e": "ENUM('x','ü','') CHARACTER SET latin1", "s": "SET('a','ü','c')", "j": "JSON",
    "g": "POINT", "gen": "VARCHAR(60) GENERATED ALWAYS AS (CONCAT(v, '!')) VIRTUAL",
}  # fmt: skip
VALUES = [
    "-128, 18446744073709551615, -9223372036854775808, '-1234567890123456789012345678.0123456789',"
    " '-99999999999999999999999999999999999.000000000000000000000000000001', 3.1415927, 1.7976931348623157e308,"
    " b'1000000000001', 1, '0001-01-01', '0001-01-01 00:00:00.000001', '1970-01-01 00:00:01.001', '-838:59:58.9999',"
    " 1901, 'ü ', '\U0001f600 é', '中文', 'a\\0', x'00ff', 'ü', 'a,ü', '{\"b\": [1, 1.50, null], \"a\": \"é\"}',"
    " ST_GeomFromText('POINT(1 -2)', 4326), DEFAULT",
    "127, 0, 9223372036854775807, '0.0000000001', '0.000000000000000000000000000001', 16777216, 5e-324, 0, 0,"
    " '9999-12-31', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07.999', '838:59:59', 2155, '', '', '', '', '',"
    " '', '', '[]', NULL, DEFAULT",
    ", ".join(["NULL"] * (len(COLUMNS) - 1)) + ", DEFAULT",
]


@pytest.mark.parametrize("flavour", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)])
def test_values_and_keys_read_in_the_lake_as_the_source_prints_them(
    request: pytest.FixtureRequest,
    fresh_database: Callable[[Database], str],
    spark: Any,
    tmp_path: Path,
    flavour: str,
) -> None:
    """1. A table of every type, and tables whose keys are equal for MySQL and differ in bytes, are read in chunks.
    2. Rows change, and keys to others that are equal for MySQL. Spark and PyIceberg read what the source prints.
    """
    source: Database = request.getfixturevalue(flavour)
    schema = fresh_database(source)
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    source.execute(
        f"CREATE TABLE many (id INT PRIMARY KEY, {columns})",
        *(f"INSERT INTO many VALUES ({number}, {values})" for number, values in enumerate(VALUES)),
        "CREATE TABLE words (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)",
        "INSERT INTO words VALUES ('a', 1), ('é', 2), ('ß', 3), ('b', 4), ('x', 5)",
        "CREATE TABLE reals (k DOUBLE PRIMARY KEY, n INT)",
        "INSERT INTO reals VALUES (0e0, 1), (0.1, 2), (-5e-324, 3)",
        database=schema,
    )
    tables = [f"{schema}.{name}" for name in ("many", "words", "reals")]
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("values", source, [f"{schema}.*"], chunk_rows=2)
        definition: Any = pipeline.store.definition()
        with writing(mesh):
            pipeline.until(lambda: pipeline.shows(*tables), "the tables", 120)
            savepoint(pipeline, "first")
            source.execute(
                *(f"INSERT INTO many VALUES ({number + 10}, {values})" for number, values in enumerate(VALUES)),
                "UPDATE many SET i1 = 5 WHERE id < 3",
                "UPDATE words SET k = 'A' WHERE k = 'a'",
                "UPDATE words SET k = 'E', n = n + 10 WHERE k = 'é'",
                "REPLACE INTO words VALUES ('B', 40)",
                "DELETE FROM words WHERE k = 'x'",
                "INSERT INTO words VALUES ('X', 50), ('b ', 1) ON DUPLICATE KEY UPDATE k = 'b ', n = 41",
                "UPDATE reals SET k = -k",
                "UPDATE reals SET n = n + 10",
                database=schema,
            )
            pipeline.catches_up(*tables)
            savepoint(pipeline, "second")
    reader = session.for_pipeline(spark, definition["sink"])
    warehouse = definition["sink"]["warehouse"]
    for name in tables:
        printed = _printed(source, name)
        assert len(printed) == {"many": 2 * len(VALUES), "words": 5, "reals": 3}[name.partition(".")[2]]
        for rows in (reader.sql(f"SELECT * FROM lake.{name}").toArrow(), lake_table(warehouse, name).scan().to_arrow()):
            found = [{key: _as_printed(value) for key, value in row.items()} for row in rows.to_pylist()]
            assert sorted(found, key=repr) == sorted(printed, key=repr), name


def _printed(source: Database, table: str) -> list[dict[str, Any]]:
    """The rows as the server prints them; FLOAT as DOUBLE, since its own text has six digits."""
    with closing(connection(source)) as conn, conn.cursor() as cursor:
        schema = table_schema(conn, table)
        columns = [
            f"CAST({column.name} AS DOUBLE)" if column.mysql_type.startswith("float") else column.name
            for column in schema.columns
        ]
        cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
        rows = cursor.fetchall()
    return [
        {column.name: _plain(column, value) for column, value in zip(schema.columns, row, strict=True)} for row in rows
    ]


def _plain(column: Column, text: Any) -> Any:
    """The server's text, converted to the form that a number, a moment or a span has in the lake."""
    kind = parse_type(column.mysql_type)
    if text is None:
        return None
    if kind.base in ("float", "double"):
        return repr(struct.unpack("<f", struct.pack("<f", float(text)))[0] if kind.base == "float" else float(text))
    if kind.base == "bit" and kind.numbers == (1,):
        return str(text == b"\1")
    if kind.base == "time":
        hours, minutes, seconds = text.lstrip("-").split(":")
        span = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
        return str(-span if text.startswith("-") else span)
    return text.rstrip("0").rstrip(".") if kind.base in ("datetime", "timestamp") and "." in text else text


def _as_printed(value: Any) -> Any:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ").rjust(19, "0")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float | bool):
        return repr(value)
    return value if value is None or isinstance(value, bytes) else str(value)
