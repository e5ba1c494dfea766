"""How lake tables are made, and how Spark, PyIceberg and DuckDB read them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.config.pipeline import TableOptions
from tests.integration.spark_bench import (
    SparkBench,
    by_duckdb,
    by_pyiceberg,
    order,
    pyiceberg_table,
    same,
    schema,
)


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Iterator[SparkBench]:
    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


def options(**given: Any) -> TableOptions:
    return TableOptions(tables="*.*", **given)


def plain(found: pa.Table) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    return tuple(found.column_names), found.to_pylist()


def read_by_all(bench: SparkBench, table: str, *, tags: bool = True) -> None:
    """Compare `main` and every tag, as Spark, PyIceberg and DuckDB read them, with the model."""
    bench.agree()
    newest = bench.journal.store.publications()[-1]
    kept = [record.n for record in bench.journal.store.publications() if record.kept] if tags else []
    for n, tag in [(newest.n, None), *((n, f"checkpoint_{n}") for n in kept)]:
        for read in (by_pyiceberg, by_duckdb):
            assert same(plain(read(bench, table, tag)), bench.journal.at[n][table]), f"{read.__name__} at {tag}"


# Columns


def test_the_key_is_the_identifier_and_each_column_says_its_type_at_the_source(bench: SparkBench) -> None:
    """1. Chunk files are adopted and rows change. 2. All readers read rows whose key is required, also at a tag."""
    members = ",".join(f"'{at}'" for at in range(200))
    columns = {
        "day": "date",
        "id": "bigint unsigned",
        "span": "time(6)",
        "bits": "bit(9)",
        "what": f"enum({members})",
        "note": "varchar(40)",
    }
    table, journal = schema("shop.kinds", ("id", "day"), **columns), bench.journal

    def row(at: int) -> dict[str, Any]:
        key = {"day": pa.scalar(at, pa.date32()).as_py(), "id": Decimal(2**64 - 1 - at)}
        return {**key, "span": -at, "bits": bytes((1, at)), "what": str(at), "note": None}

    journal.table(table)
    journal.chunk(table, [row(at) for at in range(5)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    journal.change(table, ("+U", row(2) | {"note": "new"}), ("-D", row(3)), ("+I", row(9)))
    journal.checkpoint()
    bench.apply(incarnation)
    read_by_all(bench, "shop.kinds")
    found = pyiceberg_table(bench, "shop.kinds").schema()
    assert found.identifier_field_names() == {"id", "day"}
    assert {field.name for field in found.fields if field.required} == {"id", "day"}
    docs = {field.name: field.doc for field in found.fields}
    assert len(docs.pop("what")) == 200
    assert docs == {
        "day": "date",
        "id": "bigint unsigned",
        "span": "time(6), in microseconds",
        "bits": "bit(9), big-endian",
        "note": "varchar(40)",
    }


def test_a_key_that_iceberg_does_not_take_is_no_identifier(bench: SparkBench) -> None:
    table, journal = schema("shop.reals", ("k",), k="double", n="int"), bench.journal
    journal.table(table)
    journal.chunk(table, [{"k": 0.5, "n": 1}])
    journal.checkpoint()
    bench.apply()
    read_by_all(bench, "shop.reals")
    found = pyiceberg_table(bench, "shop.reals").schema()
    assert found.identifier_field_names() == set()
    assert [field.required for field in found.fields] == [False, False]


def test_a_bigint_unsigned_that_is_long_is_found_and_replaced_by_both_engines(bench: SparkBench) -> None:
    journal = bench.journal
    table = schema("shop.longs", ("id",), id="bigint unsigned", n="bigint unsigned")
    table = type(table)(**{**table.__dict__, "longs": True})
    journal.table(table)
    journal.chunk(table, [{"id": 2**63 - 1 - at, "n": at} for at in range(9)])
    journal.checkpoint()
    bench.apply()
    for bench.engine in ("local", "spark"):
        journal.change(table, ("+U", {"id": 2**63 - 2, "n": 5}), ("-D", {"id": 2**63 - 3, "n": 2}))
        journal.checkpoint()
        bench.apply()
    read_by_all(bench, "shop.longs")
    assert by_pyiceberg(bench, "shop.longs").schema.types == [pa.int64(), pa.int64()]


# Properties


def test_properties_are_set_when_the_table_is_made_and_a_change_of_another_user_stays(bench: SparkBench) -> None:
    bench.options = options(
        properties={"read.split.target-size": "1000", "mine": "a", "write.metadata.previous-versions-max": "7"}
    )
    journal = bench.journal
    table = schema("shop.orders", ("id",), id="bigint", note="varchar(40)", price="decimal(10,2)")
    journal.table(table)
    journal.chunk(table, [order(1)])
    journal.checkpoint()
    incarnation = bench.apply()
    made = pyiceberg_table(bench, "shop.orders").properties
    assert (made["read.split.target-size"], made["mine"]) == ("1000", "a")
    assert made["write.metadata.previous-versions-max"] == "7"
    bench.session.sql("ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('mine' = 'b', 'theirs' = 'c')")
    bench.session.sql("ALTER TABLE lake.shop.orders UNSET TBLPROPERTIES ('read.split.target-size')")
    for start in (incarnation, None):
        journal.change(table, ("+U", order(1, "again")))
        journal.checkpoint()
        bench.apply(start)
    found = pyiceberg_table(bench, "shop.orders").properties
    assert (found["mine"], found["theirs"], "read.split.target-size" in found) == ("b", "c", False)
    read_by_all(bench, "shop.orders")
