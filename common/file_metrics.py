"""Iceberg's metrics of a Parquet file, from its footer, which the file's own writer has in memory.

The lake adopts a chunk file by these alone (`adopt` in spark_writer/sinks/iceberg/staged.py). They are those that
Iceberg itself would read from the footer, by its defaults (tests/integration/lake/test_adoption.py compares both):

- the columns are the first `COLUMNS`, as `write.metadata.metrics.max-inferred-column-defaults` has it;
- a bound of text or binary has at most `BOUND_LENGTH` characters or bytes (`truncate(16)`). A lower bound is cut there;
  an upper bound is cut and then raised to the next value of that length, if there is one.

In one case they differ. The footer has no least and greatest value of a row group if one of them is longer than 4 KiB.
Iceberg then takes the bounds of the other row groups for the file's, and a query that trusts them misses rows. Here
such a column has no bounds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cutline.common.schema import FIELD_ID
from cutline.common.store.records import ColumnMetrics, FileMetrics

COLUMNS = 100
BOUND_LENGTH = 16
_FORMS = {
    pa.int32(): "<i",
    pa.date32(): "<i",
    pa.int64(): "<q",
    pa.float32(): "<f",
    pa.float64(): "<d",
    pa.bool_(): "<?",
}
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def file_metrics(footer: pq.FileMetaData, schema: pa.Schema) -> FileMetrics | None:
    """Return the metrics of a file with this footer and Arrow schema; None if a column has no field id."""
    leaves = [field.type.value_field if pa.types.is_list(field.type) else field for field in schema]
    if any(FIELD_ID not in (leaf.metadata or {}) for leaf in leaves):
        return None
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    # A stable order: with more columns than fit, Iceberg takes lists last.
    chosen = sorted(range(len(leaves)), key=lambda at: pa.types.is_list(schema.field(at).type))[:COLUMNS]
    return FileMetrics(
        columns=tuple(
            _column_metrics(int(leaves[at].metadata[FIELD_ID]), [group.column(at) for group in groups], schema[at].type)
            for at in sorted(chosen)
        ),
        offsets=tuple(sorted(_start(group.column(0)) for group in groups)),
    )


def _start(column: pq.ColumnChunkMetaData) -> int:
    data = int(column.data_page_offset)
    return min(int(column.dictionary_page_offset), data) if column.has_dictionary_page else data


def _column_metrics(field_id: int, chunks: list[pq.ColumnChunkMetaData], kind: pa.DataType) -> ColumnMetrics:
    """The metrics of one column, from its part in each row group."""
    size = sum(chunk.total_compressed_size for chunk in chunks)
    found = [chunk.statistics for chunk in chunks]
    if pa.types.is_list(kind) or not all(each is not None and each.has_null_count for each in found):
        return ColumnMetrics(field_id, size)
    nulls = sum(each.null_count for each in found)
    filled = [each for chunk, each in zip(chunks, found, strict=True) if chunk.num_values > each.null_count]
    if not filled or not all(each.has_min_max for each in filled):
        return ColumnMetrics(field_id, size, nulls)
    lower, upper = _bounds([each.min_raw for each in filled], [each.max_raw for each in filled], kind)
    return ColumnMetrics(field_id, size, nulls, lower.hex(), None if upper is None else upper.hex())


def _bounds(least: list[Any], most: list[Any], kind: pa.DataType) -> tuple[bytes, bytes | None]:
    """The bounds of a column in Iceberg's binary form, from raw statistics of the row groups."""
    if pa.types.is_string(kind):  # UTF-8 has the order of its characters
        return _cut_text(min(least)), _raised_text(max(most))
    if pa.types.is_binary(kind):
        return min(least)[:BOUND_LENGTH], _raised_binary(max(most))
    if pa.types.is_decimal(kind):
        return _decimal(min(map(_unscaled, least))), _decimal(max(map(_unscaled, most)))
    form = "<q" if pa.types.is_timestamp(kind) else _FORMS[kind]
    lower, upper = min(least), max(most)
    if pa.types.is_floating(kind):  # the bounds hold for both zeros
        lower, upper = lower or -0.0, upper or 0.0
    return struct.pack(form, lower), struct.pack(form, upper)


def _unscaled(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _decimal(unscaled: int) -> bytes:
    """The unscaled value in two's complement, as short as possible."""
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _cut_text(value: bytes) -> bytes:
    return value.decode()[:BOUND_LENGTH].encode()


def _raised_text(value: bytes) -> bytes | None:
    text = value.decode()
    if len(text) <= BOUND_LENGTH:
        return value
    raised = _raised([ord(character) for character in text[:BOUND_LENGTH]], _next_character)
    return None if raised is None else "".join(map(chr, raised)).encode()


def _raised_binary(value: bytes) -> bytes | None:
    if len(value) <= BOUND_LENGTH:
        return value
    raised = _raised(list(value[:BOUND_LENGTH]), lambda byte: None if byte == 255 else byte + 1)
    return None if raised is None else bytes(raised)


def _raised(units: list[int], following: Callable[[int], int | None]) -> list[int] | None:
    """The least sequence that is greater than every one that begins with `units`; None if there is none."""
    while units:
        last = following(units.pop())
        if last is not None:
            return [*units, last]
    return None


def _next_character(code: int) -> int | None:
    if code == _LAST_CHARACTER:
        return None
    return _SURROGATES.stop if code + 1 == _SURROGATES.start else code + 1
