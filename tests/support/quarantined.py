"""Tables of a lake that can't be applied, and the wait for what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.spark_bench import SparkBench, T, U

BAD, HEALTHY = U.table_id, T.table_id


def branches(bench: SparkBench, table: str) -> set[str]:
    found = bench.session.sql(f"SELECT name FROM lake.{table}.refs WHERE type = 'BRANCH'").toArrow()
    return set(found["name"].to_pylist())


def until(condition: Callable[[], object], goal: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{goal} did not come"
        time.sleep(0.05)
