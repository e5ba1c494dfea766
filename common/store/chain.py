"""The chain of valid checkpoints, the next batch to apply, and the content of a publication (pure).

The journal's epoch entries fork history: each names the checkpoint that it starts from (`base`). The *chain* is the
valid history: from the newest epoch entry back by `base`, so the checkpoints of that epoch, then those of the base's
epoch up to the base, and so on. Checkpoints and publications off the chain are ignored (a later epoch reads their rows
again).

Promises: entries are applied in the chain's order, each once on one branch; a cut `inside` a transaction is applied and
never published; a kept cut ends its batch, so that it has a publication, and a tag, of its own; a batch never spans a
TRUNCATE or a table's change of generation. A table that the Spark writer has quarantined is left out, and its
publication names the last checkpoint applied to it, from which it continues later.

Relies on: slots have no gaps, and the slots between an epoch entry and the next one are that epoch's checkpoints
(put-if-absent; a deposed leader is refused its slot). Production (spark_writer/apply.py) and the simulation both use
it; change both together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cutline.common.errors import ProtocolError
from cutline.common.store.records import (
    CheckpointEntry,
    Entry,
    EpochEntry,
    Main,
    Publication,
    PublishedTable,
    Quarantine,
    Work,
    changes,
)

BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The valid checkpoints: `segments` are (epoch slot, its last valid checkpoint slot), newest first.

    `behind` is the last checkpoint whose entry was removed (0: none): those up to it were valid and applied.
    """

    segments: tuple[tuple[int, int], ...] = ()
    behind: int = 0

    def __contains__(self, checkpoint: object) -> bool:
        return isinstance(checkpoint, int) and (
            0 < checkpoint <= self.behind or any(epoch < checkpoint <= last for epoch, last in self.segments)
        )

    def after(self, checkpoint: int) -> list[int]:
        """Return the slots of the chain's checkpoints above `checkpoint`, oldest first.

        ProtocolError if the journal does not have them all.
        """
        if checkpoint < self.behind:
            raise ProtocolError(
                f"journal entry {self.behind} is missing, though the chain includes it; restore it from a backup"
            )
        return [slot for epoch, last in reversed(self.segments) for slot in range(max(epoch, checkpoint) + 1, last + 1)]

    def newest(self, published: Iterable[int]) -> int | None:
        """Return the newest of the publications `published` that is on the chain, or None."""
        return max((n for n in published if n in self), default=None)


def follow(last_slot: int, entry: Callable[[int], Entry | None], published: Collection[int] = ()) -> Chain:
    """Follow the chain back from journal slot `last_slot` (0: an empty journal); `entry` looks up an entry.

    Stops at a segment that holds one of `published` (older ones don't matter), at the beginning, or where older entries
    were removed. ProtocolError if the newest entry is missing.
    """
    segments: list[tuple[int, int]] = []
    last: int | None = last_slot or None
    while last is not None:
        found = entry(last)
        if found is None:
            if not segments:
                raise ProtocolError(f"journal entry {last}, the newest, is missing; restore it from a backup")
            return Chain(segments=tuple(segments), behind=last)
        segments.append((found.epoch, last))
        if any(found.epoch < n <= last for n in published):
            break
        begin = entry(found.epoch)
        if begin is None:  # removed, with all entries before it
            return Chain(segments=tuple(segments), behind=found.epoch)
        if not isinstance(begin, EpochEntry):
            raise ProtocolError(
                f"journal entry {found.epoch} is no epoch entry, though checkpoint {last} names it as its epoch;"
                " restore the journal from a backup"
            )
        if begin.base is not None and begin.base >= found.epoch:
            raise ProtocolError(
                f"epoch entry {found.epoch} starts from checkpoint {begin.base}, which is not before it; restore"
                " the journal from a backup"
            )
        last = begin.base
    return Chain(segments=tuple(segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Checkpoint entries to apply together; `publish`: the last one may then be published; `kept`: as a kept cut.

    `kept` is also true if the kept cut was one before the last that can't be published: its tag waits for the next
    publishable cut.
    """

    entries: tuple[CheckpointEntry, ...]
    publish: bool
    kept: bool

    @property
    def last(self) -> int:
        """Slot of the last entry."""
        return self.entries[-1].slot


def next_batch(
    entries: Sequence[CheckpointEntry],
    *,
    kept_pending: bool = False,
    generations: Mapping[str, int] | None = None,
    publish_from: int = 0,
    max_rows: int = BATCH_ROWS,
) -> Batch | None:
    """Choose the next batch of `entries`, the chain's checkpoints not applied yet, oldest first; None if none.

    `kept_pending`: an applied cut that could not be published was a kept one. `generations` are those on the branch
    now. An `inside` cut is not publishable, and none before `publish_from`: there the store takes no publication any
    more (`Removal.retired`), though a restore that retention made way for goes on from there. The batch is as
    long as possible and ends with the last publishable entry; without one it has only cuts that are not. It ends before
    more than `max_rows` staged rows, but has one entry at least.
    """
    end, rows, publishable, kept = 0, 0, 0, kept_pending
    current = dict(generations or {})
    for at, entry in enumerate(entries):
        staged = [file for file in entry.staged if file.rows]
        rows += sum(file.rows for file in staged)
        tables = entries[at - 1].tables if at else {}
        changed = {name: table.generation for name, table in changes(entry.tables, tables).items() if table is not None}
        changed |= {file.table: file.generation for file in staged}
        restarts = any(current.get(table, generation) != generation for table, generation in changed.items())
        truncates = any(file.truncated_at is not None for file in staged)
        if at and (restarts or truncates or rows > max_rows):
            break
        current |= changed
        end = at + 1
        kept = kept or entry.kept
        if not entry.inside and entry.slot >= publish_from:
            publishable = end
            if kept:
                break
    if not end:
        return None
    chosen = tuple(entries[: publishable or end])
    return Batch(entries=chosen, publish=publishable > 0, kept=kept_pending or any(entry.kept for entry in chosen))


def only(entry: CheckpointEntry, table: str) -> CheckpointEntry:
    """Return a checkpoint's entry reduced to one table."""
    tables = {table: entry.tables[table]} if table in entry.tables else {}
    return replace(entry, staged=tuple(file for file in entry.staged if file.table == table), tables=tables)


def publication(
    entry: CheckpointEntry,
    *,
    w: int,
    kept: bool,
    work: Mapping[str, Work],
    previous: Publication | None,
    published_at: float,
    quarantined: Mapping[str, Quarantine] = MappingProxyType({}),
) -> Publication:
    """Return the record that checkpoint `entry` is applied, to be put if absent: the commit point.

    `work` has the applied state of each table in the lake; `previous` is the newest publication on the chain;
    `quarantined` are the tables that the Spark writer could not apply. A table goes to `main` if the entry has `show`
    and the table is not quarantined; otherwise `main` keeps its snapshot and position. Unchanged tables are the same
    objects in both records. ProtocolError for an `inside` cut, or a table to show that was not applied.
    """
    n = entry.slot
    if entry.inside:
        raise ProtocolError(f"checkpoint {n} is inside a transaction and can't be published")
    tables: dict[str, PublishedTable] = {}
    for table, at_cut in entry.tables.items():
        done, before = work.get(table), None if previous is None else previous.tables.get(table)
        held = quarantined.get(table)
        if at_cut.show and held is None:
            if done is None or done.generation != at_cut.generation:
                raise ProtocolError(f"table {table} is live in checkpoint {n} but its generation was never applied")
            main = Main(snapshot_id=done.snapshot_id)
        elif previous is None or before is None or before.main is None:
            main = None
        else:
            main = Main(snapshot_id=before.main.snapshot_id, position=previous.position_of(table))
        state, generation = (at_cut.phase, at_cut.generation) if held is None else ("quarantined", held.generation)
        now = PublishedTable(state=state, generation=generation, main=main, work=done, held=held)
        tables[table] = now if before is None or now != before else before
    return Publication(
        n=n,
        epoch=entry.epoch,
        w=w,
        kept=kept,
        position=entry.position,
        source_time=entry.source_time,
        published_at=published_at,
        tables=tables,
    )


def may_show(shown: tuple[int, int], *, w: int, n: int, own: bool, chain: Callable[[int], Chain]) -> bool:
    """Whether Spark writer `w` may move `main` to publication `n`, where `main` shows `shown`, a (w, N).

    Never after a newer writer; replace an older cut of our own, else only one that left the chain. `own`: `n` shows the
    table at its own cut. If instead `n` only repeats an older publication's snapshot, `main` shows that one already, or
    a later one that `w` did not know, and may only replace one off the chain. `chain(back)` reads the journal, back to
    that checkpoint, *after* `shown` was read: an older view would lack the publications of other starts since then, and
    `main` would go back.
    """
    shown_w, shown_n = shown
    return shown_w <= w and ((own and shown_n <= n) or shown_n not in chain(min(shown_n, n)))
