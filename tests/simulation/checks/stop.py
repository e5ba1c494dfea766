"""At its stop a pipeline ends by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.causes import Code
from cutline.common.positions import Position
from cutline.common.store.records import CheckpointEntry
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def what_is_missing_at_the_stop(world: World, leader: Any, publications: dict[int, Any], place: Position) -> str:
    """At its stop a pipeline ends by itself: a kept publication shows every table exactly there, except those reported
    as impossible to show there and those that a person has paused, and no checkpoint follows."""
    ended = leader.checkpoints.ended
    if ended is None or ended not in publications:
        machine = leader.enumerator
        phases = {t.table_id: (t.phase, t.cause) for t in machine.tables.values()}
        stop = world.questions.stop
        return f"the stop {stop} is at {place}, and the pipeline has not ended: {machine.at_stop} {phases}"
    entry, publication = world.store.journal[ended], publications[ended]
    assert isinstance(entry, CheckpointEntry)
    if not publication.kept:
        raise Failure(f"publication {ended} at the stop is not kept")
    states = {table: found.state for table, found in publication.tables.items()}
    for table, state in states.items():
        cause = entry.tables[table].cause
        expected = table in (*world.questions.quarantined, *world.source.cursor.quarantined) or (
            cause is not None and (cause.code == Code.SCHEMA_CHANGE or "can't be shown at the stop" in cause.sentence)
        )
        if state not in ("live", "dropped", "paused") and not (state == "quarantined" and expected):
            raise Failure(f"{table} is {state} ({cause}) in publication {ended} at the stop")
    after = {n: e for n, e in world.store.journal.items() if n > ended and e.epoch == leader.epoch}
    if any(isinstance(e, CheckpointEntry) and e.request is None for e in after.values()):
        raise Failure(f"the checkpoints {list(after)} were taken after {ended}, the pipeline's last")
    if "live" in states.values():
        position = publication.position
        assert position is not None
        comparable = position.server == place.server or bool(position.gtids and place.gtids)
        if comparable and not world.source.lost_gtids and world.source.places.apart(position, place):
            raise Failure(f"publication {ended} stands at {position}, and the stop is {place}")
        world.count["live at the stop"] += 1
    return ""
