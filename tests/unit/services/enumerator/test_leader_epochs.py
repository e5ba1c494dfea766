"""The leader's machine: lease and journal decide who leads, epochs end and begin, halts and pauses."""

from __future__ import annotations

import dataclasses

import pytest

from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send
from cutline.common.mesh.messages import (
    Marker,
    PartSaved,
)
from cutline.common.mesh.topology import ROLES, Role
from cutline.common.store.command_records import Command
from cutline.common.store.records import EpochEntry
from cutline.services.enumerator.events import (
    BaseFound,
    CloseEpoch,
    CommandAccepted,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    JournalRead,
    MemberSeen,
    Observed,
    OpenEpoch,
    OutcomeWritten,
    ReadJournal,
    TablesFound,
    WriteEntry,
)
from cutline.services.enumerator.leader import (
    GATHER_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MAX_HALTS,
    MENDED_SECONDS,
    SETTLE_SECONDS,
    STEADY_SECONDS,
    pause_seconds,
)
from cutline.services.enumerator.states import EpochOpened
from tests.support.causes import because
from tests.support.leader_bench import PLAN, READER, WRITER, LeaderBench, invariants_hold
from tests.support.records import PART

__all__ = ["invariants_hold"]  # the fixtures


def test_who_has_the_lease_reads_the_journal_and_proposes_the_next_slot_as_its_epoch() -> None:
    bench = LeaderBench()
    assert bench.see(held=False) == []
    assert bench.see() == [ReadJournal()]
    (order,) = bench.tell(JournalRead(tail=7, base=5))
    assert isinstance(order, WriteEntry)
    assert (order.slot, order.entry.base, order.entry.members.by_role["reader"]) == (8, 5, ("r1",))
    assert bench.written() == [OpenEpoch(epoch=8, base=5, plan=PLAN)]


def test_an_epoch_says_up_to_which_generation_the_checkpoints_went_that_it_leaves_behind() -> None:
    """1. An epoch goes on from the newest checkpoint. 2. A restore begins one before it. 3. So the next one says it
    too, and a checkpoint later than that one has it."""
    restore = Command(n=1, kind="restore", arguments={"checkpoint": 3}, by="ann", at=0.0)
    bench = LeaderBench()
    bench.see()
    bench.tell(JournalRead(tail=7, base=7, floor=2, highest=5, commands=(restore,)))
    assert bench.last(WriteEntry).entry.floor == 2
    bench.written()
    bench.tell(BaseFound(n=1))
    bench.tell(JournalRead(tail=8, base=7, floor=2, highest=5, commands=(restore,)))
    assert (bench.last(WriteEntry).entry.base, bench.last(WriteEntry).entry.floor) == (3, 5)
    bench.written()
    bench.tell(EpochOpened(epoch=9, enumerator=None))
    assert bench.leader.enumerator is not None
    assert bench.leader.enumerator.floor == 5


@pytest.mark.parametrize(("tail", "cause"), [(0, "the pipeline's first start"), (7, "a new leader took over")])
def test_the_cause_of_a_leader_s_first_epoch_is_the_first_start_only_of_an_empty_journal(tail: int, cause: str) -> None:
    bench = LeaderBench()
    bench.see()
    bench.tell(JournalRead(tail=tail, base=None))
    assert bench.last(WriteEntry).entry.cause.sentence == cause


def test_it_waits_a_while_for_the_members_that_are_wanted() -> None:
    bench = LeaderBench(readers=2)
    bench.see()
    assert bench.tell(JournalRead(tail=0, base=None)) == []
    assert bench.see() == []
    bench.now = GATHER_SECONDS + 0.1
    assert [type(e) for e in bench.see()] == [WriteEntry]


def test_it_never_leads_without_a_reader_and_a_writer() -> None:
    bench = LeaderBench()
    bench.see(READER)
    bench.tell(JournalRead(tail=0, base=None))
    bench.now = 10 * GATHER_SECONDS
    assert bench.see(READER) == []
    assert [type(e) for e in bench.see()] == [WriteEntry]


def test_a_member_of_a_third_role_is_waited_for_at_the_start_and_in_each_checkpoint() -> None:
    """1. Without a service of the third role no epoch begins. 2. The entry and the plan name it. 3. A checkpoint lacks
    its part, then is complete. 4. It goes, and the epoch ends."""
    bench = LeaderBench(interval=1.0, roles=(*ROLES, Role(name="feed", marked=False)))
    feed = MemberSeen(incarnation="f1", role="feed")
    bench.see()
    bench.tell(JournalRead(tail=0, base=None))
    bench.now = 10 * GATHER_SECONDS
    assert bench.see() == []
    bench.members = (READER, WRITER, feed)
    bench.see()
    assert bench.last(WriteEntry).entry.members.by_role == {"reader": ("r1",), "writer": ("w1",), "feed": ("f1",)}
    bench.written()
    assert ("feed-0", "enumerator") in bench.last(OpenEpoch).plan.topology.channels()
    bench.tell(EpochOpened(epoch=1, enumerator=None))
    bench.tell(TablesFound(tables=()))
    bench.wait(1.0)
    with pytest.raises(AssertionError):  # its entry is not written: the feed's part is missing
        bench.complete()
    assert bench.leader.enumerator is not None
    assert bench.leader.enumerator.collecting is not None
    assert bench.leader.enumerator.collecting.missing(bench.leader.enumerator.plan.topology) == ["feed-0"]
    bench.tell(MessageReceived(channel="feed-0", message=PartSaved(checkpoint=2)))
    assert bench.last(WriteEntry).slot == 2
    bench.written()
    assert CloseEpoch(epoch=1) in bench.see(READER, WRITER)
    assert bench.leader.cause.sentence == "service f1 is gone"


@pytest.mark.parametrize("state", ["proposing", "leading"])
def test_who_is_refused_a_slot_by_another_is_deposed_and_reads_the_journal_again(state: str) -> None:
    bench = LeaderBench(interval=1.0)
    if state == "leading":
        bench.lead()
        bench.wait(1.0)
        bench.complete()
    else:
        bench.see()
        bench.tell(JournalRead(tail=0, base=None))
    slot = bench.last(WriteEntry).slot
    effects = bench.tell(EntryRefused(slot=slot, nonce="another:1"))
    assert effects[-1] == ReadJournal()
    assert (CloseEpoch(epoch=1) in effects) == (state == "leading")
    assert bench.leader.process is None


def test_a_journal_that_refuses_every_entry_is_tried_with_pauses_that_grow_and_the_true_cause() -> None:
    """The entry before it is gone from the store, so nobody holds the slot."""
    bench = LeaderBench()
    bench.see()
    bench.tell(JournalRead(tail=12, base=None))
    bench.tell(EntryRefused(slot=13, nonce=""))
    assert (bench.leader.state, bench.leader.failures) == ("reading", 1)
    pauses = []
    for failures in range(2, 6):
        bench.tell(JournalRead(tail=12, base=None))
        bench.tell(EntryRefused(slot=13, nonce=""))
        assert (bench.leader.state, bench.leader.failures) == ("resting", failures)
        pauses.append(bench.leader.retry_at - bench.now)
        bench.now = bench.leader.retry_at
        assert bench.see() == [ReadJournal()]
    assert pauses == sorted(pauses)
    assert 0.8 <= pauses[0] <= 1.0
    refused = "slot 13 of the journal was refused: the entry before it is gone from the store"
    assert bench.leader.cause.sentence == refused


def test_a_refusal_by_our_own_entry_is_a_lost_answer() -> None:
    bench = LeaderBench()
    bench.see()
    bench.tell(JournalRead(tail=0, base=None))
    (effect,) = bench.tell(EntryRefused(slot=1, nonce=bench.last(WriteEntry).entry.nonce))
    assert isinstance(effect, OpenEpoch)


def test_a_slow_write_of_a_checkpoint_is_not_taken_for_the_epoch_proposed_after_it() -> None:
    """1. Checkpoint 2's entry is being written. 2. A member goes. 3. The journal, read before the write lands, ends
    at 1, so epoch 2 is proposed. 4. The checkpoint's write lands. 5. The epoch is refused and proposed again after
    it."""
    bench = LeaderBench(interval=1.0).lead()
    bench.wait(1.0)
    slow = bench.complete().nonce
    bench.tell(EpochFailed(epoch=1, cause=because("a channel was lost")))
    bench.tell(JournalRead(tail=1, base=None))
    assert isinstance(bench.last(WriteEntry).entry, EpochEntry)
    assert bench.tell(EntryWritten(slot=2, nonce=slow)) == []
    assert bench.leader.state == "proposing"
    assert bench.tell(EntryRefused(slot=2, nonce=slow)) == [ReadJournal()]
    bench.tell(JournalRead(tail=2, base=2))
    assert (bench.last(WriteEntry).slot, bench.last(WriteEntry).entry.base) == (3, 2)


def test_a_leader_built_anew_in_its_service_does_not_take_an_earlier_ones_slow_entry_for_its_own() -> None:
    """1. A leader's first entry is slow. 2. Its pipeline fails and is led by a new object of the same service, whose
    first entry is refused by that entry. 3. It is deposed, and reads the journal again."""
    earlier = LeaderBench()
    earlier.see()
    earlier.tell(JournalRead(tail=0, base=None))
    bench = LeaderBench(run="r2")
    bench.see()
    bench.tell(JournalRead(tail=0, base=None))
    assert bench.tell(EntryRefused(slot=1, nonce=earlier.last(WriteEntry).entry.nonce)) == [ReadJournal()]


def test_a_service_that_leaves_is_done_without_after_a_checkpoint_and_not_waited_for() -> None:
    """1. Two readers are wanted and there; one says that it leaves. 2. A checkpoint is taken at once. 3. The next epoch
    builds on it, has the other reader, and is proposed without waiting for a second. 4. Nor is one waited for later.
    5. Another reader comes, and both are waited for again."""
    bench = LeaderBench(interval=1000.0, readers=2)
    other = MemberSeen(incarnation="r2", role="reader")
    bench.members = (READER, other, WRITER)
    bench.see()
    bench.tell(JournalRead(tail=0, base=None))
    bench.written()
    bench.tell(EpochOpened(epoch=1, enumerator=None))
    bench.tell(TablesFound(tables=()))
    bench.members = (READER, dataclasses.replace(other, leaving=True), WRITER)
    bench.see()
    assert bench.leader.checkpoints.in_flight is None
    bench.wait(0.2)
    assert bench.leader.checkpoints.in_flight == (2, None)
    bench.tell(MessageReceived(channel="reader-1", message=Marker(checkpoint=2)))
    bench.tell(MessageReceived(channel="reader-1", message=PartSaved(checkpoint=2, part=PART)))
    bench.complete()
    assert bench.written()[-1] == ReadJournal()
    (order,) = bench.tell(JournalRead(tail=2, base=2))
    assert (order.entry.members.by_role["reader"], order.entry.base) == (("r1",), 2)
    assert order.entry.cause.sentence == "services of this epoch are leaving"
    bench.members = (READER, WRITER)
    bench.lead(tail=2, base=None)
    bench.tell(EpochFailed(epoch=3, cause=because("a channel was lost")))
    (order,) = bench.tell(JournalRead(tail=3, base=None))
    bench.written()
    bench.tell(EpochOpened(epoch=4, enumerator=None))
    bench.members = (READER, MemberSeen(incarnation="r3", role="reader"), WRITER)
    bench.see()
    bench.members = (READER, WRITER)
    bench.see()
    bench.tell(EpochFailed(epoch=4, cause=because("a channel was lost")))
    assert bench.tell(JournalRead(tail=4, base=None)) == []


def test_a_lost_lease_ends_the_epoch_and_a_new_one_starts_checkpoints_again() -> None:
    bench = LeaderBench(interval=1.0).lead()
    bench.wait(1.0)
    assert bench.leader.checkpoints.in_flight is not None
    assert bench.see(held=False) == [CloseEpoch(epoch=1)]
    assert bench.leader.checkpoints.in_flight is None
    bench.lead(tail=1)
    bench.wait(1.0)
    assert bench.leader.checkpoints.in_flight == (3, None)


@pytest.mark.parametrize(
    "members",
    [
        (READER,),
        (MemberSeen(incarnation="r2", role="reader"), WRITER),
        (READER, MemberSeen(incarnation="w1", role="writer", failed_epoch=1, failed=because("no room"))),
    ],
)
def test_a_member_that_is_gone_or_gave_up_ends_the_epoch(members: tuple[MemberSeen, ...]) -> None:
    bench = LeaderBench().lead()
    assert bench.see(*members) == [CloseEpoch(epoch=1), ReadJournal()]
    assert bench.leader.cause


def test_what_a_member_said_of_an_older_epoch_is_not_held_against_it() -> None:
    bench = LeaderBench().lead(tail=4, base=4)
    assert bench.see(READER, MemberSeen(incarnation="w1", role="writer", failed_epoch=3, failed=because("lost"))) == []


def test_epochs_that_end_by_what_trying_again_cannot_mend_halt_the_pipeline() -> None:
    bench = LeaderBench()
    for n in range(MAX_HALTS):
        bench.lead(tail=n)
        bench.tell(EpochFailed(epoch=n + 1, cause=because("corrupt"), halts=True))
    assert bench.leader.state == "halted"
    assert bench.see() == []


def test_a_halt_lasts_since_the_first_of_the_epochs_that_failed_also_for_the_next_leader() -> None:
    """1. Two epochs fail for good: the pipeline is halted since the first of them failed, which the second one's entry
    says. 2. Another leader reads that entry, tries, and halts: since then."""
    first = LeaderBench().lead()
    first.now = 100.0
    first.tell(EpochFailed(epoch=1, cause=because("purged"), halts=True))
    first.now = 102.0
    first.lead(tail=1)
    entry = first.last(WriteEntry).entry
    assert (entry.failing_since, entry.written_at) == (100.0, 102.0)
    first.now = 103.0
    first.tell(EpochFailed(epoch=2, cause=because("purged"), halts=True))
    assert (first.leader.state, first.leader.halted_since) == ("halted", 100.0)
    second = LeaderBench()
    second.now = 5000.0
    second.see()
    second.tell(JournalRead(tail=2, base=None, failing_since=entry.failing_since))
    second.written()
    second.tell(EpochOpened(epoch=3, enumerator=None))
    assert second.leader.halted_since is None
    second.tell(EpochFailed(epoch=3, cause=because("purged"), halts=True))
    second.lead(tail=3)
    second.tell(EpochFailed(epoch=4, cause=because("purged"), halts=True))
    assert (second.leader.state, second.leader.halted_since) == ("halted", 100.0)


def test_a_try_that_a_person_asked_for_begins_a_new_row_of_failures() -> None:
    bench = LeaderBench()
    for n in range(MAX_HALTS):
        bench.lead(tail=n)
        bench.tell(EpochFailed(epoch=n + 1, cause=because("purged"), halts=True))
    bench.now = 500.0
    resume = Command(n=1, kind="resume", arguments={}, by="ann", at=0.0)
    bench.tell(CommandAccepted(command=resume))
    bench.lead(tail=MAX_HALTS, commands=(resume,))
    assert bench.last(WriteEntry).entry.failing_since is None
    bench.tell(OutcomeWritten(n=1))
    for n in range(MAX_HALTS):
        bench.tell(EpochFailed(epoch=MAX_HALTS + 1 + n, cause=because("purged"), halts=True))
        if n + 1 < MAX_HALTS:
            tried_again(bench)
            bench.lead(tail=MAX_HALTS + 1 + n)
    assert (bench.leader.state, bench.leader.halted_since) == ("halted", 500.0)


def test_a_wait_for_an_epoch_lasts_since_the_first_failure_in_a_row_and_says_what_is_missing() -> None:
    """1. A pipeline that never failed waits since its epoch ended. 2. Epochs fail again and again: each wait is since
    the first of them. 3. An epoch that gives a checkpoint long after it began ends that row."""
    bench = LeaderBench(interval=STEADY_SECONDS).lead()
    bench.now = 10.0
    bench.see(WRITER)
    bench.tell(JournalRead(tail=1, base=None))
    waits = bench.leader.waiting_for(11.0)
    assert waits is not None
    assert (waits.what, waits.since) == ("a reader to start", 10.0)
    bench.now = 20.0
    bench.see(READER, WRITER)
    bench.written()
    bench.tell(EpochOpened(epoch=2, enumerator=None))
    assert bench.leader.waiting_for(21.0) is None
    for tail in (2, 3, 4):
        bench.now += 10.0
        bench.tell(EpochFailed(epoch=tail, cause=because("refused")))
        waits = bench.leader.waiting_for(bench.now)
        assert waits is not None
        assert waits.since == 30.0
        tried_again(bench)
        bench.lead(tail=tail)
    bench.wait(STEADY_SECONDS + 1)
    bench.complete()
    bench.written()
    bench.tell(EpochFailed(epoch=5, cause=because("refused")))
    assert (waits := bench.leader.waiting_for(bench.now)) is not None
    assert waits.since == bench.now


def fail(bench: LeaderBench, *, lives: float = 1.0, by_member: bool = False) -> list[Effect]:
    """Open the next epoch, let it live for so long, and fail it."""
    tail = bench.leader.tail
    bench.lead(tail=tail, base=None)
    bench.now += lives
    cause = because("cdc@h:3306 refuses us")
    if by_member:
        return bench.see(READER, MemberSeen(incarnation="w1", role="writer", failed_epoch=tail + 1, failed=cause))
    return bench.tell(EpochFailed(epoch=tail + 1, cause=cause))


def tried_again(bench: LeaderBench) -> float:
    """The seconds until the leader reads the journal again."""
    begun = bench.now
    while bench.leader.state == "resting":
        bench.now += 0.4
        bench.see()
    assert bench.leader.state == "reading"
    return bench.now - begun


@pytest.mark.parametrize("by_member", [False, True])
def test_an_hour_of_a_source_that_refuses_us_makes_some_dozens_of_epochs_and_not_thousands(by_member: bool) -> None:
    bench = LeaderBench(interval=0.5)
    bench.see()
    waits = []
    while bench.now < 3600:
        fail(bench, by_member=by_member)
        assert bench.leader.cause.sentence.endswith("cdc@h:3306 refuses us")
        waits.append(tried_again(bench))
    assert bench.leader.tail == len(waits) <= 90
    assert waits[0] == 0.0
    assert waits[1] <= 1.5
    assert waits[:6] == sorted(waits[:6])
    assert max(waits) <= LONGEST_PAUSE_SECONDS + 0.5


def test_a_checkpoint_that_completes_while_the_source_fails_does_not_end_the_back_off() -> None:
    bench = LeaderBench(interval=0.5)
    bench.see()
    for _ in range(5):
        tail = bench.leader.tail
        bench.lead(tail=tail, base=None)
        bench.wait(1.0)
        bench.complete()
        bench.written()
        bench.tell(EpochFailed(epoch=tail + 1, cause=because("refused")))
        wait = tried_again(bench)
    assert wait > 5


def test_an_epoch_that_was_led_for_long_is_followed_at_once_when_it_fails() -> None:
    bench = LeaderBench()
    bench.see()
    for _ in range(4):
        fail(bench)
        tried_again(bench)
    fail(bench, lives=STEADY_SECONDS + 1)
    assert bench.leader.state == "reading"


def test_services_that_are_gone_again_and_again_are_replaced_at_once() -> None:
    bench = LeaderBench()
    bench.see()
    for n in range(6):
        bench.see()
        bench.lead(tail=n, base=None)
        assert bench.see(READER) == [CloseEpoch(epoch=n + 1), ReadJournal()]


@pytest.mark.parametrize(
    "asks",
    [
        Observed(held=True, members=(READER, WRITER, MemberSeen(incarnation="r2", role="reader"))),
    ],
)
def test_a_person_who_asks_for_something_or_a_service_that_comes_ends_the_wait(asks: Event) -> None:
    bench = LeaderBench()
    bench.see()
    for _ in range(6):
        fail(bench)
        tried_again(bench)
    fail(bench)
    assert bench.see() == []
    assert bench.leader.state == "resting"
    bench.tell(asks)
    bench.now += 0.4
    bench.see()
    assert bench.leader.state == "reading"


def test_a_lease_that_is_lost_while_it_waits_leaves_the_pipeline_to_another() -> None:
    bench = LeaderBench()
    bench.see()
    for _ in range(2):
        fail(bench)
    assert bench.leader.state == "resting"
    bench.see(held=False)
    assert bench.leader.state == "idle"


def test_pipelines_that_failed_of_one_fault_do_not_try_again_in_step() -> None:
    pauses = {pause_seconds(9, name) for name in ("a", "b", "c", "d")}
    assert len(pauses) == 4
    assert all(0.8 * LONGEST_PAUSE_SECONDS <= pause <= LONGEST_PAUSE_SECONDS for pause in pauses)
    assert pause_seconds(10_000, "a") <= LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(("lasts", "state"), [(MENDED_SECONDS, "halted"), (MENDED_SECONDS + 1, "reading")])
def test_a_checkpoint_while_the_stream_stands_in_doubt_does_not_forgive_what_ended_the_epoch_before(
    lasts: float, state: str
) -> None:
    bench = LeaderBench()
    tail = 0
    for _ in range(MAX_HALTS):
        bench.lead(tail=tail, base=tail or None)
        bench.wait(lasts)
        bench.complete()
        bench.written()
        tail += 2
        bench.tell(EpochFailed(epoch=tail - 1, cause=because("the server lacks transactions"), halts=True))
    assert bench.leader.state == state


def test_new_members_are_taken_in_after_a_checkpoint() -> None:
    bench = LeaderBench().lead()
    more = (READER, WRITER, MemberSeen(incarnation="r2", role="reader"))
    bench.see(*more)
    bench.now += SETTLE_SECONDS + 1
    bench.see(*more)
    assert isinstance(bench.wait(0.0)[0], Send)
    bench.complete()
    assert bench.written() == [CloseEpoch(epoch=1), ReadJournal()]
    bench.tell(JournalRead(tail=2, base=2))
    assert bench.last(WriteEntry).entry.members.by_role["reader"] == ("r1", "r2")
