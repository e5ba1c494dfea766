"""Row lineage on a real lake: what updates, compactions and restarts leave of `_row_id` and the sequence numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cutline.spark_writer.sinks.iceberg import upkeep
from cutline.spark_writer.sinks.iceberg.jvm import Refused
from tests.conftest import FULL
from tests.support.lake_tables import lake_table
from tests.support.spark_bench import LakeStart, Row, SparkBench, T, U, order, same, stock

IDS = "_row_id", "_last_updated_sequence_number"


@pytest.fixture
def bench(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBench]:
    """A bench whose Spark writer compacts only when a test calls for it, two files or more."""
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 1e9)
    monkeypatch.setattr(upkeep, "TIER", 2)
    made = SparkBench(spark, tmp_path)
    yield made
    made.close()


def compact(incarnation: LakeStart) -> None:
    incarnation.upkeep.view = Future()  # making it takes seconds
    incarnation.upkeep.run()


def lineage(bench: SparkBench, table: str = T.table_id, key: tuple[str, ...] = ("id",)) -> dict[Any, tuple[int, int]]:
    """The row id and the sequence number of each row of `main`, as Spark reads them, by key."""
    found = bench.session.sql(f"SELECT {', '.join((*key, *IDS))} FROM lake.{table}").toArrow().to_pylist()
    ids = [row["_row_id"] for row in found]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    return {tuple(row[name] for name in key): (row[IDS[0]], row[IDS[1]]) for row in found}


def files(bench: SparkBench, table: str = T.table_id) -> list[pq.ParquetFile]:
    found = bench.session.sql(f"SELECT file_path FROM lake.{table}.files WHERE content = 0").toArrow()
    return [pq.ParquetFile(path.removeprefix("file:")) for path in found["file_path"].to_pylist()]


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("seed", range(12 if FULL else 2))
def test_a_row_keeps_its_id_through_updates_compactions_and_restarts(bench: SparkBench, seed: int, engine: str) -> None:
    """A random history. A row that did not change keeps both values, an updated one its id, and a new one gets a new
    id, also if its key was there before.
    """
    draw, journal, bench.engine = random.Random(seed), bench.journal, engine
    make: Callable[[int, int], Row] = (lambda n, to: order(n, f"n{to}")) if seed % 2 else stock
    table = T if seed % 2 else U
    read = (table.table_id, table.key)
    journal.table(table)
    for first in range(0, 40, 10):
        journal.chunk(table, [make(n, 0) for n in range(first, first + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    if draw.random() < 0.7:  # Iceberg merges a table's manifests from the hundredth on
        merge = "'commit.manifest.min-count-to-merge' = '2'"
        bench.session.sql(f"ALTER TABLE lake.{table.table_id} SET TBLPROPERTIES ({merge})")
    known, used = lineage(bench, *read), set[int]()
    for step in range(1, 12 if FULL else 7):
        used |= {row_id for row_id, _ in known.values()}
        changes = {n: draw.choice(["+U", "+U", "-D"]) for n in draw.sample(range(50), draw.randint(1, 9))}
        journal.change(table, *((op, make(n, step)) for n, op in changes.items()))
        journal.checkpoint()
        bench.apply(incarnation)
        before, known = known, lineage(bench, *read)
        changed = {tuple(make(n, step)[name] for name in table.key) for n in changes}
        newest = max(sequence for _, sequence in before.values())
        for key, (row_id, sequence) in known.items():
            if key not in changed:
                assert (row_id, sequence) == before[key]
                continue
            assert sequence > newest
            assert row_id == before[key][0] if key in before else row_id not in used
        event = draw.choice(["", "compaction", "compaction", "start"])
        if event == "compaction":
            head = incarnation.progress.work[table.table_id]
            compact(incarnation)
            assert incarnation.progress.work[table.table_id] != head
            journal.checkpoint()
            bench.apply(incarnation)
            assert lineage(bench, *read) == known
        elif event == "start":
            incarnation = bench.apply()
    assert bench.agree()


def test_a_merged_file_is_sorted_by_key_and_every_reader_reads_it(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(U)
    for first in (20, 0, 10):
        journal.chunk(U, [stock(n, n) for n in range(first, first + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    before = lineage(bench, U.table_id, U.key)
    compact(incarnation)
    newest = journal.checkpoint()
    bench.apply(incarnation)
    (merged,) = files(bench, U.table_id)
    assert merged.num_row_groups == 1
    keys = [(row["place"], row["item"]) for row in merged.read(columns=["place", "item"]).to_pylist()]
    assert keys == sorted(before)
    wanted = journal.at[newest][U.table_id]
    assert same(bench.rows(U.table_id), wanted)
    warehouse = journal.sink["warehouse"]
    table = lake_table(warehouse, U.table_id)
    arrow = table.scan().to_arrow()
    assert same((tuple(arrow.column_names), arrow.to_pylist()), wanted)
    only = table.scan(row_filter="item = 7", selected_fields=("amount",)).to_arrow()
    assert only.to_pylist() == [{"amount": 7}]


def test_a_new_row_needs_no_lineage_columns(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, [order(1)])
    journal.checkpoint()
    incarnation = bench.apply()
    journal.change(T, ("+I", order(2)))
    journal.checkpoint()
    bench.apply(incarnation)
    assert {tuple(file.schema_arrow.names) for file in files(bench)} == {("id", "note", "price")}
    journal.change(T, ("+U", order(2, "new")))
    journal.checkpoint()
    bench.apply(incarnation)
    assert sum("_row_id" in file.schema_arrow.names for file in files(bench)) == 1


# Large rounds


@pytest.fixture
def large(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> LakeStart:
    """A live table of four files, and a large round under way that merges them."""
    monkeypatch.setattr(upkeep, "HERE_BYTES", 0)
    journal = bench.journal
    journal.table(U)
    for first in range(0, 40, 10):
        journal.chunk(U, [stock(n, n) for n in range(first, first + 10)])
    journal.checkpoint()
    incarnation = bench.apply()
    compact(incarnation)
    monkeypatch.setattr(upkeep, "TIER", 1000)  # no other round
    return incarnation


def finish(incarnation: LakeStart) -> set[str]:
    """Let the large round end, and the next upkeep take it, which begins no other; return the file that was written."""
    rewriting = incarnation.upkeep._rewriting
    assert rewriting is not None
    rewriting.wait(60)
    assert rewriting.done
    written = {str(rewriting._path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "COMPACTION_REST", 1e9)
        compact(incarnation)
    assert incarnation.upkeep._rewriting is None
    return written


def paths(bench: SparkBench, ref: str) -> set[str]:
    table = bench.lake().ensure(U.table_id)
    head = table.head(ref)
    assert head is not None
    return set(table.contents(head).files)


def test_a_large_round_carries_over_what_died_meanwhile(bench: SparkBench, large: LakeStart) -> None:
    """1. A large round begins. 2. Rows of its files are updated and deleted, twice; a column is renamed and one added.
    3. It ends: the table has its file, and each row is as it was.
    """
    journal, old = bench.journal, paths(bench, large.sink.branch)
    journal.change(U, ("+U", stock(3, -3)), ("-D", stock(17, 17)), ("+I", stock(99, 99)))
    journal.checkpoint()
    bench.apply(large)
    changed = U.rename_column("amount", "number").add_column("later", "int", nullable=True)
    journal.table(changed)
    renamed = {key: {**row, "number": row["amount"]} for key, row in journal.models[U.table_id].items()}
    journal.models[U.table_id] = renamed
    new = {"place": "p30", "item": 30, "number": 0, "later": 1}
    journal.change(changed, ("+U", new), ("-D", {"place": "p3", "item": 3, "number": 0, "later": 0}))
    journal.checkpoint()
    bench.apply(large)
    before = lineage(bench, U.table_id, U.key)
    written = finish(large)
    assert paths(bench, large.sink.branch) & (old | written) == written
    journal.checkpoint()
    bench.apply(large)
    assert written <= paths(bench, "main")
    assert lineage(bench, U.table_id, U.key) == before
    assert bench.agree() == 4
    journal.change(changed, ("-D", new))
    journal.checkpoint()
    again = bench.apply()
    compact(again)
    assert bench.agree() == 5


@pytest.mark.parametrize("end", ["truncate", "generation", "quarantine", "close"])
def test_a_large_round_whose_files_are_gone_leaves_nothing(bench: SparkBench, large: LakeStart, end: str) -> None:
    journal = bench.journal
    rewriting = large.upkeep._rewriting
    assert rewriting is not None
    if end == "truncate":
        journal.change(U, ("t", None), ("+I", stock(1, 1)))
    elif end == "generation":
        journal.table(U, generation=2)
        journal.chunk(U, [stock(2, 2)])
    journal.checkpoint()
    bench.apply(large)
    head = large.progress.work[U.table_id]
    if end == "close":
        rewriting.wait(60)
        written = {str(rewriting._path)}
        large.close()
    else:
        if end == "quarantine":
            large.progress.work.pop(U.table_id)
        written = finish(large)
        assert large.progress.work.get(U.table_id) in (head, None)
    assert not any(Path(path.removeprefix("file:")).exists() for path in written)
    journal.checkpoint()
    bench.apply()
    assert bench.agree() == 3


def test_a_large_round_ends_with_its_start(bench: SparkBench, large: LakeStart) -> None:
    rewriting = large.upkeep._rewriting
    assert rewriting is not None
    large.close()
    rewriting.wait(60)
    assert rewriting.done
    assert rewriting._path is None or not Path(rewriting._path.removeprefix("file:")).exists()
    assert bench.agree() == 1


def test_a_large_round_that_fails_leaves_the_table_as_it_is(
    bench: SparkBench, large: LakeStart, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are as they were, so the next commit to the table has them merged."""
    rewriting, head = large.upkeep._rewriting, large.progress.work[U.table_id]
    assert rewriting is not None
    rewriting.wait(60)
    rewriting._error = Refused("files of shop.stock could not be merged by Spark: an executor was lost")
    compact(large)
    assert "upkeep of shop.stock failed: files of shop.stock could not be merged" in caplog.text
    assert large.progress.work[U.table_id] == head
    assert bench.agree() == 1
