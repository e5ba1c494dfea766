"""A checkpoint's entry can be restored, and goes on from the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.causes import Code
from cutline.common.store.records import CheckpointEntry, EpochEntry
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.parts import tables_are_those_of_the_parts

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def entry_is_sound(world: World, entry: CheckpointEntry) -> None:
    """A checkpoint names one attempt's file for a split once on its chain, agrees with its parts about each table, can
    be restored (its parts and the schemas that they name are there, as what it names itself), and its position is not
    before that of the checkpoint before it on the chain."""
    journal = world.store.journal
    slots = [n for n in chain(journal) if n <= entry.slot]
    if entry.slot not in slots:
        return
    seen: set[str] = set()
    for slot in slots:
        found = journal[slot]
        assert isinstance(found, CheckpointEntry)
        for file in found.staged:
            if file.split is not None:
                split = file.split.rpartition("#")[0]
                if split in seen:
                    raise Failure(f"two files of split {split} are on the chain of checkpoint {entry.slot}")
                seen.add(split)
    world.store.open().schemas(entry.schemas)
    tables_are_those_of_the_parts(world, entry)
    before = [n for n in slots if n < entry.slot][-1:]
    earlier_entry = journal[before[0]] if before else None
    assert earlier_entry is None or isinstance(earlier_entry, CheckpointEntry)
    world.operators.paused_tables_rest(entry, earlier_entry)
    if before:
        last = journal[before[0]]
        assert isinstance(last, CheckpointEntry)
        mine, earlier = entry.position, last.position
        begins = journal[entry.epoch]
        anew = isinstance(begins, EpochEntry) and begins.anew  # main begins where its first new table does
        # An empty GTID set (a server that failed over before its first transaction) is before every other.
        known = mine and earlier and not anew and (mine.server == earlier.server or earlier.gtids)
        if known and mine and earlier and not mine.not_before(earlier):
            raise Failure(f"checkpoint {entry.slot} stands at {mine}, before checkpoint {before[0]} at {earlier}")
    world.count["inside checkpoint"] += entry.inside
    for table in entry.tables.values():
        world.count[f"table {table.phase} at a checkpoint"] += 1
        halted = table.cause is not None and table.cause.code == Code.SCHEMA_CHANGE
        world.count["halt: columns changed while they were read"] += halted
        world.count["table of a later generation"] += table.generation > 1
