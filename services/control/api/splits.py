"""The chunks of tables that are being read."""

from __future__ import annotations

from cutline.common.mesh.presence import tables as captured
from cutline.services.control.api.dependencies import Known, RegistryNow, router
from cutline.services.control.api.models import SplitsView

routes = router("tables")


@routes.get("/pipelines/{pipeline}/splits")
async def splits(found: Known, registry: RegistryNow) -> list[SplitsView]:
    """How many chunks of each table have been read."""
    return [
        SplitsView(
            table=name,
            generation=table.get("generation", 1),
            done=table.get("splits_done"),
            total=table.get("splits_total"),
        )
        for name, table in sorted(captured(await registry.status(found.name)).items())
    ]
