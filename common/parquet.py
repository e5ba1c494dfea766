"""The Parquet format of staged files and of the lake's own: the lake adopts staged files, so queries read both."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DICTIONARY_SAMPLE_ROWS = 1000
SMALL_BYTES = 64 << 10
"""A file of fewer bytes in memory is small."""


def writer(sink: Any, first: pa.Table, *, small: bool = False) -> pq.ParquetWriter:
    """Open a Parquet file in `sink` for tables with the schema of `first`, which the caller writes.

    zstd, checksums of pages, no Arrow schema (a reader would restore its types). A column whose values repeat in the
    first rows gets a dictionary, which makes it smaller; it would make other columns larger, and slower to write. A
    small file has neither compression nor dictionaries: they would cost more time than the rest, and most of the file
    is its footer.
    """
    return pq.ParquetWriter(
        sink,
        first.schema,
        compression="none" if small else "zstd",
        use_dictionary=[] if small else _repeating(first),
        store_schema=False,
        write_page_checksum=True,
    )


def _repeating(rows: pa.Table) -> list[str]:
    first = rows.slice(0, DICTIONARY_SAMPLE_ROWS)
    return [
        name
        for name, column in zip(first.column_names, first.columns, strict=True)
        if not pa.types.is_nested(column.type) and pc.count_distinct(column).as_py() * 4 <= first.num_rows
    ]
