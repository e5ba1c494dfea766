"""Finds the positions of the rows that have given keys, and reads and writes the deletion vectors that delete rows.

A snapshot is a set of Parquet files, each with at most one deletion vector (the positions of its deleted rows). To
replace the rows of a batch's keys, Cutline needs their positions, so it scans the key columns of every row group whose
key range overlaps the batch. In a table of up to `DRIVER_ROWS` rows the driver does that with Arrow, a row group at a
time (a Spark job takes seconds before it reads a row); in a larger one Spark does, on as many machines as it has.

A deletion vector is a blob in a Puffin file: 64-bit Roaring bitmaps in the portable format, which pyroaring (CRoaring)
reads and writes; Iceberg adds a length, a magic number and a CRC-32.
"""

from __future__ import annotations

import array
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.iceberg.durable import sync_files
from cutline.spark_writer.iceberg.files import (
    Contents,
    DataFile,
    FileLost,
    RowGroup,
    open_input,
    open_output,
    open_parquet,
)
from cutline.spark_writer.iceberg.jvm import Jvm

SEARCH_BYTES = 128 << 20
_MAGIC = struct.pack("<I", 1681511377)
_PUFFIN = b"PFA1"
_ROW_POSITION = 2**31 - 1 - 102
"""The field id of Iceberg's metadata column `_pos`."""


def find_by_arrow(contents: Contents, ids: tuple[int, ...], keys: pa.Table) -> dict[str, Any]:
    """Find the rows of a snapshot that have one of `keys`: path -> sorted numpy array of positions.

    Deleted rows are included. `ids` are the lake's field ids of the identity key; `keys` has the columns `k0`, `k1`,
    ... in that order and in the lake's types, each key once.
    """
    first = keys.column("k0").combine_chunks()
    ends = pc.min_max(first).as_py() if _ordered(first.type) else {"min": None, "max": None}
    ordered = np.sort(first.to_numpy()) if pa.types.is_integer(first.type) else None
    found: dict[str, list[Any]] = {}
    waiting: list[tuple[DataFile, RowGroup, pa.Table]] = []

    def search() -> None:
        for path, positions in _search(waiting, keys, first):
            found.setdefault(path, []).append(positions)
        waiting.clear()

    for file in contents.files.values():
        if file.groups is None:
            _describe(file, ids)
        groups = cast(tuple[RowGroup, ...], file.groups)
        wanted = [at for at, group in enumerate(groups) if _may_hold(group, ends, ordered)]
        if not wanted:
            continue
        with open_parquet(file.path) as source:
            for at in wanted:
                read = source.read_row_group(at, columns=list(file.names)).select(list(file.names))
                columns = [read.column(number).cast(field.type) for number, field in enumerate(keys.schema)]
                waiting.append((file, groups[at], pa.table(columns, names=keys.column_names)))
                # Each search builds a hash table of all keys, so many row groups share one.
                if sum(table.nbytes for _, _, table in waiting) > SEARCH_BYTES:
                    search()
    search()
    return {path: np.concatenate(positions) for path, positions in found.items()}


def _search(
    waiting: list[tuple[DataFile, RowGroup, pa.Table]], keys: pa.Table, first: pa.Array
) -> Iterator[tuple[str, Any]]:
    """Yield (path, positions) of the row groups that hold one of the keys."""
    if not waiting:
        return
    rows = pa.concat_tables([table for _, _, table in waiting])
    matches = np.flatnonzero(pc.is_in(rows.column("k0"), value_set=first).to_numpy())
    if rows.num_columns > 1 and len(matches):
        # The first column finds candidates; a join of whole tuples decides.
        candidates = rows.take(pa.array(matches)).append_column("_at", pa.array(matches))
        matches = np.sort(candidates.join(keys, keys.column_names, join_type="left semi")["_at"].to_numpy())
    start = 0
    for file, group, _ in waiting:
        low, high = np.searchsorted(matches, (start, start + group.rows))
        if low < high:
            yield file.path, matches[low:high] - start + group.first
        start += group.rows


def without(positions: Any, dead: Any) -> Any:
    """Return the sorted `positions` that are not in the sorted `dead`."""
    if not len(dead):
        return positions
    at = np.minimum(np.searchsorted(dead, positions), len(dead) - 1)
    return positions[dead[at] != positions]


def merged(dead: Any, positions: Any) -> Any:
    """Return the sorted union of two sorted arrays without a common element."""
    return np.insert(dead, np.searchsorted(dead, positions), positions)


def _describe(file: DataFile, ids: tuple[int, ...]) -> None:
    """Read a file's footer: the names of its key columns and the key range of each row group."""
    with open_parquet(file.path) as source:
        by_id = {
            int(field.metadata[FIELD_ID]): at
            for at, field in enumerate(source.schema_arrow)
            if field.metadata and FIELD_ID in field.metadata
        }
        if not all(number in by_id for number in ids):
            raise FileLost(f"{file.path} lacks a key column (field ids {ids}); restore it from a backup")
        names = tuple(source.schema_arrow.names[by_id[number]] for number in ids)
        leaf = source.schema.names.index(names[0]) if source.schema.names.count(names[0]) == 1 else None
        groups, start = [], 0
        for at in range(source.metadata.num_row_groups):
            group = source.metadata.row_group(at)
            stats: Any = group.column(leaf).statistics if leaf is not None else None
            least, most = (stats.min, stats.max) if stats is not None and stats.has_min_max else (None, None)
            groups.append(RowGroup(first=start, rows=group.num_rows, least=least, most=most))
            start += group.num_rows
    file.names, file.groups = names, tuple(groups)


def _may_hold(group: RowGroup, ends: Mapping[str, Any], ordered: Any) -> bool:
    """Whether a row group can hold one of the keys; True if unknown."""
    if group.least is None or ends["min"] is None or type(group.least) is not type(ends["min"]):
        return True
    if group.least > ends["max"] or group.most < ends["min"]:
        return False
    if ordered is None:
        return True
    return bool(np.searchsorted(ordered, group.least) < np.searchsorted(ordered, group.most, side="right"))


def _ordered(kind: pa.DataType) -> bool:
    """Whether Python orders values of this type as Parquet's statistics do."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind))


# Deletion vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector: a blob of `length` bytes at `offset` of the Puffin file `path`, which has `size` bytes. It
    deletes `rows` rows of the data file `data_file`. `length` 0: `path` is a position-delete file instead.
    """

    data_file: str
    rows: int
    path: str
    offset: int
    length: int
    size: int


def of_java(file: Any, data_file: str) -> Vector:
    """Return the vector that Iceberg's DeleteFile of a data file describes."""
    offset = file.contentOffset()
    return Vector(
        data_file=data_file,
        rows=int(file.recordCount()),
        path=str(file.location()),
        offset=0 if offset is None else int(offset),
        length=0 if offset is None else int(file.contentSizeInBytes()),
        size=int(file.fileSizeInBytes()),
    )


def to_java(jvm: Jvm, spec: Any, vector: Vector) -> Any:
    """Return Iceberg's DeleteFile for a vector of a table with this PartitionSpec."""
    builder = jvm.iceberg.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes().withFormat("puffin")
    builder = builder.withPath(vector.path).withFileSizeInBytes(vector.size).withRecordCount(vector.rows)
    builder = builder.withReferencedDataFile(vector.data_file).withContentOffset(vector.offset)
    return builder.withContentSizeInBytes(vector.length).build()


def read_vector(vector: Vector | None) -> Any:
    """Return the sorted positions in a deletion vector (None: no row is deleted). FileLost if it can't be read."""
    if vector is None:
        return np.empty(0, np.int64)
    try:
        with open_input(vector.path) as file:
            file.seek(vector.offset)
            content = file.read(vector.length)
    except FileNotFoundError as error:
        raise FileLost(f"the deletion vector {vector.path} is missing; restore it from a backup") from error
    return decode(content)


def write_vectors(path: str, dead: Mapping[str, Any]) -> list[Vector]:
    """Write the sorted positions of each data file's deleted rows as one durable Puffin file.

    Source: Iceberg's Puffin spec, with its blob type `deletion-vector-v1`.
    """
    blobs, placed, offset = [], [], len(_PUFFIN)
    for data_file, positions in dead.items():
        blob = encode(positions)
        blobs.append(blob)
        placed.append((data_file, len(positions), offset, len(blob)))
        offset += len(blob)
    described = [
        {
            "type": "deletion-vector-v1",
            "fields": [_ROW_POSITION],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": at,
            "length": length,
            "properties": {"referenced-data-file": data_file, "cardinality": str(rows)},
        }
        for data_file, rows, at, length in placed
    ]
    payload = json.dumps({"blobs": described, "properties": {"created-by": "Cutline"}}).encode()
    footer = _PUFFIN + payload + struct.pack("<II", len(payload), 0) + _PUFFIN
    with open_output(path) as file:
        file.write(b"".join((_PUFFIN, *blobs, footer)))
    sync_files([path])
    size = offset + len(footer)
    return [
        Vector(data_file=data_file, rows=rows, path=path, offset=at, length=length, size=size)
        for data_file, rows, at, length in placed
    ]


def encode(positions: Any) -> bytes:
    """Serialize sorted distinct positions as Iceberg does: length, magic, 64-bit Roaring, CRC-32."""
    values = array.array("Q", positions.astype("<u8").tobytes())  # pyroaring takes this faster than a numpy array
    body = _MAGIC + BitMap64(values).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(content: bytes) -> Any:
    """Return the sorted positions of a deletion vector of any writer. FileLost if it is corrupt."""
    (length,) = struct.unpack_from(">I", content)
    body = content[4 : 4 + length]
    if body[:4] != _MAGIC or content[4 + length :] != struct.pack(">I", zlib.crc32(body)):
        raise FileLost("a deletion vector is corrupt (its CRC-32 is wrong); restore it from a backup")
    try:
        values = BitMap64.deserialize(body[4:]).to_array()
    except (ValueError, IndexError) as error:
        raise FileLost(f"a deletion vector is corrupt ({error}); restore it from a backup") from error
    return np.frombuffer(values, np.uint64).astype(np.int64)
