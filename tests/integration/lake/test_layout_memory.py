"""What a sorted or partitioned table takes of memory, of the Spark writer and of Spark's Python workers: it depends on
neither the rows of a checkpoint nor what they weigh.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from cutline.common.config.table_options import TableOptions
from cutline.common.schema import FILE, GTID, META_FIELDS, OP, POS, ROW, SEQ, TABLE, TS
from cutline.services.writer.staging import OpenChanges
from cutline.spark_writer.sinks.iceberg import partitioning
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.partitioning import write_files
from tests.support.spark_bench import SparkBench, schema
from tools.bench.meter import peak_mib
from tools.bench.readers import in_a_fresh_process

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

WIDE = schema("shop.wide", ("id",), id="bigint", body="longtext")
ROW_BYTES = 20_000
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sort": {"sort": ("body", "id")},
    "partition": {"partition": ("bucket(4, id)",)},
    "both": {"sort": ("id desc",), "partition": ("bucket(4, id)",)},
}
MORE_MIB = 700
"""The limit of what a layout may add: about three times HELD_BYTES, and what a reader and a writer of Parquet take."""


def write(folder: str, rows: int, sort: Any, partition: Any) -> float:
    """Write large rows by the kernel that both engines share; return how much more memory that took, in MiB."""
    layout = Layout(schema=WIDE, generation=1, offset=0, arrow=WIDE.arrow, java=None, sort=sort, partition=partition)

    def tables() -> Iterator[pa.Table]:
        for start in range(0, rows, 1000):
            ids = pa.array(np.arange(start, start + 1000), pa.int64())
            yield pa.table([ids, pa.array([f"{start:08}" * (ROW_BYTES // 8)] * 1000)], schema=WIDE.arrow)

    pytest.MonkeyPatch().setattr(partitioning, "HELD_BYTES", 32 << 20)
    before, numbers = peak_mib(os.getpid()), iter(range(1000))
    written = list(write_files(lambda: f"{folder}/{next(numbers)}.parquet", tables(), layout))
    assert len(written) > 1
    return peak_mib(os.getpid()) - before


@pytest.mark.parametrize(
    ("sort", "partition"),
    [(((1, True),), ()), ((), ((1, "bucket[4]"),)), (((1, True),), ((1, "bucket[4]"),))],
    ids=["sort", "partition", "both"],
)
def test_rows_are_sorted_and_divided_in_the_memory_of_a_few_portions(tmp_path: Path, sort: Any, partition: Any) -> None:
    assert in_a_fresh_process(write, str(tmp_path), 40_000, sort, partition) < 450  # of 800 MB


def stage(bench: SparkBench, rows: int) -> None:
    """Stage large rows as the changes of one checkpoint."""
    journal = bench.journal
    file = OpenChanges(journal.store, **journal.named(WIDE))
    for start in range(0, rows, 1000):
        count = min(1000, rows - start)
        meta = pa.Table.from_pydict(
            {OP: ["+I"] * count, SEQ: range(count), TABLE: [WIDE.table_id] * count}
            | {name: [None] * count for name in (FILE, POS, ROW, GTID, TS)},
            schema=pa.schema([META_FIELDS[at] for at in (0, 1, 7, 2, 3, 4, 5, 6)]),
        ).select([field.name for field in META_FIELDS])
        ids = pa.array(np.arange(start, start + count), pa.int64())
        body = pa.array([f"{number:08}" * (ROW_BYTES // 8) for number in range(start, start + count)])
        columns = pa.Table.from_arrays([ids, body, *meta.columns], schema=pa.schema([*WIDE.arrow, *META_FIELDS]))
        (batch,) = columns.combine_chunks().to_batches()
        file.append(batch, journal.seq + start)
    journal.staged.append(file.close())
    journal.seq += rows


@contextmanager
def most() -> Iterator[dict[str, float]]:
    """How much more memory, in MiB, this process and each of Spark's Python workers take at most than at the start."""
    ended, found = threading.Event(), {"here": 0.0, "worker": 0.0}
    own = psutil.Process()
    begun = own.memory_info().rss

    def watch() -> None:
        while not ended.wait(0.02):
            found["here"] = max(found["here"], (own.memory_info().rss - begun) / 2**20)
            for child in own.children(recursive=True):
                try:
                    if "python" in child.name():
                        found["worker"] = max(found["worker"], child.memory_info().rss / 2**20)
                except psutil.Error:
                    continue  # it has just ended

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        ended.set()
        watching.join()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_checkpoint_of_large_rows_is_applied_in_bounded_memory(
    spark: Any, tmp_path: Path, engine: str, name: str
) -> None:
    bench = SparkBench(spark, tmp_path)
    try:
        bench.engine, bench.options = engine, TableOptions(tables="*.*", **LAYOUTS[name])
        bench.journal.table(WIDE)
        stage(bench, 60_000)
        bench.journal.checkpoint()
        incarnation = bench.start()
        with most() as found:
            incarnation.step()
        assert bench.session.table("lake.shop.wide").count() == 60_000
    finally:
        bench.close()
        pa.default_memory_pool().release_unused()
    print(engine, name, found)
    assert found["here"] < MORE_MIB
    assert found["worker"] < MORE_MIB + 600  # a worker is a process of its own, with its imports
