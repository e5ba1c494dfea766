"""Expiry on a real lake: every snapshot that it retains stays whole, and files that no snapshot names are deleted."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.store.removal import Removal
from cutline.spark_writer.sinks.iceberg import files as files_of_the_lake
from cutline.spark_writer.sinks.iceberg import upkeep
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.conftest import FULL
from tests.support.lake_tables import lake_table
from tests.support.spark_bench import EVERYWHERE, LakeStart, Row, SparkBench, T, U, newest, order, same, stock

ROUNDS, SEEDS = (8, range(40)) if FULL else (3, (5, 6))


@pytest.fixture
def bench(spark: Any, tmp_path: Path, places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBench]:
    """A bench whose Spark writer expires and compacts only when a test calls for it."""
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 1e9)
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    made = SparkBench(spark, tmp_path, **places)
    yield made
    made.close()


def expire_now(incarnation: LakeStart, monkeypatch: pytest.MonkeyPatch, grace_seconds: float) -> None:
    """Do the upkeep's expiry, and no compaction."""
    incarnation.upkeep.view = Future()  # making it takes seconds
    with monkeypatch.context() as patch:
        patch.setattr(incarnation.sink.publications, "tidy", lambda kept, newest, before_ms: None)  # seconds too
        patch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
        patch.setattr(upkeep, "worth_compacting", lambda *_, **__: [])
        patch.setattr(incarnation.upkeep, "retention", RetentionConfig.model_construct(grace_seconds=grace_seconds))
        incarnation.upkeep.run()


def whole(bench: SparkBench) -> int:
    """Read every snapshot of the table by Spark and by PyIceberg, compare with the model; return how many there are."""
    records = bench.journal.store.publications()
    named = {snapshot_of(record.tables[T.table_id].work.content): record.n for record in records}
    sink = bench.journal.sink["warehouse"]
    table = lake_table(sink, T.table_id)
    for snapshot in table.metadata.snapshots:
        by_spark = bench.rows(T.table_id, snapshot.snapshot_id)
        by_pyiceberg = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert same((tuple(by_pyiceberg.column_names), by_pyiceberg.to_pylist()), by_spark)
        if snapshot.snapshot_id in named:
            assert same(by_spark, bench.journal.at[named[snapshot.snapshot_id]][T.table_id])
    for name, ref in table.metadata.refs.items():
        assert same(bench.rows(T.table_id, name), bench.rows(T.table_id, ref.snapshot_id))
    return len(table.metadata.snapshots)


def files(bench: SparkBench, kind: str) -> set[str]:
    return {path.name for path in (bench.journal.root / "lake" / "shop" / "orders").rglob(f"*.{kind}")}


def test_a_replaced_vector_leaves_the_living_ones_of_its_file(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Two data files, and a change in each: their vectors share a file. 2. A change in the first alone, an insert.
    3. Expiry retains the last snapshot alone. 4. A change in the second file too: the shared file may go.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.chunk(T, [order(number) for number in range(10, 20)])
    journal.checkpoint()
    incarnation = bench.apply()

    def publish(*changes: tuple[str, Row]) -> None:
        journal.change(T, *changes)
        journal.checkpoint()
        bench.apply(incarnation)

    publish(("+U", order(1, "one")), ("+U", order(11, "one")))
    shared = files(bench, "puffin")
    publish(("+U", order(2, "two")))
    publish(("+I", order(99, "three")))
    expire_now(incarnation, monkeypatch, -1.0)
    assert whole(bench) == 1
    assert shared < files(bench, "puffin")
    publish(("+U", order(12, "four")))
    publish(("+I", order(100, "five")))
    expire_now(incarnation, monkeypatch, -1.0)
    assert whole(bench) == 1
    assert not shared & files(bench, "puffin")


@pytest.mark.parametrize("seed", SEEDS)
def test_every_snapshot_that_an_expiry_retains_is_read_whole(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A random history of a table in several data files, an expiry at the end of each round.

    Some checkpoints are kept, some applied together; in some rounds files are compacted, or somebody drops a tag, or
    the Spark writer starts anew, at times after a checkpoint that it applied and did not publish.
    """
    draw, journal, began = random.Random(seed), bench.journal, time.time()
    monkeypatch.setattr(upkeep, "TIER", 3)
    journal.table(T)
    for first in range(0, 40, 10):
        journal.chunk(T, [order(number) for number in range(first, first + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    for _ in range(ROUNDS):
        for _ in range(draw.randint(1, 4)):
            for _ in range(draw.choice([1, 1, 2])):
                rows = [order(draw.randrange(50), f"n{draw.randrange(99)}") for _ in range(draw.randint(1, 4))]
                journal.change(T, *((draw.choice(["+U", "+U", "-D"]), row) for row in rows))
                journal.checkpoint(kept=draw.random() < 0.1)
            bench.apply(incarnation)
        event = draw.choice(["", "", "compaction", "start", "a tag goes"])
        if event == "compaction":
            incarnation.upkeep.view = Future()
            incarnation.upkeep.run()
        elif event == "start":
            if draw.random() < 0.5:
                journal.change(T, ("+U", order(draw.randrange(40), "left behind")))
                journal.checkpoint(inside=True)
                bench.apply(incarnation)
                journal.checkpoint()
            incarnation = bench.apply()
        elif event == "a tag goes":
            table = bench.lake().ensure(T.table_id)
            tags = [str(name) for name in table.metadata().refs() if str(name).startswith("checkpoint_")]
            for name in tags[:1]:
                table.java.manageSnapshots().removeTag(name).commit()
        expire_now(incarnation, monkeypatch, draw.choice([-1.0, -1.0, draw.random() * (time.time() - began)]))
        whole(bench)


def in_store(bench: SparkBench) -> list[str]:
    return sorted(os.listdir(bench.journal.store.location("staged")))


def test_a_start_ends_while_its_sweep_of_the_store_goes_on(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, sweeping, go_on = bench.journal, threading.Event(), threading.Event()
    journal.table(T)
    journal.chunk(T, [order(1)])
    journal.checkpoint()
    incarnation = bench.apply()

    def retire(*_: Any, **__: Any) -> None:
        sweeping.set()
        go_on.wait(60)

    monkeypatch.setattr(Removal, "retire", retire)
    expire_now(incarnation, monkeypatch, -1.0)
    assert sweeping.wait(60)
    incarnation.close()
    assert incarnation.upkeep.sweeping is not None
    assert incarnation.upkeep.sweeping.is_alive()
    go_on.set()
    incarnation.upkeep.sweeping.join(60)


def test_the_lake_keeps_every_row_when_the_store_is_gone(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Two chunks are adopted: each has a second name below the table, and its bytes are there once. 2. The
    store's sweep removes the staged files. 3. The store is removed.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.chunk(T, [order(number) for number in range(10, 20)])
    journal.checkpoint()
    incarnation = bench.apply()
    staged = {os.stat(journal.store.location(f"staged/{name}")).st_ino for name in in_store(bench)}
    lake = {path.stat().st_ino for path in (journal.root / "lake" / "shop" / "orders").rglob("*.parquet")}
    assert staged == lake
    assert len(lake) == 2
    journal.change(T, ("+U", order(1, "one")))
    last = journal.checkpoint()
    bench.apply(incarnation)
    journal.store.removal.retire(last, w=incarnation.progress.w)
    assert in_store(bench) == []
    expire_now(incarnation, monkeypatch, -1.0)
    incarnation.close()  # its upkeep writes into the store
    if incarnation.upkeep.sweeping is not None:
        incarnation.upkeep.sweeping.join(60)  # and its sweep, which ends before the next removal
    shutil.rmtree(journal.store.location(""))
    assert same(bench.rows(T.table_id), journal.at[last][T.table_id])


@pytest.mark.parametrize("fault", [errno.EXDEV, errno.EPERM])
def test_a_chunk_file_is_copied_where_it_can_get_no_second_name(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    journal, link = bench.journal, os.link

    def elsewhere(old: str, new: str) -> None:
        if "/lake/" in new:
            raise OSError(fault, os.strerror(fault), new)
        link(old, new)

    monkeypatch.setattr(files_of_the_lake.os, "link", elsewhere)
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    last = journal.checkpoint()
    bench.apply()
    (path,) = (journal.root / "lake" / "shop" / "orders").rglob("*.parquet")
    (name,) = in_store(bench)
    assert path.stat().st_nlink == 1
    assert path.read_bytes() == Path(journal.store.location(f"staged/{name}")).read_bytes()
    shutil.rmtree(journal.store.location(""))
    assert same(bench.rows(T.table_id), journal.at[last][T.table_id])


def swept(incarnation: LakeStart) -> bool:
    """Whether the last upkeep found something to sweep; waits for it."""
    if incarnation.upkeep.sweeping is None:
        return False
    incarnation.upkeep.sweeping.join(60)
    return not incarnation.upkeep.sweeping.is_alive()


@EVERYWHERE
def test_a_savepoint_of_an_earlier_epoch_stays(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    saved = journal.checkpoint(kept=True)
    bench.apply()
    journal.begin_epoch(saved)
    for note in ("one", "two"):
        journal.change(T, ("+U", order(1, note)))
        journal.checkpoint()
        incarnation = bench.apply()
    expire_now(incarnation, monkeypatch, -1.0)
    assert swept(incarnation)
    assert saved in journal.store.publication_numbers()
    assert same(bench.rows(T.table_id, f"checkpoint_{saved}"), journal.at[saved][T.table_id])


@EVERYWHERE
def test_what_main_showed_while_its_table_was_read_again_stays_within_the_grace_and_a_restore_shows_it(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A table is live. 2. It is read again, and `main` shows the old generation at publications before and within
    the grace. 3. It is live again; an expiry. 4. The old cut is read by its snapshot. 5. A restore to a publication
    within the grace shows it. 6. `_cutline.publications` has no row of what the restore left behind.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.checkpoint()
    incarnation = bench.apply()
    old = snapshot_of(newest(bench).tables[T.table_id].main.content)
    journal.table(T, phase="snapshot", generation=2)
    journal.chunk(T, [order(number, "second") for number in range(10)])
    journal.checkpoint()
    bench.apply(incarnation)
    began = time.time()
    journal.change(T, ("+U", order(1, "caught")))
    journal.table(T, phase="catch-up", generation=2)
    within = journal.checkpoint()
    bench.apply(incarnation)
    journal.table(T, generation=2)
    journal.change(T, ("+U", order(2, "live")))
    left = journal.checkpoint()
    bench.apply(incarnation)
    expire_now(incarnation, monkeypatch, time.time() - began)
    assert {row["note"] for row in bench.rows(T.table_id, old)[1]} == {"x"}
    journal.begin_epoch(within)
    journal.table(T, phase="catch-up", generation=2)
    journal.checkpoint()
    bench.apply()
    assert {row["note"] for row in bench.rows(T.table_id)[1]} == {"x"}
    numbers = bench.session.sql("SELECT DISTINCT checkpoint FROM lake._cutline.publications").toArrow()["checkpoint"]
    assert left not in numbers.to_pylist()
    assert within in numbers.to_pylist()


@EVERYWHERE
def test_a_savepoint_of_a_table_that_is_read_again_keeps_what_main_showed(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A savepoint while one of two tables is read again. 2. Both go on; expiry, and others expire snapshots too.
    3. A restore to the savepoint shows both tables as they were, each at its position; then the table goes live.
    """
    journal = bench.journal
    journal.table(T)
    journal.table(U)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint()
    incarnation = bench.apply()
    journal.table(T, phase="snapshot", generation=2)
    journal.chunk(T, [order(number, "second") for number in range(5)])
    saved = journal.checkpoint(kept=True)
    bench.apply(incarnation)
    at, models = newest(bench), {name: dict(model) for name, model in journal.models.items()}
    journal.chunk(T, [order(number, "second") for number in range(5, 12)])
    journal.table(T, generation=2)
    for note in ("one", "two"):
        journal.change(T, ("+U", order(1, note)))
        journal.change(U, ("+U", stock(1, 99)))
        journal.checkpoint()
        bench.apply(incarnation)
    expire_now(incarnation, monkeypatch, -1.0)
    everything = "older_than => TIMESTAMP '2099-01-01', retain_last => 1"
    bench.session.sql(f"CALL lake.system.expire_snapshots(table => '{T.table_id}', {everything})")
    journal.begin_epoch(saved)
    journal.models = models
    journal.table(T, phase="snapshot", generation=2)
    journal.models = models
    journal.checkpoint()
    incarnation = bench.apply()
    assert {row["note"] for row in bench.rows(T.table_id)[1]} == {"x"}
    assert bench.rows(U.table_id)[1] == [stock(1, 1)]
    assert newest(bench).position_of(T.table_id) == at.position_of(T.table_id)
    journal.chunk(T, [order(number, "third") for number in range(5, 12)])
    journal.table(T, generation=2)
    journal.checkpoint()
    bench.apply(incarnation)
    assert same(bench.rows(T.table_id), journal.at[newest(bench).n][T.table_id])


def test_a_tag_of_another_user_with_a_savepoints_name_stays(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(3)])
    journal.checkpoint()
    incarnation = bench.apply()
    theirs = snapshot_of(newest(bench).tables[T.table_id].main.content)
    at = journal.store.last_slot() + 1
    bench.session.sql(f"ALTER TABLE lake.{T.table_id} CREATE TAG checkpoint_{at}")
    journal.change(T, ("+U", order(1, "later")))
    assert journal.checkpoint(kept=True) == at
    bench.apply(incarnation)
    assert newest(bench).tables[T.table_id].state == "live"
    assert bench.lake().load(T.table_id).head(f"checkpoint_{at}") == theirs
    assert same(bench.rows(T.table_id), journal.at[at][T.table_id])


def test_epochs_that_are_shorter_than_the_grace_hold_up_no_expiry(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Three publications of epoch 1. 2. After a pause one of the next epoch, by another start. 3. The grace began in
    the pause: the newest publication of epoch 1 is the oldest that can be restored.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.checkpoint()
    incarnation = bench.apply()
    for note in ("one", "two"):
        journal.change(T, ("+U", order(1, note)))
        last = journal.checkpoint()
        bench.apply(incarnation)
    paused = time.time()
    journal.begin_epoch(last)
    journal.change(T, ("+U", order(1, "three")))
    journal.checkpoint()
    incarnation = bench.apply()
    expire_now(incarnation, monkeypatch, time.time() - paused)
    assert swept(incarnation)
    assert [slot for slot in range(1, last) if (entry := journal.store.entry(slot)) and entry.slot > 2] == []
    assert whole(bench) == 2
