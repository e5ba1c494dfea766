"""Commands in the hands of the leader: their order, what each does to the epoch, when each has its outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutline.common.errors import Loss
from cutline.common.limits import Limits
from cutline.common.mesh.machine import MessageReceived, Send
from cutline.common.mesh.messages import StreamCaughtUp, Throttle
from cutline.common.store.command_records import Orders
from cutline.services.enumerator.checkpointing import SILENT_SECONDS, SOON_SECONDS
from cutline.services.enumerator.events import (
    AskSparkWriter,
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
    OutcomeRefused,
    OutcomeWritten,
    PutDefinition,
    ReadJournal,
    Settings,
    TablesFound,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.leader import MAX_HALTS
from cutline.services.enumerator.requests import CommandRequest
from cutline.services.enumerator.states import EpochOpened
from tests.support.causes import because
from tests.support.operated import Operated, checkpoint, leading, wish

PAUSED = Orders(mode="paused")


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


def test_the_orders_say_since_when_their_mode_is_and_other_commands_leave_that() -> None:
    bench = leading()
    bench.now = 50.0
    bench.command("pause")
    checkpoint(bench)
    assert bench.finish().orders.mode_since == bench.now
    paused_at = bench.now
    waits = bench.leader.waiting_for(60.0)
    assert waits is not None
    assert waits.since == paused_at
    bench.now = 70.0
    bench.command("limits", rows_per_second=5.0, bytes_per_second=None)
    assert bench.finish().orders.mode_since == paused_at
    bench.now = 80.0
    bench.command("stop")
    assert bench.finish().orders.mode_since == 80.0


def test_a_pause_needs_no_checkpoint_where_no_epoch_is_open() -> None:
    bench = leading()
    for tail in range(MAX_HALTS):
        bench.tell(EpochFailed(epoch=tail + 1, cause=because("lost"), halts=True))
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
    for kind, cause in (("pause_table", "is paused"), ("checkpoint", "is paused"), ("pause", "is paused already")):
        bench.command(kind, table="d.t")
        assert (bench.finish().state, bench.outcomes()[-1].cause) == ("refused", f"the pipeline {cause}")


def test_a_restore_begins_the_next_epoch_at_the_checkpoint_that_can_be_restored() -> None:
    bench = leading()
    (asked,) = bench.command("restore", checkpoint=4)
    assert isinstance(asked, FindBase)
    assert bench.tell(BaseFound(n=1)) == [CloseEpoch(epoch=1), ReadJournal()]
    assert bench.outcomes() == []
    opening = bench.next_epoch(7, 6, commands=(asked.command,))
    assert (opening.base, bench.finish().result) == (4, {"checkpoint": 4})


@pytest.mark.parametrize("paused", [False, True])
def test_a_restore_of_a_source_that_could_not_be_asked_says_so_in_its_result(paused: bool) -> None:
    bench = leading()
    if paused:
        bench.command("pause")
        checkpoint(bench)
        bench.finish()
    (asked,) = bench.command("restore", checkpoint=4)
    n = asked.command.n
    assert bench.leader.agenda.waiting() == {n: "the source, to say whether it has the binlog"}
    bench.tell(BaseFound(n=n, warning="it is away"))
    if not paused:
        bench.next_epoch(7, 6, commands=(asked.command,))
    assert bench.finish().result == {"checkpoint": 4, "warning": "it is away"}


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
    bench.command("pause_table", table="d.t")
    bench.command("pause_table", table="d.unknown")
    assert bench.outcomes() == []
    bench.wait(0.2)
    bench.command("pause_table", table="d.late")  # the checkpoint in flight lacks it
    bench.complete()
    bench.written()
    assert [outcome.n for outcome in bench.outcomes()] == [1]
    assert bench.finish().state == "refused"
    unknown = "the pipeline captures no table 'd.unknown'"
    assert (bench.finish().state, bench.outcomes()[-1].cause) == ("refused", unknown)
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


@pytest.mark.parametrize(("kind", "named"), [("savepoint", {}), ("stop", {"savepoint": "before"})])
def test_a_savepoint_fails_where_the_source_is_silent_inside_a_transaction(kind: str, named: dict[str, str]) -> None:
    """Each checkpoint is inside the same transaction at the same place: none can be published, so none is kept."""
    bench = Operated(interval=SOON_SECONDS / 4)
    bench.lead()
    bench.command(kind, **named)
    bench.wait(0.2)
    began, tried = bench.now, 0
    while not bench.outcomes():
        assert bench.complete(inside=True).kept is False
        bench.written()
        tried += 1
        bench.wait(SOON_SECONDS / 2)  # the interval's own come between
        bench.wait(SOON_SECONDS / 2 + 0.1)
        assert bench.now < began + SILENT_SECONDS + 5
    assert tried > 2
    outcome = bench.finish()
    assert (outcome.state, outcome.orders.mode, bench.leader.state) == ("failed", "running", "leading")
    assert "inside a transaction" in (outcome.cause or "")
    bench.wait(100)
    assert bench.leader.checkpoints.in_flight is not None
    assert bench.leader.checkpoints.in_flight[1] is None


def test_a_stop_without_a_savepoints_name_ends_where_the_source_is_silent_inside_a_transaction() -> None:
    """1. Its checkpoints are inside the same transaction at the same place. 2. So the next one, which is not kept, ends
    the epoch."""
    bench = Operated(interval=SOON_SECONDS / 4)
    bench.lead()
    bench.command("stop", savepoint=None)
    bench.wait(0.2)
    began = bench.now
    while not bench.outcomes():
        entry = bench.complete(inside=True)
        assert entry.kept is False
        bench.written()
        bench.wait(SOON_SECONDS + 0.1)
        assert bench.now < began + SILENT_SECONDS + 5
    outcome = bench.finish()
    assert (outcome.state, outcome.orders.mode, bench.leader.state) == ("done", "stopped", "stopped")
    assert outcome.result == {"checkpoint": entry.slot, "name": None}


def test_a_source_that_is_silent_inside_a_transaction_gets_ever_fewer_checkpoints_and_the_status_says_so() -> None:
    """1. Each checkpoint is at the same place. 2. A day of it makes a few entries. 3. The stream goes on, and a
    checkpoint comes at once."""
    bench = Operated(interval=1.0)
    bench.lead()
    for _ in range(24 * 3600):
        bench.wait(1.0)
        if bench.leader.checkpoints.in_flight is not None:
            bench.complete(inside=True)
            bench.written()
    assert bench.leader.tail < 30
    assert "the source has sent nothing for 86" in str(bench.leader.waiting_for(bench.now))
    bench.tell(MessageReceived(channel="reader-0", message=StreamCaughtUp()))
    bench.wait(SOON_SECONDS + 0.1)
    assert bench.complete().inside is False
    bench.written()
    assert bench.leader.waiting_for(bench.now) is None


def test_a_savepoint_waits_while_the_source_goes_on_inside_a_large_transaction() -> None:
    bench = leading()
    bench.command("savepoint")
    bench.wait(0.2)
    for rows in range(1, 40):
        assert bench.complete(inside=True, rows=rows).kept is False
        bench.written()
        bench.wait(SOON_SECONDS + 0.1)
    assert bench.outcomes() == []
    assert bench.complete().kept is True
    bench.written()
    assert bench.finish().state == "done"


def test_a_savepoint_that_the_journal_has_already_is_not_taken_again() -> None:
    bench = Operated()
    bench.see()
    asked = wish(1, "savepoint", name=None)
    bench.next_epoch(3, 3, answered=CommandRequest(n=1), commands=(asked,))
    assert bench.finish().result == {"checkpoint": 3, "name": None}
    assert bench.leader.checkpoints.requests == []


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
    bench.tell(CommandAccepted(command=wish(2, "limits")))
    bench.tell(CommandAccepted(command=wish(7, "limits")))  # those between are told first
    assert [command.n for command in bench.leader.agenda.queue] == [2]
    bench.tell(CommandAnswered(n=1, state="done", result={"checkpoint": 2}))
    assert asked.command.n == bench.finish().n == 1
    assert bench.leader.agenda.running == 2


@pytest.mark.parametrize(("kind", "remedy"), [("pause", "resume the pipeline"), ("delete", "nothing to do")])
def test_what_no_epoch_carried_out_before_the_end_names_a_remedy_that_works_then(kind: str, remedy: str) -> None:
    bench = Operated()
    bench.members = ()
    bench.see()
    bench.tell(JournalRead(tail=0, base=None, commands=(wish(1, "checkpoint"), wish(2, kind))))
    assert remedy in str(bench.finish().remedy)


def test_a_pause_does_not_wait_for_what_needs_an_epoch_that_does_not_come() -> None:
    bench = Operated()
    bench.members = ()
    bench.see()
    queued = (wish(1, "checkpoint"), wish(2, "pause_table"), wish(3, "pause"))
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
    assert bench.tell(OutcomeWritten(n=1)) == [DeletePipeline()]
    next_leader = Operated()
    next_leader.see()
    found = JournalRead(tail=1, base=None, finished=1, orders=orders)
    assert next_leader.tell(found) == [Dismiss(before=2), DeletePipeline()]


def test_the_purge_of_a_deletion_can_be_given_up_and_nothing_else_is_taken_then() -> None:
    bench = leading()
    bench.command("delete", purge=True)
    bench.finish()
    bench.command("resume")
    bench.command("leave_lake")
    bench.finish()
    bench.finish()
    outcomes = [(outcome.n, outcome.state, outcome.orders.purge) for outcome in bench.outcomes()]
    assert outcomes == [(1, "done", True), (2, "refused", True), (3, "done", False)]
    assert bench.outcomes()[-1].orders.mode == "deleting"
    assert bench.effects[-1] == DeletePipeline()


def test_what_changes_the_epoch_waits_for_the_outcomes_of_all_before_it() -> None:
    bench = leading()
    bench.command("pause_table", table="d.unknown")
    bench.command("pause")
    assert bench.leader.checkpoints.requests == []
    assert checkpoint(bench).request is None
    assert bench.leader.checkpoints.requests == []
    assert bench.finish().n == 1
    assert bench.leader.checkpoints.requests == [CommandRequest(n=2)]
    checkpoint(bench)
    assert (bench.finish().n, bench.leader.state) == (2, "stopped")


def limited(bench: Operated, rows: float) -> dict[str, float | None]:
    """Command limits, which are done at once; return them."""
    wanted = {"rows_per_second": rows, "bytes_per_second": None}
    bench.command("limits", **wanted)
    assert (bench.outcomes()[-1].state, bench.finish().orders.limits) == ("done", wanted)
    return wanted


def test_limits_are_standing_orders_that_hold_at_once_and_in_every_later_epoch() -> None:
    bench = leading()
    assert bench.leader.enumerator is not None
    wanted = limited(bench, 7.0)
    assert bench.effects[-1] == Send(receiver="reader-0", message=Throttle(limits=Limits(**wanted)))
    assert bench.leader.enumerator.limits == Limits(**wanted)
    bench.tell(EpochFailed(epoch=1, cause=because("a writer died")))
    opening = bench.next_epoch(1, None, finished=1, orders=Orders(limits=wanted))
    assert opening.plan.limits == bench.leader.limits == Limits(**wanted)


@pytest.mark.parametrize("mode", ["paused", "stopped"])
def test_limits_are_taken_while_no_epoch_is_open(mode: Any) -> None:
    bench = Operated()
    bench.see()
    bench.tell(JournalRead(tail=9, base=8, orders=Orders(mode=mode)))
    wanted = limited(bench, 3.0)
    assert bench.outcomes()[-1].orders == Orders(mode=mode, limits=wanted)
    assert bench.leader.limits == Limits(**wanted)


@pytest.mark.parametrize("changed", [None, {"rows_per_second": 90.0, "bytes_per_second": None}])
def test_the_later_of_a_command_and_a_definition_that_changes_the_limits_wins(changed: dict[str, Any] | None) -> None:
    bench = leading()
    wanted = limited(bench, 7.0)
    (asked,) = bench.command("define", base=1, definition={})
    settings = Settings(chunk_rows=7, exact=False, snapshot_only=False, interval_seconds=1.0)
    bench.tell(DefinitionPut(n=2, version=2, settings=settings, limits=changed))
    checkpoint(bench)
    opening = bench.next_epoch(2, 2, finished=1, orders=Orders(limits=wanted), commands=(asked.command,))
    assert opening.plan.limits == Limits(**(changed or wanted))
    assert bench.finish().orders.limits == (changed or wanted)
    later = limited(bench, 8.0)
    assert bench.leader.limits == Limits(**later)


def halted(bench: Operated, lost: Loss) -> None:
    """The source has lost what follows the position of checkpoint 1, again and again."""
    for tail in range(1, MAX_HALTS + 1):
        bench.lead(tail=tail, base=1)
        bench.tell(EpochFailed(epoch=tail + 1, cause=because("purged"), halts=True, lost=lost))


def test_every_table_is_read_again_in_the_next_epoch_of_a_pipeline_that_halted() -> None:
    """1. The leader halted, since the source lost the position. 2. The command begins an epoch from the same base,
    anew, and is done once its entry is written. 3. Until a checkpoint has the new generations the next epochs begin
    anew too, also another leader's."""
    bench = Operated()
    halted(bench, Loss.POSITION)
    assert bench.leader.state == "halted"
    asked = wish(1, "read_again")
    assert bench.command("read_again") == [ReadJournal()]
    opening = bench.next_epoch(3, 1, commands=(asked,))
    assert (opening.base, bench.last(WriteEntry).entry.anew, bench.finish().state) == (1, "asked", "done")
    assert bench.leader.state == "leading"
    bench.tell(EpochFailed(epoch=4, cause=because("lost"), halts=False))
    bench.now += 100
    bench.see()
    other = Operated()
    other.see()
    for leader in (bench, other):
        leader.tell(JournalRead(tail=4, base=1, anew="asked", finished=1))
        assert leader.last(WriteEntry).entry.anew == "asked"
    bench.written()
    bench.tell(EpochOpened(epoch=5, enumerator=None))
    bench.tell(TablesFound(tables=()))
    bench.wait(10.1)
    bench.complete()
    bench.written()
    bench.tell(EpochFailed(epoch=5, cause=because("lost"), halts=False))
    bench.now += 100
    bench.see()
    bench.tell(JournalRead(tail=6, base=6, finished=1))
    assert bench.last(WriteEntry).entry.anew is None


def test_a_command_about_tables_that_an_epoch_leaves_behind_holds_none_up_where_the_pipeline_halts() -> None:
    """It awaited a checkpoint of the epoch, of which none comes: it is refused, and the command behind it is taken."""
    bench = Operated()
    bench.lead(tail=1, base=1)
    bench.tell(EpochFailed(epoch=2, cause=because("purged"), halts=True))
    bench.lead(tail=2, base=1)
    bench.command("pause_table", table="d.t")
    bench.command("read_again")
    bench.tell(EpochFailed(epoch=3, cause=because("purged"), halts=True))
    assert bench.finish().state == "refused"
    assert bench.leader.state == "reading"


def test_a_restore_after_it_begins_as_its_checkpoint_was() -> None:
    bench = leading()
    bench.command("restore", checkpoint=4)
    bench.tell(BaseFound(n=1))
    bench.tell(JournalRead(tail=5, base=3, anew="asked", commands=(wish(1, "restore", checkpoint=4),)))
    entry = bench.last(WriteEntry).entry
    assert (entry.base, entry.anew) == (4, None)


def test_of_a_pipeline_that_stands_still_every_table_is_read_again_once_it_is_resumed() -> None:
    bench = Operated()
    bench.see()
    bench.tell(JournalRead(tail=9, base=8, finished=3, orders=PAUSED))
    bench.given = 3
    bench.command("read_again")
    orders = bench.finish().orders
    assert orders == Orders(mode="paused", anew=True)
    assert Orders(**orders.to_json()) == orders
    bench.command("resume")
    bench.next_epoch(9, 8, finished=4, orders=orders)
    assert (bench.last(WriteEntry).entry.anew, bench.finish().orders) == ("asked", Orders())


@pytest.mark.parametrize("lost", [Loss.POSITION, Loss.SOURCE])
def test_a_lost_position_needs_no_person_where_the_definition_says_so_but_another_server_does(lost: Loss) -> None:
    """Once in a row: an epoch that began anew and loses the position again needs a person."""
    bench = Operated()
    bench.leader.settings = replace(bench.leader.settings, reads_again=True)
    halted(bench, lost)
    if lost == Loss.SOURCE:
        assert bench.leader.state == "halted"
        return
    assert bench.leader.state == "resting"
    bench.now += 100
    bench.see()
    bench.tell(JournalRead(tail=3, base=1))
    assert bench.last(WriteEntry).entry.anew == "lost"
    bench.written()
    for tail in (4, 5):
        bench.tell(EpochOpened(epoch=tail, enumerator=None))
        bench.tell(EpochFailed(epoch=tail, cause=because("purged"), halts=True, lost=lost))
        bench.now += 100
        bench.see()
        if tail == 4:
            bench.tell(JournalRead(tail=4, base=1, anew="lost"))
            bench.written()
    assert bench.leader.state == "halted"


def test_a_command_that_waits_for_the_spark_writer_holds_up_no_other() -> None:
    """1. Another command is finished first; its outcome names the one that waits. 2. That has its outcome later, which
    changes nothing else. 3. A next leader asks again for one that is open still."""
    bench = leading()
    (asked,) = bench.command("lake", table="d.t", choice="accept")
    assert isinstance(asked, AskSparkWriter)
    bench.command("pause")
    assert bench.leader.agenda.waiting() == {1: "the Spark writer", 2: "a checkpoint"}
    checkpoint(bench)
    outcome = bench.finish()
    assert (outcome.n, outcome.state, outcome.open, outcome.orders) == (2, "done", (1,), PAUSED)
    assert (bench.leader.state, bench.leader.agenda.last) == ("stopped", 2)
    other = Operated()
    other.see()
    effects = other.tell(JournalRead(tail=2, base=2, finished=2, orders=PAUSED, open=(asked.command,)))
    assert AskSparkWriter(command=asked.command) in effects
    for leader in (bench, other):
        leader.tell(CommandAnswered(n=1, state="refused", cause="x", remedy="y"))
        late = leader.outcomes()[-1]
        assert (late.n, late.state, late.open, late.orders) == (1, "refused", (), PAUSED)
    assert bench.tell(OutcomeWritten(n=1)) == []
    assert other.tell(OutcomeRefused(n=1)) == []  # the first leader's
    assert bench.leader.agenda.apart == other.leader.agenda.apart == {}
    assert other.leader.state == "stopped"


def test_the_outcome_of_a_command_that_waited_is_the_newest_if_none_came_after() -> None:
    bench = leading()
    bench.command("lake", table="d.t", choice="accept")
    bench.command("lake", table="d.u", choice="accept")
    bench.tell(CommandAnswered(n=2, state="done"))
    assert (bench.finish().n, bench.outcomes()[-1].open, bench.leader.agenda.finished) == (2, (1,), 2)
    bench.tell(CommandAnswered(n=1, state="done"))
    assert (bench.finish().n, bench.outcomes()[-1].open, bench.leader.agenda.finished) == (1, (), 2)
