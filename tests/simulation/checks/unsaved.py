"""Rows without a checkpoint are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.mesh.machine import Effect, Send
from cutline.common.mesh.messages import (
    Records,
)
from cutline.common.store.records import CheckpointEntry
from cutline.services.reader.events import ReadChanges, ReadChunk
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.probe import Probe


def rows_without_a_checkpoint_are_bounded(probe: Probe, effects: list[Effect]) -> None:
    """A reader that has sent as many rows as it may without a complete checkpoint begins nothing that gives more."""
    world, most = probe.world, probe.world.shape.unsaved_rows
    if most is None:
        return
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, Records):
            probe.rows_since += effect.message.rows
        elif isinstance(effect, ReadChunk) or (isinstance(effect, ReadChanges) and not effect.after.inside):
            journal = world.store.journal
            complete = {n for n, e in journal.items() if isinstance(e, CheckpointEntry) and e.epoch == probe.epoch}
            unsaved = probe.rows_since + sum(n for slot, n in probe.rows_before.items() if slot not in complete)
            if unsaved >= most:
                raise Failure(f"{probe.name} reads on with {unsaved} rows that no checkpoint has; {most} are its bound")
    world.count["reader waits for a checkpoint"] += probe.machine.unsaved.full
