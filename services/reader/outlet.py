"""Where a reader's rows go, and how many may go out without a checkpoint (pure)."""

from __future__ import annotations

from cutline.common.mesh.machine import Effect, Send
from cutline.common.mesh.messages import CheckpointWanted
from cutline.common.mesh.topology import ENUMERATOR
from cutline.services.reader.unsaved import Unsaved


class Outlet:
    """The writers of an epoch, in plan order, and the count of one reader."""

    def __init__(self, writers: tuple[str, ...], unsaved: Unsaved) -> None:
        self._writers, self.unsaved = writers, unsaved

    def writer_of(self, key: str) -> str:
        """The writer of a table's changes, or of a chunk."""
        return self._writers[sum(key.encode()) % len(self._writers)]

    def count(self, size: int) -> list[Effect]:
        """Count rows that are sent; the next checkpoint may be wanted early."""
        return [Send(receiver=ENUMERATOR, message=CheckpointWanted())] if self.unsaved.send(size) else []
