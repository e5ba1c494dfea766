"""What Spark costs where the Spark writer's own process could do the same: `spark_engine`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import psutil

from cutline.spark_writer import session
from tools.bench.applying import Applied
from tools.bench.readers import Figures

ROWS = 5_000_000
CHANGES = 1_000_000
BATCHES = 3


def spark_engine(folder: Path, rows: int = ROWS, changes: int = CHANGES) -> Figures:
    """Apply batches of updates of different keys by both engines, in turns, on `local[2]`.

    `cpu_ratio` and `extra_seconds` compare the median of Spark's batches with that of the process's own; the CPU is
    that of Python, of the JVM and of Spark's Python workers.
    """
    folder.mkdir(parents=True)
    spark = session.start({"spark.master": "local[2]"})
    tables = {engine: Applied(spark, folder / engine, engine) for engine in ("local", "spark")}
    used: dict[str, list[float]] = {engine: [] for engine in tables}
    seconds: dict[str, list[float]] = {engine: [] for engine in tables}
    for applied in tables.values():
        applied.fill(rows)
    for batch in range(1 + BATCHES):
        for engine, applied in tables.items():
            applied.update(changes, rows)
            began, before = time.monotonic(), _cpu_seconds()
            applied.apply()
            if batch:  # the first one warms up
                used[engine].append(_cpu_seconds() - before)
                seconds[engine].append(time.monotonic() - began)
    for applied in tables.values():
        applied.close()
    session.stop()
    cpu = {engine: statistics.median(each) for engine, each in used.items()}
    wall = {engine: statistics.median(each) for engine, each in seconds.items()}
    return {
        "rows_of_table": rows,
        "changes": changes,
        "cpu_seconds": {engine: round(each, 2) for engine, each in cpu.items()},
        "seconds": {engine: round(each, 2) for engine, each in wall.items()},
        "cpu_ratio": round(cpu["spark"] / cpu["local"], 2),
        "extra_seconds": round(wall["spark"] - wall["local"], 2),
    }


def _cpu_seconds() -> float:
    """The CPU of this process and of all below it, those that have ended included."""
    total = 0.0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total
