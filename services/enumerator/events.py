"""The facts and effects of the enumerator's two machines (pure): the leader, and the enumerator inside its epoch.

Facts are named in the past tense, effects in the imperative. The leader's come first: lease, journal and epochs; then
those of tables and splits, most of which are questions to the source and their answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.messages import UNLIMITED, Key, Limits
from cutline.common.mesh.topology import Topology
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry, Entry
from cutline.services.enumerator.splitter import KeyRange

if TYPE_CHECKING:
    from cutline.services.enumerator.machine import Enumerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What of the pipeline's definition, and of the epoch's members, the machine goes by."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]
    chunk_rows: int
    exact: bool
    halts: bool = False  # a table whose columns are others than before is quarantined
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
    """A service that is there: `failed` is why it gave up its part of epoch `failed_epoch`, if it did; `halts` if
    trying again can't help (corrupt, foreign, lost at the source). `leaving`: it ends once the plan does without it.
    """

    incarnation: str
    role: str
    leaving: bool = False
    failed_epoch: int = 0
    failed: str | None = None
    halts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Event):
    """What Redis says now: whether we hold the pipeline's lease, and which services are there."""

    held: bool
    members: tuple[MemberSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRead(Event):
    """The journal's last slot (0: empty), and its newest checkpoint on the chain, if there is one."""

    tail: int
    base: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWritten(Event):
    """Our entry with this nonce is the journal's entry of this slot."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRefused(Event):
    """The slot holds an entry with this nonce."""

    slot: int
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOpened(Event):
    """The epoch's streams are made; `enumerator` is restored from its base, if it has one."""

    epoch: int
    enumerator: Enumerator | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFailed(Event):
    """Something of the epoch is lost: a channel, a part, an answer that never came."""

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
    """Put the entry into this slot if the slot is free: answered by EntryWritten or EntryRefused."""

    entry: Entry

    @property
    def slot(self) -> int:
        """The entry's."""
        return self.entry.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch(Effect):
    """Make the epoch's streams, announce it, restore the enumerator from `base`: answered by EpochOpened."""

    epoch: int
    base: int | None
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEpoch(Effect):
    """Stop carrying out anything of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFound:
    """What the source says of one table: `fault` is why it can't be copied (`hidden`: it may not be looked at now),
    else `schema` is its schema; `gone`: the source has no such table, which is no fault.

    `chunk_rows` and `chunk_key` are given where its chunks are not of the plan's rows, or not cut by its identity.
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
    """The tables that the pipeline's globs match, and the known ones that are `unseen` now: gone, or not to be read. At
    its beginning also: `start`, if the stream starts without a snapshot, with the low after which the tables were
    `looked_at`; and `stop`, if it is to end."""

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
    """A person wants these limits on what all readers together SELECT, instead of those that there were."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgainAsked(Event):
    """The lake can't go on from what it has of this generation; asked until the next one has come."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingFailed(Event):
    """The source can't answer `FindRange` or `FindBound` for this table."""

    table_id: str
    generation: int
    cause: str
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTables(Effect):
    """Which tables are there beside those `known`? Answered by `TablesFound`; if the pipeline `begins`, with its start
    and stop."""

    begins: bool
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindStop(Effect):
    """Where is the stop? Answered by `StopFound`."""

    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTable(Effect):
    """Look at one table again, for its next generation."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRange(Effect):
    """The smallest and the largest value of the table's integer key."""

    table_id: str
    generation: int
    schema: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class FindBound(Effect):
    """The key `rows` rows after `start` (None: from the first row), or None if the table ends before."""

    table_id: str
    generation: int
    schema: TableSchema
    start: Key | None
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCheckpoint(Effect):
    """Every part of checkpoint `slot` is in the store: put its entry into the journal, once the leader has given it
    its epoch, nonce and request."""

    slot: int
    entry: CheckpointEntry
