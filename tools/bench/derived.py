"""What a derived table costs that is computed of the changes alone (`refresh: keys`): `derived`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cutline.common.derived import KEYS, DerivedTable
from cutline.spark_writer import session
from cutline.spark_writer.sinks.contract import Made
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from tools.bench.applying import Applied, cpu_seconds
from tools.bench.readers import Figures

ROWS = 5_000_000
CHANGES = 1_000
ORDERS, PEOPLE = "bench.orders", "bench.people"
SQL = (
    f"SELECT p.n DIV 10 AS place, sum(o.price) AS total, count(*) AS orders, max(o.at) AS last FROM {ORDERS} AS o"
    f" JOIN {PEOPLE} AS p ON o.n = p.id GROUP BY p.n DIV 10"
)
"""5,000,000 joined rows in 20,000 groups and more."""
CUTS = 4


def derived(folder: Path, rows: int = ROWS, changes: int = CHANGES) -> Figures:
    """Compute a join of two tables with a GROUP BY in full and by keys, each after the same changes; the first ones
    warm up. Raise RuntimeError if the two differ."""
    folder.mkdir(parents=True)
    spark = session.start({})
    names = {"full": "bench.in_full", KEYS: "bench.by_keys"}
    listed = [DerivedTable(name=name, sql=SQL, refresh=refresh) for refresh, name in names.items()]
    applied = Applied(spark, folder, "auto", tables=(ORDERS, PEOPLE), derived=listed)
    used: dict[str, list[float]] = {name: [] for name in names.values()}
    seconds: dict[str, list[float]] = {name: [] for name in names.values()}
    compute = IcebergSink.derive

    def measured(self: IcebergSink, name: str, *given: Any, **named: Any) -> Made:
        began, before = time.monotonic(), cpu_seconds(spark)
        made = compute(self, name, *given, **named)
        used[name].append(cpu_seconds(spark) - before)
        seconds[name].append(time.monotonic() - began)
        return made

    IcebergSink.derive = measured  # type: ignore[method-assign]
    try:
        applied.fill(rows)
        for _ in range(CUTS):
            for table in (ORDERS, PEOPLE):
                applied.update(changes // 2, rows, table)
            applied.apply()
        status = applied.derived[names[KEYS]]
        reader = session.for_pipeline(spark, {"warehouse": f"{folder}/lake"})
        full, keyed = (reader.sql(f"SELECT * FROM lake.{name}") for name in names.values())
        if status.in_full or not keyed.exceptAll(full).isEmpty() or not full.exceptAll(keyed).isEmpty():
            raise RuntimeError(f"by keys and in full are not the same: {status}")
    finally:
        IcebergSink.derive = compute  # type: ignore[method-assign]
        applied.close()
        session.stop()
    best = {refresh: min(used[name][1:]) for refresh, name in names.items()}
    return {
        "rows_of_tables": [rows, rows],
        "changes": changes,
        "rows": status.rows,
        "computed": status.computed,
        "cpu_seconds_full": round(best["full"], 2),
        "cpu_seconds_keys": round(best[KEYS], 2),
        "seconds_full": round(min(seconds[names["full"]][1:]), 2),
        "seconds_keys": round(min(seconds[names[KEYS]][1:]), 2),
        "cpu_ratio": round(best[KEYS] / best["full"], 3),
    }
