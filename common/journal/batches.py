"""The next checkpoints of the chain to apply together (pure).

Promises: entries are applied in the chain's order, each once; a cut `inside` a transaction is applied and never
published; a kept cut ends its batch, so that it has a publication, and a tag, of its own; a batch never spans a
TRUNCATE or a table's change of generation.

Relies on: the entries given are the chain's (common/store/chain.py). Production (spark_writer/apply.py) and the
simulation both use it; change both together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutline.common.store.deltas import changes
from cutline.common.store.records import CheckpointEntry

BATCH_ROWS = 1_000_000


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
