"""The files of a real binlog: places, checksums, compression, large events, another reader of the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from cutline.common.positions import High, Low, Position
from cutline.common.schema import FILE, OP, POS, TABLE
from cutline.services.sources.contract import TableUnreadable
from tests.support.binlog_streams import busy, plain, write_busily
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import by_tls, here
from tests.support.streams import route, stream, transaction


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
