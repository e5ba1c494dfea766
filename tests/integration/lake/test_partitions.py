"""Partitioned lake tables, and how Spark, PyIceberg and DuckDB read them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import parse_transform

from cutline.spark_writer.sinks.iceberg import upkeep
from tests.support.spark_bench import (
    SparkBench,
    T,
    newest,
    options,
    order,
    pyiceberg_table,
    read_by_all,
    schema,
)

V = schema("shop.visits", ("id",), id="bigint", region="varchar(20)", at="datetime", n="int")
DAYS = [dt.datetime.fromisoformat(f"2026-01-0{day}T0{day}:30:00") for day in range(1, 5)]


def visit(number: int, region: str | None = "eu", day: int | None = 0, n: int = 0) -> dict[str, Any]:
    return {"id": number, "region": region, "at": None if day is None else DAYS[day], "n": n}


def fields(bench: SparkBench, table: str) -> list[tuple[str, str, str]]:
    """The name, the column and the transform of each field of the table's default spec, as PyIceberg reads it."""
    found = pyiceberg_table(bench, table)
    names = found.schema()
    return [(each.name, names.find_column_name(each.source_id), str(each.transform)) for each in found.spec().fields]


def divided(bench: SparkBench, table: str) -> int:
    """Check that each row of `main`, a deleted one too, lies in the partition of its file; return the partitions."""
    found, epoch = pyiceberg_table(bench, table), dt.datetime.fromisoformat("1970-01-01")
    partitions = set()
    for task in found.scan().plan_files():
        spec = found.specs()[task.file.spec_id]
        partitions.add(tuple(task.file.partition[at] for at in range(len(spec.fields))))
        rows = pq.read_table(task.file.file_path.removeprefix("file:"))
        names = {int(field.metadata[b"PARQUET:field_id"]): field.name for field in rows.schema}
        for at, field in enumerate(spec.fields):
            transform = parse_transform(str(field.transform)).transform(found.schema().find_type(field.source_id))
            for value in rows[names[field.source_id]].to_pylist():
                number = (value - epoch) // dt.timedelta(microseconds=1) if isinstance(value, dt.datetime) else value
                assert task.file.partition[at] == (None if value is None else transform(number))
    return len(partitions)


@pytest.mark.parametrize(("engine", "version"), [("local", 3), ("spark", 3), ("local", 2), ("spark", 2)])
def test_rows_are_divided_and_move_with_their_values(
    bench: SparkBench, engine: str, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Chunks of several partitions. 2. Changes move rows to others, null among them, and delete some. 3. A partition
    column is renamed, and another column comes with a default. 4. Compaction merges within partitions. 5. A start of
    another Spark writer goes on.
    """
    bench.engine = engine
    bench.options = options(partition=("day(at)", "REGION", "bucket(2, id)"), format_version=version, sort=("n",))
    journal = bench.journal
    journal.table(V)
    for start in (0, 12):
        regions = ("eu", "us", None)
        journal.chunk(V, [visit(at, regions[at % 3], at % 2, at) for at in range(start, start + 12)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    wanted = [("at_day", "at", "day"), ("region", "region", "identity"), ("id_bucket", "id", "bucket[2]")]
    assert fields(bench, "shop.visits") == wanted
    assert (first := divided(bench, "shop.visits")) > 6
    moved = [visit(at, "us", 3, 50) for at in (0, 1, 2)] + [visit(3, "eu", None), visit(30, "as", 2)]
    journal.change(V, *(("+U", row) for row in moved), ("-D", visit(4)), ("-D", visit(23)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert divided(bench, "shop.visits") > first
    read_by_all(bench, "shop.visits")
    table = pyiceberg_table(bench, "shop.visits")
    every, some = (
        len(list(scan.plan_files())) for scan in (table.scan(), table.scan(row_filter=EqualTo("region", "as")))
    )
    assert (some, every > 10) == (1, True)

    renamed = V.rename_column("region", "area").add_column("more", "int", nullable=True, initial_default="7")
    journal.table(renamed)
    model = journal.models["shop.visits"]
    for key, row in list(model.items()):
        model[key] = {("area" if name == "region" else name): value for name, value in row.items()} | {"more": 7}
    new = [{"id": at, "area": "eu", "at": DAYS[at % 4], "n": 1, "more": at} for at in range(8, 13)]
    journal.change(renamed, *(("+U", row) for row in new))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert fields(bench, "shop.visits")[1] == ("region", "area", "identity")
    divided(bench, "shop.visits")
    read_by_all(bench, "shop.visits")

    before = len(list(pyiceberg_table(bench, "shop.visits").scan().plan_files()))
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(upkeep, "TIER", 2)
    for _ in range(9):
        incarnation.upkeep.run()
    journal.change(renamed, ("-D", new[0]))
    journal.checkpoint()
    bench.apply(incarnation)
    divided(bench, "shop.visits")
    assert len(list(pyiceberg_table(bench, "shop.visits").scan().plan_files())) < before
    read_by_all(bench, "shop.visits")

    journal.change(renamed, ("+U", {**new[1], "area": None}), ("-D", new[2]))
    journal.checkpoint(kept=True)
    bench.apply()
    divided(bench, "shop.visits")
    read_by_all(bench, "shop.visits")


@pytest.mark.parametrize("version", [3, 2])
def test_a_next_generation_is_divided_by_its_own_columns(bench: SparkBench, version: Any) -> None:
    """Its field ids are others, so its spec is too. `main` keeps its own until the next generation is shown, also if
    a new start finds the staging branch with deletes in it.
    """
    bench.options = options(partition=("region", "truncate(10, n)"), format_version=version)
    bench.engine = "spark"
    journal = bench.journal
    journal.table(V)
    journal.chunk(V, [visit(at, f"r{at % 2}", 0, at) for at in range(20)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    other = schema("shop.visits", ("id",), id="bigint", n="varchar(20)", more="int", region="varchar(20)")

    def row(at: int, more: int = 0) -> dict[str, Any]:
        return {"id": at, "n": f"{at:012}", "more": more, "region": f"r{at % 3}"}

    journal.table(other, generation=2, phase="snapshot")
    journal.chunk(other, [row(at) for at in range(9)])
    journal.change(other, ("-D", row(3)), ("+U", row(4, 1)))
    journal.checkpoint()
    bench.apply(incarnation)
    before = [("region", "region", "identity"), ("n_trunc", "n", "truncate[10]")]
    assert fields(bench, "shop.visits") == before
    assert pyiceberg_table(bench, "shop.visits").scan().to_arrow().num_rows == 20
    journal.change(other, ("-D", row(5)), ("+U", row(4, 2)))
    journal.checkpoint()
    again = bench.apply()
    journal.table(other, generation=2)
    journal.change(other, ("-D", row(6)), ("+U", row(7, 3)))
    journal.checkpoint(kept=True)
    bench.apply(again)
    assert fields(bench, "shop.visits") == before
    assert divided(bench, "shop.visits") > 2
    read_by_all(bench, "shop.visits")


def test_a_table_that_can_not_be_divided_any_more_is_quarantined_alone(bench: SparkBench) -> None:
    """The partition column is not there; is dropped later; a user changes the partitions of the lake table."""
    bench.options = options(partition=("region",))
    journal = bench.journal
    journal.table(V)
    journal.table(T)
    journal.chunk(V, [visit(at) for at in range(4)])
    journal.chunk(T, [order(1)])
    other = schema("shop.more", ("id",), id="int", region="varchar(9)")
    journal.table(other)
    journal.chunk(other, [{"id": 1, "region": "eu"}])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()

    def held(table: str) -> str | None:
        found = newest(bench).tables[table].held
        return None if found is None else str(found.cause)

    assert held("shop.orders") == (
        "shop.orders has no column region, by which partition in table_options divides its lake table; give it another"
        " partition there, or add the column at the source, then have the table read again"
    )
    bench.session.sql("ALTER TABLE lake.shop.more ADD PARTITION FIELD bucket(4, id)")
    journal.change(other, ("+U", {"id": 1, "region": "us"}))
    narrow = V.drop_column("region")
    journal.table(narrow)
    journal.change(narrow, ("+U", {"id": 2, "at": DAYS[1], "n": 1}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert held("shop.visits") == (
        "the source dropped the column of the partition field region, which divides the lake table; give the table"
        " another partition in table_options, or add the column again, then have the table read again"
    )
    assert held("shop.more") == (
        "another user changed the partitions of the lake table lake.shop.more, which Cutline divides; undo that by"
        " ALTER TABLE, then retry the table"
    )
    assert [row["region"] for row in bench.rows("shop.visits")[1]] == ["eu"] * 4


def test_partition_and_sort_may_change_and_the_next_generation_has_the_new_ones(bench: SparkBench) -> None:
    """1. Two partitions, sorted. 2. Others are asked for: the generation goes on as it began. 3. It is read again with
    the same columns: `main` keeps its spec and order until it shows the new generation. 4. None are asked for: the
    same. 5. A restore to a savepoint of the first generation goes on with its partitions. All readers agree.
    """
    journal, table = bench.journal, "shop.orders"
    bench.options = options(partition=("bucket(2, id)",), sort=("note",))
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    saved = journal.checkpoint(kept=True)
    bench.apply()
    model = dict(journal.models[table])
    first, wanted = ([("id", "bucket[2]")], ["note"]), ([("id", "bucket[4]")], ["price"])
    assert look(bench) == first
    bench.options = options(partition=("bucket(4, id)",), sort=("price",))
    journal.change(T, ("+U", order(1, "as it began")))
    journal.checkpoint()
    incarnation = bench.apply()
    assert (look(bench), divided(bench, table)) == (first, 2)
    for generation, shown, then in ((2, first, wanted), (3, wanted, ([], []))):
        if generation == 3:
            bench.options = options()
            journal.change(T, ("+U", order(3, "still divided")))
            journal.checkpoint()
            incarnation = bench.apply()
        journal.table(T, phase="snapshot", generation=generation)
        journal.chunk(T, [order(number, f"of {generation}") for number in range(10)])
        journal.checkpoint()
        bench.apply(incarnation)
        assert look(bench) == shown
        journal.change(T, ("+U", order(2, "caught")))
        journal.table(T, phase="catch-up", generation=generation)
        journal.checkpoint()
        bench.apply(incarnation)
        assert look(bench) == shown
        journal.change(T, ("+U", order(3, "live")), ("-D", order(4)))
        journal.table(T, generation=generation)
        journal.checkpoint()
        bench.apply(incarnation)
        assert look(bench) == then
        assert newest(bench).tables[table].held is None
    read_by_all(bench, table)
    journal.begin_epoch(saved)
    journal.table(T, generation=1)
    journal.models[table] = model
    for note in ("restored", "again"):
        journal.change(T, ("+U", order(1, note)))
        journal.checkpoint()
        incarnation = bench.apply(incarnation if note == "again" else None)
    assert (look(bench), newest(bench).tables[table].held) == (first, None)
    read_by_all(bench, table)


def look(bench: SparkBench) -> tuple[list[tuple[str, str]], list[str]]:
    """The partition spec and the sort order of shop.orders: (column, transform), and columns."""
    metadata = pyiceberg_table(bench, "shop.orders").metadata
    columns = metadata.schema()
    spec = [(columns.find_column_name(each.source_id), str(each.transform)) for each in metadata.spec().fields]
    sort = next(each for each in metadata.sort_orders if each.order_id == metadata.default_sort_order_id)
    return spec, [columns.find_column_name(each.source_id) for each in sort.fields]


def test_a_partition_whose_column_the_source_dropped_is_mended_by_another_partition(bench: SparkBench) -> None:
    """1. The column of a partition goes: the table is held. 2. Without that `partition` it is read again, and lives."""
    bench.options = options(partition=("region",), sort=("region",))
    journal = bench.journal
    journal.table(V)
    journal.chunk(V, [visit(at) for at in range(4)])
    journal.checkpoint()
    bench.apply()
    narrow = V.drop_column("region")
    journal.table(narrow)
    journal.change(narrow, ("+U", {"id": 2, "at": DAYS[1], "n": 1}))
    journal.checkpoint()
    bench.apply()
    assert newest(bench).tables["shop.visits"].held is not None
    bench.options = options()
    journal.table(narrow, generation=2)
    journal.chunk(narrow, [{"id": at, "at": DAYS[0], "n": at} for at in range(4)])
    journal.checkpoint()
    incarnation = bench.apply()
    journal.change(narrow, ("+U", {"id": 2, "at": DAYS[1], "n": 1}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert newest(bench).tables["shop.visits"].held is None
    read_by_all(bench, "shop.visits")


@pytest.mark.parametrize("sort", [(), ("note",)])
def test_a_sort_order_comments_and_properties_of_another_user_stay(bench: SparkBench, sort: tuple[str, ...]) -> None:
    """1. An owner orders the table, comments a column and sets a property. 2. All stay through changes, a new column
    and the next generation, and nothing is held. 3. The source drops the column of the order: the order ends before it.
    """
    bench.options = options(sort=sort)
    journal, table = bench.journal, "shop.orders"
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(4)])
    journal.checkpoint()
    incarnation = bench.apply()
    for statement in (
        "WRITE ORDERED BY id, price DESC",
        "ALTER COLUMN note COMMENT 'what the owner says'",
        "SET TBLPROPERTIES ('theirs' = 'me')",
    ):
        bench.session.sql(f"ALTER TABLE lake.{table} {statement}")
    more = T.add_column("more", "int", nullable=True)

    def goes_on(schema: Any, order: list[str]) -> None:
        journal.checkpoint()
        bench.apply(incarnation)
        assert newest(bench).tables[table].held is None
        found = pyiceberg_table(bench, table)
        assert look(bench)[1] == order
        assert found.properties["theirs"] == "me"
        assert found.schema().find_field("note").doc == "what the owner says"
        assert same_names(found, schema)

    journal.change(T, ("+U", order(1, "changed")))
    goes_on(T, ["id", "price"])
    journal.table(more)
    journal.change(more, ("+U", {**order(1, "more"), "more": 7}))
    goes_on(more, ["id", "price"])
    journal.table(more, generation=2)
    journal.chunk(more, [{**order(number), "more": number} for number in range(4)])
    goes_on(more, ["id", "price"])
    less = more.drop_column("price")
    journal.table(less)
    journal.change(less, ("+U", {"id": 1, "note": "less", "more": 1}))
    goes_on(less, ["id"])
    journal.change(less, ("+U", {"id": 2, "note": "less", "more": 1}))
    goes_on(less, ["id"])
    read_by_all(bench, table)


def same_names(found: Any, schema: Any) -> bool:
    return [each.name for each in found.schema().fields] == [each.name for each in schema.lake]
