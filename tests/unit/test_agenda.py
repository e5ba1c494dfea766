"""Commands in the hands of the leader: their order, what each does to the epoch, when each has its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from cutline.common.mesh.machine import Effect
from cutline.common.store.command_records import Command, Orders, Outcome
from cutline.services.enumerator.events import (
    BaseFound,
    CloseEpoch,
    CommandAccepted,
    CommandAnswered,
    DefinitionPut,
    DeletePipeline,
    Dismiss,
    EpochFailed,
    FindBase,
    JournalRead,
    OpenEpoch,
    OutcomeRefused,
    OutcomeWritten,
    PutDefinition,
    ReadJournal,
    Settings,
    TablesFound,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.leader import MAX_HALTS, EpochOpened
from tests.unit.test_leader import LeaderBench

PAUSED = Orders(mode="paused")


class Operated(LeaderBench):
    """A leader with a person at it."""

    given = 0

    def command(self, kind: str, **arguments: Any) -> list[Effect]:
        """The store has the person's next command."""
        self.given += 1
        return self.tell(CommandAccepted(command=_command(self.given, kind, **arguments)))

    def outcomes(self) -> list[Outcome]:
        """The outcomes to be written so far."""
        return [effect.outcome for effect in self.effects if isinstance(effect, WriteOutcome)]

    def finish(self) -> Outcome:
        """The newest outcome is in the store."""
        outcome = self.outcomes()[-1]
        self.tell(OutcomeWritten(n=outcome.n))
        return outcome

    def next_epoch(self, tail: int, base: int | None, **known: Any) -> Any:
        """The journal is read, the entry written; return the epoch's opening."""
        self.tell(JournalRead(tail=tail, base=base, **known))
        self.written()
        opening = self.last(OpenEpoch)
        self.tell(EpochOpened(epoch=tail + 1, enumerator=None))
        self.tell(TablesFound(tables=()))
        return opening


def _command(n: int, kind: str, **arguments: Any) -> Command:
    return Command(n=n, kind=kind, arguments=arguments, by="ann", at=0.0)


def leading() -> Operated:
    bench = Operated()
    bench.lead()
    return bench


def checkpoint(bench: Operated) -> Any:
    """The next tick's checkpoint is complete and written; return its entry."""
    bench.wait(0.2)
    entry = bench.complete()
    bench.written()
    return entry


def test_a_pause_takes_a_last_checkpoint_then_ends_the_epoch_and_begins_none() -> None:
    bench = leading()
    assert bench.command("pause") == []
    entry = checkpoint(bench)
    assert (entry.kept, entry.request) == (False, "command 1")
    written = WriteOutcome(outcome=bench.outcomes()[-1])
    assert bench.effects[-3:] == [CloseEpoch(epoch=1), Dismiss(before=3), written]
    assert bench.finish().orders == PAUSED
    assert bench.leader.state == "stopped"
    assert bench.see() == []
    assert bench.wait(1000) == []


def test_a_pause_needs_no_checkpoint_where_no_epoch_is_open() -> None:
    bench = leading()
    for tail in range(MAX_HALTS):
        bench.tell(EpochFailed(epoch=tail + 1, cause="lost", halts=True))
        if tail + 1 < MAX_HALTS:
            bench.lead(tail=tail + 1)
    assert bench.leader.state == "halted"
    bench.command("pause")
    assert bench.finish().state == "done"
    assert bench.leader.state == "stopped"


def test_a_resume_is_done_once_its_epoch_is_in_the_journal_and_begins_where_a_restore_asked_for() -> None:
    bench = Operated()
    bench.see()
    bench.tell(JournalRead(tail=9, base=8, finished=3, orders=Orders(mode="stopped", base=5, base_after=9)))
    bench.given = 3
    assert bench.command("start") == [ReadJournal()]
    opening = bench.next_epoch(9, 8, finished=3, orders=Orders(mode="stopped", base=5, base_after=9))
    assert (opening.base, bench.finish().orders) == (5, Orders())


def test_a_leader_that_finds_the_pipeline_paused_opens_no_epoch() -> None:
    bench = Operated()
    bench.see()
    # Its predecessor may have died before the members of that epoch were dismissed.
    assert bench.tell(JournalRead(tail=9, base=8, finished=3, orders=PAUSED)) == [Dismiss(before=10)]
    assert bench.leader.state == "stopped"
    bench.given = 3
    for kind in ("pause_table", "checkpoint", "limits", "pause"):
        bench.command(kind, table="d.t")
        assert (bench.finish().state, bench.outcomes()[-1].cause) == ("refused", "the pipeline is paused")


def test_a_restore_begins_the_next_epoch_at_the_checkpoint_that_can_be_restored() -> None:
    bench = leading()
    (asked,) = bench.command("restore", checkpoint=4)
    assert isinstance(asked, FindBase)
    assert bench.tell(BaseFound(n=1)) == [CloseEpoch(epoch=1), ReadJournal()]
    assert bench.outcomes() == []
    opening = bench.next_epoch(7, 6, commands=(asked.command,))
    assert (opening.base, bench.finish().result) == (4, {"checkpoint": 4})


def test_a_definition_comes_into_force_with_the_epoch_after_a_checkpoint() -> None:
    bench = leading()
    (asked,) = bench.command("define", base=1, definition={})
    assert asked == PutDefinition(command=asked.command, in_force=1)
    settings = Settings(chunk_rows=7, exact=False, snapshot_only=False, interval_seconds=1.0)
    assert bench.tell(DefinitionPut(n=1, version=2, settings=settings)) == []
    checkpoint(bench)
    assert bench.effects[-1] == ReadJournal()
    opening = bench.next_epoch(2, 2, commands=(asked.command,))
    assert (opening.definition, opening.plan.chunk_rows, bench.last(WriteEntry).entry.definition) == (2, 7, 2)
    outcome = bench.finish()
    assert (outcome.result, outcome.orders.definition) == ({"version": 2}, 2)


def test_a_command_about_tables_is_answered_once_a_checkpoint_has_it_also_if_it_is_refused() -> None:
    bench = leading()
    bench.command("limits", rows_per_second=5.0, bytes_per_second=None)
    bench.command("pause_table", table="d.unknown")
    assert bench.outcomes() == []
    bench.wait(0.2)
    bench.command("pause_table", table="d.late")  # the checkpoint in flight lacks it
    bench.complete()
    bench.written()
    assert [outcome.n for outcome in bench.outcomes()] == [1]
    assert bench.finish().state == "done"
    assert (bench.finish().state, bench.outcomes()[-1].cause) == ("refused", "the pipeline has no table d.unknown")
    assert [outcome.n for outcome in bench.outcomes()] == [1, 2]
    checkpoint(bench)
    assert [outcome.n for outcome in bench.outcomes()] == [1, 2, 3]


def test_a_savepoint_keeps_its_checkpoint_under_its_name_and_a_checkpoint_does_not() -> None:
    bench = leading()
    bench.command("savepoint", name="before")
    bench.command("checkpoint")
    first = checkpoint(bench)
    assert (first.kept, first.name) == (True, "before")
    assert bench.finish().result == {"checkpoint": 2, "name": "before"}
    second = bench.complete()
    assert (second.kept, second.name) == (False, None)
    bench.written()
    assert bench.finish().result == {"checkpoint": 3, "name": None}


def test_a_savepoint_that_the_journal_has_already_is_not_taken_again() -> None:
    bench = Operated()
    bench.see()
    asked = _command(1, "savepoint", name=None)
    bench.next_epoch(3, 3, answered="command 1", commands=(asked,))
    assert bench.finish().result == {"checkpoint": 3, "name": None}
    assert bench.leader.requests == []


def test_a_leader_whose_outcome_is_refused_reads_again_and_obeys() -> None:
    bench = leading()
    bench.command("dance")
    assert bench.outcomes()[-1].state == "refused"
    assert bench.tell(OutcomeRefused(n=1)) == [CloseEpoch(epoch=1), ReadJournal()]
    bench.tell(JournalRead(tail=4, base=3, finished=2, orders=PAUSED))
    assert bench.leader.state == "stopped"
    assert bench.leader.agenda.finished == 2


def test_the_next_command_waits_for_one_that_is_alone_and_one_that_is_repeated_is_known() -> None:
    bench = leading()
    (asked,) = bench.command("delete_savepoint", checkpoint=2)
    assert bench.command("limits", rows_per_second=None, bytes_per_second=None) == []
    bench.tell(CommandAccepted(command=_command(2, "limits")))
    bench.tell(CommandAccepted(command=_command(7, "limits")))  # those between are told first
    assert [command.n for command in bench.leader.agenda.queue] == [2]
    bench.tell(CommandAnswered(n=1, state="done", result={"checkpoint": 2}))
    assert asked.command.n == bench.finish().n == 1
    assert bench.leader.agenda.running == 2


def test_a_pause_does_not_wait_for_what_needs_an_epoch_that_does_not_come() -> None:
    bench = Operated()
    bench.members = ()
    bench.see()
    queued = (_command(1, "checkpoint"), _command(2, "limits"), _command(3, "pause"))
    bench.tell(JournalRead(tail=0, base=None, commands=queued))
    for _ in range(3):
        bench.finish()
    assert [(outcome.n, outcome.state) for outcome in bench.outcomes()] == [(1, "refused"), (2, "refused"), (3, "done")]
    assert bench.leader.state == "stopped"


@pytest.mark.parametrize("purge", [True, False])
def test_a_deletion_is_ordered_durably_before_anything_is_removed(purge: bool) -> None:
    bench = leading()
    assert bench.command("delete", purge=purge)[0] == CloseEpoch(epoch=1)
    assert not any(isinstance(effect, DeletePipeline) for effect in bench.effects)
    orders = bench.outcomes()[-1].orders
    assert bench.tell(OutcomeWritten(n=1)) == [DeletePipeline(purge=purge)]
    next_leader = Operated()
    next_leader.see()
    found = JournalRead(tail=1, base=None, finished=1, orders=orders)
    assert next_leader.tell(found) == [Dismiss(before=2), DeletePipeline(purge=purge)]


def test_what_changes_the_epoch_waits_for_the_outcomes_of_all_before_it() -> None:
    bench = leading()
    bench.command("limits", rows_per_second=5.0, bytes_per_second=None)
    bench.command("pause")
    assert bench.leader.requests == []
    assert checkpoint(bench).request is None
    assert bench.leader.requests == []
    assert bench.finish().n == 1
    assert bench.leader.requests == ["command 2"]
    checkpoint(bench)
    assert (bench.finish().n, bench.leader.state) == (2, "stopped")
