"""Pipelines: their definitions with all versions, and their state."""

from __future__ import annotations

import asyncio

from cutline.common.config.pipeline import shown
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.presence import tables as captured
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.dependencies import Known, RegistryNow, StoreNow, router
from cutline.services.control.api.models import PipelineView

routes = router("pipelines")


@routes.get("/pipelines")
async def pipelines(registry: RegistryNow, store: StoreNow) -> list[PipelineView]:
    """List the pipelines of the store."""
    names = await asyncio.to_thread(store.pipelines)
    return [await _pipeline(registry, store.pipeline(name)) for name in names]


@routes.get("/pipelines/{pipeline}")
async def one_pipeline(found: Known, registry: RegistryNow) -> PipelineView:
    """Return one pipeline."""
    return await _pipeline(registry, found)


async def _pipeline(registry: Registry, found: PipelineStore) -> PipelineView:
    definition = await asyncio.to_thread(found.definition)
    status = await registry.status(found.name)
    alive = {service.incarnation for service in await registry.services()}
    leader, spark = status.get("enumerator", {}), status.get("spark_writer", {})
    phases = [table["phase"] for table in captured(status).values()]
    checkpoint = leader.get("checkpoint") or {}
    return PipelineView(
        name=found.name,
        definition=shown("", definition or {}),
        epoch=leader.get("epoch"),
        leader=leader.get("leader"),
        tables={phase: phases.count(phase) for phase in sorted(set(phases))},
        checkpoint=checkpoint.get("number"),
        checkpoint_completed_at=checkpoint.get("completed_at"),
        publication=spark.get("published"),
        published_at=spark.get("published_at"),
        source_time=spark.get("source_time"),
        waiting_for=next((part["waiting_for"] for part in (leader, *status.values()) if part.get("waiting_for")), None),
        failures=leader.get("failures") or 0,
        retry_at=leader.get("retry_at"),
        limits=leader.get("limits"),
        spark_writer=spark.get("leader") if spark.get("leader") in alive else None,
        applied_by_spark=spark.get("applied_by_spark") or {},
    )
