"""Derived tables in the lake: a query over snapshots of other tables, its result as a commit on the start's branch.

Spark parses and analyses the query, and runs it as a job; the executors write its rows as data files, as they write
those of changes (on_spark.py). Each table that the query names is replaced, in the parsed query, by the table at one
snapshot: so the result is of the contents that the caller chose, whatever `main` shows meanwhile.

With `refresh: keys` only what the changes touch is computed (keyed.py), and committed as changes of rows are; where
that can't be done, all of it is.

A derived table has no key. Its generation is its set of columns, by a number that follows from their names and types:
another query, or another schema of a table that it reads, gives it others by the same rules as a table of the source.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from cutline.common.errors import Unavailable
from cutline.common.schema import Column, TableSchema
from cutline.common.store.records import Content, Work
from cutline.common.table_id import split_table_id
from cutline.spark_writer.compiled import one_of
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks import spark_columns
from cutline.spark_writer.sinks.contract import DerivedFault, Made
from cutline.spark_writer.sinks.iceberg import objects
from cutline.spark_writer.sinks.iceberg.changes import replace_all
from cutline.spark_writer.sinks.iceberg.columns import Layout, quoted
from cutline.spark_writer.sinks.iceberg.data_files import data_file
from cutline.spark_writer.sinks.iceberg.files import Change
from cutline.spark_writer.sinks.iceberg.foreign import OURS
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, items
from cutline.spark_writer.sinks.iceberg.keyed import Keyed, Target
from cutline.spark_writer.sinks.iceberg.naming import CATALOG
from cutline.spark_writer.sinks.iceberg.on_spark import WRITTEN, kernels, new_data_file, written
from cutline.spark_writer.sinks.iceberg.row_changes import InFull
from cutline.spark_writer.sinks.iceberg.start import Start
from cutline.spark_writer.sinks.iceberg.table import LakeTable
from cutline.spark_writer.sinks.iceberg.works import content_of, living_rows, snapshot_of, work_of

_SOURCE = Path(__file__).with_name("Queries.java")
PLAN_CHARACTERS = 4000
"""So much of Spark's plan is kept for people."""
LOOK_SECONDS = 1.0
"""A query that is computed is given up so long after its start is to end, at most."""
MADE_BY = "cutline.query"
"""The property in a snapshot's summary that names the query, and the settings, by which it was computed."""
_REMEDY = "correct sql in derived"


def reads_of(jvm: Jvm, name: str, sql: str) -> list[str]:
    """The tables that a derived table's query names, each once, as "db.table". DerivedFault if Spark can't parse it, or
    if it names one in another way."""
    query = _parsed(jvm, name, sql)
    if query.travels():
        raise DerivedFault(f"the query of {name} names a version of a table", "name the table alone")
    if indirect := [str(each) for each in items(query.indirect())]:
        has = ", ".join(indirect)
        raise DerivedFault(f"the query of {name} has {has}, which no derived table may have", "name each table alone")
    found: dict[str, None] = {}
    for parts in items(query.named()):
        names = [str(part) for part in items(parts)]
        if len(names) != 2 or any("." in part for part in names):
            text = ".".join(names)
            raise DerivedFault(f"the query of {name} reads {text}, which is not a table as db.table", _REMEDY)
        found[".".join(names)] = None
    return list(found)


def rows_of(jvm: Jvm, name: str, sql: str, reads: Mapping[str, tuple[str, Content]]) -> tuple[DataFrame, Any]:
    """The query over tables at these contents, each by the name in the query, and the tables' rows as a Java map by
    these names; nothing is computed yet.

    DerivedFault, with Spark's own sentence, if the query is refused, or if its rows depend on more than the tables.
    """
    session: Any = jvm.session
    tables = {}
    for named, (table_id, content) in reads.items():
        spark_name = ".".join(quoted(part) for part in (CATALOG, *split_table_id(table_id)))
        # Not load(): it takes a name with a slash for the path of a table.
        tables[named] = session.read.option("versionAsOf", str(snapshot_of(content))).table(spark_name)._jdf
    return analysed(jvm, name, sql, tables)


def empty(jvm: Jvm, columns: pa.Schema) -> Any:
    """A table without rows (Java's Dataset), with these columns, for a query that is to be analysed alone."""
    session: Any = jvm.session
    kind = from_arrow_schema(columns, prefer_timestamp_ntz=True).json()
    schema = jvm.root.org.apache.spark.sql.types.DataType.fromJson(kind)
    return session._jsparkSession.createDataFrame(jvm.root.java.util.ArrayList(), schema)


def analysed(jvm: Jvm, name: str, sql: str, tables: Mapping[str, Any]) -> tuple[DataFrame, Any]:
    """The query over these tables (Java's Datasets), each by the name in the query, and they as a Java map. Raises as
    `rows_of`."""
    session: Any = jvm.session
    query, placed = _parsed(jvm, name, sql), jvm.root.java.util.HashMap()
    for named, table in tables.items():
        placed.put(named, table)
    with _refused(name):
        found = query.over(session._jsparkSession, placed)
    maker = one_of(session.sparkContext, _SOURCE, "Queries$Maker")
    if beyond := [str(each) for each in items(maker.beyond(found.queryExecution().analyzed(), placed))]:
        raise DerivedFault(f"the query of {name} reads more than tables of this pipeline: {', '.join(beyond)}", _REMEDY)
    if unsteady := [str(each) for each in items(maker.unsteady(found.queryExecution().analyzed()))]:
        raise DerivedFault(
            f"the query of {name} uses {', '.join(unsteady)}, whose value does not depend on the tables alone", _REMEDY
        )
    return DataFrame(found, session), placed


def schema_of(name: str, rows: DataFrame) -> TableSchema:
    """The columns of a query's result, as those of a table. DerivedFault if the lake can't have one of them."""
    made: list[Column] = []
    for number, each in enumerate(rows.schema.fields, start=1):
        kind = each.dataType.simpleString()
        if any(known.name.lower() == each.name.lower() for known in made):
            raise DerivedFault(f"the query of {name} has two columns {each.name}", "give one another name by AS")
        if not each.name.strip():
            raise DerivedFault(f"the query of {name} has a column without a name", "give it one by AS")
        column = spark_columns.computed(each.name, number, kind)
        if column is None:
            sentence = f"the column {each.name} of the query of {name} is of the type {kind}"
            raise DerivedFault(sentence, spark_columns.REMEDY)
        made.append(column)
    return TableSchema(table_id=name, columns=tuple(made), key=(), last_field_id=len(made))


def generation_of(schema: TableSchema) -> int:
    """The number of a set of columns; below 2^52, so that JSON has it exactly."""
    look = json.dumps([(column.name, column.mysql_type) for column in schema.columns])
    return int(hashlib.sha256(look.encode()).hexdigest()[:13], 16)


def derive(
    start: Start,
    name: str,
    sql: str,
    reads: Mapping[str, tuple[str, Content]],
    done: Work | None,
    since: Mapping[str, Content] | None,
    checkpoint: int,
    over: Callable[[], bool],
) -> Made:
    """Compute a derived table, as a commit on the start's branch; see `Sink.derive`."""
    jvm, tables = start.lake.jvm, start.tables
    rows, placed = rows_of(jvm, name, sql, reads)
    schema = schema_of(name, rows)
    with _refused(name):
        keyed = None if since is None else Keyed(jvm, name, rows, placed, reads)
    generation, table = generation_of(schema), tables.get(name, create=True)
    table.check_writable()
    head = snapshot_of(done.content) if done is not None else None
    if done is None or head is None or not table.has_snapshot(head):
        done = head = None  # all of it is computed in any case
    theirs = table.theirs(head)
    if done is not None and theirs is not None and theirs.main is not None:
        done, head = replace(done, content=content_of(theirs.main)), theirs.main
    if table.head(start.branch) not in (None, head):
        tables.rewind(name, done)
        table = tables.get(name)
    made_by = _made_by(jvm, sql)
    table.begin_generation(schema, generation)
    layout = table.layout(schema, generation)
    start.layouts[name] = layout
    tables.begun.add(name)

    def commit(base: int | None, change: Change) -> int:
        return table.commit(
            branch=start.branch,
            base=base,
            layout=layout,
            summary={"cutline.checkpoint": str(checkpoint), OURS: str(start.lake.w), MADE_BY: made_by},
            change=change,
            keep=None if done is None else str(done.place),
        )

    with _ending(jvm, f"{start.lake.pipeline}: derived table {name} at {checkpoint}", over):
        try:
            if keyed is None or done is None or head is None or not since:
                raise InFull("it had no content of this query" if keyed is not None else "")
            if theirs is not None and not theirs.rewrites:  # whatever its rows are, they are not of `since`
                raise InFull("another user chose what the lake shows of it")
            if (_made_as(table, head), done.generation, done.schema) != (made_by, generation, schema.hash):
                raise InFull("the query, its columns or settings of Spark have changed")
            read = {table_id: tables.get(table_id) for table_id, _ in reads.values()}
            head, computed = keyed.advanced(read, since, Target(table=table, layout=layout, head=head), commit)
            in_full = ""
        except InFull as why:
            if table.head(start.branch) not in (None, head):  # it failed behind its first commit
                tables.rewind(name, done)
                table = tables.get(name)
            head = commit(head, replace_all(table, _written(jvm, table, layout, rows)))
            computed, in_full = None, str(why)
    living = living_rows(table.metadata().snapshot(head).summary())
    work = work_of(head, start.branch, generation=generation, schema=schema.hash, rows=living)
    if done is not None and work.content == done.content:
        work = done  # no row has changed
    return Made(work=work, rows=living or 0, computed=computed, in_full=in_full, plan=_plan(rows))


def _made_by(jvm: Jvm, sql: str) -> str:
    """16 hex digits that follow from a query and all settings of Spark on which its result may depend."""
    session: Any = jvm.session
    settings = {
        key: value
        for key, value in session.conf.getAll.items()
        if key.startswith("spark.sql.") and not key.startswith(("spark.sql.catalog.", "spark.sql.warehouse."))
    }
    return hashlib.sha256(json.dumps([sql, session.version, settings], sort_keys=True).encode()).hexdigest()[:16]


def _made_as(table: LakeTable, head: int) -> str | None:
    """The `MADE_BY` of a snapshot; of one that only rewrote files, that of the snapshot whose rows these are. InFull if
    that has expired."""
    at: int | None = head
    while (snapshot := None if at is None else table.metadata().snapshot(at)) is not None:
        made = snapshot.summary().get(MADE_BY)
        if made is not None or str(snapshot.operation()) != "replace":
            return None if made is None else str(made)
        at = snapshot.parentId()
    raise InFull("its files were rewritten, and the lake no longer has its snapshot of before")


def same_rows(table: LakeTable, before: Content, now: Content) -> bool:
    """Whether only files were rewritten from one content of a table to a later one."""
    table.refresh()
    at: int | None = snapshot_of(now)
    while at is not None and content_of(at) != before:
        snapshot = table.metadata().snapshot(at)
        if snapshot is None or str(snapshot.operation()) != "replace":
            return False
        at = snapshot.parentId()
    return at is not None


@contextmanager
def _ending(jvm: Jvm, about: str, over: Callable[[], bool]) -> Iterator[None]:
    """Name Spark's jobs of this thread, and cancel them once the start is `over`: a query may take for ever, and the
    definition that no longer has it is taken by the next start."""
    context: Any = jvm.session.sparkContext
    group, done, cancelled = f"cutline derived {uuid.uuid4().hex}", threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            with suppress(Exception):  # the store does not answer, or the JVM has ended
                if cancelled.is_set() or over():
                    cancelled.set()
                    context.cancelJobGroup(group)  # again and again: a query may have several jobs

    watching = threading.Thread(target=watch, name="cutline-derived", daemon=True)
    watching.start()
    context.setJobGroup(group, about, interruptOnCancel=True)
    try:
        yield
    except Exception as error:
        if cancelled.is_set():
            raise Unavailable(f"{about} was given up", "starting again, as this start is to end") from error
        raise
    finally:
        done.set()
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(key, None)


def _written(jvm: Jvm, table: LakeTable, layout: Layout, rows: DataFrame) -> list[Any]:
    """Write a query's rows on Spark's executors; return Iceberg's DataFiles."""
    portable, folder, grants = layout.portable, table.new_file(""), objects.grants()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects.accept(grants)
        yield written(lambda: new_data_file(folder), _in_lake(batches, portable.arrow), portable)

    with kernels(f"the query of {table.table_id} failed"):
        named: Any = rows.toDF(*(str(number) for number in range(len(rows.columns))))
        lines = named.mapInArrow(write, WRITTEN).collect()
        return [data_file(table, line.path, layout, line.partition) for line in lines]


def _in_lake(batches: Iterator[pa.RecordBatch], arrow: pa.Schema) -> Iterator[pa.Table]:
    """Rows as Spark hands them over, in the types of the lake and with its field ids."""
    for batch in batches:
        if batch.num_rows:
            columns = [column.cast(field.type) for column, field in zip(batch.columns, arrow, strict=True)]
            yield pa.Table.from_arrays(columns, schema=arrow)


def _plan(rows: Any) -> str:
    """Spark's optimized plan of a query, for people."""
    return str(rows._jdf.queryExecution().optimizedPlan().toString())[:PLAN_CHARACTERS]


def _parsed(jvm: Jvm, name: str, sql: str) -> Any:
    session: Any = jvm.session
    with _refused(name):
        return one_of(session.sparkContext, _SOURCE, "Queries$Maker").parse(sql)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise DerivedFault(f"the query of {name} is refused by Spark: {first_line(error)}", _REMEDY) from error
