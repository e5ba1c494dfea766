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
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.spark_writer import session
from tests.conftest import FULL, skipped_where_missing
from tests.support.databases import Database, MariaDB
from tests.support.hammer import Hammer
from tests.support.history import content
from tests.support.lakes import InLake, compared, in_lake, savepoint, writing
from tests.support.mesh import Mesh, Pipeline
from tests.support.schema_cases import BEFORE, CASES, CREATE, Case, rows
from tools.programs import program

Fresh = Callable[[Database], str]

READER = """
import asyncio, pathlib
from cutline.common.mesh.host import run_service
from cutline.services.reader.__main__ import main
from cutline.services.reader.driver import ReaderDriver

changes, rows = ReaderDriver._read_changes, ReaderDriver._next_rows

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

ReaderDriver._read_changes, ReaderDriver._next_rows = held_changes, held_rows
run_service(main)
"""


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


def changed(source: Database, case: Case, table: str) -> None:
    """Rows change, then the table, then rows; on one connection, in a session that fills what an INSERT leaves out."""
    with contextlib.closing(source.connect()) as conn, conn.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for statement in (*BEFORE, *case.ddl, *case.after):
            cursor.execute(statement.replace("{t}", table))


def phases(pipeline: Pipeline) -> dict[str, str]:
    """Where the enumerator sees each table now."""
    tables = pipeline.status().tables
    return {name: table.phase for name, table in tables.items()}


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


@pytest.mark.timeout(1800)
def test_every_change_arrives_whenever_it_comes(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. All tables are read; those of `snapshot` change between their chunks; catch-up waits.
    2. Those of `catchup` change, then catch-up goes on. 3. Those of `live` change when they are shown.
    The lake (of format version 2 on MariaDB) then equals the source; live tables changed in place, or in their next
    generation, as their case says.
    """
    schema = fresh_database(source)
    by_moment = {
        moment: {f"{schema}.{name}": case for name, case in cases.items()} for moment, cases in chosen(source).items()
    }
    every = {name: case for cases in by_moment.values() for name, case in cases.items()}
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
        version = 2 if isinstance(source, MariaDB) else 3
        options = [{"tables": f"{schema}.*", "format_version": version}]
        pipeline = mesh.pipeline("changes", source, names, chunk_rows=5, interval_seconds=2.0, table_options=options)
        with between_chunks(pipeline, by_moment["snapshot"]):
            pipeline.until(
                lambda: (now := phases(pipeline)).keys() == set(names) and set(now.values()) <= {"catch-up", "live"},
                "all chunks to be read",
                300,
            )
        late = [name for name, phase in phases(pipeline).items() if phase == "catch-up"]
        assert set(late) & set(by_moment["catchup"])
        for table, case in by_moment["catchup"].items():
            changed(source, case, table)
        (tmp_path / "hold").unlink()
        pipeline.until(lambda: published(pipeline, by_moment["live"]), "the live tables to be published", 300)
        for table, case in by_moment["live"].items():
            changed(source, case, table)
        hot.stop()
        end = pipeline.catches_up(*names, seconds=300)
        savepoint(pipeline, "last", 600)
        definition: Any = pipeline.store.definition()
    reader = session.for_pipeline(spark, definition["sink"])
    assert compared(source, reader, f"{schema}.a_hot") == []
    again = {name: end.tables[name].generation > 1 for name in every}
    assert {name: again[name] for name in by_moment["live"]} == {
        name: case.again for name, case in by_moment["live"].items()
    }
    faults = []
    for name, case in every.items():  # a table that was read again has the source's columns
        faults += compared(source, reader, name, () if again[name] else case.kept)
    assert faults == []
    for name, case in by_moment["live"].items():
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
    showed of them. The tables of `exact` have format version 2.
    """
    stays = ("ALTER TABLE {t} ADD INDEX i (b), ALTER COLUMN e SET DEFAULT 'y'", "TRUNCATE {t}")
    again = ("ALTER TABLE {t} MODIFY d DATETIME, DROP COLUMN c",)
    both = {"t": COLUMNS_CHANGE, "again": again}
    by_policy = {"exact": both, "ignore": both, "halt": both | {"stays": stays}}
    schemas = {policy: fresh_database(source) for policy in by_policy}
    early = {
        f"{schema}.snapshot_t": Case(name="early", ddl=("ALTER TABLE {t} ADD n INT",)) for schema in schemas.values()
    }
    for name in (*early, *(f"{schemas[policy]}.{table}" for policy, tables in by_policy.items() for table in tables)):
        source.execute(f"CREATE TABLE {name} {CREATE}", rows(name))
    with Mesh(tmp_path, readers=1, writers=1, programs={"reader": ("-c", READER)}) as mesh, writing(mesh):
        pipelines = {
            policy: mesh.pipeline(
                policy,
                source,
                [f"{schema}.*"],
                schema_changes=policy,
                chunk_rows=5,
                table_options=[{"tables": "*.*", "format_version": 2 if policy == "exact" else 3}],
            )
            for policy, schema in schemas.items()
        }
        halts = pipelines["halt"]
        with between_chunks(halts, early):
            for policy, tables in by_policy.items():
                names = [f"{schemas[policy]}.{table}" for table in tables]
                pipelines[policy].until(lambda p=policy, n=names: published(pipelines[p], n), "its publication", 300)
        for policy, tables in by_policy.items():
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
    causes = {name: str(newest.tables[table].cause) for name, table in stopped.items()}
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
    assert "schema_changes: halt stops it there: ALTER TABLE" in str(ends["halt"].tables[stopped].cause)
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
