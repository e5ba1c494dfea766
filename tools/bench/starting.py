"""What it costs to start Spark and to publish the first checkpoints: `spark_start`, without and with the archive."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from cutline.spark_writer import classes, jars, session
from tools.bench.applying import Applied, cpu_seconds
from tools.bench.readers import Figures, in_a_fresh_process

ROWS = 10_000
CHANGES = 1_000
RUNS = 3


def spark_start(folder: Path) -> Figures:
    """Start Spark in a new process, and publish a first load and a batch of changes; medians of some runs each.

    `ratio` is the CPU with the archive of Spark's classes by the CPU without.
    """
    classes.make(jars.folder())
    bare = folder / "without"
    bare.mkdir(parents=True)
    for jar in jars.folder().glob("*.jar"):
        (bare / jar.name).symlink_to(jar)
    runs: dict[str, list[Figures]] = {"without": [], "with": []}
    for run in range(RUNS):
        for name, place in (("without", bare), ("with", jars.folder())):  # in turn, for a machine that changes
            runs[name].append(in_a_fresh_process(_started, place, folder / f"{name}{run}"))
    taken = {
        name: {figure: round(statistics.median(run[figure] for run in found), 2) for figure in found[0]}
        for name, found in runs.items()
    }
    ratio = round(taken["with"]["cpu_seconds"] / taken["without"]["cpu_seconds"], 2)
    without = {f"{figure}_without": number for figure, number in taken["without"].items()}
    return taken["with"] | without | {"ratio": ratio}


def _started(place: Path, folder: Path) -> Figures:
    os.environ["CUTLINE_SPARK_JARS"] = str(place)
    folder.mkdir()
    began = time.monotonic()
    spark = session.start({})
    applied = Applied(spark, folder, "local")
    applied.fill(ROWS)
    applied.update(CHANGES, ROWS)
    applied.apply()
    figures = {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds(spark)}
    applied.close()
    session.stop()
    return figures
