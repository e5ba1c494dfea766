"""`python -m tests.support.cluster_driver FOLDER SETTINGS`: a Spark writer on a cluster, for test_engines.py.

It writes a journal of 60,000 changes to a table of 20,000 rows, applies it by Spark, and compares. Each line on stdout
is a log line, or `stage N` when tasks of the N-th stage run, or `agree` at the end.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
from pathlib import Path
from typing import Any

from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg import on_spark, staged
from tests.support.spark_bench import SparkBench, T, newest, order

ROWS, CHANGES, FILES = 20_000, 60_000, 20


def tell_stages(context: Any) -> None:
    """Print each stage once tasks of it run."""
    tracker, printed = context.statusTracker(), set()
    while context._jsc is not None:
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None and info.numActiveTasks and stage not in printed:
                printed.add(stage)
                print(f"stage {len(printed)}", flush=True)
        threading.Event().wait(0.02)


def main(folder: Path, settings: dict[str, str]) -> None:
    """Run it."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    on_spark.LEAST_ROWS = on_spark.MOST_ROWS = staged.GROUP_ROWS = CHANGES // FILES
    spark = session.start({"spark.executor.memory": "512m", **settings})
    bench, draw = SparkBench(spark, folder), random.Random(1)
    bench.engine = "spark"
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(ROWS)])
    journal.checkpoint()
    incarnation = bench.apply()
    for _ in range(FILES):
        rows = (order(draw.randrange(2 * ROWS), f"n{draw.randrange(99)}") for _ in range(CHANGES // FILES))
        journal.change(T, *((draw.choice(["+U", "+U", "-D"]), row) for row in rows))
    journal.checkpoint(kept=True)
    threading.Thread(target=tell_stages, args=(spark.sparkContext,), daemon=True).start()
    bench.apply(incarnation)
    assert bench.agree() == 2
    assert newest(bench).tables[T.table_id].shown
    bench.close()
    session.stop()
    print("agree", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
