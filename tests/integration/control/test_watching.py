"""What the control service shows of a real mesh: metrics against what really happened, binlog left, leaders, logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from cutline.common.config.pipeline import parse
from cutline.common.positions import Position
from cutline.common.status.pipeline_status import BinlogStatus
from cutline.services.enumerator.source import SourceReader
from cutline.services.sources.mysql.binlog_age import retention, retention_of
from cutline.services.sources.mysql.connection import Source, connect
from tests.support import openlineage
from tests.support.bank import Fresh
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tests.support.mesh import Mesh, waited
from tests.support.receiver import Receiver
from tests.support.server_process import free_port
from tests.support.sources import here

TOKEN = "sesame"


@pytest.fixture
def keeping(source: Database) -> Iterator[Database]:
    """The source, keeping its binlogs for a day; by default MariaDB keeps them for ever."""
    before = source.scalar("SELECT @@GLOBAL.binlog_expire_logs_seconds")
    source.execute("SET GLOBAL binlog_expire_logs_seconds = 86400")
    yield source
    source.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")


class Scraped:
    """The metrics of one scrape."""

    def __init__(self, port: int) -> None:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        text = answer.raise_for_status().text
        self.samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    def sum(self, name: str, **labels: str) -> float | None:
        """The sum of the series with these labels; None if there is none."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None


def test_the_metrics_of_a_mesh_say_what_happened(keeping: Database, fresh_database: Fresh, tmp_path: Path) -> None:
    """1. A table of 250 rows is read by two readers; two enumerators are there. 2. Rows are inserted, updated, deleted.
    3. The numbers are those of the statements; one enumerator leads; the retention of the source's binlog is left.
    4. Every line of every log is JSON; the leader's and a reader's have the pipeline and the epoch.
    """
    source, port = keeping, free_port()
    database = fresh_database(source)
    table = f"{database}.a"
    source.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {table} VALUES {', '.join(f'({n}, 0)' for n in range(250))}",
    )
    environment = {"CUTLINE_API_PORT": str(port), "CUTLINE_API_TOKEN": TOKEN, "CUTLINE_LOG_FORMAT": "json"}
    with Mesh(tmp_path, enumerators=2, environment=environment) as mesh:
        mesh.start("control")
        pipeline = mesh.pipeline("shop", source, [f"{database}.*"])
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown")
        source.execute(
            f"INSERT INTO {table} VALUES (1000, 1), (1001, 1), (1002, 1)",
            f"UPDATE {table} SET v = 2 WHERE id < 20",
            f"DELETE FROM {table} WHERE id IN (5, 6)",
        )
        pipeline.catches_up(table)

        def complete() -> Scraped | None:
            try:
                found = Scraped(port)
            except httpx.ConnectError:  # it is just being started
                return None
            deleted = found.sum("cutline_staged_rows_total", table=table, operation="delete")
            return found if deleted == 2 and found.sum("cutline_binlog_left_seconds") is not None else None

        scraped = waited(complete, "the counters, and the look at the binlog", 30, mesh.log_ends)
        leading = mesh.leader(pipeline)
    rows = {op: scraped.sum("cutline_staged_rows_total", table=table, operation=op)
            for op in ("snapshot", "insert", "update", "delete")}  # fmt: skip
    assert rows == {"snapshot": 250, "insert": 3, "update": 20, "delete": 2}
    assert (scraped.sum("cutline_staged_bytes_total", table=table, operation="snapshot") or 0) >= 250 * 8
    assert scraped.sum("cutline_chunk_read_seconds_count") == scraped.sum("cutline_table_splits_done", table=table)
    assert (scraped.sum("cutline_checkpoint_seconds_count") or 0) >= 2
    assert scraped.sum("cutline_leaders", role="enumerator") == 1
    assert scraped.sum("cutline_leader", role="enumerator") == 1
    assert sum(s.name == "cutline_leader" and s.labels["role"] == "enumerator" for s in scraped.samples) == 2
    assert scraped.sum("cutline_source_connected") == 1
    assert scraped.sum("cutline_tables", phase="live") == 1
    assert scraped.sum("cutline_binlog_left_seconds") == pytest.approx(
        scraped.sum("cutline_binlog_retention_seconds"), abs=60
    )
    assert abs(scraped.sum("cutline_source_clock_offset_seconds") or 0) < 5
    assert 0 <= (scraped.sum("cutline_source_lag_bytes") or 0) < 1_000_000
    logs = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.glob("*.log")}
    joined = [line for name, lines in logs.items() for line in lines if "joins epoch" in line["message"]]
    assert {line["pipeline"] for line in joined} == {"shop"}
    assert all(line["epoch"] > 0 and line["service"] in line["message"] for line in joined)
    assert any(line.get("epoch") and line.get("cause") for line in logs[leading.log.name])


@pytest.mark.full
def test_a_real_publication_is_measured_traced_and_told(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table goes into the lake, with traces, lineage and a webhook set up. 2. The Spark writer's numbers are among
    the metrics. 3. A trace has every member, the apply and the publication; an event has the snapshot that the
    publication names. 4. The Spark writer is killed: nobody leads, and the webhook gets that.
    """
    database, port = fresh_database(mariadb), free_port()
    table = f"{database}.a"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    environment = {"CUTLINE_API_PORT": str(port), "CUTLINE_API_TOKEN": TOKEN}
    with Receiver() as traces, Receiver() as lineage, Receiver() as webhook:
        environment |= {"CUTLINE_TRACES_URL": f"{traces.url}/v1/traces", "CUTLINE_LINEAGE_URL": lineage.url}
        environment |= {"CUTLINE_WEBHOOK_URL": webhook.url}
        with Mesh(tmp_path, spark=True, environment=environment) as mesh:
            mesh.start("control")
            pipeline = mesh.pipeline("shop", mariadb, [f"{database}.*"], interval_seconds=1.0)

            def shown() -> Scraped | None:
                with suppress(httpx.ConnectError):
                    found = Scraped(port)
                    return found if found.sum("cutline_table_bytes", table=table) else None
                return None

            scraped = waited(shown, "the lake's files", 180, mesh.log_ends)
            lineage.wait(lambda r: any(json.loads(post.body)["outputs"] for post in r.taken), 60)
            traces.wait(lambda r: bool(r.taken), 60)
            (spark,) = mesh.running("spark_writer")
            mesh.kill(spark)
            webhook.wait(lambda r: any(b"CutlineNoLeader" in post.body for post in r.taken), 120)
            numbers = pipeline.store.publication_numbers()
            records = [record for n in numbers if (record := pipeline.store.publication(n))]
    assert scraped.sum("cutline_leaders", role="spark_writer") == 1
    for name in ("cutline_apply_seconds_count", "cutline_commit_to_publication_seconds_count", "cutline_table_files"):
        assert (scraped.sum(name) or 0) >= 1, name
    event = next(body for post in lineage.taken if (body := json.loads(post.body))["outputs"])
    n = event["run"]["facets"]["cutline_publication"]["checkpoint"]
    (record,) = (record for record in records if record.n == n)
    main = record.tables[table].main
    assert main is not None
    assert [each["facets"]["version"]["datasetVersion"] for each in event["outputs"]] == [main.content]
    assert [fault for post in lineage.taken for fault in openlineage.faults(json.loads(post.body))] == []
    request = ExportTraceServiceRequest.FromString(traces.taken[0].body)
    spans = {span.name for each in request.resource_spans for scope in each.scope_spans for span in scope.spans}
    members = {"enumerator", "reader-0", "reader-1", "writer-0", "writer-1"}
    assert spans >= {"checkpoint", "entry", "apply", "publish", *members}
    (post,) = (post for post in webhook.taken if b"CutlineNoLeader" in post.body)
    assert json.loads(post.body)["commonLabels"]["role"] == "spark_writer"


def reader(server: Database) -> SourceReader:
    return SourceReader(
        parse(
            f"name: shop\nsource: {{host: {server.host}, port: {server.port}, user: {CDC_USER},"
            " password_env: CDC_PASSWORD}\ntables: ['a.*']\nsink: {warehouse: /w}\n"
        )
    )


async def test_the_binlog_that_is_left_follows_the_sources_files(
    keeping: Database, fresh_database: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The place that is needed is in the file in use: the whole retention is left. 2. The file was closed: the
    retention since then. 3. It is purged: nothing is left. 4. Of another server nothing is known.
    """
    monkeypatch.setenv("CDC_PASSWORD", CDC_PASSWORD)
    source, asks = keeping, reader(keeping)
    database = fresh_database(source)
    place = here(source)

    async def look(at: Position) -> BinlogStatus:
        return await asks.binlog(read=(at.server, at.file_position), needed=[(at.server, at.file_position)])

    try:
        first = await look(place)
        assert first.left_seconds == first.retention_seconds > 0
        assert first.lag_bytes == 0
        source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)", f"INSERT INTO {database}.a VALUES (1)")
        source.execute("FLUSH BINARY LOGS", f"INSERT INTO {database}.a VALUES (2)")
        second = await look(place)
        assert second.retention_seconds - 60 < second.left_seconds <= second.retention_seconds
        assert second.lag_bytes > 100
        now = here(source)
        assert (await look(now)).lag_bytes == 0

        def removed() -> bool:  # not while the server still sends the file to a client that is gone
            source.execute(f"PURGE BINARY LOGS TO '{now.file}'")
            return bool(source.execute("SHOW BINARY LOGS")[0][0] == now.file)

        await asyncio.to_thread(waited, removed, "the old files to be removed", 20)
        purged = await look(place)
        assert (purged.left_seconds, purged.lag_bytes) == (0.0, None)
        other = Position(server="another", file=now.file, offset=4)
        assert ((await look(other)).left_seconds, (await look(other)).lag_bytes) == (None, None)
    finally:
        asks.close()


@pytest.mark.parametrize("by", ["table", "procedure", "neither"])
def test_what_amazons_service_keeps_is_read_from_its_own_settings(mysql: MySQL, mariadb: MariaDB, by: str) -> None:
    """A table and a procedure like the service's, on real servers: the user may read the table, or only call the
    procedure, or neither. Without hours the service keeps nothing."""
    for server in (mysql, mariadb):
        with rds_settings(server, by) as user, closing(connect(user)) as conn:
            if by == "neither":
                assert retention(conn) == (server.scalar("SELECT @@GLOBAL.binlog_expire_logs_seconds") or None)
                continue
            assert retention(conn) == 0
            server.execute("UPDATE mysql.rds_configuration SET value = '36' WHERE name = 'binlog retention hours'")
            assert retention(conn) == 36 * 3600


@contextmanager
def rds_settings(server: Database, by: str) -> Iterator[Source]:
    """Make the service's table and procedure, and a user who may read the settings in this way."""
    rights = {
        "table": "GRANT SELECT ON *.* TO rds",
        "procedure": "GRANT EXECUTE ON PROCEDURE mysql.rds_show_configuration TO rds",
        "neither": "GRANT REPLICATION SLAVE ON *.* TO rds",
    }
    try:
        server.execute(
            "CREATE TABLE mysql.rds_configuration"
            " (name VARCHAR(100) PRIMARY KEY, value VARCHAR(100), description VARCHAR(300) NOT NULL)",
            "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL, '')",
            "CREATE PROCEDURE mysql.rds_show_configuration() READS SQL DATA SQL SECURITY DEFINER"
            " SELECT name, value, description FROM mysql.rds_configuration",
            "CREATE USER rds IDENTIFIED BY 'rds'",
            rights[by],
        )
        yield Source(host=server.host, port=server.port, user="rds", password="rds")
    finally:
        server.execute(
            "DROP USER IF EXISTS rds",
            "DROP PROCEDURE IF EXISTS mysql.rds_show_configuration",
            "DROP TABLE IF EXISTS mysql.rds_configuration",
        )


def test_without_a_right_to_amazons_settings_nothing_is_said_of_its_binlog() -> None:
    """Such a server also has MySQL's setting, which has no effect there."""
    known = {"datadir": "/rdsdbdata/db/", "binlog_expire_logs_seconds": "2592000"}
    assert retention_of(known, None) is None
    assert retention_of({**known, "datadir": "/var/lib/mysql/"}, None) == 2592000
