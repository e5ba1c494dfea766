"""The writer's own port, beside those of every driver (common/mesh/ports.py): the files that it stages."""

from __future__ import annotations

from typing import Protocol

from cutline.common.store.records import StagedFile
from cutline.services.writer.machine import Append, Drop, StageCut


class Files(Protocol):
    """The open files of one writer in one epoch. Every call blocks, and they come one at a time, in the order of the
    machine's effects. Each may raise Unavailable; the epoch then ends, and with it all that was not staged."""

    def append(self, order: Append) -> None:
        """Append one body; the first one opens the file."""

    def stage(self, order: StageCut) -> tuple[StagedFile, ...]:
        """Close the cut's files; all are durable under their final names when this returns."""

    def drop(self, order: Drop) -> None:
        """Discard the file of a failed attempt, if there is one."""

    def close(self) -> None:
        """Discard the files that no cut took. The last call."""
