"""Gives the rows of a table the default of a column that was added, in a format version without initial defaults.

In format version 3 a column keeps its initial default, and the files stay as they are. In version 2 the rows get the
value by being written anew, in the same apply and on the same branch as the rest of the step that adds the column: so
`main` shows the column at its cut, with its value in each row. Each file of the table then has every column with a
default; `adopt` and the changes keep it so.

This takes one pass over the table's living rows. It is done here, file by file, or by Spark, a task a group of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutline.common.schema import TableSchema
from cutline.spark_writer.sinks.iceberg.columns import Layout, defaulted
from cutline.spark_writer.sinks.iceberg.data_files import write_rows
from cutline.spark_writer.sinks.iceberg.files import DataFile
from cutline.spark_writer.sinks.iceberg.maintenance import HERE_BYTES, sources
from cutline.spark_writer.sinks.iceberg.merging import Source, merged_rows
from cutline.spark_writer.sinks.iceberg.table import LakeTable


def must_fill(before: TableSchema | None, layout: Layout) -> bool:
    """Whether files that were written for the schema `before` (None: unknown) must get a column of `layout`, because
    that has a default and the table has no place to keep it.
    """
    known = set() if before is None else {column.field_id for column in before.lake}
    return not layout.defaults and not defaulted(layout) <= known


def groups_of(table: LakeTable, files: Iterable[DataFile]) -> list[list[Source]]:
    """Divide data files into groups, each of which becomes one file of about `HERE_BYTES` at most, or one for each
    partition.
    """
    groups: list[list[Source]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.partition_name):
        size += file.size
        if not groups or size > HERE_BYTES:
            groups.append([])
            size = file.size
        groups[-1] += sources(table, [file])
    return groups


def filled(table: LakeTable, head: int, layout: Layout) -> list[Any]:
    """Write the living rows of the snapshot `head` anew in `layout`; return Iceberg's DataFiles."""
    groups = groups_of(table, table.contents(head).files.values())
    return [file for group in groups for file in write_rows(table, layout, merged_rows(group, layout))]
