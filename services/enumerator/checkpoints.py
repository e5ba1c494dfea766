"""Composing a checkpoint (pure): its parts come in one by one, then its journal entry is made of them.

A checkpoint is whole when every member of the plan has reported its part and the enumerator's own is in the store. A
table's entry combines the enumerator's state at the cut with the latest report of the incremental split up to the same
cut, and adds the changes that the checkpoint has of it to those of the entry before. Only the entries of tables that
changed since the last checkpoint are made anew.

What must change together: `CheckpointEntry` and `TableEntry` in common/store/records.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cutline.common.errors import ProtocolError
from cutline.common.mesh.messages import PartSaved, StreamCut, StreamedTable
from cutline.common.mesh.topology import ENUMERATOR, Topology
from cutline.common.phases import CATCH_UP, LIVE
from cutline.common.store.records import ChangeCounts, CheckpointEntry, PartRef, StagedFile, TableEntry
from cutline.services.enumerator.tables import STREAMED, Table


@dataclass(slots=True, kw_only=True)
class Collecting:
    """A checkpoint whose parts are coming in."""

    checkpoint: int
    started_at: float
    ordered: bool = False  # every reader's marker is back, so the enumerator's own part is being saved
    replaced: set[str] = field(default_factory=set)  # see CheckpointEntry
    parts: dict[str, PartRef] = field(default_factory=dict)
    staged: list[StagedFile] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)  # members whose part is whole
    stream: StreamCut | None = None
    streamed: list[StreamedTable] = field(default_factory=list)

    def take_own(self, ref: PartRef) -> None:
        """The enumerator's part is in the store. Refused if it was not ordered."""
        if not self.ordered:
            raise ProtocolError(f"part {self.checkpoint} of the enumerator was stored but never ordered")
        self.parts[ENUMERATOR] = ref

    def take(self, channel: str, saved: PartSaved) -> None:
        """Take a member's part, or one more piece of it. Refused from a member whose part is whole."""
        if channel in self.reported:
            raise ProtocolError(f"{channel} gave its part of checkpoint {saved.checkpoint} twice")
        self.staged += saved.staged
        if saved.stream is not None:
            self.stream = saved.stream
            self.streamed += saved.stream.tables
        if saved.more:
            return
        self.reported.add(channel)
        if saved.part is not None:
            self.parts[channel] = saved.part

    def complete(self, topology: Topology) -> bool:
        """Whether every part is in the store."""
        return ENUMERATOR in self.parts and self.reported == set(topology.members)

    def missing(self, topology: Topology) -> list[str]:
        """The members whose part is not whole yet. The enumerator's is ordered last, so until then it is not missed."""
        members = (*topology.members, *((ENUMERATOR,) if self.ordered else ()))
        return [member for member in members if member not in self.reported and member not in self.parts]

    def entry(
        self, staged: Iterable[StagedFile], tables: Mapping[str, TableEntry], left: int, now: float
    ) -> CheckpointEntry:
        """The journal's entry, without what the leader adds: epoch, nonce and request."""
        stream = self.stream or StreamCut(position=None, source_time=None, inside=False)
        return CheckpointEntry(
            slot=self.checkpoint,
            epoch=0,
            nonce="",
            kept=False,
            inside=stream.inside,
            position=stream.position,
            source_time=stream.source_time,
            started_at=self.started_at,
            written_at=now,
            parts=self.parts,
            staged=tuple(staged),
            replaced=tuple(sorted(self.replaced)),
            tables=tables,
            left=left,
        )

    def check(self, topology: Topology) -> None:
        """Raise ProtocolError if a part is of no member, or of the enumerator before its part was ordered."""
        if unknown := {*self.reported, *self.parts} - {ENUMERATOR, *topology.members}:
            raise ProtocolError(f"checkpoint {self.checkpoint} has parts of {sorted(unknown)}, which the plan lacks")
        if ENUMERATOR in self.parts and not self.ordered:
            raise ProtocolError(f"checkpoint {self.checkpoint} has a part of the enumerator that was never ordered")
        if self.complete(topology):
            raise ProtocolError(f"checkpoint {self.checkpoint} is whole and its entry was not composed")


class Entries:
    """The tables of the newest journal entry, from which the next one's are made."""

    def __init__(self) -> None:
        self._tables: Mapping[str, Table] = {}  # of the newest entry
        self.entered: dict[str, TableEntry] = {}  # the tables of the newest entry
        self._streamed: dict[str, StreamedTable] = {}  # the incremental split's tables at the newest cut

    @classmethod
    def restored(cls, tables: Mapping[str, Table], entered: Mapping[str, TableEntry]) -> Entries:
        """The state after the journal entry with the tables `entered`; `tables` are the enumerator's now."""
        entries = cls()
        entries.entered = {name: entry for name, entry in entered.items() if name in tables}
        entries._streamed = {
            name: StreamedTable(table_id=name, generation=entry.generation, schema=entry.schema or "", live=entry.show)
            for name, entry in entered.items()
            if entry.phase in STREAMED
        }
        entries.enter(dict(tables), ())
        return entries

    def stream(self, changed: Iterable[StreamedTable]) -> set[str]:
        """Take the tables that the incremental split reports at the next entry's cut; return their names."""
        names = set()
        for table in changed:
            names.add(table.table_id)
            if table.generation:
                self._streamed[table.table_id] = table
            else:  # it left the split
                self._streamed.pop(table.table_id, None)
        return names

    def enter(
        self, tables: dict[str, Table], streamed: Collection[str], staged: Iterable[StagedFile] = ()
    ) -> dict[str, TableEntry]:
        """The tables of the next entry. `tables` are the enumerator's at its cut, `streamed` the names of those that
        the incremental split has reported since the last entry, `staged` the files of the next one. An unchanged table
        is the same object."""
        before, entries, more = self._tables, self.entered, _counted(staged)
        if gone := before.keys() - tables.keys():  # removed by a person
            entries = {name: entry for name, entry in entries.items() if name not in gone}
            self._streamed = {name: entry for name, entry in self._streamed.items() if name not in gone}
        changed = {name for name, table in tables.items() if before.get(name) is not table}
        touched = {*streamed, *more}
        if changed := changed.union(tables.keys() & touched):
            made = {}
            for name in changed:
                counts = _captured(tables[name], entries.get(name), more.get(name, NO_CHANGES))
                made[name] = _table_entry(tables[name], self._streamed.get(name), counts)
            entries = entries | made
        self._tables, self.entered = tables, entries
        return entries


NO_CHANGES = ChangeCounts()


def _counted(staged: Iterable[StagedFile]) -> dict[str, ChangeCounts | None]:
    """The changes in these files by table; None where a file does not say."""
    found: dict[str, ChangeCounts | None] = {}
    for file in staged:
        if file.kind == "changes":
            known = found.get(file.table, NO_CHANGES)
            found[file.table] = None if known is None or file.counts is None else known.plus(file.counts)
    return found


def _captured(table: Table, before: TableEntry | None, more: ChangeCounts | None) -> ChangeCounts | None:
    """The changes of a table's generation: those up to the entry before, and more."""
    if before is None or before.generation != table.generation:
        return more
    return None if before.counts is None or more is None else before.counts.plus(more)


def _table_entry(table: Table, streamed: StreamedTable | None, counts: ChangeCounts | None) -> TableEntry:
    own = table.schema or table.before
    phase, schema, show = table.phase, table.schema.hash if table.schema else None, False
    if streamed is not None and streamed.generation == table.generation and phase in STREAMED:
        schema, show = streamed.schema, streamed.live
        phase = LIVE if show else CATCH_UP
    return TableEntry(
        generation=table.generation,
        phase=phase,
        schema=schema,
        show=show,
        cause=table.cause,
        described=own.hash if own is not None and own.hash != schema else None,
        since=table.since,
        counts=counts,
    )
