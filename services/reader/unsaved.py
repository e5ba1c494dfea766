"""The rows that a reader has sent and no complete checkpoint has, and when it must wait for one (pure).

Without a bound, members would stage on and on while a checkpoint can't complete: a member does not give its part, or
the store does not take the entry. Nothing of it would count after a restart, and it would fill the store's disk.

- The enumerator has one checkpoint in flight at a time: marker N says that the checkpoint before N is complete. So what
  was sent before the marker before the newest one is saved; the rest is not, or may not be.
- From half of the bound on, the reader asks once after each marker for the next checkpoint, which then does not wait
  for its interval. So the bound itself is reached only where a checkpoint takes longer than half of it.
- At the bound the reader begins no chunk and no read of the binlog. What has begun goes on, since the SELECT of a chunk
  must not stay open at the source, and so does a transaction for whose end a marker waits: else the marker that is to
  end the wait would wait itself. By so much the bound may be passed.
"""

from __future__ import annotations


class Unsaved:
    """The count of one reader in one epoch. `most_bytes`: its bound; None: it has none."""

    def __init__(self, most_bytes: int | None, *, base: int | None = None) -> None:
        """`base`: the checkpoint with which the epoch began."""
        self.most_bytes = most_bytes
        self.saved = base  # the newest checkpoint that is known to be complete
        self._marker: int | None = None  # the newest
        self._before = self._since = 0  # bytes sent before the newest marker, and since
        self._asked = False  # for a checkpoint, since the newest marker

    @property
    def bytes(self) -> int:
        """What was sent and may not be in a complete checkpoint."""
        return self._before + self._since

    @property
    def full(self) -> bool:
        """Whether the reader must wait for a checkpoint."""
        return self.most_bytes is not None and self.bytes >= self.most_bytes

    def send(self, size: int) -> bool:
        """Count rows of so many bytes; return whether a checkpoint is to be asked for now."""
        self._since += size
        return self._asks()

    def mark(self, checkpoint: int) -> bool:
        """Take this checkpoint's marker; return whether the one after it is to be asked for now: at the bound, only its
        marker ends the wait."""
        if self._marker is not None:
            self.saved = self._marker
        self._marker = checkpoint
        self._before, self._since, self._asked = self._since, 0, False
        return self._asks()

    def _asks(self) -> bool:
        if self._asked or self.most_bytes is None or 2 * self.bytes < self.most_bytes:
            return False
        self._asked = True
        return True
