"""Chooses who applies a batch's changes to a table: this process (local.py, filling.py) or Spark (on_spark.py)."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, LOCAL, SPARK = "auto", "local", "spark"
LOCAL_CHANGES = 20_000_000
"""The keys of so many changes still fit into this process's memory (about 50 bytes each)."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Who applies a batch's changes to a table, `local` or `spark`, and why."""

    engine: str
    why: str


def choose_engine(setting: str, *, changes: int, table_rows: int, cores: int) -> Engine:
    """Choose by `sink.engine`; if that is `auto`, the engine that is expected to end first with `cores` of Spark's.

    `table_rows` are the rows that must be scanned to locate the keys (`LakeTable.rows_to_scan`).

    The costs are those of docs/measured.md: a change costs Spark a third more CPU, to pass its key on, and each batch a
    job; but Spark's cores share it. One of them is left to the driver and to what else runs on its machine.
    """
    if setting != AUTO:
        return Engine(setting, f"sink.engine is {setting}")
    if changes > LOCAL_CHANGES:
        return Engine(SPARK, f"the keys of {changes:,} changes may be too many for the Spark writer's memory")
    local_seconds = 0.5 + (2.6 * changes + 0.05 * table_rows) / 1e6
    spark_seconds = 1.0 + (3.4 * changes + 0.06 * table_rows) / 1e6 / max(1, cores - 1)
    return Engine(
        SPARK if spark_seconds < local_seconds else LOCAL,
        f"{changes:,} changes and a scan of {table_rows:,} rows for their keys take about {local_seconds:,.0f} s in the"
        f" Spark writer and {spark_seconds:,.0f} s on {cores} cores of Spark",
    )


def choose_filling_engine(setting: str, *, rows: int, cores: int) -> Engine:
    """Choose who writes the rows of a table anew (filling.py), as `choose_engine` does; no row passes a shuffle."""
    if setting != AUTO:
        return Engine(setting, f"sink.engine is {setting}")
    local_seconds = 1.5 * rows / 1e6
    spark_seconds = 4.0 + local_seconds / cores
    return Engine(
        SPARK if spark_seconds < local_seconds else LOCAL,
        f"{rows:,} rows take about {local_seconds:,.0f} s in the Spark writer and {spark_seconds:,.0f} s on {cores}"
        " cores of Spark",
    )
