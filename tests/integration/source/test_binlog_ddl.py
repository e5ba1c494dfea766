"""Statements in a real binlog: DDL that is followed or restarts a table, and rows that can't be read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from cutline.common.mask_key import MaskKey
from cutline.common.masking import Masks
from cutline.common.schema import OP, TABLE
from cutline.common.shape import Shape
from cutline.services.sources.contract import GenerationEnded, TableUnreadable
from tests.support.binlog_streams import plain
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import here
from tests.support.streams import route, stream

# --- statements -------------------------------------------------------------------------------------------------------


def test_columns_that_are_added_renamed_widened_and_dropped_are_followed(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(9), w INT)")
    with stream(source, [table]) as it:
        source.execute(
            f"INSERT INTO {table} VALUES (1, 'a', 1)",
            f"ALTER TABLE {table} ADD COLUMN n INT AFTER id, ADD d VARCHAR(5) NOT NULL DEFAULT 'dd'",
            f"INSERT INTO {table} VALUES (2, 20, 'b', 2, 'x')",
            f"ALTER TABLE {table} RENAME COLUMN v TO name, MODIFY w BIGINT",
            f"INSERT INTO {table} VALUES (3, 30, 'c', 1 << 40, 'y')",
            f"ALTER TABLE {table} CHANGE name name VARCHAR(90), DROP COLUMN w",
            f"INSERT INTO {table} VALUES (4, 40, REPEAT('l', 50), 'z')",
            f"CREATE INDEX i ON {table} (n)",
            f"TRUNCATE TABLE {table}",
            f"INSERT INTO {table} VALUES (5, 50, 'e', 'z')",
        )
        rows = it.drain()
        columns = [column.name for column in it.routes[table].schema.columns]
    assert it.faults == []
    assert len(it.schemas) == 3
    assert columns == ["id", "n", "name", "d"]
    assert [(row[OP], row["id"]) for row in rows] == [
        ("+I", 1),
        ("+I", 2),
        ("+I", 3),
        ("+I", 4),
        ("t", None),
        ("+I", 5),
    ]
    assert rows[1]["d"] == "x"
    assert rows[2]["w"] == 1 << 40


@pytest.mark.parametrize(
    "clause", ["RENAME COLUMN w TO ww", "CHANGE W ww BIGINT", "DROP w", "ADD w2 INT, RENAME COLUMN w TO w1"]
)
def test_a_masked_column_that_gets_another_name_is_not_followed(source: Database, database: str, clause: str) -> None:
    """Else the lake's column of hashes would become one of numbers, and nobody could read the table."""
    key = MaskKey.of_text("a key of tests, long enough")
    table, other = f"{database}.a", f"{database}.b"
    source.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, w INT, v INT)" for name in (table, other)))
    with stream(source, [table, other], masks=Masks(lambda: key)) as it:
        shape = Shape(mask=("w",), mask_key=key.fingerprint)
        it.routes[table] = replace(it.routes[table], schema=replace(it.routes[table].schema, shape=shape))
        source.execute(
            f"INSERT INTO {table} VALUES (1, 77, 1)",
            f"ALTER TABLE {table} RENAME COLUMN v TO vv",
            f"INSERT INTO {table} VALUES (2, 77, 1)",
            f"ALTER TABLE {table} {clause}",
            f"INSERT INTO {other} VALUES (3, 77, 1)",
        )
        rows = it.drain()
    assert [(row["id"], row["w"]) for row in rows] == [(n, key.hashes([b"77"])) for n in (1, 2)] + [(3, 77)]
    assert len(it.schemas) == 1
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]
    assert "has no column w there, which is to be masked" in str(it.faults[0].cause)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {t} MODIFY v VARCHAR(2)",
        "ALTER TABLE {t} ADD COLUMN u VARCHAR(36) DEFAULT (CONCAT(v, v))",
        "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE {t} DROP PRIMARY KEY",
        "RENAME TABLE {t} TO {t}_old",
        "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        "DROP TABLE {t}",
        "ALTER TABLE {t} RENAME TO {t}_x",
        "ALTER TABLE {t}_p EXCHANGE PARTITION p WITH TABLE {t}",
    ],
)
def test_a_ddl_that_can_change_rows_restarts_the_table_and_no_other(
    source: Database, database: str, statement: str
) -> None:
    table = f"{database}.a"
    source.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(9))",
        f"CREATE TABLE {table}_new LIKE {table}",
        f"CREATE TABLE {table}_p (id INT PRIMARY KEY, v VARCHAR(9))"
        " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5))",
        f"CREATE TABLE {database}.b (id INT PRIMARY KEY)",
    )
    with stream(source, [table, f"{database}.b"]) as it:
        source.execute(
            f"INSERT INTO {table} VALUES (1, 'a')", statement.format(t=table), f"INSERT INTO {database}.b VALUES (1)"
        )
        rows = it.drain()
    (fault,) = it.faults
    assert fault.table_id == table
    assert isinstance(fault, GenerationEnded)
    assert plain(rows, "id") == [("+I", 1), ("+I", 1)]
    assert rows[0][TABLE] == table


UNSEEN = {  # by the session or the table, which the statement alone does not tell
    "a default that is no day": (
        "(id INT PRIMARY KEY)",
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        "ALTER TABLE {t} ADD d DATE DEFAULT '2021-02-30'",
    ),
    "the time of the statement": (
        "(id INT PRIMARY KEY, at TIMESTAMP NULL)",
        "SET SESSION sql_mode = '', explicit_defaults_for_timestamp = OFF",
        "ALTER TABLE {t} MODIFY at TIMESTAMP DEFAULT '2020-01-01 00:00:00'",
    ),
    "what a generated column compares by": (
        "(id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'x', g TINYINT AS (v = 'X') VIRTUAL)",
        "ALTER TABLE {t} MODIFY v VARCHAR(9) COLLATE utf8mb4_general_ci",
    ),
    "the width that a generated column shows": (
        "(id INT PRIMARY KEY, n INT(5) ZEROFILL DEFAULT 7, g VARCHAR(9) AS (CONCAT(n)) VIRTUAL)",
        "ALTER TABLE {t} MODIFY n INT(8) ZEROFILL",
    ),
    "the default that a generated column shows": (
        "(id INT PRIMARY KEY, n INT NOT NULL DEFAULT 7, g INT AS (DEFAULT(n)) VIRTUAL)",
        "ALTER TABLE {t} ALTER n SET DEFAULT 8",
    ),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_a_ddl_that_changes_rows_by_what_it_does_not_say_restarts_the_table(
    source: Database, database: str, case: str
) -> None:
    create, *statements = UNSEEN[case]
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} {create}")
    with stream(source, [table]) as it:
        source.execute(f"INSERT INTO {table} (id) VALUES (1)")
        it.drain()
        before = source.execute(f"SELECT * FROM {table}")
        source.execute(*(statement.format(t=table) for statement in statements))
        assert len(it.drain()) == 1
    assert source.execute(f"SELECT * FROM {table}") != before
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_statements_in_swe7_are_read_as_the_server_reads_them(source: Database, database: str) -> None:
    """Its é is the byte of a backquote, its Ö that of a backslash."""
    sent = {
        "plain": b"TRUNCATE TABLE `plain`",
        "écafé": b"TRUNCATE TABLE ```caf```",
        "ÖÉä": b"TRUNCATE TABLE `\\@{`",
        "defaults": rb"ALTER TABLE defaults ADD `c[` VARCHAR(9) NOT NULL DEFAULT 'a\\b\'\n{`|'",
    }
    with closing(source.connect(database=database)) as conn, conn.cursor() as cursor:
        for name in sent:
            cursor.execute(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)")
        with stream(source, [f"{database}.{name}" for name in sent]) as it:
            for name in sent:
                cursor.execute(f"INSERT INTO `{name}` VALUES (1)")
            cursor.execute("SET NAMES swe7")
            for statement in sent.values():
                conn.query(statement)  # type: ignore[arg-type]
            rows = it.drain()
            added = it.routes[f"{database}.defaults"].schema.columns[-1]
    assert [row[TABLE] for row in rows if row[OP] == "t"] == [f"{database}.{name}" for name in [*sent][:3]]
    ((_, default),) = source.execute("SELECT * FROM defaults", database=database)
    assert (added.name, added.initial_default) == ("cÄ", default)
    assert default == "aÖb'\näéö"


@pytest.mark.parametrize(
    "statement",
    ["DROP INDEX uk ON {t}", "ALTER TABLE {t} DROP KEY uk", "CREATE OR REPLACE UNIQUE INDEX uk ON {t} (b)"],
)
def test_an_index_that_goes_restarts_a_table_that_it_identifies_and_no_other(
    source: Database, database: str, statement: str
) -> None:
    """The binlog's table maps call the first unique key a primary one where there is none."""
    if "REPLACE" in statement and isinstance(source, MySQL):
        pytest.skip("MariaDB's")
    table, keyed = f"{database}.a", f"{database}.b"
    columns = "a INT NOT NULL, b INT NOT NULL, UNIQUE uk (a)"
    source.execute(f"CREATE TABLE {table} ({columns})", f"CREATE TABLE {keyed} ({columns}, PRIMARY KEY (b))")
    with stream(source, [table, keyed]) as it:
        for name in (table, keyed):
            source.execute(f"INSERT INTO {name} VALUES (1, 1)", statement.format(t=name))
        it.drain()
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_an_empty_default_that_is_null_restarts_the_table(mariadb: MariaDB, fresh_database: Any) -> None:
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mariadb, [table]) as it:
        mariadb.execute(
            f"INSERT INTO {table} VALUES (1)",
            "SET SESSION sql_mode = 'EMPTY_STRING_IS_NULL'",
            f"ALTER TABLE {table} ADD v VARCHAR(5) DEFAULT ''",
        )
        it.drain()
    assert mariadb.scalar(f"SELECT v FROM {table}") is None
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_utf8_restarts_a_table_of_mariadbs_where_a_session_says_what_it_is(
    mariadb: MariaDB, fresh_database: Any
) -> None:
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mariadb, [table]) as it:
        mariadb.execute(
            f"INSERT INTO {table} VALUES (1)",
            "SET SESSION old_mode = ''",
            f"ALTER TABLE {table} ADD v VARCHAR(5) CHARACTER SET utf8",
        )
        it.drain()
    assert "utf8mb3" not in mariadb.execute(f"SHOW CREATE TABLE {table}")[0][1]
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_names_in_ddl_are_those_of_the_server(source: Database, database: str) -> None:
    """1. A table whose name differs in case alone is truncated, which is another one on these servers.
    2. One is truncated whose name begins with digits, and needs no quotes behind a dot.
    3. A session of binary statements, as a dump's is, adds a column.
    """
    tables = [f"{database}.{name}" for name in ("a", "2024_a")]
    for name in ("a", "A", "2024_a"):
        source.execute(f"CREATE TABLE {database}.`{name}` (id INT PRIMARY KEY)")
    with stream(source, tables) as it:
        source.execute(
            f"TRUNCATE TABLE {database}.A",
            f"TRUNCATE TABLE {database}.2024_a",
            "SET NAMES binary",
            f"ALTER TABLE {database}.a ADD `\u0175` INT",
            f"INSERT INTO {database}.a VALUES (1, 2)",
        )
        rows = it.drain()
    assert [(row[OP], row[TABLE]) for row in rows] == [("t", tables[1]), ("+I", tables[0])]
    assert rows[1]["\u0175"] == 2
    assert it.faults == []


def test_statements_of_mariadb_with_settings_of_their_own_and_databases_created_anew(
    mariadb: MariaDB, fresh_database: Any
) -> None:
    database = fresh_database(mariadb)
    table, only = f"{database}.a", "SET STATEMENT max_statement_time = 60, sql_mode = '' FOR"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mariadb, [table]) as it:
        mariadb.execute(
            f"{only} ALTER TABLE {table} ADD n INT",
            f"INSERT INTO {table} VALUES (1, 2)",
            f"{only} TRUNCATE TABLE {table}",
            f"CREATE OR REPLACE DATABASE {database}",
        )
        rows = it.drain()
    assert plain(rows, "id", "n") == [("+I", 1, 2), ("t", None, None)]
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_an_alter_of_mariadb_in_two_phases_counts_where_it_ends(mariadb: MariaDB, fresh_database: Any) -> None:
    """1. One that is told at its begin and its end adds a column. 2. One fails at its end: it changes nothing."""
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 1), (2, 1)")
    with stream(mariadb, [table]) as it:
        with closing(mariadb.connect()) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_alter_two_phase = ON")
            cursor.execute(f"ALTER TABLE {table} ADD n INT")
            with pytest.raises(pymysql.err.IntegrityError):
                cursor.execute(f"ALTER TABLE {table} ADD m INT, ADD UNIQUE (v), ALGORITHM = COPY")
            cursor.execute(f"INSERT INTO {table} VALUES (3, 1, 7)")
        rows = it.drain()
    assert plain(rows, "id", "n") == [("+I", 3, 7)]
    assert (it.faults, len(it.schemas)) == ([], 1)
    logged = [
        event[5] for event in mariadb.execute(f"SHOW BINLOG EVENTS IN '{it.position.file}'") if event[2] == "Query"
    ]
    assert sum(table in text and "ALTER" in text for text in logged) == 4


def test_a_statement_that_mariadb_analyzes_while_it_runs_quarantines(mariadb: MariaDB, fresh_database: Any) -> None:
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 1)")
    with stream(mariadb, [table]) as it:
        mariadb.execute("SET SESSION binlog_format = STATEMENT", f"ANALYZE UPDATE {table} SET v = 2")
        assert it.drain() == []
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, TableUnreadable)]


def test_a_table_that_is_still_being_read_restarts_at_any_ddl_but_a_nullable_add(
    source: Database, database: str
) -> None:
    tables = [f"{database}.a", f"{database}.b", f"{database}.c"]
    for table in tables:
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(9))")
    low = here(source)
    with stream(source, []) as it:
        it.routes = {
            table: route(source, table, low, high=replace(low, offset=low.offset + 1_000_000)) for table in tables
        }
        source.execute(
            f"ALTER TABLE {tables[0]} ADD n INT",
            f"ALTER TABLE {tables[1]} ADD n INT NOT NULL DEFAULT 1",
            f"TRUNCATE TABLE {tables[2]}",
        )
        it.drain()
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(name, GenerationEnded) for name in tables[1:]]
    assert len(it.schemas) == 1


def test_a_ddl_that_the_low_covers_is_skipped(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    begin = here(source)
    source.execute(f"DROP TABLE {table}", f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    low = here(source)
    source.execute(f"INSERT INTO {table} VALUES (1, 2)")
    with stream(source, [], begin) as it:
        it.routes = {table: route(source, table, low)}
        assert plain(it.drain(), "id", "v") == [("+I", 1, 2)]
    assert it.faults == []


def test_dml_as_a_statement_quarantines(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 1)")
    with stream(source, [table]) as it:
        source.execute("SET SESSION binlog_format = STATEMENT", f"UPDATE {table} SET v = 2")
        assert it.drain() == []
    (fault,) = it.faults
    assert isinstance(fault, TableUnreadable)
    assert "binlog_format" in str(fault.cause)


def test_a_row_image_with_columns_missing_quarantines(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, w INT)", f"INSERT INTO {table} VALUES (1, 1, 1)")
    with stream(source, [table]) as it:
        source.execute("SET SESSION binlog_row_image = MINIMAL", f"UPDATE {table} SET v = 2")
        assert it.drain() == []
    (fault,) = it.faults
    assert isinstance(fault, TableUnreadable)
    assert "binlog_row_image" in str(fault.cause)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("binlog_format = STATEMENT", "binlog_format"),
        ("binlog_row_image = MINIMAL", "binlog_row_image"),
        ("binlog_row_image = NOBLOB", "binlog_row_image"),
    ],
)
def test_what_only_a_session_sets_is_refused_by_name_and_the_other_tables_go_on(
    source: Database, fresh_database: Any, setting: str, words: str
) -> None:
    database, other = fresh_database(source), fresh_database(source)
    table = f"{database}.a"
    source.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT, b LONGTEXT)", f"INSERT INTO {table} VALUES (1, 1, 'b')",
        f"CREATE TABLE {other}.a (id INT PRIMARY KEY)",
    )  # fmt: skip
    with stream(source, [table, f"{other}.a"]) as it:
        at = here(source)
        source.execute(f"SET SESSION {setting}", f"UPDATE {table} SET v = 2")
        source.execute(f"UPDATE {table} SET v = 3", f"INSERT INTO {other}.a VALUES (1)")
        assert plain(it.drain(), "id") == [("+I", 1)]
        assert it.rows[0][TABLE] == f"{other}.a"
    (fault,) = it.faults
    assert (fault.table_id, type(fault)) == (table, TableUnreadable)
    assert words in str(fault.cause)
    assert f"{at.file}:" in str(fault.cause)


def test_events_without_column_names_quarantine(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    with stream(source, [table]) as it:
        source.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        try:
            source.execute(f"INSERT INTO {table} VALUES (1, 1)")
        finally:
            source.execute("SET GLOBAL binlog_row_metadata = FULL")
        assert it.drain() == []
    (fault,) = it.faults
    assert isinstance(fault, TableUnreadable)
    assert "SET GLOBAL binlog_row_metadata" in str(fault.cause)


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_partial_json_of_a_session_is_refused_by_name(mysql: MySQL, fresh_database: Any, compression: str) -> None:
    database = fresh_database(mysql)
    table, other = f"{database}.a", f"{database}.b"
    mysql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, j JSON)", f"""INSERT INTO {table} VALUES (1, '{{"a": 1}}')""",
        f"CREATE TABLE {other} (id INT PRIMARY KEY)",
    )  # fmt: skip
    with stream(mysql, [table, other]) as it:
        at = here(mysql)
        mysql.execute(
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            f"SET SESSION binlog_transaction_compression = {compression}",
            f"UPDATE {table} SET j = JSON_SET(j, '$.a', 2)", f"INSERT INTO {other} VALUES (1)",
        )  # fmt: skip
        assert plain(it.drain(), "id") == [("+I", 1)]
    (fault,) = it.faults
    assert (fault.table_id, type(fault)) == (table, TableUnreadable)
    assert "binlog_row_value_options" in str(fault.cause)
    assert f"{at.file}:" in str(fault.cause)
