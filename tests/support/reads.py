"""Answers of a source to a reader, in one call each."""

from __future__ import annotations

from typing import Any

from cutline.services.reader.events import ChangesRead, ChunkRead
from cutline.services.sources.contract import Changes, ChunkResult


def changes_read(*, cursor: str, rows: int, **other: Any) -> ChangesRead:
    """A cursor's answer; if it ends inside a transaction and `rows_inside` is not given, all rows are of that."""
    return ChangesRead(cursor=cursor, changes=Changes(**({"rows_inside": rows} | other), rows=rows))


def chunk_read(*, split_id: str, attempt: int, **result: Any) -> ChunkRead:
    """The end of a chunk."""
    return ChunkRead(split_id=split_id, attempt=attempt, result=ChunkResult(**({"checksum": ""} | result)))
