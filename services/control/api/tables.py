"""The tables of a pipeline, and the history of their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Header, Query, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json

from cutline.common.errors import ProtocolError
from cutline.common.phases import Phase
from cutline.common.schema import Column, TableSchema
from cutline.common.shape import Mode
from cutline.services.control.api.dependencies import Known, Shared, TableName, router
from cutline.services.control.api.models import TableView
from cutline.services.control.api.paging import WholeList, several
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.source import lake_type
from cutline.services.control.api.waiting import Wait, matches, until
from cutline.services.control.store_calls import in_store
from cutline.services.control.table_rows import Row, etag

routes = router("tables")


class ColumnView(BaseModel):
    """A column of a schema: its type at the source and in the lake (Iceberg's name; null: not supported)."""

    name: str
    type: str
    lake_type: str | None
    nullable: bool
    field_id: int
    generated: bool


class SchemaView(BaseModel):
    """A schema that a table has, or had. `columns` is null if the store no longer has it."""

    schema_id: str = Field(alias="schema", serialization_alias="schema", description="the schema's hash")
    generation: int
    since_checkpoint: int = Field(description="the first checkpoint known with this schema")
    since: float = Field(description="when that checkpoint was written, in seconds since 1970")
    key: list[str] | None
    columns: list[ColumnView] | None
    select: list[str] | None = Field(default=None, description="the rule by which the lake's columns are made of these")
    where: str | None = Field(default=None, description="the rule's condition")
    mask: list[str] | None = Field(default=None, description="the columns that are masked")
    mode: Mode | None = Field(default=None, description="what the lake table is, if it is no mirror")


@routes.get("/pipelines/{pipeline}/tables", operation_id="list_tables", response_model=list[TableView])
async def tables(
    found: Known,
    control: Shared,
    page: WholeList,
    response: Response,
    phase: Annotated[
        str | None,
        Query(description="only tables in this phase; several with commas between", examples=["live,paused"]),
    ] = None,
    q: Annotated[
        str | None, Query(description="only tables whose name contains this", max_length=255, examples=["order"])
    ] = None,
) -> Response:
    """List the captured tables, sorted by name, with their phases, progress and lag."""
    rows = await control.rows.read(control.watches.find(found))
    if phase is None and not q and page.limit is None and page.after is None:
        return _json(rows.body)
    chosen = rows.all()
    if phase is not None:
        phases = several(phase, tuple(Phase), "phase")
        chosen = [row for row in chosen if row["phase"] in phases]
    if q:
        wanted = q.casefold()
        chosen = [row for row in chosen if wanted in row["table"].casefold()]
    listed = page.take(chosen, lambda row: str(row["table"]))
    return _json(to_json(listed), response.headers)


@routes.get(
    "/pipelines/{pipeline}/tables/{table}",
    operation_id="get_table",
    response_model=TableView,
    responses={304: {"description": "it is as the ETag in If-None-Match says"}},
)
async def table(
    found: Known,
    control: Shared,
    table: TableName,
    wait: Wait,
    if_none_match: Annotated[str | None, Header(description="the ETag of the last answer")] = None,
) -> Response:
    """Return one table. Its ETag changes with all but its lag and rate; `wait` waits for another ETag than that in
    If-None-Match, or for any change without that."""
    watch = control.watches.find(found)

    async def look() -> Row:
        row = (await control.rows.read(watch)).row(table)
        if row is None:
            raise unknown_table(found.name, table)
        return row

    row = await look()
    before = if_none_match or etag(row)
    if wait:
        row = await until(look, lambda row: not matches(before, etag(row)), wait)
    tag = etag(row)
    if if_none_match is not None and matches(if_none_match, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return _json(to_json(row), {"ETag": tag})


@routes.get("/pipelines/{pipeline}/tables/{table}/schemas", operation_id="list_table_schemas")
async def schemas(found: Known, control: Shared, table: TableName) -> list[SchemaView]:
    """List the schemas that a table has had within the last 500 journal entries, newest first."""
    watch = control.watches.find(found)
    history = (await watch.journal()).schemas.get(table)
    if history is None:
        if table not in (await control.rows.read(watch)).steady:
            raise unknown_table(found.name, table)
        return []  # no row of it was read yet

    def read() -> list[SchemaView]:
        views = []
        for since in reversed(history):
            schema: TableSchema | None
            try:
                schema = found.schemas([since.schema])[since.schema]
            except ProtocolError:  # the sweep removed it with the last entry that named it
                schema = None
            views.append(
                SchemaView(
                    schema=since.schema,
                    generation=since.generation,
                    since_checkpoint=since.slot,
                    since=since.at,
                    key=None if schema is None else list(schema.key),
                    columns=None if schema is None else _columns(schema),
                    **_shape(schema),
                )
            )
        return views

    return await in_store(read)


def _shape(schema: TableSchema | None) -> dict[str, Any]:
    if schema is None or schema.shape is None:
        return {}
    shape = schema.shape
    mode = None if shape.mode == "mirror" else shape.mode
    return {"select": list(shape.select), "where": shape.where, "mask": sorted(schema.masked), "mode": mode}


def _columns(schema: TableSchema) -> list[ColumnView]:
    return [
        ColumnView(
            name=column.name,
            type=column.mysql_type,
            lake_type=_lake_type(schema, column),
            nullable=column.nullable,
            field_id=column.field_id,
            generated=column.generated,
        )
        for column in schema.columns
    ]


def _lake_type(schema: TableSchema, column: Column) -> str | None:
    """The type that the lake has for a column of the source; None if the table's rule says it."""
    if schema.shape is not None and schema.shape.ruled:
        return None
    return "string" if column.name in schema.masked else lake_type(schema, column)


def unknown_table(pipeline: str, table: str) -> Refused:
    """The refusal of a request about a table that the pipeline does not capture."""
    return Refused(
        404, f"pipeline {pipeline} captures no table {table!r}", f"GET /v1/pipelines/{pipeline}/tables lists them"
    )


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=dict(headers or {}))
