"""Another key than the source's, computed by a Python function, on the whole way from a source under changes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lake_tables import lake_table
from tests.support.lakes import held, savepoint, writing
from tests.support.mesh import Mesh, connection
from tests.support.operator import done, redefined

MODULE = """
import pyarrow.compute as pc

def place(code):
    return pc.add(pc.multiply(code, 2), 1)
"""
FUNCTIONS = {"place": {"call": "seat_functions:place", "type": "int"}}


def changing(table: str) -> Callable[[Any, random.Random, int], None]:
    """A transaction that lets rows come and go, and codes pass from row to row; no two rows have one at its end."""

    numbers = itertools.count()

    def change(cursor: Any, luck: random.Random, _: int) -> None:
        number = next(numbers)
        first_id, second_id = luck.sample(range(300), 2)
        cursor.execute(f"SELECT id, code FROM {table} WHERE id IN ({first_id}, {second_id}) ORDER BY id FOR UPDATE")
        found = cursor.fetchall()
        if len(found) < 2 or luck.random() < 0.2:
            cursor.execute(f"DELETE FROM {table} WHERE id = {first_id}")
            cursor.execute(f"INSERT INTO {table} VALUES ({first_id}, {1000 + number}, 'n{number}')")
            return
        (first_id, first), (second_id, second) = found
        cursor.execute(f"UPDATE {table} SET code = -1 WHERE id = {first_id}")
        cursor.execute(f"UPDATE {table} SET code = {first} WHERE id = {second_id}")
        cursor.execute(f"UPDATE {table} SET code = {second}, note = 'n{number}' WHERE id = {first_id}")

    return change


def rows_of(warehouse: str, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake_table(warehouse, table).scan().to_arrow().to_pylist())


def test_keys_pass_from_row_to_row_and_two_rows_with_one_are_named_until_the_key_tells_them_apart(
    source: Database, fresh_database: Callable[[Database], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = fresh_database(source)
    seats, guests = f"{schema}.seats", f"{schema}.guests"
    (tmp_path / "seat_functions.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source.execute(
        f"CREATE TABLE {seats} (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, note VARCHAR(40))",
        f"INSERT INTO {seats} VALUES " + ", ".join(f"({n}, {n}, 'n')" for n in range(200)),
        f"CREATE TABLE {guests} (id INT PRIMARY KEY, name VARCHAR(40))",
        f"INSERT INTO {guests} VALUES (1, 'Ada'), (2, 'Alan')",
    )
    options = [
        {"tables": seats, "select": ["id", "place(code) AS place", "note"], "key": ["place"]},
        {"tables": guests, "key": ["name"]},
    ]
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        more = yaml.safe_dump({"functions": FUNCTIONS})
        pipeline = mesh.pipeline("lake", source, [seats, guests], more, chunks="exact", table_options=options)
        warehouse = (pipeline.store.definition() or {})["sink"]["warehouse"]
        with Hammer(source, changing(seats), threads=1, pause_seconds=0.005) as hammer:
            pipeline.until(lambda: pipeline.shows(seats, guests), "both to be live")
            pipeline.goes_on(4)
            hammer.stop()
        pipeline.catches_up(seats, guests)
        savepoint(pipeline, "swapped")
        assert hammer.done > 50
        with closing(connection(pipeline.server)) as conn, conn.cursor() as cursor:
            cursor.execute(f"SELECT id, code * 2 + 1, note FROM {seats} ORDER BY id")
            at_source = [tuple(map(str, row)) for row in cursor.fetchall()]
        assert sorted(tuple(map(str, row)) for row in rows_of(warehouse, seats)) == sorted(at_source)
        source.execute(f"INSERT INTO {guests} VALUES (3, 'Ada')")
        pipeline.until(lambda: held(pipeline, guests), "the quarantine of two rows with one key")
        assert "with id 1 and with id 3, have one key of the lake table (name 'Ada')" in held(pipeline, guests)
        assert rows_of(warehouse, guests) == [(1, "Ada"), (2, "Alan")]
        options[1]["key"] = ["name", "id"]
        done(pipeline, "define", **redefined(pipeline, table_options=options))
        pipeline.until(lambda: not held(pipeline, guests) and pipeline.shows(guests), "it to be live by its next key")
        savepoint(pipeline, "told-apart")
        assert rows_of(warehouse, guests) == [(1, "Ada"), (2, "Alan"), (3, "Ada")]
        assert held(pipeline, seats) == ""
