"""Leading a pipeline: who leads, in which epoch, and when checkpoints start. Wraps the enumerator's Chandy-Lamport
process.

    idle -(lease)-> reading -(journal)-> gathering -(members)-> proposing -(entry written)-> opening -(streams)->
    leading
      ^                ^------------------------------------------------(member or channel lost, slot refused)-------'
      |                '-(pause over)- resting: from the second failure in a row on, a pause that grows
      '--- lease lost, from any state               halted: epochs in a row ended by a fault that no retry can mend
                                                    stopped: a person paused, stopped or deleted the pipeline

`TABLE` has the handler of each event in each state; an event without one is refused.

The lease in Redis gives liveness, the journal safety. Every epoch and every checkpoint is one numbered slot of the
journal, written by put-if-absent, so two leaders can't both go on. A leader whose slot already holds another leader's
entry is deposed: it sends nothing more, reads the journal again, and tries the next slot while it holds the lease. The
number of an epoch or a checkpoint is that of its slot. The checkpoint in flight ends with its epoch, and the next
epoch's entry takes its slot.

An epoch that failed (a member gave up, or a channel or part was lost) is followed by the next one at once, so that a
single fault costs little. After a second failure within STEADY_SECONDS the leader pauses, and twice as long after each
further one, since every epoch costs an entry of the journal and a sweep of the store. The pause ends early when a
person asks for something or a new service appears. A service that is gone is no failure: its supervisor
pauses between the starts.

An epoch may begin *anew*: every table is read again from the source's present position, since a person asked for it, or
since the source lost the stream's position and the definition allows it. Its entry says so, and so does that of each
next epoch until a checkpoint has the new generations: only then is the base one that can be restored as it is.

People's commands are the agenda's (agenda.py), which goes on after each fact: it asks for checkpoints, ends an epoch
and says how the next one begins. Each reading of the journal reads the standing orders and the commands too, so that a
leader that was deposed obeys what another one has finished meanwhile.

It relies on the store: a lost answer comes back as `EntryRefused` with our own nonce (our entry is there), or the
question is asked again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import Loss, ProtocolError
from cutline.common.limits import Limits
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, Ticked
from cutline.common.mesh.topology import ENUMERATOR, ROLES, Role, Topology
from cutline.common.positions import Position
from cutline.common.store.command_records import Command
from cutline.common.store.records import Anew, EpochEntry, Members
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.agenda import Agenda
from cutline.services.enumerator.events import (
    BaseFound,
    BoundFound,
    CloseEpoch,
    CommandAccepted,
    CommandAnswered,
    DefinitionPut,
    DeletePipeline,
    Dismiss,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    JournalRead,
    LimitsOrdered,
    MemberSeen,
    Observed,
    OpenEpoch,
    OutcomeRefused,
    OutcomeWritten,
    PlaceFound,
    Plan,
    RangeFound,
    ReadJournal,
    Settings,
    SplittingFailed,
    StopFound,
    TableDescribed,
    TableLockedOut,
    TablesFound,
    WriteCheckpoint,
    WriteEntry,
)
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import THE_STOP, CommandRequest, Request

GATHER_SECONDS = 10.0  # the longest wait for the configured number of members
SETTLE_SECONDS = 3.0  # how long newcomers must be present before the members change
SOON_SECONDS = 1.0  # the interval while a table that turned live, or the backlog of a stopped time, is not shown
SILENT_SECONDS = 10.0  # checkpoints at one place inside a transaction for so long: the source is silent
DOUBT_SECONDS = 10.0  # how long a checkpoint may take before the journal is read again
MAX_HALTS = 2  # epochs in a row that no retry can mend, before the leader halts
MENDED_SECONDS = 120.0  # a checkpoint this late in an epoch ends a row of halts: by then a reader is sure of a loss
STEADY_SECONDS = 60.0  # a failure after a longer epoch is the first in a row
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOpened(Event):
    """The epoch's streams are made; `enumerator` is restored from its base, if it has one."""

    epoch: int
    enumerator: Enumerator | None


class LeaderState(StrEnum):
    """Where a leader stands: see the head of this file."""

    IDLE = "idle"  # the lease is not ours
    READING = "reading"  # the journal, to find its end and the newest checkpoint
    GATHERING = "gathering"  # the members of the next epoch
    PROPOSING = "proposing"  # the epoch's entry is being written
    OPENING = "opening"  # the epoch's streams are being made
    LEADING = "leading"
    RESTING = "resting"  # until the next try
    HALTED = "halted"  # until a person resumes the pipeline or starts the service again, or the lease is lost
    STOPPED = "stopped"  # by a person, until another command


IDLE, READING, GATHERING, PROPOSING, OPENING, LEADING, RESTING, HALTED, STOPPED = LeaderState

# Why an event is ignored in a state:
LATE = "_ignore_late"  # it answers a question, or belongs to an epoch, that ended before it arrived
NOT_DUE = "_ignore_not_due"  # the state awaits an answer or a person; neither time nor members matter

Row = Mapping[type[Event], str]
_TO_THE_ENUMERATOR: tuple[type[Event], ...] = (
    MessageReceived, PartStored, TablesFound, PlaceFound, StopFound, TableDescribed, RangeFound, BoundFound,
    SplittingFailed, TableLockedOut,
)  # fmt: skip
_COMMANDS: Row = {
    CommandAccepted: "_command_accepted",
    CommandAnswered: "_command_answered",
    DefinitionPut: "_definition_put",
    BaseFound: "_base_found",
    OutcomeWritten: "_outcome_written",
    OutcomeRefused: "_outcome_refused",
}
_BETWEEN_EPOCHS: Row = {
    **_COMMANDS,
    **dict.fromkeys((JournalRead, EntryWritten, EntryRefused, EpochOpened, EpochFailed), LATE),
    **dict.fromkeys(_TO_THE_ENUMERATOR, LATE),
    **dict.fromkeys((Observed, Ticked), NOT_DUE),
}

TABLE: Mapping[LeaderState, Row] = {
    IDLE: {**_BETWEEN_EPOCHS, **dict.fromkeys(_COMMANDS, LATE), Observed: "_lease_taken"},
    READING: {**_BETWEEN_EPOCHS, JournalRead: "_journal_read"},
    GATHERING: {**_BETWEEN_EPOCHS, Observed: "_gather"},
    PROPOSING: {**_BETWEEN_EPOCHS, EntryWritten: "_entry_written", EntryRefused: "_entry_refused"},
    # No fact of an older epoch can arrive any more: those queued before our proposal came before its answer. A message
    # that arrived now would be of the new epoch and would be lost, so it is refused.
    OPENING: {
        **_COMMANDS,
        Observed: "_watch",
        Ticked: NOT_DUE,
        EpochOpened: "_epoch_opened",
        EpochFailed: "_epoch_failed",
        **dict.fromkeys((JournalRead, EntryWritten, EntryRefused), LATE),
    },
    LEADING: {
        **_COMMANDS,
        Observed: "_watch",
        Ticked: "_tick",
        EpochOpened: LATE,
        EpochFailed: "_epoch_failed",
        JournalRead: "_journal_looked_at",
        EntryWritten: "_entry_written",
        EntryRefused: "_entry_refused",
        **dict.fromkeys(_TO_THE_ENUMERATOR, "_to_the_enumerator"),
    },
    RESTING: {**_BETWEEN_EPOCHS, Observed: "_rest"},
    HALTED: _BETWEEN_EPOCHS,
    STOPPED: _BETWEEN_EPOCHS,
}
"""The handler of each event in each state. An event that a state lacks is refused: ProtocolError, and nothing changed.
From every state a lost lease leads to idle (`handle`)."""


def pause_seconds(failures: int, run: str) -> float:
    """The pause after so many failures in a row: none after the first, then 1 s, doubled each time up to 60 s.

    It is shortened by up to a fifth, by a hash of `run`, so that pipelines that failed together don't retry together.
    """
    if failures < 2:
        return 0.0
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 2, 30))
    return longest * (1.0 - sha256(f"{run}:{failures}".encode()).digest()[0] / 256 / 5)

_FIRST = Cause(Code.STARTED, "the pipeline's first start")
_LEASE_LOST = Cause(Code.STARTED, "the lease was lost")
_LEAVING = Cause(Code.MEMBERS, "services of this epoch are leaving")
_NEWCOMERS = Cause(Code.MEMBERS, "new services are present")


def _anothers(slot: int) -> Cause:
    return Cause(Code.STARTED, f"slot {slot} of the journal holds another leader's entry")


def _refused(slot: int) -> Cause:
    sentence = f"slot {slot} of the journal was refused: the entry before it is gone from the store"
    return Cause(Code.PROTOCOL, sentence, "see what removed it; restore the store from a backup")


class Leader:
    """The machine of one enumerator service for one pipeline, from its start to its end.

    `run` is unique to this object, also within its service. Every nonce contains it, so that a slow write of an earlier
    leader can't be taken for ours. `part_of`: the `cutline run` that started this service, None: nothing ends with it.

    It has nearly 40 attributes: it decides on lease, members, epoch and checkpoint, and nearly every rule needs two of
    these.
    """

    def __init__(
        self,
        *,
        incarnation: str,
        run: str,
        settings: Settings,
        part_of: str | None = None,
        roles: tuple[Role, ...] = ROLES,
    ) -> None:
        self.incarnation = incarnation
        self.run = run
        self.settings = settings
        self._part_of = part_of
        self.definition = 1  # the version of the definition that has these settings
        self.agenda = Agenda()
        self.state = IDLE
        self.cause = Cause(Code.STARTED, "a new leader took over")
        self.lost = Loss.NOTHING  # by the source, for which the newest epoch failed
        self.anew: Anew | None = None  # why this epoch began anew, or the next one will, without a checkpoint so far
        self._lost_again = False  # the next epoch begins anew, since the source lost the position
        self.tail = 0  # the journal's last slot
        self.base: int | None = None  # the newest checkpoint on the chain
        self.floor = 0  # of the next epoch, or of this one: see EpochEntry
        self.epoch = 0
        self._roles = roles
        self.services: dict[str, tuple[str, ...]] = {}  # of this epoch: incarnations by role, in plan order
        self.process: Process | None = None
        self.enumerator: Enumerator | None = None
        self.members: tuple[MemberSeen, ...] = ()
        self.requests: list[Request] = []  # checkpoints that are still to be taken
        self.answered: Request | None = None  # by checkpoint `base`
        self._saving_commands = 0  # the last command of the enumerator that is in the checkpoint in flight
        self.kept_commands = 0  # in the checkpoint `base`
        self._inside: tuple[Position | None, float] | None = None  # the place of cuts inside a transaction, since when
        self._keep_at = 0.0  # when to try again to take a savepoint
        self._ending = False  # our `cutline run` ends: the interval starts no further checkpoint
        self.ended: int | None = None  # the kept checkpoint at the pipeline's stop
        self._ended_before = False  # the base is that checkpoint, and nothing of the pipeline is to change after it
        self._last_asked = False  # the checkpoint at the stop is requested
        self.started_at = 0.0  # of the newest checkpoint, or of the epoch
        self._led_since = 0.0  # in this epoch
        self._doubted_at = 0.0  # when we last read the journal because a checkpoint took long
        self.completed_at = 0.0  # of the newest checkpoint
        self.in_flight: tuple[int, Request | None] | None = None  # slot, request
        self._wanted: str | None = None  # nonce of the entry that is being written
        # Slot, request and commands of a checkpoint whose entry may be in the journal, or may still come to be there.
        self._ordered: tuple[int, Request | None, int] | None = None
        self._since = 0.0  # when gathering began, or newcomers appeared
        self._rescale: Cause | None = None  # why the members must change, after a checkpoint
        self._expected = {role.name: settings.services[role.name] for role in roles}  # how many to wait for
        self._nonces = 0
        self.halts = 0  # epochs in a row that ended by a fault that no retry can mend
        self.failures = 0  # epochs in a row that failed
        self.retry_at = 0.0  # when the pause ends
        self._known: frozenset[str] = frozenset()  # services that were present when the pause began

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact, by the rule of `TABLE`; a lost lease ends everything from every state."""
        handler = _HANDLERS[self.state].get(type(event))
        if handler is None:
            raise ProtocolError(f"a leader that is {self.state} has no rule for {type(event).__name__}")
        if isinstance(event, Observed):
            self.members = event.members
            self._expect()
            if not event.held:
                effects = self._end_epoch()
                self.agenda.forget()
                self.requests = [request for request in self.requests if self.agenda.awaits(request)]
                self.state, self.cause, self._lost_again = IDLE, _LEASE_LOST, False
                return effects
        effects = handler(self, event, now)
        return effects + self.agenda.go_on(self, now)

    def _ignore_late(self, event: Event, now: float) -> list[Effect]:
        return []

    def _ignore_not_due(self, event: Event, now: float) -> list[Effect]:
        return []

    # --- commands ---

    def _command_accepted(self, event: CommandAccepted, now: float) -> list[Effect]:
        self.agenda.accept(event.command)
        self.retry_at = min(self.retry_at, now)
        return []

    def _command_answered(self, event: CommandAnswered, now: float) -> list[Effect]:
        self.agenda.answered(event)
        return []

    def _definition_put(self, event: DefinitionPut, now: float) -> list[Effect]:
        self.agenda.definition_put(event, self)
        return []

    def _base_found(self, event: BaseFound, now: float) -> list[Effect]:
        self.agenda.base_found(event, self)
        return []

    def _outcome_written(self, event: OutcomeWritten, now: float) -> list[Effect]:
        if not self.agenda.outcome_written(event.n):
            return []
        if self.enumerator is not None:
            self.enumerator.refused.pop(event.n, None)
            if (limits := self.agenda.limits) is not None and limits != self.enumerator.limits:
                return self._to_the_enumerator(LimitsOrdered(limits=limits), now)
        return self._delete()

    def _outcome_refused(self, event: OutcomeRefused, now: float) -> list[Effect]:
        if not self.agenda.outcome_refused(event.n) or self.reads or self.proposes:
            return []
        return self.begin_anew(Cause(Code.STARTED, f"another leader has finished command {event.n}"))

    def _delete(self) -> list[Effect]:
        return [DeletePipeline()] if self.agenda.standing.mode == "deleting" and self.still else []

    def waiting_for(self, now: float) -> Wait | None:
        """What holds the pipeline up, for its status; None while it goes on, or has halted or ended."""
        match self.state:
            case LeaderState.RESTING:
                at = datetime.fromtimestamp(self.retry_at, tz=UTC)
                what = f"the next try, at {at:%H:%M:%S} UTC ({self.failures} failed in a row)"
                return Wait(Party.TIME, what, self.cause)
            case LeaderState.READING | LeaderState.GATHERING | LeaderState.PROPOSING | LeaderState.OPENING:
                return Wait(Party.EPOCH, f"a new epoch ({self.state})", self.cause)
            case LeaderState.STOPPED:
                return Wait(Party.PERSON, "a person", Cause(Code.ASKED, f"the pipeline is {self.agenda.standing.mode}"))
            case LeaderState.LEADING if self.in_flight is not None and now - self.started_at > DOUBT_SECONDS:
                return self._late(self.in_flight[0], now - self.started_at)
            case LeaderState.LEADING if self._inside is not None and now - self._inside[1] > SILENT_SECONDS:
                return self._silent(*self._inside, now)
        return None

    def _late(self, slot: int, seconds: float) -> Wait:
        """The checkpoint in flight takes long: by whose fault."""
        awaited = "the store, which has not taken its entry"
        if self.enumerator is not None and (collecting := self.enumerator.collecting) is not None:
            awaited = f"the part of {', '.join(collecting.missing(self.enumerator.plan.topology))}"
        what = f"checkpoint {slot}, begun {seconds:.0f} s ago"
        return Wait(Party.CHECKPOINT, what, Cause(Code.LATE, f"it lacks {awaited}"))

    @staticmethod
    def _silent(at: Position | None, since: float, now: float) -> Wait:
        """The source has sent the beginning of a transaction, and nothing more."""
        place = "" if at is None else f" at {at.file}:{at.offset}"
        silent = Cause(Code.UNAVAILABLE, f"the source has sent nothing for {now - since:.0f} s")
        return Wait(Party.BUSY_SOURCE, f"the rest of the transaction{place}", silent)

    @property
    def limits(self) -> Limits:
        """The limits in force, on what all readers together SELECT: those of the standing orders, else the definition's
        (in a store of Cutline's first versions, those that its newest checkpoint has)."""
        own = self.settings.limits if self.enumerator is None else self.enumerator.limits
        return self.agenda.limits or own

    @property
    def leads(self) -> bool:
        """Whether an epoch is open."""
        return self.state == LEADING

    @property
    def reads(self) -> bool:
        """Whether the journal and the commands are to be read next, or the lease is not ours."""
        return self.state in (IDLE, READING)

    @property
    def proposes(self) -> bool:
        """Whether the entry of an epoch is being written, so that nothing about that epoch can change."""
        return self.state == PROPOSING

    @property
    def waits(self) -> bool:
        """Whether no epoch is open, and it may last until one is."""
        return self.state in (GATHERING, RESTING, HALTED, STOPPED)

    @property
    def still(self) -> bool:
        """Whether no epoch is to be open."""
        return self.state == STOPPED

    @property
    def halted(self) -> bool:
        """Whether no epoch is opened since it would fail."""
        return self.state == HALTED

    def may_have(self, command: Command) -> bool:
        """Whether a checkpoint that the journal has, or may have since its entry was ordered, answers the command's
        request, or has the command, if it is one of the enumerator."""
        _, asked, last = self._ordered or (0, None, 0)
        if command.taken == "machine":
            return command.n <= max(last, self.kept_commands if self.leads else 0)
        return CommandRequest(n=command.n) in (asked, self.answered)

    def request(self, request: Request) -> None:
        """Ask for a checkpoint that answers `request`."""
        if request not in self.requests and (self.in_flight is None or self.in_flight[1] != request):
            self.requests.append(request)

    def ends(self, run: object) -> None:
        """That `cutline run` ends: if this service is a part of it, the interval starts no checkpoint after the
        savepoint. A leader of another mesh on the same store goes on."""
        self._ending = self._ending or (run is not None and run == self._part_of)

    def withdraw(self, request: Request) -> None:
        """Ask no more for that checkpoint; if it is in flight, its entry answers nothing."""
        self.requests = [other for other in self.requests if other != request]
        if self.in_flight is not None and self.in_flight[1] == request:
            self.in_flight = self.in_flight[0], None

    def begin_anew(self, cause: Cause) -> list[Effect]:
        """End the epoch, if one is open, and begin the next one."""
        return self._next_epoch(cause)

    def stand_still(self, cause: Cause) -> list[Effect]:
        """End the epoch, if one is open, and begin none."""
        effects = self._end_epoch()
        self.state, self.cause, self.halts, self.failures = STOPPED, cause, 0, 0
        return [*effects, self._dismiss()]

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Pass a command on to the enumerator."""
        return self._to_the_enumerator(event, now)

    # --- lease and members ---

    def _lease_taken(self, event: Observed, now: float) -> list[Effect]:
        self.state = READING
        return [ReadJournal()]

    def _rest(self, event: Observed, now: float) -> list[Effect]:
        if now < self.retry_at and self._known.issuperset(self._present()):
            return []
        self.state = READING
        return [ReadJournal()]

    def _watch(self, event: Observed, now: float) -> list[Effect]:
        """End the epoch if a member is lost, or change its members after a checkpoint."""
        present = {member.incarnation: member for member in self.members}
        for incarnation in self._members():
            member = present.get(incarnation)
            if member is None:
                return self._next_epoch(Cause(Code.MEMBERS, f"service {incarnation} is gone"))
            if member.failed is not None and member.failed_epoch == self.epoch:
                cause = member.failed.before(f"{member.role} {incarnation} gave up: ")
                return self._failed(cause, now, halts=member.halts, lost=member.lost)
        if any(present[incarnation].leaving for incarnation in self._members()):
            self._rescale = _LEAVING  # after a checkpoint, so that no work is repeated
        elif self.ended is not None or not self._has_newcomers():  # a pipeline that has ended needs no more of them
            self._since = now
        elif now - self._since > SETTLE_SECONDS:
            self._rescale = _NEWCOMERS
        if self.in_flight is not None and now - max(self.started_at, self._doubted_at) > DOUBT_SECONDS:
            # Members may have followed a newer epoch, of a leader that is gone: then our checkpoint never completes.
            self._doubted_at = now
            return [ReadJournal()]
        return []

    def _has_newcomers(self) -> bool:
        """Whether services are present that this epoch lacks."""
        return not self._present() <= self._members().keys()

    def _members(self) -> dict[str, None]:
        """The incarnations of this epoch's members, role by role."""
        return dict.fromkeys(incarnation for role in self._roles for incarnation in self.services[role.name])

    def _present(self) -> frozenset[str]:
        return frozenset(incarnation for role in self._roles for incarnation in self._staying(role.name))

    def _staying(self, role: str) -> tuple[str, ...]:
        return tuple(sorted(m.incarnation for m in self.members if m.role == role and not m.leaving))

    def _expect(self) -> None:
        """The configured count, lowered when a service leaves deliberately, until a replacement joins."""
        for role in self._expected:
            staying, leave = len(self._staying(role)), any(m.leaving and m.role == role for m in self.members)
            bound = min if leave else max
            self._expected[role] = bound(self._expected[role], min(staying, self.settings.services[role]))

    # --- epochs ---

    def _next_epoch(self, cause: Cause) -> list[Effect]:
        effects = self._end_epoch()
        self.halts = 0
        self.state, self.cause = READING, cause
        return [*effects, ReadJournal()]

    def _failed(self, cause: Cause, now: float, *, halts: bool, lost: Loss) -> list[Effect]:
        steady = self.state == LEADING and now - self._led_since > STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        self.halts = self.halts + 1 if halts else 0
        effects = self._end_epoch()
        self.cause, self.lost = cause, lost
        if self.halts >= MAX_HALTS:
            if lost != Loss.POSITION or self.anew or not self.settings.reads_again:
                self.state = HALTED
                return [*effects, self._dismiss()]
            self._lost_again, self.halts = True, 0
        if pause := pause_seconds(self.failures, self.run):
            self.state, self.retry_at, self._known = RESTING, now + pause, self._present()
            return [*effects, self._dismiss()]
        self.state = READING
        return [*effects, ReadJournal()]

    def _end_epoch(self) -> list[Effect]:
        """End the epoch and the checkpoint in flight; if that was to be a savepoint, its request is due again."""
        effects: list[Effect] = [CloseEpoch(epoch=self.epoch)] if self.state in (OPENING, LEADING) else []
        if self.in_flight is not None and self.in_flight[1] is not None:
            self.requests.insert(0, self.in_flight[1])
        self.requests = [request for request in self.requests if request != THE_STOP]  # requested anew
        self.ended, self._last_asked = None, False
        self.process, self.enumerator, self.in_flight, self._rescale, self._wanted = None, None, None, None, None
        self._inside = None
        self.agenda.epoch_over()
        return effects

    def _dismiss(self) -> Dismiss:
        """End the members of every epoch in the journal: they would read and stage on, with no checkpoint. A leader
        that finds a stopped pipeline orders it too, since its predecessor may have died before it was done."""
        return Dismiss(before=self.tail + 1)

    def _journal_read(self, event: JournalRead, now: float) -> list[Effect]:
        self.agenda.read(event)
        if self._ordered is not None and event.tail >= self._ordered[0]:
            self._ordered = None
        self.requests = [request for request in self.requests if self.agenda.awaits(request)]
        self.tail, self.base, self.answered = event.tail, self.agenda.base(event.base), event.answered
        left = self.base != event.base  # a restore leaves the checkpoints after its base behind
        as_it_was = not left and event.entered is None and self.agenda.commanded is None
        self._ended_before = as_it_was and self.answered == THE_STOP
        self.floor = max(event.floor, event.highest) if left else event.floor
        self.settings = self.agenda.settings or event.settings or self.settings
        self.definition = self.agenda.definition
        self.anew = self.agenda.anew("lost" if self._lost_again else event.anew)
        if not self.agenda.leads:
            return self.stand_still(Cause(Code.ASKED, f"the pipeline is {self.agenda.orders.mode}")) + self._delete()
        self.state, self._since = GATHERING, now
        return self._gather(event, now)

    def _journal_looked_at(self, event: JournalRead, now: float) -> list[Effect]:
        if event.tail > self.tail and self._wanted is None:
            return self._next_epoch(_anothers(event.tail))
        return []

    def _epoch_failed(self, event: EpochFailed, now: float) -> list[Effect]:
        if event.epoch != self.epoch:
            return []
        return self._failed(event.cause, now, halts=event.halts, lost=event.lost)

    def _gather(self, event: Event, now: float) -> list[Effect]:
        found = {role.name: self._staying(role.name) for role in self._roles}
        full = all(len(staying) >= self._expected[role] for role, staying in found.items())
        if not all(found.values()) or (not full and now - self._since < GATHER_SECONDS):
            return []
        self.services, self.state = found, PROPOSING
        return [self._propose(now)]

    def _propose(self, now: float) -> WriteEntry:
        entry = EpochEntry(
            slot=self.tail + 1,
            nonce=self._nonce(),
            leader=self.incarnation,
            base=self.base,
            members=Members(enumerator=self.incarnation, by_role=self.services),
            cause=self.cause if self.tail else _FIRST,
            written_at=now,
            definition=self.definition,
            anew=self.anew,
            command=self.agenda.commanded,
            floor=self.floor,
        )
        return WriteEntry(entry=entry)

    def _nonce(self) -> str:
        self._nonces += 1
        self._wanted = f"{self.incarnation}:{self.run}:{self._nonces}"
        return self._wanted

    def _entry_written(self, event: EntryWritten, now: float) -> list[Effect]:
        # A slow write of a checkpoint may land when its epoch is over and the slot is proposed for the next one.
        return self._written(event.slot, now) if event.nonce == self._wanted else []

    def _entry_refused(self, event: EntryRefused, now: float) -> list[Effect]:
        if event.nonce == self._wanted:  # it is written, and the answer was lost
            return self._written(event.slot, now)
        if event.slot == self.tail + 1 and event.nonce.startswith(f"{self.incarnation}:{self.run}:"):
            sentence = f"slot {event.slot} of the journal holds an earlier entry of ours, written late"
            return self._next_epoch(Cause(Code.STARTED, sentence))
        if event.slot == self.tail + 1:
            # It counts as a failure, so that a journal which refuses every entry is not asked without a pause.
            cause = _anothers(event.slot) if event.nonce else _refused(event.slot)
            return self._failed(cause, now, halts=False, lost=Loss.NOTHING)
        return []

    def _written(self, slot: int, now: float) -> list[Effect]:
        """Our entry is in the journal: the proposed epoch, or the checkpoint in flight."""
        if slot != self.tail + 1:
            raise ProtocolError(f"our entry was written to slot {slot}, and was meant for slot {self.tail + 1}")
        self._ordered = None  # a checkpoint's that was meant for this slot is refused from now on
        if self.state == PROPOSING:
            self.tail, self.epoch, self.state, self._since, self._wanted = slot, slot, OPENING, now, None
            self._lost_again = False
            self.agenda.epoch_written()
            return [OpenEpoch(epoch=slot, base=self.base, plan=self._plan(), definition=self.definition)]
        if self.in_flight is None or self.in_flight[0] != slot:
            raise ProtocolError(f"slot {slot} was written, and checkpoint {self.in_flight} is in flight")
        if self.in_flight[1] == THE_STOP:
            self.ended = slot
        request, self.answered = self.in_flight[1], self.in_flight[1]
        self.tail, self.base, self.in_flight, self._wanted, self.anew = slot, slot, None, None, None
        # Sooner it would prove nothing: checkpoints complete also while the stream can't go on.
        if now - self._led_since > MENDED_SECONDS:
            self.halts = 0
        self.kept_commands = self._saving_commands
        self.completed_at = now
        assert self.enumerator is not None
        self.agenda.checkpoint_written(slot, request, self.kept_commands, self.enumerator.refused)
        if self.agenda.changing:
            return []
        if self._rescale:
            return self._next_epoch(self._rescale)
        return self._checkpoint(now)

    def _plan(self) -> Plan:
        return Plan(
            topology=Topology.of(self.services, self._roles),
            chunk_rows=self.settings.chunk_rows,
            exact=self.settings.exact,
            quarantine_changed=self.settings.quarantine_changed,
            snapshot_only=self.settings.snapshot_only,
            limits=self.agenda.limits or self.settings.limits,
        )

    def _epoch_opened(self, event: EpochOpened, now: float) -> list[Effect]:
        if event.epoch != self.epoch:
            return []
        self.enumerator = event.enumerator or Enumerator(self._plan())
        self.enumerator.leave_behind(self.floor)
        if self.anew:
            self.enumerator.begin_anew(self.anew)
        elif self._ended_before and self.enumerator.ended:
            self.ended, self._last_asked = self.base, True
        self.kept_commands = self.enumerator.commands_done
        self.enumerator.limits = self.limits  # a restored part has those of its time
        topology = self.enumerator.plan.topology
        inbound, outbound = topology.cut_inbound(ENUMERATOR), topology.cut_outbound(ENUMERATOR)
        self.process = Process(self.enumerator, inbound=inbound, outbound=outbound, initiator=True, after=self.epoch)
        self.state, self.started_at, self._led_since = LEADING, now, now
        return self.process.handle(Began(), now)

    def _to_the_enumerator(self, event: Event, now: float) -> list[Effect]:
        assert self.process is not None
        assert self.enumerator is not None
        if isinstance(event, MessageReceived) and event.channel in self.enumerator.plan.topology.unmarked:
            effects = self.enumerator.handle(event, now)  # they send only `PartSaved`, outside the cut
        else:
            effects = self.process.handle(event, now)
        return [self._entry(effect, now) if isinstance(effect, WriteCheckpoint) else effect for effect in effects]

    def _tick(self, event: Ticked, now: float) -> list[Effect]:
        return self._to_the_enumerator(event, now) + self._checkpoint(now)

    # --- checkpoints ---

    def _checkpoint(self, now: float) -> list[Effect]:
        """Start the next checkpoint if none is in flight and it is due or requested."""
        if self.state != LEADING or self.in_flight is not None or self.process is None or self.enumerator is None:
            return []
        if self._rescale and self.ended is not None:
            return self._next_epoch(self._rescale)  # the pipeline's last checkpoint has all of the work
        ended = self.enumerator.ended
        if ended and not self._last_asked:
            self._last_asked = True
            self.requests.append(THE_STOP)
        interval = self.settings.interval_seconds
        if self._inside is not None and not self.enumerator.moved:
            # The next cut would be this one again. None of them is published, so retention would never remove them.
            interval = max(interval, self.started_at - self._inside[1])
        if self.enumerator.news:
            interval = min(interval, SOON_SECONDS)
        if self.enumerator.commands_done != self.kept_commands or self.enumerator.wanted:
            interval = 0.0  # make commands durable at once; readers that may send no more wait for it
        due = not self._ending and not ended and now - self.started_at >= interval
        # After a cut inside a transaction a savepoint would meet the same one, if it came at once.
        asked = bool(self.requests) and now >= self._keep_at
        if not (due or asked or self._rescale):
            return []
        request = self.requests.pop(0) if asked else None
        slot = self.tail + 1
        self.in_flight, self.started_at = (slot, request), now
        self._saving_commands = self.enumerator.commands_done
        self.enumerator.begin(slot, now)
        return self.process.start(slot, self.agenda.keeps(request), now)

    def _entry(self, order: WriteCheckpoint, now: float) -> WriteEntry:
        if self.in_flight is None or self.in_flight[0] != order.slot:
            raise ProtocolError(f"checkpoint {order.slot} is complete but was never started")
        request, at = self.in_flight[1], order.entry.position
        if not order.entry.inside:
            self._inside = None
        elif self._inside is None or self._inside[0] != at:
            self._inside = at, now
        if self._inside is not None and self.agenda.keeps(request) and request is not None:
            # It will not be published: keep the next one instead, while the source goes on.
            given_up = now - self._inside[1] >= SILENT_SECONDS and self.agenda.give_up(request, at)
            if not given_up or not self.agenda.awaits(request):
                self.in_flight, self._keep_at = (order.slot, None), now + SOON_SECONDS
                if not given_up:
                    self.requests.insert(0, request)
                request = None
        entry = dataclasses.replace(
            order.entry,
            epoch=self.epoch,
            nonce=self._nonce(),
            kept=self.agenda.keeps(request),
            request=None if request is None else request.text,
            name=self.agenda.name_of(request),
            written_at=now,
        )
        self._ordered = order.slot, request, self._saving_commands
        return WriteEntry(entry=entry)

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself; that of the epoch's process is checked too."""
        state, tail = self.state, self.tail
        leads, in_flight = state == LEADING, self.in_flight
        if (self.process is not None, self.enumerator is not None) != (leads, leads):
            raise ProtocolError(f"a leader that is {state} has a process: {self.process is not None}")
        if in_flight is not None and (not leads or in_flight[0] != tail + 1):
            raise ProtocolError(f"checkpoint {in_flight[0]} is in flight, while {state} with slot {tail} as the last")
        if self._wanted is not None and state != PROPOSING and in_flight is None:
            raise ProtocolError(f"entry {self._wanted} is awaited, while {state} with nothing to be written")
        if state == PROPOSING and self._wanted is None:
            raise ProtocolError("an epoch is proposed and its entry is not awaited")
        if state in (PROPOSING, OPENING, LEADING) and not all(self.services.get(role.name) for role in self._roles):
            raise ProtocolError(f"{state} an epoch without a member of each role")
        if state in (OPENING, LEADING) and not self.epoch <= tail:
            raise ProtocolError(f"{state} epoch {self.epoch}, and slot {tail} is the last")
        if self.base is not None and self.base > tail:
            raise ProtocolError(f"checkpoint {self.base} is the base, and slot {tail} is the last")
        if state == HALTED and self.halts < MAX_HALTS:
            raise ProtocolError(f"halted after {self.halts} failures that no retry can mend")
        if self.process is not None and self.enumerator is not None:
            collecting = self.enumerator.collecting
            open_slot = collecting.checkpoint if collecting is not None else None
            if open_slot != (in_flight[0] if in_flight is not None and self._wanted is None else None):
                raise ProtocolError(f"parts of checkpoint {open_slot} are collected, and {in_flight} is in flight")
            self.process.check()


_HANDLERS: Mapping[LeaderState, Mapping[type[Event], Callable[[Leader, Any, float], list[Effect]]]] = {
    state: {event: getattr(Leader, handler) for event, handler in row.items()} for state, row in TABLE.items()
}
