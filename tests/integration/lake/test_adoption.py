"""Chunk files are adopted by the journal's record of them: Iceberg's metrics of them without a look at the files."""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.common import parquet
from cutline.common.file_metrics import file_metrics
from cutline.common.journal.plan import StagedLost
from cutline.common.schema import TableSchema
from cutline.common.store.records import FileMetrics
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg import data_files, publications, staged
from cutline.spark_writer.sinks.iceberg import files as files_of_the_lake
from cutline.spark_writer.sinks.iceberg.data_files import described
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from tests.conftest import FULL
from tests.support.spark_bench import Row, SparkBench, T, U, order, same, schema, stock


def lake_table(bench: SparkBench, table: TableSchema, row: Row) -> LakeTable:
    """A table in the lake, with one row."""
    bench.journal.table(table)
    bench.journal.chunk(table, [row])
    bench.journal.checkpoint()
    return bench.apply().sink.tables.get(table.table_id)


def both(table: LakeTable, groups: Sequence[pa.Table], small: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a file of these row groups; return its DataFile by its record and by Iceberg, both in Iceberg's JSON."""
    path = table.new_file(f"{uuid.uuid4().hex}.parquet")
    with parquet.writer(path, groups[0], small=small) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(group.num_rows, 1))
    metrics = file_metrics(writer.writer.metadata, groups[0].schema)
    assert metrics is not None
    metrics = FileMetrics.from_json(json.loads(json.dumps(metrics.to_json())))
    rows = sum(group.num_rows for group in groups)
    spec, iceberg, size = table.java.spec(), table.jvm.iceberg, os.path.getsize(path)
    by_record = described(table, None, path, rows=rows, size=size, metrics=metrics)
    of_footer = table.jvm.metrics(path, iceberg.MetricsConfig.forTable(table.java))
    by_iceberg = iceberg.DataFiles.builder(spec).withPath(path).withFormat("parquet").withFileSizeInBytes(size)
    found = []
    for file in (by_record, by_iceberg.withMetrics(of_footer).build()):
        made = json.loads(str(iceberg.ContentFileParser.toJson(file, spec)))
        found.append({name: _by_key(value) for name, value in made.items()})
    found[1]["split-offsets"] = _split_offsets(table, path)
    return found[0], found[1]


def _by_key(value: Any) -> Any:
    if isinstance(value, dict) and "keys" in value:
        return dict(zip(value["keys"], value["values"], strict=True))
    return value


def _split_offsets(table: LakeTable, path: str) -> list[int]:
    jvm = table.jvm
    readers = jvm.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader
    hadoop = jvm.session.sparkContext._jsc.hadoopConfiguration()
    reader = readers.open(hadoop, jvm.root.org.apache.hadoop.fs.Path(path))
    try:
        return list(jvm.iceberg.parquet.ParquetUtil.getSplitOffsets(reader.getFooter()))
    finally:
        reader.close()


MANY = schema(
    "shop.many", ("id",), id="bigint unsigned", i="int", b="bigint", n="decimal(10,2)", n18="decimal(18,0)",
    n38="decimal(38,10)", n65="decimal(65,30)", f="float", d="double", flag="bit(1)", bits="bit(13)",
    v="varchar(40)", t="text", blb="blob", day="date", at="datetime(6)", ts="timestamp(6)", span="time(6)", j="json",
)  # fmt: skip
VECTOR = schema("shop.vectors", ("id",), id="int", vector="vector(3)").columns[1]
MANY = replace(MANY, columns=(*MANY.columns, replace(VECTOR, field_id=20, element_id=21)), last_field_id=21)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    exact = Context(prec=digits)
    whole = st.sampled_from([0, 1, -1, 127, 128, -128, -129, 255, -256, most, -most]) | st.integers(-most, most)
    return whole.map(lambda value: Decimal(value).scaleb(-scale, context=exact))


def floats(width: Any) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, -0.0]) | st.floats(allow_nan=False, width=width)


EDGE = "".join(map(chr, (0x7F, 0x7FF, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFE, 0x10FFFF)))
TEXTS = st.text(st.sampled_from(EDGE + "aé") | st.characters(exclude_categories=["Cs"]), max_size=20) | st.builds(
    lambda first, last, rest: first * 15 + last + rest, *[st.sampled_from(EDGE + "a")] * 3
)
BINARIES = st.binary(max_size=20) | st.builds(
    lambda ones, rest: b"\xff" * ones + rest, st.integers(0, 20), st.binary(max_size=3)
)
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes()
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 2**64 - 1).map(Decimal), "i": INT, "b": LONG, "n": decimals(10, 2), "n18": decimals(18, 0),
    "n38": decimals(38, 10), "n65": TEXTS, "f": floats(32), "d": floats(64), "flag": st.booleans(), "bits": BINARIES,
    "v": TEXTS, "t": TEXTS, "blb": BINARIES, "day": st.dates(date(1, 1, 1)), "at": MOMENTS,
    "ts": MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)), "span": LONG, "j": TEXTS,
    "vector": st.lists(floats(32), max_size=3),
}  # fmt: skip


@st.composite
def row_groups(draw: st.DrawFn) -> list[pa.Table]:
    """One to three row groups, maybe empty, in which any column may be null throughout."""
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 4))
        columns = []
        for field, values in zip(MANY.arrow, VALUES.values(), strict=True):
            some = draw(st.lists(st.none() | values, min_size=count, max_size=count) | st.just([None] * count))
            columns.append(pa.array(some, field.type))
        groups.append(pa.Table.from_arrays(columns, schema=MANY.arrow))
    return groups


def test_the_record_has_the_metrics_that_iceberg_reads_from_the_footer(bench: SparkBench) -> None:
    table = lake_table(bench, MANY, {"id": Decimal(1)})

    @settings(max_examples=300 if FULL else 60, deadline=None, database=None)
    @given(row_groups(), st.booleans())
    def equal(groups: list[pa.Table], small: bool) -> None:
        by_record, by_iceberg = both(table, groups, small)
        for name, value in by_iceberg.items():
            assert by_record.pop(name) == value, name
        assert not by_record

    equal()


@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize("columns", [98, 100, 101, 130])
def test_of_a_wide_table_the_record_has_the_columns_that_iceberg_chooses(
    bench: SparkBench, columns: int, vectors: int
) -> None:
    kinds = {"id": "int"} | {f"c{at}": "vector(3)" if at < vectors else "int" for at in range(columns - 1)}
    wide = schema("shop.wide", ("id",), **kinds)
    elements = iter(range(columns + 1, columns + 1 + vectors))
    made = (
        replace(column, element_id=next(elements)) if "vector" in column.mysql_type else column
        for column in wide.columns
    )
    wide = replace(wide, columns=tuple(made), last_field_id=columns + vectors)
    table = lake_table(bench, wide, {"id": 1})
    rows = [{"id": at} | {f"c{at}": [1.0] if at < vectors else at for at in range(columns - 1)} for at in range(3)]
    by_record, by_iceberg = both(table, [pa.Table.from_pylist(rows, schema=wide.arrow)], small=True)
    assert by_record == by_iceberg
    assert len(by_record["column-sizes"]) == min(100, columns)


def test_a_column_whose_longest_value_the_footer_lacks_has_no_bounds(bench: SparkBench) -> None:
    """Iceberg's own bounds are then those of the other row groups."""
    table = lake_table(bench, T, order(1))
    groups = [
        pa.Table.from_pylist([order(at, note, "1.00")], schema=T.arrow) for at, note in enumerate(["m", "z" * 5000])
    ]
    by_record, by_iceberg = both(table, groups, small=True)
    assert set(by_record["lower-bounds"]) == set(by_record["upper-bounds"]) == {1, 3}
    assert bytes.fromhex(by_iceberg["upper-bounds"][2]) == b"m"
    del by_iceberg["lower-bounds"][2], by_iceberg["upper-bounds"][2]
    assert by_record == by_iceberg


def chunks(bench: SparkBench) -> None:
    bench.journal.table(T)
    for first in (0, 10):
        bench.journal.chunk(T, [order(number, f"note {number}") for number in range(first, first + 10)])


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("this way is not to be taken")


def test_adoption_opens_no_file(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    by_footer = data_files.data_file
    chunks(bench)
    bench.journal.checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr(staged, "open_parquet", never)
        patch.setattr(PipelineStore, "verify", never)
        for module in (staged, data_files, publications):
            patch.setattr(
                module,
                "data_file",
                lambda table, *about: (never if table.table_id == T.table_id else by_footer)(table, *about),
            )
        incarnation = bench.apply()
    assert bench.agree() == 1
    bench.journal.change(T, ("+U", order(3, "new")), ("-D", order(12)))
    bench.journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 2
    found = bench.session.sql(f"SELECT id FROM lake.{T.table_id} WHERE note = 'note 15'").toArrow()
    assert found["id"].to_pylist() == [15]


def test_a_record_without_metrics_is_adopted_by_the_files_footer(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks(bench)
    bench.journal.staged = [replace(record, metrics=None) for record in bench.journal.staged]
    bench.journal.checkpoint()
    monkeypatch.setattr(staged, "_put_unread", never)
    bench.apply()
    assert bench.agree() == 1


def test_a_table_whose_properties_choose_metrics_gets_those(bench: SparkBench) -> None:
    lake_table(bench, T, order(100))
    mode = "'write.metadata.metrics.column.note' = 'counts'"
    bench.session.sql(f"ALTER TABLE lake.{T.table_id} SET TBLPROPERTIES ({mode})")
    chunks(bench)
    bench.journal.checkpoint()
    bench.apply()
    assert bench.agree() == 2
    files = bench.session.sql(f"SELECT lower_bounds FROM lake.{T.table_id}.files").toArrow()["lower_bounds"]
    assert sorted(len(bounds) for bounds in files.to_pylist()) == [2, 2, 3]


@pytest.mark.parametrize("copied", [False, True])
def test_a_chunk_file_that_is_gone_or_has_another_size_is_the_stores_fault(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """If it is copied, so are other bytes of the same size; nothing of the copy is left."""
    chunks(bench)
    path = Path(bench.journal.store.location(bench.journal.staged[1].path))
    content = path.read_bytes()
    bench.journal.checkpoint()
    incarnation = bench.start()
    if copied:
        monkeypatch.setattr(files_of_the_lake, "_put_here", lambda source, new: False)
    path.write_bytes(content[:-1])
    with pytest.raises(StagedLost, match=rf"is corrupt \({len(content) - 1} bytes instead of {len(content)}\)"):
        incarnation.step()
    path.unlink()
    with pytest.raises(StagedLost, match="is missing, though an entry names it"):
        incarnation.step()
    if copied:
        path.write_bytes(content[:-1] + b"?")
        with pytest.raises(StagedLost, match="its sha256 is wrong"):
            incarnation.step()
    assert list((bench.journal.root / "lake" / "shop").rglob("*.parquet")) == []
    path.write_bytes(content)
    bench.apply()
    assert bench.agree() == 1


def test_a_query_finds_a_row_whose_value_is_too_long_for_the_footer(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Changes become a data file of two row groups; the second has no bounds of the text. 2. Nor has the file."""
    monkeypatch.setattr(files_of_the_lake, "ROW_GROUP_ROWS", 1)
    lake_table(bench, T, order(1))
    bench.journal.change(T, ("+I", order(2, "m")), ("+I", order(3, "z" * 5000)))
    bench.journal.checkpoint()
    bench.apply()
    assert bench.agree() == 2
    found = bench.session.sql(f"SELECT id FROM lake.{T.table_id} WHERE note > 'y'").toArrow()
    assert found["id"].to_pylist() == [3]


def test_a_damaged_page_of_an_adopted_file_quarantines_its_table_before_it_is_used(bench: SparkBench) -> None:
    """1. A bit of a key turns over in a staged chunk file, which keeps its size. 2. The file is adopted. 3. A change
    reads the file's keys: its table is quarantined with the file's name, and another table is shown.
    """
    journal = bench.journal
    journal.table(U)
    journal.chunk(U, [stock(1, 1)])
    chunks(bench)
    path = Path(journal.store.location(journal.staged[1].path))
    content = bytearray(path.read_bytes())
    key = content.index(struct.pack("<3q", 4, 5, 6))
    content[key] ^= 1
    path.write_bytes(content)
    journal.checkpoint()
    incarnation = bench.apply()
    assert not incarnation.progress.quarantined
    journal.change(T, ("+U", order(7, "new")))
    journal.change(U, ("+U", stock(1, 2)))
    last = journal.checkpoint()
    bench.apply(incarnation)
    ((table, held),) = incarnation.progress.quarantined.items()
    assert table == T.table_id
    corrupt = r".*/lake/shop/orders/.*\.parquet is corrupt \(.*CRC.*\); restore it from a backup"
    assert re.match(corrupt, str(held.cause))
    assert same(bench.rows(U.table_id), journal.at[last][U.table_id])
