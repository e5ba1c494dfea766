"""The binlog cursor on real servers: a dump gives what was done, wherever it is cut, and nothing goes by unsaid."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pymysql
import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from cutline.common.errors import ConfigError, SourceLost, Unavailable
from cutline.common.mesh.messages import CompletedSplit
from cutline.common.positions import High, Low, Position
from cutline.common.schema import FILE, GTID, OP, POS, ROW, SEQ, TABLE, TS
from cutline.services.sources.contract import GenerationEnded, Route, TableUnreadable
from cutline.services.sources.mysql import watermark
from cutline.services.sources.mysql.binlog import dump
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.server import (
    binlogs,
    current_position,
    first_position,
)
from tests.conftest import started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import by_tls, connected, here, prepare
from tests.support.streams import DEADLINE_SECONDS, FollowingCursor, route, stream, transaction


def plain(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [(row[OP], *(row[name] for name in names)) for row in rows]


def test_rows_of_before_an_alter_that_a_low_without_gtids_does_not_cover_have_their_table_read_again(
    mysql_nogtid: MySQL,
) -> None:
    """The catalogue shows the column's new type, its old rows still come: the table is not at fault."""
    database = "early_low"
    table = f"{database}.t"
    mysql_nogtid.execute(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v DECIMAL(10,2))",
    )
    low = here(mysql_nogtid)
    mysql_nogtid.execute(f"INSERT INTO {table} VALUES (1, 1.25)", f"ALTER TABLE {table} MODIFY v DECIMAL(12,3)")
    early = route(mysql_nogtid, table, low, high=here(mysql_nogtid))
    with closing(FollowingCursor(mysql_nogtid, low, {table: early})) as reading:
        reading.drain()
    assert [type(fault) for fault in reading.faults] == [GenerationEnded]


def test_changes_stay_in_order_where_an_alter_changes_the_table_map_and_not_the_columns(
    source: Database, database: str
) -> None:
    """A column's collation goes there and back, in one read; the rows between have a decoder of their own."""
    table = f"{database}.t"
    modify = f"ALTER TABLE {table} MODIFY v VARCHAR(20) CHARACTER SET utf8mb4 COLLATE"
    source.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)"
    )
    with stream(source, [table]) as reading:
        source.execute(
            f"INSERT INTO {table} VALUES (1, 'a')",
            f"{modify} utf8mb4_general_ci",
            f"INSERT INTO {table} VALUES (2, 'b')",
            f"{modify} utf8mb4_bin",
            f"INSERT INTO {table} VALUES (3, 'c')",
            f"TRUNCATE TABLE {table}",
            f"INSERT INTO {table} VALUES (4, 'd')",
        )
        rows = reading.drain()
        assert reading.faults == []
        assert plain(rows, "id") == [("+I", 1), ("+I", 2), ("+I", 3), ("t", None), ("+I", 4)]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_each_kind_of_change_comes_in_order_and_a_changed_key_is_a_delete_and_an_insert(
    source: Database, database: str
) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY, v VARCHAR(9))")
    with stream(source, [f"{database}.a"]) as it:
        source.execute(
            f"INSERT INTO {database}.a VALUES (1, 'x'), (2, 'y')",
            f"UPDATE {database}.a SET v = 'z' WHERE id = 2",
            f"UPDATE {database}.a SET id = 20 WHERE id = 2",
            f"DELETE FROM {database}.a WHERE id = 1",
        )
        rows = it.drain()
    assert plain(rows, "id", "v") == [
        ("+I", 1, "x"),
        ("+I", 2, "y"),
        ("+U", 2, "z"),
        ("-D", 2, "z"),
        ("+I", 20, "z"),
        ("-D", 1, "x"),
    ]
    assert [row[ROW] for row in rows] == [0, 1, 0, 0, 0, 0]
    assert [row[TABLE] for row in rows] == [f"{database}.a"] * 6
    assert len({row[GTID] for row in rows}) == 4
    assert all(abs(row[TS].timestamp() - time.time()) < 60 for row in rows)


def test_a_transaction_over_several_tables_keeps_its_order_and_skips_what_nobody_asked_for(
    source: Database, database: str
) -> None:
    for name in "abc":
        source.execute(f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY, v INT)")
    with stream(source, [f"{database}.a", f"{database}.b"]) as it:
        transaction(
            source,
            *(f"INSERT INTO {database}.{name} VALUES ({i}, {i})" for i in range(4) for name in "abc"),
            f"UPDATE {database}.b SET v = v + 1",
        )
        rows = it.drain()
    assert [(row[TABLE][-1], row["id"], row["v"]) for row in rows] == [
        *((name, i, i) for i in range(4) for name in "ab"),
        *(("b", i, i + 1) for i in range(4)),
    ]
    assert len({row[GTID] for row in rows}) == 1


def test_row_events_of_tables_nobody_asked_for_are_not_looked_into(source: Database, database: str) -> None:
    """Images that no decoder may take cost nothing there: columns are missing, and megabytes don't count."""
    for name in ("a", "other"):
        source.execute(f"CREATE TABLE {database}.{name} (id INT PRIMARY KEY, v LONGTEXT)")
    with stream(source, [f"{database}.a"]) as it:
        transaction(
            source,
            f"INSERT INTO {database}.other VALUES (1, REPEAT('x', 3000000)), (2, 'y')",
            "SET SESSION binlog_row_image = 'MINIMAL'",
            f"UPDATE {database}.other SET v = 'z'",
            f"DELETE FROM {database}.other",
            f"INSERT INTO {database}.a VALUES (1, 'kept')",
        )
        rows = it.drain(max_bytes=100_000)
        assert not it.faults
        assert {table_id for table_id, *_ in it.cursor._stream.routes._decoders} == {f"{database}.a"}
    assert plain(rows, "id", "v") == [("+I", 1, "kept")]


def busy(server: Database, database: str) -> list[str]:
    """A history with what matters to a cut: many rows an event, several tables, key changes, foreign events between."""
    server.execute(
        f"CREATE TABLE {database}.a (id INT PRIMARY KEY, v VARCHAR(200))",
        f"CREATE TABLE {database}.b (x INT, y INT, v TEXT, PRIMARY KEY (x, y))",
        f"CREATE TABLE {database}.other (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    )
    return [f"{database}.a", f"{database}.b"]


def write_busily(server: Database, database: str) -> None:
    many = ", ".join(f"({i}, REPEAT('{i % 10}', 150))" for i in range(60))
    transaction(
        server,
        f"INSERT INTO {database}.other (v) VALUES (1), (2), (3)",
        f"INSERT INTO {database}.a VALUES {many}",
        f"INSERT INTO {database}.other (v) SELECT v FROM {database}.other",
        f"INSERT INTO {database}.b VALUES (1, 1, 'one'), (1, 2, 'two')",
        f"UPDATE {database}.a SET id = id + 1000 WHERE id BETWEEN 10 AND 14",
    )
    server.execute(f"INSERT INTO {database}.other (v) VALUES (9)")
    transaction(server, f"UPDATE {database}.b SET y = y + 5", f"DELETE FROM {database}.a WHERE id BETWEEN 20 AND 31")
    server.execute("FLUSH BINARY LOGS", f"UPDATE {database}.a SET v = 'end' WHERE id < 7")


def test_a_stream_cut_at_every_row_and_resumed_by_a_new_cursor_is_the_whole_stream(
    source: Database, database: str
) -> None:
    tables = busy(source, database)
    begin = here(source)
    write_busily(source, database)
    end = here(source)
    with stream(source, tables, begin) as whole:
        expected = whole.drain(end)
    assert len(expected) > 80
    with stream(source, tables, begin) as resumed:
        resumed.routes = {table: route(source, table) for table in tables}
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(resumed.position):
            resumed.read(until=high, max_rows=1)
            resumed.position = Position.from_json(resumed.position.to_json())
            resumed.cursor.close()
        inside = [position for position in resumed.positions if position.inside]
    assert resumed.rows == expected
    assert len(inside) > 70
    assert len(set(inside)) == len(inside)


def test_a_stream_cut_at_every_row_and_gone_on_with_is_the_whole_stream(source: Database, database: str) -> None:
    tables = busy(source, database)
    begin = here(source)
    write_busily(source, database)
    end = here(source)
    with stream(source, tables, begin) as whole:
        expected = whole.drain(end)
    for size in (1, 2, 7):
        with stream(source, tables, begin) as cut:
            assert cut.drain(end, max_rows=size) == expected
    with stream(source, tables, begin) as small:
        assert small.drain(end, max_bytes=1) == expected


def test_at_boundary_goes_on_to_the_end_of_a_transaction_up_to_eight_times_the_limit(
    source: Database, database: str
) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    with stream(source, [f"{database}.a"]) as it:
        source.execute(f"INSERT INTO {database}.a VALUES {', '.join(f'({i})' for i in range(100))}")
        assert it.read(max_rows=20).position.inside
        changes = it.read(max_rows=20, at_boundary=True)
        assert not changes.position.inside
        assert changes.rows == 80
        source.execute(f"INSERT INTO {database}.a VALUES {', '.join(f'({i})' for i in range(100, 300))}")
        changes = it.read(max_rows=20, at_boundary=True)
        assert changes.position.inside
        assert changes.rows == 160


def test_a_position_inside_a_transaction_holds_though_a_table_of_it_is_no_longer_routed(
    source: Database, database: str
) -> None:
    tables = busy(source, database)
    begin = here(source)
    write_busily(source, database)
    end = here(source)
    with stream(source, tables[:1], begin) as alone:
        expected = [(row[OP], row["id"], row["v"]) for row in alone.drain(end)]
    for cut in (1, 50, 61, 62, 63, 65):
        with stream(source, tables, begin) as it:
            it.read(max_rows=cut)
            assert it.position.inside
            it.cursor.close()
            it.routes = {tables[0]: route(source, tables[0])}
            it.drain(end)
            got = [(row[OP], row["id"], row["v"]) for row in it.rows if row[TABLE] == tables[0]]
            assert got == expected


def test_until_a_position_stops_just_there_and_two_cursors_meet(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    begin = here(source)
    for i in range(10):
        source.execute(f"INSERT INTO {database}.a VALUES ({i})")
    middle = here(source)
    for i in range(10, 20):
        source.execute(f"INSERT INTO {database}.a VALUES ({i})")
    with stream(source, [f"{database}.a"], begin) as it:
        changes = it.read(until=middle, wait_seconds=20)
        assert changes.position.same_place(middle)
        assert changes.rows == 10
        assert it.read(until=middle, wait_seconds=20).rows == 0
        assert it.read(until=High(server=middle.server, file=middle.file, offset=middle.offset + 1)).rows == 1


def test_what_a_low_covers_is_skipped_and_the_rest_comes(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)", f"CREATE TABLE {database}.b (id INT PRIMARY KEY)")
    begin = here(source)
    for i in range(5):
        transaction(source, f"INSERT INTO {database}.a VALUES ({i})", f"INSERT INTO {database}.b VALUES ({i})")
    low = here(source)
    for i in range(5, 9):
        transaction(source, f"INSERT INTO {database}.a VALUES ({i})", f"INSERT INTO {database}.b VALUES ({i})")
    with stream(source, [f"{database}.b"], begin) as it:
        it.routes[f"{database}.a"] = route(source, f"{database}.a", low)
        rows = it.drain()
    assert [row["id"] for row in rows if row[TABLE].endswith(".a")] == [5, 6, 7, 8]
    assert [row["id"] for row in rows if row[TABLE].endswith(".b")] == list(range(9))


def test_in_exact_a_change_comes_if_it_is_past_the_high_of_its_key_s_chunk(source: Database, database: str) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)")
    low = here(source)
    source.execute(f"INSERT INTO {table} VALUES ('a', 1), ('Z', 1)")
    first = here(source)
    source.execute(f"UPDATE {table} SET v = 2", f"UPDATE {table} SET id = 'N' WHERE id = 'a'")
    second = here(source)
    source.execute(f"UPDATE {table} SET v = 3")
    with stream(source, [], low) as it:
        changes = it.cursor.read(
            low, {table: in_two_chunks(source, table, low, first, second)}, until=High(**_end(source)), max_rows=99,
            max_bytes=9999, wait_seconds=20,
        )  # fmt: skip
        (batch,) = changes.batches
    # the first chunk is as of `first`, the second as of `second`
    assert plain(batch.batch.to_pylist(), "id", "v") == [("+U", "a", 2), ("-D", "a", 2), ("+U", "N", 3), ("+U", "Z", 3)]


def in_two_chunks(server: Database, table: str, low: Position, first: Position, second: Position) -> Route:
    """A route in `exact`, with one chunk before m, as of `first`, and one from there on, as of `second`."""
    plain_route = route(server, table, low, high=second)
    highs = [High(server=at.server, file=at.file, offset=at.offset) for at in (first, second)]
    splits = [
        CompletedSplit(split_start=None, split_end=("m",), high=highs[0]),
        CompletedSplit(split_start=("m",), split_end=None, high=highs[1]),
    ]
    return replace(plain_route, splits=tuple(splits))


@pytest.mark.parametrize(
    "gone",
    [
        "DROP TABLE {t}",
        "ALTER TABLE {t} RENAME COLUMN id TO other",
        "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE {t} MODIFY id VARBINARY(9)",
    ],
)
def test_in_exact_a_table_whose_key_of_text_is_no_more_starts_its_next_generation(
    source: Database, database: str, gone: str
) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id VARCHAR(9) CHARACTER SET utf8mb4 PRIMARY KEY, v INT)")
    low = here(source)
    source.execute(f"INSERT INTO {table} VALUES ('a', 1), ('z', 1)")
    first = here(source)
    source.execute(f"UPDATE {table} SET v = 2")
    with stream(source, [], low) as it:
        it.routes = {table: in_two_chunks(source, table, low, first, here(source))}
        source.execute(gone.format(t=table))
        assert it.drain() == []
    assert [(fault.table_id, type(fault)) for fault in it.faults] == [(table, GenerationEnded)]


def _end(server: Database) -> dict[str, Any]:
    end = here(server)
    return {"server": end.server, "file": end.file, "offset": end.offset}


def test_idle_is_said_and_the_source_time_follows_the_heartbeat(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)")
    with stream(source, [f"{database}.a"]) as it:
        source.execute(f"INSERT INTO {database}.a VALUES (1)")
        began = time.time()
        changes = it.read(wait_seconds=2.5)
        assert changes.idle
        assert changes.source_time is not None
        assert changes.source_time > began + 0.5


def test_a_reader_whose_host_vanished_holds_up_no_other_with_its_server_id(
    source: Database, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A dump hangs in a write, since nobody takes its bytes and nobody ends its connection. 2. The server ends it in
    the time that was set, and the dump that follows goes on."""
    monkeypatch.setattr(dump, "UNREAD_SECONDS", 3)
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a LONGTEXT)")
    with stream(source, [f"{database}.t"]) as it, connected(source) as (vanished, server_info):
        at = it.position
        source.execute(*(f"INSERT INTO {database}.t VALUES ({n}, REPEAT('x', 8000000))" for n in range(4)))
        vanished._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # type: ignore[attr-defined]
        dump.greet(vanished, server_info, it.server_id, 1.0, None)
        dump.request_dump(vanished, it.server_id, at.file, at.offset)
        hangs = f"SELECT command FROM information_schema.processlist WHERE id = {vanished.thread_id()}"
        time.sleep(0.5)
        begun = time.monotonic()
        it.drain(here(source))
        assert len(it.rows) == 4
        while source.execute(hangs):
            assert time.monotonic() - begun < 10
            time.sleep(0.1)


def test_the_position_moves_on_with_foreign_tables_and_files(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)", f"CREATE TABLE {database}.b (id INT PRIMARY KEY)")
    with stream(source, [f"{database}.a"]) as it:
        source.execute(
            f"INSERT INTO {database}.b VALUES (1)", "FLUSH BINARY LOGS", f"INSERT INTO {database}.b VALUES (2)"
        )
        end = here(source)
        it.drain(end)
        assert it.position.same_place(end)
        assert it.position.file_position == end.file_position
        source.execute("FLUSH BINARY LOGS")
        it.drain()
    assert it.rows == []


@contextmanager
def switched(server: Database, variable: str, value: object) -> Iterator[bool]:
    """A global variable has another value for a while, if the server knows it: whether it does."""
    before = [row[1] for row in server.execute(f"SHOW GLOBAL VARIABLES LIKE '{variable}'")]
    if before:
        server.execute(f"SET GLOBAL {variable} = {value}")
    try:
        yield bool(before)
    finally:
        for old in before:
            server.execute(f"SET GLOBAL {variable} = {old}")


def event_starts(server: Database, begin: Position, end: Position) -> set[tuple[str, int]]:
    """Where the row events of these two files begin, from that place on; by nothing but their sizes."""
    assert server.folder is not None
    found = set()
    for file in {begin.file, end.file}:
        data, at = (server.folder / "data" / file).read_bytes(), 4
        while at < len(data):
            if data[at + 4] in (23, 24, 25, 30, 31, 32) and (begin.file, begin.offset) <= (file, at):
                found.add((file, at))
            at += int.from_bytes(data[at + 9 : at + 13], "little")
    return found


@pytest.mark.parametrize("states_ends", [False, True])
def test_a_row_has_the_offset_at_which_its_event_begins_in_the_file(
    source: Database, database: str, states_ends: bool
) -> None:
    """Whether or not the events state where they end; MariaDB from 11.8 on can be told which while it runs."""
    tables = busy(source, database)
    begin = here(source)
    with switched(source, "binlog_legacy_event_pos", states_ends):
        write_busily(source, database)
    end = here(source)
    with stream(source, [*tables, f"{database}.other"], begin) as it:
        rows = it.drain(end)
    places = {(row[FILE], row[POS]) for row in rows}
    assert places == event_starts(source, begin, end)
    assert len(places) == 10


def test_a_transaction_that_becomes_a_binlog_file_of_its_own_is_read_at_every_cut(
    mariadb: MariaDB, fresh_database: Any
) -> None:
    """MariaDB from 11.7 on commits a large transaction by renaming the file that it was collected in."""
    database = fresh_database(mariadb)
    tables = busy(mariadb, database)
    begin = here(mariadb)
    with switched(mariadb, "binlog_large_commit_threshold", 10 << 20) as renames:
        transaction(
            mariadb,
            f"INSERT INTO {database}.a VALUES (1, 'before')",
            f"INSERT INTO {database}.b SELECT seq, seq, REPEAT('x', 1000) FROM {database}.seq_100_to_12000",
            f"UPDATE {database}.a SET v = 'after'",
        )
        mariadb.execute(f"INSERT INTO {database}.a VALUES (2, 'the next one')")
    end = here(mariadb)
    assert (end.file != begin.file) == renames
    with stream(mariadb, tables, begin) as it:
        rows = it.drain(end)
    (first, *many, last, next_one) = rows
    assert plain([first, last, next_one], "id", "v") == [
        ("+I", 1, "before"),
        ("+U", 1, "after"),
        ("+I", 2, "the next one"),
    ]
    assert plain(many, "x") == [("+I", number) for number in range(100, 12001)]
    assert {(row[FILE], row[POS]) for row in rows} == event_starts(mariadb, begin, end)
    with stream(mariadb, tables, begin) as cut:
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(cut.position):
            cut.read(until=high, max_rows=1700)
            cut.cursor.close()
    assert cut.rows == rows


def test_over_tls_the_changes_are_the_same(source: Database, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = busy(source, database)
    begin = here(source)
    write_busily(source, database)
    end = here(source)
    with stream(source, tables, begin) as it:
        rows = it.drain(end)
    by_tls(source, monkeypatch)
    with stream(source, tables, begin) as it:
        assert it.drain(end) == rows


# --- against another reader -------------------------------------------------------------------------------------------


def test_mysql_replication_reads_the_same_changes(source: Database, database: str) -> None:
    tables = busy(source, database)
    begin = here(source)
    write_busily(source, database)
    end = here(source)
    with stream(source, tables, begin) as it:
        it.drain(end)
    ours = [(row[TABLE], row[OP], *_key(row)) for row in it.rows]
    theirs = []
    reader = BinLogStreamReader(
        connection_settings={"host": source.host, "port": source.port, "user": "root", "passwd": ""},
        server_id=77003,
        log_file=begin.file,
        log_pos=begin.offset,
        resume_stream=True,
        blocking=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[database],
    )
    with closing(reader):
        for event in reader:
            table = f"{event.schema}.{event.table}"
            if table not in tables:
                continue
            for row in event.rows:
                if isinstance(event, WriteRowsEvent):
                    theirs.append((table, "+I", *_key(row["values"])))
                elif isinstance(event, DeleteRowsEvent):
                    theirs.append((table, "-D", *_key(row["values"])))
                elif _key(row["before_values"]) == _key(row["after_values"]):
                    theirs.append((table, "+U", *_key(row["after_values"])))
                else:
                    theirs.append((table, "-D", *_key(row["before_values"])))
                    theirs.append((table, "+I", *_key(row["after_values"])))
    assert ours == theirs


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["id"],) if "id" in row else (row["x"], row["y"])


# --- the server's ways of writing -------------------------------------------------------------------------------------


def test_with_and_without_checksums_it_is_the_same(source: Database, database: str) -> None:
    tables = busy(source, database)
    begin = here(source)
    source.execute("SET GLOBAL binlog_checksum = NONE")
    try:
        write_busily(source, database)
        source.execute("SET GLOBAL binlog_checksum = CRC32", f"DELETE FROM {database}.b")
    finally:
        source.execute("SET GLOBAL binlog_checksum = CRC32")
    end = here(source)
    with stream(source, tables, begin) as it:
        rows = it.drain(end)
    assert plain(rows[-2:], "y") == [("-D", 6), ("-D", 7)]
    assert len(rows) > 80
    with stream(source, tables, begin) as cut:
        assert cut.drain(end, max_rows=3) == rows


def test_checksums_that_are_changed_and_files_that_end_while_it_reads_are_followed(
    source: Database, database: str
) -> None:
    table = f"{database}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    try:
        with stream(source, [table]) as it:
            for number, checksum in enumerate(("NONE", "CRC32", "NONE", "CRC32")):
                source.execute(f"INSERT INTO {table} VALUES ({2 * number})")
                it.drain()
                source.execute(
                    f"SET GLOBAL binlog_checksum = {checksum}", "FLUSH BINARY LOGS",
                    f"INSERT INTO {table} VALUES ({2 * number + 1})",
                )  # fmt: skip
            rows = it.drain()
    finally:
        source.execute("SET GLOBAL binlog_checksum = CRC32")
    assert plain(rows, "id") == [("+I", number) for number in range(8)]


def test_compressed_transactions_of_mysql_are_read_at_every_cut(mysql: MySQL, fresh_database: Any) -> None:
    database = fresh_database(mysql)
    tables = busy(mysql, database)
    begin = here(mysql)
    mysql.execute("SET GLOBAL binlog_transaction_compression = ON")
    try:
        write_busily(mysql, database)
    finally:
        mysql.execute("SET GLOBAL binlog_transaction_compression = OFF")
    mysql.execute(f"DELETE FROM {database}.b")
    end = here(mysql)
    with stream(mysql, tables, begin) as it:
        rows = it.drain(end)
    assert len(rows) > 80
    assert plain(rows[-2:], "y") == [("-D", 6), ("-D", 7)]
    assert len({row[POS] for row in rows}) == 4
    with stream(mysql, tables, begin) as cut:
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(cut.position):
            cut.read(until=high, max_rows=1)
            cut.cursor.close()
    assert cut.rows == rows


def test_a_large_compressed_transaction_waits_in_a_file(mysql: MySQL, fresh_database: Any) -> None:
    table = f"{fresh_database(mysql)}.a"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v LONGBLOB)")
    blobs = [random.Random(i).randbytes(2 << 20) for i in range(10)]
    with stream(mysql, [table]) as it:
        with closing(mysql.connect(autocommit=False)) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
            for i, blob in enumerate(blobs):
                cursor.execute(f"INSERT INTO {table} VALUES (%s, %s)", (i, blob))
            conn.commit()
        mysql.execute(f"DELETE FROM {table} WHERE id = 3")
        rows = it.drain(max_bytes=5 << 20)
    assert [row["id"] for row in rows] == [*range(10), 3]
    assert [row["v"] for row in rows[:10]] == blobs
    assert len({row[POS] for row in rows}) == 2


def test_compressed_events_of_mariadb_are_read_at_every_cut(mariadb: MariaDB, fresh_database: Any) -> None:
    database = fresh_database(mariadb)
    tables = busy(mariadb, database)
    begin = here(mariadb)
    mariadb.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        write_busily(mariadb, database)
        mariadb.execute(f"ALTER TABLE {database}.a ADD COLUMN added_by_a_long_and_compressed_statement INT NULL")
        mariadb.execute(f"DELETE FROM {database}.b")
    finally:
        mariadb.execute("SET GLOBAL log_bin_compress = OFF")
    end = here(mariadb)
    with stream(mariadb, tables, begin) as it:
        it.routes[tables[0]] = replace(it.routes[tables[0]], schema=_without_last(it.routes[tables[0]].schema))
        before = dict(it.routes)
        rows = it.drain(end)
        assert len(it.schemas) == 1
    assert len(rows) > 80
    with stream(mariadb, tables, begin) as cut:
        cut.routes = before
        high = High(server=end.server, file=end.file, offset=end.offset)
        while not high.reached_by(cut.position):
            cut.read(until=high, max_rows=1)
            cut.cursor.close()
    assert cut.rows == rows


def _without_last(schema: Any) -> Any:
    return replace(schema, columns=schema.columns[:-1], last_field_id=schema.last_field_id - 1)


def test_an_event_over_16_mib_comes_whole(source: Database, database: str) -> None:
    source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY, v LONGBLOB)")
    with stream(source, [f"{database}.a"]) as it:
        source.execute(
            f"INSERT INTO {database}.a VALUES (1, REPEAT('q', {40 << 20})), (2, 'small')",
            f"UPDATE {database}.a SET v = REPEAT('r', {40 << 20}) WHERE id = 1",  # both images are over 64 MiB
            f"UPDATE {database}.a SET id = 3 WHERE id = 1",
        )
        rows = it.drain()
    large = [("+I", 1, b"q"), ("+U", 1, b"r"), ("-D", 1, b"r"), ("+I", 3, b"r")]
    assert [(row[OP], row["id"], row["v"][:1]) for row in rows if row["id"] != 2] == large
    assert all(row["v"] == row["v"][:1] * (40 << 20) for row in rows if row["id"] != 2)


@pytest.mark.parametrize("statement", ["INSERT INTO {}.a VALUES (1, {})", "UPDATE {}.a SET v = {}"])
def test_a_row_over_64_mib_quarantines_its_table_and_the_others_go_on(
    source: Database, database: str, statement: str
) -> None:
    source.execute(
        f"CREATE TABLE {database}.a (id INT PRIMARY KEY, v LONGBLOB)",
        f"CREATE TABLE {database}.b (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.a VALUES (0, 'small')",
    )
    with stream(source, [f"{database}.a", f"{database}.b"]) as it:
        source.execute(statement.format(database, f"REPEAT('q', {70 << 20})"), f"INSERT INTO {database}.b VALUES (2)")
        rows = it.drain()
    assert plain(rows, "id") == [("+I", 2)]
    (fault,) = it.faults
    assert fault.table_id == f"{database}.a"
    assert isinstance(fault, TableUnreadable)
    assert "64 MiB" in str(fault.cause)


def test_the_hash_of_a_unique_key_over_long_text_is_passed_over(mariadb: MariaDB, fresh_database: Any) -> None:
    """The hash stands in row events alone; a visible column may have its name."""
    database = fresh_database(mariadb)
    columns = {
        "keyed": "id INT PRIMARY KEY, u TEXT, w TEXT NOT NULL, UNIQUE (u), UNIQUE (w)",
        "only": "id INT, u TEXT NOT NULL, w TEXT, UNIQUE (u)",  # its identity is the long key
        "named": "id INT PRIMARY KEY, DB_ROW_HASH_1 BIGINT UNSIGNED, u TEXT, w TEXT, UNIQUE (u)",
    }
    names = [f"{database}.{name}" for name in columns]
    for name, definition in zip(names, columns.values(), strict=True):
        mariadb.execute(f"CREATE TABLE {name} ({definition})")
    begin = here(mariadb)
    for name in names:
        mariadb.execute(
            f"INSERT INTO {name} (id, u, w) VALUES (1, 'a', 'x'), (2, 'b', 'y')",
            f"UPDATE {name} SET w = 'z' WHERE id = 2",
            f"UPDATE {name} SET u = 'c' WHERE id = 2",
            f"DELETE FROM {name} WHERE id = 1",
        )
    mariadb.execute(f"UPDATE {names[2]} SET DB_ROW_HASH_1 = 7")
    routes = {name: route(mariadb, name) for name in names}
    assert routes[names[1]].schema.key == ("u",)
    assert [column.name for column in routes[names[2]].schema.columns] == ["id", "DB_ROW_HASH_1", "u", "w"]
    low = Low(server=begin.server, file=begin.file, offset=begin.offset, gtids=begin.gtids)
    end = here(mariadb)
    looked_at = Low(server=end.server, file=end.file, offset=end.offset, gtids=end.gtids)
    for earlier in (False, True):
        with stream(mariadb, [], begin) as it:
            for name in names:
                it.routes[name] = replace(routes[name], low=low, live=True, looked_at=looked_at if earlier else None)
            rows = it.drain()
            assert not it.faults, it.faults[0].cause
            assert [it.routes[name].schema for name in names] == [routes[name].schema for name in names]
        changes = [("+I", 1, "a", "x"), ("+I", 2, "b", "y"), ("+U", 2, "b", "z")]
        for name in names:
            keyed = [("-D", 2, "b", "z"), ("+I", 2, "c", "z")] if name == names[1] else [("+U", 2, "c", "z")]
            more = [("+U", 2, "c", "z")] if name == names[2] else []
            found = plain([row for row in rows if row[TABLE] == name], "id", "u", "w")
            assert found == [*changes, *keyed, ("-D", 1, "a", "x"), *more]
        assert rows[-1]["DB_ROW_HASH_1"] == 7


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
