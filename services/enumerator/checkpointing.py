"""When a leader takes checkpoints, and for whom (pure): the one in flight, requests, the interval, the stop.

One checkpoint is in flight at a time, in the journal's next slot. It starts when the interval is over, when somebody
asks for one, or when the members must change. Its entry may be refused, or land late: what may be in the journal is
remembered (`may_have`) until the journal is read again.

- A cut inside a transaction is applied and never published, so it answers no request for a savepoint: the next one is
  kept instead. While the source stays silent there, the interval grows, since each next cut would be the same one.
- At the pipeline's stop one last checkpoint is kept; after it the interval starts none.

It knows neither lease nor members nor commands: the leader (leader.py) calls it, and asks the agenda what a request
means.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutline.common.causes import Cause, Code
from cutline.common.errors import ProtocolError
from cutline.common.positions import Position
from cutline.common.store.records import CheckpointEntry
from cutline.common.waits import Party, Wait
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import THE_STOP, CommandRequest, Request

SOON_SECONDS = 1.0  # the interval while the lake lags behind a newly live table or a downtime
SILENT_SECONDS = 10.0  # checkpoints at one place inside a transaction for so long: the source is silent
DOUBT_SECONDS = 10.0  # how long a checkpoint may take before the journal is read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A checkpoint whose entry may be in the journal, or may still come to be there: the last command that it has."""

    slot: int
    request: Request | None
    commands: int


class Checkpointing:
    """The checkpoints of one leader.

    `part_of`: the `cutline run` that started this service; None: nothing ends with it.
    """

    def __init__(self, part_of: str | None) -> None:
        self._part_of = part_of
        self.requests: list[Request] = []  # checkpoints that are still to be taken
        self.answered: Request | None = None  # by the base
        self.in_flight: tuple[int, Request | None] | None = None  # slot, request
        self._ordered: Ordered | None = None
        self.started_at = 0.0  # of the newest checkpoint, or of the epoch
        self.led_since = 0.0  # when this epoch was opened
        self.completed_at = 0.0  # of the newest checkpoint
        self._doubted_at = 0.0  # when we last read the journal because a checkpoint took long
        self._saving_commands = 0  # the last command of the enumerator that is in the checkpoint in flight
        self.kept_commands = 0  # in the base
        self._inside: tuple[Position | None, float] | None = None  # the place of cuts inside a transaction, since when
        self._keep_at = 0.0  # when to try again to take a savepoint
        self.ending = False  # our `cutline run` ends: the interval starts no further checkpoint
        self.ended: int | None = None  # the kept checkpoint at the pipeline's stop
        self._ended_before = False  # the base is that checkpoint, and nothing of the pipeline is to change after it
        self._last_asked = False  # the checkpoint at the stop is requested

    # --- requests ---

    def request(self, request: Request) -> None:
        """Ask for a checkpoint that answers `request`."""
        if request not in self.requests and (self.in_flight is None or self.in_flight[1] != request):
            self.requests.append(request)

    def withdraw(self, request: Request) -> None:
        """Ask no more for that checkpoint; if it is in flight, its entry answers nothing."""
        self.requests = [other for other in self.requests if other != request]
        if self.in_flight is not None and self.in_flight[1] == request:
            self.in_flight = self.in_flight[0], None

    def ends(self, run: object) -> None:
        """That `cutline run` ends: if this service is a part of it, the interval starts no checkpoint after the
        savepoint. A leader of another mesh on the same store goes on."""
        self.ending = self.ending or (run is not None and run == self._part_of)

    def may_have(self, n: int, *, in_part: bool, leads: bool) -> bool:
        """Whether a checkpoint that the journal has, or may have since its entry was ordered, answers the request of
        command `n`, or if `in_part` has the command itself, which is one of the enumerator. `leads`: an epoch is
        open."""
        ordered = self._ordered
        if in_part:
            return n <= max(0 if ordered is None else ordered.commands, self.kept_commands if leads else 0)
        return CommandRequest(n=n) in (None if ordered is None else ordered.request, self.answered)

    # --- epochs ---

    def journal_read(self, tail: int, answered: Request | None, *, as_it_was: bool) -> None:
        """The journal ends at slot `tail`. `as_it_was`: the next epoch goes on from the newest checkpoint, and no
        command changes anything."""
        if self._ordered is not None and tail >= self._ordered.slot:
            self._ordered = None
        self.answered = answered
        self._ended_before = as_it_was and answered == THE_STOP

    def epoch_opened(self, base: int | None, enumerator: Enumerator, *, anew: bool, now: float) -> None:
        """An epoch is open, from this base."""
        if not anew and self._ended_before and enumerator.ended:
            self.ended, self._last_asked = base, True
        self.kept_commands = enumerator.commands_done
        self.started_at = self.led_since = now

    def epoch_over(self) -> None:
        """The checkpoint in flight ends with its epoch; if it was to answer a request, that is due again."""
        if self.in_flight is not None and self.in_flight[1] is not None:
            self.requests.insert(0, self.in_flight[1])
        self.requests = [request for request in self.requests if request != THE_STOP]  # requested anew
        self.ended, self._last_asked, self.in_flight, self._inside = None, False, None, None

    # --- one checkpoint ---

    def due(self, enumerator: Enumerator, interval_seconds: float, now: float, *, anyway: bool) -> bool:
        """Whether the next checkpoint starts now. `anyway`: the members must change after it."""
        ended = enumerator.ended
        if ended and not self._last_asked:
            self._last_asked = True
            self.requests.append(THE_STOP)
        interval = interval_seconds
        if self._inside is not None and not enumerator.moved:
            # The next cut would be this one again. None of them is published, so retention would never remove them.
            interval = max(interval, self.started_at - self._inside[1])
        if enumerator.news:
            interval = min(interval, SOON_SECONDS)
        if enumerator.commands_done != self.kept_commands or enumerator.wanted:
            interval = 0.0  # make commands durable at once; readers that may send no more wait for it
        due = not self.ending and not ended and now - self.started_at >= interval
        return due or self._asked(now) or anyway

    def _asked(self, now: float) -> bool:
        # After a cut inside a transaction a savepoint would meet the same one, if it came at once.
        return bool(self.requests) and now >= self._keep_at

    def start(self, slot: int, enumerator: Enumerator, now: float) -> Request | None:
        """Start the checkpoint of this slot, which is due; return the request that it answers."""
        request = self.requests.pop(0) if self._asked(now) else None
        self.in_flight, self.started_at = (slot, request), now
        self._saving_commands = enumerator.commands_done
        enumerator.begin(slot, now)
        return request

    def complete(self, slot: int, entry: CheckpointEntry, now: float) -> tuple[Request | None, bool]:
        """Every part of a checkpoint is in the store: return its request, and whether the cut is inside a
        transaction."""
        if self.in_flight is None or self.in_flight[0] != slot:
            raise ProtocolError(f"checkpoint {slot} is complete but was never started")
        if not entry.inside:
            self._inside = None
        elif self._inside is None or self._inside[0] != entry.position:
            self._inside = entry.position, now
        return self.in_flight[1], self._inside is not None

    def silent(self, now: float) -> bool:
        """Whether the source has fallen silent inside a transaction."""
        return self._inside is not None and now - self._inside[1] >= SILENT_SECONDS

    def postpone(self, now: float, *, again: bool) -> None:
        """The checkpoint in flight can't answer its request, a later one may if `again`."""
        assert self.in_flight is not None
        slot, request = self.in_flight
        self.in_flight, self._keep_at = (slot, None), now + SOON_SECONDS
        if again and request is not None:
            self.requests.insert(0, request)

    def ordered(self, slot: int, request: Request | None) -> None:
        """Its entry is ordered, and answers `request`."""
        self._ordered = Ordered(slot=slot, request=request, commands=self._saving_commands)

    def slot_taken(self) -> None:
        """Our entry is in the next slot: one that was meant for it before is refused from now on."""
        self._ordered = None

    def written(self, slot: int, now: float) -> Request | None:
        """The entry of the checkpoint in flight is in the journal; return the request that it answers."""
        if self.in_flight is None or self.in_flight[0] != slot:
            raise ProtocolError(f"slot {slot} was written, and checkpoint {self.in_flight} is in flight")
        if self.in_flight[1] == THE_STOP:
            self.ended = slot
        self.answered, self.in_flight = self.in_flight[1], None
        self.kept_commands = self._saving_commands
        self.completed_at = now
        return self.answered

    def doubts(self, now: float) -> bool:
        """Whether the journal is to be read since the checkpoint in flight takes long. Members may have followed a
        newer epoch, of a leader that is gone: then it never completes."""
        if self.in_flight is None or now - max(self.started_at, self._doubted_at) <= DOUBT_SECONDS:
            return False
        self._doubted_at = now
        return True

    def waiting_for(self, enumerator: Enumerator | None, now: float) -> Wait | None:
        """What holds checkpoints up, for the status."""
        if self.in_flight is not None and now - self.started_at > DOUBT_SECONDS:
            awaited = "the store, which has not taken its entry"
            if enumerator is not None and (collecting := enumerator.collecting) is not None:
                awaited = f"the part of {', '.join(collecting.missing(enumerator.plan.topology))}"
            what = f"checkpoint {self.in_flight[0]}, begun {now - self.started_at:.0f} s ago"
            return Wait(Party.CHECKPOINT, what, Cause(Code.LATE, f"it lacks {awaited}"), self.started_at)
        if self._inside is not None and now - self._inside[1] > SILENT_SECONDS:
            at, since = self._inside
            place = "" if at is None else f" at {at.file}:{at.offset}"
            silent = Cause(Code.UNAVAILABLE, f"the source has sent nothing for {now - since:.0f} s")
            return Wait(Party.BUSY_SOURCE, f"the rest of the transaction{place}", silent, since)
        return None
