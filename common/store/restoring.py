"""Which checkpoints can be restored, by what the store still has."""

from __future__ import annotations

from cutline.common.store.chain import follow
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore

NAMED = 5


def restorable(store: PipelineStore, n: int) -> bool:
    """Whether checkpoint `n` is on the chain, and retention has removed nothing that a restore to it needs.

    That its entry and its parts exist does not tell: later ones may build on them.
    """
    oldest, kept = store.removal.retired()
    whole = n >= oldest or (n in kept and n not in store.removal.released())
    entry = store.entry(n) if n > 0 and whole else None
    if not isinstance(entry, CheckpointEntry) or n not in follow(store.last_slot(), store.entry):
        return False
    return all(store.has(path) for ref in entry.parts.values() for path in ref.paths)


def restorable_savepoints(store: PipelineStore) -> list[int]:
    """The savepoints that can be restored, newest first, and before them the newest checkpoint; NAMED at most."""
    chain = follow(store.last_slot(), store.entry)
    found: list[int] = []
    for slot in sorted(store.slots(), reverse=True):
        entry = store.entry(slot)
        if len(found) < NAMED and isinstance(entry, CheckpointEntry) and slot in chain and (entry.kept or not found):
            found += [slot] if restorable(store, slot) else []
    return found
