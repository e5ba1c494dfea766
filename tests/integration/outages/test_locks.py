"""A source whose tables other sessions have locked, or which lets Cutline in no further: each table waits by itself,
and each obstacle is named with what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ConfigError, CutlineError, TableLocked, Unavailable
from cutline.services.sources.mysql.connection import Source, ask, columns_of, connect
from cutline.services.sources.mysql.preflight import server_faults
from cutline.services.sources.mysql.server import begin_reading, oldest_transaction_seconds
from tests.conftest import started
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database, MariaDB, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline, connection, waited
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]
USER = f"{CDC_USER}@'%'"
TRIES = 3
"""A lock of this many tries. That no number of them uses up a chunk's attempts is in
tests/unit/services/enumerator/test_holds.py."""
OWN = f"ALTER USER {{}} IDENTIFIED BY '{CDC_PASSWORD}'"


@contextmanager
def session(server: Database, *statements: str) -> Iterator[Any]:
    with closing(server.connect()) as conn, conn.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        yield cursor


def made(server: Database, schema: str, *names: str, rows: int = 300) -> list[str]:
    tables = [f"{schema}.{name}" for name in names]
    for table in tables:
        server.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO {table} WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
            " SELECT i, i FROM n",
        )
    return tables


def rows_done(pipeline: Pipeline, table: str) -> int:
    shown = pipeline.status().tables.get(table)
    return 0 if shown is None else shown.rows_done or 0


def cause(pipeline: Pipeline, table: str) -> str:
    """The table's cause in the status; "" without one."""
    shown = pipeline.status().tables.get(table)
    return "" if shown is None or shown.cause is None else str(shown.cause)


def tries(mesh: Mesh, table: str) -> int:
    """How often a reader has met the lock of this table at one of its chunks."""
    return sum(f": chunk {table}:" in line and "is locked" in line for line in mesh.log_ends(1000).splitlines())


def equal(pipeline: Pipeline, server: Database, tables: list[str]) -> None:
    pipeline.catches_up(*tables)
    *_, cut = cuts(pipeline)
    for table in tables:
        assert not differences(cut.tables[table].content, content(server, table, ["id"])), table


def test_each_locked_table_waits_by_itself_and_says_so_while_the_others_are_live(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. An application has locked more tables than readers have room for, also the first and one with a text key.
    2. The others are live meanwhile. 3. Another one is locked in the middle of its snapshot. 4. All locks end."""
    schema = fresh_database(source)
    locked = made(source, schema, "a1", "a2", "a3", "a4", "a5", "m", "z")
    free = made(source, schema, "b", "n", "zz")
    source.execute(
        f"CREATE TABLE {schema}.text (id VARCHAR(9) PRIMARY KEY, `ä` INT)", f"INSERT INTO {schema}.text VALUES ('x', 1)"
    )
    locked.append(f"{schema}.text")
    (large,) = made(source, schema, "large", rows=900)
    with Mesh(tmp_path, readers=1, writers=1) as mesh, ExitStack() as locks:
        held = locks.enter_context(session(source, "LOCK TABLES " + ", ".join(f"{table} WRITE" for table in locked)))
        pipeline = mesh.pipeline("locked", source, [f"{schema}.*", f"!{large}"])
        pipeline.until(lambda: pipeline.shows(*free), "the other tables")
        for table in locked:
            pipeline.until(lambda table=table: f"{table} is locked by another session" in cause(pipeline, table), table)
            assert pipeline.phase(table) in ("waiting", "snapshot")
        assert not any(cause(pipeline, table) for table in free)
        status = pipeline.status().enumerator
        assert (status.at is not None, status.waiting_for) == (True, None)
        held.execute("UNLOCK TABLES")
        equal(pipeline, source, [*locked, *free])
        pipeline.until(lambda: not any(cause(pipeline, table) for table in locked), "their causes to end")

        slow = mesh.pipeline("slow", source, [f"{schema}.l*", f"{schema}.n"], snapshot={"max_rows_per_second": 300})
        slow.until(lambda: rows_done(slow, large), "rows")
        held.execute(f"LOCK TABLES {large} WRITE")
        slow.until(lambda: "is locked by another session" in cause(slow, large), "the lock")
        slow.until(lambda: tries(mesh, large) >= TRIES, "tries at the locked chunk")
        assert slow.phase(large) == "snapshot"
        held.execute(f"UPDATE {large} SET v = v + 1")
        held.execute("UNLOCK TABLES")
        equal(slow, source, [large, f"{schema}.n"])


def test_a_read_lock_on_all_tables_stops_no_copy(source: Database, fresh_database: Fresh, tmp_path: Path) -> None:
    schema = fresh_database(source)
    tables = made(source, schema, "a", "b")
    with Mesh(tmp_path, readers=1, writers=1) as mesh, session(source, "FLUSH TABLES WITH READ LOCK"):
        pipeline = mesh.pipeline("shop", source, [f"{schema}.*"])
        pipeline.until(lambda: pipeline.shows(*tables), "the tables")


def test_the_checks_of_a_start_do_not_wait_for_locked_tables(source: Database, fresh_database: Fresh) -> None:
    schema = fresh_database(source)
    tables = made(source, schema, *(f"t{number}" for number in range(30)), rows=1)
    with session(source, "LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables)):
        with closing(connection(source)) as conn:
            began = time.monotonic()
            assert server_faults(conn, tables=tables) == []
            assert time.monotonic() - began < 15
            assert columns_of(conn, f"SELECT v, id FROM {tables[0]}", table=tables[0]) == ["v", "id"]
            with pytest.raises(TableLocked, match=f"{tables[0]} is locked by another session") as caught:
                ask(conn, f"SELECT * FROM {tables[0]}", table=tables[0])
            assert caught.value.table == tables[0]
            assert "SHOW PROCESSLIST" in str(caught.value)


def oldest(conn: Any) -> float:
    time.sleep(0.15)  # the server repeats an answer to a question that comes sooner
    return oldest_transaction_seconds(conn)


def test_the_age_of_our_oldest_transaction_is_known_with_and_without_process(
    source: Database, fresh_database: Fresh
) -> None:
    schema = fresh_database(source)
    (table,) = made(source, schema, "t")
    source.execute(
        "CREATE USER IF NOT EXISTS aged@'%' IDENTIFIED BY 'cdc-secret'", f"GRANT SELECT ON {schema}.* TO aged@'%'"
    )
    try:
        of_aged = Source(host=source.host, port=source.port, user="aged", password=CDC_PASSWORD)
        with closing(connect(of_aged)) as holds, closing(connect(of_aged)) as asks:
            assert oldest_transaction_seconds(asks) == 0
            source.execute("GRANT PROCESS ON *.* TO aged@'%'")
            with closing(connect(of_aged)) as sees:
                assert oldest_transaction_seconds(sees) == 0
                begin_reading(holds)
                ask(holds, f"SELECT COUNT(*) FROM {table}")
                waited(lambda: 1 <= oldest(sees) < 60, "an age", 20)
                ask(holds, "COMMIT")
                waited(lambda: oldest(sees) == 0, "the end of the transaction", 20)
    finally:
        source.execute("DROP USER aged@'%'")


# --- what a server says when it lets nobody in ------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[MySQL, MariaDB], ids=["mysql", "mariadb"])
def strict(request: pytest.FixtureRequest, nothing_left_running: None) -> Iterator[Database]:
    server: Database = request.param()
    with started(server):
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        yield server


def refused(server: Database, kind: type[CutlineError] = Unavailable) -> str:
    """What the next connection fails with, while others of Cutline are open."""
    source = Source(host=server.host, port=server.port, user=CDC_USER, password=CDC_PASSWORD)
    with ExitStack() as opened:
        for _ in range(400):
            try:
                opened.enter_context(closing(connect(source)))
            except kind as error:
                return str(error)
    raise AssertionError("every connection was let in")


@pytest.mark.parametrize(
    ("flavours", "does", "undoes", "kind", "words"),
    [
        ("mysql mariadb", "SET GLOBAL max_connections = 12", "SET GLOBAL max_connections = 200", Unavailable,
         "has no connection left: Too many connections (1040); raise max_connections there"),
        ("mysql mariadb", "ALTER USER {} WITH MAX_USER_CONNECTIONS 2", "ALTER USER {} WITH MAX_USER_CONNECTIONS 0",
         Unavailable, "lets this user do no more"),
        ("mysql mariadb", "ALTER USER {} ACCOUNT LOCK", "ALTER USER {} ACCOUNT UNLOCK", ConfigError,
         "unlock the account: ALTER USER ... ACCOUNT UNLOCK"),
        ("mysql mariadb", "ALTER USER {} PASSWORD EXPIRE", OWN, ConfigError,
         "give the account a new password: ALTER USER ... IDENTIFIED BY ..."),
        ("mysql mariadb", "ALTER USER {} IDENTIFIED BY 'other'", OWN, ConfigError,
         "correct source.user, its password or its host"),
        ("mysql mariadb", "SET GLOBAL init_connect = 'SELECT nonsense'", "SET GLOBAL init_connect = ''", Unavailable,
         "correct init_connect there"),
        ("mysql", "SET GLOBAL offline_mode = ON", "SET GLOBAL offline_mode = OFF", Unavailable, "is in offline mode: "),
    ],
)  # fmt: skip
def test_each_way_in_which_a_server_lets_nobody_in_has_its_own_sentence(
    strict: Database, flavours: str, does: str, undoes: str, kind: type[CutlineError], words: str
) -> None:
    if strict.flavour not in flavours:
        pytest.skip("the other server has it")
    strict.execute(does.format(USER))
    try:
        sentence = refused(strict, kind)
    finally:
        strict.execute(undoes.format(USER))
    assert words in sentence, sentence
    assert "is the server up" not in sentence
