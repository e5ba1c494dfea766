"""Liveness: when faults have stopped, the lake arrives at the source's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.causes import Code
from cutline.common.errors import SourceLost
from cutline.common.store.records import CheckpointEntry
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.simulation.checks.chain import chain
from tests.simulation.checks.stop import what_is_missing_at_the_stop

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def arrived(world: World) -> bool:
    """Liveness: when faults have stopped, all tables become live and a publication reaches the source's end."""
    return not what_is_missing(world)


def what_is_missing(world: World) -> str:
    """The reason why `arrived` is not true yet; empty if it is."""
    leaders = [s for s in world.mesh.services if s.alive and s.leader is not None and s.leader.state == "leading"]
    if not leaders:
        states = [(s.incarnation, s.leader.state, s.leader.cause) for s in world.mesh.services if s.leader and s.alive]
        return f"no leader leads: {states}"
    for leader in leaders:
        machine = leader.leader.enumerator if leader.leader else None
        share = machine.limits.shared(len(machine.plan.readers)) if machine else None
        for reader in world.mesh.services:
            if reader.alive and reader.role == "reader" and reader.token and reader.epoch == leader.epoch:
                if reader.limits != share:
                    return f"{reader.incarnation} reads at {reader.limits}, and its share is {share}"
    if why := world.operators.unsettled:
        return why
    journal, publications = world.store.journal, world.store.publications
    on_chain = [n for n in chain(journal) if n in publications]
    if not on_chain:
        return f"nothing is published; the journal ends at {max(journal, default=0)}"
    newest = publications[on_chain[-1]]
    if world.questions.stop is not None:
        try:
            place = world.source.places.find_stop(world.questions.stop, world.now)
        except SourceLost as error:  # the file's server is gone: it was found before, or the pipeline halts
            machine = leaders[0].leader.enumerator
            place = machine.stop_place if machine is not None else None
            if place is None:
                return str(error)
        if place is not None:
            return what_is_missing_at_the_stop(world, leaders[0].leader, publications, place)
    entry = journal[newest.n]
    assert isinstance(entry, CheckpointEntry)
    stopped = {
        t
        for t, found in entry.tables.items()
        if t in world.source.cursor.quarantined or (found.cause and found.cause.code == Code.SCHEMA_CHANGE)
    }
    wrong = {
        t: found.state
        for t, found in newest.tables.items()
        if found.state != ("quarantined" if t in world.questions.quarantined else "live")
        and not (found.state == "quarantined" and t in stopped)
    }
    absent = set(world.questions.known_tables) - set(newest.tables)
    if wrong or absent:
        causes = {t: entry.tables[t].cause for t in wrong}
        return f"tables are not live in publication {newest.n}: {wrong} {causes} {absent}"
    begun = newest.position is not None or any(found.state == "live" for found in newest.tables.values())
    if begun and not world.shape.snapshot_only:
        end, position = world.source.flushed(), newest.position
        if position is None or position.server != end.server or not end.reached_by(position):
            return f"publication {newest.n} stands at {position}, the source at {end}"
    for table, found in newest.tables.items():
        main = world.lake.main.get(table)
        shown = None if found.main is None else snapshot_of(found.main.content)
        if found.state == "live" and (main is None or main.snapshot != shown):
            return f"main of {table} does not show publication {newest.n}"
    return ""
