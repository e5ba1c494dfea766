"""The facts and effects of the reader's machine (pure): of chunks, and of the incremental split's cursors.

Facts are named in the past tense, effects in the imperative. Slow work is an effect whose answer comes back as a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutline.common.causes import Cause
from cutline.common.limits import Limits
from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.messages import Remedy, SnapshotSplit
from cutline.common.positions import Position, Stop
from cutline.services.sources.contract import Changes, ChunkResult, Route

# --- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRowsRead(Event):
    """The next batch of the chunk being read."""

    split_id: str
    attempt: int
    rows: int
    size: int = 0  # bytes
    body: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead(Event):
    """All rows of the chunk were read, or, if it was cut short, those before `result.cut_at`."""

    split_id: str
    attempt: int
    result: ChunkResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFailed(Event):
    """The chunk can't be read."""

    split_id: str
    attempt: int
    cause: Cause
    remedy: Remedy = Remedy.QUARANTINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRead(Event):
    """The answer to `ReadChanges`: everything for its routes, from its `after` on."""

    cursor: str
    changes: Changes


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk(Effect):
    """Open the chunk and read its first batch. Answered by `ChunkRowsRead`, `ChunkRead` or `ChunkFailed`."""

    split: SnapshotSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueChunk(Effect):
    """Read the next batch of the open chunk. Answered as `ReadChunk`."""

    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChanges(Effect):
    """Read on from `after`, up to `until` if given, and never past `stop`. `at_boundary`: end between two transactions
    unless one is very large. `routes`: the tables whose changes the cursor selects. Answered by exactly one
    `ChangesRead`."""

    cursor: str
    after: Position
    routes: Mapping[str, Route]
    until: Position | None = None
    at_boundary: bool = False
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCursor(Effect):
    """Close the connection of a cursor that is no longer needed."""

    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits(Effect):
    """Read chunk rows within these limits from now on."""

    limits: Limits
