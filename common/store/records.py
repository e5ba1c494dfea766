"""The records of the store, typed: the only definition of their JSON (pure).

| record | content | written by |
|---|---|---|
| `EpochEntry` | a slot of the journal: an epoch's members, the checkpoint it starts from | the leader |
| `CheckpointEntry` | a slot of the journal: a checkpoint, its parts, staged files, each table's state | the leader |
| `Publication` | a checkpoint is applied: the snapshot of each table's `main` and of its work | the Spark writer |

In memory a record has all tables. In the store it has all of them (a *full* record), or only those that changed since
an earlier record, which it names (`since`): deltas.py chooses which.

Change a field together with `FORMAT`: other versions read it differently. A field that may be absent, as in the records
of the version before, is read as None then, and left out where it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, NewType, TypeVar

from cutline.common.causes import Cause
from cutline.common.phases import Phase
from cutline.common.positions import Position
from cutline.common.store.deltas import fold, since_of
from cutline.common.store.origin import Origin

FORMAT = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRef:
    """A durable file: path below the pipeline's folder, sha256 (hex) and size in bytes.

    `since`: the file is a part with only the changes since that part.
    """

    path: str
    sha256: str
    size: int
    since: PartRef | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        body: dict[str, Any] = {"path": self.path, "sha256": self.sha256, "size": self.size}
        return body if self.since is None else body | {"since": self.since.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PartRef:
        """Read what `to_json` gave."""
        since = since_of(body)
        return cls(
            path=body["path"],
            sha256=body["sha256"],
            size=body["size"],
            since=None if since is None else cls.from_json(since),
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The files needed to read it."""
        return (self.path,) if self.since is None else (self.path, *self.since.paths)


class ColumnMetrics(NamedTuple):
    """What Iceberg records of one column of a data file: the column's bytes there, its null values, and bounds of its
    values in Iceberg's binary form, as hex.

    `nulls` is None for the elements of a list, of which Iceberg knows the size only. A bound is None if there is no
    other value, or none that is short enough.
    """

    field_id: int
    size: int
    nulls: int | None = None
    lower: str | None = None
    upper: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetrics:
    """What Iceberg records of a data file beside its rows and size, so that the lake can adopt it without reading it:
    its columns, and the offset of each row group.
    """

    columns: tuple[ColumnMetrics, ...]
    offsets: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict; a column is an array without its last absent values."""
        return {"columns": [_without_tail(column) for column in self.columns], "offsets": list(self.offsets)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FileMetrics:
        """Read what `to_json` gave."""
        columns = tuple(ColumnMetrics(*column) for column in body["columns"])
        return cls(columns=columns, offsets=tuple(body["offsets"]))


class ChangeCounts(NamedTuple):
    """How many rows changes have inserted, updated and deleted, as they were staged: an update that gives a row another
    key is a delete and an insert."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0

    def plus(self, more: ChangeCounts) -> ChangeCounts:
        """These and more."""
        return ChangeCounts(*map(sum, zip(self, more, strict=True)))


def _counts(body: Mapping[str, Any]) -> ChangeCounts | None:
    """The counts of a record; None if it has none."""
    return None if body.get("counts") is None else ChangeCounts(*body["counts"])


def _without_tail(values: tuple[Any, ...]) -> list[Any]:
    last = max(at for at, value in enumerate(values) if value is not None)
    return list(values[: last + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A durable Parquet file with rows of one table, of one generation and one schema (its hash).

    `kind` is `chunk`, of the split `split` (its id, `#`, the attempt), or `changes`, whose `_seq` run from `seq_min` to
    `seq_max`; `truncated_at` is the `_seq` of the last TRUNCATE among them, `counts` their number by operation. A
    chunk's file may have `metrics`.
    """

    kind: str
    path: str
    sha256: str
    size: int
    rows: int
    table: str
    generation: int
    schema: str
    split: str | None = None
    seq_min: int | None = None
    seq_max: int | None = None
    truncated_at: int | None = None
    counts: ChangeCounts | None = None
    metrics: FileMetrics | None = None

    @property
    def ref(self) -> PartRef:
        """The file."""
        return PartRef(path=self.path, sha256=self.sha256, size=self.size)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, without absent values."""
        body: dict[str, Any] = {
            "kind": self.kind,
            "path": self.path,
            "sha256": self.sha256,
            "size": self.size,
            "rows": self.rows,
            "table": self.table,
            "generation": self.generation,
            "schema": self.schema,
        }
        for name in ("split", "seq_min", "seq_max", "truncated_at", "counts"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        return body if self.metrics is None else body | {"metrics": self.metrics.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StagedFile:
        """Read what `to_json` gave."""
        metrics = body.get("metrics")
        known = None if metrics is None else FileMetrics.from_json(metrics)
        return cls(**{**body, "counts": _counts(body), "metrics": known})


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The services of an epoch, by incarnation: the enumerator, and each role's in the order of their numbers."""

    enumerator: str
    by_role: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, with a list for each role: its name in the plural."""
        lists = {f"{role}s": list(incarnations) for role, incarnations in self.by_role.items()}
        return {"enumerator": self.enumerator, **lists}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Members:
        """Read what `to_json` gave."""
        lists = {name.removesuffix("s"): tuple(found) for name, found in body.items() if name != "enumerator"}
        return cls(enumerator=body["enumerator"], by_role=lists)


Anew = Literal["asked", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """Slot `slot` begins an epoch, which starts from checkpoint `base` (None: from the beginning) because of `cause`.

    `nonce` distinguishes this leader's write from another's. All members use version `definition` of the definition.
    `anew`: every table begins its next generation in this epoch, and the incremental split begins anew at the source's
    present position, since a person asked for it or the source lost the position; a next epoch from the same base does
    that again. `command`: the number of the command that this epoch carries out. `floor`: checkpoints that are not on
    the chain of this epoch had generations up to this number, so it begins none that is not above. `failing_since`:
    when the first epoch ended of those before it that have failed in a row.
    """

    slot: int
    nonce: str
    leader: str
    base: int | None
    members: Members
    cause: Cause
    written_at: float
    definition: int = 1
    anew: Anew | None = None
    command: int | None = None
    floor: int = 0
    failing_since: float | None = None

    @property
    def epoch(self) -> int:
        """Its own slot."""
        return self.slot

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, without absent values."""
        body = {
            "kind": "epoch",
            "slot": self.slot,
            "nonce": self.nonce,
            "leader": self.leader,
            "base": self.base,
            "members": self.members.to_json(),
            "cause": self.cause.to_json(),
            "written_at": self.written_at,
            "definition": self.definition,
            "floor": self.floor,
        }
        rare = {"anew": self.anew, "command": self.command, "failing_since": self.failing_since}
        return body | {name: value for name, value in rare.items() if value is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> EpochEntry:
        """Read what `to_json` gave."""
        return cls(
            slot=body["slot"],
            nonce=body["nonce"],
            leader=body["leader"],
            base=body["base"],
            members=Members.from_json(body["members"]),
            cause=Cause.from_json(body["cause"]),
            written_at=body["written_at"],
            definition=body["definition"],
            anew=body.get("anew"),
            command=body.get("command"),
            floor=body["floor"],
            failing_since=body.get("failing_since"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One table at a checkpoint: its phase, the hash of its schema, and whether the lake may show this cut (`show`).

    `described`: the schema of its snapshot, if the stream has a newer one. `since`: when it entered its phase,
    `counts`: the changes of its generation in the checkpoints up to this one; both are None where unknown.
    """

    generation: int
    phase: Phase
    schema: str | None
    show: bool
    cause: Cause | None = None
    described: str | None = None
    since: float | None = None
    counts: ChangeCounts | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, without absent values."""
        body: dict[str, Any] = {
            "generation": self.generation,
            "phase": self.phase,
            "schema": self.schema,
            "show": self.show,
        }
        rare = {
            "cause": None if self.cause is None else self.cause.to_json(),
            "described": self.described,
            "since": self.since,
            "counts": self.counts,
        }
        return body | {name: value for name, value in rare.items() if value is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TableEntry:
        """Read what `to_json` gave."""
        cause = Cause.from_json(body["cause"]) if "cause" in body else None
        return cls(**{**body, "phase": Phase(body["phase"]), "cause": cause, "counts": _counts(body)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """Slot `slot` is a checkpoint of `epoch`: all parts are in the store, and these staged files belong to it.

    `kept`: a savepoint, which answers `request` and may have a `name`; `inside`: the cut is inside a transaction, so it
    is never published. `position` is the stream's (None: it has read nothing), times are seconds since 1970. `replaced`
    are hashes of schemas that the enumerator's part still names, though reports in flight at the cut changed those
    tables. `left`: tables that have left, and checkpoints that restores left behind, had generations up to this number.
    """

    slot: int
    epoch: int
    nonce: str
    kept: bool
    inside: bool
    position: Position | None
    source_time: float | None
    started_at: float
    written_at: float
    parts: Mapping[str, PartRef]
    staged: tuple[StagedFile, ...]
    tables: Mapping[str, TableEntry] = field(repr=False)
    replaced: tuple[str, ...] = ()
    request: str | None = None
    name: str | None = None
    left: int = 0

    def to_json(self, *, since: int | None, tables: Mapping[str, TableEntry | None]) -> dict[str, Any]:
        """Return a plain dict with these `tables`: all, or those that changed since slot `since`; None: removed.

        The metrics of staged files are beside them, by path.
        """
        body = {
            "kind": "checkpoint",
            "slot": self.slot,
            "epoch": self.epoch,
            "nonce": self.nonce,
            "kept": self.kept,
            "request": self.request,
            "inside": self.inside,
            "position": None if self.position is None else self.position.to_json(),
            "source_time": self.source_time,
            "started_at": self.started_at,
            "written_at": self.written_at,
            "parts": {name: ref.to_json() for name, ref in self.parts.items()},
            "staged": [replace(file, metrics=None).to_json() for file in self.staged],
            "replaced": list(self.replaced),
            "left": self.left,
            "since": since,
            "tables": {name: table and table.to_json() for name, table in tables.items()},
        }
        if self.name is not None:
            body["name"] = self.name
        metrics = {file.path: file.metrics.to_json() for file in self.staged if file.metrics is not None}
        return body | {"metrics": metrics} if metrics else body

    @classmethod
    def from_json(cls, body: Mapping[str, Any], before: Mapping[str, TableEntry]) -> CheckpointEntry:
        """Read what `to_json` gave; `before` are the tables of the slot that it names, {} if it names none."""
        position, metrics = body["position"], body.get("metrics", {})
        return cls(
            slot=body["slot"],
            epoch=body["epoch"],
            nonce=body["nonce"],
            kept=body["kept"],
            request=body["request"],
            name=body.get("name"),
            inside=body["inside"],
            position=None if position is None else Position.from_json(position),
            source_time=body["source_time"],
            started_at=body["started_at"],
            written_at=body["written_at"],
            parts={name: PartRef.from_json(ref) for name, ref in body["parts"].items()},
            staged=tuple(
                StagedFile.from_json({**file, "metrics": metrics.get(file["path"])}) for file in body["staged"]
            ),
            replaced=tuple(body["replaced"]),
            tables=_folded(before, body["tables"], TableEntry.from_json),
            left=body["left"],
        )

    @property
    def highest(self) -> int:
        """The highest number that a generation of any table has had so far."""
        return max(self.left, *(table.generation for table in self.tables.values()), 0)

    @property
    def schemas(self) -> set[str]:
        """The hashes of all schemas that a restore from this checkpoint, or its application to the lake, needs."""
        named = {name for table in self.tables.values() for name in (table.schema, table.described) if name}
        return named | {file.schema for file in self.staged} | set(self.replaced)


Entry = EpochEntry | CheckpointEntry
"""The content of one slot of the journal."""


Content = NewType("Content", str)
"""What a sink calls the rows of a table at one moment, for good: it may be shown later. Only the sink reads it."""
Place = NewType("Place", str)
"""Where a sink goes on from a content. Only the sink reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The applied state of one table: its content and place in the sink, its generation, the hash of its schema, and
    the rows of the content (None: unknown)."""

    content: Content
    place: Place
    generation: int
    schema: str
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, without unknown rows."""
        body: dict[str, Any] = {"content": self.content, "place": self.place, "generation": self.generation}
        body["schema"] = self.schema
        return body if self.rows is None else body | {"rows": self.rows}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Work:
        """Read what `to_json` gave."""
        return cls(**body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Main:
    """The content that a table shows to its readers, its rows (None: unknown), its position (None: the publication's
    position), and with a position of its own its origin."""

    content: Content
    position: Position | None = None
    rows: int | None = None
    origin: Origin | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict; it omits a position that equals the publication's, and what is unknown."""
        body: dict[str, Any] = {"content": self.content}
        body |= {} if self.rows is None else {"rows": self.rows}
        body |= {} if self.origin is None else {"origin": list(self.origin)}
        return body if self.position is None else body | {"position": self.position.to_json()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Main:
        """Read what `to_json` gave."""
        position = body.get("position")
        at = None if position is None else Position.from_json(position)
        origin = Origin(*body["origin"]) if "origin" in body else None
        return cls(content=Content(body["content"]), position=at, rows=body.get("rows"), origin=origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why the Spark writer leaves a table out, and from which checkpoint it can continue.

    `generation` is the one that could not be applied, `since` then. `applied` is the last checkpoint whose rows the
    table's work holds; the files staged after it complete the table. None: the work itself is lost, so only the next
    generation restores the table.
    """

    cause: Cause
    generation: int
    applied: int | None
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """What a derived table's work was made of, at the time `at`: the query, by `DerivedTable.query`, and the content of
    each table that it read. A table without work has none of these."""

    query: str = ""
    reads: Mapping[str, Content] = field(default_factory=dict)
    at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {"query": self.query, "reads": dict(self.reads), "at": self.at}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Derivation:
        """Read what `to_json` gave."""
        return cls(**body)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One table of a publication; `main` is None if the lake shows no rows yet, `work` if it has none.

    `held`: the Spark writer has quarantined the table. `derived`: it is a derived table.
    """

    state: str
    generation: int
    main: Main | None
    work: Work | None
    held: Quarantine | None = None
    derived: Derivation | None = None

    @property
    def shown(self) -> bool:
        """Whether `main` shows this publication's cut, and not an older one's."""
        return self.main is not None and self.main.position is None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        body: dict[str, Any] = {
            "state": self.state,
            "generation": self.generation,
            "main": None if self.main is None else self.main.to_json(),
            "work": None if self.work is None else self.work.to_json(),
        }
        body |= {} if self.derived is None else {"derived": self.derived.to_json()}
        if self.held is None:
            return body
        body |= {"cause": self.held.cause.to_json(), "applied": self.held.applied}
        return body if self.held.since is None else body | {"held_since": self.held.since}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> PublishedTable:
        """Read what `to_json` gave."""
        held = None
        if "applied" in body:
            held = Quarantine(
                cause=Cause.from_json(body["cause"]),
                generation=body["generation"],
                applied=body["applied"],
                since=body.get("held_since"),
            )
        return cls(
            state=body["state"],
            generation=body["generation"],
            main=None if body["main"] is None else Main.from_json(body["main"]),
            work=None if body["work"] is None else Work.from_json(body["work"]),
            held=held,
            derived=Derivation.from_json(body["derived"]) if "derived" in body else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Checkpoint `n` is applied, by start `w` of the Spark writer: the commit point."""

    n: int
    epoch: int
    w: int
    kept: bool
    position: Position | None
    source_time: float | None
    published_at: float
    tables: Mapping[str, PublishedTable] = field(repr=False)

    def position_of(self, table: str) -> Position | None:
        """The position of the content of a table's `main`."""
        main = self.tables[table].main
        return None if main is None else main.position or self.position

    def to_json(self, *, since: int | None, tables: Mapping[str, PublishedTable | None]) -> dict[str, Any]:
        """Return a plain dict with these `tables`: all, or those that changed since publication `since`; None:
        removed."""
        return {
            "n": self.n,
            "epoch": self.epoch,
            "w": self.w,
            "kept": self.kept,
            "position": None if self.position is None else self.position.to_json(),
            "source_time": self.source_time,
            "published_at": self.published_at,
            "since": since,
            "tables": {name: table and table.to_json() for name, table in tables.items()},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], before: Mapping[str, PublishedTable]) -> Publication:
        """Read what `to_json` gave; `before` are the tables of the publication that it names, {} if it names none."""
        position = body["position"]
        return cls(
            n=body["n"],
            epoch=body["epoch"],
            w=body["w"],
            kept=body["kept"],
            position=None if position is None else Position.from_json(position),
            source_time=body["source_time"],
            published_at=body["published_at"],
            tables=_folded(before, body["tables"], PublishedTable.from_json),
        )


def _folded(before: Mapping[str, T], changed: Mapping[str, Any], read: Callable[[Any], T]) -> dict[str, T]:
    """The tables of a record: those before, with those that it gives; None for one that was removed."""
    return fold(before, {name: None if body is None else read(body) for name, body in changed.items()})
