"""Many tables in one batch: each takes few calls to the JVM, and as many wait side by side as the writer allows."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import MEMORY_COMMAND_NAME

from cutline.common.schema import TableSchema
from cutline.spark_writer.sinks.iceberg import local, sink
from cutline.spark_writer.sinks.iceberg.changes import upsert
from cutline.spark_writer.sinks.side_by_side import SIDE_BY_SIDE
from tests.support.spark_bench import LakeStart, SparkBench, order, schema

COLUMNS = {f"c{number}": "int" for number in range(17)}
TABLES = [
    schema(f"shop.t{number}", ("id",), id="bigint", note="varchar(40)", price="decimal(10,2)", **COLUMNS)
    for number in range(2 * SIDE_BY_SIDE)
]
MOST_CALLS = 100
"""Before TableCalls.java a table of a batch took over 400."""


def row(number: int, note: str) -> dict[str, Any]:
    return order(number, note) | dict.fromkeys(COLUMNS, number)


def begun(bench: SparkBench, tables: list[TableSchema]) -> LakeStart:
    for table in tables:
        bench.journal.table(table)
        bench.journal.chunk(table, [row(number, "read") for number in range(10)])
    bench.journal.checkpoint()
    return bench.apply()


def changed(bench: SparkBench, tables: list[TableSchema], note: str) -> None:
    for table in tables:
        bench.journal.change(table, *(("+U", row(number, note)) for number in range(5)), ("-D", row(9, "")))
    bench.journal.checkpoint()


def test_a_table_of_a_batch_takes_few_calls_to_the_jvm(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A few tables and twice as many are applied and published. 2. The difference is what each of them takes."""
    few, many = TABLES[:8], TABLES
    incarnation = begun(bench, many)
    calls = 0
    send = GatewayClient.send_command

    def counted(self: GatewayClient, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        # Python's garbage collector tells the JVM of objects that nobody needs any more, whenever it runs.
        calls += not arguments[0].startswith(MEMORY_COMMAND_NAME)
        return send(self, *arguments, **more)

    taken = []
    monkeypatch.setattr(GatewayClient, "send_command", counted)
    for number, tables in enumerate((many, few, many)):  # the first batch of a start plans what the tables hold
        changed(bench, tables, f"note {number}")
        before = calls
        bench.apply(incarnation)
        taken.append(calls - before)
    assert bench.agree() == 4
    assert 0 < taken[2] - taken[1] < MOST_CALLS * (len(many) - len(few))


def test_tables_wait_side_by_side(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table waits inside its commit until as many others have come there, whatever the number of cores."""
    incarnation = begun(bench, TABLES)
    meeting = threading.Barrier(SIDE_BY_SIDE, timeout=60.0)

    def met(*arguments: Any) -> Any:
        change = upsert(*arguments)

        def update(transaction: Any) -> Any:
            meeting.wait()
            return change(transaction)

        return update

    monkeypatch.setattr(sink, "upsert", met)
    changed(bench, TABLES, "met")
    bench.apply(incarnation)
    assert not meeting.broken
    assert bench.agree() == 2


def test_tables_that_need_memory_are_as_many_at_once_as_the_cores(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    incarnation = begun(bench, TABLES)
    lock, inside, most = threading.Lock(), 0, 0
    real = local.changed

    def measured(*arguments: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)  # so that all that may come do
        try:
            return real(*arguments)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(local, "changed", measured)
    monkeypatch.setattr(sink, "LIGHT_ROWS", 0)
    changed(bench, TABLES, "heavy")
    bench.apply(incarnation)
    assert most == max(2, min(SIDE_BY_SIDE, os.cpu_count() or 2))
    assert bench.agree() == 2


def test_our_java_is_compiled_once_for_all_pipelines(bench: SparkBench) -> None:
    assert bench.lake().jvm.opener is bench.lake("other").jvm.opener


def test_hadoop_makes_files_with_their_rights_and_starts_no_process_for_it(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """1. The JVM records the processes that it starts. 2. A file is made for its owner alone, then a batch is applied.
    3. The file's rights are right, Iceberg's files have the usual ones, and there was no process (before: `chmod`).
    """
    incarnation = begun(bench, TABLES[:2])
    java = bench.lake().jvm
    recording = java.root.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart")
    recording.start()
    hadoop = java.root.org.apache.hadoop.fs
    files = hadoop.FileSystem.getLocal(bench.spark.sparkContext._jsc.hadoopConfiguration())
    path = hadoop.Path(str(tmp_path / "own"))
    files.create(path).close()
    files.setPermission(path, hadoop.permission.FsPermission("600"))
    changed(bench, TABLES[:2], "new")
    bench.apply(incarnation)
    recording.stop()
    recording.dump(java.root.java.nio.file.Paths.get(str(tmp_path / "recorded"), java.strings()))
    recording.close()
    read = java.root.jdk.jfr.consumer.RecordingFile.readAllEvents
    events = read(java.root.java.nio.file.Paths.get(str(tmp_path / "recorded"), java.strings()))
    assert events.size() == 0
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    metadata = incarnation.sink.tables.get(TABLES[0].table_id).metadata().metadataFileLocation().removeprefix("file:")
    assert Path(metadata).stat().st_mode & 0o777 == 0o644
    assert bench.agree() == 2
