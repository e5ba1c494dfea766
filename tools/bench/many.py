"""`idle_checkpoint`, `many_tables`, `many_tables_first`: the cost of a pipeline of thousands of tables, on real servers
and processes.

A procedure makes the tables, outside the binlog and in one tablespace. Except in `many_tables_first` the pipeline has
`start: latest`, so its tables are live at once: each is described and followed in the binlog, and none is read in
chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.mesh.loop import LoopLag
from cutline.common.phases import LIVE
from cutline.common.status.pipeline_status import PipelineStatus, ReaderStatus
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.run.lake import CATALOG_FILE
from tests.support.databases import Database
from tools.bench.mesh import BenchMesh
from tools.bench.readers import Figures

COLUMNS = 20
IDLE_CHECKPOINTS = 8
CHANGES = 10
"""Rows changed in each table by `many_tables`."""
_FOR_EACH_TABLE = """
CREATE PROCEDURE {database}.{name}(tables INT)
BEGIN
    DECLARE number INT DEFAULT 0;
    START TRANSACTION;
    WHILE number < tables DO
        SET @statement = CONCAT('{before} {database}.t', number, ' {after}');
        PREPARE prepared FROM @statement;
        EXECUTE prepared;
        SET number = number + 1;
    END WHILE;
    COMMIT;
END
"""
"""A procedure that runs one statement for each table, in one transaction (CREATE TABLE commits by itself)."""


def make(server: Database, database: str, tables: int) -> None:
    """Make a database of so many tables of COLUMNS columns, and two procedures.

    `fill` inserts CHANGES rows into each table, `alter_all` changes those rows; each in one transaction.
    """
    kinds = ("int", "varchar(40)", "decimal(12,2)", "datetime")
    columns = ["column_0 bigint PRIMARY KEY", *(f"column_{n} {kinds[n % 4]}" for n in range(1, COLUMNS))]
    rows = ", ".join(f"({n}, ''name {n}'', {n})" for n in range(CHANGES))
    procedures = {
        "make": ("CREATE TABLE", f"({', '.join(columns)})"),
        "fill": ("INSERT INTO", f"(column_0, column_1, column_2) VALUES {rows}"),
        "alter_all": ("UPDATE", "SET column_2 = column_2 + 1, column_4 = 7"),
    }
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in (
            "SET SESSION sql_log_bin = 0",
            "SET GLOBAL innodb_file_per_table = OFF",  # a file for each table takes ten times as long
            f"CREATE DATABASE {database}",
            *(
                _FOR_EACH_TABLE.format(database=database, name=name, before=before, after=after)
                for name, (before, after) in procedures.items()
            ),
            f"CALL {database}.make({tables})",
        ):
            cursor.execute(statement)


class Crowd:
    """One pipeline of many tables."""

    def __init__(
        self, mesh: BenchMesh, database: str, tables: int, *, interval_seconds: float, start: str = "latest"
    ) -> None:
        self.mesh, self.database, self.tables = mesh, database, tables
        self.config: PipelineConfig = mesh.pipeline(
            database, f"{database}.*", start=start, checkpoint={"interval_seconds": interval_seconds}
        )
        self.store: PipelineStore = mesh.store.pipeline(database)

    def status(self) -> PipelineStatus:
        """What the services report of the pipeline, without its tables: to read these again and again would take a
        whole core from the services that are measured."""
        with self.mesh.redis.client() as client:
            found: Any = client.hgetall(f"cutline:status:{self.store.key}")
        parts = {part.decode(): json.loads(body) for part, body in found.items() if part != b"tables"}
        return PipelineStatus.put_together(parts, {})

    def go_live(self) -> None:
        """Define the pipeline, and wait until a checkpoint shows all its tables as live."""
        self.mesh.start("workers", "enumerators")
        self.mesh.ready("workers", "enumerators")
        self.mesh.define(self.config)

        def live() -> bool:
            with self.mesh.redis.client() as client:
                body: Any = client.hget(f"cutline:status:{self.store.key}", "tables")
            tables = json.loads(body or "{}").values()
            return len(tables) == self.tables and all(table["phase"] == LIVE for table in tables)

        self.mesh.wait("all tables are live", live)
        self.checkpoints(2)

    def checkpoints(self, more: int) -> None:
        """Wait until the journal has this many more slots."""
        slot = self.store.last_slot() + more
        self.mesh.wait(f"slot {slot} of the journal is written", lambda: self.store.last_slot() >= slot)

    def lags(self) -> dict[str, float]:
        """The longest time in ms that each service's event loop was blocked in the last 15 s, by role and pid."""
        with self.mesh.redis.client() as client:
            bodies: list[Any] = [client.get(key) for key in client.scan_iter("cutline:service:*")]
        found = [json.loads(body) for body in bodies if body]
        return {
            f"{service['role']}-{service['pid']}": 1000 * service["loop_lag_seconds"]
            for service in found
            if service["loop_lag_seconds"] is not None
        }

    def idle(self) -> Figures:
        """Take checkpoints while nothing changes, then restart all processes and measure the restore.

        `loop_ms` is what the services add to the machine's own pauses, `machine_ms`. Both are medians over the
        checkpoints of the longest delay of a call within 15 s: of all services, and of an idle process beside them.
        """
        self.checkpoints(2)  # past the last change, the one that made all tables live
        slot, stored, lags = self.store.last_slot(), _files(self.mesh.folder), []
        with _idle_loop() as machine_ms:
            while (taken := self.store.last_slot() - slot) < IDLE_CHECKPOINTS:
                self.checkpoints(1)
                lags.append((machine_ms(), self.lags()))
        store_bytes = sum(size for path, size in _files(self.mesh.folder).items() if path not in stored) / taken

        self.mesh.stop("enumerators", "workers")
        self.mesh.start("workers")
        self.mesh.ready("workers")
        begun, epoch = time.time(), self.status().enumerator.epoch
        self.mesh.start("enumerators")

        def restored() -> bool:
            status = self.status()
            leader, reader = status.enumerator, status.readers.get("reader-0", ReaderStatus())
            return leader.state == "leading" and leader.epoch > epoch and (reader.at or 0.0) > begun

        self.mesh.wait("an epoch is led, and its reader goes on", restored)
        restore_seconds = time.time() - begun
        self.checkpoints(1)  # proves that the restored pipeline works
        most: dict[str, float] = {}
        for _, sample in lags:
            for name, ms in sample.items():
                role = name.partition("-")[0]
                most[role] = max(most.get(role, 0.0), ms)
        return {
            "tables": self.tables,
            "columns": COLUMNS,
            "checkpoints": taken,
            "loop_ms": round(statistics.median(max(0.1, max(late.values()) - machine) for machine, late in lags), 1),
            "machine_ms": round(statistics.median(machine for machine, _ in lags), 1),
            "late_ms_at_most_of": {role: round(ms, 1) for role, ms in sorted(most.items())},
            "store_bytes": round(store_bytes),
            "restore_seconds": round(restore_seconds, 2),
        }

    def first(self) -> Figures:
        """Measure from the pipeline's definition, with all services up, until `main` shows the rows of every table."""
        self.mesh.server.execute(f"CALL {self.database}.fill({self.tables})")
        self.mesh.start("workers", "enumerators")
        self.mesh.ready("workers", "enumerators")
        with self.mesh.metered() as meter:
            begun = time.monotonic()
            self.mesh.define(self.config)
            waiting = {f"{self.database}.t{number}" for number in range(self.tables)}

            def in_checkpoint() -> bool:
                entry = self.store.entry(self.store.last_slot())
                tables = entry.tables if isinstance(entry, CheckpointEntry) else {}
                return len(tables) == self.tables and all(table.phase == "live" for table in tables.values())

            def shown() -> bool:
                catalog = Path(self.config.sink.warehouse) / CATALOG_FILE
                with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=5.0)) as lake:
                    found = lake.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables")
                    places = {f"{namespace}.{name}": place for namespace, name, place in found}
                waiting.difference_update([table for table in waiting if _rows_shown(places.get(table)) == CHANGES])
                return not waiting

            self.mesh.wait("a checkpoint has all tables live", in_checkpoint, 1800.0)
            mesh_seconds = time.monotonic() - begun
            self.mesh.wait("every table is shown", shown, 1800.0)
            seconds = time.monotonic() - begun
        return {
            "tables": self.tables,
            "columns": COLUMNS,
            "rows_of_each": CHANGES,
            "seconds": round(seconds, 2),
            "mesh_seconds": round(mesh_seconds, 2),
            "publications": len(self.store.publication_numbers()),
            "cpu_seconds": round(meter.cpu_seconds, 2),
            "peak_rss_mib_of": {name: round(mib) for name, mib in sorted(meter.peak_of.items())},
            "cpu_seconds_of": {name: round(cpu, 2) for name, cpu in sorted(meter.cpu_of.items()) if cpu >= 0.05},
        }

    def change(self) -> Figures:
        """Measure one transaction over all tables: from its commit to the checkpoint that contains it (including the
        wait for that checkpoint to start), and from there to its publication.

        An earlier transaction has made the tables in the lake.
        """
        self._changed("fill")
        with self.mesh.metered() as meter:
            committed, entry, applied = self._changed("alter_all")
        spark = [name for name in meter.cpu_of if name.startswith("spark-writer")]
        peaks = {name: mib for name, mib in meter.peak_of.items() if name not in spark and name != "redis"}
        return {
            "tables": self.tables,
            "columns": COLUMNS,
            "changes_of_each": CHANGES,
            "mesh_seconds": round(entry.written_at - committed, 2),
            "apply_seconds": round(applied - entry.written_at, 2),
            "apply_cpu_seconds_per_table": round(sum(meter.cpu_of[name] for name in spark) / self.tables, 4),
            "peak_rss_mib": round(max(peaks.values())),
            "peak_rss_mib_of": {name: round(mib) for name, mib in sorted(meter.peak_of.items())},
            "cpu_seconds_of": {name: round(cpu, 2) for name, cpu in sorted(meter.cpu_of.items()) if cpu >= 0.05},
        }

    def _changed(self, procedure: str) -> tuple[float, Any, float]:
        """Call the procedure; return the time of its commit, the entry of the checkpoint that completes it and the time
        of its publication. An earlier checkpoint may have been taken inside the transaction."""
        slot, rows = self.store.last_slot(), 0
        self.mesh.server.execute(f"CALL {self.database}.{procedure}({self.tables})")
        committed = time.time()

        def staged() -> Any:
            nonlocal slot, rows
            while slot < self.store.last_slot():
                slot += 1
                entry: Any = self.store.entry(slot)
                if isinstance(entry, CheckpointEntry):
                    rows += sum(file.rows for file in entry.staged)
                    if rows >= self.tables * CHANGES:
                        return entry
            return None

        entry = self.mesh.wait("checkpoints have the changes", staged)
        if rows != self.tables * CHANGES:
            raise RuntimeError(f"checkpoints have {rows} rows, and the transaction changed {self.tables * CHANGES}")
        self.mesh.wait(
            "the changes are published", lambda: max(self.store.publication_numbers(), default=0) >= slot, 1800.0
        )
        return committed, entry, time.time()


@contextlib.contextmanager
def _idle_loop() -> Iterator[Callable[[], float]]:
    """An event loop that does nothing, in a process of its own; yields a function that returns its `LoopLag` in ms."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_measure_lag, args=(its,), daemon=True)
    process.start()

    def longest() -> float:
        ours.send(None)
        lag: float = ours.recv()
        return 1000 * lag

    try:
        yield longest
    finally:
        process.kill()
        process.join()


def _measure_lag(pipe: Connection) -> None:
    async def answer() -> None:
        lag = LoopLag()
        while True:
            await asyncio.to_thread(pipe.recv)
            pipe.send(lag.longest())

    asyncio.run(answer())


def _rows_shown(place: str | None) -> int | None:
    """The rows that `main` shows by a metadata file, None if it shows nothing yet."""
    if place is None:
        return None
    metadata = json.loads(Path(place.removeprefix("file://").removeprefix("file:")).read_text(encoding="utf-8"))
    main = metadata.get("refs", {}).get("main", {}).get("snapshot-id")
    summaries = {snapshot["snapshot-id"]: snapshot["summary"] for snapshot in metadata.get("snapshots", [])}
    return None if main is None else int(summaries[main]["total-records"])


def _files(folder: Path) -> dict[str, int]:
    """The sizes of all files of the store, by path."""
    found = {}
    for parent, _, names in os.walk(folder / "store"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a service removed it just now
                path = os.path.join(parent, name)
                found[path] = os.stat(path).st_size
    return found
