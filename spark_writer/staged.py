"""Turns staged files into data files of the lake: adopts chunk files, and reduces changes to the last one of each key.

The work here grows with the staged rows. Arrow does it in the driver, in bounded memory: the keys of a portion of the
changes, and one row group. Work that grows with the table is elsewhere: `LakeTable.positions`, compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cutline.common.errors import ProtocolError
from cutline.common.schema import FIELD_ID, OP, SEQ, TableSchema
from cutline.common.store.records import StagedFile
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.iceberg.columns import Layout, default_value
from cutline.spark_writer.iceberg.files import open_parquet
from cutline.spark_writer.iceberg.table import LakeTable, write_rows

PORTION_ROWS = 1_000_000
PORTION_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """One staged file of a batch, or the row groups `groups` of it: its journal record and the schema of its rows."""

    record: StagedFile
    schema: TableSchema
    groups: range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A portion's changes, reduced to the last one of each key.

    `keys` are all keys changed (columns k0, k1, ... in the lake's types), `live` the `_seq` of the changes that leave a
    row. `keys` is None for a table without a key, where every change leaves a row, and if nothing is to be applied.
    """

    keys: pa.Table | None
    live: Any


class StagedLost(ProtocolError):
    """A staged file is missing or differs from its record: a fault of the store, not of the file's table."""


def adopt(store: PipelineStore, staged: Staged, table: LakeTable, layout: Layout, *, copy: bool = False) -> Any:
    """Return Iceberg's DataFile for a chunk: the file itself if it has the lake's field ids and types, else a copy.

    With `copy` it is always a copy, so that the store's sweep may remove the file. It is also one if the generation's
    field ids are shifted in the lake: some ids in the file would name other columns there, perhaps of the same type.

    StagedLost if the file is missing, corrupt, or has another number of rows than its record.
    """
    with _verified(store, staged) as file:
        if not copy and layout.offset == 0 and _fits(file.schema_arrow, layout):
            return table.data_file(store.location(staged.record.path))
        groups = (file.read_row_group(at) for at in range(file.num_row_groups))
        (copied,) = write_rows(table, (project(group, staged.schema, layout) for group in groups))
    return copied


@contextmanager
def _verified(store: PipelineStore, staged: Staged) -> Iterator[pq.ParquetFile]:
    try:
        store.verify(staged.record.ref)
    except ProtocolError as error:
        raise StagedLost(str(error)) from error
    path = store.location(staged.record.path)
    with open_parquet(path) as file:
        if file.metadata.num_rows != staged.record.rows:
            raise StagedLost(
                f"{path} has {file.metadata.num_rows} rows, but its journal entry says {staged.record.rows}; restore it"
                " from a backup"
            )
        yield file


def portions(store: PipelineStore, files: Iterable[Staged]) -> Iterator[list[Staged]]:
    """Divide the changes of a table into portions to reduce and apply one after the other, in the order of `_seq`.

    However large a checkpoint is, a portion has at most `PORTION_ROWS` rows and `PORTION_BYTES` bytes, or one row
    group. Raises StagedLost as `adopt` does.
    """
    portion: list[Staged] = []
    rows = size = 0
    for staged in sorted(files, key=lambda staged: staged.record.seq_min or 0):
        with _verified(store, staged) as file:
            for at in range(file.num_row_groups):
                group = file.metadata.row_group(at)
                rows, size = rows + group.num_rows, size + group.total_byte_size
                if portion and (rows > PORTION_ROWS or size > PORTION_BYTES):
                    yield portion
                    portion, rows, size = [], group.num_rows, group.total_byte_size
                if portion and portion[-1].record is staged.record:
                    portion[-1] = replace(portion[-1], groups=range(cast(range, portion[-1].groups).start, at + 1))
                else:
                    portion.append(replace(staged, groups=range(at, at + 1)))
    if portion:
        yield portion


def reduce(store: PipelineStore, portion: Sequence[Staged], layout: Layout, after: int | None) -> Reduced:
    """Keep each key's last change by `_seq`; ignore changes up to `_seq` `after` (that of a TRUNCATE).

    For a table without a key, all inserts are kept, each by its own `_seq`, which distinguishes equal rows.
    ProtocolError if an insert came twice, or if there is a change of another kind.
    """
    names = [f"k{at}" for at in range(len(layout.schema.key))]
    kinds = [column.arrow.type for column in layout.schema.key_columns]
    parts = []
    for staged in portion:
        columns = [_name_of(staged.schema, column.field_id) for column in layout.schema.key_columns]
        with open_parquet(store.location(staged.record.path)) as file:
            read = file.read_row_groups(list(cast(range, staged.groups)), columns=[*columns, SEQ, OP])
        wanted = pc.not_equal(read[OP], "t")
        if after is not None:
            wanted = pc.and_(wanted, pc.greater(read[SEQ], after))
        read = read.filter(wanted)
        keys = [read[column].cast(kind) for column, kind in zip(columns, kinds, strict=True)]
        parts.append(pa.table([*keys, read[SEQ], read[OP]], names=[*names, SEQ, OP]))
    changes = pa.concat_tables(parts)
    if not changes.num_rows:  # the whole portion is from before the TRUNCATE
        return Reduced(keys=None, live=np.empty(0, np.int64))
    if not names:
        live = np.sort(changes[SEQ].to_numpy())
        if not pc.all(pc.equal(changes[OP], "+I")).as_py() or (np.diff(live) == 0).any():
            raise ProtocolError(
                f"{layout.schema.table_id} has no key, and its changes from _seq {live[0]} to {live[-1]} are not"
                " distinct inserts; read the table again"
            )
        return Reduced(keys=None, live=live)
    last = changes.group_by(names).aggregate([(SEQ, "max")])
    winners = changes.filter(pc.is_in(changes[SEQ], value_set=last[f"{SEQ}_max"].combine_chunks()))
    live = winners.filter(pc.not_equal(winners[OP], "-D"))[SEQ].to_numpy()
    return Reduced(keys=last.select(names), live=np.sort(live))


def write_live(
    store: PipelineStore, portion: Sequence[Staged], table: LakeTable, layout: Layout, reduced: Reduced
) -> list[Any]:
    """Write the rows that a reduced portion leaves as a data file of the lake; [] if there are none."""

    def groups() -> Iterator[pa.Table]:
        for staged in portion:
            with open_parquet(store.location(staged.record.path)) as file:
                for number in cast(range, staged.groups):
                    group = file.read_row_group(number)
                    seq = group[SEQ].to_numpy()
                    at = np.minimum(np.searchsorted(reduced.live, seq), len(reduced.live) - 1)
                    mask = reduced.live[at] == seq
                    kept = group if mask.all() else group.filter(pa.array(mask))
                    if kept.num_rows:
                        yield project(kept, staged.schema, layout)

    return write_rows(table, groups()) if len(reduced.live) else []


def project(rows: pa.Table, schema: TableSchema, layout: Layout) -> pa.Table:
    """Map rows of an older `schema` of the generation to `layout` by field id; a new column gets its default.

    A column that the source had already dropped, and the lake kept, is null.
    """
    columns = []
    names = {column.field_id: column.name for column in schema.columns}
    kept = {column.field_id for column in schema.lake}
    for column, field in zip(layout.schema.lake, layout.arrow, strict=True):
        if column.field_id in names:
            columns.append(rows[names[column.field_id]].cast(field.type))
            continue
        value = None if column.field_id in kept else default_value(column, field.type)
        columns.append(
            pa.chunked_array([pa.repeat(pa.scalar(value, field.type), rows.num_rows)])
            if value is not None
            else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        )
    return pa.Table.from_arrays(columns, schema=layout.arrow)


def _name_of(schema: TableSchema, field_id: int) -> str:
    return next(column.name for column in schema.columns if column.field_id == field_id)


def _fits(schema: pa.Schema, layout: Layout) -> bool:
    """Whether a file's columns are the lake's by field id and type; the file may lack columns that came later."""
    wanted = _by_id(layout.arrow)
    for field in schema:
        if field.metadata is None or FIELD_ID not in field.metadata:
            return False
        field_id = int(field.metadata[FIELD_ID])
        if field_id in wanted and not _reads_as(field.type, wanted[field_id]):
            return False
    known = {int(field.metadata[FIELD_ID]) for field in schema}
    return any(field_id in known for field_id in wanted)


def _by_id(schema: pa.Schema) -> dict[int, pa.DataType]:
    return {int(field.metadata[FIELD_ID]): field.type for field in schema}


def _reads_as(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Iceberg reads a file's type as the lake's: the same, or widened in place."""
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        ids = [(each.value_field.metadata or {}).get(FIELD_ID) for each in (kind, wanted)]
        return ids[0] == ids[1] is not None and kind.value_type == wanted.value_type
    if kind == pa.int32() and wanted == pa.int64():
        return True
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wanted):
        return bool(kind.scale == wanted.scale and kind.precision <= wanted.precision)
    return bool(kind == wanted)
