"""A generation begins at one place of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.store.records import CheckpointEntry, EpochEntry
from cutline.services.enumerator.machine import Enumerator
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def generations_begin_once(world: World, entry: CheckpointEntry, enumerator: Enumerator) -> None:
    """A generation of which a checkpoint has rows began at one place of the journal: none that a restore left behind
    has its number."""
    journal = world.store.journal
    begun = world.seen.begun[entry.slot] = {(t.table_id, t.generation) for t in enumerator.tables.values() if t.high}
    earlier = [n for n in chain(journal) if n < entry.slot]
    for began in begun.difference(*(world.seen.begun[n] for n in earlier)):
        if (slot := world.seen.generations.setdefault(began, entry.slot)) != entry.slot:
            raise Failure(f"generation {began} begins in checkpoint {entry.slot}, and began in {slot}, which was left")
    begins = journal[entry.epoch]
    assert isinstance(begins, EpochEntry)
    world.count["table begins after a restore left checkpoints behind"] += bool(begins.floor and begun)
