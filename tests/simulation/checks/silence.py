"""Nobody works without a leader, and a leader that waits says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.mesh.silence import LEADER_SECONDS
from cutline.services.enumerator.leader import Leader
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


SILENT_SECONDS = 14.0
"""The longest checkpoint interval of a world, DOUBT_SECONDS of the leader, and a moment."""
LEADERLESS_SECONDS = LEADER_SECONDS + 13.0


def nobody_works_without_a_leader(world: World) -> None:
    """Some time after the last leader has died, no member reads, sends or stages any more. One that joined late, by an
    announcement that is still there, has that time from then."""
    for service in world.mesh.services:
        if not service.alive or service.token is None:
            continue
        if world.now - world.mesh.joined_at.get(service.incarnation, 0.0) >= LEADERLESS_SECONDS:
            raise Failure(f"{service.incarnation} is still in epoch {service.epoch}, which has no leader any more")


def nobody_waits_without_saying_so(world: World, leader: Leader) -> None:
    """A leader whose journal has had no entry for long says for what its pipeline waits."""
    if world.now - world.leading.entered_at < SILENT_SECONDS or leader.state in ("idle", "halted"):
        return
    world.count["the leader says for what its pipeline waits"] += 1
    ends = leader.checkpoints.ended is not None or leader.checkpoints.ending
    if not ends and leader.waiting_for(world.now) is None:
        raise Failure(f"no entry for {world.now - world.leading.entered_at:.1f} s, and the leader waits for nothing")
