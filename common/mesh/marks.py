"""When each of the last checkpoints reached a member: its first marker arrived, its part was saved."""

from __future__ import annotations

from cutline.common.clock import Clock
from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send
from cutline.common.mesh.messages import Marker, PartSaved
from cutline.common.status.pipeline_status import Mark

KEPT = 50


class Marks:
    """The marks of one member in one epoch, of the last `KEPT` checkpoints; the member's driver calls it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[int, Mark] = {}

    def received(self, event: Event) -> None:
        """Note the arrival of a checkpoint's first marker; any other fact is ignored."""
        if isinstance(event, MessageReceived) and isinstance(event.message, Marker):
            self.arrived(event.message.checkpoint)

    def sent(self, effect: Effect) -> None:
        """Note that the member reports its whole part, which is then in the store; any other effect is ignored."""
        if isinstance(effect, Send) and isinstance(effect.message, PartSaved) and not effect.message.more:
            self.saved(effect.message.checkpoint)

    def arrived(self, checkpoint: int) -> None:
        """Note that the member takes part in this checkpoint from now on, unless it does already."""
        if checkpoint not in self._marks:
            self._marks[checkpoint] = Mark(checkpoint, self._now(), None)
            while len(self._marks) > KEPT:
                del self._marks[next(iter(self._marks))]

    def saved(self, checkpoint: int) -> None:
        """Note that the member's part of this checkpoint is in the store."""
        if (mark := self._marks.get(checkpoint)) is not None:
            self._marks[checkpoint] = mark._replace(saved_at=self._now())

    def shown(self) -> tuple[Mark, ...]:
        """The marks for the status, oldest first."""
        return tuple(self._marks.values())

    def _now(self) -> float:
        return round(self._clock.time(), 3)
