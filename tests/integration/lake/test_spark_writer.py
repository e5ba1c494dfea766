"""The Spark writer on a real Spark and a real lake, with a journal that the test writes; one Spark for all tests.

The model of a table is a dict key -> row; `Journal.checkpoint` keeps a copy of it, and `agree` compares every
publication (by its snapshots), `main` and every tag with those copies.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pytest

from cutline.common.errors import ProtocolError
from cutline.common.schema import META_FIELDS, OP, SEQ, TABLE
from cutline.services.run.lake import where
from cutline.services.writer import staging
from cutline.services.writer.staging import OpenChanges
from cutline.spark_writer.sinks.iceberg import durable, on_spark, staged
from cutline.spark_writer.sinks.iceberg.jvm import items
from tests.support.busy_history import busy_history
from tests.support.lake_tables import lake_table
from tests.support.spark_bench import Row, SparkBench, T, U, load_iceberg, order, same, schema


def test_every_publication_equals_the_source_at_its_cut(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T, phase="snapshot")
    journal.chunk(T, [order(number) for number in range(10)])
    journal.checkpoint()
    incarnation = bench.apply()
    assert journal.store.publications()[-1].tables[T.table_id].main is None
    journal.chunk(T, [order(number, None, None) for number in range(10, 20)])
    journal.table(T)
    journal.checkpoint()
    bench.apply(incarnation)
    journal.change(T, ("+U", order(3, "three")), ("-D", order(4)), ("+I", order(99)), ("+U", order(99, "last")))
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    journal.change(T, ("-D", order(99)), ("+I", order(4, "back")), ("+U", order(3, None, "0.01")))
    journal.checkpoint(inside=True, kept=True)
    bench.apply(incarnation)
    assert len(journal.store.publications()) == 3
    journal.checkpoint()
    bench.apply(incarnation)
    assert [record.kept for record in journal.store.publications()] == [False, False, True, True]
    assert bench.agree() == 4


def test_several_checkpoints_are_applied_at_once_but_a_kept_cut_is_published_alone(bench: SparkBench) -> None:
    busy_history(bench.journal, seed=1, checkpoints=8)
    bench.apply()
    assert 2 <= bench.agree() < 10


def test_an_inactive_table_does_not_delay_the_others(bench: SparkBench) -> None:
    """A table of a type that the lake can't hold, quarantined from the start; another quarantined while it was live."""
    journal = bench.journal
    odd = schema("shop.odd", ("id",), id="int", what="mystery")
    journal.table(odd, phase="quarantined")
    journal.table(T)
    journal.chunk(T, [order(1)])
    first = journal.checkpoint()
    incarnation = bench.apply()
    journal.change(T, ("+U", order(1, "before the fault")))
    journal.table(T, phase="quarantined")
    journal.table(U)
    journal.checkpoint()
    bench.apply(incarnation)
    tables = journal.store.publications()[-1].tables
    assert tables[odd.table_id].work is tables[odd.table_id].main is None
    assert tables[T.table_id].main.position.offset == first * 100
    assert same(bench.rows(T.table_id), journal.at[first][T.table_id])


def test_a_dropped_table_keeps_its_last_content_until_it_is_created_again(bench: SparkBench) -> None:
    """1. Live. 2. Dropped: its next generation is empty and not shown. 3. Created again."""
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(1), order(2)])
    first = journal.checkpoint()
    incarnation = bench.apply()
    journal.table(T, phase="dropped", generation=2)
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    table = journal.store.publications()[-1].tables[T.table_id]
    assert table.main.position is not None
    assert (table.state, table.main.position.offset, table.work.generation) == ("dropped", first * 100, 1)
    assert same(bench.rows(T.table_id), journal.at[first][T.table_id])
    bench.apply()  # another start shows it too
    assert same(bench.rows(T.table_id), journal.at[first][T.table_id])
    journal.table(T, generation=3)
    journal.chunk(T, [order(7)])
    again = journal.checkpoint()
    bench.apply()
    assert same(bench.rows(T.table_id), journal.at[again][T.table_id])


def test_a_table_that_is_empty_at_the_source_is_an_empty_table_in_the_lake(bench: SparkBench) -> None:
    bench.journal.table(U)
    bench.journal.checkpoint(kept=True)
    bench.apply()
    assert bench.agree() == 1
    assert bench.rows(U.table_id) == (("place", "item", "amount"), [])


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_keys_and_values_of_every_type_stay_exact(bench: SparkBench, engine: str) -> None:
    bench.engine = engine
    journal = bench.journal
    wide = schema(
        "shop.wide",
        ("code", "raw", "amount", "day"),
        code="varchar(20)",
        raw="varbinary(8)",
        amount="decimal(20,4)",
        day="date",
        at="datetime(6)",
        stamp="timestamp(6)",
        span="time(6)",
        flag="bit(1)",
        ratio="float",
        big="bigint unsigned",
        json="json",
    )

    def row(code: str, raw: bytes, amount: str, **others: Any) -> Row:
        rest = dict.fromkeys(wide.arrow.names[4:])
        return {"code": code, "raw": raw, "amount": Decimal(amount), "day": dt.date(1, 1, 1), **rest, **others}

    first = [row(code, raw, "1.0000") for code in ("a", "A", "ä", "a ", "", "日本") for raw in (b"", b"\0", b"\xff\0")]
    journal.table(wide)
    journal.chunk(wide, first)
    journal.checkpoint()
    incarnation = bench.apply()
    full = {
        "at": dt.datetime.fromisoformat("9999-12-31 23:59:59.999999"),
        "stamp": dt.datetime(2026, 10, 25, 0, 59, 59, 1, dt.UTC),
        "span": -3020399000000,
        "flag": True,
        "ratio": 16777216.0,
        "big": Decimal(2**64 - 1),
        "json": '{"a": [1, null]}',
    }
    journal.change(
        wide,
        ("+U", row("a", b"\0", "1.0000", **full)),
        ("-D", row("A", b"\0", "1.0000")),
        ("+I", row("a", b"\0", "-1.0001", **full)),
        ("-D", row("a ", b"\xff\0", "1.0000")),
        ("+U", row("日本", b"", "1.0000", json="x")),
    )
    journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 2
    assert len(bench.rows("shop.wide")[1]) == len(first) - 1


def test_truncate_drops_earlier_rows_of_the_same_checkpoint_too(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.table(U)
    journal.chunk(T, [order(number) for number in range(10)])
    journal.checkpoint()
    incarnation = bench.apply()
    journal.change(T, ("+I", order(50)), ("t", None), ("+I", order(51)), ("+I", order(2, "new")))
    journal.checkpoint()
    bench.apply(incarnation)
    journal.change(T, ("t", None))
    journal.checkpoint()
    journal.change(T, ("+I", order(1, "after")))
    journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 3
    assert bench.rows(T.table_id)[1] == [order(1, "after")]


def test_columns_are_added_renamed_dropped_and_widened_at_their_own_cut(bench: SparkBench) -> None:
    """1. Live rows. 2. ADD with a default, between changes of one checkpoint. 3. RENAME. 4. DROP and widen.

    Old rows show the default and keep their values under the new name; each older publication keeps its own columns;
    `main` never shows a column before its cut.
    """
    journal = bench.journal
    journal.table(U)
    journal.chunk(U, [{"place": "a", "item": at, "amount": at} for at in range(5)])
    first = journal.checkpoint(kept=True)
    steps: list[str] = []
    looks = False

    def look(step: str) -> None:
        if looks:
            steps.append(step)
            if step in ("applied", "published"):
                assert same(bench.rows(U.table_id), journal.at[first][U.table_id])

    incarnation = bench.apply(bench.start(look))

    def grow(rows: dict[Any, Row], name: str, value: Any) -> None:
        for key in list(rows):
            rows[key] = {**rows[key], name: value}

    added = U.add_column("colour", "varchar(9)", nullable=False, initial_default="red", first=True)
    added = added.add_column("seen", "datetime(3)", nullable=False, initial_default="2026-01-02 03:04:05.678")
    journal.change(U, ("+U", {"place": "a", "item": 1, "amount": 100}))
    grow(journal.models[U.table_id], "colour", "red")
    grow(journal.models[U.table_id], "seen", dt.datetime.fromisoformat("2026-01-02 03:04:05.678"))
    journal.table(added)
    when = dt.datetime.fromisoformat("2027-01-01")
    journal.change(added, ("+U", {"place": "a", "item": 2, "amount": 7, "colour": "blue", "seen": when}))
    journal.checkpoint(kept=True)
    looks = True
    bench.apply(incarnation)
    assert "published" in steps
    looks = False

    renamed = added.rename_column("amount", "quantity").rename_column("place", "site")
    model = journal.models[U.table_id]
    for key, row in list(model.items()):
        names = {"amount": "quantity", "place": "site"}
        model[key] = {names.get(name, name): value for name, value in row.items()}
    journal.table(renamed)
    journal.change(
        renamed,
        ("-D", {"site": "a", "item": 3, "quantity": 3, "colour": "red", "seen": when}),
        ("+U", {"site": "a", "item": 4, "quantity": 44, "colour": "green", "seen": when}),
    )
    journal.checkpoint(kept=True)
    bench.apply(incarnation)

    narrow = renamed.drop_column("colour").widen_column("item", "bigint")
    journal.table(narrow)
    for key, row in list(model.items()):
        model[key] = {name: value for name, value in row.items() if name != "colour"}
    journal.checkpoint(kept=True)
    bench.apply(bench.start())
    journal.change(narrow, ("+I", {"site": "b", "item": 2**40, "quantity": 1, "seen": when}))
    journal.change(narrow, ("+U", {"site": "a", "item": 0, "quantity": -1, "seen": when}))
    journal.checkpoint(kept=True)
    bench.apply()
    assert bench.agree() == 5
    assert readers(bench, U.table_id) == journal.at[max(journal.at)][U.table_id][1]


def readers(bench: SparkBench, table: str) -> list[Row]:
    """Read `main` by PyIceberg and by DuckDB; both must agree; return it in the model's order."""
    warehouse = bench.journal.sink["warehouse"]
    wanted = bench.journal.at[max(bench.journal.at)][table]
    by_pyiceberg = lake_table(warehouse, table).scan().to_arrow()
    assert same((tuple(by_pyiceberg.column_names), by_pyiceberg.to_pylist()), wanted)
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load_iceberg(connection)
    by_duckdb = connection.execute(
        "SELECT * FROM iceberg_scan(?)", [where(bench.journal.config, table)]
    ).fetch_arrow_table()
    assert same((tuple(by_duckdb.column_names), by_duckdb.to_pylist()), wanted)
    return wanted[1]


def test_pyiceberg_and_duckdb_read_the_same_rows(bench: SparkBench) -> None:
    busy_history(bench.journal, seed=2)
    bench.apply()
    for table in (T.table_id, U.table_id):
        readers(bench, table)


@pytest.mark.parametrize("columns", ["the same", "other types", "one more between"])
def test_a_new_generation_is_shown_only_when_it_is_live(bench: SparkBench, columns: str) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(10)])
    first = journal.checkpoint(kept=True)
    incarnation = bench.apply()
    again = T
    if columns == "other types":
        again = schema(T.table_id, ("id",), id="varchar(9)", extra="int", note="varchar(40)")
    elif columns == "one more between":  # its last column's id is the lake's of the key, and the type fits
        again = schema(T.table_id, ("id",), id="bigint", extra="int", note="varchar(40)", count="int")

    def row(number: int, note: str) -> Row:
        if columns == "the same":
            return order(number, note)
        if columns == "other types":
            return {"id": f"k{number}", "extra": number, "note": note}
        return {"id": number, "extra": number, "note": note, "count": 100 + number}

    journal.table(again, phase="snapshot", generation=2)
    journal.chunk(again, [row(number, "second") for number in range(5)])
    journal.checkpoint()
    bench.apply(incarnation)
    assert same(bench.rows(T.table_id), journal.at[first][T.table_id])
    journal.table(again, phase="catch-up", generation=2)
    journal.change(again, ("+U", row(1, "caught up")), ("-D", row(2, "")))
    journal.checkpoint()
    bench.apply()
    assert same(bench.rows(T.table_id), journal.at[first][T.table_id])
    journal.table(again, generation=2)
    journal.change(again, ("+I", row(7, "live")))
    journal.checkpoint(kept=True)
    incarnation = bench.apply()
    journal.change(again, ("+U", row(7, "more")), ("-D", row(0, "")))
    journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 5


def test_a_chunk_without_field_ids_is_rewritten(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(5)], field_ids=False)
    journal.chunk(T, [order(number) for number in range(5, 9)])
    journal.checkpoint()
    bench.apply()
    assert bench.agree() == 1
    files = bench.session.sql(f"SELECT file_path FROM lake.{T.table_id}.files").toArrow()["file_path"].to_pylist()
    assert sorted(os.stat(path).st_nlink for path in files) == [1, 2]


def test_inserts_into_a_table_without_a_key_are_appended_once_each(bench: SparkBench) -> None:
    """1. Equal rows in one chunk, then by inserts, and a start that dies once they were added and not published.
    2. A new column, TRUNCATE, equal rows again. 3. An update can't be applied, nor an insert that came twice.
    """
    journal = bench.journal
    log = schema("shop.log", (), line="varchar(40)", level="int")
    same_row = {"line": "same", "level": 1}
    journal.table(log)
    journal.chunk(log, [same_row, same_row, {"line": None, "level": None}])
    journal.checkpoint(kept=True)
    journal.change(log, ("+I", same_row), ("+I", {"line": "other", "level": 2}))
    journal.change(log, ("+I", same_row))
    journal.checkpoint(inside=True)
    bench.apply()
    journal.change(log, ("+I", same_row), ("+I", same_row))
    journal.checkpoint()
    incarnation = bench.apply()
    assert len(bench.rows("shop.log")[1]) == 8
    wider = log.add_column("host", "int", nullable=True)
    journal.table(wider)
    journal.change(wider, ("+I", {**same_row, "host": 7}), ("t", None), ("+I", {**same_row, "host": 8}))
    journal.change(wider, ("+I", {**same_row, "host": 8}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 3
    journal.change(wider, ("+U", {**same_row, "host": 9}))
    journal.checkpoint()
    with pytest.raises(ProtocolError, match="changes of it that are no inserts"):
        bench.apply(incarnation)


def test_a_publication_names_only_what_was_synced(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of the lake with the folders above it, then the catalogue; each publication has files of its own."""
    journal, synced, published = bench.journal, list[str](), list[int]()
    folder, sync = journal.root / "lake", durable.sync

    def noted(path: str) -> None:
        sync(path)
        synced.append(path)

    def look(reached: str) -> None:
        if reached == "published":
            files = {str(file) for file in folder.rglob("*") if file.is_file() and file.parent != folder}
            assert files <= set(synced)
            named = {str(above) for file in files for above in Path(file).parents if above.is_relative_to(folder)}
            assert named <= set(synced)
            before = max(at for at, path in enumerate(synced) if path in files)
            assert f"{folder}/catalog.db-wal" in synced[before:]
            published.append(len(files))

    monkeypatch.setattr(durable, "sync", noted)
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    journal.checkpoint()
    incarnation = bench.apply(bench.start(look))
    for number in range(2):
        journal.change(T, ("+U", order(number, "changed")), ("-D", order(number + 4)))
        journal.checkpoint()
        bench.apply(incarnation)
    assert len(set(published)) == 3


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_checkpoint_of_any_size_is_one_snapshot(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Row groups of three rows, reductions after six: keys that come again in later files, and a TRUNCATE."""
    bench.engine = engine
    monkeypatch.setattr(staging, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(staged, "PENDING_ROWS", 6)
    monkeypatch.setattr(on_spark, "LEAST_ROWS", 6)
    monkeypatch.setattr(on_spark, "MOST_ROWS", 6)
    monkeypatch.setattr(staged, "GROUP_ROWS", 20)
    journal, draw = bench.journal, random.Random(6)
    journal.table(T)
    journal.chunk(T, [order(number) for number in range(8)])
    for truncated in (False, True):
        for _ in range(3):
            journal.change(T, *((draw.choice(["+U", "-D"]), order(draw.randrange(9), str(at))) for at in range(15)))
            if truncated:
                journal.change(T, ("t", None))
                truncated = False
        journal.checkpoint(kept=True)
    incarnation = bench.apply()
    assert bench.agree() == 2
    # The chunk, and the changes; the TRUNCATE, and the changes.
    table = incarnation.sink.tables.get(T.table_id).metadata()
    assert [str(snapshot.operation()) for snapshot in items(table.snapshots())] == [
        "overwrite",
        "overwrite",
        "delete",
        "append",
    ]


def test_a_new_column_shows_though_the_changes_with_it_leave_no_row(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(1)])
    journal.checkpoint()
    incarnation = bench.apply()
    wider = T.add_column("seen", "int", nullable=True)
    journal.table(wider)
    journal.change(wider, ("+I", {**order(2), "seen": 1}), ("-D", {**order(2), "seen": 1}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert bench.agree() == 2


@pytest.mark.full
@pytest.mark.parametrize("checkpoints", [50, 1])
def test_a_backlog_of_five_million_changes_is_applied_in_bounded_memory(bench: SparkBench, checkpoints: int) -> None:
    """The same changes in 50 checkpoints or in one; the last of each of 1,000,000 keys is what stays."""
    changes, keys = 5_000_000, 1_000_000
    draw, journal, process = np.random.default_rng(1), bench.journal, psutil.Process()
    wide = schema("shop.wide", ("id",), id="bigint", amount="bigint", note="varchar(40)")
    journal.table(wide)
    last = np.full(keys, -1, np.int64)
    for ids in np.split(draw.integers(0, keys, changes), checkpoints):
        file = OpenChanges(journal.store, **journal.named(wide))
        for some in np.split(ids, 100 // checkpoints):
            count = len(some)
            amounts = np.arange(journal.seq, journal.seq + count)
            last[some] = amounts
            meta = {OP: ["+U"] * count, SEQ: np.arange(count), TABLE: [wide.table_id] * count}
            batch = pa.RecordBatch.from_arrays(
                [pa.array(some), pa.array(amounts), pa.array(["note"] * count)]
                + [pa.array(meta.get(field.name, [None] * count), field.type) for field in META_FIELDS],
                schema=pa.schema([*wide.arrow, *META_FIELDS]),
            )
            file.append(batch, journal.seq)
            journal.seq += count
        journal.staged.append(file.close())
        journal.checkpoint()
    jvm = max(process.children(), key=lambda child: child.memory_info().rss)
    before, most, done = process.memory_info().rss, [0, 0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            most[:] = max(most[0], process.memory_info().rss), max(most[1], jvm.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        bench.apply()
    finally:
        done.set()
        watcher.join()
    changed = last >= 0
    found = bench.session.sql("SELECT COUNT(*) AS rows, SUM(amount) AS amounts FROM lake.shop.wide").toArrow()
    assert found.to_pylist() == [{"rows": int(changed.sum()), "amounts": int(last[changed].sum())}]
    print(f"Python {(most[0] - before) >> 20} MiB more than {before >> 20}, the JVM {most[1] >> 20} MiB")
    assert most[0] - before < 1 << 30
    assert most[1] < 3 << 30
