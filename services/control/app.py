"""The control API: pipelines, their state and the operations on them, services, metrics for Prometheus.

Each request reads the registry (Redis) and the store; nothing is kept. If one of them does not answer, the response is
503 with the cause, but /healthz stays 200: a restart would not help. What changes a pipeline is written to the store as
a command before the answer (api/operations.py), and its leader carries it out.
"""

from __future__ import annotations

from fastapi import FastAPI

from cutline.common.config.secrets import Secrets
from cutline.common.mesh.presence import Registry
from cutline.common.store.store import Store
from cutline.services.control import dashboard
from cutline.services.control.api import (
    acknowledgements,
    audit,
    channels,
    checkpoints,
    commands,
    cuts,
    events,
    health,
    openapi,
    operations,
    pipelines,
    preview,
    problems,
    scrape,
    services,
    source,
    splits,
    table_operations,
    tables,
    tokens,
)
from cutline.services.control.api.access import Access
from cutline.services.control.api.audit_log import AuditLog
from cutline.services.control.api.dependencies import Control
from cutline.services.control.api.gate import BODY_BYTES, Gate
from cutline.services.control.api.source_threads import SourceThreads

ROUTES = (
    pipelines,
    preview,
    operations,
    tables,
    table_operations,
    splits,
    checkpoints,
    channels,
    cuts,
    events,
    acknowledgements,
    commands,
    source,
    services,
    tokens,
    audit,
)


def build(
    registry: Registry,
    store: Store,
    access: Access,
    *,
    body_bytes: int = BODY_BYTES,
    metrics_open: bool = False,
    metrics_tables: int = 200,
    secrets: Secrets | None = None,
) -> FastAPI:
    """Return the application over an open registry and a store; it closes neither.

    `metrics_tables`: how many tables of a pipeline have metrics of their own. `secrets`: what requests may name of this
    machine (None: as without CUTLINE_SECRETS).
    """
    app = FastAPI(
        title="Cutline",
        summary="Pipelines, services and their state",
        description=openapi.DESCRIPTION,
        version=openapi.product_version(),
        openapi_tags=openapi.TAGS,
        generate_unique_id_function=openapi.operation_id,
        redirect_slashes=False,  # an address with one slash too many is a 404 that says so
    )
    log = AuditLog(store.access)
    app.state.control = Control(
        registry=registry,
        store=store,
        access=access,
        audit=log,
        sources=SourceThreads(),
        metrics_tables=metrics_tables,
        secrets=secrets or Secrets(),
    )
    app.add_middleware(Gate, access=access, audit=log, body_bytes=body_bytes, metrics_open=metrics_open)
    problems.handle(app)
    app.add_exception_handler(commands.Repeated, commands.answer_repeated)
    app.include_router(health.router)
    app.include_router(scrape.router)
    app.include_router(dashboard.router())
    for module in ROUTES:
        app.include_router(module.routes)
    openapi.describe(app)
    return app
