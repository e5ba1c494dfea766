"""`python -m tools.bench` (`make bench`): one JSON line for each measurement on stdout, progress on stderr.

| name | measured |
|---|---|
| `select_to_arrow` | the chunks of a table to Arrow, one process; CPU of the client; median of three runs |
| `binlog_to_arrow` | a backlog of updates to Arrow, in transactions of 1, of 100, and one of all; the same |
| `snapshot_to_iceberg` | with Spark warm: from the pipeline's definition to `main` of the table in the lake |
| `changes_to_iceberg` | a backlog of distinct random keys, from the start of the enumerators to `main` at its end |
| `shaped_snapshot`, `shaped_changes` | both again with a rule: the ratio of the rows a CPU-second to those without |
| `freshness` | 1,000 single-row transactions a second: from the return of the commit to `main`, p50 and p99 |
| `apply_curve` | 1,000 updates of tables of up to 20,000,000 rows, three types of key: the CPU, and the ratio |
| `idle_checkpoint` | 10,000 live tables at rest: an event loop's longest hold, bytes stored, and seconds of a restore |
| `apply_driver` | 500,000 and 5,000,000 changes by Spark on two executors: the CPU of the driver, and the ratio |
| `spark_engine` | 1,000,000 changes of 5,000,000 rows by Spark on two cores, compared with the own process |
| `history_changes` | 500,000 changes of 5,000,000 rows of which each version is kept, from staged files to `main` |
| `derived` | a join of two tables of 5,000,000 rows with a GROUP BY, 1,000 changes: the CPU by keys to that in full |
| `many_tables` | 10 changes in each of 2,000 tables, one transaction: from its commit to the checkpoint, to the lake |
| `many_tables_first` | 2,000 tables of 10 rows, Spark warm: from the pipeline's definition to `main` of the last one |
| `spark_start` | a new process starts Spark and publishes twice: its CPU, by the CPU without `cutline setup` |
| `api_tables` | `GET .../tables` of 5,000 tables, 20 times a second, while rows change: p50 and p99 of the answer |
| `dashboard` | an empty Chromium opens a pipeline of 1,000 tables: its first paint, and until the tables are there |

The bench starts its own servers and removes them and all files at its end. CPU is that of all processes of Cutline
(Python, JVM, Redis), without the source's server. `of_bar` is the ratio of a figure to its bar, above 1 if the figure
is better; stderr names each missed bar. About 25 minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutline.services.sources.mysql.connection import Source
from tests.support.databases import Database, MariaDB, MySQL
from tools.bench.api import api_tables
from tools.bench.applying import apply_driver
from tools.bench.curve import KEYS, LARGE, apply_curve
from tools.bench.customer import Changes, Transactions, load
from tools.bench.dashboard import opened
from tools.bench.derived import derived
from tools.bench.engines import spark_engine
from tools.bench.many import Crowd, make
from tools.bench.mesh import BenchMesh
from tools.bench.pipelines import RULE, copied
from tools.bench.readers import Figures, binlog_to_arrow, in_a_fresh_process, place, select_to_arrow
from tools.bench.starting import spark_start
from tools.bench.versions import history_changes
from tools.programs import Missing

INTO_THE_LAKE = ("snapshot_to_iceberg", "changes_to_iceberg", "shaped_snapshot", "shaped_changes")
OF_A_LARGE_TABLE = ("select_to_arrow", "binlog_to_arrow", *INTO_THE_LAKE)
NAMES = (
    *OF_A_LARGE_TABLE,
    *("freshness", "apply_driver", "spark_engine", "apply_curve", "history_changes", "derived", "idle_checkpoint"),
    *("many_tables", "many_tables_first", "api_tables", "spark_start", "dashboard"),
)
ROWS = 5_000_000
TABLE = "tpcds.customer"
FRESH_TABLE = "fresh.customer"
FRESH_ROWS = 1_000_000
FRESH_PER_SECOND = 1000
FRESH_SECONDS = 60.0
INTERVALS_SECONDS = (10.0, 1.0)
BACKLOG_ROWS = 1_000_000
_BINLOG: tuple[tuple[Transactions, int], ...] = ((1, 200_000), (100, 300_000), ("bulk", 2_000_000))
RUNS = 3
IDLE_TABLES = 10_000
CHANGED_TABLES = 2_000
API_TABLES = 5_000
AT_LEAST: dict[str, Figures] = {
    "select_to_arrow": {"rows_per_cpu_second": 1_000_000},
    "binlog_to_arrow": {"rows_per_cpu_second": 300_000},
    "snapshot_to_iceberg": {"rows_per_second": 150_000, "rows_per_cpu_second": 200_000},
    "changes_to_iceberg": {"rows_per_second": 100_000},
    "shaped_snapshot": {"ratio": 0.6},
    "shaped_changes": {"ratio": 0.5},
    "history_changes": {"rows_per_second": 50_000},
}
AT_MOST: dict[str, Figures] = {
    "apply_driver": {"ratio": 3.0},
    "spark_engine": {"cpu_ratio": 1.5, "extra_seconds": 0.5},
    "apply_curve": {"ratio": 3.0, "cpu_seconds": 1.0},
    "idle_checkpoint": {"loop_ms": 20.0, "store_bytes": 65_536, "restore_seconds": 15.0},
    "api_tables": {"p99_ms": 150},
    "derived": {"cpu_ratio": 0.1},
    "dashboard": {"first_paint_ms": 1_000},
    "many_tables": {
        "mesh_seconds": 5.0,
        "apply_seconds": 40.0,
        "peak_rss_mib": 400,
        "apply_cpu_seconds_per_table": 0.1,
    },
    "many_tables_first": {"seconds": 60.0},
    "spark_start": {"ratio": 0.75},
}
FRESH_AT_MOST: dict[float, Figures] = {10.0: {"p99_ms": 20_000}, 1.0: {"p99_ms": 1_500, "cpu_seconds": 40.0}}
"""Bars of `freshness`, by the checkpoint interval."""


def median(work: Callable[..., Figures], *arguments: Any) -> Figures:
    """Run `work` three times, each in a new process; return the median by CPU, with the figures of all runs."""
    runs = [in_a_fresh_process(work, *arguments) for _ in range(RUNS)]
    runs.sort(key=lambda run: run["rows_per_cpu_second"])
    return runs[RUNS // 2] | {"rows_per_cpu_second_of_runs": [run["rows_per_cpu_second"] for run in runs]}


def of_bar(name: str, figures: Figures, interval: object) -> dict[str, float]:
    """The ratio of each figure to its bar, above 1 if better; for figures that have a bar. Of one that is to be small,
    nothing or less counts as a hundredth of its bar."""
    times = {figure: figures[figure] / bar for figure, bar in AT_LEAST.get(name, {}).items()}
    small = {figure: bar for figure, bar in AT_MOST.get(name, {}).items() if figure in figures}
    times |= {figure: bar / max(figures[figure], bar / 100) for figure, bar in small.items()}
    if name == "freshness" and isinstance(interval, float):
        times |= {figure: bar / figures[figure] for figure, bar in FRESH_AT_MOST[interval].items()}
    return {figure: round(number, 2) for figure, number in times.items()}


class Bench:
    """One run on one server."""

    def __init__(self, server: Database, rows: int, only: frozenset[str], folder: Path) -> None:
        self.server, self.rows, self.only, self.folder = server, rows, only, folder
        self.source = Source(host=server.host, port=server.port, user=server.user, password=server.password)
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """Print progress."""
        print(f"[{time.monotonic() - self._begun:6.1f} s] {text}", file=sys.stderr, flush=True)

    def tell(self, name: str, figures: Figures, load_before: float, **variant: object) -> None:
        """Print one measurement."""
        server = f"{self.server.name} {self.server.version}"
        times = of_bar(name, figures, variant.get("interval_seconds"))
        line = {"name": name, **variant, **figures, "of_bar": times, "server": server}
        print(json.dumps(line | {"load_before": round(load_before, 2)}), flush=True)
        for figure, number in times.items():
            if number < 1:
                self.say(f"{name} missed its bar: {figure} is {number:.0%} of it")

    def run(self) -> None:
        """Take the chosen measurements, in the order of NAMES."""
        if self.only & set(OF_A_LARGE_TABLE):
            self.say(f"loads {self.rows:,} rows into {TABLE}")
            load(self.server, TABLE, self.rows)
        changes = None
        if self.only & {"binlog_to_arrow", "changes_to_iceberg", "shaped_changes"}:
            changes = Changes(self.server, TABLE, self.rows)
        if "select_to_arrow" in self.only:
            before = os.getloadavg()[0]
            self.tell("select_to_arrow", median(select_to_arrow, self.source, TABLE), before)
        if "binlog_to_arrow" in self.only and changes is not None:
            self.binlog(changes)
        if self.only & {*INTO_THE_LAKE, "freshness"}:
            with BenchMesh(self.server, self.folder) as mesh:
                self.say("warms Spark up")
                mesh.warm()
                if self.only & set(INTO_THE_LAKE):
                    self.iceberg(mesh, changes)
                if "freshness" in self.only:
                    self.freshness(mesh)
        if "apply_driver" in self.only:
            self.say("applies batches on a cluster")
            before = os.getloadavg()[0]
            self.tell("apply_driver", in_a_fresh_process(apply_driver, self.folder / "applying"), before)
        if "spark_engine" in self.only:
            self.say("applies batches by both engines")
            before = os.getloadavg()[0]
            self.tell("spark_engine", in_a_fresh_process(spark_engine, self.folder / "engines"), before)
        if "apply_curve" in self.only:
            for key in KEYS:
                self.say(f"applies small batches to tables with a key of type {key}")
                before = os.getloadavg()[0]
                for figures in in_a_fresh_process(
                    apply_curve, self.folder / "curve" / key.replace(" ", "_"), key, LARGE
                ):
                    self.tell("apply_curve", figures, before)
        if "history_changes" in self.only:
            self.say("applies batches of which each version is kept")
            before = os.getloadavg()[0]
            self.tell("history_changes", in_a_fresh_process(history_changes, self.folder / "versions"), before)
        if "derived" in self.only:
            self.say("computes a derived table")
            before = os.getloadavg()[0]
            self.tell("derived", in_a_fresh_process(derived, self.folder / "derived"), before)
        if self.only & {"idle_checkpoint", "many_tables", "many_tables_first", "api_tables"}:
            self.many()
        if "spark_start" in self.only:
            self.say("starts Spark")
            before = os.getloadavg()[0]
            self.tell("spark_start", spark_start(self.folder / "starting"), before)
        if "dashboard" in self.only:
            self.say("opens the dashboard")
            before = os.getloadavg()[0]
            self.tell("dashboard", opened(), before)

    def binlog(self, changes: Changes) -> None:
        """Measure backlogs of three kinds, one after the other."""
        for transactions_of, count in _BINLOG:
            count = min(count, self.rows)
            begin = place(self.source)
            changes.write(count, transactions_of)
            end, before = place(self.source), os.getloadavg()[0]
            figures = median(binlog_to_arrow, self.source, TABLE, begin, end)
            if figures["rows"] != count:
                raise RuntimeError(f"{count} changes were written, {figures['rows']} were read")
            self.tell("binlog_to_arrow", figures, before, transactions_of=transactions_of)

    def iceberg(self, mesh: BenchMesh, changes: Changes | None) -> None:
        """Measure the snapshot, then backlogs on the same pipeline; both again with a rule, if that is asked for."""
        rate, count = "rows_per_cpu_second", min(BACKLOG_ROWS, self.rows // 5)
        plain: dict[Transactions | None, float] = {}
        for names, rules in zip((INTO_THE_LAKE[:2], INTO_THE_LAKE[2:]), ([], [{"tables": TABLE, **RULE}]), strict=True):
            if rules and not self.only & set(names):
                continue
            with copied(mesh, names[0].replace("_", "-"), TABLE, table_options=rules) as pipeline:
                self.say(f"copies {TABLE} for {names[0]}")
                before = os.getloadavg()[0]
                figures = pipeline.snapshot(self.rows)
                ratio = {"ratio": round(figures[rate] / plain[None], 2)} if rules else {}
                plain.setdefault(None, figures[rate])
                if names[0] in self.only:
                    self.tell(names[0], figures | ratio, before)
                if changes is None or not self.only & {names[1], "shaped_changes"}:
                    continue
                sizes: tuple[Transactions, ...] = (100, 1)
                for size in sizes:
                    self.say(f"writes and drains {count:,} changes in transactions of {size}")
                    before = os.getloadavg()[0]
                    figures = pipeline.drain(changes, count, size, self.source)
                    ratio = {"ratio": round(figures[rate] / plain[size], 2)} if rules else {}
                    plain.setdefault(size, figures[rate])
                    if names[1] in self.only:
                        variant = {"transactions_of": size, "rows_of_table": self.rows}
                        self.tell(names[1], figures | ratio, before, **variant)

    def freshness(self, mesh: BenchMesh) -> None:
        """Measure a constant rate of changes, for each checkpoint interval."""
        rows = min(FRESH_ROWS, self.rows)
        load(self.server, FRESH_TABLE, rows)
        for seconds in INTERVALS_SECONDS:
            interval = {"interval_seconds": seconds}
            with copied(mesh, f"fresh-{seconds:.0f}", FRESH_TABLE, checkpoint=interval) as pipeline:
                pipeline.snapshot(rows)
                self.say(f"follows {FRESH_PER_SECOND:,} changes a second, a checkpoint each {seconds:.0f} s")
                before = os.getloadavg()[0]
                figures = pipeline.follow(rows=rows, per_second=FRESH_PER_SECOND, seconds=FRESH_SECONDS)
                self.tell("freshness", figures, before, interval_seconds=seconds, rows_of_table=rows)

    def many(self) -> None:
        """Measure pipelines of many tables, each with its own mesh; the first needs no Spark."""
        if "idle_checkpoint" in self.only:
            self.say(f"makes {IDLE_TABLES:,} tables")
            make(self.server, "idle", IDLE_TABLES)
            with BenchMesh(self.server, self.folder / "idle") as mesh:
                crowd = Crowd(mesh, "idle", IDLE_TABLES, interval_seconds=5.0)
                crowd.go_live()
                self.say("takes checkpoints of tables that do not change")
                before = os.getloadavg()[0]
                self.tell("idle_checkpoint", crowd.idle(), before)
        if "many_tables" in self.only:
            self.say(f"makes {CHANGED_TABLES:,} tables")
            make(self.server, "crowd", CHANGED_TABLES)
            with BenchMesh(self.server, self.folder / "crowd") as mesh:
                self.say("warms Spark up")
                mesh.warm()
                crowd = Crowd(mesh, "crowd", CHANGED_TABLES, interval_seconds=1.0)
                crowd.go_live()
                self.say("changes all tables at once")
                before = os.getloadavg()[0]
                self.tell("many_tables", crowd.change(), before)
        if "many_tables_first" in self.only:
            self.say(f"makes {CHANGED_TABLES:,} tables")
            make(self.server, "first", CHANGED_TABLES)
            with BenchMesh(self.server, self.folder / "first") as mesh:
                self.say("warms Spark up")
                mesh.warm()
                crowd = Crowd(mesh, "first", CHANGED_TABLES, interval_seconds=1.0, start="initial")
                self.say("copies all tables")
                before = os.getloadavg()[0]
                self.tell("many_tables_first", crowd.first(), before)
        if "api_tables" in self.only:
            self.say(f"makes {API_TABLES:,} tables")
            make(self.server, "api", API_TABLES)
            with BenchMesh(self.server, self.folder / "api") as mesh:
                crowd = Crowd(mesh, "api", API_TABLES, interval_seconds=1.0)
                crowd.go_live()
                with contextlib.closing(self.server.connect()) as connection, connection.cursor() as cursor:
                    cursor.execute(f"CALL api.fill({API_TABLES})")
                self.say("asks the API for all tables")
                before = os.getloadavg()[0]
                self.tell("api_tables", api_tables(crowd), before)


def main() -> int:
    """Run the bench; exit code 0 if all chosen measurements were taken and the lake was correct each time."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the snapshot's table (default 5,000,000)")
    parser.add_argument("--only", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    parser.add_argument("--server", choices=["mysql", "mariadb"], default="mysql")
    arguments = parser.parse_args()
    only = frozenset(arguments.only.split(","))
    if unknown := only - set(NAMES):
        parser.error(f"no measurement is named {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are removed
    own: dict[str, Any] = {"innodb_buffer_pool_size": "2G", "max_binlog_size": "1G"}
    server = (
        MySQL(innodb_redo_log_capacity="1G", **own)
        if arguments.server == "mysql"
        else MariaDB(innodb_log_file_size="1G", **own)
    )
    try:
        with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, server:
            Bench(server, arguments.rows, only, Path(folder)).run()
    except Missing as reason:
        print(f"bench: {reason}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
