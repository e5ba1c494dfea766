"""An epoch that ends while its source hangs leaves nothing behind: no thread, and no connection at the source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.databases import Database, MariaDB
from tests.support.mesh import Mesh, ServiceProcess
from tests.support.operator import done
from tests.support.stalling import StallingWire

Fresh = Callable[[Database], str]
TIMES = 6
MORE = 2
"""Threads and connections of a process may be as many more than at first, since each epoch begins its own anew."""


def held(service: ServiceProcess, port: int) -> tuple[int, int]:
    """How many threads a process has, and how many connections to this port."""
    process = psutil.Process(service.popen.pid)
    connections = process.net_connections("tcp")
    return process.num_threads(), sum(bool(c.raddr) and c.raddr.port == port for c in connections)


def test_epochs_that_end_while_a_select_hangs_leave_no_thread_and_no_connection_behind(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. The network loses the source's large answers, so that each SELECT of a chunk hangs. 2. The pipeline is paused
    and resumed, again and again. 3. The processes have about as many threads and connections as at first. 4. The
    network works again, and the table is shown."""
    table = f"{fresh_database(mariadb)}.t"
    rows = ",".join(f"({number},'{'z' * 200}')" for number in range(400))
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(200))", f"INSERT INTO {table} VALUES {rows}")
    with StallingWire(mariadb.port).open() as wire, Mesh(tmp_path, readers=1, writers=1) as mesh:
        with wire.stalled("large answers"):
            pipeline = mesh.pipeline("shop", mariadb, [table], port=wire.port)

            def hangs() -> bool:
                return "sent nothing" in str(pipeline.reader().waiting_for)

            pipeline.until(hangs, "a SELECT to hang")
            first = {service.role: held(service, wire.port) for service in mesh.services}
            for _ in range(TIMES):
                before = wire.stalls
                done(pipeline, "pause")
                done(pipeline, "resume")
                pipeline.until(lambda before=before: wire.stalls > before, "the next SELECT to hang")

            def bounded() -> bool:
                now = {service.role: held(service, wire.port) for service in mesh.services}
                return all(
                    count <= before + MORE
                    for role, counts in first.items()
                    for count, before in zip(now[role], counts, strict=True)
                )

            pipeline.until(bounded, f"threads and connections to be those of the beginning, {first}", 20)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
