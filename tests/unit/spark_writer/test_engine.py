"""Who applies a batch: this process or Spark."""

from __future__ import annotations

import pytest

from cutline.spark_writer.sinks.iceberg.engine import (
    AUTO,
    LOCAL,
    LOCAL_CHANGES,
    SPARK,
    choose_engine,
    choose_filling_engine,
)


@pytest.mark.parametrize(
    ("setting", "changes", "table_rows", "cores", "engine", "why"),
    [
        (
            AUTO,
            10,
            1000,
            8,
            LOCAL,
            "10 changes and a scan of 1,000 rows for their keys take about 1 s in the Spark writer and 1 s on 8",
        ),
        (AUTO, 5_000_000, 5_000_000, 2, LOCAL, "about 14 s in the Spark writer and 18 s on 2 cores of Spark"),
        (AUTO, 5_000_000, 5_000_000, 40, SPARK, "about 14 s in the Spark writer and 1 s on 40 cores of Spark"),
        (AUTO, 1000, 2_000_000_000, 40, SPARK, "about 101 s in the Spark writer and 4 s"),
        (AUTO, 200_000, 0, 8, LOCAL, "200,000 changes"),
        (AUTO, 300_000, 0, 8, SPARK, "300,000 changes"),
        (AUTO, LOCAL_CHANGES, 0, 2, LOCAL, "20,000,000 changes"),
        (AUTO, LOCAL_CHANGES + 1, 0, 1, SPARK, "the keys of 20,000,001 changes may be too many"),
        (LOCAL, LOCAL_CHANGES + 1, 0, 100, LOCAL, "sink.engine is local"),
        (SPARK, 1, 1, 1, SPARK, "sink.engine is spark"),
    ],
)
def test_the_engine_follows_the_setting_then_the_expected_time(
    setting: str, changes: int, table_rows: int, cores: int, engine: str, why: str
) -> None:
    chosen = choose_engine(setting, changes=changes, table_rows=table_rows, cores=cores)
    assert chosen.engine == engine
    assert why in chosen.why


@pytest.mark.parametrize(
    ("setting", "rows", "cores", "engine", "why"),
    [
        (AUTO, 1_000_000, 8, LOCAL, "1,000,000 rows take about 2 s in the Spark writer and 4 s on 8 cores of Spark"),
        (AUTO, 100_000_000, 8, SPARK, "about 150 s in the Spark writer and 23 s on 8"),
        (AUTO, 100_000_000, 1, LOCAL, "about 150 s in the Spark writer and 154 s on 1"),
        (SPARK, 1, 1, SPARK, "sink.engine is spark"),
    ],
)
def test_rows_are_written_anew_where_that_ends_first(
    setting: str, rows: int, cores: int, engine: str, why: str
) -> None:
    chosen = choose_filling_engine(setting, rows=rows, cores=cores)
    assert chosen.engine == engine
    assert why in chosen.why
