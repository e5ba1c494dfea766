"""What rules make of a table, before they are carried out: its columns in the lake, and ten rows before and after.

The rows are real ones of the source, so an admin alone may ask for them, who may read the source anyway; masked columns
have hashes also here, and columns that the rule does not need are not read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Annotated

import pyarrow as pa
from fastapi import Query, Request
from pydantic import BaseModel, Field

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError, SourceLost, TableLocked, Unavailable
from cutline.common.preview import MOST_TABLES, After, PreviewAnswer, printed
from cutline.common.schema import TableSchema
from cutline.services.control.api import definitions
from cutline.services.control.api.analysis import Analyse, as_problem, by_spark_writers
from cutline.services.control.api.definitions import checked, content_of, merged
from cutline.services.control.api.dependencies import Shared, role, router
from cutline.services.control.api.named import reach
from cutline.services.control.api.problems import FieldProblem, refused
from cutline.services.control.api.source_threads import ALL
from cutline.services.control.store_calls import in_store
from cutline.services.sources.mysql.catalogue import list_tables
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.preflight import described
from cutline.services.sources.mysql.rules import rules_asked, sample
from cutline.services.sources.mysql.server import identify

routes = router("pipelines")
ADMIN = role("admin")


class PreviewColumn(BaseModel):
    """A column of a lake table."""

    name: str
    type: str = Field(description="Iceberg's type", examples=["long"])


class PreviewTable(BaseModel):
    """A lake table that a rule, or a derived table's query, makes."""

    table: str = Field(examples=["shop.orders"])
    columns: list[PreviewColumn]


class PreviewRow(BaseModel):
    """A row of the source, and what the rule makes of it; values are text, null is null."""

    before: list[str | None]
    after: list[str | None] | None = Field(description="null: the condition leaves it out, or the rule fails on it")
    failure: str | None = Field(description="why the rule fails on this row, in Spark's words")


class PreviewRows(BaseModel):
    """Some rows of one table."""

    table: str = Field(examples=["shop.orders"])
    columns: list[str] = Field(description="those of the source that the rule needs")
    masked: list[str] = Field(description="those whose values are hashes")
    own_key: bool = Field(description="the hashes are by a made-up key: the control service has not the pipeline's")
    rows: list[PreviewRow]


class Preview(BaseModel):
    """What the rules and derived tables of a definition make. `refusals`: what Spark does not take, by its place."""

    pipeline: str
    analysed: bool
    note: str | None = Field(description="why it is not analysed, or what is left out")
    tables: list[PreviewTable]
    refusals: list[FieldProblem]
    rows: PreviewRows | None = Field(description="of the table that was asked for")


@routes.post("/plan/preview", operation_id="preview_rules", openapi_extra=ADMIN)
async def preview(
    request: Request,
    shared: Shared,
    table: Annotated[
        str | None, Query(max_length=300, description="show ten rows of it", examples=["shop.orders"])
    ] = None,
) -> Preview:
    """Analyse the rules and derived tables of a pipeline.yaml (JSON or YAML), or of a merge patch with the name of a
    pipeline, by a Spark writer; and show what becomes of ten rows of one table. Nothing is changed."""
    content = await content_of(request, patch=True)
    name, stored = content.get("name"), None
    if isinstance(name, str):
        try:
            stored = await in_store(shared.store.pipeline(name).definition)
        except ConfigError as error:
            raise refused(422, error) from error
    if stored is not None and not all(key in content for key in definitions.WHOLE):
        content = merged(stored, content)
    config = checked(content, base=stored)
    definitions.allow(config, shared.secrets, stored)
    call = partial(_preview, config, table, by_spark_writers(shared.registry))
    try:
        return await shared.sources.run(call, config.source, asked=ALL)
    except (ConfigError, Unavailable) as error:
        raise refused(422, error) from error


def _preview(config: PipelineConfig, table: str | None, analyse: Analyse) -> Preview:
    reach(config.source)
    notes, rows = [], None
    with closing(Hosts(config.source).connect()) as connection:
        server = identify(connection)
        selected = config.select(list_tables(connection))
        asked = rules_asked(config, described(connection, server, config, selected), table)
        schema = None if table is None else asked.schema(table)
        if schema is not None:
            try:
                rows = sample(connection, server, schema, asked.key)
            except (SourceLost, TableLocked, Unavailable) as error:
                notes.append(f"no row of {table} is shown: {error.cause.sentence}")
        elif table is not None:
            notes.append(f"no row of {table} is shown: the pipeline can't capture such a table")
    answer, done = PreviewAnswer(), True
    if asked.request is not None:
        try:
            answer = analyse(replace(asked.request, rows=rows))
        except (Unavailable, ConfigError) as error:
            done = False
            notes.append(f"not analysed: {error.cause.sentence}")
    if asked.ruled > MOST_TABLES:
        notes.append(f"{MOST_TABLES} of {asked.ruled} tables with a rule are analysed")
    return Preview(
        pipeline=config.name,
        analysed=done,
        note="; ".join(notes) or None,
        tables=[
            PreviewTable(table=name, columns=[PreviewColumn(name=column, type=kind) for column, kind in columns])
            for name, columns in sorted(answer.columns.items())
        ],
        refusals=[as_problem(each) for each in (*asked.refusals, *answer.refusals)],
        rows=None if schema is None or rows is None else _rows(schema, rows, answer, asked.own_key),
    )


def _rows(schema: TableSchema, rows: pa.Table, answer: PreviewAnswer, own_key: bool) -> PreviewRows:
    after = answer.after or (After(),) * rows.num_rows
    return PreviewRows(
        table=schema.table_id,
        columns=rows.column_names,
        masked=sorted(schema.masked),
        own_key=own_key and bool(schema.masked),
        rows=[
            PreviewRow(
                before=list(before),
                after=None if made.values is None else list(made.values),
                failure=None if made.cause is None else made.cause.sentence,
            )
            for before, made in zip(printed(rows), after, strict=True)
        ],
    )

