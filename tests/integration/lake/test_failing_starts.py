"""Starts of the Spark writer that fail or are killed leave little behind; on a real Spark and a real lake."""

from __future__ import annotations

import threading

import pytest

from cutline.common.errors import Unavailable
from cutline.spark_writer.driver import Driver
from cutline.spark_writer.sinks.iceberg.lake import Lake
from tests.support.quarantined import HEALTHY, branches, until
from tests.support.spark_bench import Heard, SparkBench, T, U, both_live, order, stock


class Applier:
    """The Spark writer as its process serves a pipeline, in a thread, with the statuses that it reports."""

    def __init__(self, bench: SparkBench, monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, float]) -> None:
        monkeypatch.setattr(Driver, "AGAIN_SECONDS", pauses)
        self.lead = Heard()
        applier = bench.driver(self.lead)
        self._thread = threading.Thread(target=applier.run)
        self._thread.start()

    def close(self) -> None:
        self.lead.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_start_that_fails_removes_its_branches_waits_longer_each_time_and_reports_it(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Both tables are live. 2. Both change, and a publication can't be made, six times. 3. It can be."""
    journal, _ = bench.journal, both_live(bench)
    before = branches(bench, HEALTHY)
    real, left = Lake.sync_catalogue, 6

    def sync_catalogue(lake: Lake) -> None:
        nonlocal left
        if left:
            left -= 1
            raise Unavailable("the catalogue is full")
        real(lake)

    monkeypatch.setattr(Lake, "sync_catalogue", sync_catalogue)
    journal.change(T, ("+U", order(1, "second")))
    journal.change(U, ("+U", stock(1, 200)))
    last = journal.checkpoint()
    applier = Applier(bench, monkeypatch, (0.05, 0.4))
    seen: list[set[str]] = []

    def published() -> bool:
        if len(applier.lead.failures()) > len(seen):
            seen.append(branches(bench, HEALTHY))
        return bool(journal.store.publication(last))

    try:
        until(published, "the publication")
        until(lambda: applier.lead.statuses[-1].published == last, "the status")
    finally:
        applier.close()
    assert [each.again_seconds for each in applier.lead.failures()] == [0.05, 0.1, 0.2, 0.4, 0.4, 0.4]
    assert {str(each.cause) for each in applier.lead.failures()} == {"the catalogue is full"}
    assert branches(bench, HEALTHY) == {"main", f"staging_{applier.lead.statuses[-1].w}"}
    (apply,) = applier.lead.statuses[-1].applies
    assert (apply.last, apply.rows, sorted(apply.tables)) == (last, 2, sorted([T.table_id, U.table_id]))
    assert 0 < min(apply.tables.values()) <= apply.seconds + 0.01
    assert apply.published_at is not None
    assert apply.applied_at <= apply.published_at
    assert all(len(each) <= len(before) + 1 for each in seen), seen
    assert bench.agree() == 3


def test_killed_starts_leave_at_most_one_branch_and_those_of_a_user_and_a_newer_start_stay(bench: SparkBench) -> None:
    """1. Six starts die after they applied. 2. A user has a branch of such a name; a newer start is at work too."""

    class Killed(Exception):
        pass

    def die(reached: str) -> None:
        if reached == "applied":
            raise Killed

    journal, first = bench.journal, both_live(bench)
    java = bench.lake().ensure(HEALTHY).java
    java.manageSnapshots().createBranch("staging_0", java.currentSnapshot().snapshotId()).commit()
    journal.change(T, ("+U", order(1, "second")))
    journal.checkpoint()
    for _ in range(6):
        with pytest.raises(Killed):
            bench.apply(bench.start(die))
        assert len(branches(bench, HEALTHY)) <= 4  # main, the user's, the publication's, the last one's
    older = bench.start()
    with pytest.raises(Killed):
        bench.apply(newer := bench.start(die))
    with pytest.raises(Unavailable, match="meanwhile"):
        bench.apply(older)
    assert branches(bench, HEALTHY) == {
        "main",
        "staging_0",
        first.sink.branch,
        older.sink.branch,
        newer.sink.branch,
    }
    last = bench.apply()
    journal.change(T, ("+U", order(2, "third")))
    journal.checkpoint()
    bench.apply(last)
    assert branches(bench, HEALTHY) == {"main", "staging_0", last.sink.branch}
    assert bench.agree() == 4
