"""Position-delete files: how a table of format version 2, which has no deletion vectors, deletes rows.

A position-delete file is a Parquet file with the paths and positions of deleted rows. Cutline writes one for each data
file: it holds all positions that are deleted there and replaces the older one in the same commit, so that a data file
has at most one. Iceberg's entry of it names that data file, and its metrics have the whole path as both bounds, by
which a reader of another data file leaves it out.

Source: "Position Delete Files" in Iceberg's specification, with its reserved field ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, positions_of, read_vector, write_vectors
from cutline.spark_writer.sinks.iceberg.files import ROW_GROUP_ROWS, FileLost, file_size, open_parquet, write_parquet
from cutline.spark_writer.sinks.iceberg.jvm import Jvm

VECTORS_VERSION = 3
"""The first format version with deletion vectors, which it requires for each new delete."""
_PATH, _POSITION = "file_path", "pos"
_SCHEMA = pa.schema(
    [
        pa.field(_PATH, pa.string(), nullable=False, metadata={FIELD_ID: "2147483546"}),
        pa.field(_POSITION, pa.int64(), nullable=False, metadata={FIELD_ID: "2147483545"}),
    ]
)


def write_deleted(version: int, new_file: Callable[[str], str], dead: Mapping[str, Any]) -> list[Vector]:
    """Write the positions of deleted rows (sorted, or a bitmap) by data file, durably, as the format version wants.

    `new_file` returns another full path at each call, with the suffix that it gets.
    """
    if not dead:
        return []
    if version >= VECTORS_VERSION:
        return write_vectors(new_file("puffin"), dead)
    written = []
    for data_file, found in dead.items():
        positions = positions_of(found) if isinstance(found, BitMap64) else found
        path = new_file("parquet")
        write_parquet(path, _rows(data_file, positions))
        written.append(
            Vector(data_file=data_file, rows=len(positions), path=path, offset=0, length=0, size=file_size(path))
        )
    return written


def _rows(data_file: str, positions: Any) -> Iterator[pa.Table]:
    for start in range(0, len(positions), ROW_GROUP_ROWS):
        part = positions[start : start + ROW_GROUP_ROWS]
        yield pa.Table.from_arrays([pa.repeat(data_file, len(part)), pa.array(part, pa.int64())], schema=_SCHEMA)


def read_deleted(vector: Vector | None) -> Any:
    """Return the sorted positions of a data file's deleted rows (None: no row is deleted). FileLost if it can't."""
    if vector is None or vector.length:
        return read_vector(vector)
    with open_parquet(vector.path) as file:
        try:
            positions = file.read(columns=[_POSITION])[_POSITION].to_numpy()
        except (KeyError, pa.ArrowInvalid, OSError) as error:
            raise FileLost(f"{vector.path} can't be read ({error})", "restore it from a backup") from error
    return np.unique(positions)  # of other writers it may be out of order


def is_usable(jvm: Jvm, file: Any) -> bool:
    """Whether Iceberg's DeleteFile holds deleted positions of one data file, in a form that `read_deleted` reads."""
    if str(file.content()) != "POSITION_DELETES":
        return False
    kind = str(file.format())
    return kind == "PUFFIN" or (kind == "PARQUET" and bool(jvm.iceberg.util.ContentFileUtil.isFileScoped(file)))


def to_java(jvm: Jvm, spec: Any, partition: Any, vector: Vector, metrics: Any) -> Any:
    """Return Iceberg's DeleteFile for a position-delete file that has these Metrics, as `deletion_vectors.to_java`."""
    builder = jvm.iceberg.FileMetadata.deleteFileBuilder(spec).ofPositionDeletes().withFormat("parquet")
    if partition is not None:
        builder = builder.withPartition(partition)
    builder = builder.withPath(vector.path).withFileSizeInBytes(vector.size).withMetrics(metrics)
    return builder.withReferencedDataFile(vector.data_file).build()
