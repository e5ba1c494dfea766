"""`idle_checkpoint`, `many_tables`: what a pipeline of thousands of tables costs, on real servers and processes.

The tables are made by a procedure, out of the binlog and in one tablespace, and are live at once, as the pipeline is to
`start: latest`: each is described and goes to the incremental split, only no chunk of it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from tests.bench.mesh import Mesh
from tests.bench.readers import Figures
from tests.servers import Database

COLUMNS = 20
IDLE_CHECKPOINTS = 8
CHANGES = 10
"""Of each table, in `many_tables`."""
_MAKE = """
CREATE PROCEDURE {database}.make(tables INT)
BEGIN
    DECLARE at INT DEFAULT 0;
    WHILE at < tables DO
        SET @statement = CONCAT('CREATE TABLE {database}.t', at, ' ({columns})');
        PREPARE prepared FROM @statement;
        EXECUTE prepared;
        SET at = at + 1;
    END WHILE;
END
"""
_CHANGE = """
CREATE PROCEDURE {database}.{name}(tables INT)
BEGIN
    DECLARE at INT DEFAULT 0;
    START TRANSACTION;
    WHILE at < tables DO
        SET @statement = CONCAT('{verb} {database}.t', at, ' {what}');
        PREPARE prepared FROM @statement;
        EXECUTE prepared;
        SET at = at + 1;
    END WHILE;
    COMMIT;
END
"""


def make(server: Database, database: str, tables: int) -> None:
    """Make a database of so many tables of COLUMNS columns, and two procedures: `fill` inserts CHANGES rows into each,
    `alter_all` changes those, all in one transaction."""
    kinds = ("int", "varchar(40)", "decimal(12,2)", "datetime")
    columns = ["column_0 bigint PRIMARY KEY", *(f"column_{at} {kinds[at % 4]}" for at in range(1, COLUMNS))]
    rows = ", ".join(f"({at}, ''name {at}'', {at})" for at in range(CHANGES))
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in (
            "SET SESSION sql_log_bin = 0",
            "SET GLOBAL innodb_file_per_table = OFF",  # a file for each takes ten times as long
            f"CREATE DATABASE {database}",
            _MAKE.format(database=database, columns=", ".join(columns)),
            _CHANGE.format(
                database=database, name="fill", verb="INSERT INTO", what=f"(column_0, column_1, column_2) VALUES {rows}"
            ),
            _CHANGE.format(
                database=database, name="alter_all", verb="UPDATE", what="SET column_2 = column_2 + 1, column_4 = 7"
            ),
            f"CALL {database}.make({tables})",
        ):
            cursor.execute(statement)


class Crowd:
    """One pipeline of many tables."""

    def __init__(self, mesh: Mesh, database: str, tables: int, *, interval_seconds: float) -> None:
        self.mesh, self.database, self.tables = mesh, database, tables
        self.config: PipelineConfig = mesh.pipeline(
            database, f"{database}.*", start="latest", checkpoint={"interval_seconds": interval_seconds}
        )
        self.store: PipelineStore = mesh.store.pipeline(database)

    def status(self) -> Mapping[str, Any]:
        """What the services show of the pipeline."""
        with self.mesh.redis.client() as client:
            found: Any = client.hgetall(f"cutline:status:{self.config.name}")
        return {part.decode(): json.loads(body) for part, body in found.items()}

    def go_live(self) -> None:
        """Define the pipeline, and wait until a checkpoint has all its tables as live."""
        self.mesh.start("workers", "enumerators")
        self.mesh.ready("workers", "enumerators")
        self.mesh.define(self.config)

        def live() -> bool:
            tables = self.status().get("tables", {}).values()
            return len(tables) == self.tables and all(table["phase"] == "live" for table in tables)

        self.mesh.wait("all tables are live", live)
        self.checkpoints(2)

    def checkpoints(self, more: int) -> None:
        """Wait for so many more slots of the journal."""
        slot = self.store.last_slot() + more
        self.mesh.wait(f"slot {slot} of the journal is written", lambda: self.store.last_slot() >= slot)

    def lags(self) -> dict[str, float]:
        """The longest hold of each service's event loop in the last 15 s, in ms, by role and pid."""
        with self.mesh.redis.client() as client:
            bodies: list[Any] = [client.get(key) for key in client.scan_iter("cutline:service:*")]
        found = [json.loads(body) for body in bodies if body]
        return {
            f"{one['role']}-{one['pid']}": 1000 * one["loop_lag_seconds"]
            for one in found
            if one["loop_lag_seconds"] is not None
        }

    def idle(self) -> Figures:
        """Checkpoints while nothing changes, then a restore, by the same processes started anew."""
        self.checkpoints(2)  # that all are live was the last change
        slot, stored, lags = self.store.last_slot(), _files(self.mesh.folder), []
        while (taken := self.store.last_slot() - slot) < IDLE_CHECKPOINTS:
            self.checkpoints(1)
            lags.append(self.lags())
        store_bytes = sum(size for path, size in _files(self.mesh.folder).items() if path not in stored) / taken

        self.mesh.stop("enumerators", "workers")
        self.mesh.start("workers")
        self.mesh.ready("workers")
        begun = time.time()
        self.mesh.start("enumerators")
        self.mesh.wait("the reader goes on", lambda: self.status().get("reader-0", {}).get("at", 0.0) > begun)
        restore_seconds = time.time() - begun
        self.checkpoints(1)  # else what was restored might be no good
        of_role: dict[str, float] = {}
        for sample in lags:
            for name, ms in sample.items():
                role = name.partition("-")[0]
                of_role[role] = max(of_role.get(role, 0.0), ms)
        return {
            "tables": self.tables,
            "columns": COLUMNS,
            "checkpoints": taken,
            "loop_ms": round(statistics.median(max(sample.values()) for sample in lags), 1),
            "loop_ms_at_most_of": {role: round(ms, 1) for role, ms in sorted(of_role.items())},
            "store_bytes": round(store_bytes),
            "restore_seconds": round(restore_seconds, 2),
        }

    def change(self) -> Figures:
        """One transaction over all tables: from its commit to the checkpoint that has it, the wait for the checkpoint's
        start included, and on to the publication. One before it has made the tables in the lake."""
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
        """Call it; when it had committed, the entry of the checkpoint that has it all, and when that was published."""
        slot = self.store.last_slot()
        self.mesh.server.execute(f"CALL {self.database}.{procedure}({self.tables})")
        committed = time.time()

        def staged() -> Any:
            nonlocal slot
            while slot < self.store.last_slot():
                slot += 1
                entry: Any = self.store.entry(slot)
                if isinstance(entry, CheckpointEntry) and entry.staged:
                    return entry
            return None

        entry = self.mesh.wait("a checkpoint has the changes", staged)
        if (found := sum(file.rows for file in entry.staged)) != self.tables * CHANGES:
            raise RuntimeError(f"{self.tables * CHANGES} rows changed at once, and checkpoint {slot} has {found}")
        self.mesh.wait(
            "the changes are published", lambda: max(self.store.publication_numbers(), default=0) >= slot, 1800.0
        )
        return committed, entry, time.time()


def _files(folder: Path) -> dict[str, int]:
    """The sizes of all files of the store, by path."""
    found = {}
    for at, _, names in os.walk(folder / "store"):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[os.path.join(at, name)] = os.stat(os.path.join(at, name)).st_size
    return found
