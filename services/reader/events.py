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
from cutline.common.mesh.messages import Key, Remedy, SnapshotSplit
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.services.reader.tables import StreamTable

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
    """All rows of the chunk were read, or, if it was cut short, those before `cut_at`."""

    split_id: str
    attempt: int
    rows: int
    checksum: str
    low: Low
    high: High
    schema: TableSchema
    cut_at: Key | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFailed(Event):
    """The chunk can't be read."""

    split_id: str
    attempt: int
    cause: Cause
    remedy: Remedy = Remedy.QUARANTINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """Changes of one table in a `ChangesRead`; `_seq` inside `body` counts from the start of that read."""

    table_id: str
    generation: int
    schema: str
    rows: int
    size: int = 0  # bytes
    body: Any = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanged:
    """From change `seq` of that read on the table has schema `new`. Also sent when unchanged, to confirm a schema that
    was assumed."""

    table_id: str
    generation: int
    seq: int
    new: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFaulted:
    """The stream can't go on with this table: read it again (`restart`), else quarantine it."""

    table_id: str
    generation: int
    cause: Cause
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRead(Event):
    """The answer to `ReadChanges`: everything for its routes from `after` to `position`. `stopped`: `position` is
    the stop.

    `rows_inside`: how many of its rows belong to the transaction that `position` is inside of; None: perhaps all.
    `idle`: the source had no more.
    """

    cursor: str
    position: Position
    rows: int
    rows_inside: int | None = None
    batches: tuple[ChangeBatch, ...] = ()
    schemas: tuple[SchemaChanged, ...] = ()
    faults: tuple[TableFaulted, ...] = ()
    source_time: float | None = None
    idle: bool = False
    stopped: bool = False


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
    routes: Mapping[str, StreamTable]
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
