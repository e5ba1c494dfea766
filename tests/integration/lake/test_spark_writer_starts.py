"""Starts of the Spark writer that crash, sleep or are overtaken, and what is kept; on a real Spark."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.config.table_options import TableOptions
from cutline.common.errors import ConfigError, Unavailable
from cutline.spark_writer.sinks.iceberg import sink, upkeep
from cutline.spark_writer.sinks.iceberg.maintenance import TIER, expire
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.busy_history import busy_history
from tests.support.spark_bench import Journal, SparkBench, T, U, order, same

ROOT = Path(__file__).parents[3]


def test_a_second_owner_is_refused(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.checkpoint()
    bench.apply()
    with pytest.raises(ConfigError, match="belongs to pipeline shop"):
        bench.lake("other").ensure(T.table_id)


@pytest.mark.parametrize(
    ("engine", "version"),
    [("local", 3), ("local", 2), *(pytest.param("spark", version, marks=pytest.mark.full) for version in (3, 2))],
)
@pytest.mark.parametrize("step", ["claimed", "applying", "applied", "published", "shown", "recorded"])
def test_a_crash_after_any_step_leaves_nothing_lost_or_doubled(
    bench: SparkBench, step: str, engine: str, version: Literal[2, 3]
) -> None:
    """1. Apply part of a history. 2. Die after `step` of the next publication, which adds a column with a default.
    3. A new incarnation ends exact.
    """
    bench.engine = engine
    bench.options = TableOptions(tables="*.*", format_version=version)

    class Crash(Exception):
        pass

    armed = False

    def crash(reached: str) -> None:
        if armed and reached == step:
            raise Crash

    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply(bench.start(crash))
    journal.change(T, ("+U", order(1, "one")), ("-D", order(2)))
    journal.chunk(T, [order(100)])
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    journal.change(T, ("+U", order(1, "two")), ("-D", order(3)))
    added = T.add_column("seen", "int", nullable=False, initial_default="7")
    for row in journal.models[T.table_id].values():
        row["seen"] = 7
    journal.table(added)
    journal.change(added, ("+U", {**order(4, "four"), "seen": 4}))
    journal.checkpoint(kept=True)
    armed = True
    with pytest.raises(Crash):
        bench.apply(bench.start(crash) if step == "claimed" else incarnation)
    journal.change(added, ("+I", {**order(2, "again"), "seen": 2}))
    journal.checkpoint()
    bench.apply()
    assert bench.agree() == len(journal.store.publications()) >= 2


@pytest.mark.parametrize("step", ["applying", "applied", "published", "shown"])
def test_a_zombie_that_wakes_after_its_successors_commits_changes_nothing(bench: SparkBench, step: str) -> None:
    """1. A falls asleep after `step`. 2. B takes over and publishes further cuts. 3. A wakes and is refused.

    No publication is listed twice.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    journal.checkpoint()
    asleep, wake = threading.Event(), threading.Event()

    def sleep(reached: str) -> None:
        if reached == step and journal.store.last_slot() > 2:
            asleep.set()
            assert wake.wait(240)

    zombie = bench.apply(bench.start(sleep))
    journal.change(T, ("+U", order(1, "old")))
    journal.checkpoint()
    failures: list[BaseException] = []

    def live() -> None:
        try:
            bench.apply(zombie)
        except Unavailable as error:
            failures.append(error)

    thread = threading.Thread(target=live)
    thread.start()
    assert asleep.wait(240)
    successor = bench.apply()
    journal.change(T, ("+U", order(1, "new")), ("-D", order(3)))
    journal.checkpoint(kept=True)
    bench.apply(successor)
    wake.set()
    thread.join(240)
    assert failures
    assert bench.agree() == 3
    journal.change(T, ("+U", order(5, "five")))
    journal.checkpoint()
    bench.apply(successor)
    assert bench.agree() == 4
    listed = bench.session.sql("SELECT checkpoint, `table` FROM lake._cutline.publications").toArrow().to_pylist()
    assert Counter((row["checkpoint"], row["table"]) for row in listed) == {
        (n, table): 1 for n in journal.store.publication_numbers() for table in (None, T.table_id)
    }


def test_a_start_with_an_outdated_view_of_the_journal_does_not_move_main_back(bench: SparkBench) -> None:
    """1. A publishes. 2. B claims and reads the journal. 3. A publishes again. 4. B shows what it has read."""
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    journal.checkpoint()
    older = bench.apply()

    def go_on(reached: str) -> None:
        if reached == "claimed":
            journal.change(T, ("+U", order(1, "new")))
            journal.checkpoint()
            bench.apply(older)

    with pytest.raises(Unavailable, match="meanwhile"):
        bench.start(go_on)
    assert bench.agree() == 2
    bench.apply()
    assert bench.agree() == 2


def test_a_start_that_was_overtaken_does_not_leave_a_quarantined_table_where_it_was_before(bench: SparkBench) -> None:
    """1. A and B stand at publication 2. 2. A makes publication 3. 3. The table is quarantined. 4. B goes on."""
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    journal.checkpoint()
    first, second = bench.apply(), bench.start()
    journal.change(T, ("+U", order(1, "new")))
    journal.checkpoint()
    with pytest.raises(Unavailable, match="meanwhile"):
        bench.apply(first)
    journal.table(T, phase="quarantined")
    journal.checkpoint()
    with pytest.raises(Unavailable, match="another Spark writer has published"):
        bench.apply(second)
    bench.apply()
    third, fourth = journal.store.publications()[1:]
    snapshots = {snapshot_of(record.tables[T.table_id].main.content) for record in (third, fourth)}
    assert (len(snapshots), fourth.position_of(T.table_id)) == (1, third.position)
    assert same(bench.rows(T.table_id), journal.at[3][T.table_id])


def test_an_epoch_based_on_an_older_checkpoint_leaves_the_later_ones_out(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    base = journal.checkpoint(kept=True)
    bench.apply()
    kept = {key: dict(row) for key, row in journal.models[T.table_id].items()}
    journal.change(T, ("+U", order(1, "left out")))
    journal.checkpoint()
    incarnation = bench.apply()
    journal.models[T.table_id] = kept
    journal.begin_epoch(base)
    journal.change(T, ("+U", order(2, "counts")))
    journal.checkpoint(kept=True)
    with pytest.raises(Unavailable, match="left it out"):
        bench.apply(incarnation)
    bench.apply()
    assert bench.agree() == 3


def test_savepoints_are_kept_by_number_and_the_others_release_their_snapshots(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Three savepoints and more. 2. Upkeep with room for two: the first one's tag and publication go, and
    the entries after the last one; a tag of somebody else stays. 3. A restore to the last one works."""
    few = partial(RetentionConfig.model_construct, grace_seconds=-1.0, savepoints=2)
    monkeypatch.setattr(sink, "RetentionConfig", few)
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(5)])
    kept = []
    for number in range(3):
        journal.change(T, ("+U", order(number, f"savepoint {number}")))
        kept.append(journal.checkpoint(kept=True))
        bench.apply()
    model = {key: dict(row) for key, row in journal.models[T.table_id].items()}
    for number in range(3):
        journal.change(T, ("+U", order(number, "later")))
        journal.checkpoint()
        incarnation = bench.apply()
    bench.session.sql(f"ALTER TABLE lake.{T.table_id} CREATE TAG checkpoint_99")
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
    incarnation.upkeep.run()
    assert incarnation.upkeep.sweeping is not None
    incarnation.upkeep.sweeping.join(60)
    tags = bench.session.sql(f"SELECT name FROM lake.{T.table_id}.refs WHERE type = 'TAG'").toArrow()["name"]
    assert sorted(tags.to_pylist()) == sorted(["checkpoint_99", *(f"checkpoint_{n}" for n in kept[1:])])
    numbers = journal.store.publication_numbers()
    assert (kept[0] in numbers, kept[1] in numbers, kept[2] in numbers) == (False, True, True)
    assert {slot: journal.store.entry(slot) is not None for slot in (*kept[1:], numbers[-1], kept[2] + 1)} == {
        **dict.fromkeys(kept[1:], True), numbers[-1]: True, kept[2] + 1: False,
    }  # fmt: skip
    journal.models[T.table_id] = model
    journal.begin_epoch(kept[2])
    journal.change(T, ("+U", order(4, "after the restore")))
    journal.checkpoint()
    bench.apply()
    assert same(bench.rows(T.table_id), journal.at[journal.store.last_slot()][T.table_id])


def test_small_files_are_merged_and_old_snapshots_expire_between_publications(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Many small publications with upkeep after each. 2. Another incarnation, and upkeep that expires all it may."""
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    journal = bench.journal
    journal.table(T)
    journal.table(U, phase="snapshot")
    journal.chunk(T, [order(number) for number in range(40)])
    journal.chunk(U, [{"place": "p", "item": 1, "amount": 1}])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    for number in range(12):
        if number == 6:
            journal.table(T.add_column("seen", "int", nullable=False, initial_default="7"))
            for row in journal.models[T.table_id].values():
                row["seen"] = 7
        current = journal.schema_of(T.table_id)
        seen = {"seen": number} if number >= 6 else {}
        journal.change(current, ("+U", {**order(number, "changed"), **seen}), ("-D", {**order(number + 10), **seen}))
        journal.checkpoint(kept=number == 8)
        bench.apply(incarnation)
        incarnation.upkeep.run()
    journal.change(current, ("+U", {**order(0, "last"), **seen}))
    journal.checkpoint()
    bench.apply(incarnation)
    files = bench.session.sql(f"SELECT file_path FROM lake.{T.table_id}.files WHERE content = 0").count()
    assert files < 9
    assert bench.agree() == 14

    monkeypatch.setattr(sink, "RetentionConfig", partial(RetentionConfig.model_construct, grace_seconds=-1.0))
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
    before = len(list((journal.root / "lake" / "shop" / "orders").rglob("*.parquet")))
    incarnation = bench.start()
    journal.change(current, ("+I", {**order(99), **seen}))
    journal.chunk(U, [{"place": "p", "item": 2, "amount": 2}])
    newest = journal.checkpoint()
    bench.apply(incarnation)
    incarnation.upkeep.run()
    assert len(list((journal.root / "lake" / "shop" / "orders").rglob("*.parquet"))) < before
    branches = bench.session.sql(f"SELECT name FROM lake.{T.table_id}.refs WHERE type = 'BRANCH'").toArrow()["name"]
    assert sorted(branches.to_pylist()) == ["main", incarnation.sink.branch]
    assert same(bench.rows(T.table_id), journal.at[newest][T.table_id])
    for record in journal.store.publications():
        if record.kept:
            tagged = bench.rows(T.table_id, f"checkpoint_{record.n}")
            assert same(tagged, journal.at[record.n][T.table_id])
    assert same(bench.rows(U.table_id, "work_2"), journal.at[2][U.table_id])
    journal.change(current, ("-D", {**order(99), **seen}))
    newest = journal.checkpoint()
    bench.apply()
    assert same(bench.rows(T.table_id), journal.at[newest][T.table_id])


def test_the_files_of_a_snapshot_are_not_merged_before_their_table_is_live(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T, phase="snapshot")
    for number in range(TIER):
        journal.chunk(T, [order(number)])
    journal.checkpoint()
    incarnation = bench.apply()
    work = incarnation.progress.work[T.table_id]
    incarnation.upkeep.run()
    assert incarnation.progress.work[T.table_id] == work
    journal.table(T)
    journal.checkpoint()
    bench.apply(incarnation)
    incarnation.upkeep.run()
    head = snapshot_of(incarnation.progress.work[T.table_id].content)
    (file,) = bench.lake().ensure(T.table_id).contents(head).files.values()
    assert file.rows == TIER


def test_expiry_spares_the_files_of_the_store(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(1)])
    journal.checkpoint()
    bench.apply()
    journal.chunk(T, [order(2)])
    journal.chunk(T, [order(3)])
    chunks = [Path(journal.store.location(record.path)) for record in journal.staged]
    journal.checkpoint(inside=True)
    lost = bench.apply()
    journal.checkpoint()
    table = bench.lake().ensure(T.table_id)
    table.java.manageSnapshots().removeBranch(lost.sink.branch).commit()
    soon = int(time.time() * 1000) + 1000
    names = [chunk.stat().st_nlink for chunk in chunks]
    expire(table, before_ms=soon)
    assert (names, [chunk.stat().st_nlink for chunk in chunks]) == ([2, 2], [1, 1])


CHILD = """
import sys
from cutline.common.store.store import Store
from cutline.spark_writer import session
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.transform.shaping import Shaping
store = Store(sys.argv[1]).pipeline("shop")
spark = session.start({"spark.driver.memory": "512m"})
def reached(step):
    print("reached", step, flush=True)
    sys.stdin.readline()
lake = Lake(session.for_pipeline(spark, store.definition()["sink"]), Owner(name="shop", id=store.id))
incarnation = Incarnation(store, IcebergSink(store, lake, Shaping(store, lake.jvm.session)), reached=reached)
while incarnation.step():
    pass
print("done", flush=True)
"""


class Child:
    """The Spark writer in a process of its own, which stops after each step until `go_on`."""

    def __init__(self, journal: Journal) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, journal.store.location("").rsplit("/shop", 1)[0]],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, step: str) -> None:
        deadline = time.monotonic() + 240
        assert self.process.stdout is not None
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.process.stdout], [], [], 1.0)
            line = self.process.stdout.readline() if ready else ""
            if line.split() == ["reached", step]:
                return
            if line:
                self.go_on()
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
        raise AssertionError(f"the child did not reach {step!r}")

    def go_on(self, times: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * times)
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def test_a_process_killed_in_the_middle_and_one_that_sleeps_through_its_successor(bench: SparkBench) -> None:
    """1. A real process is killed (SIGKILL) in the middle of applying. 2. Another is stopped (SIGSTOP) before its
    publication. 3. This process takes over and publishes. 4. The stopped one goes on (SIGCONT) and is refused.
    """
    journal = bench.journal
    busy_history(journal, seed=3, checkpoints=3)
    first, second = Child(journal), Child(journal)
    try:
        first.until("applying")
        first.go_on()
        first.kill()
        second.until("applied")
        os.kill(second.process.pid, signal.SIGSTOP)
        successor = bench.apply()
        journal.change(T, ("+U", order(1, "successor")))
        journal.checkpoint(kept=True)
        bench.apply(successor)
        os.kill(second.process.pid, signal.SIGCONT)
        second.go_on(50)
        _, errors = second.process.communicate(timeout=200)
        assert second.process.returncode != 0
        assert "made by another Spark writer" in errors
    finally:
        first.kill()
        second.kill()
    journal.change(T, ("-D", order(1)))
    journal.checkpoint()
    bench.apply(successor)
    assert bench.agree() == len(journal.store.publications())


def test_the_lake_lists_every_table_at_every_publication(bench: SparkBench) -> None:
    journal = bench.journal
    busy_history(journal, seed=4)
    incarnation = bench.apply()
    journal.change(T, ("+U", order(1, "only orders")))
    last = journal.checkpoint()
    bench.apply(incarnation)
    incarnation.upkeep.run()
    assert incarnation.upkeep.view is not None
    incarnation.upkeep.view.result(240)
    published = {record.n: record for record in journal.store.publications()}
    written = bench.session.sql("SELECT * FROM lake._cutline.publications").toArrow().to_pylist()
    assert {row["table"] for row in written if row["checkpoint"] == last} == {None, T.table_id}
    cuts = bench.session.sql("SELECT * FROM lake._cutline.cuts").toArrow().to_pylist()
    assert {(row["checkpoint"], row["table"]): row["snapshot_id"] for row in cuts} == {
        (n, table): published_table.main and snapshot_of(published_table.main.content)
        for n, record in published.items()
        for table, published_table in record.tables.items()
    }
    assert {row["position"] for row in cuts if row["checkpoint"] == last} == {last * 100}
