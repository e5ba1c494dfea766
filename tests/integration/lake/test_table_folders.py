"""A table's folder lies in the warehouse and is its own, whatever the source calls the table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from cutline.common.table_id import split_table_id, table_id_of
from cutline.spark_writer.sinks.iceberg import orphans
from cutline.spark_writer.sinks.iceberg.naming import folder_name
from tests.support.spark_bench import SparkBench, newest, order, pyiceberg_table, same, schema

ODD = (
    "..", "../../../../escaped", "a/../../b", "/etc/x", "a\\b", "a#b", "a%2fb", "a/b", "a ", "a:b", "t`q\"'", "日本語",
    "*", "\x01\x1f", "\U0001f600" * 64, "Orders", "orders", folder_name("a/b"), "$HOME", "data",
)  # fmt: skip
DATABASES = ("../..", "a/b")


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Iterator[SparkBench]:
    made = SparkBench(spark, tmp_path / "deep" / "er")
    yield made
    made.close()


def files(root: Path) -> set[str]:
    return {os.path.join(place, name) for place, _, names in os.walk(root) for name in names}


def test_every_odd_name_has_a_folder_of_its_own_in_the_warehouse_and_goes_on(bench: SparkBench, tmp_path: Path) -> None:
    """1. Tables of odd names are made, some change by both engines, and all are read. 2. Each has its own folder, one
    level below its database's; no file lies outside of the lake and the store.
    """
    journal = bench.journal
    ids = [table_id_of("shop", name) for name in ODD] + [table_id_of(name, "orders") for name in DATABASES]
    columns = {"id": "bigint", "note": "varchar(9)", "price": "decimal(10,2)"}
    tables = [schema(table_id, ("id",), **columns) for table_id in ids]
    for table in tables:
        journal.table(table)
        journal.chunk(table, [order(number) for number in range(3)])
    journal.checkpoint()
    incarnation = bench.apply()
    for engine in ("local", "spark"):
        incarnation.sink.engine = engine
        for table in (*tables[:9], *tables[-2:]):
            journal.change(table, ("+U", order(1, engine)), ("-D", order(2)))
        n = journal.checkpoint()
        bench.apply(incarnation)
    held = {table: str(found.held.cause) for table, found in newest(bench).tables.items() if found.held is not None}
    assert held == {}
    lake = Path(bench.journal.sink["warehouse"])
    folders = set()
    for table in tables:
        found = pyiceberg_table(bench, split_table_id(table.table_id))
        rows = found.scan().to_arrow()
        assert same((tuple(rows.column_names), rows.to_pylist()), journal.at[n][table.table_id])
        place = Path(
            unquote(urlparse(found.location()).path) if found.location().startswith("file:") else found.location()
        )
        assert place.resolve() == place
        assert place.parent.parent == lake
        assert all(len(part.encode()) <= 255 for part in place.parts)
        data = {path.name for path in place.glob("data/*.parquet")}
        loaded = bench.lake().load(table.table_id)
        assert loaded is not None
        assert data
        assert data <= orphans._named(loaded)
        folders.add(place)
    assert len(folders) == len(tables)
    outside = {path for path in files(tmp_path) if not path.startswith((f"{lake}/", f"{journal.root}/store/"))}
    assert outside == set()
