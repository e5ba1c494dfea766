"""The kernel of compaction: merges data files of a table into one, sorted by key, with the lineage of each row.

It reads the row groups in the order of their least keys, as Parquet's statistics have them. What it has read but not
yet written is sorted; rows below the least key of the next row group are written. Files that are sorted by key, as
chunk files and merged ones are, so take the memory of about one row group each. The last files of an apply are in the
order of the binlog; such row groups overlap, and wait together. If more than `WAITING_BYTES` wait, all of them are
written: the memory is bounded, and the file is then sorted in runs.

Nothing here needs the JVM: it runs in the Spark writer's process or on Spark's executors (rewriting.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.columns import Layout, default_value
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, outside
from cutline.spark_writer.sinks.iceberg.files import Lineage, open_parquet
from cutline.spark_writer.sinks.iceberg.lineage import with_lineage
from cutline.spark_writer.sinks.iceberg.portions import in_row_groups
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted

WAITING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data file to merge: the deletion vector of its dead rows, and its lineage."""

    path: str
    vector: Vector | None
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The row group `number` of a source: its first row's position, and its least value of the first key column."""

    source: Source
    number: int
    first: int
    rows: int
    least: Any


def merged_rows(sources: Sequence[Source], layout: Layout) -> Iterator[pa.Table]:
    """Yield the living rows of data files in the columns of `layout`, with their lineage, a row group at a time.

    Sorted by key, see above; those of a table without a key come in their order. FileLost if a file can't be read.
    """
    keeps = any(source.lineage.first_row_id is not None for source in sources)
    read = _sorted if layout.schema.key else _in_order
    return in_row_groups(read(sources, layout, keeps))


def _in_order(sources: Sequence[Source], layout: Layout, keeps: bool) -> Iterator[pa.Table]:
    for source in sources:
        dead = read_deleted(source.vector)
        for group in _groups(source, None):
            yield _living(group, dead, layout, keeps)


def _sorted(sources: Sequence[Source], layout: Layout, keeps: bool) -> Iterator[pa.Table]:
    key = [column.field_id + layout.offset for column in layout.schema.key_columns]
    by_id = {int(field.metadata[FIELD_ID]): field for field in layout.arrow}
    names = [by_id[number].name for number in key]
    dead = {source.path: read_deleted(source.vector) for source in sources}
    groups = [group for source in sources for group in _groups(source, by_id[key[0]])]
    groups.sort(key=lambda group: (group.least is not None, 0 if group.least is None else group.least))
    waiting: list[pa.Table] = []
    for at, group in enumerate(groups):
        waiting.append(_by_key([_living(group, dead[group.source.path], layout, keeps)], names))
        if at + 1 == len(groups) or sum(rows.get_total_buffer_size() for rows in waiting) > WAITING_BYTES:
            yield _by_key(waiting, names)
            continue
        limit = groups[at + 1].least
        if limit is None:
            continue
        ready, later = [], []
        for rows in waiting:
            cut = _below(rows.column(names[0]), limit)
            ready.append(rows.slice(0, cut))
            if cut < rows.num_rows:
                later.append(rows.slice(cut))
        waiting = later
        yield _by_key(ready, names)


def _groups(source: Source, first_key: pa.Field | None) -> Iterator[_Group]:
    """The row groups of a data file, with the least value of a column as Python's value of its type in the lake."""
    with open_parquet(source.path) as file:
        leaf = None
        if first_key is not None:
            wanted = first_key.metadata[FIELD_ID]
            name = next((f.name for f in file.schema_arrow if (f.metadata or {}).get(FIELD_ID) == wanted), None)
            if name is not None and file.schema.names.count(name) == 1:
                leaf = file.schema.names.index(name)
        start = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            least = None
            if leaf is not None and first_key is not None:
                found: Any = group.column(leaf).statistics
                if found is not None and found.has_min_max:
                    least = _as_lake(found.min, first_key.type)
            yield _Group(source=source, number=number, first=start, rows=group.num_rows, least=least)
            start += group.num_rows


def _as_lake(value: Any, kind: pa.DataType) -> Any:
    """A value of Parquet's statistics as the lake's; None if that is not one of its type."""
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _below(column: pa.ChunkedArray, limit: Any) -> int:
    """How many values of a sorted column are less than `limit`."""
    values = column.combine_chunks()
    return bisect.bisect_left(range(len(values)), limit, key=lambda at: values[at].as_py())


def _by_key(tables: list[pa.Table], names: Sequence[str]) -> pa.Table:
    """The rows of `tables`, sorted; the list is emptied, which frees its memory before the sorted rows take theirs."""
    rows = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    in_order = np.array_equal(order.to_numpy(), np.arange(rows.num_rows, dtype=np.uint64))
    return rows if in_order else rows.take(order)


def _living(group: _Group, dead: Any, layout: Layout, keeps: bool) -> pa.Table:
    """A row group's living rows in the columns of `layout`, with their lineage if any file `keeps` one."""
    with open_parquet(group.source.path) as file:
        read = file.read_row_group(group.number)
    positions = np.arange(group.first, group.first + group.rows)
    low, high = np.searchsorted(dead, (group.first, group.first + group.rows))
    if low < high:
        lives = outside(positions, dead[low:high])
        read, positions = read.filter(pa.array(lives)), positions[lives]
    rows = in_layout(read, layout)
    return with_lineage(rows, read, positions, group.source.lineage) if keeps else rows


def in_layout(group: pa.Table, layout: Layout, names: Collection[str] | None = None) -> pa.Table:
    """Map rows of the lake to `layout`, or to its columns of these `names`, by the lake's field ids, as any reader of
    the snapshot would."""
    at_of = {int(field.metadata[FIELD_ID]): at for at, field in enumerate(group.schema)}
    columns, fields = [], []
    for column, field in zip(layout.schema.lake, layout.arrow, strict=True):
        if names is not None and field.name not in names:
            continue
        fields.append(field)
        at = at_of.get(int(field.metadata[FIELD_ID]))
        if at is not None:
            columns.append(group.column(at).cast(field.type))
        else:
            value = pa.scalar(default_value(column, field.type), field.type)
            columns.append(pa.chunked_array([pa.repeat(value, group.num_rows)]))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def keys_at(path: str, positions: Any, layout: Layout) -> pa.Table:
    """Return the keys of the rows at sorted positions of a data file, as columns k0, k1, ... in the lake's types."""
    by_id = {int(field.metadata[FIELD_ID]): field for field in layout.arrow}
    wanted = [by_id[column.field_id + layout.offset] for column in layout.schema.key_columns]
    found = []
    with open_parquet(path) as file:
        names = {(field.metadata or {}).get(FIELD_ID): field.name for field in file.schema_arrow}
        start = 0
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            low, high = np.searchsorted(positions, (start, start + rows))
            if low < high:
                own = [names[field.metadata[FIELD_ID]] for field in wanted]
                read = file.read_row_group(number, columns=own).take(pa.array(positions[low:high] - start))
                columns = [read.column(name).cast(field.type) for name, field in zip(own, wanted, strict=True)]
                found.append(pa.table(columns, names=[f"k{at}" for at in range(len(columns))]))
            start += rows
    return pa.concat_tables(found)
