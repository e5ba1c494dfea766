"""An old epoch writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.store.chain import follow
from cutline.common.store.records import EpochEntry
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


def journal_is_of_one_line(world: World) -> None:
    """An old epoch writes nothing: every checkpoint in the journal is by the leader of the newest epoch before it, and
    every epoch's base was on the chain at that time."""
    journal = world.store.journal
    newest: EpochEntry | None = None
    if chain(journal) != follow(max(journal, default=0), journal.get).after(0):
        raise Failure("common/store/chain.py follows another chain than the oracle")
    for slot in sorted(journal):
        entry = journal[slot]
        if isinstance(entry, EpochEntry):
            then = chain({n: e for n, e in journal.items() if n < slot})
            if entry.base is not None and entry.base not in then:
                raise Failure(f"epoch {slot} builds on checkpoint {entry.base}, which was not on the chain")
            if entry.base is None and then:
                raise Failure(f"epoch {slot} begins anew though there were checkpoints")
            newest = entry
        elif newest is None or entry.epoch != newest.slot or entry.nonce.partition(":")[0] != newest.leader:
            raise Failure(f"checkpoint {slot} is of epoch {entry.epoch}, and {newest} was the newest then")
