"""Help for a form of a new pipeline: what a source has, and how it would look in the lake; the form's own fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from cutline.common.config.globs import TableGlob, select_tables
from cutline.common.config.pipeline import PipelineConfig, ValuesConfig
from cutline.common.config.source import SourceConfig
from cutline.common.config.table_options import TableOptions, options_of
from cutline.common.errors import ConfigError, CutlineError, SourceLost, Unavailable
from cutline.common.schema import Column, TableSchema
from cutline.common.table_id import escaped, split_table_id, table_id_of
from cutline.services.control.api.dependencies import Control, Shared, role, router
from cutline.services.control.api.models import Body
from cutline.services.control.api.named import reach, source_faults
from cutline.services.control.api.paging import Newest
from cutline.services.control.api.plan import named
from cutline.services.control.api.problems import FieldProblem, Refused, faults_of, problem, refused
from cutline.services.sources.mysql.catalogue import TableAsked, TableInfo, describe_all, list_tables
from cutline.services.sources.mysql.connection import Source
from cutline.services.sources.mysql.hosts import Hosts
from cutline.services.sources.mysql.preflight import server_faults
from cutline.services.sources.mysql.server import identify
from cutline.spark_writer.sinks.iceberg.fields import comment, iceberg_type, lake_names

routes = router("source")
ADMIN = role("admin")
T = TypeVar("T")


class SourceBody(Body):
    """A source, as in pipeline.yaml. The password is found where it says, on the machine of the control service."""

    source: SourceConfig


class TablesBody(SourceBody):
    """A source and the settings that decide how its tables look in the lake, as in pipeline.yaml."""

    tables: list[TableGlob] = Field(default=["*.*"], max_length=1000, examples=[["shop.*"]])
    values: ValuesConfig = Field(default_factory=lambda: ValuesConfig())
    table_options: list[TableOptions] = Field(default_factory=list, max_length=1000)


class SourceTest(BaseModel):
    """Whether a source can be read, with the server and each fault found."""

    ok: bool
    server: str | None = Field(examples=["MySQL 8.4.6 at cutline@db:3306"])
    faults: list[FieldProblem]


class SourceSchema(BaseModel):
    """A schema (database) of the source."""

    name: str = Field(examples=["shop"])
    tables: int
    glob: str = Field(description="all of its tables, as `tables` of a pipeline has them", examples=["shop.*"])


class SourceColumn(BaseModel):
    """A column, at the source and in the lake."""

    name: str
    type: str = Field(examples=["int unsigned"])
    nullable: bool
    lake_name: str
    lake_type: str | None = Field(description="Iceberg's type, null if there is none for it", examples=["long"])
    comment: str = Field(description="as the lake's column has it: the type at the source, and the form of values")


class SourceTable(BaseModel):
    """A table of the source, and how it would look in the lake. `faults`: why it would be quarantined."""

    table: str = Field(examples=["shop.orders"])
    engine: str | None
    rows: int | None = Field(description="the server's estimate")
    bytes: int | None
    key: list[str]
    columns: list[SourceColumn]
    faults: list[FieldProblem]


@routes.post("/source/test", operation_id="test_source", openapi_extra=ADMIN)
async def test(shared: Shared, body: SourceBody) -> SourceTest:
    """Connect to a source, and check the server's settings and the user's grants."""
    if faults := list(source_faults(body.source, shared.secrets)):
        return SourceTest(ok=False, server=None, faults=faults)
    return await shared.sources.run(partial(_test, body), body.source)


def _test(body: SourceBody) -> SourceTest:
    try:
        reach(body.source)
        hosts = Hosts(body.source)
        with closing(hosts.connect()) as connection:
            server = named(identify(connection), Source.configured(body.source, hosts.current))
            faults = server_faults(connection)
    except CutlineError as error:
        return SourceTest(ok=False, server=None, faults=faults_of(error))
    return SourceTest(ok=not faults, server=server, faults=[problem(fault) for fault in faults])


@routes.post("/source/schemas", operation_id="list_source_schemas", openapi_extra=ADMIN)
async def schemas(shared: Shared, body: SourceBody) -> list[SourceSchema]:
    """List the schemas of a source that its user may see."""
    names = await _listed(shared, body.source)
    counted = sorted(Counter(split_table_id(name)[0] for name in names).items())
    return [SourceSchema(name=name, tables=count, glob=table_id_of(escaped(name), "*")) for name, count in counted]


@routes.post("/source/tables", operation_id="list_source_tables", openapi_extra=ADMIN)
async def tables(shared: Shared, body: TablesBody, page: Newest) -> list[SourceTable]:
    """List tables of a source, with their columns at the source and in the lake, a page at a time."""
    names = select_tables(body.tables, await _listed(shared, body.source))
    chosen = page.take(names, key=lambda name: name)
    return await _asked(shared, partial(_described, body, chosen), body.source)


async def _asked(shared: Shared, call: Callable[[], T], source: SourceConfig) -> T:
    """What the source says; 422 if it refuses Cutline, or does not answer: the request named it."""
    try:
        return await shared.sources.run(call, source)
    except (ConfigError, Unavailable) as error:
        raise refused(422, error) from error


async def _listed(shared: Control, source: SourceConfig) -> list[str]:
    """The tables of a request's source. Raises Refused (422)."""
    if faults := list(source_faults(source, shared.secrets)):
        raise Refused(422, faults[0].detail, faults[0].remedy, errors=faults)
    return await _asked(shared, partial(_names, source), source)


def _names(source: SourceConfig) -> list[str]:
    reach(source)
    with closing(Hosts(source).connect()) as connection:
        return list_tables(connection)


def _described(body: TablesBody, names: Sequence[str]) -> list[SourceTable]:
    asked = []
    for name in names:
        options = options_of(body.table_options, name)
        asked.append(TableAsked(table_id=name, identity=options.identity, chunk_by=options.chunk_by))
    with closing(Hosts(body.source).connect()) as connection:
        found = describe_all(connection, identify(connection), asked)
    return [_table(name, found[name], body.values) for name in names]


def _table(name: str, found: TableInfo | SourceLost, values: ValuesConfig) -> SourceTable:
    if isinstance(found, SourceLost):
        unknown: dict[str, Any] = dict.fromkeys(("engine", "rows", "bytes"))
        return SourceTable(table=name, key=[], columns=[], faults=[problem(found.cause)], **unknown)
    schema = replace(found.schema, booleans=values.tinyint1 == "boolean", longs=values.bigint_unsigned == "long")
    names = lake_names(schema.columns)
    return SourceTable(
        table=name,
        engine=found.engine,
        rows=found.rows,
        bytes=found.rows * found.row_bytes,
        key=list(schema.key),
        columns=[
            SourceColumn(
                name=column.name,
                type=column.mysql_type,
                nullable=column.nullable,
                lake_name=names[column.field_id],
                lake_type=lake_type(schema, column),
                comment=comment(column),
            )
            for column in schema.columns
        ],
        faults=[problem(fault) for fault in found.faults],
    )


def lake_type(schema: TableSchema, column: Column) -> str | None:
    """Iceberg's type of a column, by name; None if there is none for it."""
    try:
        kind = iceberg_type(schema.field(column))
    except SourceLost:
        return None
    return kind if isinstance(kind, str) else f"list<{kind['element']}>"


@routes.get("/schema", operation_id="get_schema")
async def schema() -> dict[str, Any]:
    """Return the JSON Schema of pipeline.yaml, with the meaning and the default of each setting."""
    return PipelineConfig.model_json_schema()
