"""Turns staged files into data files of the lake: adopts chunk files, and reduces changes to the last one of each key.

These are the kernels of an apply, as functions from staged files to Arrow tables and data files. They hold one row
group at a time, or the keys of the files that they are given. Both engines call them: local.py in this process,
on Spark's executors (stages.py). The work here grows with the staged rows; work that grows with the table is elsewhere
(`LakeTable.find`, compaction).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cutline.common.errors import ProtocolError
from cutline.common.journal.plan import Staged, StagedLost
from cutline.common.keys import comparable
from cutline.common.ops import NEVER_LAST, Op, is_any
from cutline.common.schema import FIELD_ID, OP, SEQ, TableSchema
from cutline.common.store.backends import store_errors
from cutline.common.store.records import StagedFile
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg.columns import Layout, default_value, defaulted
from cutline.spark_writer.sinks.iceberg.data_files import data_file, described, write_rows
from cutline.spark_writer.sinks.iceberg.files import FileLost, file_size, open_parquet, put_file
from cutline.spark_writer.sinks.iceberg.lineage import with_row_ids
from cutline.spark_writer.sinks.iceberg.metrics import has_default_metrics
from cutline.spark_writer.sinks.iceberg.table import LakeTable

LIVE = "_live"
GROUP_ROWS, GROUP_BYTES = 1_000_000, 1 << 30
"""A group of staged files becomes a data file, or one for each partition."""
PENDING_ROWS = 1_000_000
"""Changes are reduced once so many wait, or as many as their last reduction left."""


def adopt(store: PipelineStore, staged: Staged, table: LakeTable, layout: Layout) -> list[Any]:
    """Return Iceberg's DataFiles for a chunk, files of the table's own: the same bytes if the staged file has the
    lake's field ids and types (`put_file`), else its rows written anew. So the store may remove the staged file.

    The rows are written anew too if the generation's field ids are shifted in the lake: some ids in the file would name
    other columns there, perhaps of the same type. So they are if the table is sorted or partitioned.

    If the record has the file's metrics, and the table keeps no others, the file is not opened: its schema is that of
    the journal. Where its bytes need not be copied either, only its size is compared with the record.

    StagedLost if the file is missing, corrupt, or has another number of rows than its record.
    """
    record = staged.record
    as_it_is = layout.offset == 0 and not layout.in_memory
    if as_it_is and record.metrics and _fits(staged.schema.arrow, layout) and has_default_metrics(table.metadata()):
        path = table.new_file(f"{uuid.uuid4().hex}.parquet")
        _put_unread(store, record, path)
        return [described(table, layout, path, rows=record.rows, size=record.size, metrics=record.metrics)]
    with _verified(store, staged) as file:
        if as_it_is and _fits(file.schema_arrow, layout):
            path = table.new_file(f"{uuid.uuid4().hex}.parquet")
            put_file(store.location(record.path), path, record.sha256)
            return [data_file(table, path, layout)]
        groups = (file.read_row_group(at) for at in range(file.num_row_groups))
        rows = (project(group, staged.schema, layout) for group in groups)
        return write_rows(table, layout, rows)


def _put_unread(store: PipelineStore, record: StagedFile, path: str) -> None:
    location = store.location(record.path)
    with store_errors(location):
        try:
            size = file_size(location)
        except FileNotFoundError as error:
            raise StagedLost(f"{location} is missing, though an entry names it", "restore it from a backup") from error
    if size != record.size:
        raise StagedLost(f"{location} is corrupt ({size} bytes instead of {record.size})", "restore it from a backup")
    try:
        put_file(location, path, record.sha256)
    except FileLost as error:
        raise StagedLost(error.cause) from error


@contextmanager
def _verified(store: PipelineStore, staged: Staged) -> Iterator[pq.ParquetFile]:
    try:
        store.verify(staged.record.ref)
    except ProtocolError as error:
        raise StagedLost(error.cause) from error
    with _opened(store, staged) as file:
        yield file


@contextmanager
def _opened(store: PipelineStore, staged: Staged) -> Iterator[pq.ParquetFile]:
    path = store.location(staged.record.path)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_parquet(path))
        except FileLost as error:
            raise StagedLost(error.cause) from error
        if file.metadata.num_rows != staged.record.rows:
            raise StagedLost(
                f"{path} has {file.metadata.num_rows} rows, but its journal entry says {staged.record.rows}",
                "restore it from a backup",
            )
        yield file


def key_names(layout: Layout) -> list[str]:
    """Return the names of the key's columns in the results of `changes_of`: k0, k1, ...; none without a key."""
    return [f"k{at}" for at in range(len(layout.schema.key))]


def changes_of(store: PipelineStore, staged: Staged, layout: Layout, after: int | None) -> Iterator[pa.Table]:
    """Yield the changes in a staged file by row group, without their values: the key's columns `k0`, `k1`, ... in the
    lake's types, made `comparable` (common/keys.py), `_seq`, and `_live` (False for a deletion). TRUNCATEs and images
    before updates are left out.

    Changes up to `_seq` `after` (that of a TRUNCATE) are left out. StagedLost as `adopt`. ProtocolError if a table
    without a key has changes that are no inserts.
    """
    key = layout.schema.key_columns
    columns = [_name_of(staged.schema, column.field_id) for column in key]
    verified = _verified if staged.part is None or not staged.part.start else _opened
    with verified(store, staged) as file:
        for at in staged.part or range(file.num_row_groups):
            read = file.read_row_group(at, columns=[*columns, SEQ, OP])
            wanted = pc.invert(is_any(read[OP], *NEVER_LAST))
            if after is not None:
                wanted = pc.and_(wanted, pc.greater(read[SEQ], after))
            read = read.filter(wanted)
            if not key and pc.any(pc.invert(is_any(read[OP], Op.INSERT))).as_py():
                raise ProtocolError(
                    f"{layout.schema.table_id} has no key, and {staged.record.path} has changes of it that are no"
                    " inserts",
                    "read the table again",
                )
            keys = [
                comparable(read[name].cast(layout.schema.field(column).type))
                for name, column in zip(columns, key, strict=True)
            ]
            live = pc.invert(is_any(read[OP], Op.DELETE))
            yield pa.table([*keys, read[SEQ], live], names=[*key_names(layout), SEQ, LIVE])


def last_changes(changes: pa.Table, layout: Layout) -> pa.Table:
    """Keep each key's last change by `_seq`. `changes` has at least the columns of `changes_of`.

    A table without a key keeps all: each insert has a `_seq` of its own. ProtocolError if one came twice.
    """
    names = key_names(layout)
    if not names:
        if pc.count_distinct(changes[SEQ]).as_py() != changes.num_rows:
            raise ProtocolError(
                f"{layout.schema.table_id} has no key, and its changes are not distinct inserts", "read the table again"
            )
        return changes
    last = changes.group_by(names).aggregate([(SEQ, "max")])
    if last.num_rows == changes.num_rows:
        return changes
    return changes.filter(pc.is_in(changes[SEQ], value_set=last[f"{SEQ}_max"].combine_chunks()))


def last_of(groups: Iterable[pa.Table], layout: Layout) -> pa.Table | None:
    """Return the last change of each key in tables of changes, as `last_changes`; memory grows with the keys. None if
    there is no table."""
    waiting: list[pa.Table] = []
    rows, last_rows = 0, 0
    for group in groups:
        waiting.append(group)
        rows += group.num_rows
        if rows - last_rows > max(PENDING_ROWS, last_rows):  # so the reductions cost a constant a change
            waiting = [last_changes(pa.concat_tables(waiting), layout)]
            rows = last_rows = waiting[0].num_rows
    return last_changes(pa.concat_tables(waiting), layout) if waiting else None


def grouped(store: PipelineStore, files: Iterable[Staged], most_rows: int | None = None) -> list[list[Staged]]:
    """Divide staged files, in the order of `_seq`, into groups of at most `GROUP_ROWS` rows (or `most_rows`, if that is
    less) and `GROUP_BYTES` in files, or of one row group.

    StagedLost if the footer of a large file can't be read.
    """
    most_rows = GROUP_ROWS if most_rows is None else min(most_rows, GROUP_ROWS)
    groups: list[list[Staged]] = []
    rows = size = 0
    for staged in sorted(files, key=lambda staged: staged.record.seq_min or 0):
        for part in _parts(store, staged, most_rows):
            rows, size = rows + part.rows, size + part.size
            if not groups or rows > most_rows or size > GROUP_BYTES:
                groups.append([])
                rows, size = part.rows, part.size
            groups[-1].append(part)
    return groups


def _parts(store: PipelineStore, staged: Staged, most_rows: int) -> Iterator[Staged]:
    """Divide a staged file that is more than a group by its row groups."""
    if staged.rows <= most_rows and staged.size <= GROUP_BYTES:
        yield staged
        return
    with _opened(store, staged) as file:
        sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    start, part = 0, replace(staged, part=range(0), part_rows=0)
    for at, rows in enumerate(sizes):
        longer = replace(staged, part=range(start, at + 1), part_rows=part.part_rows + rows)
        if part.rows and (longer.rows > most_rows or longer.size > GROUP_BYTES):
            yield part
            start, longer = at, replace(staged, part=range(at, at + 1), part_rows=rows)
        part = longer
    yield part


def rows_of(
    store: PipelineStore, files: Iterable[Staged], layout: Layout, live: Any, row_ids: Any = None
) -> Iterator[pa.Table]:
    """Yield the rows of staged files whose `_seq` is in the sorted array `live`, by row group, as the lake has them.

    `row_ids`, if given, has the row id for each of `live` (lineage.NONE: a new row).
    """
    if not len(live):
        return
    for staged in files:
        with open_parquet(store.location(staged.record.path)) as file:
            for number in staged.part or range(file.num_row_groups):
                group = file.read_row_group(number)
                seq = group[SEQ].to_numpy()
                at = np.minimum(np.searchsorted(live, seq), len(live) - 1)
                mask = live[at] == seq
                kept = group if mask.all() else group.filter(pa.array(mask))
                if kept.num_rows:
                    rows = project(kept, staged.schema, layout)
                    yield rows if row_ids is None else with_row_ids(rows, row_ids[at[mask]])


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
    """Whether a file's columns are the lake's by field id and type; the file may lack columns that came later, unless
    the table keeps no defaults for them.
    """
    wanted = _by_id(layout.arrow)
    for field in schema:
        if field.metadata is None or FIELD_ID not in field.metadata:
            return False
        field_id = int(field.metadata[FIELD_ID])
        if field_id in wanted and not _reads_as(field.type, wanted[field_id]):
            return False
    known = {int(field.metadata[FIELD_ID]) for field in schema}
    if not layout.defaults and not defaulted(layout) <= known:
        return False
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
