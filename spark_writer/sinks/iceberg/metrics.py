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
from cutline.spark_writer.sinks.iceberg.files import open_parquet
from cutline.spark_writer.sinks.iceberg.metadata import Metadata

_PROPERTIES = "write.metadata.metrics."
"""The names of table properties that say which metrics Iceberg keeps begin so."""


def has_default_metrics(metadata: Metadata) -> bool:
    """Whether Iceberg keeps of a table the metrics that it keeps by default."""
    return not any(name.startswith(_PROPERTIES) for name in metadata.properties())


def footer_metrics(path: str) -> tuple[int, FileMetrics] | None:
    """Return the rows and the metrics of a Parquet file, from its footer; None if a column has no field id."""
    with open_parquet(path) as file:
        rows, metrics = file.metadata.num_rows, file_metrics(file.metadata, file.schema_arrow)
    return None if metrics is None else (rows, metrics)


def description(path: str, *, rows: int, size: int, metrics: FileMetrics, spec_id: int) -> dict[str, Any]:
    """Return the DataFile of a Parquet file in Iceberg's JSON, without its partition."""
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
