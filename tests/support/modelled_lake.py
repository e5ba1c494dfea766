"""The lake that the Spark writer would make of a journal, computed in Python.

Rows of chunks are appended, of changes in the order of `_seq` the last one of each key, `t` (truncate), generations.
`cuts` yields each checkpoint that could be published with the tables that it shows, so a test of published content
needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cutline.common.positions import FilePosition
from cutline.common.schema import OP, SEQ, TableSchema
from cutline.common.store.chain import follow
from cutline.common.store.records import CheckpointEntry, StagedFile
from cutline.common.store.store import PipelineStore
from tests.support.mesh import Pipeline, place

Row = dict[str, Any]
Content = dict[tuple[Any, ...], Row]
Columns = tuple[tuple[str, ...], tuple[str, ...]]
"""All columns of a table in order, and those of its key."""


# --- the lake, in Python ----------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Table:
    """One table of the lake: key -> rows (several if a row was doubled); a row is field id -> value."""

    generation: int
    rows: dict[tuple[Any, ...], list[dict[int, Any]]] = field(default_factory=dict)
    seq: int = -1


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table as a publication shows it; `rows` are key -> rows, a row is field id -> value."""

    schema: TableSchema
    generation: int
    rows: Mapping[tuple[Any, ...], list[dict[int, Any]]]

    @cached_property
    def content(self) -> Content:
        """The rows by key, with the column names that the table has at the cut."""
        defaults = {
            column.name: pa.scalar(column.initial_default).cast(self.schema.arrow.field(column.name).type).as_py()
            for column in self.schema.columns
            if column.initial_default is not None
        }
        named = [(column.name, column.field_id, defaults.get(column.name)) for column in self.schema.columns]
        return {
            key: {name: found[0].get(number, default) for name, number, default in named}
            for key, found in self.rows.items()
        }

    @property
    def doubled(self) -> list[tuple[Any, ...]]:
        """Keys with more than one row."""
        return [key for key, found in self.rows.items() if len(found) > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A checkpoint that could be published, with the tables that it would show."""

    slot: int
    at: FilePosition | None
    entry: CheckpointEntry
    tables: Mapping[str, Shown]


def cuts(pipeline: Pipeline) -> Iterator[Cut]:
    """Apply the journal's chain from its beginning; yield each checkpoint that is not `inside` a transaction."""
    entries = {entry.slot: entry for entry in pipeline.entries()}
    lake: dict[str, _Table] = {}
    schemas: dict[str, TableSchema] = {}
    for slot in follow(max(entries, default=0), entries.get).after(0):
        entry = entries[slot]
        schemas |= pipeline.store.schemas(entry.schemas - schemas.keys())
        files: dict[str, list[StagedFile]] = {}
        for file in entry.staged:
            files.setdefault(file.table, []).append(file)
        for table, state in entry.tables.items():
            if table not in lake or lake[table].generation != state.generation:
                lake[table] = _Table(generation=state.generation)
            staged = files.get(table, [])
            for file in staged:
                assert file.generation <= state.generation, f"{slot}: {file} is of a later generation"
            _apply(pipeline.store, lake[table], schemas, [f for f in staged if f.generation == state.generation])
        if not entry.inside:
            shown = {
                table: Shown(
                    schema=schemas[state.schema or ""], generation=state.generation, rows=dict(lake[table].rows)
                )
                for table, state in entry.tables.items()
                if state.show
            }
            at = place(entry) if entry.position else None
            yield Cut(slot=slot, at=at, entry=entry, tables=shown)


def _apply(
    pipeline: PipelineStore,
    table: _Table,
    schemas: Mapping[str, TableSchema],
    staged: Iterable[StagedFile],
) -> None:
    files = list(staged)
    truncated = max((file.truncated_at for file in files if file.truncated_at is not None), default=None)
    if truncated is not None:
        table.rows = {}
    last: dict[tuple[Any, ...], tuple[int, str, dict[int, Any]]] = {}
    for file in files:
        schema = schemas[file.schema]
        ids = {column.name: column.field_id for column in schema.columns}
        read = pq.read_table(_path(pipeline, file))
        assert read.num_rows == file.rows, f"{file.path} has {read.num_rows} rows, the journal says {file.rows}"
        if file.kind == "chunk":
            if truncated is None:
                for row in read.to_pylist():
                    key = tuple(row[name] for name in schema.key)
                    table.rows.setdefault(key, []).append({ids[name]: value for name, value in row.items()})
            continue
        assert file.seq_min is not None
        assert file.seq_min > table.seq, f"{file.path} has _seq {file.seq_min} after {table.seq}"
        for row in read.to_pylist():
            seq, op = row[SEQ], row[OP]
            if op == "t" or (truncated is not None and seq < truncated):
                continue
            key = tuple(row[name] for name in schema.key)
            if key not in last or last[key][0] < seq:
                last[key] = seq, op, {ids[name]: row[name] for name in ids}
    table.seq = max([table.seq, *(file.seq_max or 0 for file in files if file.kind == "changes")])
    for key, (_, op, values) in last.items():
        if op == "-D":
            table.rows.pop(key, None)
        else:
            table.rows[key] = [values] * max(1, len(table.rows.get(key, ())))


def _path(pipeline: PipelineStore, file: StagedFile) -> str:
    return pipeline.location(file.path).removeprefix("file://")
