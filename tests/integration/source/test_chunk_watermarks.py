"""Low watermarks under load on real servers: ours misses no row, the naive one is seen to miss some."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from cutline.common.positions import FilePosition, High, Low
from cutline.common.schema import FILE, GTID, POS
from cutline.services.sources.contract import Route
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.connection import Connection
from cutline.services.sources.mysql.server import (
    Server,
    flushed_position,
    identify,
)
from cutline.services.sources.mysql.watermark import AgedPositions, fold
from tests.conftest import started
from tests.support.chunked_table import ChunkedTable, LoggedUpdate, flushed, table
from tests.support.databases import Database, MariaDB, MySQL

__all__ = ["table"]  # the fixtures


# --- watermarks under load --------------------------------------------------------------------------------------------
KEYS = 60
WRITERS = 8


@dataclass(frozen=True, kw_only=True)
class ShownChunk:
    """What one chunk showed: each key's version, between two watermarks."""

    low: Low
    high: High
    versions: dict[int, int]


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
