"""Modes of lake tables on the whole way, from a source under changes into the lake.

The oracle is the list of changes that the test itself made. It does not know when a chunk was read: whatever that was,
the rows of a key in a log are the row that the chunk has, as the key was after some of its changes, and then all the
others.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cutline.common.positions import Position
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from cutline.spark_writer.transform.history import OPEN
from tests.support.databases import Database
from tests.support.hammer import Hammer
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline
from tests.support.operator import done, redefined

KEYS = 400
OPTIONS: dict[str, dict[str, Any]] = {
    "log": {"mode": "append", "partition": ["_op"], "format_version": 2},
    "some": {"mode": "append", "where": "part < 6"},
    "both": {"mode": "append", "images": "both", "where": "part < 6", "sort": ["_seq"]},
    "marks": {"mode": "soft-delete", "partition": ["_is_deleted"]},
    "some_marks": {"mode": "soft-delete", "where": "part < 6"},
    "past": {"mode": "history", "partition": ["_current"], "format_version": 2},
    "some_past": {"mode": "history", "where": "part < 6"},
}
"""The options of the tables, by name."""
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
            assert row is not None
            assert values == now
            assert (row["_is_deleted"], row["_deleted_at"]) == (False, None)
        elif row is not None:
            assert (row["_is_deleted"], row["_deleted_at"] is None) == (True, False)
            changes = [(model.kept(before), model.kept(after)) for before, after in model.changes[key]]
            assert values == [before for before, after in changes if before is not None and after is None][-1]
    return sum(row["_is_deleted"] for row in found)


def has_versions(found: list[dict[str, Any]], model: Made) -> int:
    """Compare a history with what the test did; return how many versions have ended."""
    by_key: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        by_key[row["id"]].append(row)
        ended = row["_to_seq"] < OPEN
        assert [row[name] is None for name in ("_valid_to", "_to_file", "_to_pos")] == [not ended] * 3
        assert row["_current"] != ended
        begun = row["_from_seq"] is not None
        assert [row[name] is None for name in ("_valid_from", "_from_file", "_from_pos")] == [not begun] * 3
    for key in range(KEYS):
        events: list[tuple[str, Any]] = []
        for row in by_key[key]:
            values = (row["id"], row["v"], row["part"])
            follows = events and events[-1] == ("-D", row["_from_seq"])
            events[-1:] = [] if follows else events[-1:]
            events.append((("+U" if follows else "+I") if row["_from_seq"] is not None else "r", values))
            if row["_to_seq"] < OPEN:
                events.append(("-D", row["_to_seq"]))
        plain = [(op, None if op == "-D" else values) for op, values in events]
        logs = [[(op, None if op == "-D" else values) for op, values in log] for log in model.tails(key, "after")]
        assert plain in logs, (key, plain, model.changes[key])
    return sum(not row["_current"] for row in found)


def as_of(found: list[dict[str, Any]], cut: Position) -> list[tuple[int, int, int]]:
    """The rows of a history that were valid at a cut."""

    def passed(file: str | None, offset: int | None) -> bool:
        return file is not None and offset is not None and (file, offset) < (cut.file, cut.offset)

    return [
        (row["id"], row["v"], row["part"])
        for row in found
        if (row["_from_file"] is None or passed(row["_from_file"], row["_from_pos"]))
        and not passed(row["_to_file"], row["_to_pos"])
    ]


def agrees_with_cuts(pipeline: Pipeline, reader: Any, table: str, found: list[dict[str, Any]]) -> int:
    """Compare a history, at the cuts of the newest publications, with the versions that were current there."""
    compared = 0
    for record in pipeline.store.publications()[-6:]:
        shown = record.tables.get(table)
        if shown is None or shown.main is None or (cut := record.position_of(table)) is None:
            continue
        at = f"VERSION AS OF {snapshot_of(shown.main.content)}"
        then = reader.sql(f"SELECT id, v, part FROM lake.{table} {at} WHERE _current ORDER BY id").toArrow().to_pylist()
        assert sorted(as_of(found, cut)) == [tuple(row.values()) for row in then], record.n
        compared += 1
    return compared


def agree(pipeline: Pipeline, reader: Any, tables: dict[str, Made]) -> None:
    """Compare all tables with what the test did."""
    for name, model in tables.items():
        mode = OPTIONS[name]["mode"]
        order = {"append": "_seq NULLS FIRST", "soft-delete": "id", "history": "id, _from_seq NULLS FIRST"}[mode]
        found = lake(reader, model.table, order)
        if mode == "append":
            assert is_log(found, model, OPTIONS[name].get("images", "after")) > 50
        elif mode == "soft-delete":
            assert is_marked(found, model) > 10
        else:
            assert has_versions(found, model) > 50
            assert agrees_with_cuts(pipeline, reader, model.table, found) > 3


def widened_and_truncated(pipeline: Pipeline, reader: Any, log: str, marks: str, past: str) -> None:
    """Let a column come, then a TRUNCATE, and compare."""
    before, versions = (len(lake(reader, table, "id")) for table in (log, past))
    for table in (log, marks, past):
        pipeline.server.execute(
            f"ALTER TABLE {table} ADD COLUMN later INT DEFAULT 7",
            f"INSERT INTO {table} VALUES (1000, 1, 2, 3)",
            f"TRUNCATE TABLE {table}",
            f"INSERT INTO {table} VALUES (1001, 1, 2, 3)",
        )
    pipeline.catches_up(log, marks, past)
    savepoint(pipeline, "truncated")
    *old, first, truncated, last = lake(reader, log, "_seq NULLS FIRST")
    assert len(old) == before
    assert {row["later"] for row in old} == {7}
    assert [(row["_op"], row["id"], row["later"]) for row in (first, truncated, last)] == [
        ("+I", 1000, 3), ("t", None, None), ("+I", 1001, 3)
    ]  # fmt: skip
    *deleted, cut, alive = lake(reader, marks, "id")
    assert {(row["later"], row["_is_deleted"], row["_deleted_at"] is None) for row in deleted} == {(7, True, False)}
    assert [(row["id"], row["later"], row["_is_deleted"]) for row in (cut, alive)] == [
        (1000, 3, True), (1001, 3, False)
    ]  # fmt: skip
    found = lake(reader, past, "_from_seq NULLS FIRST")
    assert len(found) == versions + 2
    assert [(row["id"], row["later"]) for row in found if row["_current"]] == [(1001, 3)]
    assert {row["later"] for row in found[:-2]} == {7}
    assert (found[-2]["id"], found[-2]["later"], found[-2]["_current"]) == (1000, 3, False)
    assert agrees_with_cuts(pipeline, reader, past, found) > 3


def generations(pipeline: Pipeline, names: list[str]) -> list[int]:
    newest = pipeline.checkpoint()
    return [] if newest is None else [newest.tables[name].generation for name in names]


def test_logs_marks_and_versions_have_each_change_exactly_once(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Tables of several modes, with and without a rule, are read while they change, and change on.
    2. A column comes, and a TRUNCATE.
    3. Some get another mode: they are read again, and until then the lake shows them by the old one.
    """
    schema = fresh_database(source)
    tables = {
        name: Made(f"{schema}.{name}", (lambda row: row[2] < 6) if "where" in options else (lambda row: True))
        for name, options in OPTIONS.items()
    }
    for model in tables.values():
        source.execute(
            f"CREATE TABLE {model.table} (id INT PRIMARY KEY, v INT, part INT)",
            f"INSERT INTO {model.table} VALUES " + ", ".join(f"({n}, {n}, {n % 10})" for n in range(KEYS)),
        )
    listed = {name: {"tables": f"*.{name}", **options} for name, options in OPTIONS.items()}

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        luck.choice(list(tables.values())).change(cursor, luck, number)

    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        names = [model.table for model in tables.values()]
        options = list(listed.values())
        pipeline = mesh.pipeline("lake", source, names, chunk_rows=50, chunks="exact", table_options=options)
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])
        with Hammer(source, change, threads=1, pause_seconds=0.002) as hammer:
            pipeline.until(lambda: pipeline.shows(*names), "all to be live")
            changed = hammer.done
            pipeline.until(lambda: hammer.done > changed + 500, "changes past the snapshot")
            hammer.stop()
        pipeline.catches_up(*names)
        savepoint(pipeline, "first")
        agree(pipeline, reader, tables)
        some = [tables[name].table for name in ("log", "marks", "past")]
        widened_and_truncated(pipeline, reader, *some)
        assert generations(pipeline, some) == [1, 1, 1]
        listed |= {"marks": {"tables": "*.marks", "mode": "history"}, "log": {"tables": "*.log"}}
        done(pipeline, "define", **redefined(pipeline, table_options=list(listed.values())))
        pipeline.until(lambda: generations(pipeline, some) == [2, 2, 1], "the next generations")
        pipeline.until(lambda: pipeline.shows(*names), "all to be live again")
        savepoint(pipeline, "changed")
        assert lake(reader, some[0], "id") == [{"id": 1001, "v": 1, "part": 2, "later": 3}]
        assert [(row["id"], row["_current"]) for row in lake(reader, some[1], "id")] == [(1001, True)]
