"""Several servers as one source: which one is read, and what happens when it dies."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from cutline.common.config.source import SourceConfig
from cutline.common.errors import SourceRefused, Unavailable
from cutline.common.mesh.topology import STREAM_READER
from cutline.common.status.pipeline_status import PipelineStatus, ReaderStatus
from cutline.services.run.cli import main
from cutline.services.sources.mysql.connection import server_of
from cutline.services.sources.mysql.hosts import Hosts
from tests.integration.pipeline.test_stream import content_or_none, shown
from tests.integration.source.test_gentle import follow
from tests.support.bank import Bank
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.sources import here

DEAD = "127.0.0.1:1"


def address(server: Database) -> str:
    return f"{server.host}:{server.port}"


def hosts_of(*servers: Database | str, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("SHOP_PASSWORD", CDC_PASSWORD)
    names = [server if isinstance(server, str) else address(server) for server in servers]
    first, _, port = names[0].rpartition(":")
    return Hosts(
        SourceConfig(host=first, port=int(port), hosts=tuple(names[1:]), user=CDC_USER, password_env="SHOP_PASSWORD")
    )


def reads(host: str, *, at: float) -> PipelineStatus:
    """The status of a pipeline whose main cursor reads this server."""
    return PipelineStatus(readers={STREAM_READER: ReaderStatus(at=at, main_host=host, source_host=host)})


def replicated(primary: Database, replica: Database, table: str) -> None:
    waited(
        lambda: content_or_none(replica, table) == content_or_none(primary, table) is not None,
        "the replica to have the table",
        60,
    )


# --- the choice -------------------------------------------------------------------------------------------------------


def test_the_first_server_that_can_be_used_is_kept_until_it_fails(
    mysql: MySQL, mysql_nogtid: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. One is down, one has no GTIDs: the third is used. 2. Everybody follows the main cursor, also where that one
    can't be reached. 3. If none can be used, each is named with its reason."""
    hosts = hosts_of(DEAD, mysql_nogtid, mysql, monkeypatch=monkeypatch)
    with closing(hosts.connect()) as conn:
        assert str(server_of(conn)) == address(mysql) == str(hosts.current) == hosts.chosen
    now = 1000.0
    hosts.follow(reads(DEAD, at=now - 1), now=now)
    with pytest.raises(Unavailable, match=f"{DEAD} did not answer"):
        hosts.connect()
    hosts.follow(reads(DEAD, at=now - 60), now=now)
    hosts.connect().close()
    assert hosts.chosen == address(mysql)
    with pytest.raises(Unavailable) as caught:
        hosts_of(DEAD, mysql_nogtid, monkeypatch=monkeypatch).connect()
    assert f"{address(mysql_nogtid)}: gtid_mode is not ON" in str(caught.value)
    assert f"{DEAD} did not answer" in str(caught.value)
    with pytest.raises(SourceRefused, match=r"No server of the source can be used: .*gtid_mode is not ON"):
        hosts_of(mysql_nogtid, f"localhost:{mysql_nogtid.port}", monkeypatch=monkeypatch).connect()


def test_while_the_main_cursor_reads_a_server_nothing_leads_away_from_it(
    mysql: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = hosts_of(DEAD, mysql, monkeypatch=monkeypatch)
    hosts.connect_main().close()
    assert hosts.main == address(mysql)
    hosts.prefer(DEAD)
    hosts.connect().close()
    assert hosts.main == address(mysql)
    hosts.release()
    assert hosts.main is None
    hosts.prefer(DEAD)
    assert str(hosts.current) == DEAD


def test_doctor_says_which_server_is_read_and_why_another_could_not_take_over(
    mysql: MySQL, mysql_nogtid: MySQL, tmp_path: Path, fresh_database: Callable[[Database], str]
) -> None:
    table = f"{fresh_database(mysql)}.t"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    (tmp_path / "password").write_text(CDC_PASSWORD)
    first, _, port = DEAD.rpartition(":")
    others = [address(mysql_nogtid), address(mysql)]
    source = {"host": first, "port": int(port), "hosts": others, "user": CDC_USER, "password_file": "password"}
    file = tmp_path / "p.yaml"
    file.write_text(f"name: p\nsource: {json.dumps(source)}\ntables: [{table}]\nsink: {{warehouse: lake}}\n")
    printed = json.loads(CliRunner().invoke(main, ["doctor", str(file), "--json"]).output)
    found = {finding["name"]: finding for finding in printed["findings"]}
    assert found["source"]["ok"]
    assert found["source"]["found"] == f"MySQL {mysql.version} at {CDC_USER}@{address(mysql)}, not encrypted"
    assert found[f"source {address(mysql)}"]["ok"]
    assert "gtid_mode is not ON" in found[f"source {address(mysql_nogtid)}"]["remedy"]
    assert f"{DEAD} did not answer" in found[f"source {DEAD}"]["remedy"]


@pytest.mark.full
@pytest.mark.parametrize("make", [MySQL, MariaDB])
def test_a_server_that_lacks_what_was_read_or_does_not_log_it_is_passed_over(
    make: type[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A replica that has everything is taken. 2. It lags: it is named with what it lacks. 3. It catches up. 4. It
    does not log what it replicates: it is refused. 5. It has purged what follows."""
    logs = "log_slave_updates" if make is MariaDB else "log_replica_updates"
    with make() as primary, make(**{logs: True}) as replica:
        follow(replica, primary)
        primary.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        primary.execute("INSERT INTO shop.t VALUES (1)")
        replicated(primary, replica, "shop.t")
        early = here(primary)
        hosts = hosts_of(DEAD, replica, monkeypatch=monkeypatch)
        hosts.must_have("main", early)
        hosts.connect().close()
        replica.execute("STOP REPLICA")
        primary.execute("INSERT INTO shop.t VALUES (2)")
        hosts.must_have("main", here(primary))
        with pytest.raises(Unavailable, match=f"{address(replica)}: it lacks transactions that were read"):
            hosts.connect()
        replica.execute("START REPLICA")
        replicated(primary, replica, "shop.t")
        hosts.connect().close()
        replica.execute("FLUSH BINARY LOGS")
        (*_, (last, *_)) = replica.execute("SHOW BINARY LOGS")
        purge = f"PURGE BINARY LOGS TO '{last}'"  # MariaDB keeps a file for a moment
        waited(lambda: replica.execute(purge, "SHOW BINARY LOGS")[0][0] == last, "the binlog to be purged", 20)
        hosts.must_have("main", early)
        with pytest.raises(Unavailable, match=f"{address(replica)}: its binlog after .* is purged"):
            hosts.connect()
        hosts.must_have("main", None)
        replica.options[logs] = False
        replica.restart()
        with pytest.raises(Unavailable, match=f"{address(replica)}: The server is a replica and {logs} is off"):
            hosts.connect()


# --- fail-over --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def two(make: type[Database]) -> Iterator[tuple[Database, Database]]:
    logs = {"log_slave_updates" if make is MariaDB else "log_replica_updates": True}
    with make(**logs) as primary, make(**logs) as replica:
        follow(replica, primary)
        yield primary, replica


def on(pipeline: Pipeline, server: Database) -> bool:
    """Whether the main cursor, the leader and the readers are all at this server."""
    status = pipeline.status()
    reader = status.readers.get("reader-0", ReaderStatus())
    return {reader.main_host, reader.source_host, status.enumerator.source_host} == {address(server)}


@pytest.mark.parametrize("make", [MySQL, pytest.param(MariaDB, marks=pytest.mark.full)])
def test_a_pipeline_goes_on_exactly_at_the_replica_when_the_primary_is_killed(
    make: type[Database], tmp_path: Path
) -> None:
    """1. Amounts move at the primary, and a replica follows; a pipeline has both as hosts. 2. The movers rest, the
    primary gets SIGKILL: the pipeline goes on at the replica, from which everything was read already. 3. Amounts move
    there, and a new table is read with its history. 4. The old primary comes back as a replica: the pipeline stays.
    5. The new one gets SIGKILL: it goes back. No table is read a second time."""

    def fresh(server: Database) -> str:
        server.execute("CREATE DATABASE bank")
        return "bank"

    with two(make) as (primary, replica):
        bank = Bank(primary, fresh)
        with Mesh(tmp_path) as mesh:
            pipeline = mesh.pipeline("bank", primary, ["bank.*"], chunk_rows=40, source={"hosts": [address(replica)]})
            with bank.moving():
                pipeline.until(lambda: pipeline.shows(*bank.names), "both tables to be shown")
                pipeline.goes_on(2)
            pipeline.until(lambda: on(pipeline, primary), "all at the primary")
            replicated(primary, replica, bank.names[0])
            replicated(primary, replica, bank.names[1])
            primary.kill()
            replica.execute("STOP REPLICA", "RESET REPLICA ALL")
            bank.server = pipeline.server = replica
            pipeline.until(lambda: on(pipeline, replica), "all at the replica")
            with bank.moving():
                replica.execute("CREATE TABLE bank.new (id INT PRIMARY KEY)", "INSERT INTO bank.new VALUES (1), (2)")
                pipeline.until(lambda: pipeline.shows("bank.new"), "the new table to be shown")
                pipeline.goes_on(2)
            pipeline.catches_up(*bank.names, "bank.new")
            for name in (*bank.names, "bank.new"):
                assert differences(shown(pipeline, name), content(replica, name, ["id"])) == []
            primary.start()
            follow_again(primary, replica)
            replicated(replica, primary, "bank.new")
            pipeline.goes_on(4)
            assert on(pipeline, replica)
            replica.kill()
            primary.execute("STOP REPLICA")
            bank.server = pipeline.server = primary
            pipeline.until(lambda: on(pipeline, primary), "all at the old primary")
            with bank.moving():
                pipeline.goes_on(2)
            end = pipeline.catches_up(*bank.names, "bank.new")
            assert {table.generation for table in end.tables.values()} == {1}, pipeline.progress()
            assert len(pipeline.epochs()) == 1, pipeline.progress()
            for name in (*bank.names, "bank.new"):
                assert differences(shown(pipeline, name), content(primary, name, ["id"])) == []


def follow_again(replica: Database, source: Database) -> None:
    """An old primary follows the new one, from the GTIDs that it has."""
    if replica.flavour == "mysql":
        follow(replica, source)
        return
    at = replica.scalar("SELECT @@gtid_binlog_pos")
    replica.execute(f"SET GLOBAL gtid_slave_pos = '{at}'")
    options = f"MASTER_HOST='{source.host}', MASTER_PORT={source.port}, MASTER_USER='root', MASTER_USE_GTID=slave_pos"
    replica.execute(f"CHANGE MASTER TO {options}", "START SLAVE")


@pytest.mark.full
@pytest.mark.parametrize("make", [MySQL, MariaDB])
def test_a_snapshot_that_is_under_way_is_begun_again_at_the_replica(make: type[Database], tmp_path: Path) -> None:
    """1. A table is read slowly at the primary. 2. That gets SIGKILL in the middle: its rows are read at the replica,
    from the beginning, and the table comes to be shown with exactly its rows."""
    with two(make) as (primary, replica):
        primary.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(20))")
        primary.execute(f"INSERT INTO shop.t VALUES {', '.join(f'({number}, 1)' for number in range(6000))}")
        replicated(primary, replica, "shop.t")
        with Mesh(tmp_path) as mesh:
            snapshot = {"max_rows_per_second": 1000}
            source = {"hosts": [address(replica)]}
            pipeline = mesh.pipeline("shop", primary, ["shop.*"], snapshot=snapshot, source=source)
            pipeline.until(lambda: rows_done(pipeline, "shop.t") > 1000, "a part of the table to be read")
            primary.kill()
            replica.execute("STOP REPLICA", "UPDATE shop.t SET v = 'y' WHERE id % 3 = 0")
            replica.execute("DELETE FROM shop.t WHERE id < 9")
            pipeline.server = replica
            pipeline.catches_up("shop.t")
            assert differences(shown(pipeline, "shop.t"), content(replica, "shop.t", ["id"])) == []


def rows_done(pipeline: Pipeline, table: str) -> int:
    tables = pipeline.status().tables
    return tables[table].rows_done or 0 if table in tables else 0
