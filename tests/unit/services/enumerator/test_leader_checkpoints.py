"""The leader's machine: when checkpoints start and are kept, and that each state has its rules."""

from __future__ import annotations

import dataclasses

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.limits import Limits
from cutline.common.mesh.machine import Began, Event, MessageReceived, PartStored, SavePart, Send, Ticked
from cutline.common.mesh.messages import (
    CheckpointWanted,
    Marker,
    StreamCaughtUp,
    StreamStopped,
    Throttle,
)
from cutline.common.store.command_records import Command
from cutline.common.store.command_records import Orders as StandingOrders
from cutline.services.enumerator.checkpointing import DOUBT_SECONDS, SOON_SECONDS
from cutline.services.enumerator.events import (
    CloseEpoch,
    CommandAccepted,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    JournalRead,
    MemberSeen,
    Observed,
    ReadJournal,
    WriteEntry,
)
from cutline.services.enumerator.leader import MAX_HALTS, SETTLE_SECONDS
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import THE_STOP, CommandRequest
from cutline.services.enumerator.states import TABLE, EpochOpened, LeaderState
from tests.simulation.checks.freeze import freeze
from tests.support.causes import because
from tests.support.leader_bench import PLAN, READER, WRITER, LeaderBench, invariants_hold
from tests.support.records import PART

__all__ = ["invariants_hold"]  # the fixtures

SAVEPOINT = Command(n=1, kind="savepoint", arguments={"name": None}, by="ann", at=0.0)


def test_checkpoints_start_when_they_are_due_one_at_a_time_with_the_next_slot_as_number() -> None:
    bench = LeaderBench(interval=5.0).lead()
    assert bench.wait(4.9) == []
    (marker,) = bench.wait(0.2)
    assert marker == Send(receiver="reader-0", message=Marker(checkpoint=2))
    assert not any(isinstance(effect, Send) for effect in bench.wait(100.0))
    entry = bench.complete()
    assert (entry.epoch, entry.kept, entry.request) == (1, False, None)
    bench.written()
    assert bench.leader.base == 2
    bench.wait(5.1)
    assert bench.leader.checkpoints.in_flight == (3, None)


def test_a_savepoint_starts_at_once_and_its_entry_carries_the_request() -> None:
    bench = LeaderBench().lead()
    bench.tell(CommandAccepted(command=SAVEPOINT))
    bench.wait(0.0)
    entry = bench.complete()
    assert (entry.kept, entry.request) == (True, "command 1")


def test_a_savepoint_inside_a_transaction_is_taken_again_and_asked_for_once() -> None:
    bench = LeaderBench().lead()
    bench.tell(CommandAccepted(command=SAVEPOINT))
    bench.wait(0.0)
    entry = bench.complete(inside=True)
    assert (entry.kept, entry.request) == (False, None)
    bench.written()
    assert bench.wait(SOON_SECONDS / 2) == []
    bench.wait(SOON_SECONDS)
    entry = bench.complete()
    assert (entry.kept, entry.request) == (True, "command 1")
    assert bench.leader.checkpoints.requests == []


@pytest.mark.parametrize("end", [EpochFailed(epoch=1, cause=because("x")), Observed(held=False, members=())])
def test_a_savepoint_that_was_asked_for_survives_its_epoch(end: Event) -> None:
    bench = LeaderBench().lead()
    bench.tell(CommandAccepted(command=SAVEPOINT))
    bench.wait(0.0)
    bench.tell(end)
    bench.lead(tail=1, commands=(SAVEPOINT,))
    bench.wait(0.0)
    assert bench.complete().request == "command 1"


def test_limits_of_the_standing_orders_hold_in_each_epoch_whatever_its_base_has() -> None:
    bench = LeaderBench()
    limits = Limits(rows_per_second=7.0)
    order = Send(receiver="reader-0", message=Throttle(limits=limits))
    bench.see()
    orders = StandingOrders(limits=dataclasses.asdict(limits))
    for tail in (1, 2):
        bench.tell(JournalRead(tail=tail, base=None, finished=1, orders=orders))
        bench.written()
        bench.effects.clear()
        old = Enumerator(PLAN)
        old.limits = Limits(rows_per_second=1.0)
        bench.tell(EpochOpened(epoch=tail + 1, enumerator=old))
        assert order in bench.effects
        assert bench.leader.limits == limits
        bench.tell(EpochFailed(epoch=tail + 1, cause=because("x")))


def test_facts_of_an_epoch_that_is_over_are_ignored() -> None:
    bench = LeaderBench(interval=1.0).lead()
    bench.wait(1.0)
    bench.tell(EpochFailed(epoch=1, cause=because("x")))
    late: tuple[Event, ...] = (
        EpochFailed(epoch=1, cause=because("again")),
        EpochOpened(epoch=1, enumerator=None),
        PartStored(checkpoint=2, ref=PART),
        MessageReceived(channel="reader-0", message=Marker(checkpoint=2)),
        EntryWritten(slot=2, nonce="e1:r1:2"),
        EntryRefused(slot=2, nonce="x"),
        Ticked(),
    )
    for event in late:
        assert bench.tell(event) == []
    assert bench.leader.state == "reading"


def test_the_enumerators_part_is_saved_when_the_readers_markers_are_back() -> None:
    bench = LeaderBench(interval=1.0).lead()
    bench.wait(1.0)
    (save,) = bench.tell(MessageReceived(channel="reader-0", message=Marker(checkpoint=2)))
    assert isinstance(save, SavePart)
    assert save.state.head["recorded"] == {"reader-0": []}


def test_a_backlog_is_in_a_checkpoint_soon_after_the_stream_has_read_it() -> None:
    bench = LeaderBench(interval=1000.0).lead()
    assert bench.wait(5.0) == []
    bench.tell(MessageReceived(channel="reader-0", message=StreamCaughtUp()))
    bench.wait(0.1)
    assert bench.leader.checkpoints.in_flight is not None
    bench.complete()
    bench.written()
    bench.wait(900.0)
    assert bench.leader.checkpoints.in_flight is None


def test_readers_near_their_bound_get_the_next_checkpoint_at_once_and_each_demand_gives_one() -> None:
    """1. A reader asks for a checkpoint, which begins before the interval is over. 2. While it is in flight the reader
    asks again: the next one begins when this one is complete. 3. No further one begins."""
    bench = LeaderBench(interval=1000.0).lead()
    bench.wait(5.0)
    wanted = MessageReceived(channel="reader-0", message=CheckpointWanted())
    bench.tell(wanted)
    bench.wait(0.2)
    assert bench.leader.checkpoints.in_flight == (2, None)
    bench.tell(wanted)
    bench.complete()
    bench.written()
    assert bench.leader.checkpoints.in_flight == (3, None)
    bench.complete()
    bench.written()
    bench.wait(900.0)
    assert bench.leader.checkpoints.in_flight is None


def test_at_the_stop_one_kept_checkpoint_is_taken_and_none_after_it() -> None:
    """1. The stream is at its stop. 2. A kept checkpoint is taken at once. 3. The epoch ends before it is written: the
    next epoch takes it. 4. Then the interval starts none."""
    bench = LeaderBench(interval=1000.0).lead()
    bench.tell(MessageReceived(channel="reader-0", message=StreamStopped()))
    bench.wait(0.1)
    entry = bench.complete()
    assert (entry.kept, entry.request) == (True, THE_STOP.text)
    assert bench.leader.checkpoints.ended is None
    bench.tell(EpochFailed(epoch=1, cause=because("a channel is gone")))
    bench.lead(tail=1)
    assert bench.leader.checkpoints.requests == []
    bench.tell(MessageReceived(channel="reader-0", message=StreamStopped()))
    bench.wait(0.1)
    assert bench.complete().request == THE_STOP.text
    bench.written()
    assert bench.leader.checkpoints.ended == 3
    assert bench.wait(5000.0) == []
    assert bench.leader.checkpoints.in_flight is None


def test_a_savepoint_that_was_asked_for_before_the_stop_is_not_the_last_checkpoint() -> None:
    """1. A savepoint is asked for. 2. The stream is at its stop. 3. The savepoint is written: another checkpoint, the
    kept one of the stop, follows."""
    bench = LeaderBench(interval=1000.0).lead()
    bench.leader.checkpoints.request(CommandRequest(n=7))
    bench.tell(MessageReceived(channel="reader-0", message=StreamStopped()))
    bench.wait(0.1)
    assert bench.complete().request == CommandRequest(n=7).text
    bench.written()
    assert bench.leader.checkpoints.ended is None
    bench.wait(0.1)
    assert bench.complete().request == THE_STOP.text
    bench.written()
    assert bench.leader.checkpoints.ended == 3


def test_an_epoch_after_the_stop_takes_no_further_checkpoint_unless_something_was_to_change() -> None:
    """1. The last checkpoint is kept. 2. A service is gone: the next epoch goes on from it, and has ended too. 3. One
    that carries out a command takes a last checkpoint again."""
    bench = LeaderBench(interval=1000.0).lead()
    bench.tell(MessageReceived(channel="reader-0", message=StreamStopped()))
    bench.wait(0.1)
    bench.complete()
    bench.written()
    for entered, ended in ((None, 2), (7, None)):
        bench.tell(EpochFailed(epoch=bench.leader.epoch, cause=because("a channel is gone")))
        bench.now += 100.0
        bench.see()
        tail = bench.leader.tail
        bench.tell(JournalRead(tail=tail, base=2, answered=THE_STOP, entered=entered))
        bench.written()
        restored = Enumerator(bench.leader._plan())
        restored.at_stop = True
        bench.tell(EpochOpened(epoch=tail + 1, enumerator=restored))
        bench.wait(0.1)
        checkpoints = bench.leader.checkpoints
        assert (checkpoints.ended, checkpoints.in_flight) == (ended, None if ended else (tail + 2, THE_STOP))


def test_after_the_stop_a_new_service_changes_nothing_and_one_that_leaves_is_let_go_without_a_checkpoint() -> None:
    bench = LeaderBench(interval=1000.0).lead()
    bench.tell(MessageReceived(channel="reader-0", message=StreamStopped()))
    bench.wait(0.1)
    bench.complete()
    bench.written()
    assert bench.leader.checkpoints.ended == 2
    other = MemberSeen(incarnation="r2", role="reader")
    bench.members = (READER, other, WRITER)
    for _ in range(3):
        bench.see()
        assert bench.wait(SETTLE_SECONDS) == []
    bench.members = (dataclasses.replace(READER, leaving=True), other, WRITER)
    bench.see()
    assert bench.wait(0.2) == [CloseEpoch(epoch=1), ReadJournal()]


def test_a_checkpoint_that_takes_long_makes_the_leader_look_whether_the_journal_went_on_without_it() -> None:
    """Its members may have followed a newer epoch of a leader that is gone, so that no marker ever comes."""
    bench = LeaderBench().lead()
    bench.wait(10.0)
    assert bench.leader.checkpoints.in_flight is not None
    bench.now += DOUBT_SECONDS
    assert bench.see() == []
    bench.now += 0.1
    assert bench.see() == [ReadJournal()]
    assert bench.see() == []
    assert bench.tell(JournalRead(tail=1, base=None)) == []
    assert bench.tell(JournalRead(tail=2, base=None)) == [CloseEpoch(epoch=1), ReadJournal()]
    assert bench.leader.cause.sentence == "slot 2 of the journal holds another leader's entry"


def in_state(state: LeaderState) -> LeaderBench:
    """A leader that has come to this state."""
    bench = LeaderBench()
    match state:
        case LeaderState.IDLE:
            pass
        case LeaderState.READING:
            bench.see()
        case LeaderState.GATHERING:
            bench.see(READER)
            bench.tell(JournalRead(tail=0, base=None))
        case LeaderState.PROPOSING | LeaderState.OPENING:
            bench.see()
            bench.tell(JournalRead(tail=0, base=None))
            if state == LeaderState.OPENING:
                bench.written()
        case LeaderState.LEADING:
            bench.lead()
        case LeaderState.RESTING:
            for tail in range(2):
                bench.lead(tail=tail)
                bench.tell(EpochFailed(epoch=tail + 1, cause=because("lost")))
        case LeaderState.HALTED:
            for tail in range(MAX_HALTS):
                bench.lead(tail=tail)
                bench.tell(EpochFailed(epoch=tail + 1, cause=because("lost"), halts=True))
        case LeaderState.STOPPED:
            bench.see()
            bench.tell(JournalRead(tail=0, base=None, orders=StandingOrders(mode="paused")))
    assert bench.leader.state == state
    return bench


@pytest.mark.parametrize("state", LeaderState)
def test_an_event_that_a_state_has_no_rule_for_is_refused_and_changes_nothing(state: LeaderState) -> None:
    leader = in_state(state).leader
    before = freeze(leader)
    strange: list[Event] = [Began(), Event()]
    if state == LeaderState.OPENING:  # a message of the new epoch, which would be lost
        strange.append(MessageReceived(channel="reader-0", message=StreamStopped()))
    for event in strange:
        with pytest.raises(ProtocolError, match="no rule for"):
            leader.handle(event, 0.0)
        assert freeze(leader) == before


@pytest.mark.parametrize("state", LeaderState)
def test_every_state_has_a_rule_for_what_comes_whatever_it_does(state: LeaderState) -> None:
    assert TABLE[state].keys() >= {Observed, Ticked, JournalRead, EntryWritten, EntryRefused, EpochFailed}


def test_an_entry_of_ours_in_a_slot_that_it_was_not_meant_for_is_refused() -> None:
    bench = in_state(LeaderState.PROPOSING)
    before = freeze(bench.leader)
    with pytest.raises(ProtocolError, match="was meant for slot 1"):
        bench.tell(EntryWritten(slot=7, nonce=bench.last(WriteEntry).entry.nonce))
    assert freeze(bench.leader) == before


def test_a_late_checkpoint_is_what_the_leader_waits_for() -> None:
    """1. A checkpoint lacks the members' parts. 2. All have come, and the store does not take the entry."""
    bench = LeaderBench().lead()
    assert bench.leader.waiting_for(bench.now) is None
    bench.wait(10.0)
    assert bench.leader.checkpoints.in_flight == (2, None)
    assert bench.leader.waiting_for(bench.now + DOUBT_SECONDS) is None
    late = bench.now + DOUBT_SECONDS + 1
    lacks = "checkpoint 2, begun 11 s ago: it lacks "
    assert str(bench.leader.waiting_for(late)) == f"{lacks}the part of reader-0, writer-0"
    bench.complete()
    assert str(bench.leader.waiting_for(late)) == f"{lacks}the store, which has not taken its entry"
    bench.written()
    assert bench.leader.waiting_for(late) is None
