"""Reads living rows of a snapshot, by key or all of them, for rows to come that are made of those before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.deletion_vectors import outside
from cutline.spark_writer.sinks.iceberg.files import open_parquet
from cutline.spark_writer.sinks.iceberg.key_index import Found
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
        found = {}
        for path, file in table.contents(head).files.items():
            every = np.arange(file.rows)
            lives = every[outside(every, read_deleted(table.vector(file)))]
            found[path] = Found(lives, np.full(len(lives), -1))
    else:
        found = table.find(head, layout, keys)
    for path, rows in found.items():
        with open_parquet(path) as source:
            start = 0
            for number in range(source.num_row_groups):
                end = start + source.metadata.row_group(number).num_rows
                low, high = np.searchsorted(rows.positions, (start, end))
                if low < high:
                    wanted = pa.array(rows.positions[low:high] - start)
                    yield in_layout(source.read_row_group(number).take(wanted), layout), rows.keys[low:high]
                start = end
