"""The facts and effects of the enumerator's two machines (pure): the leader, and the enumerator inside its epoch.

Facts are named in the past tense, effects in the imperative. The leader's come first: lease, journal and epochs; then
those of tables and splits, most of which are questions to the source and their answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutline.common.causes import Cause
from cutline.common.errors import Loss
from cutline.common.limits import UNLIMITED, Limits
from cutline.common.mesh.machine import Effect, Event
from cutline.common.mesh.messages import Key
from cutline.common.mesh.topology import READER, STREAM_READER, Topology
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.common.store.command_records import Command, Orders, Outcome, State
from cutline.common.store.records import Anew, CheckpointEntry, Entry
from cutline.services.enumerator.requests import Request
from cutline.services.enumerator.splitter import KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The epoch's members, and the part of the pipeline's definition that the enumerator needs."""

    topology: Topology
    chunk_rows: int
    exact: bool
    quarantine_changed: bool = False  # a table whose columns changed (schema_changes: halt)
    snapshot_only: bool = False
    limits: Limits = UNLIMITED

    @property
    def readers(self) -> tuple[str, ...]:
        """The members that read chunks."""
        return self.topology.named(READER)

    @property
    def stream_reader(self) -> str:
        """The reader that holds the incremental split."""
        return STREAM_READER


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The part of the pipeline's definition that the leader needs (see `Plan`). `services`: how many of each role to
    wait for."""

    chunk_rows: int
    exact: bool
    quarantine_changed: bool = False
    snapshot_only: bool
    interval_seconds: float
    reads_again: bool = False  # every table, where the source lost the stream's position (source.lost_position)
    services: Mapping[str, int] = field(default_factory=lambda: {"reader": 1, "writer": 1})
    limits: Limits = UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """A service that is present. `failed` is the cause for which it gave up epoch `failed_epoch`; `halts`: no retry can
    help (corrupt, foreign, lost at the source). `lost`: what the source lost. `leaving`: it ends once the plan does
    without it.
    """

    incarnation: str
    role: str
    leaving: bool = False
    failed_epoch: int = 0
    failed: Cause | None = None
    halts: bool = False
    lost: Loss = Loss.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Event):
    """Redis was read: whether we hold the pipeline's lease, and which services are present."""

    held: bool
    members: tuple[MemberSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRead(Event):
    """The journal's last slot (0: the journal is empty), and the newest checkpoint on the chain, if any; `answered` is
    that checkpoint's request. `anew`: why the newest epoch began anew, if it has no checkpoint yet. `floor`: that of
    the newest epoch; `highest`: the highest generation that the checkpoint knows. `failing_since`: that of the newest
    epoch, None if the epoch had time to prove that the fault is over. `entered`: the command that the newest epoch
    carries out. `kept`: the last command of the enumerator that the checkpoint has, `refused` those of them that it
    refused; asked for only where one of `commands` may be such a one.

    Then the store's commands, read after the journal: the newest `finished` one, the standing orders after it, earlier
    ones that are still `open`, the `commands` that follow, and the `settings` of the definition in force (None: as
    before).
    """

    tail: int
    base: int | None
    answered: Request | None = None
    anew: Anew | None = None
    floor: int = 0
    highest: int = 0
    failing_since: float | None = None
    entered: int | None = None
    kept: int = 0
    refused: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    finished: int = 0
    orders: Orders = field(default_factory=Orders)
    commands: tuple[Command, ...] = ()
    open: tuple[Command, ...] = ()
    settings: Settings | None = None


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
    """The epoch lost a channel, a part or an answer. `halts`: no retry can fix that; `lost`: what the source lost."""

    epoch: int
    cause: Cause
    halts: bool = False
    lost: Loss = Loss.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAccepted(Event):
    """The store has this command, the next one."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswered(Event):
    """What became of command `n`, for which the leader had asked its driver."""

    n: int
    state: State
    cause: str | None = None
    remedy: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionPut(Event):
    """The definition that command `n` asks for is in the store under this number, with these settings. `limits`: its
    limits, if it changes them."""

    n: int
    version: int
    settings: Settings
    limits: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFound(Event):
    """The checkpoint to which command `n` restores can be restored. `warning`: what could not be looked at."""

    n: int
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeWritten(Event):
    """Our outcome of command `n` is in the store."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRefused(Event):
    """Another leader has finished command `n`."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutDefinition(Effect):
    """Put the definition that the command asks for as the next version; `in_force` is the present one. Answered by
    `DefinitionPut`, or by `CommandAnswered` if it can't be."""

    command: Command
    in_force: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindBase(Effect):
    """Look whether the checkpoint that the command names can be restored: whether the store has all of it, and the
    source of this version of the definition what follows. Answered by `BaseFound`, or by `CommandAnswered` if not."""

    command: Command
    definition: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSavepoint(Effect):
    """Note in the store that the savepoint which the command names is no longer kept. Answered by `CommandAnswered`."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOutcome(Effect):
    """Look what became of the command that this one cancels. Answered by `CommandAnswered`."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSparkWriter(Effect):
    """Pass the command on to the Spark writer, repeatedly until its status answers. Answered by `CommandAnswered`."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome(Effect):
    """Put the outcome of a command if absent. Answered by `OutcomeWritten` or `OutcomeRefused`."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePipeline(Effect):
    """Remove everything of the pipeline, its definition last; before, if the standing orders say so, its lake tables.
    No answer: the pipeline is gone then."""


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
    """Make the epoch's streams, announce it, restore the enumerator from `base`; `definition` is the version that all
    members use. Answered by `EpochOpened`."""

    epoch: int
    base: int | None
    plan: Plan
    definition: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEpoch(Effect):
    """Stop carrying out anything of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss(Effect):
    """Remove the streams of all epochs below `before`, whose members then leave: no epoch follows soon. Repeated until
    it is done, whatever the leader does meanwhile, since no living epoch is below `before`."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFound:
    """The source's description of one table: its `schema`, or the `fault` for which it can't be copied (with its
    schema: for its rule). `hidden`: it
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
    fault: Cause | None = None
    hidden: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesFound(Event):
    """New tables that the pipeline's globs match, and the known tables that are `unseen` now: gone or not readable.
    `unselected` are the known tables that the globs of a later definition do not match, `shapes` the rules that it has
    for known tables (None: that was no question).

    When the pipeline begins also: `start`, if the stream starts without a snapshot, with the low after which the tables
    were `looked_at`; and `stop`, if the pipeline has one.
    """

    tables: tuple[TableFound, ...]
    unseen: frozenset[str] = frozenset()
    unselected: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] | None = None
    start: tuple[Low, High] | None = None
    looked_at: Low | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFound(Event):
    """The answer to `FindPlace`: whether the source still has every change after that low."""

    table_id: str
    generation: int
    kept: bool


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
class LimitsOrdered(Event):
    """The standing orders have these limits on what all readers together SELECT."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTaken(Event):
    """A person's command about tables or limits has its turn."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingFailed(Event):
    """The source can't answer `FindRange` or `FindBound`: the table is to be quarantined."""

    table_id: str
    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingOutdated(Event):
    """The table, or a column of its key, is gone, so `FindRange` or `FindBound` of this generation has no answer: read
    the table again, as its next generation."""

    table_id: str
    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLockedOut(Event):
    """Another session holds a lock on the table, so `FindRange` or `FindBound` has no answer yet."""

    table_id: str
    generation: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTables(Effect):
    """Find tables other than those `known`. Answered by `TablesFound`, with start and stop if the pipeline `begins`;
    without the start if it begins `anew`, since every table is then read."""

    begins: bool
    known: frozenset[str] = frozenset()
    anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FindPlace(Effect):
    """Look whether the binlog still has what a paused table missed after `low`. Answered by `PlaceFound`."""

    table_id: str
    generation: int
    low: Low


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
