"""The connections and dumps of chunks on real servers: kept from one to the next, and begun anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.errors import ConfigError, NextGeneration
from cutline.common.positions import High
from cutline.services.sources.contract import ChunkResult
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.chunk import Window, read_chunk
from cutline.services.sources.mysql.connection import Connection, ask
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.server import (
    Server,
    binlog_gtid_pos,
    current_position,
    flushed_position,
    identify,
    verify_position,
)
from tests.conftest import started
from tests.support.chunked_table import ChunkedTable, meanwhile, table
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.mesh import waited

__all__ = ["table"]  # the fixtures


# --- the connection between two chunks --------------------------------------------------------------------------------


class Keeping:
    """Reads one chunk of a table after another on a connection that is kept in between."""

    def __init__(self, chunked: ChunkedTable) -> None:
        self.chunked, self.server = chunked, chunked.server
        self.opened: list[int] = []
        self.here = True
        self.kept = KeptConnection(self._connect, lambda connection: self.here)

    def _connect(self) -> Connection:
        connection = self.chunked.connect()
        self.opened.append(connection.thread_id())
        return connection

    def read(self, **options: Any) -> list[Any]:
        options = {"mode": "replay"} | options
        *batches, end = read_chunk(self.kept, self.chunked.split(), **options)
        assert isinstance(end, ChunkResult)
        return [id for batch in batches for id in batch["id"].to_pylist()]

    def held(self) -> set[int]:
        """Those of its connections that the server has still."""
        found = self.server.execute("SELECT ID FROM information_schema.PROCESSLIST")
        return {int(number) for (number,) in found} & set(self.opened)

    def closed(self) -> bool:
        """Whether the server soon has none of them."""
        deadline = time.monotonic() + 60
        while self.held() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.held()


@pytest.fixture
def keeping(table: Callable[..., ChunkedTable]) -> Iterator[Keeping]:
    found = Keeping(table("id INT PRIMARY KEY, v INT", "(1, 0), (2, 0), (3, 0)"))
    with closing(found.kept):
        yield found


def test_chunks_are_read_one_after_another_on_one_connection_on_which_nothing_stays_open(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of one of them turn out too wide when all have come, so that it is not cut."""
    prepared = "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'"
    before = keeping.server.execute(prepared)
    for number in range(4, 8):
        if number == 6:
            monkeypatch.setattr(chunk, "MAX_CHUNK_BYTES", 0)
        keeping.server.execute(f"INSERT INTO {keeping.chunked.table_id} VALUES ({number}, 0)")
        assert keeping.read() == list(range(1, number + 1))
        assert keeping.server.execute(prepared) == before
        listed = f"SELECT COMMAND FROM information_schema.PROCESSLIST WHERE ID = {keeping.opened[0]}"
        # The server may set it only after its answer has arrived.
        waited(lambda listed=listed: keeping.server.scalar(listed) == "Sleep", "a connection at rest", 5)
        open_ones = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = "
        assert keeping.server.scalar(f"{open_ones}{keeping.opened[0]}") == 0
        keeping.server.execute(f"ALTER TABLE {keeping.chunked.table_id} COMMENT 'an ALTER waits for nothing {number}'")
    assert len(keeping.opened) == 1


def test_the_limits_of_the_chunk_before_do_not_hold_for_the_next(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Any] = []
    known = "SELECT @@net_write_timeout /*!80000 , @@max_execution_time */ /*M! , @@max_statement_time */"

    def noted(conn: Connection) -> Server:
        limits.append(ask(conn, known))
        return identify(conn)

    monkeypatch.setattr(chunk, "identify", noted)
    for _ in range(2):
        keeping.read(seconds=7.0)
    assert len(keeping.opened) == 1
    assert limits[0] == limits[1]


def test_a_kept_connection_that_the_server_has_ended_is_replaced_and_the_chunk_does_not_fail(keeping: Keeping) -> None:
    keeping.read()
    keeping.server.execute(f"KILL {keeping.opened[0]}")
    assert keeping.read() == [1, 2, 3]
    assert len(keeping.opened) == 2


def test_a_kept_connection_is_closed_after_a_while_and_where_the_pipeline_goes_to_another_server(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping.read()
    keeping.kept.rest()
    assert not keeping.kept.due
    assert keeping.read() == [1, 2, 3]
    assert len(keeping.opened) == 1
    keeping.here = False
    keeping.read()
    assert len(keeping.opened) == 2
    assert keeping.held() == {keeping.opened[1]} or keeping.held() == set(keeping.opened)  # the server may be slow
    monkeypatch.setattr("cutline.services.sources.mysql.kept.KEPT_SECONDS", 0.0)
    assert keeping.kept.due
    keeping.kept.rest()
    assert keeping.closed()
    keeping.here = True
    assert keeping.read() == [1, 2, 3]
    assert len(keeping.opened) == 3
    assert keeping.read() == [1, 2, 3]  # it was kept for too long, and nobody had closed it yet
    assert len(keeping.opened) == 4


def test_a_chunk_that_fails_or_is_cut_leaves_no_connection_in_an_unknown_state(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping.read()
    keeping.server.execute(f"ALTER TABLE {keeping.chunked.table_id} ADD COLUMN w INT")
    with pytest.raises(NextGeneration):
        keeping.read()
    assert keeping.closed()
    keeping.chunked = ChunkedTable(keeping.server, keeping.chunked.table_id)
    reading = read_chunk(keeping.kept, keeping.chunked.split(), mode="replay", batch_bytes=1)
    next(reading)
    reading.close()
    assert keeping.closed()
    assert keeping.read() == [1, 2, 3]
    monkeypatch.setattr(chunk, "MAX_CHUNK_BYTES", 0)
    monkeypatch.setattr("cutline.services.sources.mysql.connection._BLOCK_BYTES", 1)
    assert keeping.read(batch_bytes=1) == [1]
    monkeypatch.undo()
    assert keeping.read() == [1, 2, 3]
    assert len(keeping.held()) == 1


class Dumps:
    """A window, and how many connections it has opened."""

    def __init__(self, chunked: ChunkedTable) -> None:
        self.opened: list[int] = []
        self.server = chunked.server

        def connect() -> Connection:
            connection = chunked.connect()
            self.opened.append(connection.thread_id())
            return connection

        self.window = Window(BinlogCursor(connect, server_id=424_242))

    def held(self) -> set[int]:
        """Those of its connections that the server has still; it notices an end when it sends the next heartbeat."""
        dumps = self.server.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'")
        return {int(number) for (number,) in dumps} & set(self.opened)


@pytest.fixture
def two_tables(mysql: MySQL, fresh_database: Callable[[Database], str]) -> tuple[ChunkedTable, str]:
    """A table of twelve rows, and the name of another one."""
    name = fresh_database(mysql)
    rows = ", ".join(f"({number}, 0)" for number in range(1, 13))
    mysql.execute(
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {name}.t VALUES {rows}",
        f"CREATE TABLE {name}.other (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {name}.other VALUES (1, 0)",
    )
    return ChunkedTable(mysql, f"{name}.t"), f"{name}.other"


def test_exact_chunks_one_after_another_read_the_binlog_by_one_dump(
    two_tables: tuple[ChunkedTable, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Rows of each chunk change within it, after its SELECT, and those of all chunks between two chunks.
    2. Between chunks there is DDL of another table, and of the same, which then is read on with its new schema.
    Each chunk is as of its own high, and all have been read by one dump.
    """
    chunked, other = two_tables
    t, server = chunked.table_id, chunked.server
    between = [
        [f"ALTER TABLE {other} ADD COLUMN w INT", f"UPDATE {other} SET w = 1", f"TRUNCATE {other}"],
        [f"UPDATE {t} SET v = v + 1", f"ALTER TABLE {t} ADD COLUMN w INT, ADD COLUMN u INT FIRST"],
        [f"UPDATE {t} SET w = v", f"TRUNCATE {t}", f"INSERT INTO {t} (id, v, w) VALUES (10, 1, 1), (11, 1, 1)"],
        ["DO 0"],
    ]
    bounds = (1, 4, 7, 10, 13)
    dumps = Dumps(chunked)
    with closing(dumps.window):
        for start, end, later in zip(bounds[:-1], bounds[1:], between, strict=True):
            changes = (
                f"UPDATE {t} SET v = v + 10 WHERE id <> {start}",
                f"INSERT INTO {other} (id) VALUES ({start + 100})",
                f"REPLACE INTO {t} (id, v) VALUES ({start}, 5)",
                f"DELETE FROM {t} WHERE id = {start + 1}",
            )
            split = ChunkedTable(server, t).split((str(start),), (str(end),))
            with meanwhile(monkeypatch, "_high", partial(server.execute, *changes), after=False):
                rows, _ = ChunkedTable(server, t).read(split, "exact", window=dumps.window)
            expected = server.execute(f"SELECT id, v FROM {t} WHERE id >= {start} AND id < {end} ORDER BY id")
            assert sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == list(expected)
            server.execute(*later)
        assert len(dumps.opened) == 1
        assert dumps.held() == set(dumps.opened)


def test_a_dump_that_is_ahead_of_a_chunks_low_or_failed_or_was_closed_begins_anew(
    two_tables: tuple[ChunkedTable, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Two windows with the same low have the same changes, though the first has read past that low.
    2. After a DDL in a window, 3. and after a rest, the next chunk has its changes too, by another dump.
    """
    chunked, _ = two_tables
    dumps = Dumps(chunked)
    change = f"UPDATE {chunked.table_id} SET v = v + 1"
    with closing(dumps.window):
        low = chunked.read()[1].low
        chunked.server.execute(change)
        high = chunked.read()[1].high
        found = [dumps.window.changes(chunked.split(), low, high) for _ in range(2)]
        assert [table.num_rows for table in found] == [12, 12]
        assert len(dumps.opened) == 2

        def read(statement: str) -> pa.Table:
            with meanwhile(monkeypatch, "_high", lambda: chunked.server.execute(statement), after=False):
                return chunked.read(mode="exact", window=dumps.window)[0]

        assert set(read(change)["v"].to_pylist()) == {2}
        assert len(dumps.opened) == 2
        with pytest.raises(NextGeneration):
            read(f"ALTER TABLE {chunked.table_id} MODIFY v BIGINT")
        chunked = ChunkedTable(chunked.server, chunked.table_id)
        assert set(read(change)["v"].to_pylist()) == {3}
        assert len(dumps.opened) == 3
        dumps.window.rest()
        assert set(read(change)["v"].to_pylist()) == {4}
        assert len(dumps.opened) == 3
        monkeypatch.setattr(chunk, "WINDOW_IDLE_SECONDS", 0.0)
        dumps.window.rest()
        deadline = time.monotonic() + 60
        while dumps.held():
            assert time.monotonic() < deadline
        assert set(read(change)["v"].to_pylist()) == {5}
        assert len(dumps.opened) == 4


def test_a_chunk_is_exact_on_a_server_that_has_executed_no_gtid_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MySQL()
    with started(server):
        server.execute(
            "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)", "INSERT INTO d.t VALUES (1, 1)"
        )
        server.execute("RESET BINARY LOGS AND GTIDS")
        chunked = ChunkedTable(server, "d.t")
        with meanwhile(monkeypatch, "_high", lambda: server.execute("UPDATE d.t SET v = 2"), after=False):
            table, end = chunked.read(mode="exact")
        assert end.low.gtids == ""
        assert table["v"].to_pylist() == [2]


def test_exact_is_refused_on_mysql_without_gtids(
    mysql_nogtid: MySQL, fresh_database: Callable[[Database], str]
) -> None:
    name = fresh_database(mysql_nogtid)
    mysql_nogtid.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    with pytest.raises(ConfigError, match="needs GTIDs"):
        ChunkedTable(mysql_nogtid, f"{name}.t").read(mode="exact")


def test_a_cursor_from_a_chunks_low_on_mariadb_knows_all_gtid_domains(
    mariadb: MariaDB, fresh_database: Callable[[Database], str]
) -> None:
    name = fresh_database(mariadb)
    insert = f"INSERT INTO {name}.t VALUES "
    mariadb.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", "SET gtid_domain_id = 7", insert + "(1)")
    chunked = ChunkedTable(mariadb, f"{name}.t")
    low = chunked.read()[1].low
    mariadb.execute(insert + "(2)")
    with closing(chunked.connect()) as conn, closing(chunked.cursor()) as cursor:
        server_info = identify(conn)
        at = flushed_position(conn, server_info)
        end = High(server=server_info.identity, file=at.file, offset=at.offset)
        got = cursor.read(low.start(), {}, until=end, max_rows=9, max_bytes=1 << 20, wait_seconds=30.0)
        assert got.position.file_position == at
        assert "7-" in got.position.gtids
        assert got.position.gtids == binlog_gtid_pos(conn, at)
        verify_position(conn, server_info, got.position)
        mariadb.execute("FLUSH BINARY LOGS")
        verify_position(conn, server_info, current_position(conn, server_info))
        verify_position(conn, server_info, got.position)
