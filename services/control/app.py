"""The control API: pipelines, their state and the operations on them, services, metrics for Prometheus.

Each request reads the registry (Redis) and the store; nothing is kept. If one of them does not answer, the response is
503 with the cause, but /healthz stays 200: a restart would not help. What changes a pipeline is written to the store as
a command before the answer (api/operations.py), and its leader carries it out.
"""

from __future__ import annotations

from fastapi import FastAPI

from cutline.common.mesh.presence import Registry
from cutline.common.store.store import Store
from cutline.services.control.api import (
    checkpoints,
    cuts,
    events,
    health,
    operations,
    pipelines,
    problems,
    scrape,
    services,
    splits,
    tables,
)
from cutline.services.control.api.access import Access
from cutline.services.control.api.dependencies import Control
from cutline.services.control.api.gate import Gate

ROUTES = (pipelines, operations, tables, splits, checkpoints, cuts, events, services)


def build(registry: Registry, store: Store, access: Access) -> FastAPI:
    """Return the application over an open registry and a store; it closes neither."""
    app = FastAPI(title="Cutline", summary="Pipelines, services and their state")
    app.state.control = Control(registry=registry, store=store)
    app.add_middleware(Gate, access=access)
    problems.handle(app)
    app.include_router(health.router)
    app.include_router(scrape.router)
    for module in ROUTES:
        app.include_router(module.routes)
    return app
