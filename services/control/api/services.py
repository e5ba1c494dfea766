"""The service processes: role, lease, epoch, memory and CPU, and the last lines of their logs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel

from cutline.common.errors import Unavailable
from cutline.services.control.api.dependencies import Shared, router
from cutline.services.control.api.models import ServiceView
from cutline.services.control.api.problems import Refused
from cutline.services.control.store_calls import in_store

routes = router("services")


class LogLineView(BaseModel):
    """One line of a service's log; `at` in seconds since 1970."""

    at: float
    level: str
    logger: str
    text: str


@routes.get("/services", operation_id="list_services")
async def services(control: Shared) -> list[ServiceView]:
    """List the service processes that were alive within the last five seconds."""
    present = await control.registry.services()
    leads: dict[str, list[str]] = {}
    members: dict[str, dict[str, str]] = {}
    epochs: dict[str, dict[str, int]] = {}
    lives = await in_store(control.store.lives)
    for life in lives:
        name, watch = life.name, control.watches.find(control.store.open(life))
        status = await watch.status()
        for part in (status.leader, status.spark):
            if part.leader is not None:
                leads.setdefault(part.leader, []).append(name)
        try:
            epoch = (await watch.journal()).epoch()
        except Unavailable:  # what the mesh does is worth showing without the store
            continue
        if epoch is not None and epoch.slot == status.leader.epoch:
            for role, incarnations in epoch.services.items():
                for number, incarnation in enumerate(incarnations):
                    members.setdefault(incarnation, {})[name] = f"{role}-{number}"
                    epochs.setdefault(incarnation, {})[name] = epoch.slot
    return [
        ServiceView(
            role=service.role,
            incarnation=service.incarnation,
            host=service.host,
            pid=service.pid,
            started_at=service.started_at,
            failed={life.name: service.failed[life.key] for life in lives if life.key in service.failed},
            leaving=service.leaving,
            starting=service.starting,
            leads=leads.get(service.incarnation, []),
            members=members.get(service.incarnation, {}),
            epochs=epochs.get(service.incarnation, {}),
            rss_bytes=service.rss_bytes,
            cpu_seconds=service.cpu_seconds,
            loop_lag_seconds=service.loop_lag_seconds,
        )
        for service in present
    ]


@routes.get("/services/{incarnation}/logs", operation_id="list_log_lines")
async def logs(
    control: Shared,
    incarnation: Annotated[
        str, Path(max_length=255, description="as /v1/services lists it", examples=["9f86d081884c7d65"])
    ],
    lines: Annotated[int, Query(ge=1, le=500, description="most lines")] = 200,
) -> list[LogLineView]:
    """List the last lines that a service has logged, oldest first; also of one that ended within the last day."""
    found = await control.registry.log_lines(incarnation, lines)
    if not found and incarnation not in {service.incarnation for service in await control.registry.services()}:
        raise Refused(404, f"there is no service {incarnation!r}, or none any more", "GET /v1/services lists them")
    return [LogLineView(at=line.at, level=line.level, logger=line.logger, text=line.text) for line in found]
