"""A restored machine equals the machine at the cut."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.machine import State
from cutline.services.enumerator.machine import Enumerator
from cutline.services.reader.machine import Reader
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def state_of(machine: Any) -> Any:
    """The state that a restore must bring back, read from the live machine without its own `snapshot`; None if it has
    none."""
    if isinstance(machine, Reader) and machine.stream:
        stream = machine.stream
        return (
            stream.seq,
            stream.hold_main,
            stream.stopped,
            (stream.stop, stream.stop_place, stream.at_stop, stream.ended, stream.begin),
            {n: (c.position, c.source_time, c.rows_inside) for n, c in stream.cursors.items()},
            {
                t.table_id: (
                    t.generation, t.schema.hash, t.low, t.high, t.splits, t.cursor, t.live, t.looked_at, t.pausing,
                )
                for t in stream.tables.values()
            },
        )  # fmt: skip
    if isinstance(machine, Enumerator):
        splits = machine.splits
        out = [dataclasses.replace(split, attempt=split.attempt + 1) for split, _ in splits.out.values()]
        kept = {name for name, table in machine.tables.items() if table.phase == "paused" or name in splits.holds}
        return (
            machine.limits,
            {
                t.table_id: (
                    t.generation, t.phase, t.schema and t.schema.hash, t.low, t.high, t.completed, t.splits_done,
                    t.rows_done, t.cause, t.splitter and t.splitter.to_json(), t.awaited, t.before and t.before.hash,
                    t.pausing, t.resuming, t.looked_at,
                )
                for t in machine.tables.values()
            },
            [
                (s.split_id, s.attempt, s.split_start, s.split_end)
                for s in (*out, *splits.todo)
                if s.table_id not in kept
            ],
            sorted((s.split_id, s.attempt) for s in (*out, *splits.todo, *splits.shelved) if s.table_id in kept),
            dict(splits.accepted),
            (machine.commands_done, dict(machine.refused), dict(machine.gone), machine.floor),
            machine.stream_stopped,
            (machine.stop, machine.stop_place, machine.at_stop),
        )  # fmt: skip
    return None


def restore_is_exact(world: World, machine: Any, base: int, name: str) -> None:
    """A restored machine equals the machine at the cut."""
    epoch = world.store.journal[base].epoch
    live = world.seen.live[epoch, name, base]
    if state_of(machine) != live:
        raise Failure(f"{name} restored from checkpoint {base} is {state_of(machine)} and was {live}")
    world.count["reader restored exactly"] += 1


def enumerator_part_restores(world: World, live: Any, enumerator: Enumerator, part: State) -> None:
    """An enumerator restored from a part without recorded messages equals the one at the cut, except that its splits
    that were out are queued again."""
    head, values = json.loads(json.dumps([{**part.head, "recorded": {}}, part.values]))
    state = State(head=head, values=values, schemas=tuple(world.seen.schemas.values()))
    restored = Enumerator.restored(enumerator.plan, state, {})
    if state_of(restored) != live:
        raise Failure(f"an enumerator restored from its part is {state_of(restored)} and was {live}")
    world.count["enumerator's part restores exactly"] += 1
