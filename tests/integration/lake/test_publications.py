"""The table `_cutline.publications` after retention: kept cuts stay right, and so do rows and files of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.store.records import Publication
from cutline.spark_writer.sinks.iceberg import lake, publications
from cutline.spark_writer.sinks.iceberg.purging import purge
from tests.integration.upkeep.test_orphans import unnamed
from tests.support.spark_bench import EVERYWHERE, LakeStart, SparkBench, T, U, both_read, order, schema, stock

NEVER_MS = 0


def history(bench: SparkBench, count: int) -> LakeStart:
    """Publications of two tables, the second of which changes now and then."""
    return more(bench, both_read(bench), count)


def more(bench: SparkBench, incarnation: LakeStart, count: int) -> LakeStart:
    for at in range(count):
        bench.journal.change(T, ("+U", order(at % 6, f"n{at}")))
        if at % 3 == 0:
            bench.journal.change(U, ("+U", stock(at % 6, 100 + at)))
        bench.journal.checkpoint()
        bench.apply(incarnation)
    return incarnation


def cuts(bench: SparkBench, pipeline: str = "shop", namespace: str = "_cutline") -> dict[int, list[Any]]:
    view = f"lake.{namespace}.cuts"
    found = bench.session.sql(f"SELECT * FROM {view} WHERE pipeline = '{pipeline}'").toArrow().to_pylist()
    by_cut: dict[int, list[Any]] = {}
    for row in found:
        by_cut.setdefault(row["checkpoint"], []).append(sorted(row.items(), key=lambda item: item[0]))
    return {n: sorted(rows, key=str) for n, rows in by_cut.items()}


def rows(bench: SparkBench) -> int:
    return int(bench.session.table("lake._cutline.publications").count())


def data_files(bench: SparkBench) -> int:
    return int(bench.session.sql("SELECT * FROM lake._cutline.publications.data_files").count())


def at(records: list[Publication], *numbers: int) -> list[Publication]:
    return [records[number] for number in numbers]


@EVERYWHERE
def test_cuts_that_are_kept_stay_right(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Twelve publications. 2. The third is a savepoint, the sixth is the oldest restorable one: the rows of others
    before it go. 3. Four more; now the ninth is the oldest one, and small files are merged. 4. The newest is the
    oldest. 5. Another start writes its rows anew.
    """
    incarnation = history(bench, 12)
    written = incarnation.sink.publications
    written.make_view()
    records, before = bench.journal.store.publications(), cuts(bench)
    numbers = [record.n for record in records]
    assert list(before) == numbers or sorted(before) == numbers
    written.tidy(at(records, 2, 5), numbers[-1], NEVER_MS)
    left = [numbers[2], *numbers[5:]]
    assert cuts(bench) == {n: before[n] for n in left}
    written.tidy(at(records, 2, 5), numbers[-1], NEVER_MS)
    assert cuts(bench) == {n: before[n] for n in left}

    more(bench, incarnation, 4)
    records, before = bench.journal.store.publications(), cuts(bench)
    numbers = [record.n for record in records]
    monkeypatch.setattr(publications, "MERGED_FILES", 3)
    written.tidy(at(records, 2, 8), numbers[-1], NEVER_MS)
    assert cuts(bench) == {n: before[n] for n in (numbers[2], *numbers[8:])}
    assert data_files(bench) == 2  # of the newest publication, and of all others

    written.tidy(at(records, 2, -1), numbers[-1], NEVER_MS)
    assert cuts(bench) == {n: before[n] for n in (numbers[2], numbers[-1])}
    assert data_files(bench) == 1
    bench.apply()
    assert cuts(bench) == {n: before[n] for n in (numbers[2], numbers[-1])}


def test_cutlines_own_tables_are_in_the_namespace_that_the_pipeline_chose(spark: Any, tmp_path: Path) -> None:
    """1. A pipeline publishes under `select`, a word of SQL; a table of its source is called `_cutline.publications`.
    2. Upkeep and a second start go on there. 3. A purge removes the rows there, and every other table."""
    bench = SparkBench(spark, tmp_path, sink={"own_namespace": "select"})
    theirs = schema("_cutline.publications", ("id",), id="bigint", note="varchar(9)", price="decimal(10,2)")
    try:
        bench.journal.table(theirs)
        bench.journal.chunk(theirs, [order(number) for number in range(3)])
        incarnation = history(bench, 3)
        incarnation.sink.publications.make_view()
        records = bench.journal.store.publications()
        incarnation.sink.publications.tidy(records[2:3], records[-1].n, NEVER_MS)
        bench.apply()
        assert len(bench.rows(theirs.table_id)[1]) == 3
        assert cuts(bench, namespace="`select`").keys() == {record.n for record in records[2:]}
        lake = bench.lake()
        assert set(purge(lake, lambda: True)) == {T.table_id, U.table_id, theirs.table_id}
        assert bench.session.sql("SELECT * FROM lake.`select`.publications").count() == 0
        assert not lake.exists("_cutline", "publications")
    finally:
        bench.close()


@EVERYWHERE
def test_rows_of_other_pipelines_stay_whatever_file_they_are_in(bench: SparkBench) -> None:
    """A user's compaction has put the rows of all pipelines into one file."""
    incarnation = history(bench, 5)
    written = incarnation.sink.publications
    written.make_view()
    bench.session.sql(
        "INSERT INTO lake._cutline.publications SELECT 'crm', checkpoint, `table`, state, snapshot_id, file, position,"
        " gtid, source_time, published_at, shown FROM lake._cutline.publications"
    )
    theirs, before = cuts(bench, "crm"), cuts(bench)
    records = bench.journal.store.publications()
    bench.session.sql("CALL lake.system.rewrite_data_files(table => '_cutline.publications', "
                      "options => map('rewrite-all', 'true'))")  # fmt: skip
    assert data_files(bench) == 1
    written.tidy(records[3:4], records[-1].n, NEVER_MS)
    assert cuts(bench, "crm") == theirs
    assert cuts(bench) == {record.n: before[record.n] for record in records[3:]}


def test_a_start_that_was_overtaken_removes_no_rows(bench: SparkBench) -> None:
    older = history(bench, 3)
    records = bench.journal.store.publications()
    bench.apply()
    count = rows(bench)
    with pytest.raises(Unavailable, match="another Spark writer has written"):
        older.sink.publications.tidy(records[2:3], records[-1].n, NEVER_MS)
    assert rows(bench) == count


def test_manifests_that_a_commit_has_merged_away_are_deleted(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg merges manifests of a table at every third commit or so."""
    monkeypatch.setitem(lake._PROPERTIES, "commit.manifest.min-count-to-merge", "3")
    history(bench, 12)
    assert unnamed(bench, "_cutline.publications") == set()
    assert unnamed(bench) == set()


def test_manifests_of_a_refused_commit_are_deleted(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user commits to a table right before our commit, which is made again."""
    incarnation = history(bench, 1)
    table = incarnation.sink.tables.get(T.table_id)
    committed = table.committed
    others: list[Any] = []

    def raced(failure: str, once: Any, **how: Any) -> Any:
        def late() -> Any:
            update_of = table.java.operations().current()
            if not others:
                bench.session.sql(f"ALTER TABLE lake.{T.table_id} SET TBLPROPERTIES ('theirs' = 'yes')")
                others.append(update_of)
            return once()

        return committed(failure, late, **how)

    monkeypatch.setattr(table, "committed", raced)
    more(bench, incarnation, 2)
    assert others
    assert unnamed(bench) == set()
    assert bench.agree()
