"""The journal as read by one start of a follower: its newest slot, its chain, the entries not yet applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.store.chain import Chain, follow
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry
from cutline.common.store.store import PipelineStore


class JournalView:
    """Reads a pipeline's journal; `refresh` takes up new entries. One thread at a time."""

    def __init__(self, store: PipelineStore) -> None:
        """Follow the chain back to its newest publication, whose number is `newest_published` (None: none yet)."""
        self._store = store
        self._entries: dict[int, Entry] = {}
        self.last_slot = store.last_slot()
        published = store.publication_numbers()
        self.chain: Chain = follow(self.last_slot, self._entry, published)
        self.newest_published = self.chain.newest(published)
        self.definition = self._definition()

    def _definition(self) -> int | None:
        """The version of the definition that the newest epoch uses; 1 before the first, None if retention has removed
        the epoch's entry."""
        if not self.chain.segments:
            return 1
        entry = self._entry(self.chain.segments[0][0])
        return entry.definition if isinstance(entry, EpochEntry) else None

    def _entry(self, slot: int) -> Entry | None:
        if slot not in self._entries:
            entry = self._store.entry(slot)
            if entry is None:
                return None
            self._entries[slot] = entry
        return self._entries[slot]

    def has_more(self) -> bool:
        """Whether the store has entries that `refresh` has not taken up."""
        return self._store.last_slot() != self.last_slot

    def await_more(self, seconds: float, pause: Callable[[float], bool], monotonic: Callable[[], float]) -> None:
        """Return once the store has the next entry, or as `PipelineStore.await_entry` does."""
        self._store.await_entry(self.last_slot + 1, seconds, pause, monotonic)

    def refresh(self, *, published: int | None, applied: int) -> None:
        """Take up new entries. Raises Unavailable if a new epoch left out the last checkpoint applied.

        `published` is the number of our newest publication, `applied` that of the last checkpoint applied.
        """
        last = self._store.last_slot()
        if last == self.last_slot:
            return
        # Not cached: there may be more than fit into memory.
        new = [self._store.entry(slot) for slot in range(self.last_slot + 1, last + 1)]
        self.last_slot = last
        if self.chain.segments and all(isinstance(entry, CheckpointEntry) for entry in new):
            (epoch, _), *older = self.chain.segments
            self.chain = Chain(segments=((epoch, last), *older))
            return
        self.chain = follow(last, self._entry, [] if published is None else [published])
        self.definition = self._definition()
        if applied and applied not in self.chain:
            raise Unavailable(f"checkpoint {applied} was applied but a new epoch left it out", "starting again")
        if applied < self.chain.behind:
            raise Unavailable(
                f"the journal entries after checkpoint {applied} were removed because a newer publication covers them",
                "starting again",
            )

    def waiting(self, after: int, most: int) -> list[CheckpointEntry]:
        """Return up to `most` of the chain's checkpoints above `after`, oldest first."""
        return [self._checkpoint(slot, self._entry(slot)) for slot in self.chain.after(after)[:most]]

    def history(self, after: int, last: int) -> Iterator[CheckpointEntry]:
        """Yield the chain's checkpoints above `after` up to `last`, read anew, oldest first.

        ProtocolError if the journal does not have them all.
        """
        for slot in follow(self.last_slot, self._store.entry, [after]).after(after):
            if slot > last:
                return
            yield self._checkpoint(slot, self._store.entry(slot))

    @staticmethod
    def _checkpoint(slot: int, entry: Entry | None) -> CheckpointEntry:
        if not isinstance(entry, CheckpointEntry):
            raise ProtocolError(f"checkpoint {slot} is missing in the journal", "restore its entry from a backup")
        return entry

    def forget(self, before: int) -> None:
        """Drop the entries of the slots before `before` from memory."""
        for slot in [slot for slot in self._entries if slot < before]:
            del self._entries[slot]
