"""Partition values in Python, compared with PyIceberg's transforms."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types
from pyiceberg.transforms import parse_transform

from cutline.common.schema import Column, TableSchema
from cutline.spark_writer.sinks.iceberg import partitioning
from cutline.spark_writer.sinks.iceberg.columns import Layout, Unsuitable
from cutline.spark_writer.sinks.iceberg.partitioning import chosen, recorded, transformed, write_files
from cutline.spark_writer.sinks.iceberg.sorting import in_order

FIRST, LAST = dt.datetime.fromisoformat("1001-01-01"), dt.datetime.fromisoformat("9999-12-30")
EPOCH = dt.datetime.fromisoformat("1970-01-01T00:00:00+00:00")
PERIODS = ("year", "month", "day", "hour")
BUCKETS = ("bucket[1]", "bucket[16]", "bucket[1000003]")
WIDTHS = ("truncate[1]", "truncate[10]", "truncate[1000]")
KINDS: dict[str, tuple[pa.DataType, Any, Any, tuple[str, ...]]] = {
    "int": (pa.int32(), types.IntegerType(), st.integers(1000 - 2**31, 2**31 - 1), (*BUCKETS, *WIDTHS)),
    "bigint": (pa.int64(), types.LongType(), st.integers(1000 - 2**63, 2**63 - 1), (*BUCKETS, *WIDTHS)),
    "decimal(20,3)": (
        pa.decimal128(20, 3),
        types.DecimalType(20, 3),
        st.integers(1 - 10**20, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3)),
        (*BUCKETS, *WIDTHS),
    ),
    "varchar(9)": (pa.string(), types.StringType(), st.text(), (*BUCKETS, *WIDTHS)),
    "varbinary(9)": (pa.binary(), types.BinaryType(), st.binary(), (*BUCKETS, *WIDTHS)),
    "date": (pa.date32(), types.DateType(), st.dates(FIRST.date()), (*BUCKETS, *PERIODS[:3])),
    "datetime(6)": (pa.timestamp("us"), types.TimestampType(), st.datetimes(FIRST, LAST), (*BUCKETS, *PERIODS)),
    "timestamp(6)": (
        pa.timestamp("us", "UTC"),
        types.TimestamptzType(),
        st.datetimes(FIRST, LAST, timezones=st.just(dt.UTC)),
        (*BUCKETS, *PERIODS),
    ),
}


def number(value: Any) -> Any:
    """A value as PyIceberg's transforms take it: dates and times as numbers since 1970."""
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(microseconds=1)
    return value.toordinal() - EPOCH.toordinal() if isinstance(value, dt.date) else value


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_the_values_are_those_of_pyiceberg(data: st.DataObject) -> None:
    arrow, kind, values, transforms = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    transform = data.draw(st.sampled_from(transforms))
    rows = data.draw(st.lists(st.none() | values, max_size=20))
    found = [number(value) for value in transformed(pa.array(rows, arrow), transform).to_pylist()]
    by_pyiceberg = parse_transform(transform).transform(kind)
    assert found == [None if value is None else by_pyiceberg(number(value)) for value in rows]


def test_the_hashes_are_those_of_the_specification() -> None:
    """Appendix B of Iceberg's specification, as buckets of 2^31 - 1."""
    hashes = {
        (pa.int32(), 34): 2017239379,
        (pa.int64(), 34): 2017239379,
        (pa.decimal128(9, 2), Decimal("14.20")): -500754589,
        (pa.date32(), dt.date.fromisoformat("2017-11-16")): -653330422,
        (pa.timestamp("us"), dt.datetime.fromisoformat("2017-11-16T22:31:08.000001")): -1207196810,
        (pa.string(), "iceberg"): 1210000089,
        (pa.binary(), b"\x00\x01\x02\x03"): -188683207,
    }
    for (kind, value), wanted in hashes.items():
        (found,) = transformed(pa.array([value], kind), f"bucket[{2**31 - 1}]").to_pylist()
        assert found == wanted & 0x7FFFFFFF, kind


def test_a_decimal_is_hashed_in_as_few_bytes_as_it_needs() -> None:
    rows = [Decimal(number) for number in (0, -1, 127, 128, -128, -129, 2**15 - 1, -(2**15), 2**63, -(2**63))]
    by_pyiceberg = parse_transform(BUCKETS[2]).transform(types.DecimalType(20, 0))
    found = transformed(pa.array(rows, pa.decimal128(20, 0)), BUCKETS[2]).to_pylist()
    assert found == [by_pyiceberg(row) for row in rows]


def table(**kinds: str) -> TableSchema:
    columns = [
        Column(name=name, field_id=at, mysql_type=kind, nullable=True)
        for at, (name, kind) in enumerate(kinds.items(), 1)
    ]
    return TableSchema(table_id="shop.t", columns=tuple(columns), key=("id",), last_field_id=len(columns))


def test_rows_are_written_by_partition_and_null_has_one_of_its_own(tmp_path: Path) -> None:
    schema = table(id="int", region="varchar(9)", at="datetime")
    layout = Layout(
        schema=schema,
        generation=1,
        offset=0,
        arrow=schema.arrow,
        java=None,
        partition=((2, "identity"), (3, "day")),
        sort=((1, True),),
    )
    moments = [dt.datetime.fromisoformat(each) for each in ("1969-12-31T23:59:59", "2026-01-02", "2026-01-02T09:00:00")]
    rows = [(1, "a", moments[0]), (2, "b", moments[1]), (3, None, None), (4, "b", moments[2]), (5, None, moments[1])]
    tables = [pa.Table.from_pylist([dict(zip(layout.arrow.names, row, strict=True))], layout.arrow) for row in rows]
    paths = iter(str(tmp_path / f"{at}.parquet") for at in range(9))
    written = dict(write_files(lambda: next(paths), tables, layout))
    found = {partition: pq.read_table(path)["id"].to_pylist() for path, partition in written.items()}
    assert {tuple(json.loads(partition)): ids for partition, ids in found.items()} == {
        ("a", "1969-12-31"): [1],
        ("b", "2026-01-02"): [4, 2],
        (None, None): [3],
        (None, "2026-01-02"): [5],
    }
    assert list(write_files(lambda: next(paths), [], layout)) == []
    assert list(write_files(lambda: next(paths), [layout.arrow.empty_table()], layout)) == []
    assert len(list(tmp_path.iterdir())) == 4


@given(
    rows=st.lists(st.tuples(st.integers(0, 99), st.one_of(st.none(), st.sampled_from("abc")), st.text(max_size=20))),
    sizes=st.lists(st.integers(0, 5), min_size=1),
    held=st.integers(1, 400),
    sort=st.sampled_from([(), ((1, False),), ((3, True), (1, False))]),
    partition=st.sampled_from([(), ((2, "identity"),), ((2, "identity"), (1, "bucket[3]"))]),
)
def test_rows_that_are_too_many_for_memory_are_written_as_those_that_are_few(
    rows: list[Any], sizes: list[int], held: int, sort: Any, partition: Any
) -> None:
    """Each file has rows of one partition, in the layout's order, and all files together the rows that were given."""
    schema = table(id="int", region="varchar(9)", note="varchar(20)")
    layout = Layout(
        schema=schema, generation=1, offset=0, arrow=schema.arrow, java=None, partition=partition, sort=sort
    )
    given_rows = pa.Table.from_pylist([dict(zip(layout.arrow.names, row, strict=True)) for row in rows], layout.arrow)
    tables, at = [], 0
    for size in itertools.cycle(sizes) if any(sizes) else []:
        tables.append(given_rows.slice(at, size))
        at += size
        if at >= given_rows.num_rows:
            break
    tables.append(given_rows.slice(at))

    def written(limit: int) -> dict[str, list[list[Any]]]:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(partitioning, "HELD_BYTES", limit)
            paths = (f"{folder}/{number}.parquet" for number in itertools.count())
            found: dict[str, list[list[Any]]] = {}
            for path, own in write_files(lambda: next(paths), tables, layout):
                found.setdefault(own, []).append(pq.read_table(path).to_pylist())
            return found

    few, many = written(1 << 30), written(held)
    assert all(len(files) == 1 for files in few.values())
    assert few.keys() == many.keys()
    for own, files in many.items():
        assert sorted(map(str, itertools.chain(*files))) == sorted(map(str, few[own][0]))
        assert sort or len(files) == 1
        for file in files:
            ordered = pa.Table.from_pylist(file, layout.arrow)
            assert not sort or ordered.take(in_order(ordered, layout)).equals(ordered)


def test_partition_fields_keep_their_ids_and_get_names_of_their_own() -> None:
    schema = table(id="bigint", at="datetime", at_day="int")
    wanted = ("days(AT)", "bucket(4, id)")
    found = chosen(schema, 10, wanted, known={(11, "bucket[4]"): (1007, "old")}, last=1009)
    assert found == [
        {"name": "at_day_", "transform": "day", "source-id": 12, "field-id": 1010},
        {"name": "old", "transform": "bucket[4]", "source-id": 11, "field-id": 1007},
    ]
    assert recorded(
        {"fields": found[:1]}, pa.schema([pa.field("b", pa.int64(), metadata={"PARQUET:field_id": "12"})])
    ) == ((12, "day"),)
    with pytest.raises(Unsuitable, match=r"the source dropped the column of the partition field at_day_, .* add"):
        recorded({"fields": found}, schema.arrow)


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        ("gone", r"shop.t has no column gone, by which partition .*; give it another partition"),
        ("d", r"the column d of shop.t is double, .* no partition transform identity; give the table"),
        ("hour(day)", r"the column day of shop.t is date, .* no partition transform hour"),
        ("day(id)", r"the column id of shop.t is int, .* no partition transform day"),
        ("truncate(3, at)", r"the column at of shop.t is datetime, .* no partition transform truncate\[3\]"),
        ("bucket(3, v)", r"the column v of shop.t is vector\(3\), .* no partition transform bucket\[3\]"),
    ],
)
def test_a_column_that_is_missing_or_has_no_such_transform_is_named(item: str, cause: str) -> None:
    schema = table(id="int", d="double", day="date", at="datetime", v="vector(3)")
    with pytest.raises(Unsuitable, match=cause):
        chosen(schema, 0, (item,), known={}, last=999)
