"""Every metric, for Prometheus."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Depends, Response

from cutline.services.control import metrics
from cutline.services.control.api.dependencies import RegistryNow, StoreNow, bearer

router = APIRouter(tags=["metrics"], dependencies=[Depends(bearer)])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def scrape(registry: RegistryNow, store: StoreNow) -> Response:
    """Return every metric, for Prometheus."""
    names = await asyncio.to_thread(store.pipelines)
    statuses = {name: await registry.status(name) for name in names}
    body = metrics.render(statuses, await registry.services(), time.time())
    return Response(body, headers={"Content-Type": metrics.CONTENT_TYPE})
