"""How the lake table is partitioned, if the setting `partition` of `table_options` asks for it.

The columns are found by their names at the source when a generation begins. The partition spec that then joins the
table is kept in the table property `cutline.partition.<generation>`, so that a renamed column stays. All data files of
a generation have its spec, and the table's default spec is that of the generation which `main` shows. A later drop of a
partition column quarantines the table: Iceberg writes the partition of a delete wrongly, as null, if the column of it
is gone, and then can't read the table.

A row's partition plays no part in finding it: keys are located in all files. So a change may move a row to another
partition.

Source of the transforms: "Partition Transforms" and appendix B, "32-bit Hash Requirements", in Iceberg's specification.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.config.table_options import partitioned_by
from cutline.common.schema import TableSchema
from cutline.common.spill import Extent, Spill
from cutline.spark_writer.sinks.iceberg.columns import EXACT, Layout, Partition, Unsuitable, single_value
from cutline.spark_writer.sinks.iceberg.fields import field_id, lake_names
from cutline.spark_writer.sinks.iceberg.files import write_parquet
from cutline.spark_writer.sinks.iceberg.portions import HELD_BYTES, in_row_groups, portions, taken
from cutline.spark_writer.sinks.iceberg.sorting import in_order

PARTITION = "cutline.partition."
NOWHERE = "[]"
"""The partition of every file in a table without partitions."""
_SUFFIXES = {
    "bucket": "_bucket",
    "truncate": "_trunc",
    "year": "_year",
    "month": "_month",
    "day": "_day",
    "hour": "_hour",
}
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def chosen(
    schema: TableSchema,
    offset: int,
    wanted: Sequence[str],
    *,
    known: Mapping[tuple[int, str], tuple[int, str]],
    last: int,
) -> list[dict[str, Any]]:
    """Return the partition fields that the setting asks for, in Iceberg's JSON.

    Iceberg wants a field of the same column and transform to keep its id: `known` are those of the table's specs,
    `last` is the highest id in use. Unsuitable if a column is missing or has no such transform.
    """
    fields: list[dict[str, Any]] = []
    names = lake_names(schema.lake)
    taken = {name.upper() for name in names.values()}
    for column_name, transform in map(partitioned_by, wanted):
        if not schema.has(column_name):
            raise Unsuitable(
                f"{schema.table_id} has no column {column_name}, by which partition in table_options divides its lake"
                " table",
                "give it another partition there, or add the column at the source, then have the table read again",
            )
        column = schema.column(column_name)
        kind = schema.field(column).type
        if not _fits(transform, kind):
            raise Unsuitable(
                f"the column {column_name} of {schema.table_id} is {column.mysql_type}, for which Iceberg has no"
                f" partition transform {transform}",
                "give the table another partition in table_options",
            )
        source = column.field_id + offset
        if (source, transform) in known:
            number, name = known[source, transform]
        else:
            last += 1
            number, name = last, names[column.field_id] + _SUFFIXES.get(transform.partition("[")[0], "")
            while transform != "identity" and name.upper() in taken:
                name += "_"
        taken.add(name.upper())
        fields.append({"name": name, "transform": transform, "source-id": source, "field-id": number})
    return fields


def _fits(transform: str, kind: pa.DataType) -> bool:
    """Whether Iceberg has this transform for a type of the lake, and its value is the same in every engine."""
    name = transform.partition("[")[0]
    if pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return False
    if name in _UNITS:
        return pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and name != "hour")
    if name == "truncate":
        return not (pa.types.is_boolean(kind) or pa.types.is_temporal(kind))
    return name == "identity" or not pa.types.is_boolean(kind)


def recorded(spec: Mapping[str, Any], arrow: pa.Schema) -> Partition:
    """Return the partition that a generation's spec says. Unsuitable if a column of it is gone."""
    ids = {field_id(field) for field in arrow}
    for field in spec["fields"]:
        if field["source-id"] not in ids:
            raise Unsuitable(
                f"the source dropped the column of the partition field {field['name']}, which divides the lake table",
                "give the table another partition in table_options, or add the column again, then have the table"
                " read again",
            )
    return tuple((field["source-id"], field["transform"]) for field in spec["fields"])


def write_files(new_path: Callable[[], str], tables: Iterable[pa.Table], layout: Layout) -> Iterator[tuple[str, str]]:
    """Write rows as durable data files; yield the path and the partition of each.

    Each partition has one file, and if the layout has an order one for each `HELD_BYTES` of rows, each sorted. Whatever
    the rows weigh, about `HELD_BYTES` of them are held in memory; those of more are divided by way of a temporary file.
    No rows: no file. Raises Unavailable if that file can't be written.
    """
    for partition, rows in _divided(tables, layout):
        for groups in _sorted(rows, layout) if layout.sort else [rows]:
            path = new_path()
            if write_parquet(path, groups):
                yield path, partition


def _sorted(tables: Iterable[pa.Table], layout: Layout) -> Iterator[Iterable[pa.Table]]:
    """The rows of each file, in the order of the layout."""
    for held in portions(tables, limit_bytes=HELD_BYTES):
        yield taken(held, in_order(held, layout))


def _divided(tables: Iterable[pa.Table], layout: Layout) -> Iterator[tuple[str, Iterable[pa.Table]]]:
    """Divide rows by partition, given as the JSON list of its values in Iceberg's form."""
    if not layout.partition:
        yield NOWHERE, tables
        return
    held = portions(tables, limit_bytes=HELD_BYTES)
    begun = list(itertools.islice(held, 2))
    if len(begun) < 2:
        for rows in begun:
            yield from _by_partition(rows, layout)
        return
    spill, extents = Spill(), dict[str, list[Extent]]()
    while (portion := begun.pop(0) if begun else next(held, None)) is not None:
        for partition, own in _by_partition(portion, layout):
            batches = (batch for group in own for batch in group.to_batches())
            extents.setdefault(partition, []).append(spill.put(batches, portion.schema))
        del portion  # no portion may be held while the next one is gathered
    for partition, parts in extents.items():
        yield partition, in_row_groups(pa.Table.from_batches(spill.read(at, size)) for _, at, size in parts)


def _by_partition(rows: pa.Table, layout: Layout) -> Iterator[tuple[str, Iterable[pa.Table]]]:
    at_of = {field_id(field): at for at, field in enumerate(layout.arrow)}
    values = [
        transformed(rows.column(at_of[source]).combine_chunks(), transform) for source, transform in layout.partition
    ]
    codes = np.zeros(rows.num_rows, np.int64)
    for column in values:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    places = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[places], prepend=-1))
    for own in np.split(places, starts[1:]):
        partition = json.dumps([single_value(column[int(own[0])].as_py(), column.type) for column in values])
        yield partition, taken(rows, pa.array(own))


def transformed(values: pa.Array, transform: str) -> pa.Array:
    """Return the partition values of a column's values, in the Arrow type of Iceberg's result."""
    name, _, parameter = transform.rstrip("]").partition("[")
    if name == "identity":
        return values
    if name in _UNITS:
        return _period(values, name)
    width = int(parameter)
    if name == "bucket":
        return _by_value(values, lambda value: (mmh3.hash(hashed(value, values.type)) & 0x7FFFFFFF) % width, pa.int32())
    if pa.types.is_string(values.type):
        return pc.utf8_slice_codeunits(values, 0, width)
    if pa.types.is_binary(values.type):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal(values.type):
        scale = values.type.scale
        wider = pa.decimal128(min(38, values.type.precision + 1), scale)  # rounding down may need another digit
        return _by_value(values, lambda value: _rounded(value, width, scale), wider)
    numbers = values.fill_null(0).to_numpy()
    return pa.array(numbers - numbers % width, values.type, mask=values.is_null().to_numpy(zero_copy_only=False))


def _period(values: pa.Array, unit: str) -> pa.Array:
    """Whole periods since 1970 (in UTC, if the column has a time zone), rounded down."""
    date = pa.types.is_date(values.type)
    numbers = values.cast(pa.int32() if date else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    moments = numbers.astype("datetime64[D]" if date else "datetime64[us]")
    periods = moments.astype(f"datetime64[{_UNITS[unit]}]").astype(np.int64)
    found = pa.array(periods, pa.int32(), mask=values.is_null().to_numpy(zero_copy_only=False))
    return found.cast(pa.date32()) if unit == "day" else found


def _by_value(values: pa.Array, transform: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Apply a transform to each distinct value; null stays null."""
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary
    if pa.types.is_temporal(distinct.type):
        distinct = distinct.cast(pa.int32() if pa.types.is_date(distinct.type) else pa.int64())
    return pa.array([transform(value) for value in distinct.to_pylist()], kind).take(encoded.indices)


def hashed(value: Any, kind: pa.DataType) -> bytes:
    """Return the bytes of which Iceberg takes the hash; dates and times come as numbers."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        number = _unscaled(value, kind.scale)
        return number.to_bytes((8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True)
    return value if isinstance(value, bytes) else int(value).to_bytes(8, "little", signed=True)


def _unscaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, context=EXACT))


def _rounded(value: Decimal, width: int, scale: int) -> Decimal:
    number = _unscaled(value, scale)
    return Decimal(number - number % width).scaleb(-scale, context=EXACT)
