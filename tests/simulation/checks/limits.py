"""Limits of reads are those that people ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.limits import UNLIMITED, Limits
from cutline.services.enumerator.leader import Leader
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def limits_are_obeyed(world: World, leader: Leader) -> None:
    """The limits of an open epoch are those of the last command about them that is finished, or answered with its
    outcome on its way; whatever its base has."""
    agenda = leader.agenda
    before = agenda.standing.limits
    standing = leader.settings.limits if before is None else Limits(**before)
    wanted = agenda.limits
    if leader.enumerator is not None and wanted is not None:
        if (limits := leader.enumerator.limits) not in (wanted, standing):
            raise Failure(f"{leader.incarnation} limits reads to {limits}, and {wanted} are ordered")
        world.count["limits kept"] += limits != UNLIMITED
