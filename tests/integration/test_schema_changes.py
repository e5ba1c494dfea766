"""Schema changes in the stream, through to the lake: every kind, at each moment of a table's life, on both servers.

One pipeline has a table for each case and moment; DDL runs between changes of rows, while another table changes all the
time. A reader that waits where it is told makes the moments sure: `snapshot` is between a table's first chunk and its
second, `catch-up` when its chunks are in and its changes are not. In the end every table in the lake is compared with
the source by key and content, names and types of its columns. Pipelines with the other policies run beside it.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.services.sources.mysql.catalogue import table_schema
from cutline.spark_writer import session
from tests.conftest import FULL, skipped_where_missing
from tests.integration.mesh import Hammer, Mesh, Pipeline, connection, content, differences
from tests.integration.test_lake import savepoint, writing
from tests.programs import program
from tests.servers import Database, MariaDB

Fresh = Callable[[Database], str]
ROWS = 12
CREATE = (
    "(id INT PRIMARY KEY, a VARCHAR(20) NOT NULL, b INT, c DECIMAL(10,2), d DATETIME(6), e ENUM('x','y') NOT NULL"
    " DEFAULT 'x')"
)
BEFORE = (
    "UPDATE {t} SET b = b + 100 WHERE id < 3",
    "DELETE FROM {t} WHERE id = 4",
    "INSERT INTO {t} (id, a, b, c, d) VALUES (-5, 'ŵ before', 500, 5.55, '2024-05-05 05:05:05.555555')",
)
AFTER = ("DELETE FROM {t} WHERE id = 5", "UPDATE {t} SET e = 'y' WHERE id = 6", "INSERT INTO {t} (id) VALUES (600)")

READER = """
import asyncio, pathlib
from cutline.common.mesh.host import run_service
from cutline.services.reader.__main__ import main
from cutline.services.reader.member import ReaderMember

changes, rows = ReaderMember._read_changes, ReaderMember._next_rows

async def while_held(holds):
    while holds():
        await asyncio.sleep(0.02)

async def held_changes(member, order):
    if order.cursor == "catch-up":
        await while_held(pathlib.Path("hold").exists)
    return await changes(member, order)

async def held_rows(member, split):
    table, generation, number = split.split_id.rsplit(":", 2)
    if ".snapshot_" in table and generation == "1" and number != "1":
        pathlib.Path(f"{table}.at").touch()
        await while_held(lambda: not pathlib.Path(f"{table}.go").exists())
    return await rows(member, split)

ReaderMember._read_changes, ReaderMember._next_rows = held_changes, held_rows
run_service(main)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happens to one table `{t}`: `again` says that a live table is read again; `kept` are the columns that only
    the lake has in the end; `first` runs before the pipeline; `quick`: a part of the sample."""

    name: str
    ddl: tuple[str, ...]
    again: bool = False
    create: str = CREATE
    first: tuple[str, ...] = ()
    after: tuple[str, ...] = AFTER
    kept: tuple[str, ...] = ()
    only: type[Database] = Database
    quick: bool = False


NEW = "{t} (id, a, b, c, d, e) SELECT id, a, b, c, d, e FROM {t}"
CASES = (
    Case(name="add", ddl=("ALTER TABLE {t} ADD n INT", "UPDATE {t} SET n = id WHERE id > 8"), quick=True),
    Case(name="add_first", ddl=("ALTER TABLE {t} ADD n INT FIRST", "UPDATE {t} SET n = id WHERE id > 8"), quick=True),
    Case(name="add_after", ddl=("ALTER TABLE {t} ADD n VARCHAR(9) CHARACTER SET latin1 AFTER a",)),
    Case(
        name="add_constants",
        ddl=(
            "ALTER TABLE {t} ADD n1 INT NOT NULL DEFAULT 7, ADD n2 VARCHAR(9) NOT NULL DEFAULT 'x''\\n\\%' AFTER a,"
            " ADD n3 DATE DEFAULT '2020-01-02', ADD n4 DATETIME NOT NULL DEFAULT '2020-01-02 03:04:05',"
            " ADD n5 DECIMAL(5,2) DEFAULT 1.5, ADD n6 ENUM('p','q') NOT NULL DEFAULT 'q',"
            " ADD n7 BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615, ADD n8 DOUBLE NOT NULL DEFAULT -0.1,"
            " ADD n9 DECIMAL(38,4) NOT NULL DEFAULT -1234567890123456789012345678901234.5",
            "UPDATE {t} SET n1 = 8, n2 = '' WHERE id = 7",
        ),
        quick=True,
    ),
    Case(
        name="add_other_mode",
        ddl=(
            "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'",
            "ALTER TABLE {t} ADD \"n\" VARCHAR(9) NOT NULL DEFAULT 'a\\n'",
            "SET SESSION sql_mode = ''",
        ),
    ),
    Case(name="add_expression", ddl=("ALTER TABLE {t} ADD n VARCHAR(40) DEFAULT (CONCAT('x', id))",), again=True),
    Case(name="add_now", ddl=("ALTER TABLE {t} ADD n DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",), again=True),
    Case(name="add_zeros", ddl=("ALTER TABLE {t} ADD n INT NOT NULL",), again=True),
    Case(name="add_counted", ddl=("ALTER TABLE {t} ADD n SERIAL",), again=True),
    Case(
        name="add_spelt",
        ddl=(
            "ALTER TABLE {t} ADD n1 FLOAT(30), ADD n2 FLOAT(7,3), ADD n3 REAL(9,2), ADD n4 MIDDLEINT, ADD n5 DEC(0)",
            "UPDATE {t} SET n1 = 0.1, n2 = 1.5, n3 = 2.25, n4 = 1 << 22, n5 = 1234567890 WHERE id = 8",
        ),
    ),
    Case(name="add_generated", ddl=("ALTER TABLE {t} ADD n INT AS (b + 1) STORED",), again=True),
    Case(name="drop", ddl=("ALTER TABLE {t} DROP COLUMN b",), kept=("b",), quick=True),
    Case(name="drop_first", ddl=("ALTER TABLE {t} ADD n INT FIRST", "ALTER TABLE {t} DROP n"), kept=("n",)),
    Case(
        name="drop_add",
        ddl=("ALTER TABLE {t} DROP b", "INSERT INTO {t} (id, a) VALUES (77, 'between')", "ALTER TABLE {t} ADD b INT"),
        again=True,
    ),
    Case(
        name="rename",
        ddl=("ALTER TABLE {t} RENAME COLUMN a TO z", "UPDATE {t} SET z = 'ŵ after' WHERE id = 8"),
        quick=True,
    ),
    Case(name="change", ddl=("ALTER TABLE {t} CHANGE a z VARCHAR(50) NOT NULL",)),
    Case(
        name="rename_key",
        ddl=("ALTER TABLE {t} RENAME COLUMN id TO number",),
        after=("DELETE FROM {t} WHERE number = 5", "INSERT INTO {t} (number) VALUES (600)"),
    ),
    Case(
        name="swap_columns",
        ddl=(
            "ALTER TABLE {t} RENAME COLUMN c TO s",
            "ALTER TABLE {t} RENAME COLUMN b TO c",
            "ALTER TABLE {t} RENAME COLUMN s TO b",
        ),
        again=True,
    ),
    Case(
        name="swap_columns_at_once",
        ddl=("ALTER TABLE {t} RENAME COLUMN c TO b, RENAME COLUMN b TO c",),
        again=True,
    ),
    Case(name="move", ddl=("ALTER TABLE {t} MODIFY c DECIMAL(10,2) FIRST",)),
    Case(
        name="widen",
        ddl=(
            "ALTER TABLE {t} MODIFY b BIGINT, MODIFY a VARCHAR(200) NOT NULL, MODIFY c DECIMAL(20,2),"
            " MODIFY e ENUM('x','y','z') NOT NULL DEFAULT 'x'",
            "UPDATE {t} SET b = 1 << 40, c = 123456789012.25, e = 'z' WHERE id = 7",
        ),
        quick=True,
    ),
    Case(name="narrow", ddl=("ALTER TABLE {t} MODIFY b SMALLINT",), again=True),
    Case(name="narrow_text", ddl=("ALTER TABLE {t} MODIFY a VARCHAR(12) NOT NULL",), again=True),
    Case(
        name="not_null",  # a null becomes 0
        ddl=("UPDATE {t} SET b = NULL WHERE id = 9", "ALTER TABLE {t} MODIFY b INT NOT NULL"),
        again=True,
    ),
    Case(name="precision", ddl=("ALTER TABLE {t} MODIFY d DATETIME",), again=True, quick=True),
    Case(name="scale", ddl=("ALTER TABLE {t} MODIFY c DECIMAL(10,1)",), again=True),
    Case(name="kind", ddl=("ALTER TABLE {t} MODIFY a TEXT NOT NULL",), again=True),
    Case(
        name="charset",
        ddl=("SET SESSION sql_mode = ''", "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1"),
        again=True,
    ),
    Case(
        name="charset_of_the_table",
        create=CREATE.replace("a VARCHAR(20)", "a VARCHAR(20) CHARACTER SET utf8mb4") + " DEFAULT CHARSET latin1",
        ddl=("SET SESSION sql_mode = ''", "ALTER TABLE {t} MODIFY a VARCHAR(40) NOT NULL"),
        again=True,
        quick=True,
    ),
    Case(
        name="charset_to_come",
        ddl=(
            "ALTER TABLE {t} DEFAULT CHARACTER SET latin1",
            "ALTER TABLE {t} ADD n VARCHAR(5)",
            "UPDATE {t} SET n = 'é' WHERE id = 8",
        ),
    ),
    Case(name="key", ddl=("ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (a)",), again=True, quick=True),
    Case(
        name="key_of_an_index",
        create=CREATE.replace("id INT PRIMARY KEY", "id INT NOT NULL UNIQUE"),
        ddl=("ALTER TABLE {t} DROP INDEX id, ADD PRIMARY KEY (a, id)",),
        again=True,
    ),
    Case(name="key_wider", ddl=("ALTER TABLE {t} MODIFY id BIGINT",)),
    Case(name="index", ddl=("ALTER TABLE {t} ADD INDEX i (b), COMMENT 'x'", "ALTER TABLE {t} DROP INDEX i, FORCE")),
    Case(name="truncate", ddl=("TRUNCATE {t}", "INSERT INTO {t} (id, a) VALUES (8, 'again')"), quick=True),
    Case(
        name="recreate",
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} (id BIGINT PRIMARY KEY, e CHAR(1) NOT NULL DEFAULT 'q')"),
        again=True,
        quick=True,
    ),
    Case(
        name="create_like",
        ddl=(
            "CREATE TABLE {t}_new LIKE {t}",
            "ALTER TABLE {t}_new ADD n INT NOT NULL DEFAULT 3 FIRST",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        ),
        again=True,
    ),
    Case(
        name="recreate_like",
        first=("CREATE TABLE {t}_from (id INT PRIMARY KEY, e CHAR(1) NOT NULL DEFAULT 'q', other INT)",),
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} LIKE {t}_from"),
        again=True,
    ),
    Case(
        name="or_replace",
        only=MariaDB,
        first=("CREATE TABLE {t}_from " + CREATE, f"INSERT INTO {NEW.replace('{t}', '{t}_from', 1)}"),
        ddl=("CREATE OR REPLACE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, e, b * 2 AS twice FROM {t}_from",),
        again=True,
    ),
    Case(
        name="create_select",
        first=("CREATE TABLE {t}_from " + CREATE, f"INSERT INTO {NEW.replace('{t}', '{t}_from', 1)}"),
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, e, b * 2 AS twice FROM {t}_from"),
        again=True,
    ),
    Case(
        name="key_later",  # for a moment the table has no identity
        ddl=(
            "DROP TABLE {t}",
            "CREATE TABLE {t} AS SELECT 8 AS id, 'q' AS e",
            "SELECT SLEEP(1)",
            "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        ),
        again=True,
    ),
    Case(
        name="rename_swap",
        first=("CREATE TABLE {t}_b (id INT PRIMARY KEY, e CHAR(1) DEFAULT 'q', other INT)",),
        ddl=("INSERT INTO {t}_b (id) VALUES (6), (8)", "RENAME TABLE {t} TO {t}_old, {t}_b TO {t}"),
        again=True,
        quick=True,
    ),
    Case(
        name="rename_back",
        ddl=("RENAME TABLE {t} TO {t}_away", "INSERT INTO {t}_away (id) VALUES (888)", "RENAME TABLE {t}_away TO {t}"),
        again=True,
    ),
    Case(
        name="three_renames",
        first=("CREATE TABLE {t}_b " + CREATE,),
        ddl=("INSERT INTO {t}_b (id) VALUES (9)", "RENAME TABLE {t} TO {t}_s, {t}_b TO {t}, {t}_s TO {t}_b"),
        again=True,
    ),
    Case(
        name="partition",
        create=CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN"
        " (10), PARTITION p2 VALUES LESS THAN MAXVALUE)",
        ddl=("ALTER TABLE {t} DROP PARTITION p0",),
        again=True,
    ),
    Case(
        name="truncate_partition",
        create=CREATE + " PARTITION BY HASH (id) PARTITIONS 3",
        ddl=("ALTER TABLE {t} TRUNCATE PARTITION p1",),
        again=True,
    ),
    Case(
        name="exchange",
        create=CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN"
        " MAXVALUE)",
        first=("CREATE TABLE {t}_x " + CREATE, "INSERT INTO {t}_x (id, a) VALUES (1, 'exchanged')"),
        ddl=("ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_x",),
        again=True,
    ),
    Case(
        name="exchanged",  # as the table that the other one gives a partition for
        first=(
            "CREATE TABLE {t}_p " + CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO {t}_p (id, a) VALUES (1, 'exchanged'), (5, 'too')",
        ),
        ddl=("ALTER TABLE {t}_p EXCHANGE PARTITION p0 WITH TABLE {t}",),
        again=True,
    ),
    Case(
        name="own_settings",
        only=MariaDB,
        ddl=(
            "SET STATEMENT max_statement_time = 60 FOR ALTER TABLE {t} ADD n INT",
            "SET STATEMENT max_statement_time = 60, sql_mode = '' FOR TRUNCATE {t}",
            "INSERT INTO {t} (id, n) VALUES (8, 9)",
        ),
    ),
    Case(
        name="two_phases",
        only=MariaDB,
        ddl=(
            "SET SESSION binlog_alter_two_phase = ON",
            "ALTER TABLE {t} ADD n INT",
            "UPDATE {t} SET n = id WHERE id > 8",
            "ALTER TABLE {t} DROP b",
            "SET SESSION binlog_alter_two_phase = OFF",
        ),
        kept=("b",),
    ),
    Case(
        name="gh_ost",  # as gh-ost does it: changes copied beside rows, then both names swapped at once
        ddl=(
            "CREATE /* gh-ost */ TABLE {t}_gho LIKE {t}",
            "ALTER /* gh-ost */ TABLE {t}_gho ADD n INT, DROP COLUMN b",
            "INSERT /* gh-ost */ IGNORE INTO {t}_gho (id, a, c, d, e) SELECT id, a, c, d, e FROM {t}",
            "REPLACE /* gh-ost */ INTO {t}_gho (id, a, c, d, e) VALUES (8, 'replaced', 1, NULL, 'y')",
            "RENAME /* gh-ost */ TABLE {t} TO {t}_del, {t}_gho TO {t}",
            "DROP /* gh-ost */ TABLE IF EXISTS {t}_del",
        ),
        again=True,
    ),
    Case(
        name="twice",  # two tools after each other (Flink CDC fails there)
        ddl=(
            "CREATE TABLE {t}_new LIKE {t}",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
            "DROP TABLE {t}_old",
            "CREATE TABLE {t}_new LIKE {t}",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        ),
        again=True,
    ),
    Case(name="if_exists", only=MariaDB, ddl=("ALTER TABLE {t} ADD IF NOT EXISTS n INT, DROP IF EXISTS nothing",)),
)
MOMENTS = ("live", "catchup", "snapshot")


def chosen(source: Database) -> dict[str, dict[str, Case]]:
    """The cases of each moment, by the table's name: all of them, or of the quick ones each at one moment, which is
    another on each server."""
    cases = [case for case in CASES if isinstance(source, case.only) and (case.quick or FULL)]
    shift = int(isinstance(source, MariaDB))
    return {
        moment: {f"{moment}_{case.name}": case for at, case in enumerate(cases) if FULL or (at + shift) % 3 == turn}
        for turn, moment in enumerate(MOMENTS)
    }


def rows(table: str) -> str:
    values = ", ".join(f"({n}, 'rów {n}', {n}, {n}.25, '2024-01-02 03:04:05.6789{n:02d}', 'x')" for n in range(ROWS))
    return f"INSERT INTO {table} (id, a, b, c, d, e) VALUES {values}"


def changed(source: Database, case: Case, table: str) -> None:
    """Rows change, then the table, then rows; on one connection, in a session that fills what an INSERT leaves out."""
    with contextlib.closing(source.connect()) as conn, conn.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for statement in (*BEFORE, *case.ddl, *case.after):
            cursor.execute(statement.replace("{t}", table))


def phases(pipeline: Pipeline) -> dict[str, str]:
    """Where the enumerator sees each table now."""
    tables = pipeline.status().get("enumerator", {}).get("tables", {})
    return {name: table["phase"] for name, table in tables.items()}


def published(pipeline: Pipeline, tables: Iterable[str]) -> bool:
    """Whether the newest publication shows all these tables."""
    numbers = pipeline.store.publication_numbers()
    newest = pipeline.store.publication(numbers[-1]) if numbers else None
    return newest is not None and all(name in newest.tables and newest.tables[name].shown for name in tables)


@contextlib.contextmanager
def between_chunks(pipeline: Pipeline, tables: Mapping[str, Case]) -> Iterator[None]:
    """Change each table when the reader waits between its first chunk and its second."""
    folder, left, failures = pipeline.mesh.folder, dict(tables), list[BaseException]()
    ends = threading.Event()

    def watch() -> None:
        try:
            while left and not ends.is_set():
                for table in [name for name in left if (folder / f"{name}.at").exists()]:
                    changed(pipeline.server, left.pop(table), table)
                    (folder / f"{table}.go").touch()
                time.sleep(0.02)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(60)
    assert not failures, failures
    assert not left, f"never read in two chunks: {sorted(left)}"


@dataclass(frozen=True, slots=True)
class InLake:
    """A table of the lake: its rows by key, its columns' types in their order."""

    rows: dict[tuple[Any, ...], dict[str, Any]]
    types: dict[str, pa.DataType]


def in_lake(reader: Any, table: str, key: list[str]) -> InLake:
    found = reader.sql(f"SELECT * FROM lake.{table}").toArrow()
    rows = {tuple(row[name] for name in key): row for row in found.to_pylist()}
    assert len(rows) == found.num_rows, f"{table} has a key twice"
    return InLake(rows, {field.name: field.type for field in found.schema})


def compared(source: Database, reader: Any, table: str, kept: tuple[str, ...] = ()) -> list[str]:
    """What of a table differs between lake and source; `kept` are columns that only the lake has."""
    with contextlib.closing(connection(source)) as conn:
        schema = table_schema(conn, table)
    found = in_lake(reader, table, list(schema.key))
    types = {name: kind for name, kind in found.types.items() if name not in kept}
    rows = {key: {name: row[name] for name in types} for key, row in found.rows.items()}
    wanted = {field.name: field.type for field in schema.arrow}
    lines = differences(rows, content(source, table, list(schema.key)))
    if list(types.items()) != list(wanted.items()):
        lines.append(f"columns {types} for {wanted}")
    if set(kept) - set(found.types):
        lines.append(f"lost {kept}: {list(found.types)}")
    return [f"{table}: {line}" for line in lines]


@pytest.mark.timeout(1800)
def test_every_change_arrives_whenever_it_comes(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. All tables are read; those of `snapshot` change between their chunks; catch-up waits.
    2. Those of `catchup` change, then catch-up goes on. 3. Those of `live` change when they are shown.
    The lake then equals the source; live tables changed in place, or in their next generation, as their case says.
    """
    schema = fresh_database(source)
    of = {
        moment: {f"{schema}.{name}": case for name, case in cases.items()} for moment, cases in chosen(source).items()
    }
    every = {name: case for cases in of.values() for name, case in cases.items()}
    source.execute(
        f"CREATE TABLE {schema}.a_hot (id INT PRIMARY KEY, n INT)", f"INSERT INTO {schema}.a_hot VALUES (1, 0)"
    )
    for table, case in every.items():
        source.execute(
            f"CREATE TABLE {table} {case.create}",
            rows(table),
            *(statement.replace("{t}", table) for statement in case.first),
        )
    names = [f"{schema}.a_hot", *every]
    (tmp_path / "hold").touch()
    hot = Hammer(source, lambda c, *_: c.execute(f"UPDATE {schema}.a_hot SET n = n + 1"), threads=1, pause_seconds=0.02)
    with Mesh(tmp_path, readers=1, programs={"reader": ("-c", READER)}) as mesh, writing(mesh), hot:
        pipeline = mesh.pipeline("changes", source, names, chunk_rows=5, interval_seconds=2.0)
        with between_chunks(pipeline, of["snapshot"]):
            pipeline.until(
                lambda: (now := phases(pipeline)).keys() == set(names) and set(now.values()) <= {"catch-up", "live"},
                "all chunks to be read",
                300,
            )
        late = [name for name, phase in phases(pipeline).items() if phase == "catch-up"]
        assert set(late) & set(of["catchup"])
        for table, case in of["catchup"].items():
            changed(source, case, table)
        (tmp_path / "hold").unlink()
        pipeline.until(lambda: published(pipeline, of["live"]), "the live tables to be published", 300)
        for table, case in of["live"].items():
            changed(source, case, table)
        hot.stop()
        end = pipeline.catches_up(*names, seconds=300)
        savepoint(pipeline, "last", 600)
        definition: Any = pipeline.store.definition()
    reader = session.for_pipeline(spark, definition["sink"])
    assert compared(source, reader, f"{schema}.a_hot") == []
    again = {name: end.tables[name].generation > 1 for name in every}
    assert {name: again[name] for name in of["live"]} == {name: case.again for name, case in of["live"].items()}
    said = []
    for name, case in every.items():  # a table that was read again has the source's columns
        said += compared(source, reader, name, () if again[name] else case.kept)
    assert said == []
    for name, case in of["live"].items():
        if case.name == "drop":
            found = in_lake(reader, name, ["id"])
            assert (found.rows[(8,)]["b"], found.rows[(6,)]["b"], found.rows[(600,)]["b"]) == (8, None, None)


COLUMNS_CHANGE = (
    "ALTER TABLE {t} ADD n INT NOT NULL DEFAULT 7",
    "ALTER TABLE {t} DROP COLUMN c",
    "ALTER TABLE {t} RENAME COLUMN a TO z, MODIFY b BIGINT",
    "UPDATE {t} SET b = 1 << 40 WHERE id = 7",
)
TYPES = {"id": pa.int32(), "a": pa.string(), "b": pa.int32(), "c": pa.decimal128(10, 2)}
TYPES |= {"d": pa.timestamp("us"), "e": pa.string()}


def as_ignored(source: Database, table: str) -> InLake:
    """What `schema_changes: ignore` shows of a table that changed by BEFORE, COLUMNS_CHANGE and AFTER."""
    found = {}
    for key, row in content(source, table, ["id"]).items():
        (number,) = key
        c = None if number in (6, 7, 600) else Decimal("5.55") if number == -5 else number + Decimal("0.25")
        found[key] = {"id": number, "a": row["z"], "b": row["b"], "c": c, "d": row["d"], "e": row["e"]}
    return InLake(found, TYPES | {"b": pa.int64()})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)], indirect=True)
def test_each_policy_shows_changed_columns_in_its_own_way(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. A pipeline for each policy but evolve reads its tables; one of each changes between its chunks.
    2. Columns are added, dropped, renamed and widened; in another table rows change by DDL.
    `exact` shows the source's columns; `ignore` its own, with what the source has for them; both the source's where the
    table was read again; `halt` goes on with a table whose columns stay, stops the others, and keeps showing what it
    showed of them.
    """
    stays = ("ALTER TABLE {t} ADD INDEX i (b), ALTER COLUMN e SET DEFAULT 'y'", "TRUNCATE {t}")
    again = ("ALTER TABLE {t} MODIFY d DATETIME, DROP COLUMN c",)
    both = {"t": COLUMNS_CHANGE, "again": again}
    of = {"exact": both, "ignore": both, "halt": both | {"stays": stays}}
    schemas = {policy: fresh_database(source) for policy in of}
    early = {
        f"{schema}.snapshot_t": Case(name="early", ddl=("ALTER TABLE {t} ADD n INT",)) for schema in schemas.values()
    }
    for name in (*early, *(f"{schemas[policy]}.{table}" for policy, tables in of.items() for table in tables)):
        source.execute(f"CREATE TABLE {name} {CREATE}", rows(name))
    with Mesh(tmp_path, readers=1, writers=1, programs={"reader": ("-c", READER)}) as mesh, writing(mesh):
        pipelines = {
            policy: mesh.pipeline(policy, source, [f"{schema}.*"], schema_changes=policy, chunk_rows=5)
            for policy, schema in schemas.items()
        }
        halts = pipelines["halt"]
        with between_chunks(halts, early):
            for policy, tables in of.items():
                names = [f"{schemas[policy]}.{table}" for table in tables]
                pipelines[policy].until(lambda p=policy, n=names: published(pipelines[p], n), "its publication", 300)
        for policy, tables in of.items():
            for table, statements in tables.items():
                changed(source, Case(name=table, ddl=statements), f"{schemas[policy]}.{table}")
        stopped = {name: f"{schemas['halt']}.{name}" for name in ("t", "again", "snapshot_t")}
        halts.until(lambda: {halts.phase(name) for name in stopped.values()} == {"quarantined"}, "tables to stop", 300)
        live = (*both, "snapshot_t")
        for policy, names in (("exact", live), ("ignore", live), ("halt", ["stays"])):
            pipelines[policy].catches_up(*(f"{schemas[policy]}.{name}" for name in names), seconds=300)
            savepoint(pipelines[policy], "last", 300)
        newest, definition = halts.checkpoint(), pipelines["exact"].store.definition()
    assert newest is not None
    causes = {name: newest.tables[table].cause for name, table in stopped.items()}
    assert "ADD n INT" in causes["t"]
    assert "MODIFY d DATETIME" in causes["again"]
    assert "while it was being read" in causes["snapshot_t"]
    assert definition is not None
    reader = session.for_pipeline(spark, definition["sink"])
    equal = [("exact", "t"), ("halt", "stays")]
    equal += [(policy, name) for policy in ("exact", "ignore") for name in ("again", "snapshot_t")]
    assert [line for policy, name in equal for line in compared(source, reader, f"{schemas[policy]}.{name}")] == []
    for name in ("t", "again"):
        halted = in_lake(reader, stopped[name], ["id"])
        assert halted.types == TYPES
        assert {(5,), (6,)} <= halted.rows.keys()
        assert (600,) not in halted.rows
    assert in_lake(reader, f"{schemas['ignore']}.t", ["id"]) == as_ignored(source, f"{schemas['ignore']}.t")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_each_policy_holds_for_columns_that_change_in_catch_up(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. A pipeline for each policy but evolve reads two tables while a third changes all the time; each waits between
    its first chunk and its second until the third is live, so that it must catch up, which waits too.
    2. Columns of one table change, the other is truncated. 3. Catch-up goes on.
    `exact` shows the source's columns, `ignore` its own, `halt` stops the first table before it was ever shown.
    """
    schemas = {policy: fresh_database(source) for policy in ("exact", "ignore", "halt")}
    for schema in schemas.values():
        source.execute(
            f"CREATE TABLE {schema}.a_hot (id INT PRIMARY KEY, n INT)", f"INSERT INTO {schema}.a_hot VALUES (1, 0)"
        )
        for name in ("snapshot_t", "snapshot_u"):
            source.execute(f"CREATE TABLE {schema}.{name} {CREATE}", rows(f"{schema}.{name}"))

    def heats(cursor: Any, *_: Any) -> None:
        for schema in schemas.values():
            cursor.execute(f"UPDATE {schema}.a_hot SET n = n + 1")

    (tmp_path / "hold").touch()
    hot = Hammer(source, heats, threads=1, pause_seconds=0.02)
    with Mesh(tmp_path, readers=1, writers=1, programs={"reader": ("-c", READER)}) as mesh, writing(mesh), hot:
        pipelines = {
            policy: mesh.pipeline(
                policy,
                source,
                [f"{schema}.{name}" for name in ("a_hot", "snapshot_t", "snapshot_u")],
                schema_changes=policy,
                chunk_rows=5,
                interval_seconds=2.0,
            )
            for policy, schema in schemas.items()
        }
        for policy, schema in schemas.items():
            hot_one = f"{schema}.a_hot"
            pipelines[policy].until(lambda p=policy, h=hot_one: phases(pipelines[p]).get(h) == "live", "it to be live")
            for name in ("snapshot_t", "snapshot_u"):
                (tmp_path / f"{schema}.{name}.go").touch()
        for policy, schema in schemas.items():
            wanted = {f"{schema}.a_hot": "live", f"{schema}.snapshot_t": "catch-up", f"{schema}.snapshot_u": "catch-up"}
            pipelines[policy].until(lambda p=policy, w=wanted: phases(pipelines[p]) == w, "tables to wait in catch-up")
            changed(source, Case(name="t", ddl=COLUMNS_CHANGE), f"{schema}.snapshot_t")
            emptied = Case(name="u", ddl=("TRUNCATE {t}", "ALTER TABLE {t} ADD INDEX (b)"))
            changed(source, emptied, f"{schema}.snapshot_u")
        (tmp_path / "hold").unlink()
        stopped = f"{schemas['halt']}.snapshot_t"
        pipelines["halt"].until(lambda: pipelines["halt"].phase(stopped) == "quarantined", "the table to stop")
        hot.stop()
        shows = {policy: [f"{schema}.a_hot", f"{schema}.snapshot_u"] for policy, schema in schemas.items()}
        for policy in ("exact", "ignore"):
            shows[policy].append(f"{schemas[policy]}.snapshot_t")
        ends = {}
        for policy, pipeline in pipelines.items():
            ends[policy] = pipeline.catches_up(*shows[policy], seconds=300)
            savepoint(pipeline, "last", 300)
        definition: Any = pipelines["exact"].store.definition()
    assert "schema_changes: halt stops it: ALTER TABLE" in ends["halt"].tables[stopped].cause
    tables = [table for policy in ends for table in shows[policy] if ends[policy].tables[table].generation > 1]
    assert tables == []  # none was read again
    reader = session.for_pipeline(spark, definition["sink"])
    ignored = f"{schemas['ignore']}.snapshot_t"
    assert in_lake(reader, ignored, ["id"]) == as_ignored(source, ignored)
    rest = [table for names in shows.values() for table in names if table != ignored]
    assert [line for table in rest for line in compared(source, reader, table)] == []


# --- the tools themselves ---------------------------------------------------------------------------------------------


TOOLS: dict[str, tuple[str, ...]] = {
    "pt-online-schema-change": (
        "--execute --no-version-check --chunk-size=20 --recursion-method=none",
        "--alter={alter}",
        "h={host},P={port},u=osc,p=osc,D={schema},t=orders",
    ),
    "gh-ost": (
        "--execute --allow-on-master --assume-rbr --skip-metadata-lock-check --ok-to-drop-table --chunk-size=20",
        "--serve-socket-file=gh-ost.sock --throttle-additional-flag-file=throttle --user=osc --password=osc",
        "--host={host} --port={port} --database={schema} --table=orders",
        "--alter={alter}",
    ),
}
"""What each tool is called with: words, or a whole argument where it has {alter} in it."""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_swaps_tables_runs_beside_the_pipeline(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path, tool: str
) -> None:
    """1. The tool rebuilds a live table twice, in chunks of its own, while rows change: pt-online-schema-change takes
    them by triggers, gh-ost from the binlog. The table is read again each time and equals the source in the end; the
    tool's own tables are none of ours.
    """
    with skipped_where_missing():
        executable = program(tool)
    schema = fresh_database(source)
    table = f"{schema}.orders"
    source.execute(f"CREATE TABLE {table} {CREATE}", rows(table))
    source.execute("CREATE USER IF NOT EXISTS osc@'%' IDENTIFIED BY 'osc'", "GRANT ALL ON *.* TO osc@'%'")

    def some(cursor: Any, luck: Any, _: int) -> None:
        number = luck.randrange(20, 400)
        cursor.execute(
            f"INSERT INTO {table} (id, a, b) VALUES ({number}, 'x', 1) ON DUPLICATE KEY UPDATE b = COALESCE(b, 0) + 1"
        )
        cursor.execute(f"DELETE FROM {table} WHERE id = {luck.randrange(20, 400)}")

    def rebuilt(alter: str) -> None:
        words = [word for line in TOOLS[tool] for word in ([line] if "{alter}" in line else line.split())]
        given = {"alter": alter, "host": source.host, "port": source.port, "schema": schema}
        command = [executable, *(word.format(**given) for word in words)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh), Hammer(source, some, threads=2) as hammer:
        pipeline = mesh.pipeline("osc", source, [table], chunk_rows=50)
        pipeline.until(lambda: pipeline.shows(table), "the table to be shown", 300)
        for number, alter in enumerate(("ADD n INT NOT NULL DEFAULT 3, DROP COLUMN c", "MODIFY b BIGINT"), start=2):
            rebuilt(alter)
            pipeline.until(
                lambda n=number: pipeline.shows(table) and pipeline.checkpoint().tables[table].generation >= n,
                f"generation {number}",
                300,
            )
        hammer.stop()
        pipeline.catches_up(table, seconds=300)
        savepoint(pipeline, "last", 600)
        definition: Any = pipeline.store.definition()
    assert compared(source, session.for_pipeline(spark, definition["sink"]), table) == []
