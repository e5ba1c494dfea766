"""The chain of valid checkpoints (pure).

The journal's epoch entries fork history: each names the checkpoint that it starts from (`base`). The *chain* is the
valid history: from the newest epoch entry back by `base`, so the checkpoints of that epoch, then those of the base's
epoch up to the base, and so on. Checkpoints and publications off the chain are ignored (a later epoch reads their rows
again).

Relies on: slots have no gaps, and the slots between an epoch entry and the next one are that epoch's checkpoints
(put-if-absent; a deposed leader is refused its slot).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from cutline.common.errors import ProtocolError
from cutline.common.store.records import Entry, EpochEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The valid checkpoints: `segments` are (epoch slot, its last valid checkpoint slot), newest first.

    `behind` is the last checkpoint whose entry was removed (0: none): those up to it were valid and applied.
    """

    segments: tuple[tuple[int, int], ...] = ()
    behind: int = 0

    def __contains__(self, checkpoint: object) -> bool:
        return isinstance(checkpoint, int) and (
            0 < checkpoint <= self.behind or any(epoch < checkpoint <= last for epoch, last in self.segments)
        )

    def after(self, checkpoint: int) -> list[int]:
        """Return the slots of the chain's checkpoints above `checkpoint`, oldest first.

        ProtocolError if the journal does not have them all.
        """
        if checkpoint < self.behind:
            raise ProtocolError(
                f"journal entry {self.behind} is missing, though the chain includes it", "restore it from a backup"
            )
        return [slot for epoch, last in reversed(self.segments) for slot in range(max(epoch, checkpoint) + 1, last + 1)]

    def newest(self, published: Iterable[int]) -> int | None:
        """Return the newest of the publications `published` that is on the chain, or None."""
        return max((n for n in published if n in self), default=None)


def follow(last_slot: int, entry: Callable[[int], Entry | None], published: Collection[int] = ()) -> Chain:
    """Follow the chain back from journal slot `last_slot` (0: an empty journal); `entry` looks up an entry.

    Stops at a segment that holds one of `published` (older ones don't matter), at the beginning, or where older entries
    were removed. ProtocolError if the newest entry is missing.
    """
    segments: list[tuple[int, int]] = []
    last: int | None = last_slot or None
    while last is not None:
        found = entry(last)
        if found is None:
            if not segments:
                raise ProtocolError(f"journal entry {last}, the newest, is missing", "restore it from a backup")
            return Chain(segments=tuple(segments), behind=last)
        segments.append((found.epoch, last))
        if any(found.epoch < n <= last for n in published):
            break
        begin = entry(found.epoch)
        if begin is None:  # removed, with all entries before it
            return Chain(segments=tuple(segments), behind=found.epoch)
        if not isinstance(begin, EpochEntry):
            raise ProtocolError(
                f"journal entry {found.epoch} is no epoch entry, though checkpoint {last} names it as its epoch",
                "restore the journal from a backup",
            )
        if begin.base is not None and begin.base >= found.epoch:
            raise ProtocolError(
                f"epoch entry {found.epoch} starts from checkpoint {begin.base}, which is not before it",
                "restore the journal from a backup",
            )
        last = begin.base
    return Chain(segments=tuple(segments))
