"""The files that a simulated writer has open: rows in memory, until a cut puts them into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cutline.common.errors import Unavailable
from cutline.common.ops import Op
from cutline.common.store.records import ChangeCounts, StagedFile
from cutline.services.writer.machine import Append, ChangesFile, ChunkFile, Drop, StageCut

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


CHANGES = (Op.INSERT, Op.UPDATE, Op.DELETE)


class OpenFiles:
    """The open files of one writer in one epoch."""

    def __init__(self, world: World, *, epoch: int, incarnation: str) -> None:
        self.world, self.epoch, self.incarnation = world, epoch, incarnation
        self.open: dict[ChangesFile | ChunkFile, list[Any]] = {}

    def append(self, order: Append) -> None:
        """Append one body; the first one opens the file."""
        rows = self.open.setdefault(order.file, [])
        if isinstance(order.file, ChunkFile):
            rows += order.body
        else:
            rows += [(order.seq_base + seq, op, key, row) for seq, op, key, row in order.body]

    def drop(self, order: Drop) -> None:
        """Discard the file of a failed attempt."""
        self.world.count["chunk file dropped"] += 1
        for file in [file for file in self.open if isinstance(file, ChunkFile)]:
            if (file.split_id, file.attempt) == (order.split_id, order.attempt):
                del self.open[file]

    def stage(self, order: StageCut) -> tuple[StagedFile, ...]:
        """Put the cut's files into the store; Unavailable while that is full."""
        if self.world.now < self.world.faults.full_until:
            self.world.count["store full: a service gives up"] += 1
            raise Unavailable("the store is full")
        return tuple(self._staged(file, self.open.pop(file)) for file in (*order.changes, *order.chunks))

    def _staged(self, file: ChangesFile | ChunkFile, rows: list[Any]) -> StagedFile:
        chunk = isinstance(file, ChunkFile)
        name = f"{'chunk' if chunk else 'changes'}.parquet"
        ref = self.world.store.stage(name, epoch=self.epoch, incarnation=self.incarnation, rows=rows)
        return StagedFile(
            path=ref.path, sha256=ref.sha256, size=ref.size, rows=len(rows), kind="chunk" if chunk else "changes",
            table=file.table_id, generation=file.generation, schema=file.schema,
            split=f"{file.split_id}#{file.attempt}" if isinstance(file, ChunkFile) else None,
            seq_min=None if chunk else min(r[0] for r in rows),
            seq_max=None if chunk else max(r[0] for r in rows),
            truncated_at=None if chunk else max((r[0] for r in rows if r[1] == "t"), default=None),
            counts=None if chunk else ChangeCounts(*(sum(row[1] == op for row in rows) for op in CHANGES)),
        )  # fmt: skip

    def close(self) -> None:
        """Discard the files that no cut took."""
        self.open.clear()
