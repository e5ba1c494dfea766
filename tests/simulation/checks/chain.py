"""An oracle for the chain of checkpoints."""

from __future__ import annotations

from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry


def chain(journal: dict[int, Entry]) -> list[int]:
    """Checkpoints on the chain, oldest first: an oracle for common/store/chain.py, written independently."""
    slots: list[int] = []
    upper = max(journal, default=0)
    epochs = {slot: entry for slot, entry in journal.items() if isinstance(entry, EpochEntry)}
    epoch = max(epochs, default=None)
    while epoch is not None:
        slots += [n for n, e in journal.items() if isinstance(e, CheckpointEntry) and e.epoch == epoch and n <= upper]
        base = epochs[epoch].base
        epoch, upper = (None, 0) if base is None else (journal[base].epoch, base)
    return sorted(slots)
