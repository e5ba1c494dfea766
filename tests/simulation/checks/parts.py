"""An entry agrees with its parts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cutline.common.mesh.parts import load_part
from cutline.common.mesh.topology import Topology
from cutline.common.store.records import ChangeCounts, CheckpointEntry, EpochEntry
from cutline.services.enumerator.events import Plan
from cutline.services.enumerator.machine import Enumerator
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.generations import generations_begin_once

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def tables_are_those_of_the_parts(world: World, entry: CheckpointEntry) -> None:
    """An entry's tables, though composed of what changed, agree with the enumerator and the incremental split restored
    from its parts."""
    epoch = world.store.journal[entry.epoch]
    assert isinstance(epoch, EpochEntry)
    plan = Plan(topology=Topology({"reader": 1, "writer": 1}), chunk_rows=1, exact=world.shape.exact)
    store = world.store.open()
    plan = dataclasses.replace(plan, quarantine_changed=world.shape.schema_changes == "halt")
    part = load_part(store, entry.parts["enumerator"])
    enumerator = Enumerator.restored(plan, part, entry.tables, at=entry.started_at)
    streamed = load_part(store, entry.parts["reader-0"]).values.get("tables", {})
    if enumerator.tables.keys() != entry.tables.keys():
        raise Failure(f"checkpoint {entry.slot} has tables {sorted(entry.tables)}, not {sorted(enumerator.tables)}")
    for name, table in enumerator.tables.items():
        wanted = (table.generation, table.phase, table.schema.hash if table.schema else None, False, table.cause)
        stream = streamed.get(name)
        if table.phase in ("catch-up", "live") and stream and stream["generation"] == table.generation:
            live = stream["live"]
            wanted = (table.generation, "live" if live else "catch-up", stream["schema"], live, table.cause)
        entered = entry.tables[name]
        if (entered.generation, entered.phase, entered.schema, entered.show, entered.cause) != wanted:
            raise Failure(f"checkpoint {entry.slot} has {entered} for {name}, and its parts {wanted}")
        if entered.since is None or entered.since != table.since:
            raise Failure(f"checkpoint {entry.slot} has {name} in its phase since {entered.since}, not {table.since}")
    changes_add_up(world, entry, epoch)
    world.count["entry composed of what changed"] += 1
    generations_begin_once(world, entry, enumerator)


def changes_add_up(world: World, entry: CheckpointEntry, epoch: EpochEntry) -> None:
    """The changes of each generation are those of the checkpoint before, and those that this one has staged."""
    before = world.store.journal[entry.slot - 1 if entry.slot - 1 > epoch.slot else epoch.base or entry.slot - 1]
    known = before.tables if isinstance(before, CheckpointEntry) else {}
    for name, table in entry.tables.items():
        counts = [file.counts for file in entry.staged if file.table == name and file.counts is not None]
        if name in known and known[name].generation == table.generation and known[name].counts is not None:
            counts.append(known[name].counts)
        if table.counts != ChangeCounts(*map(sum, zip(*counts, strict=True))):
            raise Failure(f"checkpoint {entry.slot} has {table.counts} changes of {name}, and its files {counts}")
