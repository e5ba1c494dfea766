"""What Spark makes of rules and queries that do not run yet: their columns in the lake, why they are refused, and some
rows after their rule.

It is the analysis by which they will be carried out (transform/, sinks/iceberg/deriving.py), over the schemas of the
source and over empty tables in place of the lake's. So what is refused here would be refused then, and no lake, store
or source is reached. What a row of later makes of an expression is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pyarrow as pa
from pyspark.sql import SparkSession

from cutline.common.causes import Cause
from cutline.common.preview import After, PreviewAnswer, PreviewRequest, Refusal, printed
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer import derived
from cutline.spark_writer.sinks.contract import DerivedFault
from cutline.spark_writer.sinks.iceberg import deriving
from cutline.spark_writer.sinks.iceberg.fields import iceberg_type, lake_names
from cutline.spark_writer.sinks.iceberg.jvm import Jvm
from cutline.spark_writer.transform.functions import Functions
from cutline.spark_writer.transform.modes import Moded, moded
from cutline.spark_writer.transform.rekeyed import Rekeyed
from cutline.spark_writer.transform.rule import RuleFault, plain_rule, prepared, rule_of

SECONDS = 20.0
"""No further table is analysed then."""


def answer(spark: SparkSession, request: PreviewRequest, *, now: Callable[[], float] = time.monotonic) -> PreviewAnswer:
    """Analyse what is asked for, in a session of its own; takes some milliseconds for each table."""
    with closing(Functions()) as functions:
        return _answer(spark, request, functions, now)


def _answer(
    spark: SparkSession, request: PreviewRequest, functions: Functions, now: Callable[[], float]
) -> PreviewAnswer:
    session = prepared(spark.newSession())
    for key, value in request.settings.items():
        if session.conf.isModifiable(key):  # others are Spark's own, since it started
            session.conf.set(key, value)
    refusals: list[Refusal] = []
    lake: dict[str, pa.Schema] = {}
    after: tuple[After, ...] = ()
    ends = now() + SECONDS
    for asked in request.tables:
        if now() > ends:
            break
        schema = asked.schema
        try:
            rule = _rule(session, schema, functions)
        except RuleFault as fault:
            place = ".".join(filter(None, (asked.place, fault.at)))
            refusals.append(Refusal(place=place, table=schema.table_id, cause=fault.cause))
            continue
        lake[schema.table_id] = _columns(rule.target)
        if schema.table_id == request.table and request.rows is not None:
            after = tuple(_after(rule, request.rows))
    refusals += _queries(Jvm(session), request, lake)
    return PreviewAnswer(
        columns={name: tuple((field.name, _kind(field)) for field in columns) for name, columns in lake.items()},
        refusals=tuple(refusals),
        after=after,
    )


def _rule(session: SparkSession, schema: TableSchema, functions: Functions) -> Moded:
    shape = schema.shape or Shape()
    return moded(rule_of(session, schema, shape, functions) if shape.ruled else plain_rule(schema), schema)


def _columns(target: TableSchema) -> pa.Schema:
    """The lake's columns, by their names there."""
    names = lake_names(target.lake)
    return pa.schema([target.field(column).with_name(names[column.field_id]) for column in target.lake])


def _kind(field: pa.Field) -> str:
    kind = iceberg_type(field)
    return kind if isinstance(kind, str) else f"list<{kind['element']}>"


def _after(rule: Moded, rows: pa.Table) -> Iterator[After]:
    """Each row by itself, so that one on which the rule fails is known."""
    shown = rule.rule if isinstance(rule, Rekeyed) else rule
    for at in range(rows.num_rows):
        try:
            made = printed(shown.chunk(rows.slice(at, 1)))
        except RuleFault as fault:
            yield After(cause=fault.cause)
        else:
            yield After(values=made[0] if made else None)


def _queries(jvm: Jvm, request: PreviewRequest, lake: dict[str, pa.Schema]) -> Iterator[Refusal]:
    """Analyse the derived tables, each after those that it reads; their columns come into `lake`. One that reads a
    table of which nothing is known is left out."""
    captured = {*(asked.schema.table_id for asked in request.tables), *request.unknown}
    places = {each.name: each for each in request.derived}
    found: dict[str, list[str] | Cause] = {}
    for name, asked in places.items():
        try:
            found[name] = derived.taken(name) if name in captured else deriving.reads_of(jvm, name, asked.sql)
        except DerivedFault as fault:
            found[name] = fault.cause
    tables = {name: deriving.empty(jvm, columns) for name, columns in _named(found, lake).items()}
    for name, reads in derived.in_order(found):
        asked = places[name]
        ids = reads if isinstance(reads, Cause) else derived.ids_of(name, reads, {*captured, *places})
        if isinstance(ids, Cause):
            at = "name" if name in captured else "sql"
            yield Refusal(place=f"{asked.place}.{at}", table=name, cause=ids)
            continue
        if not set(ids.values()) <= tables.keys():
            continue
        try:
            rows, _ = deriving.analysed(jvm, name, asked.sql, {each: tables[table] for each, table in ids.items()})
            columns = _columns(deriving.schema_of(name, rows))
        except DerivedFault as fault:
            yield Refusal(place=f"{asked.place}.sql", table=name, cause=fault.cause)
            continue
        lake[name], tables[name] = columns, deriving.empty(jvm, columns)


def _named(found: Mapping[str, list[str] | Cause], lake: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Those of the lake's tables that a query may name."""
    names = {each.lower() for reads in found.values() if not isinstance(reads, Cause) for each in reads}
    return {name: columns for name, columns in lake.items() if name.lower() in names}
