"""What a small batch costs on tables of growing size: `apply_curve`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from cutline.spark_writer import session
from tools.bench.applying import Applied, cpu_seconds
from tools.bench.readers import Figures

CHANGES = 1000
SIZES = (100_000, 1_000_000, 5_000_000, 20_000_000)
KEYS = ("int", "bigint unsigned", "char(36)")
SMALL, LARGE = 1_000_000, 20_000_000
"""The sizes of which the ratio is taken."""
BATCHES = 7


def apply_curve(folder: Path, key: str, most_rows: int) -> list[Figures]:
    """Apply batches of 1,000 updates spread over tables of each size up to `most_rows` with this type of key.

    `cpu_seconds` is the median of several batches, `first_cpu_seconds` that of the first one, which makes the index.
    """
    folder.mkdir(parents=True)
    spark = session.start({})
    warm = Applied(spark, folder / "warm", "local", key)
    warm.fill(SIZES[0])
    for _ in range(2 * BATCHES):
        warm.update(CHANGES, SIZES[0])
        warm.apply()
    warm.close()
    lines: list[Figures] = []
    for rows in (rows for rows in SIZES if rows <= most_rows):
        applied = Applied(spark, folder / str(rows), "local", key)
        applied.fill(rows)
        used, seconds = [], []
        for _ in range(1 + BATCHES):
            applied.update(CHANGES, rows)
            began, before = time.monotonic(), cpu_seconds(spark)
            applied.apply()
            used.append(cpu_seconds(spark) - before)
            seconds.append(time.monotonic() - began)
        applied.close()
        figures: Figures = {
            "rows": rows,
            "key": key,
            "cpu_seconds": round(statistics.median(used[1:]), 3),
            "cpu_seconds_of_batches": [round(each, 3) for each in used[1:]],
            "first_cpu_seconds": round(used[0], 3),
            "seconds": round(statistics.median(seconds[1:]), 3),
        }
        small = next((line["cpu_seconds"] for line in lines if line["rows"] == SMALL), None)
        if rows == LARGE and small is not None:
            figures["ratio"] = round(figures["cpu_seconds"] / small, 2)
        lines.append(figures)
    session.stop()
    return lines
