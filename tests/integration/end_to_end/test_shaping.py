"""Rules of tables on the whole way, from a source under changes into the lake, and a rule that is changed meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lakes import held, savepoint, writing
from tests.support.mesh import Mesh, Pipeline, connection
from tests.support.operator import done, redefined

FIRST = {
    "select": ["id", "upper(name) AS name", "salary * 12 AS yearly", "year(born) AS born"],
    "where": "salary >= 500",
}
SECOND = {"select": ["* EXCEPT (born)", "salary < 100 AS little"], "where": "salary < 500 OR salary IS NULL"}
AT_SOURCE = {
    "first": "SELECT id, UPPER(name) AS name, salary * 12 AS yearly, YEAR(born) AS born FROM {} WHERE salary >= 500",
    "second": "SELECT id, name, salary, salary < 100 AS little FROM {} WHERE salary < 500 OR salary IS NULL",
    "whole": "SELECT id, name, salary, born FROM {}",
}


def changing(table: str) -> Callable[[Any, random.Random, int], None]:
    """A transaction that lets rows enter and leave the conditions, go and come."""

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        key, salary = luck.randrange(700), luck.choice([luck.randrange(1000), "NULL"])
        if luck.random() < 0.2:
            cursor.execute(f"DELETE FROM {table} WHERE id = {key}")
        else:
            cursor.execute(f"REPLACE INTO {table} VALUES ({key}, 'n{number}', {salary}, '2001-02-03')")

    return change


def at_source(pipeline: Pipeline, table: str, which: str) -> list[tuple[Any, ...]]:
    with closing(connection(pipeline.server)) as conn, conn.cursor() as cursor:
        cursor.execute(AT_SOURCE[which].format(table))
        return sorted((tuple(row) for row in cursor.fetchall()), key=lambda row: str(row[0]))


def in_lake(reader: Any, table: str, snapshot: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
    reader.sql(f"REFRESH TABLE lake.{table}")
    version = "" if snapshot is None else f" VERSION AS OF {snapshot}"
    found = reader.sql(f"SELECT * FROM lake.{table}{version}").toArrow()
    return found.column_names, sorted((tuple(row.values()) for row in found.to_pylist()), key=lambda row: str(row[0]))


def printed(row: tuple[Any, ...]) -> tuple[str | None, ...]:
    """A row of the lake as the source prints it."""
    return tuple(None if value is None else str(int(value) if isinstance(value, bool) else value) for value in row)


def looks_of(pipeline: Pipeline, reader: Any, people: str) -> list[list[str]]:
    """The columns that each publication shows; all rows are by the rule to which these belong."""
    looks = []
    for record in pipeline.store.publications():
        shown = record.tables.get(people)
        if shown is not None and shown.main is not None:
            names, rows = in_lake(reader, people, snapshot_of(shown.main.content))
            if names == ["id", "name", "yearly", "born"]:
                assert all(row[2] >= 6000 for row in rows)
            elif names == ["id", "name", "salary", "little"]:
                assert all(row[2] is None or row[2] < 500 for row in rows)
            else:
                assert names == ["id", "name", "salary", "born"]
            looks.append(names)
    return looks


def test_a_table_has_its_rule_from_the_first_row_on_and_a_changed_rule_holds_for_old_rows_too(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. A table with a rule and one without are copied while the first changes.
    2. The rule is changed, while the table changes.
    3. A rule that Spark refuses holds that table back, and the lake goes on showing it.
    4. The rule is taken away.
    Whatever the lake shows at any publication is by one rule alone, and at the end of each step it is what the source
    itself makes of the rows.
    """
    schema = fresh_database(source)
    people, plain = f"{schema}.people", f"{schema}.plain"
    for table in (people, plain):
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(40), salary DECIMAL(10, 2), born DATE)",
            f"INSERT INTO {table} VALUES " + ", ".join(f"({n}, 'n', {n}, '2000-01-01')" for n in range(600)),
        )
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        options = [{"tables": people, **FIRST}]
        pipeline = mesh.pipeline("lake", source, [people, plain], interval_seconds=0.5, table_options=options)
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])

        numbers = itertools.count()

        def agree(which: str) -> None:
            pipeline.catches_up(people, plain)
            savepoint(pipeline, f"{which}-{next(numbers)}")
            for table, rule in ((people, which), (plain, "whole")):
                assert [printed(row) for row in in_lake(reader, table)[1]] == at_source(pipeline, table, rule)

        with Hammer(source, changing(people), threads=1, pause_seconds=0.01) as hammer:
            pipeline.until(lambda: pipeline.shows(people, plain), "both to be live")
            pipeline.goes_on(3)
            hammer.stop()
            agree("first")
            generation = pipeline.generation(people)
            source.execute(f"ALTER TABLE {people} ADD COLUMN later INT DEFAULT 7")
            pipeline.until(lambda: pipeline.generation(people) > generation, "it to be read again with its column")
            pipeline.until(lambda: pipeline.shows(people), "it to be live again")
            agree("first")
            source.execute(f"ALTER TABLE {people} DROP COLUMN later")
            pipeline.until(lambda: pipeline.generation(people) > generation + 1, "it to be read without it")
            pipeline.until(lambda: pipeline.shows(people), "it to be live without it")
        with Hammer(source, changing(people), threads=1, pause_seconds=0.01) as hammer:
            done(pipeline, "define", **redefined(pipeline, table_options=[{"tables": people, **SECOND}]))
            generation = pipeline.generation(people)
            pipeline.until(lambda: pipeline.generation(people) > generation, "the next generation")
            pipeline.until(lambda: pipeline.shows(people), "it to be live")
            hammer.stop()
            agree("second")
        broken = [{"tables": people, "select": ["id", "nothing"]}]
        done(pipeline, "define", **redefined(pipeline, table_options=broken))
        pipeline.until(lambda: "nothing" in held(pipeline, people), "the quarantine by a broken rule")
        assert in_lake(reader, people)[0] == ["id", "name", "salary", "little"]
        assert held(pipeline, plain) == ""
        done(pipeline, "define", **redefined(pipeline, table_options=[]))
        generation = pipeline.generation(people)
        pipeline.until(lambda: pipeline.generation(people) > generation, "the next generation")
        pipeline.until(lambda: pipeline.shows(people), "it to be live")
        agree("whole")
        assert pipeline.generation(plain) == 1
    looks = looks_of(pipeline, reader, people)
    assert [names for at, names in enumerate(looks) if at == 0 or names != looks[at - 1]] == [
        ["id", "name", "yearly", "born"], ["id", "name", "salary", "little"], ["id", "name", "salary", "born"]
    ]  # fmt: skip
