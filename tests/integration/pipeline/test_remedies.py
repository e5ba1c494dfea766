"""Remedies, carried out in the state in which they are shown: each brings back what its cause has stopped.

tests/unit/common/test_remedies.py names for each code of a cause the tests that do so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.errors import Unavailable
from cutline.common.positions import Position
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.server import current_position, identify
from tests.conftest import started
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline
from tests.support.modelled_lake import cuts
from tests.support.operator import command, done, outcome, redefined

Fresh = Callable[[Database], str]


def cause_of(pipeline: Pipeline, table: str) -> Cause:
    """Why the table is quarantined; it is waited for."""
    pipeline.until(lambda: pipeline.phase(table) == "quarantined", f"the quarantine of {table}")
    newest = pipeline.checkpoint()
    assert newest is not None
    cause = newest.tables[table].cause
    assert cause is not None
    assert cause.remedy, cause
    return cause


def equal(pipeline: Pipeline, *tables: str) -> None:
    """The tables are shown, and equal the source."""
    slot = pipeline.catches_up(*tables, seconds=90).slot
    cut = next(cut for cut in cuts(pipeline) if cut.slot == slot)
    for table in tables:
        key = ["id", "d"] if table.endswith(".undated") else ["id"]
        assert differences(cut.tables[table].content, content(pipeline.server, table, key)) == [], table


def retried(pipeline: Pipeline, *tables: str) -> None:
    """A person retries the tables, which then equal the source."""
    for table in tables:
        done(pipeline, "retry_table", table=table)
    equal(pipeline, *tables)


def test_each_quarantined_table_comes_back_once_its_cause_is_removed_and_it_is_retried(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Tables without a key, of an engine without transactions, with a zero date in a key, with a small row image.
    2. Retried too early, a table is quarantined again. 3. Each remedy is carried out: a key; an identity that the
    definition names; another engine; a corrected row; nothing but a retry, where the fault lies behind. A table that
    can't be described waits by itself once it was retried."""
    schema = fresh_database(source)
    keyless, vouched, flat, undated, imaged = (
        f"{schema}.{name}" for name in ("keyless", "vouched", "flat", "undated", "imaged")
    )
    source.execute(
        f"CREATE TABLE {keyless} (id INT NOT NULL, a INT)",
        f"CREATE TABLE {vouched} (id INT NOT NULL, a INT, KEY (id))",
        f"CREATE TABLE {flat} (id INT PRIMARY KEY, a INT) ENGINE=MyISAM",
        f"CREATE TABLE {undated} (id INT, d DATE NOT NULL, PRIMARY KEY (id, d))",
        f"CREATE TABLE {imaged} (id INT PRIMARY KEY, a INT)",
        "SET sql_mode = ''",
        f"INSERT INTO {undated} VALUES (1, '0000-00-00')",
        *(f"INSERT INTO {table} VALUES (1, 1), (2, 2)" for table in (keyless, vouched, flat, imaged)),
    )
    codes = {
        keyless: Code.NO_KEY, vouched: Code.NO_KEY, flat: Code.UNSUPPORTED, undated: Code.VALUE,
        imaged: Code.NOT_IN_BINLOG,
    }  # fmt: skip
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("faulty", source, [f"{schema}.*"])
        pipeline.until(lambda: pipeline.shows(imaged), "the good table to be shown")
        with source.connect() as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute(f"UPDATE {imaged} SET a = 7 WHERE id = 1")
        assert {table: cause_of(pipeline, table).code for table in codes} == codes
        for table in (flat, undated):
            done(pipeline, "retry_table", table=table)
            assert cause_of(pipeline, table).code == codes[table]
        source.execute(
            f"ALTER TABLE {keyless} ADD PRIMARY KEY (id)",
            f"ALTER TABLE {flat} ENGINE=InnoDB",
            "SET sql_mode = ''",
            f"UPDATE {undated} SET d = '2020-01-01'",
        )
        retried(pipeline, keyless, undated, imaged)
        equal(pipeline, flat)
        options = [{"tables": vouched, "identity": ["id"]}]
        done(pipeline, "define", **redefined(pipeline, table_options=options))
        retried(pipeline, vouched)


def test_a_table_that_halt_has_stopped_is_read_again_with_its_new_columns(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. `schema_changes: halt`: a new column stops the table. 2. Its remedy, by both commands that start it again; the
    next DDL stops it again."""
    table = f"{fresh_database(source)}.t"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("halting", source, [table], schema_changes="halt")
        equal(pipeline, table)
        for number, kind in enumerate(("read_table_again", "retry_table")):
            source.execute(f"ALTER TABLE {table} ADD a{number} INT", f"UPDATE {table} SET a{number} = 5 WHERE id = 1")
            cause = cause_of(pipeline, table)
            assert (cause.code, "read again" in cause.remedy) == (Code.SCHEMA_CHANGE, True), cause
            done(pipeline, kind, table=table)
            equal(pipeline, table)


@pytest.fixture
def other(nothing_left_running: None) -> Iterator[MySQL]:
    """A MySQL without GTIDs, of the test's own."""
    server = MySQL(gtid=False)
    with started(server):
        yield server


def test_a_pipeline_that_halted_at_another_server_goes_on_at_the_right_one_or_reads_its_tables_again(
    mysql_nogtid: MySQL, other: MySQL, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. The definition leads a pipeline to another server without GTIDs, which has a table of that name: it halts, and
    says so. 2. A start alone does not help. 3. Back at its own server and started it goes on, in its generation. 4. At
    the other one again, its tables are read again by command."""
    schema = fresh_database(mysql_nogtid)
    table = f"{schema}.t"
    other.execute(f"CREATE DATABASE {schema}")
    for server, rows in ((mysql_nogtid, "(1), (2)"), (other, "(2), (3)")):
        server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES {rows}")
        server.execute("FLUSH BINARY LOGS")  # without GTIDs a low watermark is the start of the file

    def generation() -> int:
        newest = pipeline.checkpoint()
        assert newest is not None
        return newest.tables[table].generation

    def led_to(server: MySQL) -> None:
        definition = pipeline.store.definition(pipeline.store.commands.orders().definition)
        assert definition is not None
        source = {**definition["source"], "port": server.port}
        command(pipeline, "define", **redefined(pipeline, source=source))

    def halted() -> Cause | None:
        return pipeline.status().enumerator.halted

    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("led", mysql_nogtid, [table])
        equal(pipeline, table)
        before = generation()
        led_to(other)
        cause = pipeline.until(halted, "it to halt")
        assert (cause.code, "point the pipeline at the" in cause.remedy) == (Code.OTHER_SERVER, True), cause
        assert "cutline pipeline read-again led" in cause.remedy
        epochs = len(pipeline.epochs())
        done(pipeline, "start")
        pipeline.until(lambda: len(pipeline.epochs()) > epochs + 1, "it to halt again")
        pipeline.until(halted, "it to say so")
        led_to(mysql_nogtid)
        mysql_nogtid.execute(f"INSERT INTO {table} VALUES (9)")
        equal(pipeline, table)
        assert generation() == before, pipeline.progress()
        led_to(other)
        pipeline.until(halted, "it to halt once more")
        assert outcome(pipeline, command(pipeline, "read_again")).state == "done"
        pipeline.until(lambda: generation() > before and pipeline.shows(table), "the next generation")
        pipeline.server = other
        equal(pipeline, table)


@contextmanager
def rival(server: Database, server_id: int) -> Iterator[Callable[[], Position]]:
    """Another client that reads the binlog with this server id, and connects again whenever its dump is ended. Yields
    what says how far it is."""
    at = Source(host=server.host, port=server.port, user=server.user, password=server.password)
    with closing(connect(at)) as conn:
        place = current_position(conn, identify(conn))
    stop = threading.Event()

    def follow() -> None:
        nonlocal place
        with closing(BinlogCursor(lambda: connect(at), server_id=server_id)) as cursor:
            while not stop.wait(0.2):
                with suppress(Unavailable):
                    place = cursor.read(
                        place, {}, until=None, max_rows=10, max_bytes=1000, wait_seconds=0.1
                    ).position

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield lambda: place
    finally:
        stop.set()
        thread.join()


def test_a_server_id_that_another_client_has_is_exchanged_for_one_that_is_free(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A pipeline's own server id is taken by another client (MariaDB then ends the older dump): it waits, and says
    for what. 2. Its remedy: the definition gets another number, and both go on."""
    table = f"{fresh_database(mariadb)}.t"
    mariadb.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("rival", mariadb, [table], source={"server_id": 4711})
        equal(pipeline, table)

        def waits() -> Cause | None:
            waiting = pipeline.reader().waiting_for
            return None if waiting is None else waiting.cause

        with rival(mariadb, 4711) as place:
            cause = pipeline.until(waits, "it to say that its server id is taken")
            assert (cause.code, "source.server_id" in cause.remedy) == (Code.SERVER_ID, True), cause
            definition = pipeline.store.definition() or {}
            done(pipeline, "define", **redefined(pipeline, source={**definition["source"], "server_id": 4712}))
            before = place()
            mariadb.execute(f"INSERT INTO {table} VALUES (3)")
            equal(pipeline, table)
            pipeline.until(lambda: place().file_position > before.file_position, "the other client to go on")
