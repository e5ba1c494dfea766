"""Chunks on real servers: their rows, what makes one void, and watermarks under load, right and naive."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.errors import ConfigError, NextGeneration, SourceLost, Unavailable
from cutline.common.gtids import GtidSet
from cutline.common.mesh.messages import Key, SnapshotSplit
from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import FILE, GTID, POS, TableSchema
from cutline.services.enumerator.splitter import KeyRange, Splitter
from cutline.services.sources.contract import ChunkResult, Route
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import describe, table_schema
from cutline.services.sources.mysql.chunk import Window, checksum_of, read_chunk
from cutline.services.sources.mysql.connection import Connection, Source, ask, connect
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.keys import key_range, next_bound
from cutline.services.sources.mysql.server import (
    Server,
    begin_reading,
    binlog_gtid_pos,
    current_position,
    flushed_position,
    gtid_executed,
    identify,
    verify_position,
)
from cutline.services.sources.mysql.watermark import AgedPositions, fold
from tests.conftest import FULL, started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.key_kinds import KEYS as KINDS_OF_KEYS
from tests.support.mesh import waited
from tests.support.sources import by_tls


class ChunkedTable:
    """One table of a server, as a reader sees it."""

    def __init__(self, server: Database, table_id: str) -> None:
        self.server, self.table_id = server, table_id
        self.at = Source(host=server.host, port=server.port, user=server.user, password=server.password)
        with closing(self.connect()) as conn:
            self.schema: TableSchema = table_schema(conn, table_id)

    def connect(self) -> Connection:
        return connect(self.at)

    def column(self, name: str) -> list[Any]:
        """All its values at the server, in order."""
        return [value for (value,) in self.server.execute(f"SELECT {name} FROM {self.table_id} ORDER BY {name}")]

    def cursor(self) -> BinlogCursor:
        return BinlogCursor(self.connect, server_id=424_242)

    def split(self, start: Key | None = None, end: Key | None = None) -> SnapshotSplit:
        return SnapshotSplit(
            split_id="s",
            table_id=self.table_id,
            generation=1,
            attempt=1,
            split_key_type=self.schema.split_key_type,
            split_start=start,
            split_end=end,
            schema=self.schema,
        )

    def read(
        self, split: SnapshotSplit | None = None, mode: chunk.Mode = "replay", **options: Any
    ) -> tuple[pa.Table, ChunkResult]:
        with closing(Window(self.cursor())) as window, closing(KeptConnection(self.connect)) as kept:
            asked = {"mode": mode, "window": window} | options
            *batches, end = read_chunk(kept, split or self.split(), **asked)
        assert isinstance(end, ChunkResult)
        table = pa.Table.from_batches(batches, schema=self.schema.arrow)
        assert table.num_rows == end.rows
        return table, end


@pytest.fixture
def table(source: Database, database: str) -> Callable[..., ChunkedTable]:
    """Makes the table t with these columns and rows."""

    def make(columns: str, rows: str = "") -> ChunkedTable:
        source.execute(f"CREATE TABLE {database}.t ({columns})")
        if rows:
            source.execute(f"INSERT INTO {database}.t VALUES {rows}")
        return ChunkedTable(source, f"{database}.t")

    return make


@contextmanager
def meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object], *, after: bool) -> Iterator[None]:
    """Something happens right after (or before) a step of the chunk reader."""
    real = getattr(chunk, step)

    def stepped(*args: Any) -> Any:
        if not after:
            act()
        result = real(*args)
        if after:
            act()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(chunk, step, stepped)
        yield


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


# --- watermarks under load --------------------------------------------------------------------------------------------

KEYS = 60
WRITERS = 8


@dataclass(frozen=True, kw_only=True)
class ShownChunk:
    """What one chunk showed: each key's version, between two watermarks."""

    low: Low
    high: High
    versions: dict[int, int]


@dataclass(frozen=True, kw_only=True)
class LoggedUpdate:
    """One update as the binlog has it."""

    version: int
    gtid: str
    start: FilePosition


class Hot:
    """A table whose few rows are updated all the time, each update one transaction that counts the row's version up."""

    def __init__(self, server: Database) -> None:
        self.server = server
        server.execute(
            "CREATE DATABASE hot",
            "CREATE TABLE hot.t (k INT PRIMARY KEY, v INT NOT NULL)",
            "INSERT INTO hot.t VALUES " + ",".join(f"({k}, 0)" for k in range(KEYS)),
            "CREATE TABLE hot.go (on_ INT PRIMARY KEY)",
            "INSERT INTO hot.go VALUES (1)",
            "CREATE PROCEDURE hot.write_() BEGIN WHILE (SELECT COUNT(*) FROM hot.go) DO"
            f" UPDATE hot.t SET v = v + 1 WHERE k = FLOOR(RAND() * {KEYS}); END WHILE; END",
            "FLUSH BINARY LOGS",  # without GTIDs the low is the start of a file: past the CREATE
        )
        self.source = ChunkedTable(server, "hot.t")
        self.first = self.source.read()[1]
        self._threads = [
            threading.Thread(target=self.server.execute, args=("CALL hot.write_()",)) for _ in range(WRITERS)
        ]

    def __enter__(self) -> Hot:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.execute("DELETE FROM hot.go")
        for thread in self._threads:
            thread.join()

    def chunks(self, mode: chunk.Mode, keys: int, **options: Any) -> Iterator[ShownChunk]:
        """Read chunks of so many keys, one after another, for ever."""
        luck = random.Random(1)
        while True:
            start = luck.randrange(KEYS - keys + 1)
            split = self.source.split((str(start),), (str(start + keys),))
            rows, end = self.source.read(split, mode, **options)
            versions = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
            yield ShownChunk(low=end.low, high=end.high, versions=versions)

    def changes(self) -> dict[int, list[LoggedUpdate]]:
        """Every update since the start, by key, in order."""
        found: dict[int, list[LoggedUpdate]] = {}
        with closing(self.source.connect()) as conn:
            at = flushed_position(conn, identify(conn))
        end = High(server=self.first.high.server, file=at.file, offset=at.offset)
        route = Route(
            table_id="hot.t", generation=1, schema=self.source.schema, low=self.first.low, high=end
        )
        position = self.first.low.start()
        with closing(self.source.cursor()) as cursor:
            while not end.reached_by(position):
                got = cursor.read(
                    position, {"hot.t": route}, until=end, max_rows=50_000, max_bytes=1 << 24, wait_seconds=2.0
                )
                assert not got.faults
                assert not got.schemas
                for batch in got.batches:
                    for row in batch.batch.to_pylist():
                        change = LoggedUpdate(version=row["v"], gtid=row[GTID], start=FilePosition(row[FILE], row[POS]))
                        found.setdefault(row["k"], []).append(change)
                position = got.position
        for key, changes in found.items():
            assert [change.version for change in changes] == list(range(1, len(changes) + 1)), key
        return found


def covered(low: Low, changes: list[LoggedUpdate]) -> int:
    """The newest version that low claims every later SELECT can see (a low lies between two transactions)."""

    def hidden(change: LoggedUpdate) -> bool:
        end = FilePosition(change.start.file, change.start.offset + 1)
        return not low.covers(server=low.server, end=end, gtid=change.gtid or None)

    return bisect_left(changes, True, key=hidden)


def flushed(at: High | Low, changes: list[LoggedUpdate]) -> int:
    """The newest version that lies before that place in the binlog."""
    return bisect_left(changes, FilePosition(at.file, at.offset), key=lambda change: change.start)


def misses(seen: list[ShownChunk], changes: dict[int, list[LoggedUpdate]]) -> int:
    """Rows that a chunk showed older than its low claims: the stream would skip what they lack."""
    return sum(
        covered(shown.low, changes.get(key, [])) > version for shown in seen for key, version in shown.versions.items()
    )


SERVERS: dict[str, Callable[[], Database]] = {
    "mariadb": lambda: MariaDB(strict=True),
    "mysql": lambda: MySQL(strict=True),
    # a new file every few dozen transactions: the low is then the start of a file
    "mysql-nogtid": lambda: MySQL(gtid=False, strict=True, max_binlog_size=16384),
}


@pytest.fixture
def hot(request: pytest.FixtureRequest) -> Iterator[Hot]:
    """A server of its own, that syncs each commit (which is when watermarks run ahead), with its hot table."""
    server = SERVERS[request.param]()
    with started(server), Hot(server) as table:
        yield table


def naive_low(conn: Connection, server: Server, aged: AgedPositions) -> Low:
    """What must not be done: the flushed position as low watermark."""
    at = flushed_position(conn, server)
    return Low(server=server.identity, file=at.file, offset=at.offset)


def for_a_while(seen: Iterator[ShownChunk], *, chunks: int, seconds: float) -> list[ShownChunk]:
    """So many chunks at least, and for so long at least."""
    until, found = time.monotonic() + seconds, []
    while len(found) < chunks or time.monotonic() < until:
        found.append(next(seen))
    return found


@pytest.mark.alone
@pytest.mark.parametrize(
    ("hot", "mode"),
    [
        ("mariadb", "replay"),
        ("mariadb", "exact"),
        ("mysql", "replay"),
        ("mysql", "exact"),
        ("mysql-nogtid", "replay"),
    ],
    indirect=["hot"],
)
def test_no_row_is_missed_under_load_and_the_naive_low_watermark_is_seen_to_miss_some(
    hot: Hot, monkeypatch: pytest.MonkeyPatch, mode: chunk.Mode
) -> None:
    """1. Tiny chunks of hot rows for a while. 2. Chunks with the flushed position as low. 3. The binlog judges both."""
    tiny, right = hot.chunks(mode, 5, aged=AgedPositions(1.0)), []
    while sum(map(len, hot.changes().values())) <= 500:  # a busy machine needs longer
        right += for_a_while(tiny, chunks=60, seconds=3)
    naive: list[ShownChunk] = []
    seen_to_miss = mode == "replay" and isinstance(hot.server, MySQL)  # MariaDB's window is too short to count on
    if seen_to_miss:
        monkeypatch.setattr(chunk, "_low", naive_low)
        monkeypatch.setattr(chunk, "limit_statements", lambda *_: None)  # nothing between low and the SELECT
        careless, deadline = hot.chunks("replay", KEYS), time.monotonic() + 60
        while not misses(naive, hot.changes()) and time.monotonic() < deadline:
            naive = for_a_while(careless, chunks=50, seconds=3)
    hot.stop()
    changes = hot.changes()
    assert misses(right, changes) == 0
    for shown in right:
        for key, version in shown.versions.items():
            assert version <= flushed(shown.high, changes.get(key, []))  # all that is visible was flushed before
            assert flushed(shown.low, changes.get(key, [])) <= covered(shown.low, changes.get(key, []))
            if mode == "exact":
                assert version == flushed(shown.high, changes.get(key, []))  # as of high, neither more nor less
    low, high = fold([(shown.low, shown.high) for shown in right])
    assert all(
        covered(low, changes[key]) <= covered(shown.low, changes[key]) for shown in right for key in shown.versions
    )
    assert all(high.file_position >= shown.high.file_position for shown in right)
    if seen_to_miss:
        assert misses(naive, changes) > 0, (
            f"{len(naive)} chunks with a naive low missed nothing: the test proves nothing"
        )
