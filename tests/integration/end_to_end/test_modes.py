"""Modes of lake tables on the whole way, from a source under changes into the lake.

The oracle is the list of changes that the test itself made. It does not know when a chunk was read: whatever that was,
the rows of a key in a log are the row that the chunk has, as the key was after some of its changes, and then all others.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cutline.spark_writer import session
from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh

KEYS = 400
OURS = ("_op", "_seq", "_binlog_file", "_binlog_pos", "_binlog_row", "_gtid", "_committed_at")
State = tuple[int, int, int] | None
"""A row (id, v, part), no two with the same v; None: there is none."""


class Made:
    """The changes that a test made to one table, by key: the row before each and after it."""

    def __init__(self, table: str, inside: Callable[[tuple[int, int, int]], bool]) -> None:
        self.table, self.inside = table, inside
        self.rows: dict[int, State] = {number: (number, number, number % 10) for number in range(KEYS)}
        self.changes: dict[int, list[tuple[State, State]]] = defaultdict(list)
        self.made = KEYS

    def change(self, cursor: Any, luck: random.Random, number: int) -> None:
        """One transaction of a few statements."""
        for _ in range(luck.randrange(1, 4)):
            key = luck.randrange(KEYS)
            before, self.made = self.rows.get(key), self.made + 1
            to, drawn = luck.randrange(KEYS), luck.random()
            if before is None:
                self._do(cursor, f"INSERT INTO {self.table} VALUES (%s, %s, %s)", (key, self.made, luck.randrange(10)))
            elif drawn < 0.2:
                cursor.execute(f"DELETE FROM {self.table} WHERE id = {key}")
                self._note(key, None)
            elif drawn < 0.3 and self.rows.get(to) is None:
                cursor.execute(f"UPDATE {self.table} SET id = {to}, v = {self.made} WHERE id = {key}")
                self._note(key, None)
                self._note(to, (to, self.made, before[2]))
            else:
                row = (key, self.made, luck.randrange(10))
                cursor.execute(f"UPDATE {self.table} SET v = {row[1]}, part = {row[2]} WHERE id = {key}")
                self._note(key, row)

    def _do(self, cursor: Any, statement: str, row: tuple[int, int, int]) -> None:
        cursor.execute(statement, row)
        self._note(row[0], row)

    def _note(self, key: int, after: State) -> None:
        self.changes[key].append((self.rows.get(key), after))
        self.rows[key] = after

    def kept(self, row: State) -> State:
        """The row, if the table's rule keeps it."""
        return row if row is not None and self.inside(row) else None

    def tails(self, key: int, images: str) -> Iterator[list[tuple[str, State]]]:
        """All logs that a key may have, by what its chunk saw."""
        first = (key, key, key % 10)
        changes = [(self.kept(before), self.kept(after)) for before, after in self.changes[key]]
        for at in range(len(changes) + 1):
            seen = changes[at - 1][1] if at else self.kept(first)
            log: list[tuple[str, State]] = [] if seen is None else [("r", seen)]
            for before, after in changes[at:]:
                if before is not None and after is not None:
                    log += ([("-U", before)] if images == "both" else []) + [("+U", after)]
                elif before is not None or after is not None:
                    log.append(("-D", before) if after is None else ("+I", after))
            yield log


def lake(reader: Any, table: str, order: str) -> list[dict[str, Any]]:
    reader.sql(f"REFRESH TABLE lake.{table}")
    return list(reader.sql(f"SELECT * FROM lake.{table} ORDER BY {order}").toArrow().to_pylist())


def is_log(found: list[dict[str, Any]], model: Made, images: str) -> int:
    """Compare a log with what the test did; return how many of its rows are changes."""
    logs: dict[int, list[tuple[str, State]]] = defaultdict(list)
    for row in found:
        logs[row["id"]].append((row["_op"], (row["id"], row["v"], row["part"])))
        assert [row[name] is None for name in OURS[1:5]] == [row["_op"] == "r"] * 4
        assert (row["_committed_at"] is None) == (row["_op"] == "r")
    for key in range(KEYS):
        assert logs[key] in list(model.tails(key, images)), (key, logs[key], model.changes[key])
    places = [(row["_binlog_file"], row["_binlog_pos"], row["_binlog_row"]) for row in found if row["_op"] != "r"]
    assert places == sorted(places)
    return len(places)


def is_marked(found: list[dict[str, Any]], model: Made) -> int:
    """Compare a table with marks with what the test did; return how many rows have one."""
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found)
    for key in range(KEYS):
        row, now = by_key.get(key), model.kept(model.rows.get(key))
        values = None if row is None else (row["id"], row["v"], row["part"])
        if now is not None:
            assert row is not None and values == now
            assert (row["_is_deleted"], row["_deleted_at"]) == (False, None)
        elif row is not None:
            assert row["_is_deleted"] and row["_deleted_at"] is not None
            changes = [(model.kept(before), model.kept(after)) for before, after in model.changes[key]]
            assert values == [before for before, after in changes if before is not None and after is None][-1]
    return sum(row["_is_deleted"] for row in found)


def test_logs_and_tables_with_marks_have_each_change_exactly_once(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Tables of several modes, with and without a rule, are read while they change.
    2. They change on, also while one of them is read again.
    3. A column comes, and a TRUNCATE.
    """
    schema = fresh_database(source)
    tables = {name: Made(f"{schema}.{name}", lambda row: True) for name in ("log", "marks")}
    tables |= {name: Made(f"{schema}.{name}", lambda row: row[2] < 6) for name in ("some", "both", "some_marks")}
    for model in tables.values():
        source.execute(
            f"CREATE TABLE {model.table} (id INT PRIMARY KEY, v INT, part INT)",
            f"INSERT INTO {model.table} VALUES " + ", ".join(f"({n}, {n}, {n % 10})" for n in range(KEYS)),
        )
    options = [
        {"tables": "*.log", "mode": "append", "partition": ["_op"], "format_version": 2},
        {"tables": "*.some", "mode": "append", "where": "part < 6"},
        {"tables": "*.both", "mode": "append", "images": "both", "where": "part < 6", "sort": ["_seq"]},
        {"tables": "*.marks", "mode": "soft-delete", "partition": ["_is_deleted"]},
        {"tables": "*.some_marks", "mode": "soft-delete", "where": "part < 6"},
    ]

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        luck.choice(list(tables.values())).change(cursor, luck, number)

    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        names = [model.table for model in tables.values()]
        pipeline = mesh.pipeline("lake", source, names, chunk_rows=50, chunks="exact", table_options=options)
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])

        def agree(name: str) -> None:
            pipeline.catches_up(*names)
            savepoint(pipeline, name)
            for each, images in (("log", "after"), ("some", "after"), ("both", "both")):
                model = tables[each]
                assert is_log(lake(reader, model.table, "_seq NULLS FIRST"), model, images) > 50
            for each in ("marks", "some_marks"):
                assert is_marked(lake(reader, tables[each].table, "id"), tables[each]) > 10

        with Hammer(source, change, threads=1, pause_seconds=0.002) as hammer:
            pipeline.until(lambda: pipeline.shows(*names), "all to be live")
            pipeline.goes_on(4)
            hammer.stop()
        agree("first")
        log, marks = tables["log"].table, tables["marks"].table
        before = len(lake(reader, log, "_seq"))
        for table in (log, marks):
            source.execute(
                f"ALTER TABLE {table} ADD COLUMN later INT DEFAULT 7",
                f"INSERT INTO {table} VALUES (1000, 1, 2, 3)",
                f"TRUNCATE TABLE {table}",
                f"INSERT INTO {table} VALUES (1001, 1, 2, 3)",
            )
        pipeline.catches_up(*names)
        savepoint(pipeline, "truncated")
        *old, first, truncated, last = lake(reader, log, "_seq NULLS FIRST")
        assert len(old) == before
        assert {row["later"] for row in old} == {7}
        assert [(row["_op"], row["id"], row["later"]) for row in (first, truncated, last)] == [
            ("+I", 1000, 3), ("t", None, None), ("+I", 1001, 3)
        ]  # fmt: skip
        assert [(row["id"], row["later"], row["_is_deleted"]) for row in lake(reader, marks, "id")] == [
            (1001, 3, False)
        ]
        newest = pipeline.checkpoint()
        assert newest is not None
        assert {newest.tables[name].generation for name in names} == {1}
