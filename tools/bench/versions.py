"""What the versions of rows cost (`mode: history`): `history_changes`."""

from __future__ import annotations

import time
from pathlib import Path

from cutline.common.shape import Shape
from cutline.spark_writer import session
from tools.bench.applying import Applied, cpu_seconds
from tools.bench.readers import Figures

ROWS = 5_000_000
CHANGES = 500_000


def history_changes(folder: Path) -> Figures:
    """Apply updates of keys at random to a large table twice, of which the second counts."""
    folder.mkdir(parents=True)
    spark = session.start({})
    applied = Applied(spark, folder, "auto", shape=Shape(mode="history"))
    applied.fill(ROWS)
    seconds = used = 0.0
    for _ in range(2):
        applied.update(CHANGES, ROWS)
        began, before = time.monotonic(), cpu_seconds(spark)
        applied.apply()
        seconds, used = time.monotonic() - began, cpu_seconds(spark) - before
    applied.close()
    session.stop()
    return {
        "rows_of_table": ROWS,
        "changes": CHANGES,
        "seconds": round(seconds, 2),
        "rows_per_second": round(CHANGES / seconds),
        "rows_per_cpu_second": round(CHANGES / used),
    }
