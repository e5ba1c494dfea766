"""Leading a pipeline: who leads, in which epoch, and when checkpoints start. Wraps the enumerator's Chandy-Lamport
process.

    idle -(lease)-> reading -(journal)-> gathering -(members)-> proposing -(entry written)-> opening -(streams)->
    leading
      ^                ^------------------------------------------------(member or channel lost, slot refused)-------'
      |                '-(pause over)- resting: from the second failure in a row on, a pause that grows
      '--- lease lost, from any state               halted: epochs in a row ended by a fault that no retry can fix
                                                    stopped: a person paused, stopped or deleted the pipeline

`TABLE` (states.py) has the handler of each event in each state; an event without one is refused.

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
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from cutline.common.causes import Cause, Code
from cutline.common.errors import Loss, ProtocolError
from cutline.common.limits import Limits
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, Ticked
from cutline.common.mesh.topology import ENUMERATOR, ROLES, Role, Topology
from cutline.common.store.records import Anew, EpochEntry, Members
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.agenda import Agenda
from cutline.services.enumerator.checkpointing import Checkpointing
from cutline.services.enumerator.events import (
    BaseFound,
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
    Observed,
    OpenEpoch,
    OutcomeRefused,
    OutcomeWritten,
    Plan,
    ReadJournal,
    Settings,
    WriteCheckpoint,
    WriteEntry,
)
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.roster import Roster
from cutline.services.enumerator.states import (
    GATHERING,
    HALTED,
    IDLE,
    LEADING,
    OPENING,
    PROPOSING,
    READING,
    RESTING,
    STOPPED,
    TABLE,
    EpochOpened,
    LeaderState,
    Moments,
)

GATHER_SECONDS = 10.0  # the longest wait for the configured number of members
SETTLE_SECONDS = 3.0  # how long newcomers must be present before the members change
MAX_HALTS = 2  # epochs in a row that failed for good, before the leader halts
MENDED_SECONDS = 120.0  # a checkpoint this long after an epoch began resets `halts`: a loss would have been noticed
STEADY_SECONDS = 60.0  # a failure after a longer epoch is the first in a row
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


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
    leader can't be taken for ours. `part_of`: see `Checkpointing`.
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
        self.roster = Roster(roles, settings.services)
        self.checkpoints = Checkpointing(part_of)
        self.process: Process | None = None
        self.enumerator: Enumerator | None = None
        self._wanted: str | None = None  # nonce of the entry that is being written
        self.moments = Moments()
        self._rescale: Cause | None = None  # why the members must change, after a checkpoint
        self._nonces = 0
        self.halts = 0  # epochs in a row that ended by a fault that no retry can fix
        self.failures = 0  # epochs in a row that failed
        self.retry_at = 0.0  # when the pause ends

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact, by the rule of `TABLE`; a lost lease ends everything from every state."""
        handler = _HANDLERS[self.state].get(type(event))
        if handler is None:
            raise ProtocolError(f"a leader that is {self.state} has no rule for {type(event).__name__}")
        if isinstance(event, Observed):
            self.roster.see(event.members, self.settings.services)
            if not event.held:
                effects = self._end_epoch()
                self.agenda.forget()
                self._drop_requests()
                self.state, self.cause, self._lost_again = IDLE, _LEASE_LOST, False
                return effects
        effects = handler(self, event, now)
        effects += self.agenda.go_on(self, now)
        unled = self.moments.unled
        self.moments.unled = None if self.leads else now if unled is None else unled
        return effects

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
                return Wait(Party.TIME, what, self.cause, self.moments.failing)
            case LeaderState.READING | LeaderState.GATHERING | LeaderState.PROPOSING | LeaderState.OPENING:
                since = self.moments.unled if self.moments.failing is None else self.moments.failing
                return Wait(Party.EPOCH, self._epoch_awaits(), self.cause, since)
            case LeaderState.STOPPED:
                cause, since = Cause(Code.ASKED, f"the pipeline is {self.agenda.standing.mode}"), self.moments.unled
                return Wait(Party.PERSON, "a person", cause, self.agenda.standing.mode_since or since)
            case LeaderState.LEADING:
                return self.checkpoints.waiting_for(self.enumerator, now)
        return None

    def _epoch_awaits(self) -> str:
        """What the next epoch waits for."""
        match self.state:
            case LeaderState.READING:
                return "the store, to give the journal"
            case LeaderState.GATHERING:
                roles = " and ".join(f"a {role}" for role in self.roster.missing)
                return f"{roles} to start" if roles else "more readers and writers to start"
            case LeaderState.PROPOSING:
                return "the store, to take the entry of the next epoch"
        return f"the readers and writers, to begin epoch {self.epoch}"

    @property
    def halted_since(self) -> float | None:
        """When the epochs began to fail, of a leader that is halted."""
        return self.moments.failing if self.halted else None

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

    def begin_anew(self, cause: Cause) -> list[Effect]:
        """End the epoch, if one is open, and begin the next one: a failure of it is the first in a row."""
        self.moments.failing = None
        return self._next_epoch(cause)

    def stand_still(self, cause: Cause) -> list[Effect]:
        """End the epoch, if one is open, and begin none."""
        effects = self._end_epoch()
        self.state, self.cause, self.halts, self.failures, self.moments.failing = STOPPED, cause, 0, 0, None
        return [*effects, self._dismiss()]

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Pass a command on to the enumerator."""
        return self._to_the_enumerator(event, now)

    # --- lease and members ---

    def _lease_taken(self, event: Observed, now: float) -> list[Effect]:
        self.state, self.moments = READING, Moments()
        return [ReadJournal()]

    def _rest(self, event: Observed, now: float) -> list[Effect]:
        if now < self.retry_at and not self.roster.has_joined:
            return []
        self.state = READING
        return [ReadJournal()]

    def _watch(self, event: Observed, now: float) -> list[Effect]:
        """End the epoch if a member is lost, or change its members after a checkpoint."""
        roster = self.roster
        present = {member.incarnation: member for member in roster.seen}
        for incarnation in roster.members:
            member = present.get(incarnation)
            if member is None:
                return self._next_epoch(Cause(Code.MEMBERS, f"service {incarnation} is gone"))
            if member.failed is not None and member.failed_epoch == self.epoch:
                cause = member.failed.before(f"{member.role} {incarnation} gave up: ")
                return self._failed(cause, now, halts=member.halts, lost=member.lost)
        if any(present[incarnation].leaving for incarnation in roster.members):
            self._rescale = _LEAVING  # after a checkpoint, so that no work is repeated
        elif self.checkpoints.ended is not None or not roster.has_newcomers:  # one that has ended needs no more
            self.moments.watched = now
        elif now - self.moments.watched > SETTLE_SECONDS:
            self._rescale = _NEWCOMERS
        return [ReadJournal()] if self.checkpoints.doubts(now) else []

    # --- epochs ---

    def _next_epoch(self, cause: Cause) -> list[Effect]:
        effects = self._end_epoch()
        self.halts = 0
        self.state, self.cause = READING, cause
        return [*effects, ReadJournal()]

    def _failed(self, cause: Cause, now: float, *, halts: bool, lost: Loss) -> list[Effect]:
        steady = self.state == LEADING and now - self.checkpoints.led_since > STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        if steady or self.moments.failing is None:
            self.moments.failing = now
        self.halts = self.halts + 1 if halts else 0
        effects = self._end_epoch()
        self.cause, self.lost = cause, lost
        if self.halts >= MAX_HALTS:
            if lost != Loss.POSITION or self.anew or not self.settings.reads_again:
                self.state = HALTED
                return [*effects, self._dismiss()]
            self._lost_again, self.halts = True, 0
        if pause := pause_seconds(self.failures, self.run):
            self.state, self.retry_at = RESTING, now + pause
            self.roster.note()
            return [*effects, self._dismiss()]
        self.state = READING
        return [*effects, ReadJournal()]

    def _end_epoch(self) -> list[Effect]:
        """End the epoch and the checkpoint in flight."""
        effects: list[Effect] = [CloseEpoch(epoch=self.epoch)] if self.state in (OPENING, LEADING) else []
        self.checkpoints.epoch_over()
        self.process, self.enumerator, self._rescale, self._wanted = None, None, None, None
        self.agenda.epoch_over()
        return effects

    def _drop_requests(self) -> None:
        """Drop the requests of commands that await no checkpoint any more."""
        self.checkpoints.requests = [asked for asked in self.checkpoints.requests if self.agenda.awaits(asked)]

    def _dismiss(self) -> Dismiss:
        """End the members of every epoch in the journal: they would read and stage on, with no checkpoint. A leader
        that finds a stopped pipeline orders it too, since its predecessor may have died before it was done."""
        return Dismiss(before=self.tail + 1)

    def _journal_read(self, event: JournalRead, now: float) -> list[Effect]:
        self.agenda.read(event)
        self._drop_requests()
        self.tail, self.base = event.tail, self.agenda.base(event.base)
        left = self.base != event.base  # a restore leaves the checkpoints after its base behind
        as_it_was = not left and event.entered is None and self.agenda.commanded is None
        self.checkpoints.journal_read(event.tail, event.answered, as_it_was=as_it_was)
        self.floor = max(event.floor, event.highest) if left else event.floor
        self.settings = self.agenda.settings or event.settings or self.settings
        self.definition = self.agenda.definition
        self.anew = self.agenda.anew("lost" if self._lost_again else event.anew)
        if self.moments.failing is None and self.agenda.commanded is None:
            self.moments.failing = event.failing_since
        if not self.agenda.leads:
            return self.stand_still(Cause(Code.ASKED, f"the pipeline is {self.agenda.orders.mode}")) + self._delete()
        self.state, self.moments.watched = GATHERING, now
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
        if not self.roster.choose(patient=now - self.moments.watched < GATHER_SECONDS):
            return []
        self.state = PROPOSING
        return [self._propose(now)]

    def _propose(self, now: float) -> WriteEntry:
        entry = EpochEntry(
            slot=self.tail + 1,
            nonce=self._nonce(),
            leader=self.incarnation,
            base=self.base,
            members=Members(enumerator=self.incarnation, by_role=self.roster.chosen),
            cause=self.cause if self.tail else _FIRST,
            written_at=now,
            definition=self.definition,
            anew=self.anew,
            command=self.agenda.commanded,
            floor=self.floor,
            failing_since=self.moments.failing,
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
        self.checkpoints.slot_taken()
        if self.state == PROPOSING:
            self.tail, self.epoch, self.state, self._wanted = slot, slot, OPENING, None
            self.moments.watched, self._lost_again = now, False
            self.agenda.epoch_written()
            return [OpenEpoch(epoch=slot, base=self.base, plan=self._plan(), definition=self.definition)]
        request = self.checkpoints.written(slot, now)
        self.tail, self.base, self._wanted, self.anew = slot, slot, None, None
        # Sooner it would prove nothing: checkpoints complete also while the stream can't go on.
        if now - self.checkpoints.led_since > MENDED_SECONDS:
            self.halts = 0
        if now - self.checkpoints.led_since > STEADY_SECONDS:
            self.moments.failing = None
        assert self.enumerator is not None
        self.agenda.checkpoint_written(slot, request, self.checkpoints.kept_commands, self.enumerator.refused)
        if self.agenda.changing:
            return []
        if self._rescale:
            return self._next_epoch(self._rescale)
        return self._checkpoint(now)

    def _plan(self) -> Plan:
        return Plan(
            topology=Topology.joined_by(self.roster.chosen, self.roster.roles),
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
        self.enumerator.leave_behind(self.floor, now)
        if self.anew:
            self.enumerator.begin_anew(self.anew, now)
        self.checkpoints.epoch_opened(self.base, self.enumerator, anew=self.anew is not None, now=now)
        self.enumerator.limits = self.limits  # a restored part has those of its time
        topology = self.enumerator.plan.topology
        inbound, outbound = topology.cut_inbound(ENUMERATOR), topology.cut_outbound(ENUMERATOR)
        self.process = Process(self.enumerator, inbound=inbound, outbound=outbound, initiator=True, after=self.epoch)
        self.state = LEADING
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
        checkpoints, enumerator = self.checkpoints, self.enumerator
        if self.state != LEADING or checkpoints.in_flight is not None or self.process is None or enumerator is None:
            return []
        if self._rescale and checkpoints.ended is not None:
            return self._next_epoch(self._rescale)  # the pipeline's last checkpoint has all of the work
        if not checkpoints.due(enumerator, self.settings.interval_seconds, now, anyway=self._rescale is not None):
            return []
        slot = self.tail + 1
        request = checkpoints.start(slot, enumerator, now)
        return self.process.start(slot, self.agenda.keeps(request), now)

    def _entry(self, order: WriteCheckpoint, now: float) -> WriteEntry:
        request, inside = self.checkpoints.complete(order.slot, order.entry, now)
        if inside and self.agenda.keeps(request) and request is not None:
            # It will not be published: keep the next one instead, while the source goes on.
            given_up = self.checkpoints.silent(now) and self.agenda.give_up(request, order.entry.position)
            if not given_up or not self.agenda.awaits(request):
                self.checkpoints.postpone(now, again=not given_up)
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
        self.checkpoints.ordered(order.slot, request)
        return WriteEntry(entry=entry)

    # --- invariants ---

    def check(self) -> None:
        """Raise ProtocolError where the state contradicts itself; that of the epoch's process is checked too."""
        state, tail = self.state, self.tail
        leads, in_flight = state == LEADING, self.checkpoints.in_flight
        if (self.process is not None, self.enumerator is not None) != (leads, leads):
            raise ProtocolError(f"a leader that is {state} has a process: {self.process is not None}")
        if in_flight is not None and (not leads or in_flight[0] != tail + 1):
            raise ProtocolError(f"checkpoint {in_flight[0]} is in flight, while {state} with slot {tail} as the last")
        if self._wanted is not None and state != PROPOSING and in_flight is None:
            raise ProtocolError(f"entry {self._wanted} is awaited, while {state} with nothing to be written")
        if state == PROPOSING and self._wanted is None:
            raise ProtocolError("an epoch is proposed and its entry is not awaited")
        if state in (PROPOSING, OPENING, LEADING) and not self.roster.complete:
            raise ProtocolError(f"{state} an epoch without a member of each role")
        if state in (OPENING, LEADING) and not self.epoch <= tail:
            raise ProtocolError(f"{state} epoch {self.epoch}, and slot {tail} is the last")
        if self.base is not None and self.base > tail:
            raise ProtocolError(f"checkpoint {self.base} is the base, and slot {tail} is the last")
        if state == HALTED and (self.halts < MAX_HALTS or self.moments.failing is None):
            raise ProtocolError(f"halted after {self.halts} failures that no retry can fix")
        if self.process is not None and self.enumerator is not None:
            collecting = self.enumerator.collecting
            open_slot = collecting.checkpoint if collecting is not None else None
            if open_slot != (in_flight[0] if in_flight is not None and self._wanted is None else None):
                raise ProtocolError(f"parts of checkpoint {open_slot} are collected, and {in_flight} is in flight")
            self.process.check()


_HANDLERS: Mapping[LeaderState, Mapping[type[Event], Callable[[Leader, Any, float], list[Effect]]]] = {
    state: {event: getattr(Leader, handler) for event, handler in row.items()} for state, row in TABLE.items()
}
