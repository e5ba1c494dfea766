"""Rows in portions of bounded size, for what must hold rows in memory: sorting, partitioning, row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from cutline.spark_writer.sinks.iceberg.files import ROW_GROUP_ROWS

ROW_GROUP_BYTES = 32 << 20
"""A row group has `ROW_GROUP_ROWS` rows, or about so many bytes in memory if its rows are large."""
HELD_BYTES = 128 << 20
"""The most that is sorted or divided at a time, by its size in memory; the work takes about three times as much."""


def portions(tables: Iterable[pa.Table], *, limit_bytes: int, limit_rows: int | None = None) -> Iterator[pa.Table]:
    """Yield the same rows, in their order, in contiguous tables up to about these limits, but at least a row each."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        taken = 0
        while taken < table.num_rows:
            each = max(1, table.nbytes // table.num_rows)
            room = max(1, -(-(limit_bytes - size) // each))
            if limit_rows is not None:
                room = min(room, limit_rows - rows)
            part = table.slice(taken, room)
            waiting.append(part)
            taken, rows, size = taken + part.num_rows, rows + part.num_rows, size + part.num_rows * each
            if size >= limit_bytes or rows == limit_rows:
                yield _contiguous(waiting)
                rows = size = 0
    if waiting:
        yield _contiguous(waiting)


def _contiguous(tables: list[pa.Table]) -> pa.Table:
    """The rows of the tables as one; the list is emptied, so that their memory is free once the caller takes others."""
    rows = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    return rows


def in_row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of the size of a row group."""
    return portions(tables, limit_bytes=ROW_GROUP_BYTES, limit_rows=ROW_GROUP_ROWS)


def taken(rows: pa.Table, places: pa.Array) -> Iterator[pa.Table]:
    """Yield the rows at these places, in their order, in tables of about the size of a row group."""
    each = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // each))
    for start in range(0, len(places), step):
        yield rows.take(places.slice(start, step))
