"""Tables that are dropped at the source: no fault, whatever they were doing; and they come back by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.databases import Database, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]


def phases(pipeline: Pipeline) -> dict[str, tuple[str, int]]:
    """Phase and generation of each table in the newest checkpoint."""
    newest = pipeline.checkpoint()
    return {name: (table.phase, table.generation) for name, table in newest.tables.items()} if newest else {}


def equal(pipeline: Pipeline, slot: int, tables: list[str]) -> list[str]:
    """How that checkpoint's tables differ from the source now."""
    last = next(cut for cut in cuts(pipeline) if cut.slot == slot)
    return [
        line
        for name in tables
        for line in differences(last.tables[name].content, content(pipeline.server, name, ["id"]))
    ]


def test_a_table_that_is_dropped_is_no_fault_in_any_phase_and_comes_back_when_it_is_made_again(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Live tables are dropped; renamed away, to a name that is included and to one that is not; go with their
    database; swapped as by gh-ost, which is no drop; one is quarantined first. Others stay.
    2. Most are made again, some with other columns, one without a key: each is read as a later generation.
    """
    schema, other, aside = fresh_database(source), fresh_database(source), fresh_database(source)
    names = ("stays", "dropped", "away", "within", "swapped", "faulty", "keyless")
    tables = {name: f"{schema}.{name}" for name in names} | {"far": f"{other}.far"}
    for name in (*tables.values(), f"{schema}._swapped_gho"):
        source.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    included = [f"{schema}.*", f"{other}.far", f"!{schema}._*"]
    gone = {tables[name] for name in ("dropped", "away", "within", "faulty", "keyless", "far")}

    def rest_is(wanted: dict[str, str]) -> bool:
        phases_now = phases(pipeline)
        return all(phases_now.get(table, ("",))[0] == phase for table, phase in wanted.items())

    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("drops", source, included)
        pipeline.until(lambda: pipeline.shows(*tables.values()), "all tables to be shown")
        with source.connect(database=schema) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute("UPDATE faulty SET a = 7 WHERE id = 1")
        pipeline.until(lambda: rest_is({tables["faulty"]: "quarantined"}), "the quarantine")
        source.execute(
            f"DROP TABLE {tables['dropped']}, {tables['faulty']}, {tables['keyless']}",
            f"RENAME TABLE {tables['away']} TO {aside}.away",
            f"RENAME TABLE {tables['within']} TO {schema}.renamed",
            f"RENAME TABLE {tables['swapped']} TO {schema}._swapped_del, {schema}._swapped_gho TO {tables['swapped']}",
            f"DROP DATABASE {other}",
        )
        pipeline.until(lambda: rest_is(dict.fromkeys(gone, "dropped")), "the drops", 90)
        checkpoint = pipeline.catches_up(tables["stays"], tables["swapped"], f"{schema}.renamed")
        assert {name for name, table in checkpoint.tables.items() if table.phase == "dropped"} == gone
        assert equal(pipeline, checkpoint.slot, [tables["swapped"], f"{schema}.renamed"]) == []
        assert all("keeps its last content" in str(checkpoint.tables[name].cause) for name in gone)
        source.execute(
            f"CREATE TABLE {tables['dropped']} (id INT PRIMARY KEY, other VARCHAR(9))",
            f"INSERT INTO {tables['dropped']} VALUES (7, 'x')",
            f"RENAME TABLE {aside}.away TO {tables['away']}",
            f"CREATE TABLE {tables['faulty']} (id INT PRIMARY KEY, a INT)",
            f"CREATE TABLE {tables['keyless']} (id INT)",
            f"CREATE DATABASE {other}",
            f"CREATE TABLE {tables['far']} (id INT PRIMARY KEY, a INT)",
            f"INSERT INTO {tables['far']} VALUES (3, 3)",
        )
        back = [tables[name] for name in ("dropped", "away", "faulty", "far")]
        checkpoint = pipeline.catches_up(*back, seconds=90)
        assert all(checkpoint.tables[name].generation > 1 for name in back)
        assert equal(pipeline, checkpoint.slot, back) == []
        pipeline.until(lambda: rest_is({tables["keyless"]: "quarantined"}), "the one without a key to be told")
        source.execute(f"DROP TABLE {tables['keyless']}")
        pipeline.until(lambda: rest_is({tables["keyless"]: "dropped", tables["within"]: "dropped"}), "its drop", 30)
        assert len(pipeline.epochs()) == 1


def test_a_table_whose_select_is_revoked_is_quarantined_and_not_taken_for_one_that_is_dropped(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table is live for a user who may read that table alone. 2. It may not any more, and a DDL has it read again.
    3. It may again."""
    schema = fresh_database(source)
    table, kept, user = f"{schema}.t", f"{schema}.kept", f"u{schema[-6:]}"
    for name in (table, kept):
        source.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT)", f"INSERT INTO {name} VALUES (1, 1)")
    grants = [f"GRANT SELECT ON {name} TO {user}" for name in (table, kept)]
    replicate = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO"
    source.execute(f"CREATE USER {user} IDENTIFIED BY 'cdc-secret'", f"{replicate} {user}", *grants)
    if isinstance(source, MySQL):
        source.execute(f"GRANT XA_RECOVER_ADMIN ON *.* TO {user}")
    try:
        with Mesh(tmp_path, readers=1, writers=1) as mesh:
            pipeline = mesh.pipeline("hides", source, [f"{schema}.*"], user=user)
            pipeline.until(lambda: pipeline.shows(table, kept), "the tables to be shown")
            source.execute(f"REVOKE SELECT ON {table} FROM {user}", f"ALTER TABLE {table} MODIFY a DOUBLE")
            pipeline.until(lambda: phases(pipeline).get(table) == ("quarantined", 2), "the quarantine")
            newest: Any = pipeline.checkpoint()
            assert "GRANT SELECT" in str(newest.tables[table].cause)
            source.execute(grants[0])
            pipeline.catches_up(table, kept)
    finally:
        source.execute(f"DROP USER {user}")
