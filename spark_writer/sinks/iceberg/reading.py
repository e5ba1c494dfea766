"""Reads living rows of a snapshot, by key or all of them, for rows to come that are made of those before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.deletion_vectors import outside
from cutline.spark_writer.sinks.iceberg.files import DataFile, open_parquet
from cutline.spark_writer.sinks.iceberg.merging import in_layout
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted
from cutline.spark_writer.sinks.iceberg.table import LakeTable


def rows_with(table: LakeTable, head: int, layout: Layout, keys: pa.Table | None) -> Iterator[tuple[pa.Table, Any]]:
    """Yield the living rows of the snapshot `head` that have one of `keys`, by row group, in the columns of `layout`,
    and for each the number of its key; None: all rows, each with -1.

    `keys` are those that `LakeTable.find` takes. Of the table's files only row groups that have such a row are read.
    FileLost if one can't be.
    """
    if keys is None:
        for _, _, rows in all_rows(table, table.contents(head).files.values(), layout):
            yield rows, np.full(rows.num_rows, -1)
        return
    for path, found in table.find(head, layout, keys).items():
        for rows, low, high in rows_at(path, found.positions, layout):
            yield rows, found.keys[low:high]


def all_rows(
    table: LakeTable, files: Iterable[DataFile], layout: Layout, names: Collection[str] | None = None
) -> Iterator[tuple[str, Any, pa.Table]]:
    """Yield the living rows of data files, by row group, in the columns of `layout`, or only in those of these `names`;
    before them the file's path and their positions in it. FileLost as `rows_with`."""
    for file in files:
        every = np.arange(file.rows)
        lives = every[outside(every, read_deleted(table.vector(file)))]
        for rows, low, high in rows_at(file.path, lives, layout, names):
            yield file.path, lives[low:high], rows


def rows_at(
    path: str, positions: Any, layout: Layout, names: Collection[str] | None = None
) -> Iterator[tuple[pa.Table, int, int]]:
    """Yield the rows at sorted positions of a data file, by row group, as `all_rows`; behind them the range of their
    positions in the array."""
    wanted = None if names is None else {layout.arrow.field(name).metadata[FIELD_ID] for name in names}
    with open_parquet(path) as source:
        own = [field.name for field in source.schema_arrow if (field.metadata or {}).get(FIELD_ID) in (wanted or ())]
        start = 0
        for number in range(source.num_row_groups):
            end = start + source.metadata.row_group(number).num_rows
            low, high = np.searchsorted(positions, (start, end))
            if low < high:
                group = source.read_row_group(number, columns=None if wanted is None else own)
                rows = group.take(pa.array(positions[low:high] - start))
                yield in_layout(rows, layout, names), int(low), int(high)
            start = end
