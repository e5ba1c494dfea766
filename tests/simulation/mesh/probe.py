"""Stands between a Process and its machine, for the checks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send, State
from cutline.common.mesh.messages import (
    Marker,
    SplitFailed,
    SplitReport,
    StreamStopped,
    TablePaused,
    TableReport,
)
from cutline.services.reader.machine import Reader
from cutline.services.writer.machine import Writer
from tests.simulation.checks.restored import state_of
from tests.simulation.checks.unsaved import rows_without_a_checkpoint_are_bounded

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Probe:
    """Stands between a Process and its machine: counts messages taken and sent, sees every local snapshot."""

    def __init__(self, world: World, name: str, machine: Any, epoch: int) -> None:
        self.world, self.name, self.machine, self.epoch = world, name, machine, epoch
        self.given: Counter[str] = Counter()
        self.taken: dict[str, list[int]] = {}
        self.last: tuple[Counter[str], dict[str, int], Any] | None = None
        self.rows_since = 0  # sent since the newest marker
        self.rows_before: dict[int, int] = {}  # sent between that checkpoint's marker and the one before it

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self.machine.handle(event, now)
        if isinstance(event, MessageReceived):
            self.taken.setdefault(event.channel, []).append(event.after)
        self.count(effects)
        return effects

    def count(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and not isinstance(effect.message, Marker):
                self.given[effect.receiver] += 1
        if isinstance(self.machine, Reader):
            rows_without_a_checkpoint_are_bounded(self, effects)

    def ready(self) -> bool:
        ready = self.machine.ready()
        self.world.count["marker waits for a transaction's end"] += not ready
        return ready

    def snapshot(self) -> State:
        state: State = self.machine.snapshot()
        taken = {channel: len(after) for channel, after in self.taken.items()}
        self.last = (self.given.copy(), taken, state_of(self.machine))
        return state

    def cut(self, checkpoint: int, state: Any, recorded: dict[str, list[Any]], kept: bool) -> list[Effect]:
        assert self.last is not None
        given, taken, live = self.last
        if isinstance(self.machine, Writer):
            taken = {c: sum(a < checkpoint for a in after) for c, after in self.taken.items()}
        else:
            taken = {c: taken.get(c, 0) + len(recorded.get(c, ())) for c in {*taken, *recorded}}
        self.world.seen.cuts.setdefault((self.epoch, checkpoint), {})[self.name] = (given, taken)
        self.world.seen.live[self.epoch, self.name, checkpoint] = live
        self.world.count["channel state recorded"] += any(recorded.values())
        for messages in recorded.values():
            for message in messages:
                if isinstance(message, SplitReport | SplitFailed | TableReport | TablePaused | StreamStopped):
                    self.world.count[f"recorded {type(message).__name__}"] += 1
        self.rows_before[checkpoint], self.rows_since = self.rows_since, 0
        effects = self.machine.cut(checkpoint, state, recorded, kept)
        self.count(effects)
        return effects

    def check(self) -> None:
        self.machine.check()
