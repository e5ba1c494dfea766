"""Gentle on the source: what readers take of it is limited, changed while they read, and waits while it is busy."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.limits import Limits
from cutline.services.run.running import throttle
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.preflight import server_faults
from cutline.services.sources.mysql.server import current_position, identify, variables
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.hammer import Hammer
from tests.support.history import History, content, differences, judge
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]


def filled(server: Database, schema: str, rows: int) -> str:
    table = f"{schema}.t"
    server.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(40))",
        f"INSERT INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " SELECT i, 'x' FROM n",
    )
    for more in range(1000, rows, 1000):
        server.execute(f"INSERT INTO {table} SELECT id + {more}, v FROM {table} WHERE id <= 1000")
    server.execute(f"ANALYZE TABLE {table}")
    return table


def rows_done(pipeline: Pipeline, table: str) -> int:
    tables = pipeline.status().tables
    return tables[table].rows_done or 0 if table in tables else 0


def away_seconds(pipeline: Pipeline) -> int:
    """For how long the source is unreachable, as the status says; 0 if it is not."""
    found = re.search(r"the source \(unreachable for (\d+) s\)", waiting_for(pipeline) or "")
    return int(found[1]) if found else 0


def waiting_for(pipeline: Pipeline) -> str | None:
    """What the reader says it waits for, "" if for nothing; None before its first word."""
    status = pipeline.reader()
    return None if status.at is None else str(status.waiting_for or "")


def keeps(pipeline: Pipeline, table: str, limit: int) -> None:
    """The snapshot goes on, no faster than the limit (rows a second) and what is on its way; however slow we look."""
    began, before = time.monotonic(), rows_done(pipeline, table)
    after = pipeline.until(lambda: (now := rows_done(pipeline, table)) > before + 800 and now, "800 rows more", 120)
    assert after - before <= limit * (time.monotonic() - began) + 500


@pytest.mark.alone
@pytest.mark.parametrize("flavour", ["mariadb", pytest.param("mysql", marks=pytest.mark.full)])
def test_limits_changed_in_the_middle_of_a_snapshot_show_in_its_rate_and_outlive_a_leader(
    request: pytest.FixtureRequest, fresh_database: Fresh, tmp_path: Path, flavour: str
) -> None:
    """1. A snapshot begins at 3,000 rows a second for both readers together.
    2. It is limited to bytes of 300, and the leader gets SIGKILL at once; 3. the next one knows that, and keeps to it.
    4. It is limited to 100 rows instead. 5. That is lifted: the rest, else a matter of minutes, is there soon.
    """
    source: Database = request.getfixturevalue(flavour)
    table = filled(source, fresh_database(source), 20_000)
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("slow", source, [table], chunk_rows=100, snapshot={"max_rows_per_second": 3000})
        pipeline.until(lambda: rows_done(pipeline, table) > 1000, "the snapshot to be on its way")
        leader = mesh.leader(pipeline)
        size = 9 * 300  # an INT and the end of a text are 8 bytes, the text one
        throttle(pipeline.store, Limits(bytes_per_second=size))
        mesh.kill(leader)
        mesh.start("enumerator")
        pipeline.next_epoch(1)
        limits = Limits(bytes_per_second=size)
        pipeline.until(lambda: pipeline.status().enumerator.limits == limits, "the next leader to know the limit")
        keeps(pipeline, table, 300)
        throttle(pipeline.store, Limits(rows_per_second=100))
        keeps(pipeline, table, 100)
        assert rows_done(pipeline, table) < 10_000
        throttle(pipeline.store, Limits())
        pipeline.until(lambda: pipeline.shows(table), "the whole table", 150)


@pytest.mark.parametrize("flavour", ["mariadb", pytest.param("mysql", marks=pytest.mark.full)])
def test_a_source_that_is_away_in_the_middle_of_a_snapshot_uses_up_no_attempts_of_its_chunks(
    request: pytest.FixtureRequest, fresh_database: Fresh, tmp_path: Path, flavour: str
) -> None:
    """1. A table is read slowly, in small chunks. 2. The source gets SIGKILL, and is away for 15 s, as the reader
    says. 3. It is back: the table is shown, in its first generation."""
    source: Database = request.getfixturevalue(flavour)
    table = filled(source, fresh_database(source), 5000)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("away", source, [table], chunk_rows=20, snapshot={"max_rows_per_second": 200})
        pipeline.until(lambda: rows_done(pipeline, table) > 100, "the snapshot to be on its way")
        source.kill()
        try:
            pipeline.until(lambda: away_seconds(pipeline) >= 15, "the reader to say so")
        finally:
            source.start()
        throttle(pipeline.store, Limits())
        pipeline.until(lambda: pipeline.shows(table), "the whole table")
        newest = pipeline.checkpoint()
        assert newest is not None
        assert newest.tables[table].generation == 1


@contextmanager
def busy(server: Database, threads: int) -> Iterator[None]:
    """So many connections at work, until the end of the `with`."""

    def work(connection: pymysql.connections.Connection[object]) -> None:
        with suppress(pymysql.MySQLError):
            connection.cursor().execute("SELECT SLEEP(600)")

    connections = [server.connect() for _ in range(threads)]
    workers = [threading.Thread(target=work, args=(connection,), daemon=True) for connection in connections]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for connection in connections:
            server.execute(f"KILL {connection.thread_id()}")
        for worker in workers:
            worker.join()


@pytest.mark.alone
@pytest.mark.parametrize("flavour", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)])
def test_readers_wait_while_the_source_is_busy_and_say_so(
    request: pytest.FixtureRequest, fresh_database: Fresh, tmp_path: Path, flavour: str
) -> None:
    """1. The source is busy before the first row is read: none is.
    2. It is again in the middle of the only chunk, of 40 MB: the rest waits."""
    source: Database = request.getfixturevalue(flavour)
    schema = fresh_database(source)
    table = f"{schema}.t"
    source.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v LONGTEXT)",
        f"INSERT INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 400)"
        " SELECT i, REPEAT('x', 100000) FROM n",
    )
    snapshot = {"max_threads_running": 20, "max_bytes_per_second": 2_000_000, "max_select_seconds": 300}
    with Mesh(tmp_path, readers=1, writers=1) as mesh:

        def waits() -> bool:
            return "less busy" in (waiting_for(pipeline) or "")

        def reading() -> bool:
            sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Execute' AND INFO LIKE"
            return bool(source.execute(f"{sql} '%{schema}%'"))

        with busy(source, 30):
            running = "SHOW GLOBAL STATUS LIKE 'Threads_running'"
            waited(lambda: int(source.execute(running)[0][1]) > 25, "a busy server", 30)
            pipeline = mesh.pipeline("polite", source, [table], chunk_rows=1000, snapshot=snapshot)
            pipeline.until(waits, "the reader to wait")
            pipeline.goes_on(1)
            assert not reading()
        pipeline.until(reading, "the chunk's SELECT")
        with busy(source, 30):
            pipeline.until(waits, "the reader to wait in the middle of the chunk")
            assert rows_done(pipeline, table) == 0
        pipeline.until(lambda: pipeline.shows(table), "the table, now that nothing keeps it")
        pipeline.until(lambda: waiting_for(pipeline) == "", "nothing to be waited for")


@pytest.mark.parametrize("flavour", ["mariadb", pytest.param("mysql", marks=pytest.mark.full)])
def test_a_client_that_takes_the_pipelines_server_id_is_left_alone_and_the_pipeline_goes_on_by_another(
    request: pytest.FixtureRequest, fresh_database: Fresh, tmp_path: Path, flavour: str
) -> None:
    """1. A pipeline whose table is live holds one binlog connection, whose session is in UTC.
    2. Another replica reads the binlog with the same server id (MariaDB ends the older connection of an id).
    3. Changes go on arriving, and the other replica goes on reading, over one connection each.
    """
    source: Database = request.getfixturevalue(flavour)
    table = filled(source, fresh_database(source), 1000)
    dumps = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
    others = set(source.execute(dumps))  # that tests before this one left to the server

    def dumps_held() -> int:
        return len(set(source.execute(dumps)) - others)

    at = Source(host=source.host, port=source.port, user=source.user, password=source.password)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("rival", source, [table])
        pipeline.catches_up(table)
        waited(lambda: dumps_held() == 1, "one binlog connection", 30)
        with closing(connect(at)) as conn:
            assert variables(conn, "time_zone")["time_zone"] == "SYSTEM"
            assert conn.cursor().execute("SELECT 1 WHERE @@time_zone = '+00:00' AND @@net_write_timeout = 3600") == 1
            start = current_position(conn, identify(conn))
        server_id = PipelineConfig.from_definition(pipeline.store.definition() or {}).server_id
        with closing(BinlogCursor(lambda: connect(at), server_id=server_id)) as rival:
            read = partial(rival.read, routes={}, until=None, max_rows=10, max_bytes=1000, wait_seconds=0.1)
            place = read(start).position
            for number in range(3):
                source.execute(f"UPDATE {table} SET v = 'y{number}' WHERE id = 7")
                pipeline.catches_up(table)
                place = read(place).position
            waited(lambda: dumps_held() == 2, "one binlog connection for each of the two", 30)


@pytest.mark.parametrize("flavour", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)])
def test_tables_are_chunked_by_a_column_or_known_by_an_identity_that_table_options_name(
    request: pytest.FixtureRequest, fresh_database: Fresh, tmp_path: Path, flavour: str
) -> None:
    """1. A table is chunked by a column that is no key, while rows move from chunk to chunk.
    2. One without a key is known by columns that somebody vouches for; 3. one where that is wrong is quarantined,
    4. and so is one without an index to read it by. 5. The first two come to equal the source.
    """
    source: Database = request.getfixturevalue(flavour)
    schema = fresh_database(source)
    moved, vouched = f"{schema}.moved", f"{schema}.vouched"
    filled(source, schema, 3000)
    keyless = "(a INT NOT NULL, b VARCHAR(9) NOT NULL, v INT, KEY (a, b))"
    source.execute(
        f"CREATE TABLE {moved} (id INT PRIMARY KEY, at INT NOT NULL, v INT, KEY (at))",
        f"INSERT INTO {moved} SELECT id, id MOD 50, 0 FROM {schema}.t",
        f"CREATE TABLE {vouched} {keyless}",
        f"INSERT INTO {vouched} SELECT id MOD 100, CONCAT('b', id), 0 FROM {schema}.t",
        f"CREATE TABLE {schema}.twice {keyless}",
        f"INSERT INTO {schema}.twice SELECT id MOD 100, 'b', 0 FROM {schema}.t",
        f"CREATE TABLE {schema}.rarely {keyless}",
        f"INSERT INTO {schema}.rarely VALUES (1, 'b', 0), (1, 'c', 0), (1, 'b', 1)",
        f"CREATE TABLE {schema}.slow (a INT NOT NULL)",
    )
    options = [
        {"tables": f"{schema}.moved", "chunk_by": ["at"], "chunk_rows": 40},
        {"tables": f"{schema}.slow", "identity": ["A"]},
        {"tables": f"{schema}.*", "identity": ["a", "b"], "chunk_rows": 100},
    ]

    def move(cursor: Any, luck: random.Random, number: int) -> None:
        row = luck.randrange(3000)
        cursor.execute(f"UPDATE {moved} SET at = {luck.randrange(50)}, v = v + 1 WHERE id = {row}")
        cursor.execute(f"DELETE FROM {moved} WHERE id = {luck.randrange(3000)} AND v > 0")
        cursor.execute(f"INSERT IGNORE INTO {moved} VALUES ({row}, {luck.randrange(50)}, 1)")
        cursor.execute(f"UPDATE {vouched} SET v = v + 1 WHERE a = {row % 100} AND b = 'b{row}'")

    with Mesh(tmp_path) as mesh, Hammer(source, move, threads=2, pause_seconds=0.01) as movers:
        pipeline = mesh.pipeline("steps", source, [f"{schema}.*"], table_options=options)
        pipeline.until(lambda: pipeline.shows(moved, vouched), "both tables to be shown")
        movers.stop()
        end = pipeline.catches_up(moved, vouched)
    last = next(cut for cut in cuts(pipeline) if cut.slot == end.slot)
    for name, key in ((moved, ["id"]), (vouched, ["a", "b"])):
        assert differences(last.tables[name].content, content(source, name, key)) == []
    causes = {name.partition(".")[2]: str(table.cause) for name, table in end.tables.items() if table.cause}
    assert set(causes) == {"twice", "rarely", "slow"}
    assert "several rows with the same a, b" in causes["twice"]
    assert "several rows with the same a, b" in causes["rarely"]
    assert "no index that begins with a," in causes["slow"]


@pytest.mark.parametrize("make", [MariaDB, pytest.param(MySQL, marks=pytest.mark.full)])
def test_a_replica_is_read_while_its_source_is_written_and_refused_by_name_if_it_does_not_log_that(
    make: type[Database], tmp_path: Path
) -> None:
    """1. A replica logs what it replicates: it has no fault. Rows change at its source all the while.
    2. It is read in `replay` and in `exact`, from the first chunk until some checkpoints of the stream have come.
    3. The writers stop: the replica, and each pipeline's last checkpoint, have what the source has.
    4. The replica stops logging, and is refused, with the name of the setting.
    Every publishable checkpoint has the content of its position in the replica's binlog.
    """
    of_replicas = "log_slave_updates" if make is MariaDB else "log_replica_updates"
    columns = {"shop.t": (("id", "v"), ("id",))}

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        row = luck.randrange(1, 4000)
        cursor.execute(f"INSERT IGNORE INTO shop.t VALUES ({row}, 'new')")
        cursor.execute(f"UPDATE shop.t SET v = 'c{luck.randrange(1000)}' WHERE id BETWEEN {row} AND {row + 5}")
        cursor.execute(f"DELETE FROM shop.t WHERE id = {luck.randrange(1, 4000)}")

    with make() as first, make(**{of_replicas: True}) as replica:
        history = History(replica)
        follow(replica, first)
        first.execute("CREATE DATABASE shop")
        filled(first, "shop", 3000)
        at = Source(host=replica.host, port=replica.port, user=replica.user, password=replica.password)

        def same() -> bool:
            with suppress(pymysql.MySQLError):  # before the table is there
                return not differences(content(replica, "shop.t", ["id"]), content(first, "shop.t", ["id"]))
            return False

        waited(same, "the table at the replica", 30)
        with closing(connect(at)) as conn:
            assert server_faults(conn, tables=["shop.t"]) == []
        with Mesh(tmp_path) as mesh, Hammer(first, change, threads=2, pause_seconds=0.01) as writers:
            modes = ("replay", "exact")
            pipelines = [mesh.pipeline(mode, replica, ["shop.t"], chunks=mode) for mode in modes]
            for pipeline in pipelines:
                pipeline.until(lambda p=pipeline: p.shows("shop.t"), "the table to be shown")
                pipeline.goes_on(2)
            writers.stop()
            waited(same, "the replica to have all", 60)
            ends = [pipeline.catches_up("shop.t") for pipeline in pipelines]
        for pipeline, end in zip(pipelines, ends, strict=True):
            found, faults = judge(pipeline, history, columns)
            assert not faults, "\n".join([pipeline.name, *faults[:20]])
            last = next(cut for cut in found if cut.slot == end.slot)
            assert differences(last.tables["shop.t"].content, content(first, "shop.t", ["id"])) == []
        replica.options[of_replicas] = False
        replica.restart()
        waited(lambda: replica.execute(STATUS[replica.flavour])[0], "the replica to follow again", 30)
        with closing(connect(at)) as conn:
            (fault,) = server_faults(conn, tables=["shop.t"])
        assert f"{of_replicas} is off" in fault.sentence


STATUS = {"mariadb": "SHOW ALL SLAVES STATUS", "mysql": "SHOW REPLICA STATUS"}


def follow(replica: Database, source: Database) -> None:
    """Make `replica` replicate `source`."""
    if replica.flavour == "mariadb":
        options = (
            f"MASTER_HOST='{source.host}', MASTER_PORT={source.port}, MASTER_USER='root', MASTER_USE_GTID=slave_pos"
        )
        replica.execute("SET GLOBAL gtid_slave_pos = ''", f"CHANGE MASTER TO {options}", "START SLAVE")
    else:
        options = f"SOURCE_HOST='{source.host}', SOURCE_PORT={source.port}, SOURCE_USER='root', SOURCE_AUTO_POSITION=1"
        replica.execute(f"CHANGE REPLICATION SOURCE TO {options}, GET_SOURCE_PUBLIC_KEY=1", "START REPLICA")
