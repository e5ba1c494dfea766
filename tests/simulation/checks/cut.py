"""The cut is consistent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.mesh.topology import Topology
from cutline.common.store.records import CheckpointEntry, EpochEntry
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def cut_is_consistent(world: World, entry: CheckpointEntry) -> None:
    """The cut is consistent: on every channel, the messages that its sender had sent at its snapshot are those that its
    receiver counts to the checkpoint (in its state, or recorded as the channel's state)."""
    cuts = world.seen.cuts[entry.epoch, entry.slot]
    epoch = world.store.journal[entry.epoch]
    assert isinstance(epoch, EpochEntry)
    for sender, receiver in Topology.joined_by(epoch.members.by_role).cut_channels():
        sent, taken = cuts[sender][0][receiver], cuts[receiver][1].get(sender, 0)
        if sent != taken:
            raise Failure(
                f"checkpoint {entry.slot} is no consistent cut: {sender} had sent {sent} messages to {receiver}"
                f" at its snapshot, and {receiver} counts {taken} to it"
            )
