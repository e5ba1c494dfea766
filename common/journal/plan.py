"""The changes to each table: those of a batch of checkpoints, and those that a quarantined table missed (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cutline.common.errors import ProtocolError
from cutline.common.journal.batches import Batch, next_batch, only
from cutline.common.phases import DROPPED, PAUSED, QUARANTINED, WAITING
from cutline.common.schema import TableSchema
from cutline.common.store.records import CheckpointEntry, Quarantine, StagedFile, Work

Schemas = Callable[[Collection[str]], Mapping[str, TableSchema]]
"""Reads schemas by their hashes."""
History = Callable[[int, int], Iterable[CheckpointEntry]]
"""Reads the chain's checkpoints above one number up to another, oldest first; ProtocolError if some are gone."""
_INACTIVE = (WAITING, QUARANTINED, DROPPED, PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One staged file of a batch, or its row groups `part`: its journal record, the schema and the number of its rows.

    The part with the first row group stands for the whole file where that is verified.
    """

    record: StagedFile
    schema: TableSchema
    part: range | None = None
    part_rows: int = 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.record.rows if self.part is None else self.part_rows

    @property
    def size(self) -> int:
        """The bytes of these rows in the file, about."""
        return self.record.size * self.rows // max(1, self.record.rows)


class StagedLost(ProtocolError):
    """A staged file is missing or differs from its record: a fault of the store, not of the file's table."""


@dataclass(slots=True, kw_only=True)
class TableStep:
    """The change that a batch makes to one table: to `generation` with `schema`, by the rows of these files."""

    table_id: str
    generation: int
    schema: TableSchema
    chunks: list[Staged] = field(default_factory=list)
    changes: list[Staged] = field(default_factory=list)
    truncated_at: int | None = None


def table_steps(batch: Batch, done: Mapping[str, Work], schemas: Schemas) -> list[TableStep]:
    """Return a step for each table that a batch changes from `done`; tables without content yet get none."""
    staged: dict[str, list[StagedFile]] = {}
    for entry in batch.entries:
        for file in entry.staged:
            if file.rows:
                staged.setdefault(file.table, []).append(file)
    wanted = {}
    for table_id, table in batch.entries[-1].tables.items():
        files = [file for file in staged.get(table_id, ()) if file.generation == table.generation]
        # Skip inactive tables: a type that the lake can't hold may be why they are inactive.
        if table.schema is None or (table.phase in _INACTIVE and table_id not in staged):
            continue
        known = done.get(table_id)
        if known is None or known.generation != table.generation or known.schema != table.schema or files:
            wanted[table_id] = (table.generation, table.schema, files)
    by_hash = schemas({name for _, schema, files in wanted.values() for name in (schema, *(f.schema for f in files))})
    steps = []
    for table_id, (generation, schema, files) in wanted.items():
        step = TableStep(table_id=table_id, generation=generation, schema=by_hash[schema])
        for file in files:
            if file.truncated_at is not None:
                step.truncated_at = max(file.truncated_at, step.truncated_at or 0)
            (step.chunks if file.kind == "chunk" else step.changes).append(
                Staged(record=file, schema=by_hash[file.schema])
            )
        steps.append(step)
    return steps


def catch_up_plans(
    returning: Mapping[str, Quarantine], batch: Batch, applied: int, history: History, schemas: Schemas
) -> dict[str, list[TableStep] | None]:
    """Return the steps that bring each of these quarantined tables to the end of a batch.

    They apply the files that were staged for the table's newest generation after the quarantine's own `applied`; the
    argument `applied` is the checkpoint that the other tables have reached. None: the journal or the lake has lost
    something that the table needs. Empty: the table holds nothing yet.
    """
    tables = batch.entries[-1].tables
    plans: dict[str, list[TableStep] | None] = {}
    after: dict[str, int] = {}
    for table_id, held in returning.items():
        if held.generation != tables[table_id].generation:
            after[table_id] = applied  # a new generation is tried with the first of its rows
        elif held.applied is not None:
            after[table_id] = held.applied
        else:
            plans[table_id] = None
    if not after:
        return plans
    entries: dict[str, list[CheckpointEntry]] = {table_id: [] for table_id in after}
    try:
        for entry in history(min(after.values()), batch.last):
            for table_id in entries:
                table = entry.tables.get(table_id) if entry.slot > after[table_id] else None
                if table is not None and table.generation == tables[table_id].generation:
                    entries[table_id].append(only(entry, table_id))
        for table_id, missed in entries.items():
            plans[table_id] = _steps_of(missed, schemas)
    except ProtocolError:  # the journal no longer goes back so far
        return plans | dict.fromkeys(entries)
    return plans


def _steps_of(entries: list[CheckpointEntry], schemas: Schemas) -> list[TableStep]:
    """Return the steps of entries that are reduced to one table (`only`), in as few batches as possible."""
    steps: list[TableStep] = []
    while entries:
        batch = next_batch(entries)
        assert batch is not None
        steps += table_steps(batch, {}, schemas)
        entries = entries[len(batch.entries) :]
    return [step for step in steps[:-1] if step.chunks or step.changes or step.truncated_at is not None] + steps[-1:]
