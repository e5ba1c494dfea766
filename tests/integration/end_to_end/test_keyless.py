"""Tables without a key, appended to the lake (`keyless: append`): the whole way, on both servers, with real Spark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline

FIRST = 200


def test_every_publication_has_each_inserted_row_once(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Two connections insert all the while, each pair of rows equal: a snapshot, then the stream, Spark applies.
    2. A reader gets SIGKILL; 3. the Spark writer ends and another goes on; 4. a column is added.
    5. The inserts end; a savepoint; then a row is updated: quarantined, and `main` stays as it was.
    Each publication has of each connection its first n pairs, whole, and the table's first rows.
    """
    name = f"{fresh_database(source)}.log"
    source.execute(f"CREATE TABLE {name} (who INT, number INT, line TEXT)")
    source.execute(f"INSERT INTO {name} VALUES {', '.join(['(-1, 0, NULL)'] * FIRST)}")
    source.execute("FLUSH BINARY LOGS")
    numbers = (itertools.count(), itertools.count())

    def insert(cursor: Any, luck: Any, writer: int) -> None:
        pair = (writer, next(numbers[writer])) * 2
        cursor.execute(f"INSERT INTO {name} (who, number, line) VALUES (%s, %s, 'same'), (%s, %s, 'same')", pair)

    with Mesh(tmp_path) as mesh, Hammer(source, insert, threads=2, pause_seconds=0.05) as inserting:
        pipeline = mesh.pipeline("keyless", source, [name], interval_seconds=1.0, keyless="append")
        definition: Any = pipeline.store.definition()
        with writing(mesh):
            pipeline.until(lambda: showing(pipeline, name), "the table in a publication", 120)
            mesh.kill(mesh.running("reader")[0])
            mesh.start("reader")
            pipeline.next_epoch(1)
        with writing(mesh):
            moves_on(pipeline)
            savepoint(pipeline, "second")
            source.execute(f"ALTER TABLE {name} ADD COLUMN extra INT")
            moves_on(pipeline)
            savepoint(pipeline, "third")
            inserting.stop()
            pipeline.catches_up(name)
            last = savepoint(pipeline, "last")
            inserted = Counter(source.execute(f"SELECT who, number, line FROM {name}"))
            source.execute(f"UPDATE {name} SET line = 'other' WHERE number = 3")
            pipeline.until(lambda: pipeline.phase(name) == "quarantined", "the quarantine")
            savepoint(pipeline, "after")
    newest: Any = pipeline.checkpoint()
    assert "only its INSERTs" in str(newest.tables[name].cause)
    reader = session.for_pipeline(spark, definition["sink"])
    contents = dict.fromkeys(publication.tables[name].main.content for publication in showing(pipeline, name))
    versions = [snapshot_of(content) for content in contents]
    assert len(versions) >= 3
    for version in versions:
        assert first_pairs(rows(reader, name, version)), f"snapshot {version}"
    assert rows(reader, name, f"'checkpoint_{last}'") == rows(reader, name) == inserted


def moves_on(pipeline: Pipeline) -> None:
    """Wait for a checkpoint at a later position; those soon after a restore are at the place of their base."""
    position = pipeline.checkpoint().position
    pipeline.until(lambda: pipeline.checkpoint().position != position, "a checkpoint at a later position")


def showing(pipeline: Pipeline, name: str) -> list[Any]:
    """The publications that show the table at their own cut."""
    records = pipeline.store.publications()
    return [publication for publication in records if name in publication.tables and publication.tables[name].shown]


def rows(reader: Any, name: str, version: object = None) -> Counter[tuple[Any, ...]]:
    at_version = f" VERSION AS OF {version}" if version is not None else ""
    found = reader.sql(f"SELECT who, number, line FROM lake.{name}{at_version}").toArrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def first_pairs(found: Counter[tuple[Any, ...]]) -> bool:
    """Whether these are the table's first rows, and of each connection its first n pairs."""
    wanted = Counter({(-1, 0, None): FIRST})
    for writer in (0, 1):
        pairs = sum(1 for row in found if row[0] == writer)
        wanted |= Counter({(writer, number, "same"): 2 for number in range(pairs)})
    return found == wanted
