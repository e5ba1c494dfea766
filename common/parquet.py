"""How rows become Parquet, in staged files and in the lake's own: adopted as they are, both are read by queries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DICTIONARY_SAMPLE_ROWS = 1000
SMALL_BYTES = 64 << 10


def writer(sink: Any, first: pa.Table, *, whole: bool = False) -> pq.ParquetWriter:
    """Open a Parquet file in `sink` for tables of the schema of `first`, which is not written yet; `whole`: it is all.

    zstd, checksums of pages, no Arrow schema (its types would come back on reading). A column whose values repeat in
    the first rows gets a dictionary, which makes it smaller; others it would make larger, and slower to write. A small
    file has neither: both would take longer than all else of it, and its footer is most of it.
    """
    small = whole and first.nbytes < SMALL_BYTES
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
