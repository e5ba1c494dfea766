"""Servers that restart, die, purge or are exchanged while their binlog is read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from cutline.common.errors import ConfigError, SourceLost, Unavailable
from cutline.common.positions import High
from cutline.common.schema import GTID, OP, TABLE, TS
from cutline.services.sources.contract import TableUnreadable
from cutline.services.sources.mysql import watermark
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.server import (
    binlogs,
    current_position,
    first_position,
)
from tests.conftest import started
from tests.support.binlog_streams import busy, plain, write_busily
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import connected, here
from tests.support.streams import DEADLINE_SECONDS, route, stream

# --- the connection ---------------------------------------------------------------------------------------------------


def test_a_restart_of_the_server_is_said_once_and_the_same_read_goes_on(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        source.execute(f"INSERT INTO {table} VALUES (1)")
        it.drain()
        source.stop()
        with pytest.raises(Unavailable):
            it.read(wait_seconds=5)
        with pytest.raises(Unavailable):
            it.read(wait_seconds=5)
        source.start()
        source.execute(f"INSERT INTO {table} VALUES (2)")
        assert plain(it.drain(), "id") == [("+I", 1), ("+I", 2)]


def test_a_killed_server_goes_on_too(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        source.execute(f"INSERT INTO {table} VALUES (1)")
        it.drain()
        source.kill()
        with pytest.raises(Unavailable):
            it.read(wait_seconds=5)
        source.start()
        source.execute(f"INSERT INTO {table} VALUES (2)")
        assert plain(it.drain(), "id") == [("+I", 1), ("+I", 2)]


def test_a_purged_start_is_lost_with_its_remedy(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    begin = here(source)
    source.execute(f"INSERT INTO {table} VALUES (1)", "FLUSH BINARY LOGS", f"INSERT INTO {table} VALUES (2)")
    end = here(source)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while source.execute("SHOW BINARY LOGS")[0][0] != end.file:
        # a file that a dump of another test still holds is not purged
        assert time.monotonic() < deadline
        source.execute(f"PURGE BINARY LOGS TO '{end.file}'")
    with stream(source, [], begin) as it, pytest.raises(SourceLost, match=r"purged.*binlog_expire_logs_seconds"):
        it.read()


def test_a_place_that_is_no_event_is_lost(mysql_nogtid: MySQL, fresh_database: Any) -> None:
    database = fresh_database(mysql_nogtid)
    mysql_nogtid.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    at = here(mysql_nogtid)
    mysql_nogtid.execute(f"INSERT INTO {database}.a VALUES (1)")
    with stream(mysql_nogtid, [], replace(at, offset=at.offset + 7)) as it, pytest.raises(SourceLost, match=at.file):
        it.read()


def test_without_gtids_all_goes_by_file_and_offset(mysql_nogtid: MySQL, fresh_database: Any) -> None:
    database = fresh_database(mysql_nogtid)
    tables = busy(mysql_nogtid, database)
    begin = here(mysql_nogtid)
    write_busily(mysql_nogtid, database)
    end = here(mysql_nogtid)
    with stream(mysql_nogtid, tables, begin) as it:
        rows = it.drain(end)
    assert it.position.gtids == ""
    assert {row[GTID] for row in rows} == {None}
    with stream(mysql_nogtid, tables, begin) as cut:
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(cut.position):
            cut.read(until=high, max_rows=3)
            cut.cursor.close()
    assert cut.rows == rows
    with (
        stream(mysql_nogtid, tables, replace(begin, server="another")) as it,
        pytest.raises(SourceLost, match="server"),
    ):
        it.read()


def test_transactions_ahead_of_the_file_are_passed_over(mysql: MySQL, fresh_database: Any) -> None:
    database = fresh_database(mysql)
    mysql.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    mysql.execute(f"INSERT INTO {database}.a VALUES (1)")
    with connected(mysql) as (conn, server_info):
        latest = current_position(conn, server_info)
    assert latest.offset == 4
    mysql.execute(f"INSERT INTO {database}.a VALUES (2)")
    with stream(mysql, [f"{database}.a"], latest) as it:
        assert plain(it.drain(), "id") == [("+I", 2)]
    assert it.position.same_place(here(mysql))


def test_mariadb_starts_after_a_gtid(mariadb: MariaDB, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    mariadb.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)", f"INSERT INTO {database}.a VALUES (1)")
    at = here(mariadb)
    mariadb.execute(f"INSERT INTO {database}.a VALUES (2)")
    with connected(mariadb) as (conn, _):
        first = binlogs(conn)[0].file
    with stream(mariadb, [f"{database}.a"], replace(at, file=first, offset=4)) as it:
        assert plain(it.drain(), "id") == [("+I", 2)]
    assert it.position.same_place(here(mariadb))


def test_gtids_of_mariadb_that_go_backwards_are_taken_wherever_the_stream_is_cut(
    mariadb: MariaDB, fresh_database: Any
) -> None:
    """Numbers that two servers gave in one domain, as in a replica that was written to: not strict, and the default."""
    table = f"{fresh_database(mariadb)}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mariadb, [table]) as it:
        for key, (server, number) in enumerate([(71, 100), (72, 99), (71, 99), (72, 7), (71, 101)]):
            mariadb.execute(
                f"SET SESSION gtid_domain_id = 77, server_id = {server}, gtid_seq_no = {number}",
                f"INSERT INTO {table} VALUES ({key})",
            )
        end = here(mariadb)
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(it.position):
            it.read(until=high, max_rows=1)
            it.cursor.close()
        assert plain(it.rows, "id") == [("+I", key) for key in range(5)]
    assert it.position.gtids == end.gtids


def test_tagged_gtids_are_taken_and_resumed_after(mysql: MySQL, fresh_database: Any) -> None:
    database = fresh_database(mysql)
    mysql.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    with stream(mysql, [f"{database}.a"]) as it:
        mysql.execute("SET SESSION gtid_next = 'AUTOMATIC:blue'", f"INSERT INTO {database}.a VALUES (1)")
        mysql.execute(f"INSERT INTO {database}.a VALUES (2)")
        mysql.execute("SET SESSION gtid_next = 'AUTOMATIC:blue'", f"INSERT INTO {database}.a VALUES (3)")
        rows = it.drain()
        assert plain(rows, "id") == [("+I", 1), ("+I", 2), ("+I", 3)]
        assert ":blue:" in rows[0][GTID]
        assert abs(rows[0][TS].timestamp() - time.time()) < 60
        assert it.position.gtids == here(mysql).gtids


def test_a_commit_that_the_engine_still_holds_is_waited_for_and_not_lost(mysql: MySQL, fresh_database: Any) -> None:
    """1. A commit waits for a semi-synchronous replica that never answers; the dump has it already.
    2. A cursor that took it connects again, and is told to come later. 3. When the commit is through, it goes on.
    """
    database = fresh_database(mysql)
    table = f"{database}.a"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(mysql, [table]) as it, ThreadPoolExecutor() as aside, held_commits(mysql):
        held = aside.submit(mysql.execute, f"INSERT INTO {table} VALUES (1)")
        while not it.rows:
            it.read(wait_seconds=DEADLINE_SECONDS)
        assert mysql.execute(f"SELECT COUNT(*) FROM {table}")[0][0] == 0, "the commit was not held"
        it.cursor.close()
        with pytest.raises(Unavailable, match="has not committed all"):
            it.read()
        mysql.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        held.result(DEADLINE_SECONDS)
        mysql.execute(f"INSERT INTO {table} VALUES (2)")
        assert plain(it.drain(), "id") == [("+I", 1), ("+I", 2)]


@contextmanager
def held_commits(mysql: MySQL) -> Iterator[None]:
    """Every commit waits for a replica that isn't there, until semi-synchronous replication is turned off."""
    mysql.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    try:
        mysql.execute("SET GLOBAL rpl_semi_sync_source_timeout = 600000")
        mysql.execute("SET GLOBAL rpl_semi_sync_source_enabled = ON")
        yield
    finally:
        mysql.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        mysql.execute("UNINSTALL PLUGIN rpl_semi_sync_source")


def test_another_server_is_found_by_gtid_and_a_strange_one_is_lost(
    mysql: MySQL, fresh_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database(mysql)
    table = f"{database}.a"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    at = here(mysql)
    mysql.execute(
        f"INSERT INTO {table} VALUES (2)", "SET SESSION gtid_next = 'AUTOMATIC:red'", f"INSERT INTO {table} VALUES (3)"
    )
    end = here(mysql)
    # as if `at` came from another server with the same transactions
    with stream(mysql, [table], replace(at, server="another", file="other.000001", offset=99)) as it:
        it.read(until=end, wait_seconds=20)
        assert plain(it.rows, "id") == [("+I", 2), ("+I", 3)]
        assert it.position.file_position == end.file_position
        assert it.position.server == end.server
    # and after one with a tag
    with stream(mysql, [table], replace(end, server="another")) as it:
        mysql.execute(f"INSERT INTO {table} VALUES (4)")
        it.read(until=here(mysql), wait_seconds=20)
        assert plain(it.rows, "id") == [("+I", 4)]
    strange = replace(at, gtids="11111111-1111-1111-1111-111111111111:1-5")
    with stream(mysql, [], strange) as it:
        with pytest.raises(Unavailable, match="has not committed all"):
            it.read()
        monkeypatch.setattr(watermark, "COMMIT_SECONDS", 0.0)
        with pytest.raises(SourceLost, match="lacks transactions"):
            it.read()
    half = replace(at, server="another", rows=3)
    with stream(mysql, [], half) as it, pytest.raises(SourceLost, match="half taken"):
        it.read()


def test_two_cursors_with_one_server_id_are_told_and_do_not_fight_silently(mariadb: MariaDB) -> None:
    with stream(mariadb, []) as first, stream(mariadb, []) as second:
        first.read()
        second.read()
        with pytest.raises((Unavailable, SourceLost)):
            first.read(wait_seconds=5)


def test_a_missing_grant_is_a_fault_of_the_configuration(source: Database) -> None:
    source.execute("DROP USER IF EXISTS 'poor'@'%'", "CREATE USER 'poor'@'%' IDENTIFIED BY 'poor'")
    source.execute("GRANT SELECT ON *.* TO 'poor'@'%'")
    at = here(source)
    poor = Source(host=source.host, port=source.port, user="poor", password="poor")
    cursor = BinlogCursor(lambda: connect(poor), server_id=77009)
    with closing(cursor), pytest.raises(ConfigError, match="REPLICATION"):
        cursor.read(at, {}, until=None, max_rows=1, max_bytes=1, wait_seconds=3)
    source.execute("DROP USER 'poor'@'%'")


@pytest.mark.parametrize("flavour", [MySQL, MariaDB])
def test_a_binlog_is_read_from_its_first_byte(flavour: type[Database]) -> None:
    server = flavour()
    with started(server):
        server.execute("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)")
        low = here(server)
        server.execute("INSERT INTO d.a VALUES (1)")
        with connected(server) as (conn, server_info):
            first = first_position(conn, server_info)
        assert first.offset == 4
        with stream(server, [], first) as it:
            it.routes["d.a"] = route(server, "d.a", low)
            assert plain(it.drain(), "id") == [("+I", 1)]
            assert it.position.same_place(here(server))
            assert it.position.file_position == here(server).file_position


@pytest.mark.parametrize("change", ["UPDATE {} SET line = 'x' WHERE line = 'a'", "DELETE FROM {} WHERE line = 'a'"])
def test_a_table_without_a_key_is_followed_until_a_row_changes(source: Database, database: str, change: str) -> None:
    name, other = f"{database}.log", f"{database}.other"
    source.execute(f"CREATE TABLE {name} (line VARCHAR(9))", f"CREATE TABLE {other} (id INT PRIMARY KEY)")
    begin = here(source)
    source.execute(f"INSERT INTO {name} VALUES ('a'), ('a'), (NULL)", f"TRUNCATE {name}")
    source.execute(f"INSERT INTO {name} VALUES ('a')", f"INSERT INTO {other} VALUES (1)")
    with stream(source, (name, other), begin) as it:
        rows = it.drain()
        assert [(row[OP], row.get("line")) for row in rows if row[TABLE] == name] == [
            ("+I", "a"), ("+I", "a"), ("+I", None), ("t", None), ("+I", "a"),
        ]  # fmt: skip
        source.execute(f"INSERT INTO {name} VALUES ('b')", change.format(name), f"INSERT INTO {other} VALUES (2)")
        changes = it.cursor.read(it.position, it.routes, until=None, max_rows=100, max_bytes=1 << 20, wait_seconds=5.0)
    (fault,) = changes.faults
    assert (fault.table_id, type(fault)) == (name, TableUnreadable)
    assert f"{it.position.file}:" in str(fault.cause)
    assert "only its INSERTs" in str(fault.cause)
    assert {batch.table_id for batch in changes.batches} <= {other}
