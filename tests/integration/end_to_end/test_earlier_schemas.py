"""Starts that lie before schema changes: the stream tells how a table looked then, through to the lake.

Every case of test_schema_changes.py at two moments: `read` has changes of rows between the start and
the DDL, `unread` has none, so that its first row event comes after the DDL. Tables are empty at the start: in the end
the lake holds just the source's rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutline.spark_writer import session
from tests.support.databases import Database
from tests.support.lakes import compared, savepoint, writing
from tests.support.mesh import Mesh
from tests.support.schema_cases import BEFORE, CASES, Case, rows
from tests.support.sources import here

Fresh = Callable[[Database], str]


def run_case(source: Database, table: str, case: Case) -> None:
    """What happens to a table after the start; in a session that fills what an INSERT leaves out."""
    before = () if ".unread_" in table else (rows(table), *BEFORE)
    with contextlib.closing(source.connect()) as conn, conn.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for statement in (*before, *case.ddl, *case.after):
            cursor.execute(statement.replace("{t}", table))


def read_again(table: str, case: Case) -> bool:
    """Whether its DDL needs the next generation: before the first row event, only what may give it other rows."""
    if ".unread_" not in table:
        return case.again
    return any(re.match(r"(DROP|RENAME)\b.* TABLE|CREATE OR REPLACE|.* EXCHANGE ", statement) for statement in case.ddl)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_stream_that_starts_before_schema_changes_goes_through_them(
    source: Database, fresh_database: Fresh, spark: Any, tmp_path: Path
) -> None:
    """1. Tables are made; the start; rows and columns change. 2. A pipeline begins there, and its reader gets SIGKILL.
    Each table equals the source, and is in its first generation if its DDL changes no rows."""
    schema = fresh_database(source)
    cases = [case for case in CASES if isinstance(source, case.only)]
    every = {f"{schema}.{moment}_{case.name}": case for case in cases for moment in ("read", "unread")}
    for table, case in every.items():
        source.execute(f"CREATE TABLE {table} {case.create}", *(text.replace("{t}", table) for text in case.first))
    at = here(source)
    for table, case in every.items():
        run_case(source, table, case)
    with Mesh(tmp_path, readers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline("start", source, list(every), start=f"{{file: {at.file}, position: {at.offset}}}")
        pipeline.until(lambda: pipeline.shows(min(every)), "a first table to be live", 300)
        mesh.kill(mesh.running("reader")[0])
        mesh.start("reader")
        end = pipeline.catches_up(*every, seconds=600)
        savepoint(pipeline, "last", 600)
        definition: Any = pipeline.store.definition()
    again = {table: end.tables[table].generation > 1 for table in every}
    reader = session.for_pipeline(spark, definition["sink"])
    faults = []
    for table, case in every.items():
        kept = () if again[table] or ".unread_" in table else case.kept
        faults += compared(source, reader, table, kept)
    assert faults == []
    assert again == {table: read_again(table, case) for table, case in every.items()}
