"""Iceberg's descriptions of the files of a lake table: of data files, and of what deletes rows in them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from cutline.common.file_metrics import COLUMNS
from cutline.common.store.records import FileMetrics
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, to_java
from cutline.spark_writer.sinks.iceberg.deletion_vectors import description as vector_description
from cutline.spark_writer.sinks.iceberg.durable import local_path
from cutline.spark_writer.sinks.iceberg.files import DataFile, file_size
from cutline.spark_writer.sinks.iceberg.metrics import description, footer_metrics, has_default_metrics
from cutline.spark_writer.sinks.iceberg.partitioning import NOWHERE, write_files
from cutline.spark_writer.sinks.iceberg.position_deletes import to_java as position_deletes_to_java
from cutline.spark_writer.sinks.iceberg.table import LakeTable


def spec_id_of(table: LakeTable, layout: Layout | None) -> int:
    """The id of the partition spec of the files of a layout (None: of a table that is not divided)."""
    if layout is None or layout.spec is None:
        return table.metadata().defaultSpecId()
    return int(layout.spec.specId())


def data_file(table: LakeTable, path: str, layout: Layout | None = None, partition: str = NOWHERE) -> Any:
    """Return Iceberg's DataFile of a Parquet file that carries the lake's field ids; metrics from its footer.

    `layout` and `partition` as `write_files` has them; a table without partitions needs neither.
    """
    divided = layout is not None and bool(layout.partition)
    # Iceberg reads the footer itself if the table chooses its metrics, by properties, or by a sort, whose columns
    # have some even if they are not among the first. Its bounds are wrong if a row group lacks its own
    # (file_metrics.py).
    sorted_rows = layout is not None and bool(layout.sort)
    chosen = sorted_rows and table.java.schema().columns().size() > COLUMNS
    known = footer_metrics(path) if not chosen and has_default_metrics(table.metadata()) else None
    if known is not None:
        rows, metrics = known
        within = json.loads(partition) if divided else None
        return described(table, layout, path, rows=rows, size=file_size(path), metrics=metrics, partition=within)
    iceberg = table.jvm.iceberg
    made, size = _metrics(table, path, iceberg.MetricsConfig.forTable(table.java))
    spec = table.java.spec() if layout is None or layout.spec is None else layout.spec
    builder = iceberg.DataFiles.builder(spec).withPath(path).withFormat("parquet")
    if divided:
        file = {"spec-id": int(spec.specId()), "content": "data", "file-path": "", "file-format": "parquet"}
        file |= {"partition": json.loads(partition), "file-size-in-bytes": 1, "record-count": 1}
        builder = builder.withPartition(table.calls.file(json.dumps(file), spec).partition())
    return builder.withFileSizeInBytes(size).withMetrics(made).build()


def described(
    table: LakeTable,
    layout: Layout | None,
    path: str,
    *,
    rows: int,
    size: int,
    metrics: FileMetrics,
    partition: Any = None,
) -> Any:
    """Return Iceberg's DataFile of a Parquet file with these metrics, in a partition if the layout has some; the
    file is not looked at."""
    about = description(path, rows=rows, size=size, metrics=metrics, spec_id=spec_id_of(table, layout))
    spec = None if layout is None else layout.spec
    return table.calls.file(json.dumps(about if partition is None else about | {"partition": partition}), spec)


def _metrics(table: LakeTable, path: str, config: Any) -> tuple[Any, int]:
    """Return Iceberg's Metrics of a Parquet file by its MetricsConfig, and the file's size."""
    local = local_path(path)
    if local is not None:
        return table.jvm.metrics(path, config), os.path.getsize(local)
    source = table.java.io().newInputFile(path)
    return table.jvm.iceberg.parquet.ParquetUtil.fileMetrics(source, config), source.getLength()


def delete_file(table: LakeTable, transaction: Any, file: DataFile, vector: Vector) -> Any:
    """Return Iceberg's DeleteFile for a vector of a data file."""
    if not vector.length:
        metrics, _ = _metrics(table, vector.path, table.jvm.iceberg.MetricsConfig.forPositionDelete())
        return position_deletes_to_java(table.jvm, transaction.table().spec(), file.partition, vector, metrics)
    if file.partition is None:
        return table.calls.file(json.dumps(vector_description(vector, table.metadata().defaultSpecId())), None)
    return to_java(table.jvm, transaction.table().spec(), file.partition, vector)


def write_rows(table: LakeTable, layout: Layout, groups: Iterable[pa.Table]) -> list[Any]:
    """Write Arrow tables in a layout as durable data files, one for each partition; return Iceberg's DataFiles."""
    written = write_files(lambda: table.new_file(f"{uuid.uuid4().hex}.parquet"), groups, layout)
    return [data_file(table, path, layout, partition) for path, partition in written]
