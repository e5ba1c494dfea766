"""Where a pipeline's stream begins and ends, and what it goes on through: XA, another server. Without Spark."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from cutline.common.config.pipeline import load
from cutline.common.positions import FilePosition
from cutline.common.store.records import CheckpointEntry
from cutline.services.run import lake
from cutline.services.sources.mysql.server import clock
from tests.support.bank import Bank
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tests.support.history import content, differences, flushed, judge
from tests.support.mesh import ROOT, Mesh, Pipeline, waited
from tests.support.modelled_lake import cuts
from tests.support.sources import connected, here, prepare

Fresh = Callable[[Database], str]
SAMPLE = pytest.mark.parametrize("source", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)], indirect=True)


def shown(pipeline: Pipeline, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the newest publishable checkpoint shows of a table."""
    last = [cut for cut in cuts(pipeline) if table in cut.tables][-1]
    assert last.tables[table].doubled == []
    return dict(last.tables[table].content)


def ends(pipeline: Pipeline) -> CheckpointEntry:
    """The kept checkpoint at the pipeline's stop, once it is written."""

    def last() -> CheckpointEntry | None:
        slot, entries = pipeline.status().enumerator.ended, pipeline.entries()
        return next((entry for entry in entries if isinstance(entry, CheckpointEntry) and entry.slot == slot), None)

    return pipeline.until(last, f"{pipeline.name} to end", seconds=90)


def goes_on(pipeline: Pipeline, slot: int) -> bool:
    """Whether a later epoch is open, which has ended with that checkpoint too, and took no other one."""
    status = pipeline.status().enumerator
    return status.epoch > slot and status.ended == slot and pipeline.epochs()[-1].base == slot


def last_of(server: str, gtids: str) -> int:
    """The last number of a MySQL server's own GTIDs in a set, where tests before may have left others', and tags."""
    own = re.search(rf"{server}(?::\d+(?:-\d+)?)*:(?:\d+-)?(\d+)", gtids)
    assert own is not None, gtids
    return int(own[1])


# --- stops ------------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@SAMPLE
def test_a_pipeline_ends_at_its_stop_and_shows_no_later_change_though_services_are_killed(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Three pipelines read two tables: to stop at a place ahead (perhaps inside a transaction), at a time,
    and at a GTID ahead. 2. Amounts begin to move; a reader gets SIGKILL. 3. Each pipeline ends by itself,
    with a kept checkpoint, while amounts move on. 4. A reader gets SIGKILL: in the next epoch they have ended too, at
    the same place. Every publishable checkpoint equals the source at its position; the last one is where its stop is.
    """
    bank = Bank(source, fresh_database)
    with Mesh(tmp_path) as mesh:
        at = flushed(source)
        soon = datetime.now(UTC) + timedelta(seconds=10)
        gtid = here(source).gtids
        if isinstance(source, MySQL):
            server = source.scalar("SELECT @@server_uuid")
            gtid = f"{server}:1-{last_of(server, gtid) + 150}"
        else:
            domain, server, last = gtid.split(",")[0].split("-")
            gtid = f"{domain}-{server}-{int(last) + 150}"
        stops = {
            "place": f"{{file: {at.file}, position: {at.offset + 100_003}}}",
            "time": f'{{timestamp: "{soon.isoformat()}"}}',
            "gtid": f'{{gtid: "{gtid}"}}',
        }
        pipelines = {
            name: mesh.pipeline(name, source, [f"{bank.schema}.*"], chunk_rows=40, stop=stop)
            for name, stop in stops.items()
        }
        for pipeline in pipelines.values():
            pipeline.until(lambda pipeline=pipeline: pipeline.shows(*bank.names), "both tables to be shown")
        with bank.moving():
            mesh.kill(mesh.running("reader")[0])
            mesh.start("reader")
            found = {name: ends(pipeline) for name, pipeline in pipelines.items()}
            mesh.kill(mesh.running("reader")[0])
            mesh.start("reader")
            for name, pipeline in pipelines.items():
                slot = found[name].slot
                pipeline.until(lambda pipeline=pipeline, slot=slot: goes_on(pipeline, slot), "to go on from it")
                assert ends(pipeline) == found[name]
                assert found[name].kept
    faults = []
    for name, pipeline in pipelines.items():
        assert {table.phase for table in found[name].tables.values()} == {"live"}
        faults += [f"{name}: {line}" for line in judge(pipeline, bank.history, bank.tables)[1]]
    assert not faults, "\n".join(faults[:20])
    ends_at = FilePosition(found["place"].position.file, found["place"].position.offset)
    if ends_at.file == at.file:
        assert 0 <= ends_at.offset - (at.offset + 100_003) < 2000
    executed = found["gtid"].position.gtids
    if isinstance(source, MySQL):
        assert last_of(server, executed) == last_of(server, gtid)
    else:
        assert executed.split(",")[0] == gtid
    assert found["time"].source_time < soon.timestamp()


@SAMPLE
def test_a_table_whose_snapshot_ends_after_the_stop_is_told_and_the_pipeline_ends(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. The stop was ahead when preflight looked, as it were. 2. It is passed before the pipeline begins to read. 3.
    The table can't be shown there; the pipeline ends and says so."""
    table = f"{fresh_database(source)}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    at = flushed(source)
    source.execute(f"INSERT INTO {table} VALUES (2)")
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("late", source, [table], stop=f"{{file: {at.file}, position: {at.offset}}}")
        entry = ends(pipeline)
    state = entry.tables[table]
    assert (state.phase, state.show) == ("quarantined", False)
    assert f"{table} can't be shown at the stop" in str(state.cause)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_command_ends_by_itself_and_the_lake_shows_the_source_at_the_stop(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table has rows; the start; changes; the stop; later ones. 2. `cutline run` ends with 0; the lake shows what
    was changed between start and stop. 3. The same command ends with 0 again, and nothing is different."""
    table = f"{fresh_database(source)}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0), (2, 0)")
    start = here(source)
    source.execute(f"UPDATE {table} SET v = 1 WHERE id = 2", f"INSERT INTO {table} VALUES (3, 1), (4, 1)")
    source.execute("FLUSH BINARY LOGS", f"DELETE FROM {table} WHERE id = 4")
    stop = here(source)
    source.execute(f"UPDATE {table} SET v = 9", f"INSERT INTO {table} VALUES (5, 9)", "FLUSH BINARY LOGS")
    file = tmp_path / "shop.yaml"
    file.write_text(
        f"name: shop\nsource: {{host: {source.host}, port: {source.port}, user: {CDC_USER}, password_env: SHOP}}\n"
        f"tables: [{table}]\nsink: {{warehouse: lake}}\nworkers: {{readers: 1, writers: 1}}\n"
        f'start: {{file: {start.file}, position: {start.offset}}}\nstop: {{gtid: "{stop.gtids}"}}\n'
    )
    command = [sys.executable, "-m", "cutline.services.run.cli", "run", str(file)]
    environ = {key: value for key, value in os.environ.items() if not key.startswith("CUTLINE_REDIS")}
    environ |= {"SHOP": CDC_PASSWORD, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, cwd=tmp_path)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "the stop is reached: checkpoint" in run.stdout + run.stderr
        rows = StaticTable.from_metadata(lake.where(load(file), table)).scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["v"]) for row in rows) == [(2, 1), (3, 1)]


# --- starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_start_begins_where_it_says_and_goes_on_over_a_restart(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table has rows; then the point in time, place and GTIDs that pipelines start at; then more changes.
    2. Seven pipelines with their starts read it. 3. Readers and the enumerator get SIGKILL, changes go on; 4. all catch
    up. What starts in the binlog shows what was changed since, and nothing else."""
    table = f"{fresh_database(source)}.a"
    source.execute("FLUSH BINARY LOGS", f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    source.execute(f"INSERT INTO {table} VALUES {', '.join(f'({n}, 0)' for n in range(30))}")
    with connected(source) as (conn, _):
        point = here(source)
        second = clock(conn) // 1_000_000 + 1
        waited(lambda: clock(conn) >= second * 1_000_000, "the next second", 5)
    moment = datetime.fromtimestamp(second, UTC).isoformat()
    source.execute(f"UPDATE {table} SET v = 1 WHERE id < 5", f"DELETE FROM {table} WHERE id = 3")
    starts = {
        "initial": "initial",
        "snapshot": "snapshot-only",
        "earliest": "earliest",
        "place": f"{{file: {point.file}, position: {point.offset}}}",
        "gtids": f'{{gtid: "{point.gtids}"}}',
        "moment": f'{{timestamp: "{moment}"}}',
        "latest": "latest",
    }
    with Mesh(tmp_path) as mesh:
        pipelines = {name: mesh.pipeline(name, source, [table], start=start) for name, start in starts.items()}
        for pipeline in pipelines.values():
            pipeline.until(lambda pipeline=pipeline: pipeline.shows(table), f"{pipeline.name} to show the table")
        source.execute(f"INSERT INTO {table} VALUES (100, 2)")
        for service in (*mesh.running("reader"), *mesh.running("enumerator")):
            mesh.kill(service)
            mesh.start(service.role)
        source.execute("FLUSH BINARY LOGS", f"UPDATE {table} SET v = 3 WHERE id IN (20, 100)")
        for name, pipeline in pipelines.items():
            if name != "snapshot":
                pipeline.catches_up(table)
            else:
                pipeline.next_epoch(1)
        now = content(source, table, ["id"])
        for name, pipeline in pipelines.items():
            keys = {"latest": {20, 100}, "snapshot": set(range(30)) - {3}}.get(name, {0, 1, 2, 4, 20, 100})
            wanted = {key: row for key, row in now.items() if name in ("initial", "earliest") or key[0] in keys}
            if name == "snapshot":
                wanted[20,] = {"id": 20, "v": 0}
            assert differences(shown(pipeline, table), wanted) == [], name


# --- XA ---------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_xa_transactions_come_with_their_commit_though_prepared_before_the_snapshot_or_a_restart(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. One stands prepared when the pipeline begins: the table waits for it. 2. It is committed: the table goes live.
    3. Three are prepared; a checkpoint is taken; the readers get SIGKILL and the binlog goes on in another file. 4. One
    is committed, one rolled back, one left. 5. The lake shows what a SELECT sees; 6. so it does when the third is
    committed."""
    table = f"{fresh_database(source)}.a"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 0), (2, 0)")
    prepare(source, "'early'", f"INSERT INTO {table} VALUES (3, 1)")
    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("xa", source, [table])
        pipeline.goes_on(3)
        assert not pipeline.shows(table)
        source.execute("XA COMMIT 'early'")
        pipeline.catches_up(table)
        assert differences(shown(pipeline, table), content(source, table, ["id"])) == []
        for name, row in (("one", 10), ("two", 20), ("left", 30)):
            prepare(source, f"'{name}'", f"INSERT INTO {table} VALUES ({row}, 5)")
        source.execute(f"UPDATE {table} SET v = 7 WHERE id = 1")
        pipeline.catches_up(table)
        for service in mesh.running("reader"):
            mesh.kill(service)
            mesh.start("reader")
        source.execute("FLUSH BINARY LOGS", "XA COMMIT 'one'", "XA ROLLBACK 'two'")
        pipeline.catches_up(table)
        assert differences(shown(pipeline, table), content(source, table, ["id"])) == []
        source.execute("XA COMMIT 'left'")
        pipeline.catches_up(table)
        assert set(shown(pipeline, table)) == {(1,), (2,), (3,), (10,), (30,)}
        assert pipeline.checkpoint().tables[table].generation == 1  # type: ignore[index]


# --- a binlog that was forgotten --------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 100], ids=["shorter", "longer"])
@pytest.mark.parametrize("moment", ["down", "running"])
@pytest.mark.parametrize("kind", [MySQL, MariaDB])
def test_a_binlog_that_was_reset_halts_the_pipeline_whatever_was_logged_since(
    kind: type[Database], moment: str, rows: int, tmp_path: Path
) -> None:
    """1. A table is live, and some transactions were read. 2. The server forgets its binlog, while the reader is away
    or reads it; transactions go on, with the numbers that others had, fewer or more than before. 3. The pipeline halts
    and says why (the binlog's end is asked for once a dump has not moved for 20 s, three times); no publishable
    checkpoint shows a row of since."""
    with kind() as server, Mesh(tmp_path, readers=1, writers=1) as mesh:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY, v INT)")
        pipeline = mesh.pipeline("reset", server, ["shop.a"])
        pipeline.until(lambda: pipeline.shows("shop.a"), "the table to be shown")
        server.execute(*(f"INSERT INTO shop.a VALUES ({n}, 0)" for n in range(20)))
        pipeline.catches_up("shop.a")
        reader = mesh.running("reader")[0]
        if moment == "down":
            mesh.kill(reader)
        server.execute("RESET BINARY LOGS AND GTIDS" if isinstance(server, MySQL) else "RESET MASTER")
        server.execute(*(f"INSERT INTO shop.a VALUES ({100 + n}, 0)" for n in range(rows)))
        if moment == "down":
            mesh.start("reader")
        halted = pipeline.until(lambda: pipeline.status().enumerator.halted, "the halt", 120)
        assert "reset" in halted.sentence, halted
        assert set(shown(pipeline, "shop.a")) == {(n,) for n in range(20)}


# --- another server ---------------------------------------------------------------------------------------------------


class Relay:
    """One port on loopback that leads to a server, and at a word to another one: what a fail-over looks like."""

    def __init__(self, target: Database) -> None:
        self.target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, target: Database) -> None:
        """Break every connection; the next ones lead there."""
        self.target = target
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.lead_to(self.target)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self.target.host, self.target.port))
                self._open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            self._open.discard(end)


@contextlib.contextmanager
def replica_of(primary: Database) -> Iterator[Database]:
    """A second server that follows the first by GTIDs and writes what it applies into its own binlog."""
    user = f"SOURCE_HOST='{primary.host}', SOURCE_PORT={primary.port}, SOURCE_USER='repl', SOURCE_PASSWORD='repl'"
    primary.execute("CREATE USER 'repl'@'%' IDENTIFIED BY 'repl'", "GRANT REPLICATION SLAVE ON *.* TO 'repl'@'%'")
    if isinstance(primary, MySQL):
        with MySQL() as replica:
            replica.execute(
                "RESET BINARY LOGS AND GTIDS",
                f"CHANGE REPLICATION SOURCE TO {user}, SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
                "START REPLICA",
            )
            yield replica
    else:
        with MariaDB(log_slave_updates=True) as replica:
            replica.execute(
                "RESET MASTER", f"CHANGE MASTER TO {user.replace('SOURCE_', 'MASTER_')}, MASTER_USE_GTID=slave_pos",
                "START SLAVE",
            )  # fmt: skip
            yield replica


@pytest.mark.full
@pytest.mark.parametrize("kind", [MySQL, MariaDB])
def test_a_fail_over_to_a_replica_loses_and_doubles_nothing(kind: type[Database], tmp_path: Path) -> None:
    """1. A replica follows; one pipeline reads the primary, one the replica. 2. Amounts move. 3. The replica has all,
    the pipeline's address leads to it, it is written to instead. 4. Both pipelines show what it holds."""
    with kind() as primary, replica_of(primary) as replica:
        made: list[str] = []

        def fresh(server: Database) -> str:
            server.execute("CREATE DATABASE bank")
            made.append("bank")
            return "bank"

        bank = Bank(primary, fresh)
        with closing(Relay(primary)) as relay, Mesh(tmp_path) as mesh:
            waited(lambda: content_or_none(replica, bank.names[1]), "the replica to have the tables", 60)
            first = mesh.pipeline("first", primary, ["bank.*"], chunk_rows=40, port=relay.port)
            second = mesh.pipeline("second", replica, ["bank.*"], chunk_rows=40)
            with bank.moving():
                for pipeline in (first, second):
                    pipeline.until(lambda pipeline=pipeline: pipeline.shows(*bank.names), "both tables to be shown")
                first.goes_on(2)
            same = {name: content(primary, name, ["id"]) for name in bank.names}
            waited(lambda: all(content(replica, n, ["id"]) == same[n] for n in bank.names), "the replica to follow", 60)
            replica.execute("STOP REPLICA")
            relay.lead_to(replica)
            bank.server = replica
            with bank.moving():
                first.goes_on(2)
                second.goes_on(2)
            for pipeline in (first, second):
                pipeline.server = replica
                end = pipeline.catches_up(*bank.names)
                assert {table.generation for table in end.tables.values()} == {1}, pipeline.progress()
                for name in bank.names:
                    assert differences(shown(pipeline, name), content(replica, name, ["id"])) == []


def content_or_none(server: Database, table: str) -> Any:
    with contextlib.suppress(Exception):
        return content(server, table, ["id"])
    return None
