"""A reader's memory, whatever the table or transaction: chunks and changes of large and wide rows.

What is measured is the most that was resident (`VmHWM`), of a reader at work in a mesh, or of a fresh process that has
all that a reader imports and does with each batch what a reader does, but keeps one only as long as the next one takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.compute as pc
import pytest

from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import High, Low, Position
from cutline.services.reader.driver import CHANGES_BYTES, CHANGES_ROWS, CHANGES_WAIT_SECONDS, to_ipc
from cutline.services.sources.contract import ChunkResult, Route
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.chunk import read_chunk
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.kept import KeptConnection
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.lake_tables import lake_table
from tests.support.mesh import Mesh
from tools.bench.meter import peak_mib
from tools.bench.readers import in_a_fresh_process, place

pytestmark = [pytest.mark.alone, pytest.mark.full, pytest.mark.timeout(1800)]

LIMIT_MIB = 512


def chunks_of(source: Source, table: str) -> dict[str, Any]:
    """Read the table as one chunk, and what that was cut off as others."""
    with closing(connect(source)) as connection:
        schema = table_schema(connection, table)
    split = SnapshotSplit(
        table_id=table,
        split_id="0",
        generation=1,
        attempt=1,
        schema=schema,
        split_key_type=(),
        split_start=None,
        split_end=None,
    )
    rows, sent, ahead = 0, None, None
    while True:
        for item in read_chunk(KeptConnection(lambda: connect(source)), split, mode="replay", seconds=3600.0):
            sent = None if ahead is None else to_ipc(ahead)
            if isinstance(item, ChunkResult):
                rows, ahead = rows + item.rows, None
                break
            ahead = item
        if item.cut_at is None:
            return {"rows": rows, "sent": sent is not None, "mib": peak_mib(os.getpid())}
        split = replace(split, split_start=item.cut_at)


def changes_of(source: Source, table: str, begin: Position, end: Position) -> dict[str, Any]:
    """Read the changes between two positions in the bites of a reader."""
    with closing(connect(source)) as connection:
        schema = table_schema(connection, table)
    low = Low(server=begin.server, file=begin.file, offset=begin.offset, gtids=begin.gtids)
    high = High(server=begin.server, file=begin.file, offset=begin.offset)
    route = Route(table_id=table, generation=1, schema=schema, low=low, high=high)
    rows, sent, position = 0, None, begin
    with closing(BinlogCursor(lambda: connect(source), server_id=3_000_000_002)) as cursor:
        while not position.not_before(end):
            got = cursor.read(
                position,
                {table: route},
                until=end,
                max_rows=CHANGES_ROWS,
                max_bytes=CHANGES_BYTES,
                wait_seconds=CHANGES_WAIT_SECONDS,
                at_boundary=True,
            )
            assert not got.faults, got.faults[0].cause
            sent = [to_ipc(batch.batch) for batch in got.batches]
            rows, position = rows + got.rows, got.position
    return {"rows": rows, "sent": sent is not None, "mib": peak_mib(os.getpid())}


def check(server: Database, table: str, rows: int, *inserts: str) -> None:
    """One transaction of these statements puts `rows` rows into the table: read them both ways."""
    source = Source(host=server.host, port=server.port, user=server.user, password=server.password)
    begin = place(source)
    with closing(server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        for insert in inserts:
            cursor.execute(insert)
        connection.commit()
    changes = in_a_fresh_process(changes_of, source, table, begin, place(source))
    assert changes["rows"] == rows
    assert changes["mib"] < LIMIT_MIB
    chunk = in_a_fresh_process(chunks_of, source, table)
    assert chunk["rows"] == rows
    assert chunk["mib"] < LIMIT_MIB


def thousand(database: str) -> tuple[str, str]:
    """The statements that make the table of 1,000 numbers for `numbers`."""
    return (
        f"CREATE TABLE {database}.some (n INT PRIMARY KEY)",
        f"INSERT INTO {database}.some VALUES {', '.join(f'({n})' for n in range(1000))}",
    )


def numbers(database: str, count: int) -> str:
    """A query of 0 .. count - 1, by a table of 1,000 numbers."""
    some = f"{database}.some"
    thousands = min(1000, -(-count // 1000))
    return (
        f"SELECT a.n * 1000000 + b.n * 1000 + c.n AS n FROM {some} a, {some} b, {some} c"
        f" WHERE a.n <= {(count - 1) // 1_000_000} AND b.n < {thousands} AND c.n < {min(1000, count)}"
    )


@pytest.fixture
def database(mysql: Database, fresh_database: Any) -> str:
    name: str = fresh_database(mysql)
    mysql.execute(*thousand(name))
    return name


def test_rows_of_12_mib(mysql: Database, database: str) -> None:
    table, mib, rows = f"{database}.large", 12, 40
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v LONGBLOB)")
    values = [f"({n}, REPEAT('{n % 10}', {mib << 20}))" for n in range(rows)]
    check(mysql, table, rows, *(f"INSERT INTO {table} VALUES {value}" for value in values))


def test_500_columns(mysql: Database, database: str) -> None:
    table, rows = f"{database}.wide", 30_000
    columns = [
        f"c{i} {('BIGINT', 'VARCHAR(8) CHARACTER SET latin1', 'DATETIME(6)', 'DECIMAL(20,4)')[i % 4]}"
        for i in range(499)
    ]
    values = [("n", "CONCAT('v', n % 1000)", "'2024-01-01 00:00:00.5'", "n / 7")[i % 4] for i in range(499)]
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, {', '.join(columns)})")
    check(mysql, table, rows, f"INSERT INTO {table} SELECT n, {', '.join(values)} FROM ({numbers(database, rows)}) x")


def test_500_columns_of_nulls(mysql: Database, database: str) -> None:
    """Rows are 100 times as large as their images."""
    table, rows = f"{database}.sparse", 100_000
    columns = ", ".join(f"c{i} DECIMAL(20,4)" for i in range(499))
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
    check(mysql, table, rows, f"INSERT INTO {table} (id) SELECT n FROM ({numbers(database, rows)}) x")


def peaks(mesh: Mesh) -> dict[str, int]:
    """The most that was resident of each service, and of Spark's JVM (MiB)."""
    found: dict[str, int] = {}
    for service in mesh.services:
        for process in (psutil.Process(service.popen.pid), *psutil.Process(service.popen.pid).children(recursive=True)):
            if process.name() in ("java", psutil.Process(service.popen.pid).name()):
                name = "JVM" if process.name() == "java" else service.role
                found[name] = max(found.get(name, 0), round(peak_mib(process.pid)))
    return found


@contextmanager
def roomy(kind: type[MariaDB | MySQL]) -> Iterator[Database]:
    """A server whose redo log takes large transactions, with an empty database d."""
    logs = {"innodb_log_file_size": 2 << 30} if kind is MariaDB else {"innodb_redo_log_capacity": 2 << 30}
    with kind(**logs) as server:
        server.execute("CREATE DATABASE d")
        yield server


@pytest.mark.parametrize("kind", [MariaDB, MySQL])
def test_rows_of_63_mib_through_a_reader_at_work(
    kind: type[MariaDB | MySQL], nothing_left_running: None, tmp_path: Path
) -> None:
    """1. A snapshot of such rows. 2. Inserts, updates (two images in one event), updates of the key, deletes."""
    size, ids = 63 << 20, range(4)
    create = "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGBLOB)"
    insert = [f"INSERT INTO d.t VALUES ({n}, REPEAT('{n}', {size}))" for n in ids]
    steps = {
        "snapshot": [],
        "update": [f"UPDATE d.t SET v = REPEAT('x', {size}) WHERE id = {n}" for n in ids],
        "key": [f"UPDATE d.t SET id = {n + 100} WHERE id = {n}" for n in ids],
        "delete": [f"DELETE FROM d.t WHERE id = {n + 100}" for n in ids],
        "insert": insert,
    }
    with roomy(kind) as server, Mesh(tmp_path, readers=1, writers=1, forked=False) as mesh:
        server.execute(create, *insert)
        pipeline = mesh.pipeline("large", server, ["d.t"])
        most = {}
        for step, statements in steps.items():
            if statements:
                server.execute(*statements)
            pipeline.catches_up("d.t", seconds=300)
            most[step] = peaks(mesh)
            (reader_,) = mesh.running("reader")
            Path(f"/proc/{reader_.popen.pid}/clear_refs").write_text("5")
        print(most)
        assert max(step_peaks["reader"] for step_peaks in most.values()) < LIMIT_MIB, most


ROWS, AT_ONCE = 5_000_000, 100_000
COMPRESSED = "SET SESSION binlog_transaction_compression = ON"


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        pytest.param(MariaDB, ["BEGIN"], ["COMMIT"], id="mariadb"),
        pytest.param(MySQL, ["BEGIN"], ["COMMIT"], id="mysql"),
        pytest.param(MySQL, [COMPRESSED, "BEGIN"], ["COMMIT"], id="compressed"),
        pytest.param(MySQL, ["XA START 'x'"], ["XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"], id="xa"),
    ],
)
def test_a_transaction_of_5_million_rows_reaches_the_lake_although_its_readers_die(
    kind: type[MariaDB | MySQL],
    begin: Sequence[str],
    end: Sequence[str],
    nothing_left_running: None,
    tmp_path: Path,
) -> None:
    """1. A live table. 2. The transaction. 3. SIGKILL for both readers after a checkpoint inside it. 4. The lake shows
    all of it at once, each row one time."""
    inserts = [
        f"INSERT INTO d.t SELECT {at} + n, 7 * ({at} + n), CONCAT('note ', n % 1000)"
        f" FROM ({numbers('d', AT_ONCE)}) x ORDER BY n"
        for at in range(0, ROWS, AT_ONCE)
    ]
    with roomy(kind) as server, Mesh(tmp_path, spark=True, forked=False) as mesh:
        server.execute(*thousand("d"), "CREATE TABLE d.t (id INT PRIMARY KEY, v BIGINT, note VARCHAR(20))")
        pipeline = mesh.pipeline("many", server, ["d.t"], interval_seconds=1.0)
        pipeline.catches_up("d.t")
        server.execute(*begin, *inserts, *end)

        def inside() -> bool:
            newest = pipeline.checkpoint()
            return newest is not None and newest.inside

        pipeline.until(inside, "a checkpoint inside the transaction", 300)
        first = peaks(mesh)
        for reader in mesh.running("reader"):
            mesh.kill(reader)
            mesh.start("reader")
        newest = pipeline.catches_up("d.t", seconds=600)
        assert len(pipeline.epochs()) > 1
        pipeline.until(
            lambda: max(pipeline.store.publication_numbers(), default=0) >= newest.slot, "its publication", 600
        )
        most = {name: max(mib, first.get(name, 0)) for name, mib in peaks(mesh).items()}
    print(most)
    table = lake_table(tmp_path / "lake", "d.t")
    counts = {snapshot.snapshot_id: (snapshot.summary or {})["total-records"] for snapshot in table.snapshots()}
    assert {counts[entry.snapshot_id] for entry in table.history()} <= {"0", f"{ROWS}"}
    rows = total = 0
    seen = np.zeros(ROWS, bool)
    for batch in table.scan(selected_fields=("id", "v")).to_arrow_batch_reader():
        rows, total = rows + batch.num_rows, total + (pc.sum(batch["v"]).as_py() or 0)
        seen[batch["id"].to_numpy()] = True
    assert (rows, int(seen.sum()), total) == (ROWS, ROWS, 7 * ROWS * (ROWS - 1) // 2)
    assert most["reader"] < LIMIT_MIB, most
