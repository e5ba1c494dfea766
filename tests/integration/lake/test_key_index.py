"""The key index on a real lake: tables that use it end equal, through kills, restarts, compactions and lost runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cutline.common.store.index_files import IndexFiles
from cutline.spark_writer.sinks.iceberg import key_index, locating, upkeep
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndex
from tests.conftest import FULL
from tests.integration.lake.test_engines import KEYS
from tests.integration.upkeep.test_expiry import expire_now
from tests.support.spark_bench import LakeStart, SparkBench, T, U, newest, order, schema, stock

STEPS = 40 if FULL else 16


class Killed(BaseException):
    """No handler of the product takes it for an error of its own."""


@pytest.fixture
def bench(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBench]:
    """Every batch is worth an index, and a few rows fill runs and tiers; upkeep runs when a test calls for it."""
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 1e9)
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(locating, "SMALL_ROWS", 0)
    monkeypatch.setattr(locating, "LEAST_RATIO", 0)
    monkeypatch.setattr(locating, "CLEAR_RATIO", 0)
    monkeypatch.setattr(key_index, "STORED_ROWS", 5)
    monkeypatch.setattr(key_index, "BUILD_ROWS", 20)
    monkeypatch.setattr(key_index, "SMALLEST_TIER_ROWS", 4)
    monkeypatch.setattr(key_index, "FAN_OUT", 3)
    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


def index_of(incarnation: LakeStart, table_id: str = T.table_id) -> KeyIndex:
    return incarnation.sink.indexes.find(table_id)


def names(bench: SparkBench) -> set[str]:
    return set(bench.journal.store.index_files().names())


def compact_now(incarnation: LakeStart) -> None:
    incarnation.upkeep.view = Future()  # making it takes seconds
    incarnation.upkeep.run()


def live(bench: SparkBench, rows: int = 40) -> LakeStart:
    """A live table of four data files."""
    bench.journal.table(T)
    for first in range(0, rows, 10):
        bench.journal.chunk(T, [order(number) for number in range(first, first + 10)])
    bench.journal.checkpoint()
    return bench.apply()


@pytest.mark.parametrize("seed", range(20 if FULL else 2))
def test_a_table_that_uses_its_index_ends_equal(bench: SparkBench, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A random history with keys of a random type; each batch is located by the index, or by Spark's executors, and in
    between the table is compacted, the writer starts anew, or a run is lost.
    """
    draw, journal = random.Random(seed), bench.journal
    monkeypatch.setattr(upkeep, "TIER", 3)
    kind = sorted(KEYS)[seed % len(KEYS)]
    table = schema("shop.orders", ("id", "part"), id=kind, part="int", note="varchar(40)")

    def row(n: int) -> dict[str, Any]:
        return {"id": KEYS[kind](n), "part": n % 2, "note": draw.choice([None, f"n{n}"])}

    journal.table(table)
    for first in range(0, 40, 10):
        journal.chunk(table, [row(n) for n in range(first, first + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    used = 0
    for _ in range(12):
        bench.engine = draw.choice(["local", "local", "local", "spark"])
        incarnation.sink.engine = bench.engine
        journal.change(
            table, *((draw.choice(["+I", "+U", "-D"]), row(draw.randrange(50))) for _ in range(draw.randint(1, 8)))
        )
        journal.checkpoint(kept=draw.random() < 0.2)
        bench.apply(incarnation)
        used += bool(index_of(incarnation).runs)
        match draw.randrange(5):
            case 0:
                compact_now(incarnation)
            case 1:
                incarnation = bench.apply()
            case 2:
                if found := sorted(names(bench)):
                    Path(journal.store.location(f"index/{draw.choice(found)}")).unlink()
                incarnation = bench.apply()
    assert used >= 4
    assert bench.agree() == 13


def test_an_apply_killed_between_any_two_steps_leaves_a_right_index(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A batch is applied and published; the process is killed at its n-th step: one of the apply's own, or a write
    or removal of a run. 2. The next start goes on with what the store has of the index. 3. All cuts are equal.
    """
    journal = bench.journal
    live(bench)
    at, stop = itertools.count(), [-1]

    def step(*_: Any) -> None:
        if next(at) == stop[0]:
            raise Killed

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            step()
            real(*arguments)

        return call

    monkeypatch.setattr(IndexFiles, "write", counted(IndexFiles.write))
    monkeypatch.setattr(IndexFiles, "remove", counted(IndexFiles.remove))
    killed = 0
    for number in range(STEPS):
        journal.change(T, *(("+U", order(n % 45, f"{number}")) for n in range(number, 45, 4)), ("-D", order(number)))
        journal.checkpoint()
        at, stop[0] = itertools.count(), number % 10
        try:
            bench.apply(bench.start(reached=step))
        except Killed:
            killed += 1
            stop[0] = -1
            bench.apply()
    assert killed >= STEPS // 2
    assert len(names(bench)) < 12
    stop[0] = -1
    assert bench.agree() == STEPS + 1


def test_a_restart_finds_the_index_again(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start locates keys of files that are indexed without reading them again."""
    live(bench)
    bench.journal.change(T, ("+U", order(3, "new")), ("+U", order(33, "new")))
    bench.journal.checkpoint()
    index = index_of(bench.apply())
    assert {run.name for run in index.runs} == names(bench) == index.names
    read: list[str] = []
    real = locating._key_columns

    def noted(file: Any, columns: Any) -> Any:
        read.append(file.path)
        return real(file, columns)

    monkeypatch.setattr(locating, "_key_columns", noted)
    bench.journal.change(T, ("+U", order(3, "newer")), ("+U", order(33, "newer")))
    bench.journal.checkpoint()
    incarnation = bench.apply()
    assert len(read) == 1  # the file of the first batch: too small a run to be stored
    assert index_of(incarnation).covers(read[0])
    assert bench.agree() == 3


def test_runs_stay_few_while_batches_and_compactions_go_on(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TIER", 3)
    incarnation = live(bench)
    sizes = []
    for number in range(25):
        bench.journal.change(T, *(("+U", order(n, f"{number}")) for n in range(number % 5, 40, 5)))
        bench.journal.checkpoint()
        bench.apply(incarnation)
        compact_now(incarnation)
        sizes.append((len(names(bench)), sum(len(run.entries) for run in index_of(incarnation).runs)))
    assert max(files for files, _ in sizes) <= 8
    assert max(rows for _, rows in sizes) <= 250
    assert bench.agree() == 26


def test_a_dropped_table_takes_its_index_with_it(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = bench.journal
    incarnation = live(bench)
    journal.table(U)
    journal.chunk(U, [stock(number, number) for number in range(10)])
    journal.checkpoint()
    bench.apply(incarnation)
    journal.change(T, ("+U", order(3, "new")))
    journal.change(U, ("+U", stock(3, 4)))
    journal.checkpoint()
    bench.apply(incarnation)
    both = names(bench)
    dropped = {name for name in both if name.startswith(key_index.table_part(U.table_id))}
    assert dropped
    assert both - dropped
    journal.table(U, phase="dropped")
    journal.checkpoint()
    bench.apply(incarnation)
    expire_now(incarnation, monkeypatch, -1.0)
    incarnation.upkeep.sweeping.join(60)
    assert newest(bench).tables[U.table_id].state == "dropped"
    assert names(bench) == both - dropped
