"""Savepoints, rollbacks and XA transactions in a real binlog."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from cutline.common.positions import High
from cutline.common.schema import GTID, SEQ
from cutline.services.sources.contract import GenerationEnded, TableUnreadable
from tests.support.binlog_streams import plain
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import here, prepare
from tests.support.streams import stream, transaction


def test_savepoints_and_rolled_back_parts_leave_what_stayed(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        transaction(
            source,
            f"INSERT INTO {table} VALUES (1)",
            "SAVEPOINT s",
            f"INSERT INTO {table} VALUES (2)",
            "ROLLBACK TO SAVEPOINT s",
            f"INSERT INTO {table} VALUES (3)",
        )
        assert plain(it.drain(), "id") == [("+I", 1), ("+I", 3)]
    assert it.faults == []


@pytest.mark.parametrize("flavour", ["mariadb", "mysql_nogtid"])
def test_a_rollback_in_the_binlog_after_rows_were_given_out_restarts_their_tables(
    request: pytest.FixtureRequest, fresh_database: Any, flavour: str
) -> None:
    server: Database = request.getfixturevalue(flavour)
    database = fresh_database(server)
    table, other = f"{database}.a", f"{database}.m"
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"CREATE TABLE {other} (id INT) ENGINE=MyISAM")
    with stream(server, [table]) as it:
        transaction(
            server,
            f"INSERT INTO {table} VALUES (1)",
            "SAVEPOINT s",
            f"INSERT INTO {other} VALUES (1)",
            f"INSERT INTO {table} VALUES (2)",
            "ROLLBACK TO SAVEPOINT s",
        )
        rows = it.drain()
        kept = [row[0] for row in server.execute(f"SELECT id FROM {table}")]
    assert kept == [1]
    assert [type(fault) for fault in it.faults] == [GenerationEnded] or [row["id"] for row in rows] == kept


# --- XA ---------------------------------------------------------------------------------------------------------------


def test_rows_of_an_xa_transaction_come_at_its_commit_and_not_at_its_rollback(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        prepare(source, "'one','b',7", f"INSERT INTO {table} VALUES (1), (2)")
        prepare(source, "'two'", f"INSERT INTO {table} VALUES (3)")
        source.execute(f"INSERT INTO {table} VALUES (4)")
        source.execute("XA ROLLBACK 'two'", "XA COMMIT 'one','b',7")
        source.execute(f"INSERT INTO {table} VALUES (5)")
        rows = it.drain()
    assert plain(rows, "id") == [("+I", 4), ("+I", 1), ("+I", 2), ("+I", 5)]
    assert it.faults == []
    assert rows[1][GTID] == rows[2][GTID] != rows[0][GTID]


def test_a_prepared_xa_transaction_is_found_again_after_a_restart_at_every_cut(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    begin = here(source)
    prepare(source, "'x'", f"INSERT INTO {table} VALUES (1)")
    source.execute("XA ROLLBACK 'x'")
    prepare(source, "'x'", f"INSERT INTO {table} VALUES (11), (12), (13)", f"INSERT INTO {table} VALUES (14)")
    source.execute("FLUSH BINARY LOGS", f"INSERT INTO {table} VALUES (2)")
    prepared = here(source)
    source.execute("XA COMMIT 'x'", f"INSERT INTO {table} VALUES (3)")
    end = here(source)
    with stream(source, [table], begin) as whole:
        expected = whole.drain(end)
    assert [row["id"] for row in expected] == [2, 11, 12, 13, 14, 3]
    for start in (begin, prepared):
        with stream(source, [table], start) as cut:
            high = High(server=end.server, file=end.file, offset=end.offset)
            while not high.reached_by(cut.position):
                cut.read(until=high, max_rows=1)
                cut.cursor.close()
        wanted = expected if start is begin else expected[1:]
        assert [row | {SEQ: 0} for row in cut.rows] == [row | {SEQ: 0} for row in wanted]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("number", [1 << 31, (1 << 32) + 5])
def test_an_xa_transaction_with_a_large_number_in_its_name_comes_at_its_commit(
    mysql: MySQL, fresh_database: Any, number: int, restarts: bool
) -> None:
    """MySQL's alone: MariaDB takes numbers below 2^31."""
    table = f"{fresh_database(mysql)}.a"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mysql, [table]) as it:
        prepare(mysql, f"'a','b',{number}", f"INSERT INTO {table} VALUES (1)")
        assert it.drain() == []
        if restarts:
            it.cursor.close()
        mysql.execute(f"XA COMMIT 'a','b',{number}")
        assert plain(it.drain(), "id") == [("+I", 1)]


@pytest.mark.parametrize("restarts", [False, True])
def test_partial_json_within_an_xa_transaction_is_refused_at_its_commit(
    mysql: MySQL, fresh_database: Any, restarts: bool
) -> None:
    database = fresh_database(mysql)
    table, other = f"{database}.a", f"{database}.b"
    mysql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, j JSON)",
        f"""INSERT INTO {table} VALUES (1, '{{"a": 1}}')""",
        f"CREATE TABLE {other} (id INT PRIMARY KEY)",
        "SET GLOBAL binlog_row_value_options = PARTIAL_JSON",
    )
    try:
        with stream(mysql, [table, other]) as it:
            update = f"UPDATE {table} SET j = JSON_SET(j, '$.a', 2)"
            prepare(mysql, "'p'", f"INSERT INTO {other} VALUES (1)", update, f"INSERT INTO {other} VALUES (2)")
            assert it.drain() == []
            if restarts:
                it.cursor.close()
            mysql.execute("XA COMMIT 'p'")
            assert plain(it.drain(), "id") == [("+I", 1), ("+I", 2)]
    finally:
        mysql.execute("SET GLOBAL binlog_row_value_options = ''")
    (fault,) = it.faults
    assert (fault.table_id, type(fault)) == (table, TableUnreadable)
    assert "binlog_row_value_options" in str(fault.cause)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_savepoint_that_an_xa_transaction_went_back_to_restarts_its_table(
    mariadb: MariaDB, fresh_database: Any, restarts: bool
) -> None:
    """MariaDB writes what was rolled back into its binlog if a table without transactions was changed meanwhile."""
    database = fresh_database(mariadb)
    table, other = f"{database}.a", f"{database}.m"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"CREATE TABLE {other} (id INT) ENGINE=MyISAM")
    with stream(mariadb, [table]) as it:
        prepare(
            mariadb, "'s'", f"INSERT INTO {table} VALUES (1)", "SAVEPOINT s", f"INSERT INTO {table} VALUES (2)",
            f"INSERT INTO {other} SELECT id FROM {table}", "ROLLBACK TO s",
        )  # fmt: skip
        assert it.drain() == []
        if restarts:
            it.cursor.close()
        mariadb.execute("XA COMMIT 's'")
        it.drain()
    assert [row[0] for row in mariadb.execute(f"SELECT id FROM {table}")] == [1]
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def test_xa_in_one_phase_is_a_commit(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        with closing(source.connect()) as conn, conn.cursor() as cursor:
            for statement in (
                "XA START 'p'",
                f"INSERT INTO {table} VALUES (1)",
                "XA END 'p'",
                "XA COMMIT 'p' ONE PHASE",
            ):
                cursor.execute(statement)
        assert plain(it.drain(), "id") == [("+I", 1)]
