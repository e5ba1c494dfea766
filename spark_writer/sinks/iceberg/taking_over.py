"""Makes the files by which a table's generation takes over rows of the one before it (`Carried` of the contract).

All of it is done in this process, a row group at a time: whatever the tables have, memory has one of each, and a bit
for each row that goes on. Keys are looked for as those of changes are, by the key index of a large table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from cutline.spark_writer.sinks.contract import Carried
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.data_files import write_rows
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of, positions_of, without
from cutline.spark_writer.sinks.iceberg.files import FileLost
from cutline.spark_writer.sinks.iceberg.portions import in_row_groups
from cutline.spark_writer.sinks.iceberg.reading import all_rows, rows_at
from cutline.spark_writer.sinks.iceberg.table import LakeTable

FILE_ROWS = 1_000_000
"""A file gets no more rows once it has so many."""


class EarlierLost(Exception):
    """A file of the earlier generation is missing or can't be read."""


@contextmanager
def _earlier() -> Iterator[None]:
    try:
        yield
    except FileLost as error:
        raise EarlierLost(str(error.cause)) from error


def rows_taken_over(
    table: LakeTable, head: int, layout: Layout, earlier_head: int, earlier: Layout, carried: Carried
) -> tuple[list[Any], list[Vector]]:
    """Make Iceberg's DataFiles of the rows that the snapshot `head` gets of `earlier_head`, and what deletes those of
    its own that they replace. EarlierLost, and FileLost if a file of `head` can't be read.
    """
    own = list(table.contents(head).files.values())
    theirs = list(table.contents(earlier_head).files.values())
    replaced: dict[str, BitMap64] = {}
    gone_on: dict[str, BitMap64] = {}

    def of_snapshot() -> Iterator[pa.Table]:
        for path, positions, rows in all_rows(table, own, layout):
            chosen = carried.of_snapshot(rows)
            if chosen is None:
                return
            wanted = chosen.to_numpy()
            if wanted.any():
                _note(replaced, path, positions, wanted)
                yield rows.filter(chosen)

    def pairs(keys: pa.Table) -> Iterator[tuple[pa.Table, Any, Callable[[Any], None]]]:
        with _earlier():
            found = table.find(earlier_head, earlier, keys)
            for path, rows in found.items():
                for read, low, high in rows_at(path, rows.positions, earlier):
                    yield read, rows.keys[low:high], partial(_note, gone_on, path, rows.positions[low:high])

    def has(keys: pa.Table) -> Any:
        found = [rows.keys for rows in table.find(head, layout, keys).values()]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def kept() -> Iterator[pa.Table]:
        with _earlier():
            for path, positions, rows in all_rows(table, theirs, earlier):
                left = without(positions, positions_of(gone_on.get(path, BitMap64())))
                if len(left):
                    yield rows.take(pa.array(np.searchsorted(positions, left)))

    if carried.looks_at:
        with _earlier():
            for _, _, rows in all_rows(table, theirs, earlier, carried.looks_at):
                carried.look(rows)
    begun = (carried.begun(rows, pairs) for rows in in_row_groups(of_snapshot()))
    added = _written(table, layout, begun)
    added += _written(table, layout, (carried.kept(rows, has) for rows in in_row_groups(kept())))
    return added, table.delete(head, replaced) if replaced else []


def _note(known: dict[str, BitMap64], path: str, positions: Any, chosen: Any) -> None:
    known[path] = known.get(path, BitMap64()) | bitmap_of(positions[chosen])


def _written(table: LakeTable, layout: Layout, groups: Iterator[pa.Table]) -> list[Any]:
    """Write rows as data files, each of about `FILE_ROWS` rows at most."""
    some, files = (rows for rows in groups if rows.num_rows), []

    def of_file(first: pa.Table) -> Iterator[pa.Table]:
        count = first.num_rows
        yield first
        while count < FILE_ROWS and (rows := next(some, None)) is not None:
            count += rows.num_rows
            yield rows

    while (first := next(some, None)) is not None:
        files += write_rows(table, layout, of_file(first))
    return files
