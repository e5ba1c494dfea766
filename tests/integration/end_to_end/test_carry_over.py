"""Tables with modes that are read again under changes, on the whole way, and what they keep.

What a key's row was between two generations is not known, so the oracle is not the list of changes: it is the source at
the end, and what the lake showed at each cut before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from cutline.spark_writer import session
from cutline.spark_writer.transform.history import OPEN
from tests.integration.end_to_end.test_modes import agrees_with_cuts, lake
from tests.support.databases import Database, MariaDB
from tests.support.hammer import Hammer
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline, connection
from tests.support.operator import done, redefined

KEYS = 300
OPTIONS: dict[str, dict[str, Any]] = {
    "log": {"mode": "append"},
    "marks": {"mode": "soft-delete", "where": "part < 9"},
    "past": {"mode": "history", "where": "part < 9", "partition": ["_current"]},
}


def at_source(pipeline: Pipeline, table: str, where: str) -> list[tuple[int, ...]]:
    with closing(connection(pipeline.server)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT id, v, part FROM {table} WHERE {where}")
        return sorted(tuple(map(int, row)) for row in cursor.fetchall())


def plain(rows: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return sorted((row["id"], row["v"], row["part"]) for row in rows)


class Seen:
    """The rows of the lake at one time; `agree` compares them with the source and with those of the time before."""

    def __init__(self, pipeline: Pipeline, reader: Any, names: list[str]) -> None:
        self.log, self.marks, self.past = (lake(reader, name, "id") for name in names)
        self.names, self.pipeline, self.reader = names, pipeline, reader

    def agree(self, wheres: list[str], before: Seen | None) -> None:
        sources = [at_source(self.pipeline, name, where) for name, where in zip(self.names, wheres, strict=True)]
        newest = max((placed(row) for row in self.log if row["_op"] == "r"), default=(-1, "", 0))
        last: dict[int, dict[str, Any]] = {}
        for row in sorted(self.log, key=placed):  # the newest snapshot, and the changes behind it
            behind = placed(row) == newest if row["_op"] == "r" else placed(row)[0] > newest[0]
            last |= {row["id"]: row} if behind else {}
        assert plain([row for row in last.values() if row["_op"] != "-D"]) == sources[0]
        assert plain([row for row in self.marks if not row["_is_deleted"]]) == sources[1]
        assert all((row["_deleted_at"] is not None) == row["_is_deleted"] for row in self.marks)
        assert plain([row for row in self.past if row["_current"]]) == sources[2]
        assert agrees_with_cuts(self.pipeline, self.reader, self.names[2], self.past) > 1
        spans: dict[int, list[tuple[tuple[Any, ...], tuple[Any, ...]]]] = {}
        for row in self.past:
            since, until = (tuple(row[f"_{way}_{part}"] for part in ("file", "pos", "seq")) for way in ("from", "to"))
            known = since if since[0] is not None else ("",), until if until[0] is not None else ("~",)
            spans.setdefault(row["id"], []).append(known)
        for each in map(sorted, spans.values()):
            assert all(end <= start for (_, end), (start, _) in pairwise(each)), each
        if before is None:
            return
        assert {row["id"] for row in before.marks} <= {row["id"] for row in self.marks}
        assert not set(map(logged, before.log)) - set(map(logged, self.log))
        assert not {row for row in map(ended, before.past) if row[-1] < OPEN} - set(map(ended, self.past))


def placed(row: dict[str, Any]) -> tuple[int, str, int]:
    """Where a row stands in a log: one of a snapshot behind the last change before it, which has its `_seq`."""
    return (-1 if row["_seq"] is None else row["_seq"], row["_binlog_file"] or "", row["_binlog_pos"] or 0)


def logged(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of a log, but where the row of a snapshot stands."""
    own = (None,) if row["_op"] == "r" else (row["_seq"], row["_binlog_file"], row["_binlog_pos"], row["_committed_at"])
    return (row["_op"], *own, row["id"], row["v"], row["part"])


def ended(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["id"], row["v"], row["part"], row["_valid_from"], row["_from_seq"], row["_to_pos"], row["_to_seq"])


def hammer_has(hammer: Hammer, changes: int) -> bool:
    return hammer.done > changes


def test_tables_that_are_read_again_under_changes_lose_nothing_that_the_lake_showed(
    mariadb: MariaDB, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    """1. Three tables are read, and change on. 2. `read-again` of each. 3. Another rule. 4. DDL that a table with a
    rule can't follow in place; keys go before, while and after each of them."""
    schema = fresh_database(mariadb)
    names = [f"{schema}.{name}" for name in OPTIONS]
    for name in names:
        mariadb.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, part INT)",
            f"INSERT INTO {name} VALUES " + ", ".join(f"({n}, {n}, {n % 10})" for n in range(KEYS)),
        )

    def change(cursor: Any, luck: random.Random, number: int) -> None:
        table, key, part = luck.choice(names), luck.randrange(2 * KEYS), luck.randrange(10)
        if luck.random() < 0.3:
            cursor.execute(f"DELETE FROM {table} WHERE id = {key}")
        else:
            cursor.execute(f"REPLACE INTO {table} (id, v, part) VALUES ({key}, {number}, {part})")

    listed = {name: {"tables": f"*.{name}", **given} for name, given in OPTIONS.items()}
    wheres = ["1 = 1", "part < 9", "part < 9"]
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline(
            "lake", mariadb, names, chunk_rows=50, chunks="exact", table_options=list(listed.values())
        )
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])

        def again(generation: int) -> None:
            if generation > 1:
                wanted = names[3 - moved :]
                pipeline.until(lambda: all(pipeline.generation(name) >= generation for name in wanted), "generations")
            pipeline.until(lambda: pipeline.shows(*names), "all to be live again")

        seen: Seen | None = None
        for step in range(4):
            with Hammer(mariadb, change, threads=1, pause_seconds=0.002) as hammer:
                moved = 3 if step == 1 else 2
                if step == 1:
                    for name in names:
                        done(pipeline, "read_table_again", table=name)
                elif step == 2:
                    wheres = ["1 = 1", "part < 7", "part < 7"]
                    for name in ("marks", "past"):
                        listed[name] |= {"where": "part < 7", "select": ["*", "v * 2 AS twice"]}
                    done(pipeline, "define", **redefined(pipeline, table_options=list(listed.values())))
                elif step == 3:
                    mariadb.execute(*(f"ALTER TABLE {name} ADD COLUMN w INT DEFAULT 4" for name in names[1:]))
                again(step + 1)
                pipeline.until(partial(hammer_has, hammer, hammer.done + 150), "changes past the snapshot")
                hammer.stop()
            pipeline.catches_up(*names)
            savepoint(pipeline, f"step {step}")
            now = Seen(pipeline, reader, names)
            now.agree(wheres, seen)
            seen = now
        assert sum(row["_is_deleted"] for row in now.marks) > 30
        assert sum(not row["_current"] for row in now.past) > 100
