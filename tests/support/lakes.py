"""A mesh with the Spark writer on the tests' own Spark: savepoints, and tables of the lake compared with the source."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cutline.services.sources.mysql.catalogue import table_schema
from cutline.spark_writer import production
from cutline.spark_writer.driver import serve
from tests.support.databases import Database
from tests.support.history import content, differences
from tests.support.mesh import Mesh, Pipeline, connection
from tests.support.operator import command, outcome
from tests.support.spark_bench import Heard


@contextmanager
def writing(mesh: Mesh) -> Iterator[None]:
    """The Spark writer as its process serves, on the tests' Spark; it ends with the `with`, and no start of it may fail
    but by what did not answer.
    """
    stop = threading.Event()
    leads: dict[str, Heard] = {}
    ends: list[BaseException] = []

    def heard(pipelines: Collection[str]) -> dict[str, Heard]:
        return {name: leads.setdefault(name, Heard()) for name in pipelines}

    def served() -> None:
        try:
            serve(mesh.store, stop, production.ports(mesh.store), heard)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=served, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not ends, ends
    faults = [status for lead in leads.values() for status in lead.failures()]
    assert {fault.kind for fault in faults} <= {"Unavailable", "Refused"}, faults


def savepoint(pipeline: Pipeline, nonce: str, seconds: float = 90.0) -> int:
    """Command a kept checkpoint of this name, wait for its publication, and return its number."""
    slot = int(outcome(pipeline, command(pipeline, "savepoint", name=nonce), seconds).result["checkpoint"])
    published = pipeline.store.publication_numbers
    return pipeline.until(lambda: slot in published() and slot, "the savepoint's publication", seconds)


@dataclass(frozen=True, slots=True)
class InLake:
    """A table of the lake: its rows by key, its columns' types in their order."""

    rows: dict[tuple[Any, ...], dict[str, Any]]
    types: dict[str, pa.DataType]


def in_lake(reader: Any, table: str, key: list[str]) -> InLake:
    found = reader.sql(f"SELECT * FROM lake.{table}").toArrow()
    rows = {tuple(row[name] for name in key): row for row in found.to_pylist()}
    assert len(rows) == found.num_rows, f"{table} has a key twice"
    return InLake(rows, {field.name: field.type for field in found.schema})


def compared(source: Database, reader: Any, table: str, kept: tuple[str, ...] = ()) -> list[str]:
    """What of a table differs between lake and source; `kept` are columns that only the lake has."""
    with contextlib.closing(connection(source)) as conn:
        schema = table_schema(conn, table)
    found = in_lake(reader, table, list(schema.key))
    types = {name: kind for name, kind in found.types.items() if name not in kept}
    rows = {key: {name: row[name] for name in types} for key, row in found.rows.items()}
    wanted = {field.name: field.type for field in schema.arrow}
    lines = differences(rows, content(source, table, list(schema.key)))
    if list(types.items()) != list(wanted.items()):
        lines.append(f"columns {types} for {wanted}")
    if set(kept) - set(found.types):
        lines.append(f"lost {kept}: {list(found.types)}")
    return [f"{table}: {line}" for line in lines]


def held(pipeline: Pipeline, table: str) -> str:
    """Why the newest publication has the table in quarantine; "" if it has not."""
    record = pipeline.store.publication(max(pipeline.store.publication_numbers(), default=0))
    found = record.tables[table].held if record is not None and table in record.tables else None
    return "" if found is None else str(found.cause)
