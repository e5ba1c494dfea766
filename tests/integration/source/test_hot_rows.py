"""Hot rows against tiny chunks: what a chunk's SELECT misses must come by the stream, on every kind of server.

The servers sync each commit (`strict`), which opens the window between a transaction's flush to the binlog and its
commit in the engine: there a low watermark taken from the flushed position runs ahead of what a SELECT sees. MySQL's
`binlog_group_commit_sync_delay` keeps the window open for some milliseconds, however fast the disk is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.hammer import Hammer
from tests.support.history import History, content, differences, judge
from tests.support.mesh import Mesh

ROWS = 200
GAP = 1000
CHUNK_ROWS = 5
THREADS = 5
PAUSE_SECONDS = 0.02
WINDOW = {"binlog_group_commit_sync_delay": 5000}
TABLES = {"hot.t": (("id", "version", "who"), ("id",))}

NAIVE = (
    "-c",
    """
from cutline.common.mesh.host import run_service
from cutline.common.positions import Low, Position
from cutline.services.reader.__main__ import main
from cutline.services.sources.mysql import chunk
from cutline.services.sources.mysql.server import flushed_position

taken = []

def low(conn, server, aged):
    at = flushed_position(conn, server)
    taken.append(Low(server=server.identity, file=at.file, offset=at.offset))
    return taken[-1]

chunk._low = low
chunk.Position = lambda **said: taken[-1].start()  # where the chunk's own binlog begins
run_service(main)
""",
)


@pytest.fixture(scope="module")
def strict_mysql(nothing_left_running: None) -> Iterator[MySQL]:
    server = MySQL(strict=True, **WINDOW)
    with started(server):
        yield server


@pytest.fixture(scope="module", params=["mariadb", "mysql", "mysql without GTID"])
def strict(request: pytest.FixtureRequest, nothing_left_running: None) -> Iterator[Database]:
    if request.param == "mysql":
        yield request.getfixturevalue("strict_mysql")
        return
    server = MariaDB(strict=True) if request.param == "mariadb" else MySQL(gtid=False, strict=True, **WINDOW)
    with started(server):
        yield server


def hot(cursor: Any, luck: random.Random, number: int) -> None:
    """A transaction over many chunks: rows changed over and over, and rows that nobody touches again (soon)."""
    for row in sorted(GAP * luck.randrange(ROWS) for _ in range(4)):
        cursor.execute("UPDATE hot.t SET version = version + 1, who = %s WHERE id = %s", (f"c{number}", row))
    for _ in range(2):
        new = GAP * luck.randrange(ROWS - 1) + luck.randrange(1, GAP)
        cursor.execute("INSERT IGNORE INTO hot.t VALUES (%s, 0, %s)", (new, f"new by {number}"))
    start = GAP * luck.randrange(ROWS - 1) + 1
    cursor.execute("DELETE FROM hot.t WHERE id BETWEEN %s AND %s", (start, start + GAP - 2))
    if luck.random() < 0.2:
        row = GAP * luck.randrange(ROWS)
        cursor.execute("UPDATE IGNORE hot.t SET id = id + 1 WHERE id = %s", (row,))
        cursor.execute("UPDATE IGNORE hot.t SET id = id - 1 WHERE id = %s", (row + 1,))


def filled(server: Database) -> History:
    """The table, made anew, before the beginning of a binlog file (a low without GTIDs is the start of the file)."""
    server.execute("DROP DATABASE IF EXISTS hot")
    server.execute("RESET BINARY LOGS AND GTIDS" if isinstance(server, MySQL) else "RESET MASTER")
    history = History(server)
    server.execute(
        "CREATE DATABASE hot",
        "CREATE TABLE hot.t (id INT PRIMARY KEY, version INT NOT NULL, who VARCHAR(20))",
        "INSERT INTO hot.t VALUES " + ", ".join(f"({GAP * i}, 0, 'first')" for i in range(ROWS)),
        "ANALYZE TABLE hot.t",
        "FLUSH BINARY LOGS",
    )
    return history


def test_hot_rows_in_tiny_chunks_are_never_missed(strict: Database, tmp_path: Path) -> None:
    """1. Five connections change a table without a pause.
    2. It is read in chunks of five rows, in `replay` and (but on MySQL without GTIDs) in `exact`, side by side.
    3. Both pipelines show the table, and go on for some checkpoints while it is hammered.
    4. The connections stop; both catch up.
    Every publishable checkpoint has the content of its position, and the last one that of a SELECT.
    """
    history = filled(strict)
    modes = ["replay"] if isinstance(strict, MySQL) and not strict.gtid else ["replay", "exact"]
    with Mesh(tmp_path) as mesh:
        with Hammer(strict, hot, threads=THREADS, pause_seconds=PAUSE_SECONDS) as hammer:
            pipelines = [mesh.pipeline(mode, strict, ["hot.*"], chunks=mode, chunk_rows=CHUNK_ROWS) for mode in modes]
            for pipeline in pipelines:
                pipeline.until(lambda p=pipeline: p.shows(*TABLES), "all tables to be shown")
            for pipeline in pipelines:
                pipeline.goes_on(3)
        assert hammer.done > 100
        ends = [pipeline.catches_up(*TABLES) for pipeline in pipelines]
    for pipeline, end in zip(pipelines, ends, strict=True):
        found, faults = judge(pipeline, history, TABLES)
        assert not faults, "\n".join([pipeline.name, *faults[:20]])
        assert sum(TABLES.keys() == cut.tables.keys() for cut in found) >= 3
        last = next(cut for cut in found if cut.slot == end.slot)
        for table, (_, key) in TABLES.items():
            assert differences(last.tables[table].content, content(strict, table, key)) == []
        chunks = [file for entry in pipeline.entries() for file in getattr(entry, "staged", ()) if file.kind == "chunk"]
        assert sum(file.table == "hot.t" for file in chunks) >= ROWS / CHUNK_ROWS / 2


@pytest.mark.alone
def test_the_same_with_a_naive_low_watermark_misses_rows(strict_mysql: MySQL, tmp_path: Path) -> None:
    """The test above must be able to fail: a low from SHOW BINARY LOG STATUS, before the SELECT, loses changes here.

    In `exact`, where each chunk has its own low; in `replay` the stream begins at a table's lowest low, which hides
    what a later chunk misses. The table is read again by a new pipeline until one has shown what the source never held.
    """
    history = filled(strict_mysql)
    faults: list[str] = []
    with Mesh(tmp_path, programs={"reader": NAIVE}) as mesh:
        for attempt in range(5):
            with Hammer(strict_mysql, hot, threads=THREADS, pause_seconds=PAUSE_SECONDS, seed=attempt):
                name = f"naive-{attempt}"
                pipeline = mesh.pipeline(name, strict_mysql, ["hot.t"], chunks="exact", chunk_rows=CHUNK_ROWS)
                pipeline.until(lambda p=pipeline: p.shows("hot.t"), "the table to be shown")
            pipeline.catches_up("hot.t")
            _, faults = judge(pipeline, history, TABLES)
            if faults:
                break
    assert faults, "no change was lost by a naive low watermark: the test above would not see it either"
