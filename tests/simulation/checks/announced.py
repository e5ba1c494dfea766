"""An epoch is opened as its entry has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.mesh.topology import Topology
from cutline.common.store.records import EpochEntry
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def announced_epoch_is_the_journals(world: World, order: Any) -> None:
    """A leader opens an epoch only as its entry in the journal has it: same members, same base."""
    entry = world.store.journal.get(order.epoch)
    if not isinstance(entry, EpochEntry):
        raise Failure(f"epoch {order.epoch} is opened, and slot {order.epoch} of the journal holds no epoch")
    named, opened = Topology.joined_by(entry.members.by_role), order.plan.topology
    if named != opened:
        raise Failure(f"epoch {order.epoch} is opened with other members than its entry names")
    if entry.base != order.base:
        raise Failure(f"epoch {order.epoch} is opened on base {order.base}, and its entry says {entry.base}")
