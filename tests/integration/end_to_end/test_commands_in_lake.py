"""Commands whose effect shows in the lake: a restore, other settings of the sink, tables that leave, a deletion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ConfigError
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.spark_writer import session
from tests.integration.pipeline.test_commands import changing, filled
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.hammer import Hammer
from tests.support.history import content, differences
from tests.support.lakes import writing
from tests.support.mesh import Mesh, Pipeline
from tests.support.operator import command, done, redefined

Fresh = Callable[[Database], str]


def rows(reader: Any, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the lake's table shows, by key."""
    reader.sql(f"REFRESH TABLE lake.{table}")
    found = reader.sql(f"SELECT id, a FROM lake.{table}").toArrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {(row["id"],): row for row in found}


def published(pipeline: Pipeline, n: int) -> None:
    """Wait until checkpoint `n`, or a later one, is published."""
    pipeline.until(lambda: max(pipeline.store.publication_numbers(), default=0) >= n, f"publication {n}", 120)


def settled(pipeline: Pipeline, reader: Any, *tables: str) -> None:
    """The lake shows these tables as the source has them now."""
    published(pipeline, pipeline.catches_up(*tables).slot)

    def differs() -> list[str]:
        return [
            line for name in tables for line in differences(rows(reader, name), content(pipeline.server, name, ["id"]))
        ]

    pipeline.until(lambda: not differs(), "the lake to show the source")


def test_the_lake_goes_back_with_a_restore_and_follows_a_changed_definition(
    mysql: MySQL, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. Two tables are in the lake; a savepoint; they change.
    2. The pipeline is restored to the savepoint, reads the changes again, and the lake is exact.
    3. One table leaves: its lake table stays as it is. The other one is paused: the lake shows its last content.
    4. Both go on; the one that was removed is read again, with what changed meanwhile.
    """
    schema = fresh_database(mysql)
    goes, stays = filled(mysql, schema, "goes", 300), filled(mysql, schema, "stays", 300)
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline("lake", mysql, [goes, stays], interval_seconds=0.5)
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])
        with Hammer(mysql, changing(goes, stays), threads=1, pause_seconds=0.01):
            pipeline.until(lambda: pipeline.shows(goes, stays), "both to be live")
            saved = done(pipeline, "savepoint", name=None)["checkpoint"]
            published(pipeline, saved)
            pipeline.goes_on(3)
            done(pipeline, "restore", checkpoint=saved)
        settled(pipeline, reader, goes, stays)
        options = [{"tables": stays, "properties": {"mine": "yes"}}]
        done(pipeline, "define", **redefined(pipeline, tables=[stays], table_options=options))
        done(pipeline, "pause_table", table=stays)
        pipeline.until(lambda: pipeline.phase(stays) == "paused", "the pause")
        before = rows(reader, goes), rows(reader, stays)
        mysql.execute(f"INSERT INTO {goes} VALUES (5000, 1)", f"INSERT INTO {stays} VALUES (5000, 1)")
        done(pipeline, "checkpoint")
        newest = pipeline.checkpoint()
        assert newest is not None
        published(pipeline, newest.slot)
        assert (rows(reader, goes), rows(reader, stays)) == before
        record = pipeline.store.publication(max(pipeline.store.publication_numbers()))
        assert record is not None
        assert {name: table.state for name, table in record.tables.items()} == {stays: "paused"}
        done(pipeline, "resume_table", table=stays)
        done(pipeline, "define", **redefined(pipeline, tables=[f"{schema}.*"]))
        settled(pipeline, reader, goes, stays)


def test_what_begins_after_a_restore_has_nothing_of_the_generations_that_it_left_behind(
    mysql: MySQL, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. A savepoint of one table. 2. The table is read again in 4 partitions, and another table comes to the lake.
    3. While the pipeline is paused, that one is made again with other columns, and a restore to the savepoint is
    commanded, with 8 partitions. 4. Each begins once more, as it is asked for now.
    """
    schema = fresh_database(mysql)
    stays, later = filled(mysql, schema, "stays", 100), f"{schema}.later"

    def divided(parts: int) -> dict[str, Any]:
        options = [{"tables": stays, "partition": [f"bucket({parts}, id)"]}]
        return redefined(pipeline, table_options=options)

    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline("lake", mysql, [f"{schema}.*"], interval_seconds=0.5)
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])

        def shows(parts: int) -> None:
            settled(pipeline, reader, stays, later)
            (made,) = reader.sql(f"SHOW CREATE TABLE lake.{stays}").toArrow().to_pylist()
            assert f"bucket({parts}, id)" in made["createtab_stmt"]

        pipeline.until(lambda: pipeline.shows(stays), "the table to be live")
        saved = done(pipeline, "savepoint", name=None)["checkpoint"]
        done(pipeline, "define", **divided(4))
        done(pipeline, "read_table_again", table=stays)
        filled(mysql, schema, "later", 10)
        shows(4)
        done(pipeline, "pause")
        mysql.execute(f"DROP TABLE {later}", f"CREATE TABLE {later} (id INT PRIMARY KEY, a VARCHAR(9))")
        mysql.execute(f"INSERT INTO {later} VALUES (1, 'x'), (2, 'y')")
        done(pipeline, "restore", checkpoint=saved)
        done(pipeline, "define", **divided(8))
        done(pipeline, "resume")
        pipeline.until(lambda: pipeline.shows(stays), "the savepoint's generation to be live again")
        done(pipeline, "read_table_again", table=stays)
        shows(8)
        newest = pipeline.checkpoint()
        assert newest is not None
        assert {name: table.generation for name, table in newest.tables.items()} == {stays: 3, later: 3}


@pytest.mark.parametrize("purge", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_deleted_pipeline_leaves_nothing_and_with_a_purge_the_lake_loses_its_tables_and_no_others(
    mariadb: MariaDB, fresh_database: Fresh, spark: Any, tmp_path: Path, purge: bool
) -> None:
    """1. Two pipelines share a lake; one is deleted while its rows change.
    2. Its store and its notes in Redis are gone, and stay so; with `purge` its lake table too, and never the other's.
    3. A pipeline of that name can be made again.
    """
    schema = fresh_database(mariadb)
    ours, theirs = filled(mariadb, schema, "ours", 100), filled(mariadb, schema, "theirs", 100)
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline, other = mesh.pipeline("goes", mariadb, [ours]), mesh.pipeline("stays", mariadb, [theirs])
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])
        settled(pipeline, reader, ours)
        settled(other, reader, theirs)
        with Hammer(mariadb, changing(ours, ours), threads=1, pause_seconds=0.01):
            pipeline.goes_on(1)
            command(pipeline, "delete", purge=purge)
            pipeline.until(lambda: mesh.store.pipelines() == ["stays"], "the deletion", 30)

        def left() -> tuple[list[Path], PipelineStatus]:
            folder = tmp_path / "store" / "goes"
            return [path for path in folder.rglob("*") if path.is_file()], pipeline.status()

        pipeline.until(lambda: left() == ([], PipelineStatus()), "nothing to be left")
        found = {row["tableName"] for row in reader.sql(f"SHOW TABLES IN lake.{schema}").toArrow().to_pylist()}
        assert found == ({"theirs"} if purge else {"ours", "theirs"})
        names = reader.sql("SELECT DISTINCT pipeline FROM lake._cutline.publications").toArrow()["pipeline"]
        assert set(names.to_pylist()) == ({"stays"} if purge else {"goes", "stays"})
        mariadb.execute(f"INSERT INTO {theirs} VALUES (5000, 1)")
        settled(other, reader, theirs)
        assert left() == ([], PipelineStatus())
        if purge:
            again = mesh.pipeline("goes", mariadb, [ours])
            settled(again, reader, ours)
            assert again.store.commands.newest() == 0
        else:
            with pytest.raises(ConfigError, match="in use in this store"):
                mesh.pipeline("stays", mariadb, [ours])
