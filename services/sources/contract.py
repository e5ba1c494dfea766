"""What a source gives (pure): changes of the routes that a cursor reads, and how a chunk ended. The reader's machine
and each kind of source share these values.

A cursor reads one stream of changes in the order of their commits. Each read takes `Route`s, and answers with one
`Changes`: everything for the routes between two positions, and for each table that can't go on with one of two faults.
A chunk is read batch by batch, and counts only by its `ChunkResult`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from cutline.common.causes import Cause
from cutline.common.mesh.messages import CompletedSplit, Key
from cutline.common.positions import High, Low, Position
from cutline.common.schema import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One table that a cursor delivers, with its schema at the place where the read begins. `splits`: the finished
    chunks of a table in `exact` that is not live, each of which has a high of its own; else none. `live`: the table was
    past its high before the read.

    With `looked_at` the schema is the catalogue's, read after every DDL that this low covers. Up to that low the
    table's first row event sets the schema, and DDL before it is ignored.
    """

    table_id: str
    generation: int
    schema: TableSchema
    low: Low
    high: High
    splits: tuple[CompletedSplit, ...] = ()
    live: bool = False
    looked_at: Low | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table: the schema's columns, then META_FIELDS; `_seq` counts from the start of the read. `size`:
    bytes in memory."""

    table_id: str
    generation: int
    schema_hash: str
    rows: int
    size: int
    batch: pa.RecordBatch = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """From `seq` on (a `_seq` of the read that no row has) the table has schema `new`. `ddl` is empty if a row event
    set the schema: then also sent if nothing changed, to confirm the assumed schema (`Route.looked_at`)."""

    table_id: str
    generation: int
    seq: int
    new: TableSchema
    ddl: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEnded:
    """The stream can't continue this generation of the table, but can its next: read the table again.

    Reported once in a read; if the next read still routes the table, once more when it occurs again.
    """

    table_id: str
    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUnreadable:
    """The stream can't continue with this table, whatever its generation: quarantine it. Reported as
    `GenerationEnded`."""

    table_id: str
    generation: int
    cause: Cause


TableFault = GenerationEnded | TableUnreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The answer to one read: everything for its routes from where it began to `position`.

    `rows` is how many values of `_seq` it used, `rows_inside` how many of them belong to the transaction that
    `position` is inside of. `source_time` is the commit time (epoch seconds, the source's clock) of the newest
    transaction read, whether or not its tables are routed; after a heartbeat, which means that the source has no more,
    it is our clock at the heartbeat's arrival; None if nothing has come yet. `idle`: nothing more came within the wait.
    `stopped`: the stream ends at `position`. `zero_dates` counts, by table and column, dates that no calendar has and
    that became null.
    """

    position: Position
    rows: int
    rows_inside: int = 0
    batches: tuple[TableChanges, ...] = ()
    schemas: tuple[SchemaChange, ...] = ()
    faults: tuple[TableFault, ...] = ()
    source_time: float | None = None
    idle: bool = False
    stopped: bool = False
    zero_dates: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """All rows of a chunk were given, `rows` of them. `zero_dates` counts, by column, dates that no calendar has, which
    became null.

    `checksum` is the sum of `checksum_of` over the batches. With `cut_at` the chunk ends before that key: the rest was
    not read, and is another chunk.
    """

    low: Low
    high: High
    rows: int
    checksum: str
    schema: TableSchema
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    cut_at: Key | None = None
