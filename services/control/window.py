"""The newest entries of a pipeline's journal, in memory as what the API shows of them.

An entry never changes, so it is read once; what is kept of it is small, however many tables the pipeline has.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cutline.common.store.deltas import changes
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, TableEntry
from cutline.common.store.store import PipelineStore

WINDOW = 500
MOST_EVENTS = 5_000
LARGEST_TABLES = 50
LISTED_SECONDS = 10.0
_SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch entry."""

    slot: int
    base: int | None
    leader: str
    services: Mapping[str, tuple[str, ...]]  # incarnations by role
    written_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What one table staged in a checkpoint."""

    table: str
    files: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint entry; `parts` are bytes by member, `chunks` the numbers of the chunks that it holds, by table and
    generation, `largest` the tables that staged most."""

    slot: int
    epoch: int
    kept: bool
    name: str | None
    inside: bool
    position: Mapping[str, Any] | None
    source_time: float | None
    started_at: float
    written_at: float
    files: int
    rows: int
    size: int
    parts: Mapping[str, int]
    chunks: Mapping[tuple[str, int], tuple[int, ...]] = field(repr=False)
    largest: tuple[Staged, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An event in the journal; `id` orders events (`slot.number`)."""

    slot: int
    number: int
    at: float
    kind: str
    text: str
    table: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order."""
        return self.slot, self.number

    @property
    def id(self) -> str:
        """Its place as text, for cursors and Last-Event-ID."""
        return f"{self.slot}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSince:
    """A table has had this schema (its hash) since checkpoint `slot`, or since before it if that is the window's
    first."""

    slot: int
    at: float
    generation: int
    schema: str


class Window:
    """The last WINDOW entries at the first look, and all that came since, up to twice as many.

    `refresh` blocks and may be called by any thread; the attributes may be read meanwhile.
    """

    def __init__(self, store: PipelineStore) -> None:
        """Nothing is read before the first `refresh`."""
        self._store = store
        self._lock = threading.Lock()
        self._listed_at = float("-inf")
        self.checkpoints: dict[int, Checkpoint] = {}
        self.epochs: dict[int, Epoch] = {}
        self.events: deque[Happened] = deque(maxlen=MOST_EVENTS)
        self.changed_at: dict[str, float] = {}  # table -> source time of the last checkpoint that has a change of it
        self.schemas: dict[str, list[SchemaSince]] = {}
        self.tables: Mapping[str, TableEntry] = {}  # of the newest checkpoint
        self.newest = 0
        self.released: set[int] = set()  # savepoints that are no longer kept, as of the last listing
        self._kept: dict[int, Checkpoint] = {}  # of entries that were never in the window
        self._looked_at: set[int] = set()
        self._known = False  # `tables` are those before the next entry

    def refresh(self) -> bool:
        """Take the entries that are new. False if the journal is another one, because the pipeline was deleted: make
        another window, of a store that remembers nothing. Raises Unavailable, or ProtocolError if an entry is corrupt.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._listed_at >= LISTED_SECONDS:
                last = max(self._store.slots(), default=0)
                if last < self.newest:
                    return False
                first = max(self.newest, last - WINDOW) + 1
                self._known = first == 1 or (self._known and first == self.newest + 1)
                self._read(range(first, last + 1))
                self.released = self._store.removal.released()
                self._listed_at = now
            else:  # of a pipeline without a listed entry, the first one may have come
                while (entry := self._store.entry(self.newest + 1)) is not None:
                    self._take(entry)
            return True

    def epoch(self) -> Epoch | None:
        """The newest epoch."""
        return self.epochs[next(reversed(self.epochs))] if self.epochs else None

    def savepoints(self) -> list[Checkpoint]:
        """The kept checkpoints that the journal still has, newest first. Blocks; older entries are read once."""
        slots = self._store.slots()
        older = [slot for slot in slots if slot not in self._looked_at and slot not in self.checkpoints]
        for slot in older:
            entry = self._store.entry(slot)
            if isinstance(entry, CheckpointEntry) and entry.kept:
                self._kept[slot] = _seen(entry)
            self._looked_at.add(slot)
        self._looked_at.intersection_update(slots)
        self.released = self._store.removal.released()
        found = self._kept | {slot: seen for slot, seen in self.checkpoints.items() if seen.kept}
        return [found[slot] for slot in sorted(found.keys() & set(slots) - self.released, reverse=True)]

    def _read(self, slots: Sequence[int]) -> None:
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="cutline-journal") as pool:
            for at in range(0, len(slots), _SIDE_BY_SIDE):  # each entry may have 10,000 tables: few at one time
                part = slots[at : at + _SIDE_BY_SIDE]
                for slot, entry in zip(part, pool.map(self._store.entry, part), strict=True):
                    if entry is not None:
                        self._take(entry)
                    else:  # removed
                        self._known, self.newest = False, slot

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, EpochEntry):
            self._epoch(entry)
        else:
            self._checkpoint(entry)
        self.newest = entry.slot
        for kept in (self.checkpoints, self.epochs):
            while kept and next(iter(kept)) < entry.slot - 2 * WINDOW:
                del kept[next(iter(kept))]

    def _epoch(self, entry: EpochEntry) -> None:
        self.epochs[entry.slot] = Epoch(
            slot=entry.slot,
            base=entry.base,
            leader=entry.leader,
            services=entry.members.by_role,
            written_at=entry.written_at,
        )
        members = " and ".join(f"{len(found)} {role}s" for role, found in entry.members.by_role.items())
        text = f"epoch {entry.slot} with {members}: {entry.cause}"
        self._happened(entry, itertools.count(), "epoch", text)

    def _checkpoint(self, entry: CheckpointEntry) -> None:
        self.checkpoints[entry.slot] = _seen(entry)
        for file in entry.staged:
            if file.kind == "changes" and entry.source_time is not None:
                self.changed_at[file.table] = entry.source_time
        numbers = itertools.count()
        if entry.kept:
            named = f" as {entry.name}" if entry.name else ""
            self._happened(entry, numbers, "kept", f"checkpoint {entry.slot} is kept{named}")
        for table, now in sorted(changes(entry.tables, self.tables).items()):
            before = self.tables.get(table)
            if now is None:
                if self._known:
                    self._happened(entry, numbers, "table", f"{table} is no longer captured", table)
                continue
            if now.schema is not None and (before is None or before.schema != now.schema):
                since = SchemaSince(
                    slot=entry.slot, at=entry.written_at, generation=now.generation, schema=now.schema
                )
                self.schemas.setdefault(table, []).append(since)
            same = before is not None and (before.generation, before.phase) == (now.generation, now.phase)
            if self._known and not same:
                cause = f": {now.cause}" if now.cause else ""
                text = f"{table} is {now.phase} in generation {now.generation}{cause}"
                self._happened(entry, numbers, "table", text, table)
        self.tables, self._known = entry.tables, True

    def _happened(
        self, entry: Entry, numbers: itertools.count[int], kind: str, text: str, table: str | None = None
    ) -> None:
        self.events.append(
            Happened(
                slot=entry.slot, number=next(numbers), at=entry.written_at, kind=kind, text=text, table=table
            )
        )


def _staged(entry: CheckpointEntry) -> tuple[dict[str, Staged], dict[tuple[str, int], tuple[int, ...]]]:
    """What each table staged, and the numbers of its chunks."""
    files: dict[str, list[int]] = {}
    chunks: dict[tuple[str, int], list[int]] = {}
    for file in entry.staged:
        sums = files.setdefault(file.table, [0, 0, 0])
        sums[0] += 1
        sums[1] += file.rows
        sums[2] += file.size
        if file.split is not None:
            number = file.split.rpartition("#")[0].rpartition(":")[2]
            if number.isdecimal():
                chunks.setdefault((file.table, file.generation), []).append(int(number))
    tables = {
        table: Staged(table=table, files=count, rows=rows, size=size) for table, (count, rows, size) in files.items()
    }
    return tables, {key: tuple(numbers) for key, numbers in chunks.items()}


def _seen(entry: CheckpointEntry) -> Checkpoint:
    tables, chunks = _staged(entry)
    return Checkpoint(
        slot=entry.slot,
        epoch=entry.epoch,
        kept=entry.kept,
        name=entry.name,
        inside=entry.inside,
        position=None if entry.position is None else entry.position.to_json(),
        source_time=entry.source_time,
        started_at=entry.started_at,
        written_at=entry.written_at,
        files=len(entry.staged),
        rows=sum(staged.rows for staged in tables.values()),
        size=sum(staged.size for staged in tables.values()),
        parts={member: ref.size for member, ref in entry.parts.items()},
        chunks=chunks,
        largest=tuple(sorted(tables.values(), key=lambda staged: -staged.size)[:LARGEST_TABLES]),
    )
