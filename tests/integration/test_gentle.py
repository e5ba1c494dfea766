"""Gentle on the source: what readers take of it is limited, changed while they read, and waits while it is busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql

from common.messages import Limits
from services import standalone
from tests.integration.mesh import Mesh, Pipeline, waited
from tests.servers import Database, MariaDB

Fresh = Callable[[Database], str]


def filled(server: Database, schema: str, rows: int) -> str:
    table = f"{schema}.t"
    server.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(40))",
        f"INSERT INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " SELECT i, 'x' FROM n",
    )
    for more in range(1000, rows, 1000):
        server.execute(f"INSERT INTO {table} SELECT id + {more}, v FROM {table} WHERE id <= 1000")
    server.execute(f"ANALYZE TABLE {table}")
    return table


def rows_done(pipeline: Pipeline, table: str) -> int:
    tables = pipeline.status().get("enumerator", {}).get("tables") or {}
    return int(tables[table]["rows_done"]) if table in tables else 0


def rate(pipeline: Pipeline, table: str, rows: int) -> float:
    """Rows a second of the snapshot, over at least so many of them from the next chunk on."""
    seen = rows_done(pipeline, table)
    first = pipeline.until(lambda: (now := rows_done(pipeline, table)) > seen and now, "another chunk")
    began = time.monotonic()
    last = pipeline.until(lambda: (now := rows_done(pipeline, table)) >= first + rows and now, f"{rows} rows more")
    return (last - first) / (time.monotonic() - began)


def test_limits_changed_in_the_middle_of_a_snapshot_show_in_its_rate_and_outlive_a_leader(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A snapshot begins at 3,000 rows a second for both readers together.
    2. It is limited to 200, and keeps to it; 3. the leader gets SIGKILL, and the next one knows the limit.
    4. The limit is lifted: the rest, at 200 a matter of minutes, is there soon.
    """
    table = filled(mariadb, fresh_database(mariadb), 40_000)
    with Mesh(tmp_path) as mesh:
        limit = {"max_rows_per_second": 3000}
        pipeline = mesh.pipeline("slow", mariadb, [table], chunk_rows=100, snapshot=limit)
        before = rate(pipeline, table, 1000)
        asyncio.run(standalone.throttle(mesh.redis.url, "slow", Limits(rows_per_second=200)))
        pipeline.goes_on(2)
        after = rate(pipeline, table, 600)
        assert after < 350
        assert before > 1.5 * after
        mesh.kill(mesh.leader(pipeline))
        mesh.start("enumerator")
        pipeline.next_epoch(1)
        assert pipeline.status()["enumerator"]["limits"]["rows_per_second"] == 200
        assert rate(pipeline, table, 400) < 350
        assert rows_done(pipeline, table) < 20_000
        asyncio.run(standalone.throttle(mesh.redis.url, "slow", Limits()))
        pipeline.until(lambda: pipeline.shows(table), "the whole table", 90)


@contextmanager
def busy(server: Database, threads: int) -> Iterator[None]:
    """So many connections at work, until the end of the `with`."""

    def work(connection: pymysql.connections.Connection[object]) -> None:
        with suppress(pymysql.MySQLError):
            connection.cursor().execute("SELECT SLEEP(600)")

    connections = [server.connect() for _ in range(threads)]
    workers = [threading.Thread(target=work, args=(one,), daemon=True) for one in connections]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for one in connections:
            server.execute(f"KILL {one.thread_id()}")
        for worker in workers:
            worker.join()


def test_readers_wait_while_the_source_is_busy_and_say_so(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    table = filled(source, fresh_database(source), 1000)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        with busy(source, 30):
            running = "SHOW GLOBAL STATUS LIKE 'Threads_running'"
            waited(lambda: int(source.execute(running)[0][1]) > 25, "a busy server", 30)
            pipeline = mesh.pipeline("polite", source, [table], snapshot={"max_threads_running": 20})

            def told() -> bool:
                return "less busy" in (pipeline.status().get("reader-0", {}).get("waiting_for") or "")

            pipeline.until(told, "the reader to wait")
            pipeline.goes_on(1)
            assert rows_done(pipeline, table) == 0
        pipeline.until(lambda: pipeline.shows(table), "the table, now that nothing keeps it")
        pipeline.until(lambda: pipeline.status()["reader-0"]["waiting_for"] is None, "nothing to be waited for")
