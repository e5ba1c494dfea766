"""Keys in SQL on real servers: the bounds of chunks, the SELECTs between them, and which of them a key is between."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pymysql
import pytest

from cutline.common.errors import ProtocolError
from cutline.common.schema import TableSchema
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.keys import Key, locate, next_bound, select_rows
from cutline.services.sources.mysql.server import Server
from cutline.services.sources.mysql.watermark import KeyRanges
from tests.support.databases import Database, MariaDB
from tests.support.key_kinds import KEYS
from tests.support.sources import connected, rows_of


def explained(conn: Connection, server_info: Server, sql: str) -> dict[str, str]:
    with conn.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(("EXPLAIN FORMAT=TRADITIONAL " if server_info.mysql else "EXPLAIN ") + sql)
        return dict(cursor.fetchall()[0])  # type: ignore[arg-type]


def bounds_of(conn: Connection, schema: TableSchema, step: int) -> list[Key]:
    bounds: list[Key] = []
    while (bound := next_bound(conn, schema, bounds[-1] if bounds else None, step)) is not None:
        assert bound not in bounds
        bounds.append(bound)
    return bounds


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_by_a_walk_of_the_index_hold_every_row_once_in_the_order_of_the_index(
    source: Database, database: str, kind: str
) -> None:
    columns, rows = KEYS[kind]
    source.execute(f"CREATE TABLE {database}.t ({columns})", f"INSERT IGNORE INTO {database}.t VALUES {rows}")
    with connected(source) as (conn, _):
        schema = table_schema(conn, f"{database}.t")
        everything = rows_of(conn, schema, None, None)
        assert everything.num_rows > 1
        for step in (1, 3):
            bounds = bounds_of(conn, schema, step)
            assert len(bounds) == (everything.num_rows - 1) // step
            chunks = [rows_of(conn, schema, *ends) for ends in zip([None, *bounds], [*bounds, None], strict=True)]
            assert [chunk.num_rows for chunk in chunks[:-1]] == [step] * (len(chunks) - 1)
            whole = pa.concat_tables(chunks).to_pylist()
            assert sorted(map(str, whole)) == sorted(map(str, everything.to_pylist()))
            placed_as_mysql_does(conn, schema, bounds, chunks)


def placed_as_mysql_does(conn: Connection, schema: TableSchema, bounds: list[Key], chunks: list[pa.Table]) -> None:
    """Who judges changes in `exact` must place each key where MySQL placed it, by itself and by asking."""
    ranges = KeyRanges(schema.key_columns, bounds)
    for number, chunk in enumerate(chunks):
        keys = chunk.select(schema.key)
        found = ranges.find(keys, lambda bounds, keys: locate(conn, schema, bounds, keys))
        assert found.tolist() == [number] * chunk.num_rows
        texts = [ranges.as_text(key) for key in zip(*keys.to_pydict().values(), strict=True)]
        assert locate(conn, schema, bounds, texts) == [number] * chunk.num_rows


def test_keys_of_mariadbs_own_types_are_chunked_too(
    mariadb: MariaDB, fresh_database: Callable[[Database], str]
) -> None:
    name = fresh_database(mariadb)
    uuids = (
        "00000000-0000-0000-0000-000000000001",
        "11111111-1111-1111-1111-0000000000ff",
        "ffffffff-0000-1000-8000-0",
    )
    for kind, values in {
        "UUID": (*uuids[:2], uuids[2].ljust(36, "0")),
        "INET6": ("::1", "fe80::1", "::ffff:1.2.3.4"),
    }.items():
        rows = ",".join(f"('{value}')" for value in values)
        mariadb.execute(
            f"CREATE TABLE {name}.{kind} (k {kind} PRIMARY KEY)", f"INSERT INTO {name}.{kind} VALUES {rows}"
        )
        with connected(mariadb) as (conn, _):
            schema = table_schema(conn, f"{name}.{kind}")
            bounds = bounds_of(conn, schema, 1)
            assert len(bounds) == 2
            chunks = [rows_of(conn, schema, *ends) for ends in zip([None, *bounds], [*bounds, None], strict=True)]
            placed_as_mysql_does(conn, schema, bounds, chunks)


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("VARCHAR(9) CHARACTER SET latin1", ("k20", "k21", "k6")),
        ("ENUM('z', 'y', 'c', 'b', 'a', 'x')", ("3", "4", "6")),
        ("SET('z', 'y', 'c')", ("3", "4", "6")),
        ("BIT(20)", ("3", "4", "6")),
    ],
)
def test_a_chunk_of_a_composite_key_is_read_by_range_of_the_index_and_not_sorted(
    source: Database, database: str, head: str, values: tuple[str, str, str]
) -> None:
    at = "CONCAT('k', i MOD 30)" if "CHAR" in head else "i MOD 6 + 1"
    source.execute(
        f"CREATE TABLE {database}.t (a {head}, b INT, v CHAR(200), PRIMARY KEY (a, b))",
        f"INSERT INTO {database}.t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
        f" SELECT {at}, i, 'x' FROM n",
        f"ANALYZE TABLE {database}.t",
    )
    first, second, last = values
    with connected(source) as (conn, server_info):
        schema = table_schema(conn, f"{database}.t")
        for start, end in (
            ((first, "20"), (second, "100")),
            ((first, "20"), (first, "100")),
            ((last, "800"), None),
        ):
            plan = explained(conn, server_info, select_rows(schema, start, end, index="PRIMARY"))
            assert plan["type"] == "range"
            assert plan["key"] == "PRIMARY"
            assert int(plan["rows"]) < 400
            assert "filesort" not in plan["Extra"]


def test_a_value_that_is_none_of_its_column_gets_into_no_statement(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.t (a INT, b DATE, c VARBINARY(9), PRIMARY KEY (a, b, c))")
    with connected(source) as (conn, _):
        schema = table_schema(conn, f"{database}.t")
    for key in (
        ("1 OR 1", "2020-01-01", {"hex": "00"}),
        ("1", "' OR 1", {"hex": "00"}),
        ("1", "2020-01-01", {"hex": "' OR 1"}),
    ):
        with pytest.raises(ProtocolError, match="no value of the key column"):
            select_rows(schema, key, None)
