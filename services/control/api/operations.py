"""Live operations on a pipeline and its tables."""

from __future__ import annotations

from typing import Literal

from cutline.common.errors import ConfigError
from cutline.common.mesh.presence import SPARK_WRITER, choice
from cutline.common.mesh.presence import tables as captured
from cutline.services.control.api.dependencies import Known, RegistryNow, TableName, role, router
from cutline.services.control.api.models import Body, TableView
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.tables import table_view

routes = router("operations")


class Choice(Body):
    """A choice about the commits of others to a lake table."""

    choice: Literal["accept", "overwrite"]


@routes.post("/pipelines/{pipeline}/tables/{table}/retry", status_code=202, openapi_extra=role("operator"))
async def retry(found: Known, registry: RegistryNow, table: TableName) -> TableView:
    """Have the Spark writer retry all tables that it has quarantined, with the next checkpoint.

    Returns the named table as it is now, which must be one of them.
    """
    status = await registry.status(found.name)
    view = captured(status).get(table)
    if view is None:
        raise Refused(404, f"pipeline {found.name} captures no table {table!r}", "GET .../tables lists them")
    if table not in (status.get("spark_writer", {}).get("quarantined") or {}):
        raise Refused(409, f"the Spark writer has not quarantined {table}, which is {view['phase']}")
    await registry.request(found.name, {"kind": "retry", "table": table}, to=SPARK_WRITER)
    return table_view(table, view)


@routes.post("/pipelines/{pipeline}/tables/{table}/lake", status_code=202, openapi_extra=role("operator"))
async def choose(found: Known, registry: RegistryNow, table: TableName, chosen: Choice) -> TableView:
    """Choose about the commits of others for which the Spark writer has quarantined a table: `accept` keeps them,
    `overwrite` replaces them by what the source has.

    The choice is about the commits that the table's cause names now. Returns the table as it is now.
    """
    status = await registry.status(found.name)
    view = captured(status).get(table)
    if view is None:
        raise Refused(404, f"pipeline {found.name} captures no table {table!r}", "GET .../tables lists them")
    try:
        request = choice(status, table, chosen.choice)
    except ConfigError as error:
        raise refused(409, error) from error
    await registry.request(found.name, request, to=SPARK_WRITER)
    return table_view(table, view)
