"""Tables that can't be read now: each waits alone, with its cause, and others go on."""

from __future__ import annotations

import pytest

from cutline.common.mesh.machine import Effect, MessageReceived, Ticked
from cutline.common.mesh.messages import Marker, Remedy, SnapshotSplit, SplitFailed, SplitsWanted, decode, encode
from cutline.services.enumerator.events import BoundFound, FindBound, SplittingOutdated, TableDescribed, TableLockedOut
from cutline.services.enumerator.holds import AGAIN_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, Holds
from cutline.services.enumerator.machine import MAX_ATTEMPTS
from tests.support.causes import because
from tests.support.enumerator_bench import EnumeratorBench, commanded, found, invariants_hold

__all__ = ["invariants_hold"]
CAUSE = because("d.t is locked")


def tick(bench: EnumeratorBench, now: float) -> list[Effect]:
    return bench.note(bench.process.handle(Ticked(), now))


def locked(bench: EnumeratorBench, split: SnapshotSplit, now: float = 1.0) -> None:
    """A reader finds the table of this chunk locked."""
    failed = SplitFailed(
        split_id=split.split_id, table_id=split.table_id, generation=split.generation, attempt=split.attempt,
        cause=CAUSE, remedy=Remedy.WAIT,
    )  # fmt: skip
    assert decode(encode(failed)) == failed
    bench.note(bench.process.handle(MessageReceived(channel="reader-0", message=failed), now))
    bench.get(SplitsWanted(free=1))


def asked(bench: EnumeratorBench) -> list[str]:
    return [order.table_id for order in bench.orders if isinstance(order, FindBound)]


def test_a_question_that_meets_a_lock_is_put_back_and_others_are_asked_however_many_are_locked() -> None:
    tables = [f"d.t{number}" for number in range(30)]
    bench = EnumeratorBench().begin(*(found(table) for table in tables))
    for table in tables[:-1]:
        assert table in asked(bench), "locked tables must not use up the room for questions"
        bench.tell(TableLockedOut(table_id=table, generation=1, cause=CAUSE))
    assert asked(bench)[-1] == tables[-1]
    assert {bench.machine.tables[table].cause for table in tables[:-1]} == {CAUSE}
    assert bench.machine.tables[tables[-1]].cause is None


def test_a_held_table_is_asked_about_again_after_a_pause_and_its_cause_ends_with_the_lock() -> None:
    bench = EnumeratorBench().begin()
    bench.tell(TableLockedOut(table_id="d.t", generation=1, cause=CAUSE))
    tick(bench, 1.0 + FIRST_SECONDS / 2)
    assert len(asked(bench)) == 1
    tick(bench, 1.0 + FIRST_SECONDS)
    assert len(asked(bench)) == 2
    bench.tell(BoundFound(table_id="d.t", generation=1, end=None))
    assert bench.machine.tables["d.t"].cause is None
    bench.get(SplitsWanted(free=1))
    assert len(bench.assigned) == 1


def test_a_locked_chunk_uses_up_no_attempt_and_one_chunk_alone_is_tried_until_the_lock_is_gone() -> None:
    bench = EnumeratorBench().begin(found("d.t"), found("d.other")).split_in("10", "20", None)
    bench.get(SplitsWanted(free=1))
    now = 1.0
    for _ in range(3 * MAX_ATTEMPTS):
        _, split = bench.assigned[-1]
        locked(bench, split, now)
        assert bench.assigned[-1][1] == split, "no other chunk of the table is handed out"
        now += LONGEST_SECONDS
        tick(bench, now)
        assert (bench.assigned[-1][1].split_id, bench.assigned[-1][1].attempt) == (split.split_id, split.attempt + 1)
    assert bench.machine.tables["d.t"].phase == "snapshot"
    bench.split_in(None, table="d.other")
    bench.get(SplitsWanted(free=1))
    assert bench.assigned[-1][1].table_id == "d.other", "while one chunk is tried, others have the room"
    bench.report(next(split for _, split in reversed(bench.assigned) if split.table_id == "d.t"))
    assert bench.machine.tables["d.t"].cause is None
    bench.get(SplitsWanted(free=2))
    assert [split.table_id for _, split in bench.assigned[-2:]] == ["d.t", "d.t"]


def test_a_held_table_is_tried_at_once_after_a_restore() -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    locked(bench, bench.assigned[-1][1])
    bench.start(2)
    bench.get(Marker(checkpoint=2))
    again = EnumeratorBench(part=bench.part())
    assert again.machine.tables["d.t"].cause == CAUSE
    again.get(SplitsWanted(free=2))
    assert again.assigned == []
    tick(again, 0.0)
    ((_, split),) = again.assigned
    again.report(split)
    assert again.machine.tables["d.t"].cause is None
    assert len(again.assigned) == 2


def test_a_try_that_fails_for_another_cause_is_tried_again() -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    locked(bench, bench.assigned[-1][1])
    tick(bench, 1.0 + LONGEST_SECONDS)
    _, split = bench.assigned[-1]
    bench.get(
        SplitFailed(
            split_id=split.split_id, table_id="d.t", generation=1, attempt=split.attempt,
            cause=because("the connection broke"),
            remedy=Remedy.RETRY,
        )
    )  # fmt: skip
    bench.get(SplitsWanted(free=1))
    assert (bench.assigned[-1][1].split_id, bench.assigned[-1][1].attempt) == (split.split_id, split.attempt + 1)


@pytest.mark.parametrize("kind", ["pause_table", "read_table_again"])
def test_a_persons_command_ends_the_wait(kind: str) -> None:
    bench = EnumeratorBench().begin().split_in("10", None)
    bench.get(SplitsWanted(free=1))
    locked(bench, bench.assigned[-1][1])
    assert commanded(bench, kind) is None
    tick(bench, 1.0 + LONGEST_SECONDS)
    assert bench.machine.tables["d.t"].cause != CAUSE
    assert len(bench.assigned) == 1


def test_holds_grow_and_tries_that_were_out_together_count_as_one() -> None:
    holds = Holds()
    now = 0.0
    for pause in (FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS):
        holds.hold("t", CAUSE, now)
        holds.hold("t", CAUSE, now)
        assert holds.take_due(now + pause - 0.01) == []
        now += pause
        assert holds.take_due(now) == ["t"]
        assert not holds.waits("t")
        assert "t" in holds
    assert holds.end("t") == CAUSE
    assert holds.end("t") is None


def test_a_table_that_changes_in_each_generation_is_read_again_at_once_and_then_ever_more_rarely() -> None:
    """As with MySQL without GTIDs, whose low watermark lies before the newest DDL for a minute."""
    bench, now, begun = EnumeratorBench().begin(found("d.t"), found("d.other")), 1.0, []
    while now < 61.0:
        generation = bench.machine.tables["d.t"].generation
        if [order for order in bench.orders if isinstance(order, FindBound) and order.generation == generation]:
            begun.append(now)
            changed = SplittingOutdated(table_id="d.t", generation=generation, cause=CAUSE)
            for event in (changed, TableDescribed(generation=generation + 1, table=found("d.t"))):
                bench.note(bench.process.handle(event, now))
            assert bench.machine.tables["d.t"].cause == CAUSE, "it says why it is read again"
        now += 0.25
        tick(bench, now)
    assert begun == [1.0, 1.25, 3.25, 7.25, 15.25, 30.25, 45.25, 60.25]
    assert bench.machine.tables["d.other"].generation == 1


def test_a_table_that_changes_now_and_then_is_read_again_at_once() -> None:
    holds = Holds()
    for now in range(0, 600, int(AGAIN_SECONDS)):
        holds.begins_again("t", CAUSE, now)
        assert "t" not in holds
    holds.begins_again("t", CAUSE, now + 1.0)
    assert holds.waits("t")
