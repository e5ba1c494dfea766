"""Reads and writes deletion vectors, which delete rows of data files; locating.py finds the rows to delete.

A snapshot is a set of Parquet files, each with at most one deletion vector (the positions of its deleted rows). It is a
blob in a Puffin file: 64-bit Roaring bitmaps in the portable format, which pyroaring (CRoaring) reads and writes;
Iceberg adds a length, a magic number and a CRC-32.
"""

from __future__ import annotations

import array
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap64

from cutline.spark_writer.sinks.iceberg.durable import sync_files
from cutline.spark_writer.sinks.iceberg.files import FileLost, open_input, open_output
from cutline.spark_writer.sinks.iceberg.jvm import Jvm

_MAGIC = struct.pack("<I", 1681511377)
_PUFFIN = b"PFA1"
_ROW_POSITION = 2**31 - 1 - 102
"""The field id of Iceberg's metadata column `_pos`."""


def without(positions: Any, dead: Any) -> Any:
    """Return the sorted `positions` that are not in the sorted `dead`."""
    return positions[outside(positions, dead)]


def outside(positions: Any, dead: Any) -> Any:
    """Return for each of the sorted `positions` whether it is not in the sorted `dead`."""
    if not len(dead):
        return np.ones(len(positions), bool)
    at = np.minimum(np.searchsorted(dead, positions), len(dead) - 1)
    return dead[at] != positions


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


def description(vector: Vector, spec_id: int) -> dict[str, Any]:
    """Return the DeleteFile for a vector in Iceberg's JSON, for a data file without a partition."""
    return {
        "spec-id": spec_id,
        "content": "position-deletes",
        "file-path": vector.path,
        "file-format": "puffin",
        "file-size-in-bytes": vector.size,
        "record-count": vector.rows,
        "referenced-data-file": vector.data_file,
        "content-offset": vector.offset,
        "content-size-in-bytes": vector.length,
    }


def to_java(jvm: Jvm, spec: Any, partition: Any, vector: Vector) -> Any:
    """Return Iceberg's DeleteFile for a vector of a data file in this partition."""
    builder = jvm.iceberg.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes().withFormat("puffin")
    builder = builder.withPath(vector.path).withFileSizeInBytes(vector.size).withRecordCount(vector.rows)
    builder = builder.withReferencedDataFile(vector.data_file).withContentOffset(vector.offset)
    return builder.withContentSizeInBytes(vector.length).withPartition(partition).build()


def read_vector(vector: Vector | None) -> Any:
    """Return the sorted positions in a deletion vector (None: no row is deleted). FileLost if it can't be read."""
    return positions_of(read_bitmap(vector))


def read_bitmap(vector: Vector | None) -> BitMap64:
    """Return the positions in a deletion vector (None: no row is deleted). FileLost if it can't be read."""
    if vector is None:
        return BitMap64()
    try:
        with open_input(vector.path) as file:
            file.seek(vector.offset)
            content = file.read(vector.length)
    except FileNotFoundError as error:
        raise FileLost(f"the deletion vector {vector.path} is missing", "restore it from a backup") from error
    return _bitmap(content)


def write_vectors(path: str, dead: Mapping[str, Any]) -> list[Vector]:
    """Write the positions of each data file's deleted rows, sorted or as a bitmap, as one durable Puffin file.

    A vector's number of rows is that of its bitmap: a reader refuses the table if the two differ.
    Source: Iceberg's Puffin spec, with its blob type `deletion-vector-v1`.
    """
    blobs, placed, offset = [], [], len(_PUFFIN)
    for data_file, positions in dead.items():
        bitmap = bitmap_of(positions)
        blob = encode(bitmap)
        blobs.append(blob)
        placed.append((data_file, len(bitmap), offset, len(blob)))
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
    """Serialize sorted distinct positions, or a bitmap, as Iceberg does: length, magic, 64-bit Roaring, CRC-32."""
    body = _MAGIC + bitmap_of(positions).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(content: bytes) -> Any:
    """Return the sorted positions of a deletion vector of any writer. FileLost if it is corrupt."""
    return positions_of(_bitmap(content))


def _bitmap(content: bytes) -> BitMap64:
    (length,) = struct.unpack_from(">I", content)
    body = content[4 : 4 + length]
    if body[:4] != _MAGIC or content[4 + length :] != struct.pack(">I", zlib.crc32(body)):
        raise FileLost("a deletion vector is corrupt (its CRC-32 is wrong)", "restore it from a backup")
    try:
        return BitMap64.deserialize(body[4:])
    except (ValueError, IndexError) as error:
        raise FileLost(f"a deletion vector is corrupt ({error})", "restore it from a backup") from error


def bitmap_of(positions: Any) -> BitMap64:
    """Return sorted distinct positions as a bitmap; a bitmap is returned as it is."""
    if isinstance(positions, BitMap64):
        return positions
    # pyroaring takes this faster than a numpy array
    return BitMap64(array.array("Q", positions.astype("<u8").tobytes()))


def positions_of(bitmap: BitMap64) -> Any:
    """Return the sorted positions in a bitmap."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)
