"""The binlog cursor on real servers: changes in their order, wherever the stream is cut, and what a low covers."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from cutline.common.mesh.messages import CompletedSplit
from cutline.common.positions import High, Position
from cutline.common.schema import GTID, OP, ROW, TABLE, TS
from cutline.services.sources.contract import GenerationEnded, Route
from cutline.services.sources.mysql.binlog import dump
from tests.support.binlog_streams import busy, plain, write_busily
from tests.support.databases import Database, MySQL
from tests.support.sources import connected, here
from tests.support.streams import FollowingCursor, route, stream, transaction


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
