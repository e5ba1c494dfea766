"""A table that can't be applied is quarantined alone, and comes back exact; on a real Spark and a real lake.

The faults are real: those that another owner, a user or a lost folder causes in a lake table. `shop.stock` gets the
fault, `shop.orders` beside it stays healthy.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.store.records import CheckpointEntry
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg import sink, upkeep
from cutline.spark_writer.sinks.iceberg.changes import upsert
from cutline.spark_writer.sinks.iceberg.foreign import theirs
from cutline.spark_writer.sinks.iceberg.maintenance import TIER
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support import records
from tests.support.databases import Database, MariaDB
from tests.support.mesh import Mesh
from tests.support.quarantined import BAD, HEALTHY, branches, until
from tests.support.spark_bench import SparkBench, T, U, both_live, newest, order, same, stock


def sql(*statements: str) -> Callable[[SparkBench], None]:
    def run(bench: SparkBench) -> None:
        for statement in statements:
            bench.session.sql(statement)

    return run


def folder(bench: SparkBench) -> Path:
    return bench.journal.root / "lake" / "shop" / "stock"


def files_away(bench: SparkBench) -> None:
    # Chunks lie in the store, where they were staged; what the changes left lies in the table's folder.
    (folder(bench) / "data").rename(folder(bench) / "away")


def files_back(bench: SparkBench) -> None:
    shutil.copytree(folder(bench) / "away", folder(bench) / "data", dirs_exist_ok=True)


def expired(bench: SparkBench) -> None:
    """A user rolls `main` back to its first snapshot, drops the unknown branch, and expires the rest."""
    java = bench.lake().ensure(BAD).java
    first = java.snapshots().iterator().next().snapshotId()
    java.manageSnapshots().replaceBranch("main", first).removeBranch("staging_1").commit()
    java.expireSnapshots().expireOlderThan(int(time.time() * 1000) + 1000).retainLast(1).commit()


def overwrite(bench: SparkBench) -> None:
    """A person decides that what others committed is replaced."""
    table = bench.lake().ensure(BAD)
    found = theirs(table.metadata())
    assert found is not None
    table.choose("overwrite", found.seen)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a table: how to cause and undo it, and its cause's text; `lost`: the rows must be read again."""

    do: Callable[[SparkBench], None]
    undo: Callable[[SparkBench], None]
    cause: str
    lost: bool = False


FAULTS = {
    "a partition field": Fault(
        do=sql("ALTER TABLE lake.shop.stock ADD PARTITION FIELD place"),
        undo=sql("ALTER TABLE lake.shop.stock DROP PARTITION FIELD place"),
        cause="DROP PARTITION FIELD",
    ),
    "another owner's mark": Fault(
        do=sql("ALTER TABLE lake.shop.stock SET TBLPROPERTIES ('cutline.pipeline' = 'crm')"),
        undo=sql("ALTER TABLE lake.shop.stock SET TBLPROPERTIES ('cutline.pipeline' = 'shop')"),
        cause="belongs to pipeline crm",
    ),
    "its files are gone": Fault(do=files_away, undo=files_back, cause=r"stock/data/.*\.parquet"),
    "dropped": Fault(do=sql("DROP TABLE lake.shop.stock"), undo=sql(), cause="dropped", lost=True),
    "dropped, and another made": Fault(
        do=sql("DROP TABLE lake.shop.stock", "CREATE TABLE lake.shop.stock (a int) USING iceberg"),
        undo=sql("DROP TABLE lake.shop.stock"),
        cause="was not made by Cutline|dropped|UUID",
        lost=True,
    ),
    "a view in its place": Fault(
        do=sql("DROP TABLE lake.shop.stock", "CREATE VIEW lake.shop.stock AS SELECT 1 AS a"),
        undo=sql("DROP VIEW lake.shop.stock"),
        cause="is a view",
        lost=True,
    ),
    "its snapshots expired": Fault(do=expired, undo=overwrite, cause="another user set the lake table", lost=True),
}


def live(bench: SparkBench) -> bool:
    """Whether the newest publication shows the bad table again, at its own cut."""
    table = newest(bench).tables[BAD]
    return table.shown and table.state == "live" and table.held is None


def parked(bench: SparkBench) -> str:
    """The cause of the bad table's quarantine in the newest publication, which shows the healthy one exactly."""
    record = newest(bench)
    assert record.n == bench.journal.store.last_slot()
    assert record.tables[HEALTHY].shown
    assert same(bench.rows(HEALTHY), bench.journal.at[record.n][HEALTHY])
    table = record.tables[BAD]
    assert table.state == "quarantined"
    assert table.held is not None
    rows = bench.session.sql(
        f"SELECT state FROM lake._cutline.publications WHERE `table` = '{BAD}' ORDER BY checkpoint DESC LIMIT 1"
    ).toArrow()
    assert rows["state"].to_pylist() == ["quarantined"]
    return str(table.held.cause)


def read_again(bench: SparkBench, generation: int = 2) -> None:
    """Begin the table's next generation, with its present rows, as the enumerator does when asked."""
    journal = bench.journal
    rows = list(journal.models[BAD].values())
    journal.table(U, generation=generation)
    journal.chunk(U, rows)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_that_cannot_be_applied_is_quarantined_alone_and_the_next_start_brings_it_back(
    bench: SparkBench, fault: str
) -> None:
    """1. Both tables are live. 2. The fault; both change, in two checkpoints. 3. It is undone. 4. The next start."""
    planted, journal = FAULTS[fault], bench.journal
    incarnation = both_live(bench)
    before = newest(bench).position
    planted.do(bench)
    for number in (1, 2):
        journal.change(T, ("+U", order(number, "second")), ("-D", order(5)))
        journal.change(U, ("+U", stock(number, 200)), ("-D", stock(5, 5)), ("+I", stock(6 + number, 6)))
        journal.checkpoint(kept=number == 2)
        bench.apply(incarnation)
        assert re.search(planted.cause, cause := parked(bench)), cause
    assert newest(bench).position_of(BAD) == before
    planted.undo(bench)
    journal.change(T, ("+I", order(9)))
    journal.checkpoint()
    again = bench.apply()
    if planted.lost:
        parked(bench)
        assert again.progress.read_again == {BAD: 1}
        read_again(bench)
        journal.checkpoint()
        bench.apply(again)
        assert again.progress.read_again == {}
    journal.change(U, ("+U", stock(2, 300)))
    last = journal.checkpoint()
    bench.apply(again)
    assert live(bench)
    for table in (HEALTHY, BAD):
        assert same(bench.rows(table), journal.at[last][table])


def test_a_table_of_another_owner_with_that_name_does_not_delay_the_others(bench: SparkBench) -> None:
    """1. A table of the name is there. 2. Snapshot, changes and a TRUNCATE of ours. 3. It is removed. 4. A start."""
    journal = bench.journal
    bench.session.sql("CREATE NAMESPACE lake.shop")
    bench.session.sql("CREATE TABLE lake.shop.stock (a int) USING iceberg")
    bench.session.sql("INSERT INTO lake.shop.stock VALUES (7)")
    journal.table(T)
    journal.table(U, phase="snapshot")
    journal.chunk(T, [order(1)])
    journal.chunk(U, [stock(number, 1) for number in range(5)])
    journal.checkpoint()
    incarnation = bench.apply()
    assert "was not made by Cutline" in parked(bench)
    journal.table(U)
    journal.chunk(U, [stock(number, 2) for number in range(5, 9)])
    journal.change(U, ("+U", stock(1, 10)))
    journal.checkpoint()
    bench.apply(incarnation)
    journal.change(U, ("t", None), ("+I", stock(3, 33)))
    journal.checkpoint(inside=True)
    bench.apply(incarnation)
    journal.change(U, ("+I", stock(4, 44)))
    journal.change(T, ("+I", order(2)))
    journal.checkpoint()
    bench.apply(incarnation)
    parked(bench)
    assert bench.rows(BAD)[1] == [{"a": 7}]  # nothing of somebody else's is touched
    assert branches(bench, BAD) == {"main"}
    still = bench.start()
    journal.checkpoint()
    bench.apply(still)
    parked(bench)
    bench.session.sql("DROP TABLE lake.shop.stock")
    last = journal.checkpoint()
    bench.apply()
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE lake.shop.stock RENAME COLUMN amount TO number",
        "ALTER TABLE lake.shop.stock DROP COLUMN amount",
        "ALTER TABLE lake.shop.stock ADD COLUMN mine string",
        "ALTER TABLE lake.shop.stock ALTER COLUMN item TYPE bigint",
        "ALTER TABLE lake.shop.stock ALTER COLUMN amount FIRST",
        "UPDATE lake.shop.stock SET amount = 7",
        "CREATE OR REPLACE TABLE lake.shop.stock (a int) USING iceberg",
    ],
)
def test_a_users_change_to_rows_or_columns_of_main_stays_until_a_person_has_it_replaced(
    bench: SparkBench, statement: str
) -> None:
    journal, incarnation = bench.journal, both_live(bench)
    bench.session.sql("ALTER TABLE lake.shop.stock WRITE ORDERED BY item")  # changes neither
    bench.session.sql(statement)
    rows = bench.rows(BAD)
    journal.table(U.add_column("seen", "int", nullable=True))
    widened = journal.schema_of(BAD)
    for row in journal.models[BAD].values():
        row["seen"] = None
    journal.change(widened, ("+U", {**stock(1, 200), "seen": 1}), ("-D", {**stock(5, 5), "seen": None}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert "cutline lake overwrite" in parked(bench)
    assert same(bench.rows(BAD), rows)
    overwrite(bench)
    incarnation.retry()
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])


def test_a_default_that_is_no_value_of_its_type_quarantines_its_table_alone(bench: SparkBench) -> None:
    journal, incarnation = bench.journal, both_live(bench)
    journal.table(U.add_column("seen", "datetime(3)", nullable=False, initial_default="yesterday"))
    journal.change(T, ("+U", order(1, "beside")))
    journal.checkpoint()
    bench.apply(incarnation)
    assert "the default 'yesterday' of column seen is not a valid datetime(3)" in parked(bench)
    read_again(bench)
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])


def test_a_retry_brings_a_table_back_without_another_start(bench: SparkBench) -> None:
    journal, incarnation = bench.journal, both_live(bench)
    FAULTS["a partition field"].do(bench)
    journal.change(U, ("+U", stock(1, 200)))
    journal.checkpoint()
    bench.apply(incarnation)
    parked(bench)
    incarnation.retry()
    journal.checkpoint()
    bench.apply(incarnation)
    parked(bench)
    FAULTS["a partition field"].undo(bench)
    journal.checkpoint()
    bench.apply(incarnation)
    parked(bench)
    incarnation.retry()
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert incarnation.progress.quarantined == {}
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])


def test_staged_files_of_a_quarantined_table_are_kept_no_longer_than_those_of_others(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A table is quarantined while its snapshot goes on. 2. Its files are swept in their time, chunks too.
    3. The fault is undone: the next start has it read again. 4. Its next generation comes.
    """
    monkeypatch.setattr(sink, "RetentionConfig", partial(RetentionConfig.model_construct, grace_seconds=-1.0))
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
    journal, incarnation = bench.journal, both_live(bench)
    FAULTS["a partition field"].do(bench)
    journal.table(U, generation=2, phase="snapshot")
    journal.chunk(U, [stock(number, 2) for number in range(4)])
    journal.checkpoint()
    bench.apply(incarnation)
    journal.chunk(T, [order(number) for number in range(6, 9)])
    journal.chunk(U, [stock(number, 2) for number in range(4, 8)])
    journal.table(U, generation=2)
    journal.checkpoint()
    bench.apply(incarnation)
    journal.change(U, ("+U", stock(1, 9)))
    journal.checkpoint()
    bench.apply(incarnation)
    parked(bench)
    entries = records.entries(journal.store)
    files = [file for entry in entries if isinstance(entry, CheckpointEntry) for file in entry.staged]
    incarnation.upkeep.run()

    def left() -> set[str]:
        present = [file for file in files if Path(journal.store.location(file.path)).exists()]
        return {f"{file.table} {file.generation} {file.kind}" for file in present}

    until(lambda: not left(), "the sweep")
    FAULTS["a partition field"].undo(bench)
    journal.checkpoint()
    again = bench.apply()
    parked(bench)
    assert again.progress.read_again == {BAD: 2}
    read_again(bench, 3)
    last = journal.checkpoint()
    bench.apply(again)
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])


def test_commits_of_others_go_first_and_endless_ones_quarantine_the_table(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's commit comes between our look at the table and our commit: twice, then each time."""
    journal, incarnation = bench.journal, both_live(bench)
    times = 2

    def slow(table: LakeTable, base: int, added: Any, deleted: Any) -> Any:
        change = upsert(table, base, added, deleted)

        def update(transaction: Any) -> Any:
            nonlocal times
            if table.table_id == BAD and times:
                times -= 1
                mine = bench.lake().ensure(BAD).java
                mine.updateProperties().set("mine", str(time.time())).commit()
            return change(transaction)

        return update

    monkeypatch.setattr(sink, "upsert", slow)
    journal.change(U, ("+U", stock(1, 200)), ("-D", stock(2, 2)))
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert times == 0
    assert live(bench)
    assert same(bench.rows(BAD), journal.at[last][BAD])
    times = 1000
    journal.change(U, ("+U", stock(1, 300)))
    journal.checkpoint()
    bench.apply(incarnation)
    assert times > 900
    assert "repair the lake table" in parked(bench)
    times = 0
    journal.change(U, ("-D", stock(0, 0)))
    last = journal.checkpoint()
    bench.apply()
    assert same(bench.rows(BAD), journal.at[last][BAD])


def test_a_lake_that_does_not_answer_quarantines_no_table(bench: SparkBench) -> None:
    """1. The warehouse can't be written. 2. Another catalogue, an empty one, stands in the place of the lake's."""
    journal, incarnation = bench.journal, both_live(bench)
    warehouse, away = bench.journal.root / "lake", bench.journal.root / "away"
    journal.change(U, ("+U", stock(1, 200)))
    journal.change(T, ("+U", order(1, "again")))
    last = journal.checkpoint()
    warehouse.rename(away)
    warehouse.touch()
    with pytest.raises(Unavailable):
        bench.apply(incarnation)
    warehouse.unlink()
    (away / "catalog.db").rename(away / "catalog.kept")
    for log in away.glob("catalog.db-*"):
        log.rename(away / log.name.replace("db", "kept"))
    away.rename(warehouse)
    with pytest.raises(Unavailable, match="not the lake that Cutline wrote"):
        bench.apply()
    for path in warehouse.glob("catalog.db*"):
        path.unlink()
    for path in warehouse.glob("catalog.kept*"):
        path.rename(warehouse / path.name.replace("kept", "db"))
    assert newest(bench).n < last
    bench.apply()
    assert newest(bench).n == last
    assert live(bench)
    assert bench.agree() == 3


def test_a_lost_staged_file_quarantines_no_table(bench: SparkBench) -> None:
    journal, incarnation = bench.journal, both_live(bench)
    journal.change(U, ("+U", stock(1, 200)))
    (record,) = journal.staged
    last = journal.checkpoint()
    path = Path(journal.store.location(record.path))
    kept = path.rename(path.with_suffix(".kept"))
    with pytest.raises(ProtocolError, match="missing"):
        bench.apply(incarnation)
    kept.rename(path)
    bench.apply()
    assert newest(bench).n == last
    assert bench.agree() == 3


def test_upkeep_does_not_wait_for_a_publication_and_one_bad_table_does_not_stop_it(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Both get many files. 2. A user drops one. 3. A checkpoint inside a transaction is applied, not published."""
    monkeypatch.setattr(upkeep, "COMPACTION_REST", 0.0)
    monkeypatch.setattr(upkeep, "EXPIRE_SECONDS", 0.0)
    monkeypatch.setattr(sink, "RetentionConfig", partial(RetentionConfig.model_construct, grace_seconds=-1.0))
    journal, incarnation = bench.journal, both_live(bench)
    for number in range(TIER):
        journal.change(U, ("+U", stock(number, 500)))
        journal.change(T, ("+U", order(number, "again")))
        journal.checkpoint()
        bench.apply(incarnation)
    bench.session.sql("DROP TABLE lake.shop.stock")
    journal.change(T, ("+U", order(0, "inside")))
    journal.checkpoint(inside=True)
    bench.apply(incarnation)
    assert incarnation.progress.published is not None
    assert incarnation.progress.published.n < incarnation.progress.applied

    def files_of_the_head() -> int:
        head = snapshot_of(incarnation.progress.work[HEALTHY].content)
        return len(bench.lake().ensure(HEALTHY).contents(head).files)

    files = files_of_the_head()
    snapshots = bench.session.sql(f"SELECT 1 FROM lake.{HEALTHY}.snapshots").count()
    for _ in range(3):
        incarnation.upkeep.run()
    assert files_of_the_head() < files
    assert bench.session.sql(f"SELECT 1 FROM lake.{HEALTHY}.snapshots").count() < snapshots
    last = journal.checkpoint()
    bench.apply(incarnation)
    assert same(bench.rows(HEALTHY), journal.at[last][HEALTHY])


def test_a_lake_table_that_a_user_drops_is_read_again_when_its_retry_is_asked_for(
    mariadb: MariaDB, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Two tables are live, the Spark writer is a process. 2. A user drops one in the lake; both change.
    3. The other is published, the status says which is quarantined. 4. A retry: its next generation is live, exact.
    """
    schema = fresh_database(mariadb)
    kept, lost = f"{schema}.kept", f"{schema}.lost"
    for name in ("kept", "lost"):
        mariadb.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", database=schema)
        mariadb.execute(f"INSERT INTO {name} VALUES (1, 1), (2, 2)", database=schema)

    with Mesh(tmp_path, spark=True) as mesh:
        pipeline = mesh.pipeline("shop", mariadb, [f"{schema}.*"], interval_seconds=1.0)
        definition: Any = pipeline.store.definition()
        reader = session.for_pipeline(spark, definition["sink"])

        def published(table: str, state: str, generation: int = 1) -> bool:
            records = pipeline.store.publication_numbers()
            record = pipeline.store.publication(records[-1]) if records else None
            entry = record.tables.get(table) if record is not None else None
            return entry is not None and (entry.state, entry.generation) == (state, generation)

        def rows(table: str) -> list[tuple[int, int]]:
            found = reader.sql(f"SELECT * FROM lake.{table}").toArrow().to_pylist()
            return sorted((row["id"], row["v"]) for row in found)

        def cause() -> str:
            return str(pipeline.status().tables[lost].cause)

        pipeline.until(lambda: published(kept, "live") and published(lost, "live"), "both tables in the lake", 180)
        reader.sql(f"DROP TABLE lake.{lost}")
        for name in ("kept", "lost"):
            mariadb.execute(f"UPDATE {name} SET v = 20 WHERE id = 2", database=schema)
        pipeline.until(lambda: published(lost, "quarantined"), "the quarantine of the one", 60)
        pipeline.until(lambda: rows(kept) == [(1, 1), (2, 20)], "the change of the other", 60)
        pipeline.until(lambda: "was dropped" in cause(), "its cause in the status", 10)
        assert pipeline.phase(lost) == "live"  # for the mesh, which goes on
        with mesh.redis.client() as client:
            request = json.dumps({"kind": "retry", "table": lost})
            client.rpush(f"cutline:requests:{pipeline.store.key}:spark_writer", request)
        pipeline.until(lambda: published(lost, "live", 2), "its next generation", 90)
        mariadb.execute("INSERT INTO lost VALUES (3, 3)", database=schema)
        pipeline.until(lambda: rows(lost) == [(1, 1), (2, 20), (3, 3)], "its rows", 60)
        pipeline.until(lambda: not pipeline.status().spark_writer.quarantined, "the status", 10)
        assert len(pipeline.epochs()) == 1
