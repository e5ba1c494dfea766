"""The messages of the mesh, and their form on the wire.

enumerator -> reader : AssignSplits, TakeBackSplit, IncludeTable, ExcludeTable, PauseTable, StopStream,
                       LimitStream, EndStream, Throttle, Marker
reader -> enumerator : SplitsWanted, SplitReleased, SplitReport, SplitFailed, TableReport, TablePaused,
                       StreamCaughtUp, StreamStopped, CheckpointWanted, PartSaved, Marker
reader -> writer     : Records, ChunkEnd, ChunkDropped, Marker
writer -> enumerator : PartSaved

A message is a frozen dataclass. On the wire it is a JSON header and, for `Records`, a body: Arrow IPC bytes, which this
file passes on unread. The header's keys are the names of the literature in camelCase (splitId, tableId, splitKeyType,
splitStart, splitEnd).

The enumerator's part holds reports that were in flight in this form (SplitReport, SplitFailed, TableReport,
TablePaused, StreamStopped): their JSON must stay readable by later versions. All other messages live within one epoch.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from cutline.common.causes import Cause
from cutline.common.errors import ProtocolError
from cutline.common.limits import Limits
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import TableSchema
from cutline.common.store.records import PartRef, StagedFile

T = TypeVar("T")
Key = tuple[Any, ...]
"""The values of a key's columns, as JSON-able literals printed by MySQL itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSplit:
    """A chunk: the rows of `table_id` with split_start <= key < split_end (None: no bound), read by one SELECT.

    The key is the identity or, if set, the columns `split_key`, of which the identity is the last.
    """

    split_id: str
    table_id: str
    generation: int
    attempt: int
    split_key_type: tuple[str, ...]
    split_start: Key | None
    split_end: Key | None
    schema: TableSchema
    split_key: tuple[str, ...] = ()

    @property
    def ordered(self) -> TableSchema:
        """The schema, keyed by the columns of the bounds."""
        return self.schema.keyed(self.split_key) if self.split_key else self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSplit:
    """A finished chunk, with `chunks: exact`: its range and its high watermark, for the incremental split."""

    split_start: Key | None
    split_end: Key | None
    high: High


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message on a channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Message):
    """Separates the messages before checkpoint `checkpoint` from those after it, on one channel."""

    checkpoint: int
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignSplits(Message):
    """Read these chunks."""

    splits: tuple[SnapshotSplit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBackSplit(Message):
    """Give this split back if you have not started it."""

    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncludeTable(Message):
    """Add the table to the incremental split: send every change after `low` that its chunks don't hold.

    `splits` is empty with `chunks: replay`; with `exact` it lists every finished chunk. A long list comes in several
    messages, of which all but the last have `more` set. Without a snapshot `schema` is the catalogue's and has every
    DDL that `looked_at` covers; at `low` the table may have had another schema.
    """

    table_id: str
    generation: int
    schema: TableSchema
    low: Low
    high: High
    splits: tuple[CompletedSplit, ...] = ()
    looked_at: Low | None = None
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeTable(Message):
    """Drop the table from the incremental split."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTable(Message):
    """Take the table out of the incremental split between two transactions, and report from where it can go on."""

    table_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStream(Message):
    """Read no more of the binlog: every table is live, and the pipeline is `start: snapshot-only`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStream(Message):
    """Read the binlog no further than `stop`."""

    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStream(Message):
    """The source has passed the stop, which is at `place`: end there, and report the tables that can't be shown
    there."""

    place: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Message):
    """Keep this share of the pipeline's limits from now on. A reader begins an epoch without limits."""

    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitsWanted(Message):
    """The reader has room for `free` splits, in addition to those that it asked for earlier in this epoch."""

    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReleased(Message):
    """The reader gives back a split that it has not started."""

    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport(Message):
    """A chunk is read, and its rows are sent: goes out in one step with its `ChunkEnd`.

    With `cut_at` its SELECT was ended early, before that key: the rest must be read as another chunk.
    """

    split_id: str
    table_id: str
    generation: int
    attempt: int
    rows: int
    checksum: str
    low: Low
    high: High
    schema: TableSchema
    cut_at: Key | None = None


class Remedy(StrEnum):
    """What to do about a chunk that can't be read."""

    RETRY = "retry"  # read this chunk again
    WAIT = "wait"  # another session has locked the table: read others, and this chunk again later
    RESTART = "restart"  # read the table again from its beginning, as its next generation
    QUARANTINE = "quarantine"  # stop the table: a person decides


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFailed(Message):
    """A chunk can't be read."""

    split_id: str
    table_id: str
    generation: int
    attempt: int
    cause: Cause
    remedy: Remedy = Remedy.QUARANTINE


class TableState(StrEnum):
    """What the incremental split reports of a table."""

    LIVE = "live"  # main has passed its highest high watermark
    RESTART = "restart"  # the stream can't go on with it: read it again, as its next generation
    FAULT = "fault"  # the stream can't go on with it: quarantine it


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport(Message):
    """The incremental split's report of a table; `cause` says why, if the table is not live."""

    table_id: str
    generation: int
    state: TableState
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePaused(Message):
    """The answer to `PauseTable`: the table is out of the incremental split. An `IncludeTable` with these values goes
    on where it ended. A long list of splits comes in several messages, of which all but the last have `more` set."""

    table_id: str
    generation: int
    schema: TableSchema
    low: Low
    high: High
    splits: tuple[CompletedSplit, ...] = ()
    looked_at: Low | None = None
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCaughtUp(Message):
    """The incremental split has read the changes that waited at the source when the epoch began, or goes on after the
    source had fallen silent inside a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStopped(Message):
    """The incremental split has reached the stop and reads no more changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWanted(Message):
    """The reader has sent half of the rows that it may send without a complete checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records(Message):
    """Rows of one table: part of a chunk (`split_id` is set), or changes (`_seq` in the body counts from
    `seq_base`)."""

    table_id: str
    generation: int
    schema: str
    rows: int
    split_id: str | None = None
    attempt: int = 0
    seq_base: int = 0
    body: Any = dataclasses.field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEnd(Message):
    """All rows of this (split, attempt) are sent. Its file belongs to the checkpoint whose marker follows."""

    split_id: str
    table_id: str
    generation: int
    attempt: int
    rows: int
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDropped(Message):
    """The attempt failed: its file must be dropped."""

    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTable:
    """One table of the incremental split at a cut. `schema` is a hash. Generation 0: the split no longer has it."""

    table_id: str
    generation: int
    schema: str
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCut:
    """The incremental split at a cut. `tables` are those that changed since the cut before, or, at the first of an
    epoch, since the epoch's base."""

    position: Position | None
    source_time: float | None
    inside: bool
    tables: tuple[StreamedTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSaved(Message):
    """A member's part of `checkpoint` is in the store. Readers give `part` and, if they hold the stream, `stream`;
    writers give `staged`. A long one comes in several messages, of which all but the last have `more` set."""

    checkpoint: int
    part: PartRef | None = None
    staged: tuple[StagedFile, ...] = ()
    stream: StreamCut | None = None
    more: bool = False


PIECE = 2000
"""The most tables, files or splits in one message, so that its header stays far below a channel's limit."""


def pieces(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in pieces of at most `PIECE`; at least one, which may be empty."""
    return [items[at : at + PIECE] for at in range(0, len(items), PIECE)] or [items]


_TYPES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        Marker, AssignSplits, TakeBackSplit, IncludeTable, ExcludeTable, StopStream, LimitStream, EndStream, Throttle,
        SplitsWanted, SplitReleased, SplitReport, SplitFailed, TableReport, StreamCaughtUp, StreamStopped, Records,
        ChunkEnd, ChunkDropped, PartSaved, PauseTable, TablePaused, CheckpointWanted,
    )
}  # fmt: skip


def camel(name: str) -> str:
    """The header's key of an attribute: `split_id` -> `splitId`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


@cache
def _fields(cls: type) -> tuple[tuple[str, str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((f.name, camel(f.name), hints[f.name]) for f in dataclasses.fields(cls) if f.name != "body")


def to_plain(value: Any) -> Any:
    """A message, split, watermark or schema as plain JSON data."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: to_plain(getattr(value, name)) for name, key, _ in _fields(type(value))}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(hint: Any, data: Any) -> Any:
    """The value of type `hint` from which `to_plain` made `data`."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return from_plain(hint, data)
    if origin is tuple:
        return tuple(from_plain(typing.get_args(hint)[0], item) for item in data)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(data)
    if hasattr(hint, "from_json"):
        return hint.from_json(data)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        known = {name: data[key] for name, key, _ in _fields(hint) if key in data}
        return hint(**{name: from_plain(typ, known[name]) for name, _, typ in _fields(hint) if name in known})
    return data


def encode(message: Message) -> dict[str, Any]:
    """The header of `message`: {"type": ..., camelCase fields}. The body of `Records` is not in it."""
    return {"type": type(message).__name__, **to_plain(message)}


def decode(header: dict[str, Any], body: Any = None) -> Message:
    """The message of a header. Raises ProtocolError if the header is unknown or incomplete."""
    cls = _TYPES.get(str(header.get("type")))
    if cls is None:
        raise ProtocolError(
            f"message type {header.get('type')!r} is not known to this version", "run one version of Cutline in a mesh"
        )
    try:
        message: Message = from_plain(cls, header)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ProtocolError(
            f"message {cls.__name__} can't be read: {error}", "run one version of Cutline in a mesh"
        ) from error
    if body is not None and isinstance(message, Records):
        message = dataclasses.replace(message, body=body)
    return message
