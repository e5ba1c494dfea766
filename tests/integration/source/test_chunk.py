"""Chunks on real servers: their rows, how they are cut, and what makes one void."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.errors import NextGeneration, SourceLost, Unavailable
from cutline.common.gtids import GtidSet
from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import FilePosition, High
from cutline.services.enumerator.splitter import KeyRange, Splitter
from cutline.services.sources.contract import ChunkResult, Route
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.catalogue import describe
from cutline.services.sources.mysql.chunk import checksum_of, read_chunk
from cutline.services.sources.mysql.connection import Connection, ask
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.keys import key_range, next_bound
from cutline.services.sources.mysql.server import (
    Server,
    begin_reading,
    flushed_position,
    gtid_executed,
    identify,
)
from tests.conftest import FULL
from tests.support.chunked_table import ChunkedTable, meanwhile, table
from tests.support.databases import Database, MySQL
from tests.support.key_kinds import KEYS as KINDS_OF_KEYS
from tests.support.sources import by_tls

__all__ = ["table"]  # the fixtures


@contextmanager
def while_begun(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Something happens right before a snapshot of a table without a key is begun, after low."""

    def between(conn: Connection, server_info: Server) -> tuple[GtidSet, FilePosition]:
        low = gtid_executed(conn)
        act()
        begin_reading(conn)
        return low, flushed_position(conn, server_info)

    with monkeypatch.context() as patch, meanwhile(monkeypatch, "_take_low", act, after=True):
        patch.setattr(chunk, "begin_reading_between", between)
        yield


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["replay", "exact"])
def test_an_insert_into_a_table_without_a_key_is_in_its_chunk_or_in_the_stream(
    table: Callable[..., ChunkedTable], mode: chunk.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are inserted right after the first lows: a SELECT may see them, and the stream has them in any case."""
    chunked = table("line VARCHAR(9)", "('same'),('same'),(NULL)")
    inserts = iter([f"INSERT INTO {chunked.table_id} VALUES ('same'),('other')"] * 3)
    with while_begun(monkeypatch, lambda: chunked.server.execute("DO 0", *islice(inserts, 1))):
        rows, end = chunked.read(mode=mode)
    chunked.server.execute(f"INSERT INTO {chunked.table_id} VALUES ('last')")
    with closing(chunked.connect()) as conn:
        server_info = identify(conn)
        flushed = flushed_position(conn, server_info)
    route = Route(table_id=chunked.table_id, generation=1, schema=chunked.schema, low=end.low, high=end.high)
    streamed, position, until = (
        0,
        end.low.start(),
        High(server=end.low.server, file=flushed.file, offset=flushed.offset),
    )
    with closing(chunked.cursor()) as cursor:
        while not until.reached_by(position):
            got = cursor.read(
                position, {chunked.table_id: route}, until=until, max_rows=100, max_bytes=1 << 20, wait_seconds=1.0
            )
            position, streamed = got.position, streamed + sum(batch.rows for batch in got.batches)
    with closing(chunked.server.connect()) as conn, conn.cursor() as asking:
        asking.execute(f"SELECT COUNT(*) FROM {chunked.table_id}")
        ((count,),) = asking.fetchall()
    assert rows.num_rows + streamed == count


def test_a_table_without_a_key_that_never_rests_is_asked_for_again(
    mysql: MySQL, fresh_database: Callable[[Database], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database(mysql)
    mysql.execute(f"CREATE TABLE {database}.t (line INT)")
    chunked = ChunkedTable(mysql, f"{database}.t")
    monkeypatch.setattr(chunk, "QUIET_PAUSES_SECONDS", (0.0, 0.0))
    with while_begun(monkeypatch, lambda: mysql.execute(f"INSERT INTO {database}.t VALUES (1)")):
        with pytest.raises(Unavailable, match="No moment without an INSERT"):
            chunked.read()


def test_a_chunk_has_the_rows_of_its_range_and_two_watermarks(table: Callable[..., ChunkedTable]) -> None:
    chunked = table("id INT PRIMARY KEY, v VARCHAR(9)", "(1,'a'),(2,'b'),(3,NULL),(4,'d')")
    rows, end = chunked.read(chunked.split(("2",), ("4",)))
    assert rows.to_pylist() == [{"id": 2, "v": "b"}, {"id": 3, "v": None}]
    assert end.schema == chunked.schema
    assert end.low.server == end.high.server
    assert FilePosition(end.low.file, end.low.offset) <= end.high.file_position
    assert (
        chunked.read(chunked.split(None, ("2",)))[0].num_rows + chunked.read(chunked.split(("4",), None))[0].num_rows
        == 2
    )
    empty, end = chunked.read(chunked.split(("9",), None))
    assert empty.num_rows == end.rows == 0


def test_a_key_whose_index_the_optimizer_does_not_see_is_read_without_it(
    source: Database, table: Callable[..., ChunkedTable]
) -> None:
    unseen = "INVISIBLE" if isinstance(source, MySQL) else "IGNORED"
    chunked = table(
        f"a INT NOT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE (a, b), UNIQUE (c) {unseen}", "(1,1,3),(1,2,2)"
    )
    assert chunked.schema.key == ("c",)
    assert chunked.read()[0]["c"].to_pylist() == [2, 3]


def test_batches_are_of_about_the_size_asked_for_and_their_checksums_add_up(table: Callable[..., ChunkedTable]) -> None:
    chunked = table("id INT PRIMARY KEY, v VARCHAR(200), d DATETIME(6), b BIT(1)")
    chunked.server.execute(
        f"INSERT INTO {chunked.table_id} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
        " SELECT i, REPEAT('x', i MOD 200), '2020-01-01 00:00:00.5', i MOD 2 FROM n",
        f"INSERT INTO {chunked.table_id} SELECT id + 1000, v, NULL, b FROM {chunked.table_id}",
        f"INSERT INTO {chunked.table_id} SELECT id + 2000, v, d, NULL FROM {chunked.table_id}",
        f"INSERT INTO {chunked.table_id} SELECT id + 4000, v, d, b FROM {chunked.table_id}",
    )
    *batches, end = read_chunk(KeptConnection(chunked.connect), chunked.split(), mode="replay", batch_bytes=100_000)
    assert isinstance(end, ChunkResult)
    assert end.rows == sum(batch.num_rows for batch in batches) == 7200
    assert len(batches) > 1
    assert end.checksum == f"{sum(map(checksum_of, batches)) % 2**64:016x}"
    assert chunked.read()[1].checksum != ""
    changed = pa.Table.from_batches(batches).to_pydict()
    changed["v"][5] = "y" + changed["v"][5][1:] if changed["v"][5] else "y"
    assert checksum_of(pa.RecordBatch.from_pydict(changed, schema=chunked.schema.arrow)) != checksum_of(
        pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    )


def test_dates_that_no_calendar_has_become_null_and_are_counted_and_in_the_key_they_are_refused(
    table: Callable[..., ChunkedTable],
) -> None:
    chunked = table("id INT PRIMARY KEY, d DATE, t DATETIME NOT NULL", "(1, '2020-01-01', '2020-01-01')")
    with closing(chunked.server.connect()) as conn, conn.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(
            f"INSERT INTO {chunked.table_id} VALUES (2, '0000-00-00', '2020-00-01'), (3, '2020-02-31', '2020-01-01')"
        )
        cursor.execute(f"CREATE TABLE {chunked.table_id}2 (d DATE PRIMARY KEY)")
        cursor.execute(f"INSERT INTO {chunked.table_id}2 VALUES ('0000-00-00')")
    rows, end = chunked.read()
    assert [row["d"] is None for row in rows.to_pylist()] == [False, True, True]
    assert end.zero_dates == {"d": 2, "t": 1}
    with pytest.raises(SourceLost, match="zero or partial date in its key column d"):
        ChunkedTable(chunked.server, f"{chunked.table_id}2").read()


def test_a_row_that_is_too_large_quarantines_its_table(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY, b LONGBLOB", "(1, REPEAT('x', 900000)), (2, REPEAT('x', 900000))")
    monkeypatch.setattr(chunk, "MAX_ROW_BYTES", 1_000_000)
    assert chunked.read()[1].rows == 2
    monkeypatch.setattr(chunk, "MAX_ROW_BYTES", 800_000)
    with pytest.raises(SourceLost, match="row over") as caught:
        chunked.read()
    assert caught.value.table == chunked.table_id
    assert not isinstance(caught.value, NextGeneration)


def test_a_row_of_many_packets_is_refused_while_it_comes(table: Callable[..., ChunkedTable]) -> None:
    chunked = table("id INT PRIMARY KEY, b LONGBLOB", f"(1, REPEAT('x', {70 << 20}))")
    with pytest.raises(SourceLost, match="it has over 64 MiB: leave the table out of the list") as caught:
        chunked.read()
    assert caught.value.table == chunked.table_id


def test_a_chunk_that_is_given_up_leaves_no_connection_behind(table: Callable[..., ChunkedTable]) -> None:
    chunked = table("id INT PRIMARY KEY, b LONGBLOB", "(1, REPEAT('x', 9000000)), (2, REPEAT('x', 9000000)), (3, 'x')")
    processes = f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{chunked.server.user}'"
    others = set(chunked.server.execute(processes))  # dumps that tests before this one left to the server
    reading = read_chunk(KeptConnection(chunked.connect), chunked.split(), mode="replay", batch_bytes=1000)
    next(reading)
    assert set(chunked.server.execute(processes)) - others
    reading.close()
    deadline = time.monotonic() + 60
    while set(chunked.server.execute(processes)) - others:
        assert time.monotonic() < deadline


def test_over_tls_a_chunk_and_the_changes_laid_over_it_are_the_same(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY, b LONGTEXT", "(1, REPEAT('x', 3000000)), (2, 'y'), (3, 'z')")
    by_tls(chunked.server, monkeypatch)
    with closing(chunked.connect()) as conn:
        ((_, cipher),) = ask(conn, "SHOW STATUS LIKE 'Ssl_cipher'")
    assert cipher or chunked.server.version.startswith("10.11.")  # a MariaDB that makes no certificate by itself
    change = f"UPDATE {chunked.table_id} SET b = 'changed' WHERE id = 2"
    with meanwhile(monkeypatch, "_low", lambda: chunked.server.execute(change), after=True):
        rows, _ = chunked.read(mode="exact")
    # MariaDB's SELECT is as of low, and so is the chunk
    of_high = "changed" if chunked.server.flavour == "mysql" else "y"
    assert rows.sort_by("id")["b"].to_pylist() == ["x" * 3_000_000, of_high, "z"]


def test_a_connection_that_ends_within_a_chunk_is_unavailable_and_never_a_short_chunk(
    table: Callable[..., ChunkedTable],
) -> None:
    # after the first two rows more is left than the sockets' buffers can hold, so the server is not done
    chunked = table("id INT PRIMARY KEY, b LONGBLOB", ", ".join(f"({i}, REPEAT('x', 20000000))" for i in range(5)))
    running = (
        f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{chunked.server.user}' AND COMMAND = 'Execute'"
    )

    def read_and_kill() -> None:
        for _ in read_chunk(KeptConnection(chunked.connect), chunked.split(), mode="replay", batch_bytes=1000):
            for (number,) in chunked.server.execute(running):
                chunked.server.execute(f"KILL {number}")

    with pytest.raises(Unavailable):
        read_and_kill()


# --- what ends a chunk early ------------------------------------------------------------------------------------------


def in_pieces(
    chunked: ChunkedTable, mode: chunk.Mode = "replay", **options: Any
) -> tuple[list[pa.Table], list[ChunkResult]]:
    """The whole table, each chunk that was cut followed by its rest."""
    pieces: list[pa.Table] = []
    ends: list[ChunkResult] = []
    while not ends or ends[-1].cut_at is not None:
        rows, end = chunked.read(chunked.split(ends[-1].cut_at if ends else None), mode, **options)
        pieces.append(rows)
        ends.append(end)
    return pieces, ends


@pytest.mark.parametrize("kind", KINDS_OF_KEYS if FULL else ("decimals", "latin1_ci", "composite"))
def test_chunks_cut_before_any_key_hold_every_row_once(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    columns, rows = KINDS_OF_KEYS[kind]
    chunked = table(columns)
    chunked.server.execute(f"INSERT IGNORE INTO {chunked.table_id} VALUES {rows}")
    whole = chunked.read()[0]
    monkeypatch.setattr(chunk, "MAX_CHUNK_BYTES", 0)
    monkeypatch.setattr("cutline.services.sources.mysql.connection._BLOCK_BYTES", 1)
    pieces, _ = in_pieces(chunked, batch_bytes=1)
    assert len(pieces) > 1 or whole.num_rows < 3
    assert pa.concat_tables(pieces).equals(whole)


def test_an_exact_chunk_that_is_cut_and_its_rest_are_each_as_of_their_own_high_watermark(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY, v INT", ", ".join(f"({i}, 0)" for i in range(1, 9)))
    change = (
        f"UPDATE {chunked.table_id} SET v = v + 1 WHERE id IN (1, 8)",
        f"REPLACE INTO {chunked.table_id} VALUES (0, 0), (9, 0)",
    )
    monkeypatch.setattr(chunk, "MAX_CHUNK_BYTES", 0)
    monkeypatch.setattr("cutline.services.sources.mysql.connection._BLOCK_BYTES", 1)
    with meanwhile(monkeypatch, "_low", lambda: chunked.server.execute(*change), after=True):
        pieces, ends = in_pieces(chunked, "exact", batch_bytes=1)
    assert len(ends) > 2
    ids = [row["id"] for piece in pieces for row in piece.to_pylist()]
    seen = 1 if chunked.server.flavour == "mysql" else 0  # MariaDB's SELECT is as of low, and so is the chunk
    assert sorted(ids) == list(range(10) if seen else range(1, 10))
    for changes, piece in enumerate(pieces, start=seen):
        assert [row["v"] for row in piece.to_pylist() if row["id"] in (1, 8)] in ([], [changes])


def test_a_chunk_that_nobody_takes_is_cut_in_time_for_an_alter_and_the_writers_behind_it(
    table: Callable[..., ChunkedTable],
) -> None:
    chunked = table("id INT PRIMARY KEY AUTO_INCREMENT, b BLOB")
    chunked.server.execute(
        f"INSERT INTO {chunked.table_id} (b)"
        " WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 800)"
        " SELECT REPEAT('x', 60000) FROM n"
    )
    kept = KeptConnection(chunked.connect)
    reading = read_chunk(kept, chunked.split(), mode="replay", batch_bytes=1 << 20, seconds=2.0)
    taken = [next(reading)]
    done: list[str] = []

    def run(statement: str) -> None:
        chunked.server.execute(statement)
        done.append(statement.split()[0])

    threads = [threading.Thread(target=run, args=(f"ALTER TABLE {chunked.table_id} COMMENT = 'mine'",), daemon=True)]
    threads[0].start()
    waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'"
    deadline = time.monotonic() + 60
    while not done and chunked.server.scalar(waiting) < 1:
        assert time.monotonic() < deadline
    threads.append(
        threading.Thread(target=run, args=(f"INSERT INTO {chunked.table_id} (b) VALUES ('y')",), daemon=True)
    )
    threads[1].start()
    for thread in threads:  # nothing more is taken until both are through
        thread.join(45)
    assert sorted(done) == ["ALTER", "INSERT"]
    taken += reading
    end = taken.pop()
    assert isinstance(end, ChunkResult)
    assert end.cut_at is not None
    assert sum(batch.num_rows for batch in taken) == end.rows == int(end.cut_at[0]) - 1
    rest, last = chunked.read(chunked.split(end.cut_at))
    assert last.cut_at is None
    assert end.rows + rest.num_rows == 801


def test_a_select_that_gives_nothing_in_its_time_is_tried_again_with_more(table: Callable[..., ChunkedTable]) -> None:
    chunked = table("id INT PRIMARY KEY", "(1), (2)")
    with closing(chunked.server.connect()) as other:
        other.cursor().execute(f"LOCK TABLES {chunked.table_id} WRITE")
        timer = threading.Timer(0.5, other.cursor().execute, ("UNLOCK TABLES",))  # before a wait for a lock is given up
        timer.start()
        assert chunked.read(seconds=0.3)[1].rows == 2
        timer.join()


@pytest.mark.parametrize("spread", [1_000_000, 10**15])
def test_uneven_and_sparse_keys_take_as_many_questions_and_selects_as_rows_ask_for(
    table: Callable[..., ChunkedTable], spread: int
) -> None:
    chunked = table("k BIGINT PRIMARY KEY")
    numbers = "WITH RECURSIVE n AS (SELECT 0 i UNION ALL SELECT i + 1 FROM n WHERE i < 999)"
    chunked.server.execute(
        f"INSERT INTO {chunked.table_id} {numbers} SELECT i * {spread} FROM n",  # wide gaps
        f"INSERT INTO {chunked.table_id} {numbers} SELECT 500 * {spread} + 1 + i FROM n",  # a hot range
        f"INSERT INTO {chunked.table_id} {numbers} SELECT 500 * {spread} + 1001 + i FROM n",
        f"INSERT INTO {chunked.table_id} {numbers} SELECT {4 * 10**18} + i FROM n WHERE i < 10",  # few at the far end
        f"ANALYZE TABLE {chunked.table_id}",
    )
    questions, splits = 0, list[SnapshotSplit]()
    with closing(chunked.connect()) as conn:
        info = describe(conn, identify(conn), chunked.table_id)
        splitter = Splitter(
            table_id=chunked.table_id, generation=1, schema=info.schema, chunk_rows=200, estimate=info.rows,
            row_bytes=info.row_bytes, integer_key=info.integer_key,
        )  # fmt: skip
        while not splitter.done:
            asked, questions = splitter.wants(), questions + 1
            if asked == "range":
                low, high = key_range(conn, info.schema) or (0, 0)
                splitter.ranged(KeyRange(low=low, high=high))
            else:
                splits += splitter.bounded(next_bound(conn, info.schema, splitter.next_start, splitter.step))
            splits += splitter.take(100)
    assert len(splits) <= 3010 // 200 + 2
    assert questions <= len(splits) + 1
    found = pa.concat_tables([chunked.read(split)[0] for split in splits])["k"].to_pylist()
    assert sorted(found) == chunked.column("k")


def test_a_chunk_is_cut_where_its_rows_turn_out_to_be_wide(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY AUTO_INCREMENT, b BLOB")
    numbers = "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    for many, size in ((900, 1), (300, 50_000), (900, 1)):
        chunked.server.execute(
            f"INSERT INTO {chunked.table_id} (b) {numbers.format(many)} SELECT REPEAT('x', {size}) FROM n",
        )
    monkeypatch.setattr(chunk, "MAX_CHUNK_BYTES", 4 << 20)
    pieces, _ = in_pieces(chunked, batch_bytes=1 << 20)
    assert 3 <= len(pieces) <= 6
    assert max(piece.nbytes for piece in pieces) < 8 << 20
    assert pa.concat_tables(pieces)["id"].to_pylist() == chunked.column("id")


# --- what makes a chunk void ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddl", ["ADD COLUMN n INT", "DROP COLUMN v", "MODIFY v VARCHAR(7)", "DROP PRIMARY KEY"])
@pytest.mark.parametrize("moment", ["before", "between"])
def test_ddl_before_or_within_a_chunk_starts_the_next_generation(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch, ddl: str, moment: str
) -> None:
    chunked = table("id INT PRIMARY KEY, v VARCHAR(9)", "(1,'a')")
    alter = f"ALTER TABLE {chunked.table_id} {ddl}"
    if moment == "before":
        chunked.server.execute(alter)
        with pytest.raises(NextGeneration, match="was changed by DDL"):
            chunked.read()
        return
    with (
        meanwhile(monkeypatch, "_low", lambda: chunked.server.execute(alter), after=True),
        pytest.raises(NextGeneration) as caught,
    ):
        chunked.read()
    assert caught.value.table == chunked.table_id


def test_a_table_that_was_dropped_starts_the_next_generation(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY")
    drop = f"DROP TABLE {chunked.table_id}"
    with (
        meanwhile(monkeypatch, "_low", lambda: chunked.server.execute(drop), after=True),
        pytest.raises(NextGeneration),
    ):
        chunked.read()
    with pytest.raises(NextGeneration):
        chunked.read()


def test_no_chunk_is_read_while_an_xa_transaction_stands_prepared(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY", "(1)")
    monkeypatch.setattr(chunk, "XA_PAUSES_SECONDS", (0.01, 0.01))
    chunked.server.execute("XA START 'x'", f"INSERT INTO {chunked.table_id} VALUES (2)", "XA END 'x'", "XA PREPARE 'x'")
    with pytest.raises(Unavailable, match="XA RECOVER"):
        chunked.read()
    chunked.server.execute("XA COMMIT 'x'")
    assert chunked.read()[1].rows == 2


def test_an_xa_transaction_that_comes_and_goes_while_low_is_taken_makes_low_be_taken_again(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunked = table("id INT PRIMARY KEY", "(1)")
    lows: list[int] = []

    def xa() -> None:
        lows.append(1)
        if len(lows) == 1:
            insert = f"INSERT INTO {chunked.table_id} VALUES (2)"
            chunked.server.execute("XA START 'x'", insert, "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")

    with meanwhile(monkeypatch, "_take_low", xa, after=True):
        assert chunked.read()[1].rows == 2
    assert len(lows) == 2


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["VARCHAR(9) CHARACTER SET latin1", "VARCHAR(9) COLLATE utf8mb4_general_ci"])
def test_the_published_example_on_a_real_server_comes_out_as_of_its_high_watermark(
    table: Callable[..., ChunkedTable], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Flink CDC's: while K1..K10 are read k2 goes 100, 108, 119, k3 is deleted, k5 goes 77, 100; and more around it."""
    chunked = table(
        f"k {key} PRIMARY KEY, v INT",
        "('j0',0),('k1',1),('k2',100),('k3',3),('k4',4),('k5',77),('k6',6),('k7',7),('k8',8),('k9',9),('l0',0)",
    )
    t = chunked.table_id

    def before_the_select() -> None:
        chunked.server.execute(f"UPDATE {t} SET v = 108 WHERE k = 'k2'", f"DELETE FROM {t} WHERE k = 'k3'")

    def after_the_select() -> None:
        chunked.server.execute(
            f"UPDATE {t} SET v = 119 WHERE k = 'k2'",
            f"UPDATE {t} SET v = 100 WHERE k = 'k5'",
            f"INSERT INTO {t} VALUES ('k44', 44), ('i', 1), ('z', 1)",
            f"UPDATE {t} SET k = 'K8' WHERE k = 'k8'",
            f"UPDATE {t} SET k = 'm' WHERE k = 'k9'",
            f"UPDATE {t} SET k = 'k95' WHERE k = 'l0'",
            f"DELETE FROM {t} WHERE k = 'j0'",
        )

    with (
        meanwhile(monkeypatch, "_low", before_the_select, after=True),
        meanwhile(monkeypatch, "_high", after_the_select, after=False),
    ):
        rows, end = chunked.read(chunked.split(("k",), ("l",)), mode="exact")
    found = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    if chunked.server.flavour == "mariadb":  # low is high: the chunk is as of the snapshot
        assert found == {"k1": 1, "k2": 100, "k3": 3, "k4": 4, "k5": 77, "k6": 6, "k7": 7, "k8": 8, "k9": 9}
        assert (end.low.file, end.low.offset) == (end.high.file, end.high.offset)
    else:
        assert found == {"k1": 1, "k2": 119, "k4": 4, "k44": 44, "k5": 100, "k6": 6, "k7": 7, "K8": 8, "k95": 0}


@pytest.mark.parametrize("statement", ["ALTER TABLE {} ADD COLUMN n INT, DROP COLUMN n", "TRUNCATE {}"])
def test_ddl_between_the_watermarks_voids_an_exact_chunk(
    mysql: MySQL, fresh_database: Callable[[Database], str], monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    name = fresh_database(mysql)
    mysql.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name}.t VALUES (1, 1)")
    chunked = ChunkedTable(mysql, f"{name}.t")
    ddl = statement.format(chunked.table_id)
    if "ALTER" in ddl:  # two statements, after which the table looks as before
        statements = [
            f"ALTER TABLE {chunked.table_id} ADD COLUMN n INT",
            f"ALTER TABLE {chunked.table_id} DROP COLUMN n",
        ]
    else:
        statements = [ddl]
    with (
        meanwhile(monkeypatch, "_high", lambda: mysql.execute(*statements), after=False),
        pytest.raises(NextGeneration),
    ):
        chunked.read(mode="exact")
