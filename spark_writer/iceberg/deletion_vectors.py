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
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.iceberg.durable import sync_files
from cutline.spark_writer.iceberg.files import Contents, DataFile, FileLost, RowGroup, open_parquet
from cutline.spark_writer.iceberg.jvm import Jvm, items

DRIVER_ROWS = 200_000_000
SEARCH_BYTES = 128 << 20
BROADCAST_KEYS = 4_000_000
_MAGIC = struct.pack("<I", 1681511377)


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


def find_by_spark(
    session: SparkSession, table: str, snapshot_id: int, names: tuple[str, ...], keys: pa.Table
) -> dict[str, Any]:
    """Do the work of `find_by_arrow` as a Spark job; `names` are the key's columns in that snapshot, quoted for Spark.

    Deleted rows are not included. Raises Spark's errors.
    """
    target: Any = session.read.format("iceberg").option("versionAsOf", str(snapshot_id)).load(table)
    kind = keys.schema.field("k0").type
    if _ordered(kind) or pa.types.is_string(kind):
        ends = pc.min_max(keys.column("k0")).as_py()
        target = target.filter((F.col(names[0]) >= F.lit(ends["min"])) & (F.col(names[0]) <= F.lit(ends["max"])))
    target = target.select(*(F.col(name).alias(f"t{at}") for at, name in enumerate(names)), "_file", "_pos")
    wanted: Any = session.createDataFrame(keys)
    if keys.num_rows <= BROADCAST_KEYS:
        wanted = F.broadcast(wanted)
    condition = F.lit(True)
    for at in range(len(names)):
        equal = F.col(f"t{at}") == F.col(f"k{at}")
        condition = equal if at == 0 else condition & equal
    found = target.join(wanted, condition, "left_semi").select("_file", "_pos").toArrow()
    if not found.num_rows:
        return {}
    encoded = pa.chunked_array([*found.column("_file").chunks]).combine_chunks().dictionary_encode()
    codes, positions = encoded.indices.to_numpy(), found.column("_pos").to_numpy()
    order = np.lexsort((positions, codes))
    codes, positions = codes[order], positions[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    paths = encoded.dictionary.to_pylist()
    return {paths[codes[start]]: part for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)}


# Deletion vectors


def read_vector(io: Any, vector: Any) -> Any:
    """Return the sorted positions in a deletion vector (Iceberg's DeleteFile; None: no row is deleted), read through
    Iceberg's FileIO.
    """
    if vector is None:
        return np.empty(0, np.int64)
    stream = io.newInputFile(vector.location()).newStream()
    try:
        stream.seek(vector.contentOffset())
        return decode(bytes(stream.readNBytes(int(vector.contentSizeInBytes()))))
    finally:
        stream.close()


def write_vectors(jvm: Jvm, table: Any, dead: Mapping[str, Any]) -> dict[str, Any]:
    """Write a deletion vector for each data file (path -> sorted positions) of Iceberg's Table; return path ->
    Iceberg's DeleteFile. The files are durable.
    """
    iceberg, scala = jvm.iceberg, jvm.root.scala.jdk.javaapi
    nothing = scala.CollectionConverters.asScala(jvm.root.java.util.HashMap()).withDefaultValue(None)
    no_earlier_vectors = scala.FunctionConverters.asJavaFunction(nothing)
    output = iceberg.io.OutputFileFactory.builderFor(table, 0, 0).format(iceberg.FileFormat.PUFFIN)
    writer = iceberg.deletes.BaseDVFileWriter(output.build(), no_earlier_vectors)
    for path, positions in dead.items():
        vector = encode(positions)
        builder = iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofPositionDeletes()
        builder = builder.withFormat("puffin").withPath(path).withFileSizeInBytes(len(vector))
        builder = builder.withReferencedDataFile(path).withContentOffset(0).withContentSizeInBytes(len(vector))
        described = builder.withRecordCount(len(positions)).build()
        writer.delete(path, iceberg.deletes.PositionDeleteIndex.deserialize(vector, described), table.spec(), None)
    writer.close()
    written = items(writer.result().deleteFiles())
    sync_files({str(file.location()) for file in written})
    return {str(file.referencedDataFile()): file for file in written}


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
