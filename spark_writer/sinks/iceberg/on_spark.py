"""Applies a batch's changes to a table as Spark jobs, on as many machines as Spark has.

1. *reduce*: a task a staged file, or part of a large one, reads its keys (`changes_of`) and keeps each key's last
   change; a shuffle by key and the same kernel again leave one change a key. Spark keeps the result, which has no
   values of other columns, on the executors' disks.
2. *locate*: Spark reads the key columns, positions and row ids of the snapshot and joins them with the changes. It
   keeps this result too.
3. *vectors*: the found positions are grouped by data file; a task writes the merged deletion vectors (in format
   version 2 the position-delete files) of its files.
4. *images*: the changes that leave a row are grouped by staged file; a task a group writes its rows as one data file,
   or one for each partition, in which the new image of a row keeps the row id of the old one.

Rows are read and written by the executors alone, and never pass through the JVM or a shuffle. The driver gets a line a
file written, and commits. A task that Spark repeats writes a file of another name; the one that no commit names is an
orphan.

Errors of the kernels come back as the class that the task raised.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DoubleType, FloatType, StructType

from cutline.common.errors import ConfigError, CutlineError, ProtocolError, Unavailable
from cutline.common.journal.plan import Staged, StagedLost
from cutline.common.schema import SEQ
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg import objects
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.data_files import data_file
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of
from cutline.spark_writer.sinks.iceberg.files import FileLost
from cutline.spark_writer.sinks.iceberg.filling import groups_of
from cutline.spark_writer.sinks.iceberg.jvm import failing_as
from cutline.spark_writer.sinks.iceberg.lineage import NONE, ROW_ID
from cutline.spark_writer.sinks.iceberg.merging import merged_rows
from cutline.spark_writer.sinks.iceberg.partitioning import write_files
from cutline.spark_writer.sinks.iceberg.position_deletes import VECTORS_VERSION, read_deleted, write_deleted
from cutline.spark_writer.sinks.iceberg.staged import (
    LIVE,
    changes_of,
    grouped,
    key_names,
    last_changes,
    rows_of,
)
from cutline.spark_writer.sinks.iceberg.table import LakeTable

GROUP = "_group"
PARTITION_ROWS = 500_000
"""Changes in a partition of a shuffle, about; a task holds their keys in memory."""
VECTOR_FILES = 16
"""Data files whose vectors share a Puffin file, about."""
_RAISED: tuple[type[CutlineError], ...] = (StagedLost, FileLost, ProtocolError, Unavailable, ConfigError)
WRITTEN = "path string, partition string"
"""A line a data file that a task wrote, as `write_files` yields them."""
_VECTORS = "data_file string, rows long, path string, offset long, length long, size long"
_ON_DISK = StorageLevel.DISK_ONLY
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a task needs beside its rows; it is sent to the executors."""

    store: PipelineStore
    layout: Layout
    groups: Sequence[Sequence[Staged]]
    after: int | None
    folder: str
    """A full path that begins the names of new files."""
    grants: Mapping[str, Mapping[str, str]] = field(repr=False)
    """The rights to read and write the lake's files, for `objects.accept`."""

    @property
    def partitions(self) -> int:
        """The number of partitions of a shuffle by key."""
        rows = sum(staged.rows for group in self.groups for staged in group)
        return math.ceil(rows / PARTITION_ROWS)

    def new_file(self, suffix: str) -> str:
        """Return the full path for a new file; each call gives another."""
        return f"{self.folder}{uuid.uuid4().hex}.{suffix}"

    def new_data_file(self) -> str:
        """Return the full path for a new data file."""
        return new_data_file(self.folder)


def new_data_file(folder: str) -> str:
    """Return the full path for a new data file that begins with `folder`; each call gives another."""
    return f"{folder}{uuid.uuid4().hex}.parquet"


def changed(
    store: PipelineStore, table: LakeTable, layout: Layout, head: int, changes: Sequence[Staged], after: int | None
) -> tuple[list[Any], list[Vector]]:
    """Do the work of `local.changed` as Spark jobs."""
    task = replace(_task(store, table, layout, grouped(store, changes)), after=after)
    with kernels(f"the changes of {table.table_id} could not be applied by Spark"), ExitStack() as kept:

        def keep(rows: Any) -> Any:
            kept.callback(rows.unpersist)
            return rows.persist(_ON_DISK)

        deleted: list[Vector] = []
        last = keep(_reduced(table.jvm.session, task))
        images = last.withColumn(ROW_ID.name, F.lit(None).cast("long"))
        if layout.schema.key and table.contents(head).files:
            images = keep(_located(table, head, layout, last, task.partitions))
            deleted = _vectors(table, head, images, task)
        written = _images(images, task).collect()
        return [data_file(table, row.path, layout, row.partition) for row in written], deleted


def filled(store: PipelineStore, table: LakeTable, head: int, layout: Layout) -> list[Any]:
    """Do the work of `filling.filled` as a Spark job, a task a group of files."""
    groups = groups_of(table, table.contents(head).files.values())
    task = _task(store, table, layout, [])

    def write(batches: Batches) -> Batches:
        objects.accept(task.grants)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield written(task.new_data_file, merged_rows(groups[number], task.layout), task.layout)

    with kernels(f"the new columns of {table.table_id} could not be filled by Spark"):
        numbers: Any = table.jvm.session.range(0, len(groups), 1, len(groups))
        lines = numbers.mapInArrow(write, WRITTEN).collect()
        return [data_file(table, row.path, layout, row.partition) for row in lines]


def written(new_path: Callable[[], str], rows: Iterable[pa.Table], layout: Layout) -> pa.RecordBatch:
    """Write rows as data files in a task; return a line for each."""
    files = list(write_files(new_path, rows, layout))
    return pa.RecordBatch.from_pylist(
        [{"path": path, "partition": partition} for path, partition in files],
        schema=pa.schema([("path", pa.string()), ("partition", pa.string())]),
    )


def _task(store: PipelineStore, table: LakeTable, layout: Layout, groups: Sequence[Sequence[Staged]]) -> Task:
    return Task(
        store=store,
        layout=layout.portable,
        groups=groups,
        after=None,
        folder=table.new_file(""),
        grants=objects.grants(),
    )


def _reduced(session: Any, task: Task) -> Any:
    """The last change of each key, with the number of its file's group."""
    names = key_names(task.layout)
    parts = [(at, staged) for at, group in enumerate(task.groups) for staged in group]
    schema = _spark_schema(task.layout)

    def read(batches: Batches) -> Batches:
        objects.accept(task.grants)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                at, staged = parts[number]
                groups = list(changes_of(task.store, staged, task.layout, task.after))
                found = last_changes(pa.concat_tables(groups), task.layout)
                found = found.append_column(GROUP, pa.repeat(pa.scalar(at, pa.int32()), found.num_rows))
                yield from found.combine_chunks().to_batches()

    def last(batches: Batches) -> Batches:
        rows = list(batches)
        if rows:
            yield from last_changes(_cast(pa.Table.from_batches(rows), task.layout), task.layout).to_batches()

    read_by_part = session.range(0, len(parts), 1, len(parts)).mapInArrow(read, schema)
    return read_by_part.repartition(task.partitions, *(names or [SEQ])).mapInArrow(last, schema)


def _images(changes: Any, task: Task) -> Any:
    """Write the rows that the changes leave, with the row ids that they keep; a line a data file."""

    def write(rows: pa.Table) -> pa.Table:
        objects.accept(task.grants)
        seq = rows[SEQ].to_numpy()
        order = np.argsort(seq)
        row_ids = pc.fill_null(rows[ROW_ID.name], NONE).to_numpy()[order]
        group = task.groups[rows[GROUP][0].as_py()]
        known = row_ids if (row_ids != NONE).any() else None
        images = rows_of(task.store, group, task.layout, seq[order], known)
        return pa.Table.from_batches([written(task.new_data_file, images, task.layout)])

    live = changes.filter(F.col(LIVE)).select(GROUP, SEQ, ROW_ID.name)
    return live.repartition(2 * len(task.groups), GROUP).groupBy(GROUP).applyInArrow(write, WRITTEN)


def _vectors(table: LakeTable, head: int, located: Any, task: Task) -> list[Vector]:
    """Write what deletes the snapshot's rows that were found."""
    files = table.contents(head).files
    before = {path: vector for path, file in files.items() if (vector := table.vector(file)) is not None}
    found = located.filter(F.col("_file").isNotNull())
    buckets, version = math.ceil(len(files) / VECTOR_FILES), table.version

    def write(rows: pa.Table) -> pa.Table:
        objects.accept(task.grants)
        dead = {}
        for path, positions in by_file(rows).items():
            dead[path] = bitmap_of(read_deleted(before.get(path))) | bitmap_of(positions)
        return pa.Table.from_pylist([asdict(vector) for vector in write_deleted(version, task.new_file, dead)])

    bucket = F.pmod(F.hash("_file"), F.lit(buckets)).alias(GROUP)
    grouped_rows = found.select(bucket, "_file", "_pos").repartition(buckets, GROUP).groupBy(GROUP)
    return [Vector(**row.asDict()) for row in grouped_rows.applyInArrow(write, _VECTORS).collect()]


def _located(table: LakeTable, snapshot_id: int, layout: Layout, changes: Any, partitions: int) -> Any:
    """Find the living rows of a snapshot that have the key of one of `changes` (a DataFrame, each key once).

    Return the changes as a DataFrame with `_file`, `_pos` and `_row_id`, null where the snapshot has no such row.
    """
    names = table.key_columns(snapshot_id, layout)
    # Not load(): it takes a name with a slash for the path of a table.
    target: Any = table.jvm.session.read.option("versionAsOf", str(snapshot_id)).table(table.spark_name)
    low, high = changes.agg(F.min("k0"), F.max("k0")).first()
    # Iceberg prunes files and row groups by it. Python's values of a time, and of some texts, are not the column's.
    if isinstance(low, int | str | Decimal) and not isinstance(low, bool):
        target = target.filter((F.col(names[0]) >= F.lit(low)) & (F.col(names[0]) <= F.lit(high)))
    on = key_names(layout)
    key = [_comparable(target, name).alias(alias) for name, alias in zip(names, on, strict=True)]
    row_id = F.col(ROW_ID.name) if table.version >= VECTORS_VERSION else F.lit(None).cast("long").alias(ROW_ID.name)
    target = target.select(*key, "_file", "_pos", row_id).repartition(partitions, *on)
    joined = target.join(changes.repartition(partitions, *on).hint("shuffle_hash"), on, "right_outer")
    return joined.select(GROUP, SEQ, LIVE, "_file", "_pos", ROW_ID.name)


def _comparable(rows: Any, name: str) -> Any:
    """A key column of a DataFrame as common/keys.py makes it."""
    column = F.col(name)
    kind = rows.select(column).schema[0].dataType
    return column + F.lit(0.0).cast(kind) if isinstance(kind, FloatType | DoubleType) else column


def by_file(rows: pa.Table) -> dict[str, Any]:
    """The sorted positions of each file in a table of `_file`, `_pos`."""
    encoded = rows.column("_file").combine_chunks().dictionary_encode()
    codes, positions = encoded.indices.to_numpy(), rows.column("_pos").to_numpy()
    order = np.lexsort((positions, codes))
    codes, positions = codes[order], positions[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    paths = encoded.dictionary.to_pylist()
    return {paths[codes[start]]: part for start, part in zip(starts, np.split(positions, starts[1:]), strict=True)}


def _arrow_fields(layout: Layout) -> list[pa.Field]:
    keys = zip(key_names(layout), layout.schema.key_columns, strict=True)
    kinds = [(name, layout.schema.field(column).type) for name, column in keys]
    return [pa.field(*pair) for pair in (*kinds, (SEQ, pa.int64()), (LIVE, pa.bool_()), (GROUP, pa.int32()))]


def _spark_schema(layout: Layout) -> StructType:
    return from_arrow_schema(pa.schema(_arrow_fields(layout)), prefer_timestamp_ntz=True)


def _cast(rows: pa.Table, layout: Layout) -> pa.Table:
    """Rows as Spark hands them over, in the types of the lake."""
    return rows.cast(pa.schema(_arrow_fields(layout)))


@contextmanager
def kernels(failure: str) -> Iterator[None]:
    """Raise an error of a kernel as the class that the task raised; any other as Refused with the `failure`."""
    try:
        with failing_as(failure):
            yield
    except CutlineError as error:
        cause = error.__cause__
        lines = str(cause).splitlines() if isinstance(cause, PySparkException) else []
        for kind in _RAISED:
            for line in lines:
                _, found, text = line.partition(f"{kind.__module__}.{kind.__qualname__}: ")
                if found:
                    raise kind(text) from error
        raise
