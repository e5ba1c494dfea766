"""The kernel of compaction on Parquet files: living rows, sorted by key, with their lineage, in bounded memory."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.common.schema import Column, TableSchema
from cutline.spark_writer.sinks.iceberg import merging, portions
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.deletion_vectors import write_vectors
from cutline.spark_writer.sinks.iceberg.files import DataFile, Lineage
from cutline.spark_writer.sinks.iceberg.lineage import LAST_UPDATED, NONE, ROW_ID, row_ids_at, with_row_ids
from cutline.spark_writer.sinks.iceberg.merging import Source, keys_at, merged_rows

FIRST, LAST = dt.datetime.fromisoformat("1971-01-01"), dt.datetime.fromisoformat("2038-01-01")
KEYS: dict[str, Any] = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "bigint unsigned": st.integers(0, 2**64 - 1).map(Decimal),
    "varchar(9)": st.text(max_size=9),
    "varbinary(9)": st.binary(max_size=9),
    "date": st.dates(),
    "datetime(6)": st.datetimes(FIRST, LAST),
    "timestamp(6)": st.datetimes(FIRST, LAST, timezones=st.just(dt.UTC)),
}
"""Values of the types that a key may have."""


def layout_of(*kinds: str, key: bool = True) -> Layout:
    """A table with these columns as its key, and a column `n`."""
    columns = [Column(name=f"k{at}", field_id=at + 1, mysql_type=kind, nullable=False) for at, kind in enumerate(kinds)]
    columns.append(Column(name="n", field_id=len(kinds) + 1, mysql_type="int", nullable=True))
    names = tuple(column.name for column in columns[:-1]) if key else ()
    schema = TableSchema(table_id="shop.t", columns=tuple(columns), key=names, last_field_id=len(columns))
    return Layout(schema=schema, generation=1, offset=0, arrow=schema.arrow, java=None)


def source_of(
    folder: Path,
    name: str,
    rows: pa.Table,
    *,
    dead: list[int],
    lineage: Lineage,
    group_rows: int = 5,
) -> Source:
    path = str(folder / f"{name}.parquet")
    pq.write_table(rows, path, row_group_size=group_rows, store_schema=False)
    vector = None
    if dead:
        (vector,) = write_vectors(str(folder / f"{name}.puffin"), {path: np.array(sorted(dead), np.int64)})
    return Source(path=path, vector=vector, lineage=lineage)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_merged_rows_are_the_living_ones_in_the_order_of_the_key_with_their_lineage(data: st.DataObject) -> None:
    """Any types and order of keys in the files; some rows are dead, some have a row id or a number of their own."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    layout = layout_of(*kinds)
    values = [KEYS[kind] for kind in kinds]
    if len(kinds) > 1:  # rows share the first column of a key
        values[0] = st.sampled_from(data.draw(st.lists(values[0], min_size=1, max_size=4)))
    keys = data.draw(st.lists(st.tuples(*values), unique=True, max_size=60))
    if data.draw(st.booleans()):
        keys.sort()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=4)))
    wanted: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        found_sources = []
        for number, (low, high) in enumerate(zip([0, *cuts], [*cuts, len(keys)], strict=True)):
            own = keys[low:high]
            columns = [*zip(*own, strict=True), range(low, high)] if own else [[] for _ in layout.arrow]
            arrays = [pa.array(each, field.type) for each, field in zip(columns, layout.arrow, strict=True)]
            rows = pa.table(arrays, schema=layout.arrow)
            first, sequence = 1000 * (number + 1), number + 1
            ids = np.array([data.draw(st.sampled_from([NONE, 7 * at])) for at in range(low, high)], np.int64)
            has_ids = data.draw(st.booleans())
            if has_ids:
                rows = with_row_ids(rows, ids)
            dead = data.draw(st.sets(st.integers(0, high - low - 1))) if own else set()
            for at, key in enumerate(own):
                if at not in dead:
                    row_id = int(ids[at]) if has_ids and ids[at] != NONE else first + at
                    wanted[key] = (low + at, row_id, sequence)
            lineage = Lineage(first_row_id=first, sequence=sequence)
            found_sources.append(source_of(Path(folder), str(number), rows, dead=sorted(dead), lineage=lineage))
        merged = [row for table in merged_rows(found_sources, layout) for row in table.to_pylist()]
    names = [f"k{at}" for at in range(len(kinds))]
    found = {tuple(row[name] for name in names): (row["n"], row[ROW_ID.name], row[LAST_UPDATED.name]) for row in merged}
    assert found == wanted
    assert list(found) == sorted(wanted)
    assert len(merged) == len(wanted)


def test_rows_that_share_the_first_column_of_the_key_wait_for_each_other(tmp_path: Path) -> None:
    layout, made = layout_of("bigint", "bigint"), []
    for name, keys in (("older", [(0, 0), (1, 5)]), ("newer", [(1, 0)])):
        rows = pa.table(
            [*(pa.array(each) for each in zip(*keys, strict=True)), pa.nulls(len(keys), pa.int32())], layout.arrow
        )
        made.append(source_of(tmp_path, name, rows, dead=[], lineage=Lineage(first_row_id=0, sequence=1)))
    merged = pa.concat_tables(merged_rows(made, layout))
    assert merged.select(["k0", "k1"]).to_pylist() == [{"k0": a, "k1": b} for a, b in ((0, 0), (1, 0), (1, 5))]


def numbers(low: int, high: int, step: int = 1) -> pa.Table:
    return pa.table([pa.array(range(low, high, step)), pa.array(range(low, high, step), pa.int32())], layout.arrow)


layout = layout_of("bigint")


def test_row_groups_are_filled_whole_and_the_files_of_a_round_interleave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "ROW_GROUP_ROWS", 40)
    made = [
        source_of(tmp_path, str(at), numbers(at, 150, 3), dead=[], lineage=Lineage(first_row_id=0, sequence=at + 1))
        for at in range(3)
    ]
    tables = list(merged_rows(made, layout))
    assert [table.num_rows for table in tables] == [40, 40, 40, 30]
    assert pa.concat_tables(tables)["k0"].to_pylist() == list(range(150))
    monkeypatch.setattr(portions, "ROW_GROUP_BYTES", 28 * 10)
    sizes = [table.num_rows for table in merged_rows(made, layout)]
    assert max(sizes) <= 20
    assert sum(sizes) == 150


def test_sorted_files_are_merged_a_row_group_of_each_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that wait never exceed a row group of each file; if they may not wait, the file is sorted in runs."""
    made = [
        source_of(tmp_path, str(at), numbers(at, 3000, 3), dead=[], lineage=Lineage(first_row_id=0, sequence=1))
        for at in range(3)
    ]
    sizes: list[int] = []
    by_key = merging._by_key

    def measured(tables: Any, names: Any) -> pa.Table:
        sizes.append(sum(table.num_rows for table in tables))
        return by_key(tables, names)

    monkeypatch.setattr(merging, "_by_key", measured)
    assert pa.concat_tables(merged_rows(made, layout))["k0"].to_pylist() == list(range(3000))
    assert max(sizes) <= 3 * 5
    monkeypatch.setattr(merging, "WAITING_BYTES", 0)
    keys = pa.concat_tables(merged_rows(made, layout))["k0"].to_pylist()
    assert sorted(keys) == list(range(3000))


def test_a_table_without_a_key_keeps_the_order_of_its_files(tmp_path: Path) -> None:
    keyless = layout_of("bigint", key=False)
    made = [
        source_of(tmp_path, name, numbers(low, low + 7), dead=[], lineage=Lineage(first_row_id=low, sequence=1))
        for name, low in (("a", 10), ("b", 0))
    ]
    (rows,) = merged_rows(made, keyless)
    assert rows["k0"].to_pylist() == rows[ROW_ID.name].to_pylist() == [*range(10, 17), *range(7)]


def test_rows_without_an_id_get_none_and_keep_no_number(tmp_path: Path) -> None:
    """A table that was upgraded to format version 3, beside a file that has ids."""
    old = source_of(tmp_path, "old", numbers(0, 3), dead=[], lineage=Lineage(first_row_id=None, sequence=1))
    new = source_of(tmp_path, "new", numbers(3, 5), dead=[], lineage=Lineage(first_row_id=70, sequence=2))
    (rows,) = merged_rows([old, new], layout)
    assert rows[ROW_ID.name].to_pylist() == [None, None, None, 70, 71]
    assert rows[LAST_UPDATED.name].to_pylist() == [None, None, None, 2, 2]
    (rows,) = merged_rows([old], layout)
    assert rows.schema.names == ["k0", "n"]


def test_row_ids_at_positions_are_those_of_the_file_or_of_the_rows(tmp_path: Path) -> None:
    ids = np.array([NONE, 500, NONE, 501, 502, NONE, 503], np.int64)
    path = str(tmp_path / "own.parquet")
    pq.write_table(with_row_ids(numbers(0, 7), ids), path, row_group_size=2, store_schema=False)
    file = DataFile(path=path, rows=7, size=1, lineage=Lineage(first_row_id=90, sequence=4))
    assert row_ids_at(file, np.array([0, 1, 5, 6])).tolist() == [90, 500, 95, 503]
    assert file.own_row_ids is True
    pq.write_table(numbers(0, 7), path)
    file = DataFile(path=path, rows=7, size=1, lineage=Lineage(first_row_id=90, sequence=4))
    assert row_ids_at(file, np.array([0, 6])).tolist() == [90, 96]
    Path(path).unlink()
    assert row_ids_at(file, np.array([0, 6])).tolist() == [90, 96]
    file = DataFile(path=path, rows=7, size=1, own_row_ids=False, lineage=Lineage(first_row_id=None, sequence=4))
    assert row_ids_at(file, np.array([3])).tolist() == [NONE]


def test_keys_at_positions_are_read_from_their_row_groups(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.parquet")
    pq.write_table(numbers(100, 120), path, row_group_size=3, store_schema=False)
    assert keys_at(path, np.array([0, 2, 3, 19]), layout)["k0"].to_pylist() == [100, 102, 103, 119]
