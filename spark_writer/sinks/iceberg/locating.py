"""Finds the rows of a snapshot that have one of a batch's keys: by the table's key index, or by reading key columns.

Three ways, each for the files that the one before leaves:

1. *prune*: a row group whose range of the first key column (Parquet's statistics) has none of the keys is left out;
2. *index* (key_index.py): it answers for the files that it covers, at a cost that follows the keys;
3. *scan*: the key columns of the other row groups are read.

A table gets an index once scanning costs clearly more (`_pays`): never where pruning leaves little to read, nor for a
table of a few row groups, nor for a snapshot, which has no keys to locate. From then on files that a batch would have
to scan are added to it, so that each row is read once.
"""

from __future__ import annotations

import bisect
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.keys import comparable
from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.files import DataFile, FileLost, RowGroup, open_parquet
from cutline.spark_writer.sinks.iceberg.key_hash import kind_of
from cutline.spark_writer.sinks.iceberg.key_index import Columns, Found, IndexUnavailable, KeyIndex

logger = logging.getLogger("cutline.spark_writer")
SEARCH_BYTES = 128 << 20
FILE_ROWS = 5_000
"""Opening a file costs as much as scanning so many rows of it."""
SMALL_ROWS = 400_000
"""A table without an index is scanned up to so many rows a batch."""
CLEAR_RATIO = 256
"""An index is made at once for batches of which each key costs a scan of more rows than this."""
LEAST_RATIO = 16
"""Below this ratio a scan is as cheap as an index; between both the rows scanned decide, with `SCANS`."""
SCANS = 4
"""Files are indexed after so many rows have been scanned for each of theirs."""
INDEXED_ROWS = 400_000_000
"""The rows that the Spark writer indexes itself; where more are not indexed yet, Spark's executors may scan them."""
Hit = tuple[DataFile, list[int]]
"""A file, and the numbers of its row groups that can hold one of the keys."""


def locate(
    files: Mapping[str, DataFile], ids: tuple[int, ...], keys: pa.Table, index: KeyIndex | None = None
) -> dict[str, Found]:
    """Find the rows of these files that have one of `keys`, by path.

    Deleted rows are included. `ids` are the lake's field ids of the identity key; `keys` has the columns `k0`, `k1`,
    ... in that order and in the lake's types, each key once. The index, if there is one, may be made or grow.
    """
    if not keys.num_rows:
        return {}
    keys = pa.table([comparable(column) for column in keys.columns], names=keys.column_names)
    known = SortedKeys(keys.column("k0"))
    if index is not None and not index.rests:
        columns = [[number, kind_of(kind)] for number, kind in zip(ids, keys.schema.types, strict=True)]
        try:
            if index.runs:
                index.open(columns)  # it begins anew if the table's key has changed
            hits = _index(index, _hits(files.values(), ids, known, index), files, columns, keys)
            found = index.find([column.combine_chunks() for column in keys.columns], files.keys())
            return found | _scan(hits, keys)
        except IndexUnavailable as error:
            logger.warning("the keys of %s are located without their index: %s", index.table_id, error)
    return _scan(_hits(files.values(), ids, known, None), keys)


def rows_to_scan(files: Mapping[str, DataFile], keys: int, index: KeyIndex | None) -> int:
    """Return how many rows locating so many keys may have to read: none if an index covers them, or is worth making."""
    uncovered = [file for file in files.values() if index is None or not index.covers(file.path)]
    rows = sum(file.rows for file in uncovered)
    indexed = index is not None and not index.rests and rows > CLEAR_RATIO * keys
    return 0 if indexed and rows <= INDEXED_ROWS else rows


def _index(
    index: KeyIndex, hits: list[Hit], files: Mapping[str, DataFile], columns: Columns, keys: pa.Table
) -> list[Hit]:
    """Let the index cover the files that the keys hit, if that pays; return those that must be scanned."""
    if not _pays(index, hits, keys.num_rows):
        index.scanned_rows += sum(_groups(file)[at].rows for file, wanted in hits for at in wanted)
        return hits
    index.open(columns)
    hits = [hit for hit in hits if not index.covers(hit[0].path)]
    if not _pays(index, hits, keys.num_rows):
        return hits
    index.add(((file.path, file.rows, _key_columns(file, keys.schema)) for file, _ in hits), files.keys())
    index.scanned_rows = 0
    return []


def cover(
    files: Mapping[str, DataFile], ids: tuple[int, ...], kinds: Sequence[pa.DataType], changes: int, index: KeyIndex
) -> None:
    """Let an open index cover these files if that pays for so many changes, before others locate their keys by it.

    The keys are not known here, so nothing is pruned: the rows of all files count that the index does not cover.
    `kinds` are the lake's types of the key's columns. IndexUnavailable if the store fails.
    """
    uncovered = [file for file in files.values() if not index.covers(file.path)]
    rows = sum(file.rows for file in uncovered)
    if rows > INDEXED_ROWS:
        return
    if not _is_worth(index, rows + FILE_ROWS * len(uncovered), rows, changes):
        index.scanned_rows += rows
        return
    known = SortedKeys(pa.chunked_array([], kinds[0]))
    for file in uncovered:
        if file.groups is None:
            _describe(file, ids, known)
    schema = pa.schema([(f"k{at}", kind) for at, kind in enumerate(kinds)])
    index.add(((file.path, file.rows, _key_columns(file, schema)) for file in uncovered), files.keys())
    index.scanned_rows = 0


def _pays(index: KeyIndex, hits: Sequence[Hit], keys: int) -> bool:
    cost = sum(FILE_ROWS + sum(_groups(file)[at].rows for at in wanted) for file, wanted in hits)
    return _is_worth(index, cost, sum(file.rows for file, _ in hits), keys)


def _is_worth(index: KeyIndex, cost: int, rows: int, keys: int) -> bool:
    """Whether `rows` should be indexed, of which a scan for so many keys costs as much as that of `cost` rows."""
    if cost <= LEAST_RATIO * keys or (cost <= SMALL_ROWS and not index.runs):
        return False
    return cost > CLEAR_RATIO * keys or index.scanned_rows > SCANS * rows


def _key_columns(file: DataFile, schema: pa.Schema) -> Iterator[list[pa.Array]]:
    """Yield a file's key columns in the lake's types, by row group."""
    with open_parquet(file.path) as source:
        for at in range(source.num_row_groups):
            yield [column.combine_chunks() for column in _read(source, file, at, schema).columns]


def _read(source: Any, file: DataFile, at: int, schema: pa.Schema) -> pa.Table:
    """The key columns of a row group, comparable."""
    read = source.read_row_group(at, columns=list(file.names)).select(list(file.names))
    columns = [comparable(read.column(number).cast(field.type)) for number, field in enumerate(schema)]
    return pa.table(columns, names=schema.names)


# Scanning


def _scan(hits: Sequence[Hit], keys: pa.Table) -> dict[str, Found]:
    """Read the key columns of these row groups and find the rows that have one of the keys."""
    found: dict[str, list[Found]] = {}
    waiting: list[tuple[DataFile, RowGroup, pa.Table]] = []
    first = keys.column("k0").combine_chunks()

    def search() -> None:
        for path, rows in _search(waiting, keys, first):
            found.setdefault(path, []).append(rows)
        waiting.clear()

    for file, wanted in hits:
        with open_parquet(file.path) as source:
            for at in wanted:
                waiting.append((file, _groups(file)[at], _read(source, file, at, keys.schema)))
                # Each search builds a hash table of all keys, so many row groups share one.
                if sum(table.nbytes for _, _, table in waiting) > SEARCH_BYTES:
                    search()
    search()
    return {
        path: Found(np.concatenate([each.positions for each in parts]), np.concatenate([each.keys for each in parts]))
        for path, parts in found.items()
    }


def _search(
    waiting: list[tuple[DataFile, RowGroup, pa.Table]], keys: pa.Table, first: pa.Array
) -> Iterator[tuple[str, Found]]:
    """Yield (path, rows) of the row groups that hold one of the keys."""
    if not waiting:
        return
    rows = pa.concat_tables([table for _, _, table in waiting])
    numbers = pc.fill_null(pc.index_in(rows.column("k0"), value_set=first), -1).to_numpy()
    matches = np.flatnonzero(numbers >= 0)
    numbers = numbers[matches]
    if rows.num_columns > 1 and len(matches):
        # The first column finds candidates; a join of whole tuples decides.
        candidates = rows.take(pa.array(matches)).append_column("_at", pa.array(matches))
        numbered = keys.append_column("_number", pa.array(np.arange(keys.num_rows)))
        joined = candidates.join(numbered, keys.column_names, join_type="inner")
        matches, numbers = joined["_at"].to_numpy(), joined["_number"].to_numpy()
        order = np.argsort(matches)
        matches, numbers = matches[order], numbers[order]
    start = 0
    for file, group, _ in waiting:
        low, high = np.searchsorted(matches, (start, start + group.rows))
        if low < high:
            yield file.path, Found(matches[low:high] - start + group.first, numbers[low:high])
        start += group.rows


# Pruning


class SortedKeys:
    """The values of a batch's first key column, sorted as Parquet's statistics are, if their type has such an order.

    Integers and times are compared as integers, texts as the bytes of their UTF-8, decimals by value. Floating-point
    numbers and booleans are not compared.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        """Take the column, in the lake's type."""
        self._kind = kind = column.type
        self._numbers: Any = None
        self._values: pa.Array | None = None
        if pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
            if pa.types.is_date32(kind):
                column = column.cast(pa.int32())
            self._numbers = np.sort(column.cast(pa.int64()).to_numpy())
        elif pa.types.is_decimal(kind) or _is_text(kind):
            values = column.combine_chunks()
            if _is_text(kind):
                values = values.cast(pa.large_binary())
            self._values = values.take(pc.sort_indices(values))

    def range_of(self, statistics: Any) -> tuple[Any, Any]:
        """Return the least and the greatest value in Parquet's statistics, in the order of the keys; (None, None) if
        they are unknown or of another order. Both may be outside of the values: writers cut long texts off.
        """
        unknown = (None, None)
        if statistics is None or not statistics.has_min_max:
            return unknown
        if self._numbers is not None:
            same = _form(statistics) == ("Date" if pa.types.is_date32(self._kind) else "microseconds")
            if pa.types.is_integer(self._kind):
                same = type(statistics.min) is int
            return (statistics.min_raw, statistics.max_raw) if same else unknown
        if self._values is None:
            return unknown
        if _is_text(self._kind):
            least, most = statistics.min_raw, statistics.max_raw
            return (least, most) if statistics.physical_type == "BYTE_ARRAY" else unknown
        least, most = statistics.min, statistics.max
        return (least, most) if isinstance(least, Decimal) else unknown

    def may_be_in(self, group: RowGroup) -> bool:
        """Whether a row group can hold one of the keys; True if unknown."""
        if group.least is None:
            return True
        if self._numbers is not None:
            low = np.searchsorted(self._numbers, group.least)
            return bool(low < len(self._numbers) and self._numbers[low] <= group.most)
        if self._values is None:
            return True
        at = bisect.bisect_left(_Values(self._values), group.least)
        return at < len(self._values) and bool(self._values[at].as_py() <= group.most)


class _Values(Sequence[Any]):
    """An Arrow array as Python's `bisect` takes it."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: Any) -> Any:
        return self._array[at].as_py()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _form(statistics: Any) -> Any:
    """Return the unit of a column's times, or the name of its logical type."""
    described = json.loads(statistics.logical_type.to_json())
    return described.get("timeUnit", described["Type"])


def _hits(files: Collection[DataFile], ids: tuple[int, ...], known: SortedKeys, index: KeyIndex | None) -> list[Hit]:
    """Return the files that the index does not cover, with the row groups that can hold one of the keys."""
    hits = []
    for file in files:
        if index is not None and index.covers(file.path):
            continue
        if file.groups is None:
            _describe(file, ids, known)
        wanted = [at for at, group in enumerate(_groups(file)) if known.may_be_in(group)]
        if wanted:
            hits.append((file, wanted))
    return hits


def _groups(file: DataFile) -> tuple[RowGroup, ...]:
    return cast(tuple[RowGroup, ...], file.groups)


def _describe(file: DataFile, ids: tuple[int, ...], known: SortedKeys) -> None:
    """Read a file's footer: the names of its key columns and the key range of each row group."""
    with open_parquet(file.path) as source:
        by_id = {
            int(field.metadata[FIELD_ID]): at
            for at, field in enumerate(source.schema_arrow)
            if field.metadata and FIELD_ID in field.metadata
        }
        if not all(number in by_id for number in ids):
            raise FileLost(f"{file.path} lacks a key column (field ids {ids})", "restore it from a backup")
        names = tuple(source.schema_arrow.names[by_id[number]] for number in ids)
        leaf = source.schema.names.index(names[0]) if source.schema.names.count(names[0]) == 1 else None
        groups, start = [], 0
        for at in range(source.metadata.num_row_groups):
            group = source.metadata.row_group(at)
            least, most = known.range_of(group.column(leaf).statistics if leaf is not None else None)
            groups.append(RowGroup(first=start, rows=group.num_rows, least=least, most=most))
            start += group.num_rows
    file.names, file.groups = names, tuple(groups)
