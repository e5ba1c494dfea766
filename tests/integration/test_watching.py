"""What the control service shows of a real mesh: metrics against what really happened, binlog left, leaders, logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutline.common.config.pipeline import parse
from cutline.common.positions import Position
from cutline.services.enumerator.source import SourceReader
from tests.integration.bank import Fresh
from tests.integration.mesh import Mesh, waited
from tests.integration.sources import here
from tests.servers import CDC_PASSWORD, CDC_USER, Database, free_port

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
            found = Scraped(port)
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

    async def look(at: Position) -> dict[str, Any]:
        return await asks.binlog(read=(at.server, at.file_position), needed=[(at.server, at.file_position)])

    try:
        first = await look(place)
        assert first["left_seconds"] == first["retention_seconds"] > 0
        assert first["lag_bytes"] == 0
        source.execute(f"CREATE TABLE {database}.a (id INT PRIMARY KEY)", f"INSERT INTO {database}.a VALUES (1)")
        source.execute("FLUSH BINARY LOGS", f"INSERT INTO {database}.a VALUES (2)")
        second = await look(place)
        assert second["retention_seconds"] - 60 < second["left_seconds"] <= second["retention_seconds"]
        assert second["lag_bytes"] > 100
        now = here(source)
        assert (await look(now))["lag_bytes"] == 0

        def removed() -> bool:  # not while the server still sends the file to a client that is gone
            source.execute(f"PURGE BINARY LOGS TO '{now.file}'")
            return bool(source.execute("SHOW BINARY LOGS")[0][0] == now.file)

        await asyncio.to_thread(waited, removed, "the old files to be removed", 20)
        purged = await look(place)
        assert (purged["left_seconds"], purged["lag_bytes"]) == (0.0, None)
        assert (purged["oldest_file"], purged["oldest_at"] > 0) == (now.file, True)
        other = Position(server="another", file=now.file, offset=4)
        assert ((await look(other))["left_seconds"], (await look(other))["lag_bytes"]) == (None, None)
    finally:
        asks.close()
