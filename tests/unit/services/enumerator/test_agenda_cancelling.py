"""Commands that are cancelled or repeated, and those that a leader leaves to its successor."""

from __future__ import annotations

import pytest

from cutline.services.enumerator.events import (
    BaseFound,
    CommandAnswered,
    DefinitionPut,
    EpochFailed,
    FindBase,
    FindOutcome,
    JournalRead,
    ReleaseSavepoint,
    WriteEntry,
)
from cutline.services.enumerator.requests import CommandRequest
from cutline.services.enumerator.states import EpochOpened
from tests.support.causes import because
from tests.support.leader_bench import READER, WRITER
from tests.support.operated import Operated, checkpoint, leading, wish


def test_a_queued_command_is_cancelled_when_its_turn_comes_and_the_cancellation_tells_what_became_of_it() -> None:
    bench = leading()
    bench.command("pause_table", table="d.t")
    bench.command("pause")
    bench.command("cancel_command", command=2)
    assert bench.leader.checkpoints.requests == []
    checkpoint(bench)
    assert bench.finish().n == 1
    outcome = bench.finish()
    assert (outcome.n, outcome.state, outcome.cause) == (2, "cancelled", "ann cancelled it by command 3")
    assert FindOutcome(command=wish(3, "cancel_command", command=2)) in bench.effects
    bench.tell(CommandAnswered(n=3, state="done", result={"command": 2}))
    assert (bench.finish().n, bench.leader.state) == (3, "leading")


def test_a_command_that_awaits_a_checkpoint_is_cancelled_at_once() -> None:
    bench = leading()
    bench.command("stop", savepoint="last")
    bench.wait(0.2)
    assert bench.leader.checkpoints.in_flight == (2, CommandRequest(n=1))
    bench.command("cancel_command", command=1)
    assert bench.finish().state == "cancelled"
    entry = bench.complete()
    # Else the next leader would take the stop for done, should this one die before the outcome is written.
    assert (entry.kept, entry.name, entry.request) == (False, None, None)
    bench.written()
    assert bench.leader.state == "leading"


def test_a_definition_that_is_cancelled_does_not_come_into_force() -> None:
    bench = leading()
    bench.command("define", definition={})
    bench.tell(DefinitionPut(n=1, version=2, settings=bench.leader.settings))
    bench.command("cancel_command", command=1)
    outcome = bench.finish()
    assert (outcome.state, outcome.orders.definition) == ("cancelled", 1)


def test_a_restore_is_cancelled_until_the_entry_of_its_epoch_is_being_written() -> None:
    for entered in (False, True):
        bench = leading()
        bench.members = ()
        (asked,) = bench.command("restore", checkpoint=4)
        bench.tell(BaseFound(n=1))
        bench.see()
        bench.tell(JournalRead(tail=5, base=5, commands=(asked.command,)))
        assert bench.leader.state == "gathering"
        if entered:
            bench.members = (READER, WRITER)
            bench.see()
            assert bench.last(WriteEntry).entry.command == 1
        bench.command("cancel_command", command=1)
        if entered:
            assert bench.leader.state == "proposing"
            bench.written()
            assert bench.finish().state == "done"
        else:
            bench.members = (READER, WRITER)
            bench.see()
            assert bench.leader.state == "reading"
            bench.tell(JournalRead(tail=5, base=5, commands=(asked.command, wish(2, "cancel_command", command=1))))
            assert bench.finish().state == "cancelled"
            assert bench.last(WriteEntry).entry.base == 5


def test_a_command_whose_epoch_an_earlier_leader_has_entered_is_not_cancelled() -> None:
    bench = Operated()
    bench.see()
    commands = (wish(1, "restore", checkpoint=4), wish(2, "cancel_command", command=1))
    bench.tell(JournalRead(tail=6, base=4, entered=1, commands=commands))
    bench.written()
    assert FindBase(command=commands[0]) in bench.effects
    bench.wait(1.0)
    assert bench.outcomes() == []


@pytest.mark.parametrize(("run", "ends"), [("ours", True), ("another", False), (None, False)])
def test_the_last_savepoint_of_a_cutline_run_ends_the_checkpoints_of_its_own_services_only(
    run: str | None, ends: bool
) -> None:
    bench = Operated(interval=1.0)
    bench.leader.checkpoints._part_of = "ours"
    bench.lead()
    bench.command("savepoint", name=None, run=run)
    assert checkpoint(bench).kept
    assert bench.finish().state == "done"
    bench.wait(100.0)
    assert (bench.leader.checkpoints.in_flight is None) == ends


def test_a_leader_of_no_run_goes_on_after_the_savepoint_of_any() -> None:
    bench = Operated(interval=1.0)
    bench.lead()
    bench.command("savepoint", name=None)
    checkpoint(bench)
    bench.finish()
    bench.wait(100.0)
    assert bench.leader.checkpoints.in_flight is not None


def test_a_savepoint_whose_entry_is_being_written_is_not_cancelled() -> None:
    bench = leading()
    bench.command("savepoint", name="before-upgrade")
    bench.wait(0.2)
    assert bench.complete().name == "before-upgrade"
    bench.command("cancel_command", command=1)
    assert bench.outcomes() == []
    bench.written()
    assert (bench.finish().n, bench.outcomes()[0].state) == (1, "done")


def test_what_a_checkpoint_may_have_is_not_cancelled_before_the_journal_tells() -> None:
    """1. The entry of a checkpoint with a savepoint and a table's pause is ordered, and its answer is lost with the
    epoch, twice in a row, so the leader rests. 2. Both are cancelled. 3. The journal has the entry."""
    bench = leading()
    bench.tell(EpochFailed(epoch=1, cause=because("lost")))
    bench.lead(tail=1)
    commands = (wish(1, "pause_table", table="d.t"), wish(2, "savepoint", name="s"))
    bench.command("pause_table", table="d.t")
    bench.command("savepoint", name="s")
    bench.wait(0.2)
    bench.complete()
    bench.tell(EpochFailed(epoch=2, cause=because("lost")))
    assert bench.leader.state == "resting"
    cancels = (wish(3, "cancel_command", command=1), wish(4, "cancel_command", command=2))
    bench.command("cancel_command", command=1)
    bench.command("cancel_command", command=2)
    assert bench.outcomes() == []
    bench.see()
    bench.wait(100.0)
    bench.see()
    found = {"kept": 1, "refused": {1: ("d.t is gone", "look")}, "answered": CommandRequest(n=2)}
    bench.tell(JournalRead(tail=3, base=3, commands=(*commands, *cancels), **found))
    first = bench.finish()
    assert (first.n, first.state, first.cause) == (1, "refused", "d.t is gone")
    bench.written()
    bench.tell(EpochOpened(epoch=4, enumerator=None))
    second = bench.finish()
    assert (second.n, second.state, second.result["checkpoint"]) == (2, "done", 3)


def test_what_a_checkpoint_may_have_is_not_cancelled_while_its_slow_entry_may_still_take_its_slot() -> None:
    """1. The entry of a savepoint is being written when its epoch fails. 2. It is cancelled; the journal, read then,
    does not have the entry yet. 3. The next epoch's entry takes that slot, so the savepoint's never will."""
    bench = leading()
    tail = bench.leader.tail
    commands = (wish(1, "savepoint", name="s"), wish(2, "cancel_command", command=1))
    bench.command("savepoint", name="s")
    bench.wait(0.2)
    bench.complete()
    bench.tell(EpochFailed(epoch=1, cause=because("lost")))
    bench.command("cancel_command", command=1)
    bench.tell(JournalRead(tail=tail, base=None, commands=commands))
    assert bench.outcomes() == []
    bench.written()
    assert (bench.finish().n, bench.outcomes()[0].state) == (1, "cancelled")


def test_a_savepoint_that_a_leader_may_have_released_is_released_though_that_was_cancelled() -> None:
    """1. A leader notes that a savepoint is given up, and dies before the outcome. 2. It is cancelled. 3. The next
    leader repeats the note, and says that it is done."""
    bench = Operated()
    bench.see()
    commands = (wish(1, "delete_savepoint", checkpoint=2), wish(2, "cancel_command", command=1))
    bench.tell(JournalRead(tail=2, base=2, commands=commands))
    bench.written()
    assert bench.outcomes() == []
    assert bench.last(ReleaseSavepoint).command == commands[0]


@pytest.mark.parametrize("then", ["pause", "cancel_command"])
def test_a_next_leader_answers_what_its_predecessor_carried_out_whatever_was_asked_since(then: str) -> None:
    bench = Operated()
    bench.see()
    later = wish(2, then, command=1)
    bench.leader.roster.seen = ()
    bench.tell(JournalRead(tail=6, base=6, kept=1, commands=(wish(1, "pause_table", table="d.t"), later)))
    assert bench.leader.state == "gathering"
    assert (bench.finish().n, bench.outcomes()[0].state) == (1, "done")


def test_a_pause_that_is_cancelled_lets_what_waits_for_an_epoch_wait_on() -> None:
    bench = leading()
    bench.members = ()
    bench.command("restore", checkpoint=4)
    bench.tell(BaseFound(n=1))
    bench.see()
    commands = (
        wish(1, "restore", checkpoint=4), wish(2, "pause"), wish(3, "cancel_command", command=2),
    )  # fmt: skip
    bench.tell(JournalRead(tail=5, base=5, commands=commands))
    assert bench.leader.state == "gathering"
    assert bench.outcomes() == []
