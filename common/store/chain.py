"""Which checkpoints count, what to apply next, and what a publication says (pure).

The journal's epoch entries fork history: each names the checkpoint that it goes on from (`base`). The *chain* is the
one history that counts: from the newest epoch entry back by `base`, so the checkpoints of that epoch, then those of the
base's epoch up to the base, and so on. Checkpoints and publications off the chain are as if they had never been
(their rows are read again by a later epoch).

What is promised: entries are applied in the chain's order, each once on one branch; a cut `inside` a transaction is
applied and never published; a kept cut is published by itself, so that its tag can be made; nothing is applied together
over a `t` (TRUNCATE) or a table's change of generation. A table that the Spark writer has quarantined is left out, and
its publication says up to where it is applied: from there it goes on when it comes back.

Relied on: slots are used without a hole, and the slots between an epoch entry and the next one are that epoch's
checkpoints (put-if-absent; a deposed leader is refused its slot). Used by production (spark_writer/apply.py) and by the
simulation alike; change both together.
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
    """The checkpoints that count: `segments` are (epoch slot, last checkpoint slot of it that counts), newest first.

    `behind` is the last one of which the journal has nothing any more (0: none): what is up to it counted, and is past.
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
                f"journal entry {self.behind} is missing though the chain leads over it; restore it from a backup"
            )
        return [slot for epoch, last in reversed(self.segments) for slot in range(max(epoch, checkpoint) + 1, last + 1)]

    def newest(self, published: Iterable[int]) -> int | None:
        """Return the newest of the publications `published` that is on the chain, or None."""
        return max((n for n in published if n in self), default=None)


def follow(last_slot: int, entry: Callable[[int], Entry | None], published: Collection[int] = ()) -> Chain:
    """Follow the chain back from journal slot `last_slot` (0: an empty journal); `entry` looks an entry up.

    Goes back until a segment holds one of `published` (no older one matters), to the beginning, or to where older
    entries were removed. ProtocolError if the newest entry is missing.
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
        if begin is None:  # removed, with what was before it
            return Chain(segments=tuple(segments), behind=found.epoch)
        if not isinstance(begin, EpochEntry):
            raise ProtocolError(f"journal entry {found.epoch} is no epoch's, though checkpoint {last} is of it")
        if begin.base is not None and begin.base >= found.epoch:
            raise ProtocolError(
                f"the epoch entry {found.epoch} goes on from checkpoint {begin.base}, which is not before it"
            )
        last = begin.base
    return Chain(segments=tuple(segments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Checkpoint entries to apply in one go; `publish`: the last one may then be published, `kept`: as a kept cut.

    `kept` is also true if the kept cut was an `inside` one before the last: its tag waits for the next that can be
    published.
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
    max_rows: int = BATCH_ROWS,
) -> Batch | None:
    """Choose what to apply next of `entries`, the chain's checkpoints not applied yet, oldest first; None if none.

    `kept_pending`: an applied `inside` cut was a kept one. `generations` are those that the branch holds now. The batch
    goes as far as it may, to the last entry that can be published if there is one; only then are `inside` cuts applied
    by themselves. More than `max_rows` staged rows end it, but one entry is always taken.
    """
    end, rows, publishable, kept = 0, 0, 0, kept_pending
    current = dict(generations or {})
    for at, entry in enumerate(entries):
        staged = [file for file in entry.staged if file.rows]
        rows += sum(file.rows for file in staged)
        tables = entries[at - 1].tables if at else {}
        changed = {table: said.generation for table, said in changes(entry.tables, tables).items() if said is not None}
        changed |= {file.table: file.generation for file in staged}
        restarts = any(current.get(table, generation) != generation for table, generation in changed.items())
        truncates = any(file.truncated_at is not None for file in staged)
        if at and (restarts or truncates or rows > max_rows):
            break
        current |= changed
        end = at + 1
        kept = kept or entry.kept
        if not entry.inside:
            publishable = end
            if kept:
                break
    if not end:
        return None
    chosen = tuple(entries[: publishable or end])
    return Batch(entries=chosen, publish=publishable > 0, kept=kept_pending or any(entry.kept for entry in chosen))


def only(entry: CheckpointEntry, table: str) -> CheckpointEntry:
    """Return what a checkpoint's entry says of one table."""
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

    `work` has the applied state of each table that the lake has; `previous` is the newest publication on the chain;
    `quarantined` are the tables that the Spark writer could not apply. A table goes to `main` when the entry says
    `show` and it is none of those; otherwise `main` stays what it was, with the position that it had. What did not
    change is the same object in both records. ProtocolError for an `inside` cut, or a table to be shown that was not
    applied.
    """
    n = entry.slot
    if entry.inside:
        raise ProtocolError(f"checkpoint {n} is inside a transaction and can't be published")
    tables: dict[str, PublishedTable] = {}
    for table, said in entry.tables.items():
        done, before = work.get(table), None if previous is None else previous.tables.get(table)
        held = quarantined.get(table)
        if said.show and held is None:
            if done is None or done.generation != said.generation:
                raise ProtocolError(f"table {table} is live in checkpoint {n} but its generation was never applied")
            main = Main(snapshot_id=done.snapshot_id)
        elif previous is None or before is None or before.main is None:
            main = None
        else:
            main = Main(snapshot_id=before.main.snapshot_id, position=previous.position_of(table))
        state, generation = (said.phase, said.generation) if held is None else ("quarantined", held.generation)
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


def may_show(there: tuple[int, int], *, w: int, n: int, own: bool, chain: Callable[[int], Chain]) -> bool:
    """Whether a Spark writer `w` may let `main` show publication `n` where it shows `there`, a (w, N).

    Not if a greater w was there, nor if what is there is newer and counts. What `n` does not show at its `own` cut, but
    as an older publication left it, is there already, or a later one than that is, which `w` did not know: then only
    what does not count makes room. `chain(back)` reads the journal, back to that checkpoint, *after* `there` was read:
    in an older view of it, what another start has published since then would not count, and `main` would go back.
    """
    there_w, there_n = there
    return there_w <= w and ((own and there_n <= n) or there_n not in chain(min(there_n, n)))
