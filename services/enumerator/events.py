"""The facts and effects of the enumerator's two machines (pure): the leader, and the enumerator inside its epoch.

Facts are named in the past tense, effects in the imperative. The leader's come first: lease, journal and epochs; then
those of tables and splits, most of which are questions to the source and their answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.messages import UNLIMITED, Key, Limits
from cutline.common.mesh.topology import Topology
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry, Entry
from cutline.services.enumerator.splitter import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The epoch's members, and the part of the pipeline's definition that the enumerator needs."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]
    chunk_rows: int
    exact: bool
    quarantine_changed: bool = False  # a table whose columns changed (schema_changes: halt)
    snapshot_only: bool = False
    limits: Limits = UNLIMITED

    @property
    def topology(self) -> Topology:
        """The channels between the members."""
        return Topology(self.readers, self.writers)

    @property
    def stream_reader(self) -> str:
        """The reader that holds the incremental split."""
        return self.readers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A service that is present. `failed` is the cause for which it gave up epoch `failed_epoch`; `halts`: no retry can
    help (corrupt, foreign, lost at the source). `leaving`: it ends once the plan does without it.
    """

    incarnation: str
    role: str
    leaving: bool = False
    failed_epoch: int = 0
    failed: str | None = None
    halts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Event):
    """Redis was read: whether we hold the pipeline's lease, and which services are present."""

    held: bool
    members: tuple[MemberSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRead(Event):
    """The journal's last slot (0: the journal is empty), and the newest checkpoint on the chain, if any."""

    tail: int
    base: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWritten(Event):
    """Our entry with this nonce is in this slot of the journal."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRefused(Event):
    """The slot is taken, by an entry with this nonce: ours, if an answer was lost."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFailed(Event):
    """The epoch lost a channel, a part or an answer. `halts`: no retry can mend that."""

    epoch: int
    cause: str
    halts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointAsked(Event):
    """A person wants a kept checkpoint, whose entry carries `request`; `last`: the pipeline stops, none may follow."""

    request: str
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJournal(Effect):
    """Answered by `JournalRead`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEntry(Effect):
    """Put the entry into its slot if that is free. Answered by `EntryWritten` or `EntryRefused`."""

    entry: Entry

    @property
    def slot(self) -> int:
        """The entry's slot."""
        return self.entry.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch(Effect):
    """Make the epoch's streams, announce it, restore the enumerator from `base`. Answered by `EpochOpened`."""

    epoch: int
    base: int | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEpoch(Effect):
    """Stop carrying out anything of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFound:
    """The source's description of one table: its `schema`, or the `fault` for which it can't be copied. `hidden`: it
    may not be read now. `gone`: the source has no such table, which is no fault.

    `chunk_rows` and `chunk_key` are set if its chunks don't have the plan's rows, or are not cut by the identity.
    """

    table_id: str
    schema: TableSchema | None = None
    estimate: int = 0
    row_bytes: int = 0
    integer_key: bool = False
    chunk_rows: int | None = None
    chunk_key: tuple[str, ...] = ()
    fault: str | None = None
    hidden: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesFound(Event):
    """New tables that the pipeline's globs match, and the known tables that are `unseen` now: gone or not readable.

    When the pipeline begins also: `start`, if the stream starts without a snapshot, with the low after which the tables
    were `looked_at`; and `stop`, if the pipeline has one.
    """

    tables: tuple[TableFound, ...]
    unseen: frozenset[str] = frozenset()
    start: tuple[Low, High] | None = None
    looked_at: Low | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFound(Event):
    """The place of the stop; None if the source has not passed it yet."""

    place: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescribed(Event):
    """The answer to `DescribeTable`."""

    generation: int
    table: TableFound


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFound(Event):
    """The answer to `FindRange`."""

    table_id: str
    generation: int
    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFound(Event):
    """The answer to `FindBound`."""

    table_id: str
    generation: int
    end: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleAsked(Event):
    """A person sets these limits on what all readers together SELECT."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgainAsked(Event):
    """The lake lost data of this generation, so the table must be read again; repeated until the next one exists."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingFailed(Event):
    """The source can't answer `FindRange` or `FindBound`. `restart`: read the table again; else it is quarantined."""

    table_id: str
    generation: int
    cause: str
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTables(Effect):
    """Find tables other than those `known`. Answered by `TablesFound`, with start and stop if the pipeline `begins`."""

    begins: bool
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindStop(Effect):
    """Find the place of the stop. Answered by `StopFound`."""

    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable(Effect):
    """Describe one table again. Answered by `TableDescribed`."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRange(Effect):
    """Find the smallest and the largest value of the integer key. Answered by `RangeFound` or `SplittingFailed`."""

    table_id: str
    generation: int
    schema: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class FindBound(Effect):
    """Find the key `rows` rows after `start` (None: after the first row), or None if the table ends before it. Answered
    by `BoundFound` or `SplittingFailed`."""

    table_id: str
    generation: int
    schema: TableSchema
    start: Key | None
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint(Effect):
    """Every part of checkpoint `slot` is in the store: write its entry into the journal. The leader adds its epoch,
    nonce and request."""

    slot: int
    entry: CheckpointEntry
