"""What each service says of itself (pure): one class a part of a pipeline's status, and what a part consists of.

A service writes its part a few times a second; everyone reads parts by these names. Every field has a default, which
says nothing, so a part that nobody has written is the part without arguments (`at` is None), and a part of another
version of Cutline is read as form.py says. Times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cutline.common.causes import Cause, joined
from cutline.common.commands.kinds import Mode
from cutline.common.errors import ConfigError
from cutline.common.form import read
from cutline.common.limits import Limits
from cutline.common.measures import Counted, Histogram
from cutline.common.phases import DROPPED, QUARANTINED, Phase
from cutline.common.waits import Party, Wait

ENUMERATOR, SPARK_WRITER = "enumerator", "spark_writer"


class Mark(NamedTuple):
    """When a checkpoint's first marker arrived at a member, and when the member's part was in the store."""

    checkpoint: int
    marker_at: float
    saved_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """What an outbound channel holds: bytes of rows sent and not taken, the credit for them; and since the epoch began
    the bytes that were sent in all, the messages that were sent and those that were taken."""

    outstanding_bytes: int = 0
    credit_bytes: int = 0
    sent_bytes: int = 0
    sent: int = 0
    taken: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """What every part has: when it was written, and what its service counts and measures."""

    at: float | None = None
    counters: tuple[Counted, ...] = ()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus(PartStatus):
    """What the part of a member of the mesh has: its epoch (0: none), what it waits for, its outbound channels by the
    member at the other end, and its last checkpoints."""

    epoch: int = 0
    waiting_for: Wait | None = None
    channels: Mapping[str, ChannelStatus] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandsStatus:
    """A leader's commands: the one that it carries out, the last one that is finished (`done`), those that wait for the
    Spark writer (`apart`), and by number what others wait for."""

    running: int | None = None
    done: int = 0
    apart: tuple[int, ...] = ()
    waiting: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatus:
    """The newest complete checkpoint, the one that is under way, and the interval between two."""

    number: int | None = None
    completed_at: float | None = None
    in_flight: int | None = None
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogStatus:
    """A look at the source's binlog, at `at`.

    `left_seconds`: how long it still has all that is needed, `retention_seconds`: how long it keeps a file (None: for
    ever, or unknown). `lag_bytes`: what comes after the place that was read; None if that place is gone, or another
    server's. `clock_offset_seconds`: how far the source's clock is ahead. `oldest_transaction_seconds`: how long the
    oldest transaction of Cutline's user has been open.
    """

    at: float
    left_seconds: float | None = None
    lag_bytes: int | None = None
    retention_seconds: float | None = None
    clock_offset_seconds: float | None = None
    oldest_transaction_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnumeratorStatus(MemberStatus):
    """The part of the enumerator that leads the pipeline, `leader` (an incarnation).

    `state` is its state (enumerator/leader.py), `definition` the version in force. `mode_since`: when a command's
    outcome made the mode (None: none did). `halted`: why the leader waits for a person, `halted_since`: when the epochs
    began to fail, also under leaders before. `ended`: the kept checkpoint at the pipeline's stop. `failures` in a row,
    and when the next try comes (`retry_at`), while it rests. `source_time`: of the last transaction that was read,
    `rates`: rows a second of tables that are being read, by name.
    """

    leader: str | None = None
    state: str = ""
    mode: Mode = "running"
    mode_since: float | None = None
    definition: int | None = None
    commands: CommandsStatus = CommandsStatus()
    halted: Cause | None = None
    halted_since: float | None = None
    ended: int | None = None
    checkpoint: CheckpointStatus = CheckpointStatus()
    failures: int = 0
    retry_at: float | None = None
    limits: Limits | None = None
    source_host: str | None = None
    source_time: float | None = None
    binlog: BinlogStatus | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A captured table. What is None is unknown: nobody leads, and this is from the newest checkpoint.

    `since`: when it entered its phase.
    """

    phase: Phase
    since: float | None = None
    generation: int = 1
    rows_done: int | None = None
    rows_estimate: int | None = None
    splits_done: int | None = None
    splits_total: int | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStatus(MemberStatus):
    """The part of a reader: what it has sent to writers in this epoch, the server that it reads, and, if it holds the
    main cursor, that cursor's server."""

    rows_total: int = 0
    bytes_total: int = 0
    source_host: str | None = None
    main_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatus(MemberStatus):
    """The part of a writer: the rows and bytes that it has taken in this epoch."""

    rows_total: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A table that the Spark writer has quarantined in this generation, `since` then. If that is for commits of others:
    the newest of them (`seen`), what a person may choose, and what was chosen."""

    cause: Cause
    generation: int
    since: float | None = None
    seen: str | None = None
    choices: tuple[str, ...] = ()
    chosen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A batch of checkpoints that the Spark writer has applied: from `first` to `last`, its rows, how long it took in
    all and for the slowest tables, and when it was published (None: not yet)."""

    first: int
    last: int
    rows: int
    applied_at: float
    seconds: float
    tables: Mapping[str, float] = field(default_factory=dict)
    published_at: float | None = None


class Files(NamedTuple):
    """The data files of a lake table, their bytes, and the rows that it has now (None: unknown)."""

    files: int
    size: int
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStatus:
    """The tables that compaction has yet to look at, and the files that are known to be worth merging."""

    tables: int | None = None
    files: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedStatus:
    """A derived table: the publication for which this start computed it last (`checkpoint`, None: not yet), the rows of
    the result, how many of them were `computed` then, and the seconds that it took; when it was computed (`at`),
    Spark's `plan`, and why it does not go on. `in_full`: why all of it was computed though the changes alone were to
    be."""

    checkpoint: int | None = None
    rows: int | None = None
    computed: int | None = None
    in_full: str = ""
    seconds: float | None = None
    at: float | None = None
    plan: str = ""
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a start of the Spark writer ended: the cause and the error's class, and after how long the next begins.

    `since`: when the first of the starts ended that have failed in a row, without a publication between them.
    """

    cause: Cause
    kind: str
    again_seconds: float
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWriterStatus(PartStatus):
    """The part of the Spark writer that leads the pipeline, `leader` (an incarnation): start `w`.

    `applied`: the newest checkpoint that is applied. `published`: the newest publication, when it was made, and the
    source's time that it shows. `commands`: by number, those that were carried out, each with why it failed (None: it
    did not). `applied_by_spark`: why Spark, and not this process, applies a table. `files`: by table, of some.
    `derived`: the derived tables, by name.
    """

    leader: str | None = None
    w: int | None = None
    applied: int | None = None
    published: int | None = None
    published_at: float | None = None
    source_time: float | None = None
    quarantined: Mapping[str, Held] = field(default_factory=dict)
    commands: Mapping[int, str | None] = field(default_factory=dict)
    applied_by_spark: Mapping[str, str] = field(default_factory=dict)
    applies: tuple[Apply, ...] = ()
    files: Mapping[str, Files] = field(default_factory=dict)
    compaction: CompactionStatus = CompactionStatus()
    derived: Mapping[str, DerivedStatus] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """All parts of a pipeline, and its captured tables by name: the enumerator's, but quarantined where the Spark
    writer can't apply that generation."""

    enumerator: EnumeratorStatus = EnumeratorStatus()
    readers: Mapping[str, ReaderStatus] = field(default_factory=dict)
    writers: Mapping[str, WriterStatus] = field(default_factory=dict)
    spark_writer: SparkWriterStatus = SparkWriterStatus()
    tables: Mapping[str, TableStatus] = field(default_factory=dict)

    @classmethod
    def put_together(cls, parts: Mapping[str, Any], tables: Mapping[str, TableStatus]) -> PipelineStatus:
        """Make it of what Redis has: parts as parsed JSON, by name, and the enumerator's tables."""
        return cls.of_parts({name: part(name, body) for name, body in parts.items()}, tables)

    @classmethod
    def of_parts(cls, parts: Mapping[str, PartStatus | None], tables: Mapping[str, TableStatus]) -> PipelineStatus:
        """Make it of its parts by name, as `part` gives them, and of the enumerator's tables."""
        enumerator, spark = parts.get(ENUMERATOR), parts.get(SPARK_WRITER)
        spark = spark if isinstance(spark, SparkWriterStatus) else SparkWriterStatus()
        return cls(
            enumerator=enumerator if isinstance(enumerator, EnumeratorStatus) else EnumeratorStatus(),
            readers={name: found for name, found in sorted(parts.items()) if isinstance(found, ReaderStatus)},
            writers={name: found for name, found in sorted(parts.items()) if isinstance(found, WriterStatus)},
            spark_writer=spark,
            tables=_captured(tables, spark.quarantined),
        )

    def quarantined(self) -> dict[str, TableStatus]:
        """The quarantined tables, captured and derived ones, by name in order."""
        found = {name: table for name, table in self.tables.items() if table.phase == QUARANTINED}
        for name, derived in self.spark_writer.derived.items():
            if derived.cause is not None:
                found.setdefault(name, TableStatus(phase=QUARANTINED, cause=derived.cause))
        return dict(sorted(found.items()))

    def members(self) -> dict[str, MemberStatus]:
        """The parts of the mesh's members, by name; of readers and writers perhaps also of an earlier epoch."""
        own = {} if self.enumerator.at is None else {ENUMERATOR: self.enumerator}
        return {**own, **self.readers, **self.writers}

    def parts(self) -> dict[str, PartStatus]:
        """All parts that were written, by name."""
        return {**self.members(), **({} if self.spark_writer.at is None else {SPARK_WRITER: self.spark_writer})}

    def in_epoch(self) -> dict[str, MemberStatus]:
        """The parts of the members of the epoch in progress, by name; {} without one."""
        epoch = self.enumerator.epoch
        return {name: part for name, part in self.members().items() if epoch and part.epoch == epoch}

    def obstacle(self) -> Wait | None:
        """What holds the pipeline up. While an epoch is open a member knows it better: the leader sees that a
        checkpoint is late, and its reader what it waits for. Where that is the checkpoint, both are named."""
        leader, members = self.enumerator, (*self.readers.values(), *self.writers.values())
        parts = (*members, leader) if leader.state == "leading" else (leader, *members)
        first = next((part.waiting_for for part in parts if part.waiting_for is not None), None)
        late = leader.waiting_for
        if first is None or first is late or late is None or first.party != Party.CHECKPOINT:
            return first
        return replace(first, cause=joined(each for each in (first.cause, late.as_cause) if each is not None))

    def choice(self, table: str, choice: str, *, seen: str | None = None) -> str:
        """Return the newest commit of others to a lake table that a person's choice is about. ConfigError
        if there is nothing to choose, or if the person has `seen` another one (None: the one in the status)."""
        held = self.spark_writer.quarantined.get(table)
        if held is None or not held.choices or held.seen is None:
            raise ConfigError(
                f"no commit of others to the lake table {table} awaits a choice", "there is nothing to do"
            )
        if seen is not None and seen != held.seen:
            raise ConfigError(
                f"others committed to the lake table {table} again", "look at its cause, and choose again"
            )
        if choice not in held.choices:
            raise ConfigError(
                f"the lake table {table} has the columns of its source table, so this commit of others can't be"
                " accepted",
                "undo it and retry the table, or overwrite it",
            )
        return held.seen


_PARTS: Mapping[str, type[PartStatus]] = {
    ENUMERATOR: EnumeratorStatus, SPARK_WRITER: SparkWriterStatus, "reader": ReaderStatus, "writer": WriterStatus,
}  # fmt: skip
"""By name, or by the role in a member's name."""


def part(name: str, body: Any) -> PartStatus | None:
    """Return a part of what Redis has of it, as parsed JSON; None of a service that this version does not know."""
    kind = _PARTS.get(name if name in (ENUMERATOR, SPARK_WRITER) else name.rpartition("-")[0])
    return None if kind is None else read(kind, body)


def _captured(tables: Mapping[str, TableStatus], quarantined: Mapping[str, Held]) -> Mapping[str, TableStatus]:
    found = dict(tables)
    for name, held in quarantined.items():
        table = found.get(name)
        if table is not None and table.generation == held.generation and table.phase != DROPPED:
            found[name] = replace(table, phase=QUARANTINED, cause=held.cause, since=held.since)
    return found
