"""`python -m tools.bench.peers` (`make bench-peers`): Cutline's readers and other tools in turn, on the same table.

| figure | Cutline | other tools |
|---|---|---|
| `snapshot` | to Arrow; to Iceberg, until the lake shows the rows | ConnectorX to Arrow, PyMySQL, Debezium, Flink CDC |
| `backlog` | updates in transactions of 100, to Arrow | mysql-replication, Debezium, Flink CDC |

Debezium and Flink CDC write into a sink that only counts rows. The table has the shape of TPC-DS `customer`. Each round
measures each reader once, one after the other, since a machine's speed changes over time; the table at the end has the
medians and the ratios of Cutline's figures to the others'. PyMySQL and mysql-replication, whose speed does not depend
on the size, read only some of the rows. CPU is that of the client's processes (for Iceberg of the whole mesh), without
the server's; memory is the peak of the largest process.

stdout has one JSON line for each measurement, stderr the table and the progress. Exit code 1 if a reader failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cutline.common.positions import Position
from cutline.services.sources.mysql.connection import Source
from tests.support.databases import MySQL
from tools.bench.customer import Changes, load
from tools.bench.mesh import BenchMesh
from tools.bench.peers import clients
from tools.bench.peers.jvm import Failed, Peer, peers
from tools.bench.pipelines import copied
from tools.bench.readers import Figures, binlog_to_arrow, in_a_fresh_process, place, select_to_arrow
from tools.programs import Missing

TABLE = "tpcds.customer"
ROWS, CHANGES, ROUNDS = 1_000_000, 200_000, 3
PYMYSQL_ROWS, REPLICATION_CHANGES = 200_000, 20_000
JVM = {"debezium": "Debezium", "flink": "Flink CDC"}
OURS = {"snapshot": ("Cutline to Arrow", "Cutline to Iceberg"), "backlog": ("Cutline to Arrow",)}


class Comparison:
    """One run: the measurements, and the readers that failed with their reasons."""

    def __init__(self, server: MySQL, rows: int, changes: int) -> None:
        self.server, self.rows, self.changes = server, rows, changes
        self.source = Source(host=server.host, port=server.port, user=server.user, password=server.password)
        self.measured: dict[tuple[str, str], list[Figures]] = {}
        self.missing: dict[str, str] = {}
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """Print progress."""
        print(f"[{time.monotonic() - self._begun:6.1f} s] {text}", file=sys.stderr, flush=True)

    def measure(self, figure: str, peer: str, work: Callable[[], Figures]) -> None:
        """Measure a reader once and print the figures; a reader that failed before is left out."""
        if peer in self.missing:
            return
        before = os.getloadavg()[0]
        try:
            found = work()
        except (Failed, ImportError, RuntimeError) as reason:
            self.missing[peer] = f"{figure}: {reason}"
            self.say(f"{peer} failed: {reason}")
            return
        found["rows_per_second"] = round(found["rows"] / found["seconds"])
        found["rows_per_cpu_second"] = round(found["rows"] / found["cpu_seconds"])
        self.measured.setdefault((figure, peer), []).append(found)
        kept = {name: value for name, value in found.items() if not isinstance(value, dict)}
        print(json.dumps({"figure": figure, "peer": peer, **kept, "load_before": round(before, 2)}), flush=True)

    def snapshot(self, mesh: BenchMesh, jvm: dict[str, Peer], number: int) -> None:
        """Measure a snapshot by each reader."""
        host, port = self.server.host, self.server.port
        self.measure("snapshot", "Cutline to Arrow", lambda: in_a_fresh_process(select_to_arrow, self.source, TABLE))
        self.measure("snapshot", "Cutline to Iceberg", lambda: self._published(mesh, number))
        self.measure(
            "snapshot",
            f"ConnectorX {_version('connectorx')}",
            lambda: in_a_fresh_process(clients.connectorx, host, port, TABLE),
        )
        limit = min(self.rows, PYMYSQL_ROWS)
        self.measure(
            "snapshot",
            f"PyMySQL {_version('pymysql')}",
            lambda: in_a_fresh_process(clients.pymysql_rows, host, port, TABLE, limit),
        )
        for name, peer in jvm.items():
            self.measure("snapshot", f"{JVM[name]} {peer.version}", partial(peer.run, "snapshot", port, self.rows))

    def backlog(self, jvm: dict[str, Peer], begin: Position, end: Position) -> None:
        """Measure a backlog of changes by each reader."""
        host, port = self.server.host, self.server.port
        self.measure(
            "backlog",
            "Cutline to Arrow",
            lambda: in_a_fresh_process(binlog_to_arrow, self.source, TABLE, begin, end),
        )
        limit = min(self.changes, REPLICATION_CHANGES)
        self.measure(
            "backlog",
            f"mysql-replication {_version('mysql-replication')}",
            lambda: in_a_fresh_process(clients.mysql_replication, host, port, TABLE, begin.file, begin.offset, limit),
        )
        for name, peer in jvm.items():
            gtids = [begin.gtids] if name == "debezium" else []
            self.measure(
                "backlog",
                f"{JVM[name]} {peer.version}",
                partial(peer.run, "backlog", port, self.changes, begin.file, begin.offset, *gtids),
            )

    def _published(self, mesh: BenchMesh, number: int) -> Figures:
        with copied(mesh, f"customer-{number}", TABLE) as pipeline:
            found = pipeline.snapshot(self.rows)
        found["peak_rss_mib"] = max(found["peak_rss_mib_of"].values())
        return found

    def table(self) -> Table:
        """The medians of the rounds, and the ratios of Cutline's figures to each other reader's."""
        shown = Table(title=f"MySQL {self.server.version}, {self.rows:,} rows, {self.changes:,} changes; medians")
        for name in ("figure", "reader", "rows/s", "rows per CPU-second", "peak MiB", "ours / theirs", "by CPU"):
            shown.add_column(name, justify="left" if name in ("figure", "reader") else "right")
        for (figure, peer), found in self.measured.items():
            middle = _medians(found)
            ratios = ["", ""]
            if peer not in OURS[figure]:
                ours = [
                    _medians(self.measured[figure, name]) for name in OURS[figure] if (figure, name) in self.measured
                ]
                ratios = [
                    " and ".join(f"{medians[name] / middle[name]:.1f}" for medians in ours)
                    for name in ("rows_per_second", "rows_per_cpu_second")
                ]
            numbers = (f"{middle[name]:,.0f}" for name in ("rows_per_second", "rows_per_cpu_second", "peak_rss_mib"))
            shown.add_row(figure, peer, *numbers, *ratios)
        return shown


def _medians(found: list[Figures]) -> dict[str, float]:
    names = ("rows_per_second", "rows_per_cpu_second", "peak_rss_mib")
    return {name: statistics.median(figures[name] for figures in found) for name in names}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def main() -> int:
    """Run the comparison; exit code 1 if a reader failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.peers", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of the table (default {ROWS:,})")
    parser.add_argument("--changes", type=int, default=CHANGES, help=f"changes in the backlog (default {CHANGES:,})")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds, of which the medians are shown (default {ROUNDS})"
    )
    chosen = parser.parse_args()
    changes = min(chosen.changes, chosen.rows)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are removed
    own: dict[str, Any] = {"innodb_buffer_pool_size": "2G", "max_binlog_size": "1G", "innodb_redo_log_capacity": "1G"}
    console = Console(stderr=True, width=120)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder,
            MySQL(**own) as server,
            peers(tuple(JVM)) as (jvm, missing),
            BenchMesh(server, Path(folder)) as mesh,
        ):
            run = Comparison(server, chosen.rows, changes)
            run.missing |= {JVM[name]: reason for name, reason in missing.items()}
            run.say(f"loads {chosen.rows:,} rows into {TABLE}, writes {changes:,} changes")
            load(server, TABLE, chosen.rows)
            server.execute(f"ANALYZE TABLE {TABLE}")  # Debezium can't begin after an empty set of GTIDs
            begin = place(run.source)
            Changes(server, TABLE, chosen.rows).write(changes, 100)
            end = place(run.source)
            run.say("warms Spark up")
            mesh.warm()
            for number in range(1, chosen.rounds + 1):
                run.say(f"round {number} of {chosen.rounds}")
                run.snapshot(mesh, jvm, number)
                run.backlog(jvm, begin, end)
    except Missing as reason:
        print(f"bench-peers: {reason}", file=sys.stderr)
        return 1
    console.print(run.table())
    for peer, why in run.missing.items():
        print(f"bench-peers: {peer} was not measured: {why}", file=sys.stderr)
    return 1 if run.missing else 0


if __name__ == "__main__":
    sys.exit(main())
