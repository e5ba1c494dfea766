"""Commands to a running pipeline: none is lost, none stops what it does not concern, and content stays exact."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.records import EpochEntry
from tests.support.databases import Database, MariaDB
from tests.support.hammer import Hammer
from tests.support.history import History, content, differences, judge
from tests.support.mesh import Mesh, Pipeline
from tests.support.modelled_lake import cuts
from tests.support.operator import command, done, outcome, redefined, refused

Fresh = Callable[[Database], str]
COLUMNS = (("id", "a"), ("id",))


def filled(source: Database, schema: str, name: str, rows: int) -> str:
    """Create a table of two integers with this many rows."""
    table = f"{schema}.{name}"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT NOT NULL)")
    for start in range(0, rows, 5000):
        values = ", ".join(f"({n}, 0)" for n in range(start, min(rows, start + 5000)))
        source.execute(f"INSERT INTO {table} VALUES {values}")
    return table


def changing(*tables: str, keys: int = 400) -> Callable[[Any, random.Random, int], None]:
    """A transaction that changes a few rows of each table."""

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        for table in tables:
            key = luck.randrange(keys)
            if luck.random() < 0.3:
                cursor.execute(f"DELETE FROM {table} WHERE id = {key}")
            else:
                cursor.execute(f"REPLACE INTO {table} VALUES ({key}, {luck.randrange(1000)})")

    return change


def equal(pipeline: Pipeline, table: str) -> list[str]:
    """How the newest cut that shows the table at the source's end differs from the source."""
    slot = pipeline.catches_up(table).slot
    shown = next(cut for cut in cuts(pipeline) if cut.slot == slot).tables[table]
    return differences(shown.content, content(pipeline.server, table, ["id"]))


def test_commands_survive_the_death_of_the_leader_and_an_emptied_redis(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table is live, and a large one's snapshot is held back by a limit.
    2. A person pauses a table, wants a savepoint, adds a table, and lifts the limit; at once the leader is killed and
    Redis emptied.
    3. Another leader carries all of it out, in order. The added table has its history; the other snapshot goes on.
    """
    schema = fresh_database(source)
    small, large, added = (filled(source, schema, *what) for what in (("first", 50), ("large", 2500), ("new", 500)))
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("kept", source, [small, large], snapshot={"max_rows_per_second": 300})
        pipeline.until(lambda: pipeline.shows(small), "the small table to be live")
        done(pipeline, "limits", rows_per_second=100, bytes_per_second=None)
        leader = mesh.leader(pipeline)
        accepted = [
            command(pipeline, "pause_table", table=small),
            command(pipeline, "savepoint", name="before"),
            command(pipeline, "define", **redefined(pipeline, tables=[small, large, added])),
            command(pipeline, "limits", rows_per_second=None, bytes_per_second=None),
            command(pipeline, "pause_table", table="nowhere.at_all"),
        ]
        mesh.kill(leader)
        with mesh.redis.client() as client:
            client.flushall()
        assert pipeline.phase(large) != "live"
        mesh.start("enumerator")
        states = [outcome(pipeline, each) for each in accepted]
        assert [each.state for each in states] == ["done", "done", "done", "done", "refused"]
        assert states[2].result == {"version": 2}
        saved = pipeline.store.entry(states[1].result["checkpoint"])
        assert (saved.kept, saved.name) == (True, "before")  # type: ignore[union-attr]
        assert states[4].orders.definition == 2
        assert [each.at for each in states] == sorted(each.at for each in states)
        assert equal(pipeline, large) == equal(pipeline, added) == []
        assert {epoch.definition for epoch in pipeline.epochs()} == {1, 2}
        pipeline.until(lambda: pipeline.phase(small) == "paused", "the pause")
        source.execute(f"INSERT INTO {small} VALUES (1000, 1)")
        pipeline.catches_up(large)
        assert pipeline.phase(small) == "paused"
        done(pipeline, "resume_table", table=small)
        assert equal(pipeline, small) == []
        newest = pipeline.checkpoint()
        assert newest is not None
        assert {table.generation for table in newest.tables.values()} == {1}


def test_a_pipeline_that_is_deleted_and_made_again_runs_although_its_epochs_begin_anew(
    mariadb: MariaDB, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A pipeline gets far, and is deleted.  2. One of its name is run by the same services, from epoch 1 on."""
    table = filled(mariadb, fresh_database(mariadb), "t", 50)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("again", mariadb, [table])
        pipeline.until(lambda: pipeline.shows(table), "the table to be live")
        done(pipeline, "stop", savepoint=None)
        done(pipeline, "start")
        pipeline.next_epoch(1)
        command(pipeline, "delete", purge=False)
        pipeline.until(lambda: not mesh.store.pipelines() and pipeline.status() == PipelineStatus(), "the deletion")
        pipeline = mesh.pipeline("again", mariadb, [table])
        assert equal(pipeline, table) == []


@pytest.mark.full
def test_a_table_is_paused_and_resumed_without_being_read_again_and_every_cut_is_exact(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """Two tables are changed by the same transactions, and one is paused and resumed several times meanwhile."""
    schema, history = fresh_database(source), History(source)
    paused, other = filled(source, schema, "paused", 400), filled(source, schema, "other", 400)
    with Mesh(tmp_path, readers=1, writers=2) as mesh:
        pipeline = mesh.pipeline("pauses", source, [f"{schema}.*"], interval_seconds=0.3)
        with Hammer(source, changing(paused, other), threads=2, pause_seconds=0.005):
            pipeline.until(lambda: pipeline.shows(paused, other), "both to be live")
            for _ in range(3):
                done(pipeline, "pause_table", table=paused)
                pipeline.until(lambda: pipeline.phase(paused) == "paused", "the pause")
                pipeline.goes_on(2)
                assert pipeline.shows(other)
                done(pipeline, "resume_table", table=paused)
                pipeline.until(lambda: pipeline.shows(paused), "the table to be live again")
        assert equal(pipeline, paused) == equal(pipeline, other) == []
        found, faults = judge(pipeline, history, {paused: COLUMNS, other: COLUMNS})
        assert faults == []
        assert {cut.entry.tables[paused].generation for cut in found if paused in cut.entry.tables} == {1}
        assert len(pipeline.epochs()) == 1
        assert "is not paused" in refused(pipeline, "resume_table", table=paused)


@pytest.mark.full
def test_a_pipeline_is_paused_stopped_started_and_taken_back_to_a_savepoint(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. It is paused: nothing is taken until it is resumed, also by a new leader.
    2. It is stopped with a savepoint, refuses what needs it to run, and starts again.
    3. It is restored to that savepoint, and every cut of its line is exact. An unknown checkpoint is refused.
    """
    schema, history = fresh_database(source), History(source)
    table = filled(source, schema, "one", 400)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("stops", source, [table], interval_seconds=0.3)
        with Hammer(source, changing(table), threads=2, pause_seconds=0.005):
            pipeline.until(lambda: pipeline.shows(table), "the table to be live")
            done(pipeline, "pause")
            assert "is paused" in refused(pipeline, "pause")
            mesh.kill(mesh.leader(pipeline))
            mesh.start("enumerator")
            before = len(pipeline.entries())
            assert "is paused" in refused(pipeline, "checkpoint")
            assert len(pipeline.entries()) == before
            assert pipeline.status().enumerator.mode == "paused"
            done(pipeline, "resume")
            pipeline.goes_on(2)
            saved = done(pipeline, "stop", savepoint="for later")
            assert pipeline.store.commands.orders().mode == "stopped"
            assert "is stopped" in refused(pipeline, "pause_table", table=table)
            done(pipeline, "start")
            pipeline.goes_on(3)
            assert "can't be restored" in refused(pipeline, "restore", checkpoint=100_000)
            epochs = len(pipeline.epochs())
            assert done(pipeline, "restore", checkpoint=saved["checkpoint"]) == {"checkpoint": saved["checkpoint"]}
            assert pipeline.epochs()[epochs].base == saved["checkpoint"]
            pipeline.goes_on(2)
            asked = command(pipeline, "stop", savepoint=None)
            back = command(pipeline, "restore", checkpoint=saved["checkpoint"])
            assert [outcome(pipeline, each).state for each in (asked, back)] == ["done", "done"]
            assert pipeline.store.commands.orders().base == saved["checkpoint"]
            done(pipeline, "start")
            assert pipeline.epochs()[-1].base == saved["checkpoint"]
            assert pipeline.store.commands.orders().base is None
            done(pipeline, "delete_savepoint", checkpoint=saved["checkpoint"])
            assert "is no savepoint" in refused(pipeline, "delete_savepoint", checkpoint=saved["checkpoint"])
        assert equal(pipeline, table) == []
        assert judge(pipeline, history, {table: COLUMNS})[1] == []


@pytest.mark.full
def test_a_definition_removes_a_table_and_brings_it_back_as_its_next_generation(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. A table leaves the definition: it is in no later checkpoint, and the other goes on.
    2. A change made from an older version is refused, as is one of a setting that rows depend on.
    3. The table comes back, with what changed meanwhile, as generation 2; then it is read again, as generation 3.
    """
    schema = fresh_database(source)
    goes, stays = filled(source, schema, "goes", 300), filled(source, schema, "stays", 300)
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("changes", source, [goes, stays], interval_seconds=0.3)
        with Hammer(source, changing(goes, stays), threads=2, pause_seconds=0.005):
            pipeline.until(lambda: pipeline.shows(goes, stays), "both to be live")
            old = redefined(pipeline, tables=[goes, stays], checkpoint={"interval_seconds": 0.2})
            assert done(pipeline, "define", **redefined(pipeline, tables=[stays])) == {"version": 2}
            pipeline.until(lambda: pipeline.phase(goes) is None, "the table to leave")
            pipeline.goes_on(2)
            assert "was changed meanwhile" in refused(pipeline, "define", **old)
            fixed = redefined(pipeline, keyless="append")
            assert "keyless can't be changed" in refused(pipeline, "define", **fixed)
            assert "not valid" in refused(pipeline, "define", base=2, definition={"name": "changes"}, note=None)
            assert done(pipeline, "define", **redefined(pipeline, tables=[f"{schema}.*"])) == {"version": 3}
            pipeline.until(lambda: pipeline.shows(goes), "the table to be back")
            assert done(pipeline, "read_table_again", table=goes) == {}
        assert equal(pipeline, goes) == equal(pipeline, stays) == []
        newest = pipeline.checkpoint()
        assert newest is not None
        assert (newest.tables[goes].generation, newest.tables[stays].generation) == (3, 1)
        entries = pipeline.entries()
        assert [entry.definition for entry in entries if isinstance(entry, EpochEntry)] == [1, 2, 3]
        assert [each.version for each in pipeline.store.versions()] == [1, 2, 3]
