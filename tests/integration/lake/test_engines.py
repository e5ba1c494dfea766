"""Both engines that apply changes, `local` and `spark`, leave the same lake; and Spark on a real cluster."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.table_options import TableOptions
from cutline.common.errors import ProtocolError
from cutline.common.journal.plan import StagedLost
from cutline.services.writer import staging
from cutline.spark_writer.sinks.iceberg import key_index, locating, on_spark, partitioning, staged, stages
from tests.conftest import FULL
from tests.support.spark_bench import SparkBench, T, U, both_read, order, schema, stock
from tests.support.spark_cluster import Cluster

ZEROS = itertools.cycle((0.0, -0.0))
"""Both are one key."""
KEYS: dict[str, Callable[[int], Any]] = {
    "bigint": lambda n: n - 20,
    "bigint unsigned": lambda n: Decimal(2**64 - 1 - n),
    "char(36)": lambda n: f"{n % 7}ä{n:08x}",
    "varbinary(8)": lambda n: bytes((n, 255)),
    "datetime(6)": lambda n: dt.datetime.fromisoformat(f"2024-01-01 00:00:00.{n:06}"),
    "timestamp(6)": lambda n: dt.datetime(2024, 1, 1, 0, 0, n % 60, n, dt.UTC),
    "decimal(12,2)": lambda n: Decimal(25 * n).scaleb(-2),
    "date": lambda n: dt.date(1, 1, 1) + dt.timedelta(n),
    "double": lambda n: (n - 1) / 4 or next(ZEROS),
    "float": lambda n: (1 - n) / 4 or next(ZEROS),
}
"""The n-th value of each type that a key may have."""


@pytest.fixture
def bench(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBench]:
    """Limits so small that a few rows fill several row groups, reductions, partitions and data files."""
    monkeypatch.setattr(staging, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(staged, "PENDING_ROWS", 7)
    monkeypatch.setattr(on_spark, "LEAST_ROWS", 5)
    monkeypatch.setattr(on_spark, "MOST_ROWS", 15)
    monkeypatch.setattr(on_spark, "SCANNED_ROWS", 10)
    monkeypatch.setattr(stages, "BLOCK_BYTES", 200)
    monkeypatch.setattr(staged, "GROUP_ROWS", 11)
    monkeypatch.setattr(locating, "SMALL_ROWS", 0)
    monkeypatch.setattr(key_index, "STORED_ROWS", 10)
    monkeypatch.setattr(partitioning, "HELD_BYTES", 500)
    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


def history(bench: SparkBench, seed: int) -> None:
    """A random history of one table: chunks, changes, truncations, a new column with a default, a new generation; some
    cuts kept.
    """
    draw, journal = random.Random(seed), bench.journal
    kinds = ["double", "float"] if seed % 5 == 4 else draw.sample(sorted(KEYS), draw.choice([1, 1, 2]))
    names = [f"key {at}" for at in range(len(kinds))]
    columns = dict(zip(names, kinds, strict=True)) | {"note": "varchar(40)", "amount": "decimal(10,2)"}
    table = schema("shop.any", tuple(names), **columns)
    generation = 1

    def row(n: int) -> dict[str, Any]:
        values = {
            name: KEYS[kind](n if at == 0 else n % 3) for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        extra = {"later": draw.randrange(9)} if any(column.name == "later" for column in table.columns) else {}
        return {
            **values,
            "note": draw.choice([None, "", f"n{n}"]),
            "amount": Decimal(draw.randrange(999)).scaleb(-2),
            **extra,
        }

    journal.table(table)
    if rows := [row(n) for n in range(draw.randrange(30))]:  # a writer opens no file for a chunk without rows
        journal.chunk(table, rows)
    journal.checkpoint()
    for _ in range(3):
        match draw.randrange(6):
            case 0 if not table.has("later"):
                table = table.add_column("later", "int", nullable=False, initial_default="5")
                journal.table(table, generation=generation)
                for known in journal.models["shop.any"].values():
                    known["later"] = 5
            case 1:
                generation += 1
                journal.table(table, generation=generation)
                journal.chunk(table, [row(n) for n in range(10)])
        for _ in range(draw.randrange(1, 4)):
            changes: list[tuple[str, Any]] = [
                (draw.choice(["+I", "+U", "+U", "-D"]), row(draw.randrange(40))) for _ in range(draw.randrange(1, 25))
            ]
            if draw.random() < 0.15:
                changes.insert(draw.randrange(len(changes)), ("t", None))
            journal.change(table, *changes)
        journal.checkpoint(kept=draw.random() < 0.6)


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("seed", range(30 if FULL else 5))
def test_both_engines_leave_the_rows_of_the_source(bench: SparkBench, seed: int, engine: str) -> None:
    bench.engine = engine
    sort = ("amount desc", "note") if seed % 3 == 0 else ()
    partition = ("truncate(2, note)", "truncate(200, amount)") if seed % 4 in (1, 2) else ()
    version: Any = 2 if seed % 2 else 3
    bench.options = TableOptions(tables="*.*", format_version=version, sort=sort, partition=partition)
    history(bench, seed)
    for _ in range(1 + seed % 3):  # a start of its own for some batches
        bench.start().step()
    bench.apply()
    assert bench.agree()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_table_without_a_key_keeps_equal_rows_and_refuses_what_came_twice(bench: SparkBench, engine: str) -> None:
    bench.engine = engine
    log, journal = schema("shop.log", (), at="int", what="varchar(20)"), bench.journal
    journal.table(log)
    journal.chunk(log, [{"at": 1, "what": "a"}])
    journal.checkpoint()
    journal.change(log, *[("+I", {"at": at % 2, "what": "a"}) for at in range(20)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    assert bench.agree() == 1
    first = journal.seq
    journal.change(log, *[("+I", {"at": 5, "what": "b"})] * 3)
    journal.seq = first
    journal.change(log, ("+I", {"at": 5, "what": "b"}))
    journal.checkpoint()
    with pytest.raises(ProtocolError, match="has no key, and its changes are not distinct inserts"):
        incarnation.step()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_staged_file_that_is_gone_or_corrupt_is_the_stores_fault(bench: SparkBench, engine: str) -> None:
    bench.engine = engine
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(1)])
    journal.checkpoint()
    incarnation = bench.apply()
    journal.change(T, ("+U", order(1, "new")))
    path = Path(journal.store.location(journal.staged[0].path))
    content = path.read_bytes()
    journal.checkpoint()
    path.write_bytes(content[:-1] + b"?")
    with pytest.raises(StagedLost, match="sha256 is wrong"):
        incarnation.step()
    path.unlink()
    with pytest.raises(StagedLost, match="missing"):
        incarnation.step()
    path.write_bytes(content)
    bench.apply()
    assert bench.agree() == 2


def descriptions(spark: Any) -> dict[int, str]:
    """The descriptions of Spark's jobs so far, by their ids."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    each = [jobs.apply(at) for at in range(jobs.size())]
    return {job.jobId(): str(job.description().get()) for job in each if job.description().nonEmpty()}


def test_jobs_bear_the_names_of_their_checkpoints_and_tables(spark: Any, tmp_path: Path) -> None:
    bench = SparkBench(spark, tmp_path)
    bench.engine = "spark"
    incarnation = both_read(bench)
    bench.journal.change(T, ("+U", order(0, "first")))
    bench.journal.change(U, ("+U", stock(0, 100)))
    number, before = bench.journal.checkpoint(), descriptions(spark).keys()
    bench.apply(incarnation)
    assert bench.agree() == 2
    ours = [
        text.partition(f"checkpoint {number} of shop: ")[2]
        for job, text in descriptions(spark).items()
        if job not in before
    ]
    assert sorted(table for text in ours if text for table in text.split(", ")) == [T.table_id, U.table_id]
    bench.close()


# A cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Cluster(folder)
    yield made
    made.close()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_batch_on_a_cluster_outlives_an_executor_and_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    """1. A batch is applied by two executors. 2. In the middle one is killed, then the worker of the other one.
    3. Content is equal, and no row is there twice.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.cluster_driver",
        str(tmp_path / "lake"),
        json.dumps(cluster.settings),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        assert driver.stdout is not None
        seen: list[str] = []

        def until(word: str) -> None:
            for line in driver.stdout or ():
                seen.append(line)
                if line.startswith(word):
                    return
            raise AssertionError("".join(seen[-40:]))

        until("stage 1")
        first, _ = cluster.executors()
        first.kill()
        until("stage 3")
        cluster.kill_worker()
        until("agree")
        assert driver.wait(60) == 0
    assert "was applied by spark" in "".join(seen)
