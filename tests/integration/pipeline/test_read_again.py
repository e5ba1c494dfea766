"""A source that no longer has the binlog a pipeline needs: every table is read again, in the same pipeline."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Database, MariaDB, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline, waited
from tests.support.modelled_lake import cuts
from tests.support.operator import command, done, outcome

KINDS: tuple[type[Database], ...] = (MariaDB, MySQL)
TABLES = ("s.t", "s.u")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A server of the test's own, whose binlog it may remove."""
    with request.param() as server:
        server.execute("CREATE DATABASE s")
        for table in TABLES:
            server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT NOT NULL)")
            server.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)")
        yield server


def purged(server: Database) -> None:
    """All binlog before now is gone."""
    if server.execute("SHOW VARIABLES LIKE 'slave_connections_needed_for_purge'"):
        server.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
    server.execute("FLUSH BINARY LOGS", "INSERT INTO s.u VALUES (10, 10)", "FLUSH BINARY LOGS")
    newest = server.execute("SHOW BINARY LOGS")[-1][0]

    def gone() -> bool:
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return str(server.execute("SHOW BINARY LOGS")[0][0]) == newest

    waited(gone, "the dump that has just ended to let go of the binlog", 30)


def was_reset(server: Database) -> None:
    """The binlog begins again, and its GTIDs too."""
    server.execute("RESET MASTER" if isinstance(server, MariaDB) else "RESET BINARY LOGS AND GTIDS")


LOSSES = (purged, was_reset)


def change(server: Database) -> None:
    """Rows vanish, change and come."""
    server.execute("DELETE FROM s.t WHERE id = 1", "UPDATE s.t SET a = 7 WHERE id = 2", "INSERT INTO s.t VALUES (9, 9)")


def stopped_and_lost(pipeline: Pipeline, loss: Any) -> None:
    """The pipeline is paused, the source goes on, and loses its binlog."""
    pipeline.catches_up(*TABLES)
    done(pipeline, "pause")
    change(pipeline.server)
    loss(pipeline.server)


def equal(pipeline: Pipeline, generation: int = 2) -> None:
    """This generation is live; the newest cut equals the source, and goes on to."""

    def live() -> bool:
        cut = pipeline.checkpoint()
        found = [cut.tables.get(name) for name in TABLES] if cut is not None else [None]
        return all(table is not None and table.show and table.generation == generation for table in found)

    pipeline.until(live, f"generation {generation}")
    for _ in range(2):
        slot = pipeline.catches_up(*TABLES).slot
        cut = next(cut for cut in cuts(pipeline) if cut.slot == slot)
        for table in TABLES:
            assert differences(cut.tables[table].content, content(pipeline.server, table, ["id"])) == []
            assert not cut.tables[table].doubled
        pipeline.server.execute("UPDATE s.t SET a = a + 1", "REPLACE INTO s.u VALUES (77, 1)")






@pytest.mark.parametrize("loss", LOSSES)
def test_a_pipeline_that_halted_for_a_lost_binlog_goes_on_by_its_command(
    server: Database, loss: Any, tmp_path: Path
) -> None:
    """1. The binlog is gone while the pipeline is paused. 2. Resumed, it halts; the cause names the command; started,
    it halts again. 3. The command begins the next generations, which equal the source, and the pipeline goes on. 4. A
    leader that dies meanwhile changes nothing."""
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", server, TABLES)
        stopped_and_lost(pipeline, loss)

        def halted() -> str:
            return str(pipeline.status().enumerator.halted or "")

        for kind in ("resume", "start"):
            before = len(pipeline.epochs())
            done(pipeline, kind)
            pipeline.until(lambda before=before: len(pipeline.epochs()) > before + 1, f"two epochs after {kind}")
            pipeline.until(halted, "it to halt")
        assert "cutline pipeline read-again shop" in halted()
        refusal = outcome(pipeline, command(pipeline, "read_table_again", table="s.t"))
        assert refusal.state == "refused"
        before = len(pipeline.epochs())
        accepted = command(pipeline, "read_again")
        pipeline.until(lambda: len(pipeline.epochs()) > before, "the epoch that begins anew")
        mesh.kill(mesh.leader(pipeline))
        mesh.start("enumerator")
        assert outcome(pipeline, accepted).state == "done"
        equal(pipeline)
        newest = pipeline.checkpoint()
        assert newest is not None
        assert min(table.generation for table in newest.tables.values()) >= 2
        pipeline.until(
            lambda: (now := pipeline.status().enumerator).at is not None and now.halted is None, "no more halt"
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_pipeline_may_read_every_table_again_by_itself(server: Database, loss: Any, tmp_path: Path) -> None:
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", server, TABLES, source={"lost_position": "read-again"})
        stopped_and_lost(pipeline, loss)
        done(pipeline, "resume")
        equal(pipeline)
        assert [epoch.anew for epoch in pipeline.epochs() if epoch.anew] == ["lost"]


def test_a_paused_pipeline_reads_every_table_again_once_it_goes_on_and_a_running_one_at_once(
    server: Database, tmp_path: Path
) -> None:
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", server, TABLES)
        stopped_and_lost(pipeline, purged)
        done(pipeline, "read_again")
        assert len([epoch for epoch in pipeline.epochs() if epoch.anew]) == 0
        done(pipeline, "resume")
        equal(pipeline)
        done(pipeline, "read_again")
        equal(pipeline, generation=3)
        assert [epoch.anew for epoch in pipeline.epochs() if epoch.anew] == ["asked"] * 2


def test_a_restore_to_where_the_source_no_longer_has_the_binlog_is_refused_and_changes_nothing(
    server: Database, tmp_path: Path
) -> None:
    """1. The binlog after an earlier checkpoint is gone: the restore names the place and what helps, and the pipeline
    goes on in its epoch. 2. A later checkpoint can be restored. 3. While the server hangs, a restore is carried out,
    and says that the server could not be asked."""
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", server, TABLES)
        earlier = pipeline.catches_up(*TABLES)
        change(server)
        pipeline.catches_up(*TABLES)
        purged(server)
        epochs = len(pipeline.epochs())
        refusal = outcome(pipeline, command(pipeline, "restore", checkpoint=earlier.slot))
        assert refusal.state == "refused"
        assert f"the source can't go on at {earlier.position}" in str(refusal.cause)
        assert "purged" in str(refusal.cause)
        assert "cutline pipeline read-again shop" in str(refusal.remedy)
        later = pipeline.catches_up(*TABLES)
        assert len(pipeline.epochs()) == epochs
        assert done(pipeline, "restore", checkpoint=later.slot) == {"checkpoint": later.slot}
        pipeline.catches_up(*TABLES)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            found = done(pipeline, "restore", checkpoint=later.slot)
            assert found["warning"].startswith("the source could not be asked whether it still has the binlog after")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        pipeline.catches_up(*TABLES)
