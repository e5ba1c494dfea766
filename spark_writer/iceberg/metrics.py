"""Iceberg's metrics of data files, without a reader in the JVM.

A chunk file's metrics are in the journal's record of it; those of other files come from their footers. Both are made by
common/file_metrics.py, and are what Iceberg keeps by default. A table whose properties ask for others has Iceberg read
its files' footers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutline.common.file_metrics import file_metrics
from cutline.common.store.records import FileMetrics
from cutline.spark_writer.iceberg.files import open_parquet
from cutline.spark_writer.iceberg.jvm import Jvm

_PROPERTIES = "write.metadata.metrics."
"""The names of table properties that say which metrics Iceberg keeps begin so."""


def has_default_metrics(jvm: Jvm, java: Any) -> bool:
    """Whether Iceberg keeps of a Table `java` the metrics that it keeps by default."""
    # One call for all properties, of which a table has at least one a generation.
    return _PROPERTIES not in str(jvm.root.java.lang.String.valueOf(java.properties()))


def described(jvm: Jvm, spec: Any, path: str, *, rows: int, size: int, metrics: FileMetrics) -> Any:
    """Return Iceberg's DataFile of a Parquet file, in a partition spec without fields; the file is not looked at."""
    description = _to_json(path, rows=rows, size=size, metrics=metrics, spec_id=int(spec.specId()))
    return jvm.content_file(description, spec)


def footer_metrics(jvm: Jvm, path: str) -> Any:
    """Return Iceberg's Metrics of a Parquet file, from its footer; None if a column has no field id."""
    with open_parquet(path) as file:
        rows, metrics = file.metadata.num_rows, file_metrics(file.metadata, file.schema_arrow)
    if metrics is None:
        return None
    spec = jvm.iceberg.PartitionSpec.unpartitioned()
    made = described(jvm, spec, path, rows=rows, size=0, metrics=metrics)
    counts = (made.columnSizes(), made.valueCounts(), made.nullValueCounts(), made.nanValueCounts())
    return jvm.iceberg.Metrics(rows, *counts, made.lowerBounds(), made.upperBounds())


def _to_json(path: str, *, rows: int, size: int, metrics: FileMetrics, spec_id: int) -> dict[str, Any]:
    """The DataFile in Iceberg's JSON."""
    counted = [column for column in metrics.columns if column.nulls is not None]
    return {
        "spec-id": spec_id,
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "file-size-in-bytes": size,
        "record-count": rows,
        "column-sizes": _map([(column.field_id, column.size) for column in metrics.columns]),
        "value-counts": _map([(column.field_id, rows) for column in counted]),
        "null-value-counts": _map([(column.field_id, column.nulls) for column in counted]),
        "nan-value-counts": _map([]),
        "lower-bounds": _map([(column.field_id, column.lower) for column in counted if column.lower is not None]),
        "upper-bounds": _map([(column.field_id, column.upper) for column in counted if column.upper is not None]),
        "split-offsets": list(metrics.offsets),
        "sort-order-id": 0,
    }


def _map(pairs: Sequence[tuple[int, Any]]) -> dict[str, list[Any]]:
    return {"keys": [key for key, _ in pairs], "values": [value for _, value in pairs]}
