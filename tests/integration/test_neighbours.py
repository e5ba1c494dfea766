"""A server that hangs holds up its own pipelines, and no other pipeline of the same processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from tests.integration.mesh import Mesh, Pipeline
from tests.servers import Database, MariaDB

Fresh = Callable[[Database], str]
HUNG = 8
"""More pipelines than asyncio's default executor has threads on a small machine."""
ROWS = 40_000


STANDSTILL_SECONDS = 20.0
"""A handshake with a silent server takes 30 s: whoever waits behind one stands still for longer."""
MOST = 1.5
"""Times as long as undisturbed may a copy take, by the medians of three copies each: one of 2 s alone says little.

Undisturbed, the eight neighbours work, and while their server hangs they do not: so this finds whoever waits behind
them, and not a slowdown that is smaller than the cost of their work.
"""


def copied(pipeline: Pipeline, table: str) -> tuple[float, float]:
    """Wait until the table is shown; return the seconds, and the longest time in which no chunk was read."""
    begun = moved = time.monotonic()
    standstill, done = 0.0, 0

    def shown() -> bool:
        nonlocal moved, standstill, done
        now, tables = time.monotonic(), pipeline.status().get("enumerator", {}).get("tables") or {}
        standstill = max(standstill, now - moved)
        if (found := tables.get(table, {}).get("splits_done", 0)) > done:
            moved, done = now, found
        return pipeline.shows(table)

    pipeline.until(shown, f"{table} to be shown", 180)
    return time.monotonic() - begun, standstill


@pytest.mark.alone
def test_a_server_that_hangs_does_not_slow_down_another_pipeline_of_the_same_reader(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Eight pipelines read their snapshot slowly, and one of another server copies 40 MB beside them. 2. The server
    of the eight is suspended (SIGSTOP): each of them says that it waits for an answer. 3. Three pipelines of the
    healthy server copy as much, one after the other, in the same reader: none stands still, and they take about as
    long. 4. The eight go on once theirs does, and two more pipelines copy as much beside them."""
    schema = fresh_database(mariadb)
    rows = ",".join(f"({number},'{'z' * 1000}')" for number in range(ROWS // 10))
    mariadb.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, a VARCHAR(2000) NOT NULL)")
    mariadb.execute(f"INSERT INTO {schema}.t VALUES {rows}")
    for times in range(1, 10):
        mariadb.execute(
            f"INSERT INTO {schema}.t SELECT id + {times * ROWS // 10}, a FROM {schema}.t WHERE id < {ROWS // 10}"
        )
    for name in ("hung0", "hung1", "hung2", "after0", "after1"):
        mariadb.execute(
            f"CREATE TABLE {schema}.{name} LIKE {schema}.t", f"INSERT INTO {schema}.{name} SELECT * FROM {schema}.t"
        )
    with MariaDB() as hung, Mesh(tmp_path, readers=1, writers=1) as mesh:
        hung.execute("CREATE DATABASE x")
        few = ",".join(f"({number})" for number in range(4000))
        for number in range(HUNG):
            hung.execute(f"CREATE TABLE x.t{number} (id INT PRIMARY KEY)", f"INSERT INTO x.t{number} VALUES {few}")
        slow = {"max_rows_per_second": 60, "chunk_rows": 50}
        stuck = [mesh.pipeline(f"stuck{n}", hung, [f"x.t{n}"], snapshot=slow) for n in range(HUNG)]
        for number, pipeline in enumerate(stuck):

            def reads(pipeline: Pipeline = pipeline, table: str = f"x.t{number}") -> bool:
                found = pipeline.status().get("enumerator", {}).get("tables") or {}
                return bool(found.get(table, {}).get("splits_done", 0) > 1)

            pipeline.until(reads, "its snapshot to be read")
        undisturbed = [copied(mesh.pipeline("before", mariadb, [f"{schema}.t"], chunk_rows=2000), f"{schema}.t")[0]]
        disturbed = []
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            for pipeline in stuck:
                pipeline.until(
                    lambda pipeline=pipeline: "the source" in (pipeline.status()["reader-0"]["waiting_for"] or ""),
                    "its reader to wait for the source",
                    150,
                )
            for name in ("hung0", "hung1", "hung2"):
                healthy = mesh.pipeline(name, mariadb, [f"{schema}.{name}"], chunk_rows=2000)
                seconds, standstill = copied(healthy, f"{schema}.{name}")
                disturbed.append(seconds)
                assert standstill < STANDSTILL_SECONDS
                assert len(healthy.epochs()) == 1
        finally:
            os.kill(hung.pid, signal.SIGCONT)
        for number, pipeline in enumerate(stuck):
            done = pipeline.status()["enumerator"]["tables"][f"x.t{number}"]["splits_done"]

            def goes_on(pipeline: Pipeline = pipeline, table: str = f"x.t{number}", done: int = done) -> bool:
                return bool(pipeline.status()["enumerator"]["tables"][table]["splits_done"] > done)

            pipeline.until(goes_on, "its snapshot to go on")
        for name in ("after0", "after1"):
            pipeline = mesh.pipeline(name, mariadb, [f"{schema}.{name}"], chunk_rows=2000)
            undisturbed.append(copied(pipeline, f"{schema}.{name}")[0])
        figures = f"undisturbed {[round(s, 1) for s in undisturbed]}, while it hangs {[round(s, 1) for s in disturbed]}"
        print(f"{ROWS} rows beside {HUNG} pipelines, seconds: {figures}")
        assert median(disturbed) < MOST * median(undisturbed), figures
