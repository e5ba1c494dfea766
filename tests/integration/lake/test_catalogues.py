"""The Spark writer on other catalogues than SQLite and on object storage, each a real server.

Those on S3 are for `make test-full`. Hive and Glue are configured in the same way, by `sink.catalog`, but no server of
theirs can run here.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from cutline.common.config.pipeline import PipelineConfig, load
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.store.backends import backend_of
from cutline.common.store.store import Store
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg import catalogue, files, objects
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.conftest import started
from tests.support import records
from tests.support.databases import MariaDB
from tests.support.lake_servers import S3, IcebergRest, PostgreSQL
from tests.support.lakes import in_lake
from tests.support.mesh import waited
from tests.support.spark_bench import Heard, SparkBench, T, U, both_live, newest, options, order, schema, stock

Make = Callable[..., SparkBench]


@pytest.fixture
def make(spark: Any, tmp_path: Path) -> Iterator[Make]:
    """Make benches on a store and a sink of the test's own; they are closed at its end."""
    made: list[SparkBench] = []

    def new(**places: Any) -> SparkBench:
        made.append(SparkBench(spark, tmp_path, **places))
        return made[-1]

    yield new
    for bench in made:
        bench.close()


def changes_in_both(bench: SparkBench, engine: str = "local") -> None:
    """Two live tables with chunks, changes, a restart, deletions, and a table emptied; each publication is compared."""
    bench.engine = engine
    both_live(bench)
    journal = bench.journal
    journal.change(T, ("-D", order(1)), ("+U", order(2, "second")), ("+I", order(50)))
    journal.checkpoint(kept=True)
    bench.apply()
    journal.change(T, ("t", None), ("+I", order(7)))
    journal.checkpoint()
    bench.apply()
    assert bench.agree() == 4
    assert not newest(bench).tables[T.table_id].held


def test_a_lake_with_its_catalogue_in_postgresql(make: Make, postgresql: PostgreSQL, tmp_path: Path) -> None:
    changes_in_both(make(sink={"catalog": postgresql.create()}))


@pytest.mark.full
@pytest.mark.parametrize(("engine", "version"), [("local", 3), ("spark", 3), ("local", 2), ("spark", 2)])
def test_store_and_warehouse_on_s3(
    make: Make, postgresql: PostgreSQL, on_s3: S3, tmp_path: Path, engine: str, version: int
) -> None:
    """The store finds its rights in the environment, the lake in the properties of its catalogue."""
    place = f"s3://lake/{tmp_path.name}"
    catalog = {**postgresql.create(), **on_s3.catalog}
    bench = make(
        store_url=f"{place}/store",
        sink={"warehouse": f"{place}/lake", "catalog": catalog},
    )
    bench.options = options(format_version=version)
    changes_in_both(bench, engine)
    main, table = newest(bench).tables[T.table_id].main, bench.lake().load(T.table_id)
    assert main is not None
    assert table is not None
    assert all(path.startswith(place) for path in table.contents(snapshot_of(main.content)).files)


@pytest.mark.full
def test_a_rest_catalogue_that_lends_credentials(make: Make, on_s3: S3, tmp_path: Path) -> None:
    """Neither the sink nor the JVM has rights to the lake, only to the catalogue. The lake lies in a bucket of another
    user than the store; chunk files, to which nobody lends rights, are copied into it."""
    bucket = f"lake{uuid.uuid4().hex[:8]}"
    on_s3.user("lender", "lender-secret", bucket)
    lender = {**on_s3.catalog, "s3.access-key-id": "lender", "s3.secret-access-key": "lender-secret"}
    server = IcebergRest(f"s3://{bucket}/lake", lender)
    with started(server):
        bench = make(
            store_url=f"s3://lake/{tmp_path.name}/store",
            sink={"warehouse": f"s3://{bucket}/lake", "catalog": server.catalog},
        )
        changes_in_both(bench)
        main, table = newest(bench).tables[U.table_id].main, bench.lake().load(U.table_id)
        assert main is not None
        assert table is not None
        assert table.rights.lent
        for path in table.contents(snapshot_of(main.content)).files:
            assert path.startswith(f"s3://{bucket}/lake/")
            assert objects.granted(path)["s3.access-key-id"] == "lender"
        bench.close()


@pytest.mark.full
def test_a_table_whose_files_may_not_be_read_is_quarantined_alone(
    make: Make, postgresql: PostgreSQL, on_s3: S3, tmp_path: Path
) -> None:
    """1. The lake's user may do everything in the bucket. 2. It may no longer read the data files of one table: that
    table alone is quarantined, by name. 3. It may again: a retry brings the table up to date."""
    bucket, user = f"lake{uuid.uuid4().hex[:8]}", f"user{uuid.uuid4().hex[:8]}"
    on_s3.user(user, "secret-of-user", f"own{uuid.uuid4().hex[:8]}")
    on_s3.create(bucket)
    on_s3.allow(bucket, user)
    rights = {**on_s3.catalog, "s3.access-key-id": user, "s3.secret-access-key": "secret-of-user"}
    bench = make(
        store_url=f"s3://lake/{tmp_path.name}/store",
        sink={"warehouse": f"s3://{bucket}/lake", "catalog": {**postgresql.create(), **rights}},
    )
    both_live(bench)
    on_s3.allow(bucket, user, but_not="lake/shop/orders/data/*")
    bench.journal.change(T, ("+U", order(1, "later")))
    bench.journal.change(U, ("-D", stock(1, 1)))
    bench.journal.checkpoint()
    incarnation = bench.apply()
    held = newest(bench).tables[T.table_id].held
    assert held is not None
    assert str(held.cause).startswith(f"the object storage denies access to s3://{bucket}/lake/shop/orders/data/")
    assert newest(bench).tables[U.table_id].shown
    on_s3.allow(bucket, user)
    incarnation.retry()
    bench.journal.checkpoint()
    bench.apply(incarnation)
    assert newest(bench).tables[T.table_id].held is None
    assert bench.agree() == 4


@pytest.mark.full
def test_of_conditional_puts_at_the_same_moment_one_wins(on_s3: S3, tmp_path: Path) -> None:
    backend = backend_of(f"s3://lake/{tmp_path.name}")
    for number in range(10):
        won: list[int] = []
        start = threading.Barrier(8)

        def put(at: int, number: int = number, won: list[int] = won, start: threading.Barrier = start) -> None:
            start.wait()
            if backend.create(f"entry {number}", f"of {at}".encode()):
                won.append(at)

        threads = [threading.Thread(target=put, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert backend.read(f"entry {number}") == f"of {won[0]}".encode()


@pytest.mark.full
def test_a_staged_object_exists_once_it_is_whole(on_s3: S3, tmp_path: Path) -> None:
    """Files of one part and of several; a dropped one leaves neither an object nor an upload."""
    pipeline = records.begun(f"s3://lake/{tmp_path.name}")
    for size in (100, 12_000_000):
        file = pipeline.open_staged(f"0000000001.w.{size}.parquet")
        file.write(b"x" * size)
        pipeline.verify(file.commit())
        dropped = pipeline.open_staged(f"0000000001.w.{size}-dropped.parquet")
        dropped.write(b"x" * size)
        dropped.discard()
    found = backend_of(f"s3://lake/{tmp_path.name}/{pipeline.life.folder}").names("staged")
    assert sorted(found) == ["0000000001.w.100.parquet", "0000000001.w.12000000.parquet"]


@pytest.mark.full
def test_rights_that_a_catalogue_lends_hold_for_its_table_only(s3: S3, tmp_path: Path) -> None:
    """Another user of the server owns a bucket; this process has rights to it only where they were granted."""
    s3.user("lent", "lent-secret", "lent")
    properties = {**s3.catalog, "s3.access-key-id": "lent", "s3.secret-access-key": "lent-secret"}
    nobody = {**s3.catalog, "s3.access-key-id": "nobody", "s3.secret-access-key": "nobody"}
    objects.grant("s3://lent/t", properties)
    objects.grant("s3://lent/u", nobody)
    with files.open_output("s3://lent/t/data/one") as file:
        file.write(b"1")
    with files.open_input("s3://lent/t/data/one") as file:
        assert file.read() == b"1"
    with pytest.raises(Unavailable, match=r"does not answer for s3://lent/u/data/two"):
        with files.open_output("s3://lent/u/data/two") as file:
            file.write(b"2")
    with pytest.raises(FileNotFoundError):
        files.open_input("s3://lent/t/data/three")
    granted = json.loads(json.dumps(objects.grants()))  # as they travel to an executor
    objects.accept(granted)
    assert objects.granted("s3://lent/t/data/one")["s3.access-key-id"] == "lent"
    assert objects.granted("s3://lent/table/data") == {}


def test_a_catalogue_that_goes_away_is_waited_for_and_said(
    make: Make, postgresql: PostgreSQL, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1. The pipeline publishes. 2. PostgreSQL ends; a checkpoint comes: the status and the log say what is awaited.
    3. PostgreSQL is back: the checkpoint is published, and every table is as it must be."""
    bench = make(sink={"catalog": postgresql.create()})
    both_live(bench)
    lead = Heard()
    applier = bench.driver(lead)
    applier.AGAIN_SECONDS = (0.5, 2.0)
    postgresql.stop()
    try:
        with pytest.raises(Unavailable, match=r"the catalogue jdbc:postgresql://.* does not answer \(127\.0\.0\.1:"):
            catalogue.check_answers(bench.journal.sink)
        bench.journal.change(T, ("+U", order(3, "later")))
        n = bench.journal.checkpoint()
        thread = threading.Thread(target=applier.run)
        thread.start()
        waited(lambda: len(lead.failures()) > 1, "two failures", 120)
        first, *_, failure = lead.failures()
        assert failure.kind == "Unavailable"
        assert failure.cause.sentence.startswith("the catalogue of pipeline shop does not answer (")
        assert "\n" not in str(failure.cause)
        assert failure.again_seconds > first.again_seconds
        assert "starting again in" in caplog.text
    finally:
        postgresql.start()
    published = bench.journal.store.publication_numbers
    waited(lambda: n in published(), "the publication", 60, lambda: str(lead.statuses[-2:]))
    lead.stop.set()
    thread.join()
    assert bench.agree() == 3


def test_a_catalogue_that_refuses_is_a_fault_of_the_configuration(
    make: Make, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    bench = make(sink={"catalog": {**postgresql.create(), "jdbc.password": "wrong"}})
    with pytest.raises(
        ConfigError, match=r"could not be opened \(FATAL: password authentication failed .*correct sink"
    ):
        bench.lake()


def test_a_catalogue_that_ignores_case_does_not_mix_two_tables(make: Make, tmp_path: Path) -> None:
    """An SQLite catalogue whose names don't tell `Orders` from `orders`: the second table is quarantined alone."""
    (tmp_path / "lake").mkdir()
    bench = make()
    bench.lake()
    with closing(sqlite3.connect(tmp_path / "lake" / "catalog.db")) as connection:
        (created,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone()
        connection.execute("DROP TABLE iceberg_tables")
        connection.execute(created.replace("VARCHAR(255) NOT NULL", "VARCHAR(255) COLLATE NOCASE NOT NULL"))
        connection.commit()
    upper = schema("shop.Orders", ("id",), id="bigint", note="varchar(40)", price="decimal(10,2)")
    for table in (T, upper):
        bench.journal.table(table)
        bench.journal.chunk(table, [order(1)])
        bench.journal.checkpoint()
        bench.apply()
    held = newest(bench).tables[upper.table_id].held
    assert held is not None
    assert str(held.cause) == (
        "the catalogue takes shop.Orders and shop.orders for the same name, so shop.Orders has no lake table of its"
        " own; leave one of them out of tables, or use a catalogue that tells their names apart"
    )
    assert newest(bench).tables[T.table_id].shown


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "rest"])
def test_a_catalogue_holds_tables_apart_whose_names_with_a_dot_between_are_the_same(
    make: Make, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """A database is one level of the catalogue, with any dots in it. The tables are made in turn, then both change."""
    tables = [
        schema(table, ("id",), id="bigint", note="varchar(40)", price="decimal(10,2)")
        for table in ("my.`db.t`", "`my.db`.t", "`my.db.t`.`.`", "`my.db`.`t.files`", "my.t`x", "my.db")
        if kind != "rest" or table != "`my.db.t`.`.`"  # which chooses folders by names, so that one is refused
    ]
    with ExitStack() as stack:
        catalog: dict[str, str] = {}
        if kind == "postgresql":
            catalog = request.getfixturevalue("postgresql").create()
        if kind == "rest":
            server = IcebergRest(f"file://{tmp_path}/lake", {})
            stack.enter_context(started(server))
            catalog = server.catalog
        bench = make(sink={"catalog": catalog})
        for n, table in enumerate(tables):
            bench.journal.table(table)
            bench.journal.chunk(table, [order(n), order(100 + n)])
            bench.journal.checkpoint()
            bench.apply()
        for n, table in enumerate(tables):
            bench.journal.change(table, ("-D", order(n)), ("+I", order(200 + n)))
        bench.journal.change(tables[1], ("t", None))
        bench.journal.checkpoint(kept=True)
        bench.apply()
        assert bench.agree() == len(tables) + 1
        found = [bench.lake().load(table.table_id) for table in tables]
        assert len({table.uuid for table in found if table is not None}) == len(tables)
        assert len({str(table.java.location()) for table in found if table is not None}) == len(tables)
        bench.close()


def sink(**values: Any) -> dict[str, Any]:
    config = {"name": "shop", "source": {"host": "h", "user": "u"}, "tables": ["a.*"], "sink": values}
    found: dict[str, Any] = PipelineConfig.model_validate(config).definition()["sink"]
    return found


@pytest.mark.full
def test_a_bucket_that_does_not_exist_is_named_before_anything_is_written(on_s3: S3) -> None:
    with pytest.raises(ConfigError, match=r"^the bucket absent of the store s3://absent/x does not exist; create it"):
        Store("s3://absent/x").check()
    lake = sink(warehouse="s3://absent/lake", catalog={"type": "jdbc", **on_s3.catalog})
    assert [str(fault) for fault in catalogue.faults(lake, "s3://lake/store")] == [
        "the bucket absent of the warehouse s3://absent/lake does not exist; create it, or correct sink.warehouse"
    ]
    catalogue.probe(sink(warehouse="s3://lake/probed", catalog={"type": "jdbc", **on_s3.catalog}))
    refused = {**on_s3.catalog, "s3.secret-access-key": "wrong"}
    with pytest.raises(ConfigError, match=r"^the warehouse s3://lake/probed can't be written \("):
        catalogue.probe(sink(warehouse="s3://lake/probed", catalog={"type": "jdbc", **refused}))


@pytest.mark.full
def test_a_run_with_store_and_lake_on_s3(
    mariadb: MariaDB,
    fresh_database: Callable[[MariaDB], str],
    postgresql: PostgreSQL,
    on_s3: S3,
    spark: Any,
    tmp_path: Path,
) -> None:
    """`cutline run` as a user starts it: doctor finds no fault, the run copies a table and ends; a second run goes on
    from the first one's checkpoint; no file of table or store is on this machine."""
    database = fresh_database(mariadb)
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        database=database,
    )  # fmt: skip
    place = f"s3://lake/{tmp_path.name}"
    pipeline = {
        "name": "shop",
        "source": {"host": mariadb.host, "port": mariadb.port, "user": mariadb.user, "password_env": "CDC_PASSWORD"},
        "tables": [f"{database}.*"],
        "checkpoint": {"interval_seconds": 0.5},
        "sink": {"warehouse": f"{place}/lake", "catalog": {**postgresql.create(), **on_s3.catalog}},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(pipeline))
    environ = os.environ | {"CDC_PASSWORD": mariadb.password, "CUTLINE_STORE_URL": f"{place}/store"}

    def cutline(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "cutline.services.run.cli", *words], env=environ, cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        logs = [f"--- {log.name}\n{log.read_text()[-3000:]}" for log in tmp_path.rglob("logs/*.log")]
        assert done.returncode == 0, "\n".join((done.stdout[-3000:], done.stderr[-3000:], *logs))

    cutline("doctor", str(file))
    cutline("run", str(file), "--until", "caught-up")
    mariadb.execute("INSERT INTO t VALUES (3, 'c')", "DELETE FROM t WHERE id = 1", database=database)
    cutline("run", str(file), "--until", "caught-up")
    reader = session.for_pipeline(spark, load(file).definition()["sink"])
    assert in_lake(reader, f"{database}.t", ["id"]).rows == {
        (n,): {"id": n, "name": c} for n, c in ((2, "b"), (3, "c"))
    }
    assert not [found for found in tmp_path.rglob("*") if found.suffix in (".parquet", ".avro")]
