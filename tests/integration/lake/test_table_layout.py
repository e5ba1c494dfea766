"""How lake tables are made, and how Spark, PyIceberg and DuckDB read them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg import upkeep
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.owner import Owner
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.sinks.iceberg.table import Wanted
from cutline.spark_writer.transform.shaping import Shaping
from tests.support.spark_bench import (
    LakeStart,
    SparkBench,
    T,
    U,
    both_live,
    by_pyiceberg,
    newest,
    options,
    order,
    plain,
    pyiceberg_table,
    read_by_all,
    same,
    schema,
    stock,
)

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


@pytest.mark.parametrize("version", [2, 3])
def test_a_key_that_goes_from_0_to_minus_0_is_one_row_in_both_engines(bench: SparkBench, version: Any) -> None:
    """1. Keys with 0 and -0 are adopted. 2. Each engine takes one zero for the other, and back, and deletes by the
    other zero; all readers read one row a key. 3. A merged file is changed by the other zero too.
    """
    journal, bench.options = bench.journal, options(format_version=version)
    table = schema("shop.zeros", ("k",), k="double", v="int")
    both = schema("shop.both", ("place", "k"), place="varchar(9)", k="float", v="int")
    for each in (table, both):
        journal.table(each)
        journal.chunk(each, [{"place": "a", "k": k, "v": 0} for k in (-2.5, 0.0, 7.0)])
    journal.chunk(both, [{"place": "b", "k": -0.0, "v": 0}])
    journal.checkpoint()
    incarnation = bench.apply()
    for at, engine in enumerate(("spark", "local", "spark")):
        incarnation.sink.engine = engine
        old, new = (0.0, -0.0) if at % 2 == 0 else (-0.0, 0.0)
        for each in (table, both):
            change = [("-D", {"place": "a", "k": old}), ("+I", {"place": "a", "k": new, "v": at})]
            journal.change(each, *change, ("+U", {"place": "a", "k": 7.0, "v": at}))
        journal.change(both, ("+U", {"place": "b", "k": old, "v": at}))
        journal.checkpoint()
        bench.apply(incarnation)
    journal.change(table, ("-D", {"k": 0.0}))
    journal.change(both, ("-D", {"place": "b", "k": -0.0}))
    journal.checkpoint()
    bench.apply(incarnation)
    read_by_all(bench, "shop.zeros")
    read_by_all(bench, "shop.both")
    assert sorted(bench.rows("shop.zeros")[1], key=lambda row: row["k"]) == [{"k": -2.5, "v": 0}, {"k": 7.0, "v": 2}]


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


# Format versions


def deletes(bench: SparkBench, table: str) -> list[dict[str, Any]]:
    """Iceberg's entries of the delete files of `main`."""
    return [entry for entry in entries(bench, table) if entry["content"] == 1]


def entries(bench: SparkBench, table: str) -> list[dict[str, Any]]:
    """Iceberg's entries of all files of `main`."""
    found = bench.session.sql(
        "SELECT content, file_format, file_path, record_count, referenced_data_file, lower_bounds, upper_bounds"
        f" FROM lake.{table}.files"
    ).toArrow()
    return found.to_pylist(maps_as_pydicts="strict")


def version_of(bench: SparkBench, table: str) -> int:
    return int(pyiceberg_table(bench, table).metadata.format_version)


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("version", [3, 2])
def test_all_readers_see_each_cut_through_deletes_and_changes_of_columns(
    bench: SparkBench, version: Literal[2, 3], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Chunks, then changes. 2. ADD with defaults, a chunk that lacks the columns, and changes. 3. RENAME. 4. DROP.
    5. Compaction. All readers see `main` after each of them, and every tag in the end.
    """
    bench.engine, bench.options = engine, options(format_version=version)
    journal, table = bench.journal, T
    journal.table(table)
    for at in (0, 10, 20):
        journal.chunk(table, [order(number) for number in range(at, at + 10)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    journal.change(table, *(("-D", order(number)) for number in (3, 13, 4)), ("+U", order(14, "new")))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert version_of(bench, "shop.orders") == version
    assert {each["file_format"] for each in deletes(bench, "shop.orders")} == {"PARQUET" if version == 2 else "PUFFIN"}
    read_by_all(bench, "shop.orders")

    added = table.add_column("seen", "int", nullable=False, initial_default="7", first=True)
    added = added.add_column("colour", "varchar(9)", nullable=True, initial_default="red")
    added = added.add_column("plain", "int", nullable=True)
    journal.chunk(table, [order(40)])
    journal.change(table, ("-D", order(5)))
    model = journal.models["shop.orders"]
    for key, row in list(model.items()):
        model[key] = row | {"seen": 7, "colour": "red"}
    journal.table(added)
    journal.change(added, ("+U", order(6) | {"seen": 6, "colour": None, "plain": 6}))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    read_by_all(bench, "shop.orders", tags=False)

    renamed = added.rename_column("note", "remark")
    journal.table(renamed)

    def now(number: int, remark: str | None) -> dict[str, Any]:
        row = {name: value for name, value in order(number).items() if name != "note"}
        return row | {"remark": remark, "seen": 1, "colour": "blue", "plain": None}

    for key, row in list(model.items()):
        model[key] = {("remark" if name == "note" else name): value for name, value in row.items()}
    journal.change(renamed, ("+U", now(7, "seven")), ("-D", now(6, None)), ("+I", now(90, None)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    read_by_all(bench, "shop.orders", tags=False)

    narrow = renamed.drop_column("colour").widen_column("plain", "bigint")
    journal.table(narrow)
    for key, row in list(model.items()):
        model[key] = {name: value for name, value in row.items() if name != "colour"}
    journal.change(narrow, ("-D", {name: value for name, value in now(8, None).items() if name != "colour"}))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    read_by_all(bench, "shop.orders", tags=False)

    before = len(entries(bench, "shop.orders"))
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(upkeep, "TIER", 2)
    incarnation.upkeep.run()
    journal.change(narrow, ("+I", {name: value for name, value in now(91, None).items() if name != "colour"}))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert len(entries(bench, "shop.orders")) < before
    read_by_all(bench, "shop.orders")


def test_in_version_2_each_data_file_has_at_most_one_position_delete_file(bench: SparkBench) -> None:
    """Its entry names the data file, whose whole path, of more than 16 characters, is both bounds, so readers prune."""
    bench.options = options(format_version=2)
    journal = bench.journal
    journal.table(T)
    for at in (0, 10):
        journal.chunk(T, [order(number) for number in range(at, at + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    for number in (1, 2, 3):
        journal.change(T, ("-D", order(number)), ("+U", order(10 + number, "new")))
        journal.checkpoint()
        bench.apply(incarnation)
        found = deletes(bench, "shop.orders")
        assert [each["record_count"] for each in found] == [number, number]
        assert len({each["referenced_data_file"] for each in found}) == 2
        for each in found:
            path = each["referenced_data_file"].encode()
            assert each["file_format"] == "PARQUET"
            assert each["lower_bounds"][2147483546] == each["upper_bounds"][2147483546] == path
    assert not list((bench.journal.root / "lake").rglob("*.puffin"))
    read_by_all(bench, "shop.orders")


def test_the_format_version_is_a_tables_own_option_or_the_sinks(bench: SparkBench) -> None:
    journal = bench.journal
    both = {"shop.orders": options(format_version=3), "shop.stock": options()}
    lake = Lake(
        session.for_pipeline(bench.spark, journal.sink),
        Owner(name="shop", id=journal.store.id),
        lambda table: both.get(table, options()),
        format_version=2,
    )
    for table in (T, U):
        journal.table(table)
    journal.chunk(T, [order(1)])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint()
    made = LakeStart(journal.store, IcebergSink(journal.store, lake, Shaping(journal.store, lake.jvm.session)))
    bench.apply(made)
    made.close()
    assert [version_of(bench, name) for name in ("shop.orders", "shop.stock", "_cutline.publications")] == [3, 2, 2]


def test_a_higher_format_version_comes_with_the_next_generation(bench: SparkBench) -> None:
    """1. A table of version 2 with deletes. 2. The setting is 3: changes go on in 2. 3. The next generation has 3, and
    its predecessor, with position-delete files, is read until it is shown. 4. Changes are deletion vectors.
    """
    bench.options = options(format_version=2)
    incarnation = both_live(bench)
    bench.options = options(format_version=3)
    journal = bench.journal
    journal.change(T, ("-D", order(2)))
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    assert version_of(bench, "shop.orders") == 2
    shown = journal.at[journal.store.last_slot()]["shop.orders"]
    journal.table(T, generation=2, phase="snapshot")
    journal.chunk(T, [order(number, "again") for number in range(9)])
    journal.checkpoint()
    bench.apply(incarnation)
    assert (version_of(bench, "shop.orders"), version_of(bench, "shop.stock")) == (3, 2)
    assert same(plain(by_pyiceberg(bench, "shop.orders")), shown)
    journal.table(T, generation=2)
    journal.change(T, ("-D", order(1)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert [each["file_format"] for each in deletes(bench, "shop.orders")] == ["PUFFIN"]
    read_by_all(bench, "shop.orders", tags=False)


def test_rows_deleted_in_version_2_stay_deleted_when_version_3_deletes_more(bench: SparkBench) -> None:
    """A deletion vector takes over what a position-delete file of the same data file deletes, as version 3 wants it."""
    bench.options = options(format_version=2)
    incarnation = both_live(bench)
    incarnation.sink.tables.get("shop.orders")._wanted = Wanted(version=3)
    incarnation.sink.tables.get("shop.orders").begin_generation(T, 2)
    bench.journal.change(T, ("-D", order(3)))
    bench.journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert [(each["file_format"], each["record_count"]) for each in deletes(bench, "shop.orders")] == [("PUFFIN", 2)]
    read_by_all(bench, "shop.orders")


def test_a_lower_format_version_needs_another_lake_table(bench: SparkBench) -> None:
    """1. The setting is 2, the table has 3: it goes on. 2. Its next generation is refused by one sentence, alone.
    3. The table is dropped, and read again: it has version 2.
    """
    incarnation = both_live(bench)
    bench.options = options(format_version=2)
    journal = bench.journal
    journal.change(T, ("-D", order(2)))
    journal.checkpoint()
    incarnation = bench.apply()
    assert same(bench.rows("shop.orders"), journal.at[journal.store.last_slot()]["shop.orders"])

    def generation(number: int) -> str | None:
        """The cause of the table's quarantine after the first checkpoint of its generation of that number."""
        journal.table(T, generation=number)
        journal.chunk(T, [order(at, "again") for at in range(5)])
        journal.change(U, ("+U", stock(number, 50)))
        journal.checkpoint()
        bench.apply(incarnation)
        assert newest(bench).tables["shop.stock"].shown
        held = newest(bench).tables["shop.orders"].held
        return None if held is None else str(held.cause)

    assert generation(2) == (
        "the lake table lake.shop.orders has format version 3 and can't go back to 2, which format_version asks for;"
        " drop the table, and it is read again"
    )
    bench.session.sql("DROP TABLE lake.shop.orders")
    incarnation.retry()
    journal.checkpoint()
    bench.apply(incarnation)
    assert incarnation.progress.read_again == {"shop.orders": 2}
    assert generation(3) is None
    assert (version_of(bench, "shop.orders"), version_of(bench, "shop.stock")) == (2, 3)
    last = journal.at[journal.store.last_slot()]
    assert same(bench.rows("shop.orders"), last["shop.orders"])
    assert same(bench.rows("shop.stock"), last["shop.stock"])


def test_a_format_version_that_another_user_set_quarantines_the_table(bench: SparkBench) -> None:
    bench.options = options(format_version=2)
    incarnation = both_live(bench)
    bench.session.sql("ALTER TABLE lake.shop.orders SET TBLPROPERTIES ('format-version' = '3')")
    bench.journal.change(T, ("-D", order(2)))
    bench.journal.checkpoint()
    bench.apply(incarnation)
    held = newest(bench).tables["shop.orders"].held
    assert held is not None
    assert str(held.cause) == (
        "another user set the format version of the lake table lake.shop.orders from 2 to 3; drop the table, and it is"
        " read again"
    )


def test_a_delete_of_another_user_in_version_2_is_kept_once_a_person_accepts_it(bench: SparkBench) -> None:
    """1. A data file has a position-delete file of ours. 2. A user deletes by Spark, which writes its own. 3. It is
    accepted, and the next changes delete from the same data files.
    """
    bench.options = options(format_version=2)
    incarnation = both_live(bench)
    journal = bench.journal
    bench.session.sql("DELETE FROM lake.shop.orders WHERE id IN (2, 3)")
    journal.change(T, ("+U", order(4, "new")))
    journal.checkpoint()
    bench.apply(incarnation)
    incarnation.choose("shop.orders", "accept", incarnation.foreign["shop.orders"].seen)
    for number in (2, 3):
        journal.models["shop.orders"].pop((number,))
    journal.change(T, ("-D", order(5)))
    journal.checkpoint()
    bench.apply(incarnation)
    assert newest(bench).tables["shop.orders"].held is None
    assert same(bench.rows("shop.orders"), journal.at[journal.store.last_slot()]["shop.orders"])
    found = deletes(bench, "shop.orders")
    assert len({each["referenced_data_file"] for each in found}) == len(found)


@pytest.mark.parametrize(
    "rewrite",
    [
        "rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))",
        "rewrite_position_delete_files(table => 'shop.orders', options => map('rewrite-all', 'true'))",
    ],
)
def test_a_rewrite_of_another_user_in_version_2_is_taken_over(bench: SparkBench, rewrite: str) -> None:
    bench.options = options(format_version=2)
    journal = bench.journal
    journal.table(T)
    for at in (0, 10):
        journal.chunk(T, [order(number) for number in range(at, at + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    for number in (1, 2, 3):
        journal.change(T, ("-D", order(number)), ("+U", order(10 + number, "new")))
        journal.checkpoint()
        bench.apply(incarnation)
        if number == 1:
            bench.session.sql(f"CALL lake.system.{rewrite}")
    assert newest(bench).tables["shop.orders"].held is None
    found = deletes(bench, "shop.orders")
    assert len({each["referenced_data_file"] for each in found}) == len(found) > 0
    read_by_all(bench, "shop.orders")


# Sort


def sorted_files(
    bench: SparkBench, table: str, *by: tuple[str, bool], before: Mapping[str, str] = MappingProxyType({})
) -> int:
    """Check that each data file of `main` has its rows in this order, null least; return how many files there are.
    `before` maps the names that columns had before to those that they have now.
    """
    found = [entry["file_path"] for entry in entries(bench, table) if entry["content"] == 0]
    for path in found:
        rows = pq.read_table(path.removeprefix("file:"))
        rows = rows.rename_columns([before.get(name, name) for name in rows.column_names])
        keys: Any = [(name, *(("descending", "at_end") if down else ("ascending", "at_start"))) for name, down in by]
        places = pc.sort_indices(rows, sort_keys=keys)
        assert rows.take(places).select([name for name, _ in by]) == rows.select([name for name, _ in by])
    return len(found)


def sort_order(bench: SparkBench, table: str) -> list[tuple[str, str, str]]:
    """The table's sort order by the names of its current columns, as PyIceberg reads it."""
    found = pyiceberg_table(bench, table)
    names, fields = found.schema(), found.sort_order().fields
    return [(names.find_column_name(each.source_id), each.direction.value, each.null_order.value) for each in fields]


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_the_rows_of_each_file_are_sorted_and_the_order_is_the_tables(
    bench: SparkBench, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Chunks in another order. 2. Changes. 3. RENAME of a sort column: it stays. 4. Compaction. 5. DROP of the next:
    the order ends before it, with that cut. 6. Tables without such a column are quarantined alone.
    """
    bench.engine, bench.options = engine, options(sort=("NOTE desc", "price", "id asc"))
    journal = bench.journal
    down = [("remark", "desc", "nulls-last"), ("price", "asc", "nulls-first"), ("id", "asc", "nulls-first")]
    journal.table(T)
    for at in (0, 20):
        rows = [order(number, f"n{number % 3}", None if number % 5 == 0 else "1.50") for number in range(at, at + 20)]
        journal.chunk(T, rows)
    journal.checkpoint()
    steps: dict[str, list[tuple[str, str, str]]] = {}

    def look(step: str) -> None:
        if journal.store.last_slot() > 2:  # the table is there
            steps[step] = sort_order(bench, "shop.orders")

    incarnation = bench.apply(bench.start(look))
    journal.change(T, *(("+U", order(number, f"m{number % 2}")) for number in range(9, 0, -1)), ("-D", order(30)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert sorted_files(bench, "shop.orders", ("note", True), ("price", False), ("id", False)) == 3
    assert sort_order(bench, "shop.orders") == [("note", *down[0][1:]), *down[1:]]
    read_by_all(bench, "shop.orders")

    renamed = T.rename_column("note", "remark")
    journal.table(renamed)
    model = journal.models["shop.orders"]
    for key, row in list(model.items()):
        model[key] = {("remark" if name == "note" else name): value for name, value in row.items()}
    journal.change(renamed, *(("+U", {"id": at, "remark": f"r{at % 3}", "price": None}) for at in (17, 11, 13)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert sort_order(bench, "shop.orders") == down
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(upkeep, "TIER", 2)
    incarnation.upkeep.run()
    journal.change(renamed, ("-D", {"id": 12, "remark": "", "price": None}))
    journal.checkpoint()
    bench.apply(incarnation)
    by = (("remark", True), ("price", False), ("id", False))
    assert sorted_files(bench, "shop.orders", *by, before={"note": "remark"}) < 4
    read_by_all(bench, "shop.orders")
    narrow = renamed.drop_column("price")
    journal.table(narrow)
    for key, row in list(model.items()):
        model[key] = {name: value for name, value in row.items() if name != "price"}
    journal.change(narrow, *(("+I", {"id": at, "remark": f"r{at % 3}"}) for at in range(60, 66)))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert (steps["applied"], steps["published"], steps["shown"]) == (down, down, down[:1])
    assert sorted_files(bench, "shop.orders", ("remark", True), before={"note": "remark"}) > 1
    read_by_all(bench, "shop.orders")

    journal.table(U)
    journal.chunk(U, [stock(1, 1)])
    journal.table(T.drop_column("note"), generation=2)
    journal.checkpoint()
    bench.apply(incarnation)
    for name in ("shop.orders", "shop.stock"):
        held = newest(bench).tables[name].held
        assert held is not None
        assert str(held.cause) == (
            f"{name} has no column NOTE, by which sort in table_options orders its rows; give it another sort there, or"
            " add the column at the source, then have the table read again"
        )
    assert by_pyiceberg(bench, "shop.orders").num_rows == len(model)


def test_a_next_generation_with_other_columns_is_sorted_by_their_names(bench: SparkBench) -> None:
    """Its field ids are others, so its sort order is too; `main` keeps its own until the next generation is shown."""
    bench.options = options(sort=("price", "note desc"), format_version=2)
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number, f"n{number % 4}") for number in range(9)])
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    other = schema("shop.orders", ("id",), id="bigint", price="varchar(9)", more="int", note="varchar(40)")
    journal.table(other, generation=2, phase="snapshot")
    journal.chunk(other, [{"id": at, "price": f"{at % 3}", "more": at, "note": f"n{at % 2}"} for at in range(9)])
    journal.checkpoint()
    bench.apply(incarnation)
    wanted = [("price", "asc", "nulls-first"), ("note", "desc", "nulls-last")]
    assert sort_order(bench, "shop.orders") == wanted
    assert by_pyiceberg(bench, "shop.orders").column_names == ["id", "note", "price"]
    journal.table(other, generation=2)
    journal.change(other, ("-D", {"id": 3, "price": "", "more": 0, "note": ""}))
    journal.checkpoint(kept=True)
    bench.apply()
    assert sort_order(bench, "shop.orders") == wanted
    assert sorted_files(bench, "shop.orders", ("price", False), ("note", True)) == 1
    read_by_all(bench, "shop.orders")


def test_a_list_is_no_column_to_sort_by(bench: SparkBench) -> None:
    bench.options = options(sort=("v",))
    table = schema("shop.points", ("id",), id="int").add_column("v", "vector(2)", nullable=True)
    bench.journal.table(table)
    bench.journal.chunk(table, [{"id": 1, "v": [0.5, 1.5]}])
    bench.journal.checkpoint()
    bench.apply()
    held = newest(bench).tables["shop.points"].held
    assert held is not None
    assert str(held.cause).startswith(
        "the column v of shop.points is a list, by which sort in table_options can't order rows"
    )
