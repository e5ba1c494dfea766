"""What a pipeline keeps does not grow with its age: files, tags, journal entries and bytes of store and metadata.

The clock of the Spark writer is the test's own; Spark, Iceberg, the catalogue and the store are real. Savepoints are
taken now and then, starts end by a kill in the middle of their work, epochs follow each other.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from cutline.common.config.pipeline import RetentionConfig
from cutline.spark_writer.sinks.iceberg import lake, publications, upkeep
from tests.support.spark_bench import LakeStart, SparkBench, T, U, order, pyiceberg_table, same, stock

logger = logging.getLogger(__name__)
KILLS = ("applied", "published", "shown")
"""Where a start is killed, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A savepoint each half `cycle` of checkpoints, a kill at its end; the two `ages` are compared.

    They may differ by the part `tolerance`. Few files differ by more at times, so `slack` is allowed too, and `noise`
    for data files, which compaction merges now or later.
    """

    cycle: int
    ages: tuple[int, int]
    retention: RetentionConfig
    step_seconds: float
    tolerance: float = 0.1
    noise: int = 0
    slack: int = 2


class Killed(Exception):
    """The process is killed here."""


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return time.monotonic()


def started(bench: SparkBench, clock: Clock, retention: RetentionConfig, killed_at: str = "") -> LakeStart:
    """A start of the Spark writer; it dies at the step `killed_at` of its next checkpoint."""
    armed = False

    def reached(step: str) -> None:
        if armed and step == killed_at:
            raise Killed

    made = bench.start(reached, clock=clock, retention=retention)
    made.upkeep.view = Future()  # making it takes seconds
    armed = True
    return made


def kept(bench: SparkBench, incarnation: LakeStart) -> dict[str, int]:
    """What the pipeline keeps now."""
    root, counts = bench.journal.root, dict[str, int]()
    for place in ("store", "lake/shop", "lake/_cutline"):
        files = [path for path in (root / place).rglob("*") if path.is_file()]
        metadata = [path for path in files if place == "store" or path.parent.name == "metadata"]
        counts[f"files in {place}"] = len(metadata)
        counts[f"bytes in {place}"] = sum(path.stat().st_size for path in metadata)
        if place != "store":
            counts[f"data files in {place}"] = len(files) - len(metadata)
    (folder,) = (root / "store").glob("shop.*")
    for name in ("journal", "publications", "spark", "parts", "staged"):
        found = folder / name
        counts[f"{name} of the store"] = len(list(found.iterdir())) if found.exists() else 0
    for table_id in (T.table_id, U.table_id):
        table = incarnation.sink.tables.get(table_id)
        table.refresh()
        metadata = table.metadata()
        counts[f"tags and branches of {table_id}"] = len(metadata.refs())
        counts[f"snapshots of {table_id}"] = int(metadata.snapshots().size())
    summary = incarnation.sink.publications._opened().java.currentSnapshot().summary()
    counts["rows of publications"] = int(summary.get("total-records"))
    return counts


def lived(bench: SparkBench, pace: Pace) -> dict[int, dict[str, float]]:
    """Let a pipeline live; return what it kept at each of the two ages, in the mean over the cycle before."""
    journal, clock = bench.journal, Clock()
    journal.table(T)
    journal.table(U)
    journal.chunk(T, [order(number) for number in range(60)])
    journal.chunk(U, [stock(number, number) for number in range(20)])
    journal.checkpoint()
    incarnation = started(bench, clock, pace.retention)
    bench.apply(incarnation)
    found: dict[int, dict[str, float]] = {}
    samples: list[dict[str, int]] = []
    for age in range(1, pace.ages[1] + 1):
        clock.now += pace.step_seconds
        if age % pace.cycle == 0:
            step = KILLS[age // pace.cycle % len(KILLS)]
            incarnation = started(bench, clock, pace.retention, killed_at=step)
            journal.begin_epoch(journal.store.last_slot())
            journal.store.removal.sweep()
        journal.change(T, *(("+U", order((7 * age + at) % 60, f"n{age}")) for at in range(3)))
        if age % 5 == 0:
            journal.change(U, ("+U", stock(age % 20, age)))
        last = journal.checkpoint(kept=age % (pace.cycle // 2) == 0)
        try:
            bench.apply(incarnation)
        except Killed:
            incarnation = bench.apply(started(bench, clock, pace.retention))
        incarnation.upkeep.run()
        if incarnation.upkeep.sweeping is not None:
            incarnation.upkeep.sweeping.join(60)
        if age % (pace.cycle // 10) == 0:
            samples = [*samples, kept(bench, incarnation)][-10:]
        if age % pace.cycle == 0:
            logger.info("%d checkpoints: %s", age, samples[-1])
        if age in pace.ages:
            found[age] = {name: sum(each[name] for each in samples) / len(samples) for name in samples[0]}
    for table in (T, U):
        assert same(bench.rows(table.table_id), journal.at[last][table.table_id])
    assert bench.agree()
    return found


def compare(pace: Pace, found: dict[int, dict[str, float]]) -> None:
    younger, older = (found[age] for age in pace.ages)
    grown = []
    for name, before in younger.items():
        line = f"{name}: {before:.1f}, then {older[name]:.1f}"
        logger.info("%s", line)
        slack = 0 if "bytes" in name else pace.noise if "data" in name else pace.slack
        if abs(older[name] - before) > pace.tolerance * before + slack:
            grown.append(line)
    assert not grown, grown


def test_a_small_pipeline_that_is_twice_as_old_keeps_no_more(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of the test below: what happens there each hundred commits happens here each few."""
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 60.0)
    monkeypatch.setattr(publications, "MERGED_FILES", 4)
    monkeypatch.setitem(lake._PROPERTIES, "write.metadata.previous-versions-max", "4")
    monkeypatch.setitem(lake._PROPERTIES, "commit.manifest.min-count-to-merge", "4")
    retention = RetentionConfig(grace_seconds=90.0, savepoints=2)
    pace = Pace(cycle=10, ages=(30, 60), step_seconds=30.0, retention=retention, tolerance=0.25, noise=20)
    compare(pace, lived(bench, pace))


def test_a_metadata_file_stays_for_the_grace_and_no_longer(bench: SparkBench) -> None:
    """1. More commits within the grace than a table keeps metadata files by default: each can be read by PyIceberg and
    shows what it did. 2. The grace goes by: with the next commits they go, and the table keeps few again.
    """
    journal, clock = bench.journal, Clock()
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(3)])
    journal.checkpoint()
    incarnation = bench.apply(started(bench, clock, RetentionConfig()))
    seen: dict[str, list[Any]] = {}
    for number in range(70):
        found = pyiceberg_table(bench, T.table_id)
        seen[found.metadata_location] = sorted(found.scan().to_arrow()["note"].to_pylist())
        journal.change(T, ("+U", order(1, f"n{number}")))
        journal.checkpoint()
        bench.apply(incarnation)
    for place, notes in seen.items():
        then = StaticTable.from_metadata(place)
        assert sorted(then.scan().to_arrow()["note"].to_pylist()) == notes
    clock.now += 7200.0
    for number in range(40):
        journal.change(T, ("+U", order(1, f"m{number}")))
        journal.checkpoint()
        bench.apply(incarnation)
    assert not any(os.path.exists(place.removeprefix("file:")) for place in list(seen)[:50])
    table = bench.lake().load(T.table_id)
    assert table is not None
    assert int(table.metadata().previousFiles().size()) <= 100


@pytest.mark.full
@pytest.mark.timeout(5400)
def test_a_pipeline_of_2000_checkpoints_keeps_what_it_kept_after_1000(bench: SparkBench) -> None:
    pace = Pace(cycle=100, ages=(1000, 2000), step_seconds=60.0, retention=RetentionConfig())
    compare(pace, lived(bench, pace))
