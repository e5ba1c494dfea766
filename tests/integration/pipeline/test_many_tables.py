"""Thousands of tables in one pipeline, on MySQL 9.7: what a process may open, hold or send has a limit."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Database, MySQL
from tests.support.history import content, differences, flushed
from tests.support.mesh import Mesh, Pipeline, place
from tests.support.modelled_lake import cuts

TABLES = """
CREATE PROCEDURE many.made(tables INT)
BEGIN
    DECLARE at INT DEFAULT 0;
    WHILE at < tables DO
        SET @t = CONCAT('many.t', at);
        CALL many.run(CONCAT('CREATE TABLE ', @t, ' (id INT PRIMARY KEY, a INT, b BIGINT, c VARCHAR(40), d CHAR(8),',
            ' e DECIMAL(12,2), f DATETIME, g TEXT)'));
        CALL many.run(CONCAT('INSERT INTO ', @t, ' (id, a, c) VALUES (1, ', at, ', ''one''), (2, ', at, ', ''two''),',
            ' (3, ', at, ', ''three'')'));
        SET at = at + 1;
    END WHILE;
END
"""
CHANGED = """
CREATE PROCEDURE many.changed(tables INT, altered INT)
BEGIN
    DECLARE at INT DEFAULT 0;
    WHILE at < tables DO
        SET @t = CONCAT('many.t', at);
        CALL many.run(CONCAT('UPDATE ', @t, ' SET b = id + ', at, ', c = ''changed'' WHERE id < 3'));
        IF at < altered THEN
            CALL many.run(CONCAT('ALTER TABLE ', @t, ' ADD COLUMN h INT'));
            CALL many.run(CONCAT('INSERT INTO ', @t, ' (id, h) VALUES (4, ', at, ')'));
        END IF;
        CALL many.run(CONCAT('DELETE FROM ', @t, ' WHERE id = 3'));
        SET at = at + 1;
    END WHILE;
END
"""
RUN = """
CREATE PROCEDURE many.run(statement TEXT)
BEGIN
    SET @statement = statement;
    PREPARE prepared FROM @statement;
    EXECUTE prepared;
    DEALLOCATE PREPARE prepared;
END
"""
DESCRIPTORS = 128
WRITER = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
from cutline.common.mesh.host import run_service
from cutline.services.writer.__main__ import main
run_service(main)
"""


@contextlib.contextmanager
def crowded(tables: int) -> Iterator[Database]:
    """A MySQL with so many tables of three rows in the database `many`."""
    # All in one file, which is not synced, they are made in a tenth of the time.
    with MySQL(
        innodb_file_per_table=False,
        innodb_flush_method="nosync",
        innodb_doublewrite=False,
        table_definition_cache=2000,
        table_open_cache=2000,
        innodb_buffer_pool_size="256M",
    ) as server:
        server.execute("CREATE DATABASE many", RUN, TABLES, CHANGED, f"CALL many.made({tables})")
        yield server


def shown(pipeline: Pipeline) -> Counter[str]:
    """How many tables the newest checkpoint has of each phase, and shows."""
    newest = pipeline.checkpoint()
    if newest is None:
        return Counter()
    found = Counter[str](table.phase for table in newest.tables.values())
    found["shown"] = sum(bool(table.show) for table in newest.tables.values())
    return found


@pytest.mark.parametrize(
    ("tables", "altered"),
    [
        pytest.param(1000, 100, marks=pytest.mark.timeout(1200)),
        pytest.param(10_000, 1000, marks=[pytest.mark.full, pytest.mark.timeout(6000)]),
    ],
)
def test_many_tables_go_from_snapshot_to_live_and_are_followed(tables: int, altered: int, tmp_path: Path) -> None:
    """1. Each table is read, goes live and is shown, by writers that may open few files.
    2. Every table changes, and some of them in their columns.
    3. What is shown at the source's end is the source, and no epoch ended on the way.
    """
    patience = 300.0 + tables / 5
    with (
        crowded(tables) as server,
        Mesh(tmp_path, programs={"writer": ("-c", WRITER)}) as mesh,
    ):
        pipeline = mesh.pipeline("many", server, ["many.*"], interval_seconds=2)
        pipeline.until(lambda: shown(pipeline) == {"live": tables, "shown": tables}, "every table is shown", patience)

        server.execute(f"CALL many.changed({tables}, {altered})")
        target = flushed(server)

        def reached() -> bool:
            newest = pipeline.checkpoint()
            return newest is not None and not newest.inside and place(newest) >= target

        pipeline.until(reached, f"a checkpoint at {target}", patience)
        assert shown(pipeline) == {"live": tables, "shown": tables}
        assert len(pipeline.epochs()) == 1, pipeline.progress()
        last = max(cuts(pipeline), key=lambda cut: cut.slot)
        assert last.tables.keys() == {f"many.t{at}" for at in range(tables)}
        faults = {
            name: differing
            for name, table in last.tables.items()
            if (differing := differences(table.content, content(server, name, ["id"]))) or table.doubled
        }
        assert not faults
        assert len(last.tables["many.t0"].schema.columns) == 9
