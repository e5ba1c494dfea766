"""The captured tables of a pipeline."""

from __future__ import annotations

from typing import Any

from cutline.common.mesh.presence import tables as captured
from cutline.services.control.api.dependencies import Known, RegistryNow, router
from cutline.services.control.api.models import TableView

routes = router("tables")


@routes.get("/pipelines/{pipeline}/tables")
async def tables(found: Known, registry: RegistryNow) -> list[TableView]:
    """List the captured tables with their phases."""
    status = captured(await registry.status(found.name))
    return [table_view(name, table) for name, table in sorted(status.items())]


_BLANK: dict[str, Any] = dict.fromkeys(("rows_done", "rows_estimate", "splits_done", "splits_total", "cause"))


def table_view(name: str, status: dict[str, Any]) -> TableView:
    """One table of `presence.tables`."""
    known = {key: status[key] for key in TableView.model_fields if key in status}
    return TableView(table=name, **{**_BLANK, **known})
