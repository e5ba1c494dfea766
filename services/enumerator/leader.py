"""Leading a pipeline: who may, in which epoch, and when checkpoints start. Wraps the enumerator's Chandy-Lamport
process.

    idle -(lease)-> reading -(journal)-> gathering -(members)-> proposing -(entry written)-> opening -(streams)->
    leading
      ^                ^------------------------------------------------(member or channel lost, slot refused)-------'
      |                '-(in time)- resting: after a second failure in a row, a while that grows
      '--- lease lost, from anywhere                halted: epochs in a row ended by what trying again can't mend

The lease in Redis is liveness, the journal is safety. Every epoch and every checkpoint is one numbered slot of the
journal, written by put-if-absent, so two leaders can't both go on: who is refused a slot, by an entry that is not its
own, is deposed and mute, reads the journal again, and tries the next slot while it holds the lease. An epoch's number
is its slot, and so is a checkpoint's; the checkpoint in flight dies with its epoch, whose entry takes the slot.

An epoch that failed (a member gave up, something of it is lost) is followed by the next one at once, so that a single
fault costs little; one that fails again within STEADY_SECONDS waits, and each next one twice as long, since every epoch
is an entry of the journal and a sweep of the store. The wait ends early when a person asks for something, or a service
comes that was not there. A service that is gone is no failure: whoever starts services waits between its starts.

It relies on: lost answers of the store come back as `EntryRefused` with our own nonce (the entry is there) or are
asked again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from hashlib import sha256

from cutline.common.errors import ProtocolError
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event, MessageReceived, Ticked
from cutline.common.mesh.messages import UNLIMITED, Limits
from cutline.common.mesh.topology import ENUMERATOR, Topology
from cutline.common.store.records import Entry, EpochEntry, Members
from cutline.services.enumerator.machine import Began, Enumerator, Plan, ThrottleAsked, WriteCheckpoint

GATHER_SECONDS = 10.0
SETTLE_SECONDS = 3.0
SOON_SECONDS = 1.0
DOUBT_SECONDS = 10.0
MAX_HALTS = 2
MENDED_SECONDS = 120.0  # longer than a reader waits until a source's loss is sure (watermark.COMMIT_SECONDS)
THE_STOP = "the stop"
STEADY_SECONDS = 60.0  # an epoch that was led for longer has not failed in a row with the one before
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A service that is there: `failed` is why it gave up its part of epoch `failed_epoch`, if it did; `halts` if
    trying again can't help (corrupt, foreign, lost at the source). `leaving`: it ends once the plan does without it.
    """

    incarnation: str
    role: str
    leaving: bool = False
    failed_epoch: int = 0
    failed: str | None = None
    halts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Event):
    """What Redis says now: whether we hold the pipeline's lease, and which services are there."""

    held: bool
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRead(Event):
    """The journal's last slot (0: empty), and its newest checkpoint on the chain, if there is one."""

    tail: int
    base: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWritten(Event):
    """Our entry with this nonce is the journal's entry of this slot."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRefused(Event):
    """The slot holds an entry with this nonce."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOpened(Event):
    """The epoch's streams are made; `enumerator` is restored from its base, if it has one."""

    epoch: int
    enumerator: Enumerator | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFailed(Event):
    """Something of the epoch is lost: a channel, a part, an answer that never came."""

    epoch: int
    cause: str
    halts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointAsked(Event):
    """A person wants a kept checkpoint, whose entry carries `request`; `last`: the pipeline stops, none may follow."""

    request: str
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJournal(Effect):
    """Answered by `JournalRead`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEntry(Effect):
    """Put the entry into this slot if the slot is free: answered by EntryWritten or EntryRefused."""

    entry: Entry

    @property
    def slot(self) -> int:
        """The entry's."""
        return self.entry.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch(Effect):
    """Make the epoch's streams, announce it, restore the enumerator from `base`: answered by EpochOpened."""

    epoch: int
    base: int | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEpoch(Effect):
    """Stop carrying out anything of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What of the pipeline's definition the leader goes by. `readers` and `writers`: how many to wait for."""

    chunk_rows: int
    exact: bool
    halts: bool = False
    snapshot_only: bool
    interval_seconds: float
    readers: int = 1
    writers: int = 1
    limits: Limits = UNLIMITED


def pause_seconds(failures: int, whose: str) -> float:
    """How long to wait after so many failures in a row: not after the first, then 1 s, twice as long each time, 60 s at
    most; up to a fifth less, by who waits, so that pipelines that failed of one fault don't try again in step."""
    if failures < 2:
        return 0.0
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 2, 30))
    return longest * (1.0 - sha256(f"{whose}:{failures}".encode()).digest()[0] / 256 / 5)


class Leader:
    """The machine of one enumerator service for one pipeline, from its start to its end.

    `run` is a word that no other Leader has, also none of the same service: nonces carry it, so that an entry which an
    earlier one was slow to write can't pass for ours.
    """

    def __init__(self, *, incarnation: str, run: str, orders: Orders) -> None:
        self.incarnation = incarnation
        self.run = run
        self.orders = orders
        self.state = "idle"
        self.cause = "the pipeline's first start"
        self.tail = 0
        self.base: int | None = None
        self.epoch = 0
        self.readers: tuple[str, ...] = ()  # incarnations, in plan order
        self.writers: tuple[str, ...] = ()
        self.process: Process | None = None
        self.enumerator: Enumerator | None = None
        self.members: tuple[Member, ...] = ()
        self.requests: list[str] = []
        self._limits: Limits | None = None  # asked for since the lease is ours: no older part may undo them
        self._saving = self.kept_limits = orders.limits  # in the checkpoint in flight; in `base`, so for whoever leads
        self._answered: set[str] = set()
        self._ending = False
        self.ended: int | None = None  # the kept checkpoint at the pipeline's stop
        self._last_asked = False
        self.started_at = 0.0  # of the newest checkpoint, or of the epoch
        self._led_since = 0.0  # in this epoch
        self._doubted_at = 0.0  # when the journal was looked at because a checkpoint took long
        self.completed_at = 0.0
        self.in_flight: tuple[int, str | None] | None = None  # slot, request
        self._wanted: str | None = None  # nonce of the entry that we wait to see in the journal
        self._since = 0.0  # of gathering, or of members that the plan lacks
        self._rescale: str | None = None  # why the members shall change, after a checkpoint
        self._expected = {"reader": orders.readers, "writer": orders.writers}
        self._nonces = 0
        self.halts = 0  # epochs in a row that ended by what trying again can't mend
        self.failures = 0  # epochs in a row that failed
        self.retry_at = 0.0  # when the rest is over
        self._known: frozenset[str] = frozenset()  # services that were there when it began

    # --- the door ---

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact. Facts of an epoch that is over are ignored: they were on their way when it ended."""
        match event:
            case Observed(held=held, members=members):
                self.members = members
                self._expect()
                return self._observed(held, now)
            case JournalRead(tail=tail, base=base):
                if self.state == "leading" and tail > self.tail and self._wanted is None:
                    return self._again(f"slot {tail} of the journal holds another leader's entry")
                if self.state != "reading":
                    return []
                self.tail, self.base, self.state, self._since = tail, base, "gathering", now
                return self._gather(now)
            case EntryWritten(slot=slot, nonce=nonce):
                # A slow write of a checkpoint may land when its epoch is over and the slot is proposed for the next
                # one.
                return self._written(slot, now) if nonce == self._wanted else []
            case EntryRefused(slot=slot, nonce=nonce):
                if nonce == self._wanted:
                    return self._written(slot, now)
                if self.state in ("leading", "proposing") and slot == self.tail + 1:
                    return self._again(f"slot {slot} of the journal holds another leader's entry")
                return []
            case EpochOpened(epoch=epoch, enumerator=enumerator):
                return self._opened(epoch, enumerator, now)
            case EpochFailed(epoch=epoch, cause=cause, halts=halts):
                if self.state in ("opening", "leading") and epoch == self.epoch:
                    return self._failed(cause, now, halts=halts)
                return []
            case SavepointAsked(request=request, last=last):
                if request not in (*self.requests, *self._answered):  # whoever asks, asks again until it is answered
                    self.requests.append(request)
                    self._ending = self._ending or last
                    self.retry_at = now
                return self._checkpoint(now)
            case ThrottleAsked(limits=limits):
                self._limits, self.retry_at = limits, now
        if self.state != "leading" or self.process is None or self.enumerator is None:
            return []
        if isinstance(event, MessageReceived) and event.channel in self.enumerator.plan.writers:
            effects = self.enumerator.handle(event, now)  # carries "part saved" only, so it is no channel of the cut
        else:
            effects = self.process.handle(event, now)
        if isinstance(event, Ticked):
            effects += self._checkpoint(now)
        return [self._entry(e, now) if isinstance(e, WriteCheckpoint) else e for e in effects]

    def _observed(self, held: bool, now: float) -> list[Effect]:
        if not held:
            over = self._over()
            self.state, self.cause, self._limits = "idle", "the lease was lost", None
            return over
        if self.state == "idle":
            self.state = "reading"
            return [ReadJournal()]
        if self.state == "gathering":
            return self._gather(now)
        if self.state == "resting" and (now >= self.retry_at or not self._known.issuperset(self._there())):
            self.state = "reading"
            return [ReadJournal()]
        if self.state in ("opening", "leading"):
            return self._watch(now)
        return []

    def _watch(self, now: float) -> list[Effect]:
        there = {member.incarnation: member for member in self.members}
        for incarnation in (*self.readers, *self.writers):
            member = there.get(incarnation)
            if member is None:
                return self._again(f"service {incarnation} is gone")
            if member.failed is not None and member.failed_epoch == self.epoch:
                return self._failed(f"{member.role} {incarnation} gave up: {member.failed}", now, halts=member.halts)
        if any(there[incarnation].leaving for incarnation in (*self.readers, *self.writers)):
            self._rescale = "services of the plan leave"  # after a checkpoint, so that nothing is done twice
        elif not self._wanted_and_new():
            self._since = now
        elif now - self._since > SETTLE_SECONDS:
            self._rescale = "services have come that the plan lacks"
        if self.in_flight is not None and now - max(self.started_at, self._doubted_at) > DOUBT_SECONDS:
            # Members may have followed a newer epoch of a leader that is gone: then none of ours is ever complete.
            self._doubted_at = now
            return [ReadJournal()]
        return []

    def _wanted_and_new(self) -> bool:
        """Whether services have come that the plan lacks."""
        return not self._there() <= {*self.readers, *self.writers}

    def _there(self) -> frozenset[str]:
        return frozenset({*self._staying("reader"), *self._staying("writer")})

    def _staying(self, role: str) -> tuple[str, ...]:
        return tuple(sorted(m.incarnation for m in self.members if m.role == role and not m.leaving))

    def _expect(self) -> None:
        """How many to wait for: as ordered, but nobody for a service that leaves on purpose, until another comes."""
        for role, ordered in (("reader", self.orders.readers), ("writer", self.orders.writers)):
            there, leave = len(self._staying(role)), any(m.leaving and m.role == role for m in self.members)
            bound = min if leave else max
            self._expected[role] = bound(self._expected[role], min(there, ordered))

    # --- epochs ---

    def _again(self, cause: str) -> list[Effect]:
        over = self._over()
        self.halts = 0
        self.state, self.cause = "reading", cause
        return [*over, ReadJournal()]

    def _failed(self, cause: str, now: float, *, halts: bool) -> list[Effect]:
        steady = self.state == "leading" and now - self._led_since > STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        self.halts = self.halts + 1 if halts else 0
        over = self._over()
        self.cause = cause
        if self.halts >= MAX_HALTS:
            self.state = "halted"  # until a person starts the service again
            return over
        if pause := pause_seconds(self.failures, self.run):
            self.state, self.retry_at, self._known = "resting", now + pause, self._there()
            return over
        self.state = "reading"
        return [*over, ReadJournal()]

    def _over(self) -> list[Effect]:
        """End the present epoch, and with it the checkpoint in flight; who asked for that one still waits for one."""
        over: list[Effect] = [CloseEpoch(epoch=self.epoch)] if self.state in ("opening", "leading") else []
        if self.in_flight is not None and self.in_flight[1] is not None:
            self.requests.insert(0, self.in_flight[1])
        self.requests = [request for request in self.requests if request != THE_STOP]  # asked for anew
        self.ended, self._last_asked = None, False
        self.process, self.enumerator, self.in_flight, self._rescale, self._wanted = None, None, None, None, None
        return over

    def _gather(self, now: float) -> list[Effect]:
        readers, writers = self._staying("reader"), self._staying("writer")
        full = len(readers) >= self._expected["reader"] and len(writers) >= self._expected["writer"]
        if not readers or not writers or (not full and now - self._since < GATHER_SECONDS):
            return []
        self.readers, self.writers, self.state = readers, writers, "proposing"
        return [self._propose(now)]

    def _propose(self, now: float) -> WriteEntry:
        entry = EpochEntry(
            slot=self.tail + 1,
            nonce=self._nonce(),
            leader=self.incarnation,
            base=self.base,
            members=Members(enumerator=self.incarnation, readers=self.readers, writers=self.writers),
            cause=self.cause,
            written_at=now,
        )
        return WriteEntry(entry=entry)

    def _nonce(self) -> str:
        self._nonces += 1
        self._wanted = f"{self.incarnation}:{self.run}:{self._nonces}"
        return self._wanted

    def _written(self, slot: int, now: float) -> list[Effect]:
        if slot != self.tail + 1:
            return []
        self._wanted = None
        if self.state == "proposing":
            self.tail, self.epoch, self.state, self._since = slot, slot, "opening", now
            return [OpenEpoch(epoch=slot, base=self.base, plan=self._plan())]
        if self.state == "leading" and self.in_flight is not None and self.in_flight[0] == slot:
            if self.in_flight[1] == THE_STOP:
                self.ended = slot
            elif self.in_flight[1] is not None:
                self._answered.add(self.in_flight[1])
            self.tail, self.base, self.in_flight = slot, slot, None
            if now - self._led_since > MENDED_SECONDS:  # checkpoints complete also while the stream can't go on
                self.halts = 0
            self.kept_limits = self._saving
            self.completed_at = now
            if self._rescale:
                return self._again(self._rescale)
            return self._checkpoint(now)
        return []

    def _plan(self) -> Plan:
        topology = Topology.of(len(self.readers), len(self.writers))
        return Plan(
            readers=topology.readers,
            writers=topology.writers,
            chunk_rows=self.orders.chunk_rows,
            exact=self.orders.exact,
            halts=self.orders.halts,
            snapshot_only=self.orders.snapshot_only,
            limits=self.orders.limits,
        )

    def _opened(self, epoch: int, enumerator: Enumerator | None, now: float) -> list[Effect]:
        if self.state != "opening" or epoch != self.epoch:
            return []
        self.enumerator = enumerator or Enumerator(self._plan())
        self.kept_limits = self.enumerator.limits
        self.enumerator.limits = self._limits or self.kept_limits
        topology = self.enumerator.plan.topology
        inbound, outbound = topology.cut_inbound(ENUMERATOR), topology.cut_outbound(ENUMERATOR)
        self.process = Process(self.enumerator, inbound=inbound, outbound=outbound, initiator=True, after=epoch)
        self.state, self.started_at, self._led_since = "leading", now, now
        return self.process.handle(Began(), now)

    # --- checkpoints ---

    def _checkpoint(self, now: float) -> list[Effect]:
        """Start the next checkpoint if none is in flight and it is time, or somebody waits for one."""
        if self.state != "leading" or self.in_flight is not None or self.process is None or self.enumerator is None:
            return []
        ended = self.enumerator.ended
        if ended and not self._last_asked:
            self._last_asked = True
            self.requests.append(THE_STOP)
        interval = self.orders.interval_seconds
        if self.enumerator.turned_live:  # somebody waits to see the table
            interval = min(interval, SOON_SECONDS)
        if self.enumerator.limits != self.kept_limits:  # somebody waits until they outlive us
            interval = 0.0
        due = not self._ending and not ended and now - self.started_at >= interval
        if not (due or self.requests or self._rescale):
            return []
        request = self.requests.pop(0) if self.requests else None
        slot = self.tail + 1
        self.in_flight, self.started_at, self._saving = (slot, request), now, self.enumerator.limits
        self.enumerator.begin(slot, now)
        return self.process.start(slot, request is not None, now)

    def _entry(self, order: WriteCheckpoint, now: float) -> WriteEntry:
        if self.in_flight is None or self.in_flight[0] != order.slot:
            raise ProtocolError(f"checkpoint {order.slot} is complete but was never started")
        request = self.in_flight[1]
        if order.entry.inside and request is not None:  # an inside one is never published: keep the next instead
            self.requests.insert(0, request)
            self.in_flight, request = (order.slot, None), None
        entry = dataclasses.replace(
            order.entry,
            epoch=self.epoch,
            nonce=self._nonce(),
            kept=request is not None,
            request=request,
            written_at=now,
        )
        return WriteEntry(entry=entry)
