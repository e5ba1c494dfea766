"""Every metric, for Prometheus."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Depends, Response

from cutline.common.threads import Threads
from cutline.services.control import metrics
from cutline.services.control.api.dependencies import Shared, bearer
from cutline.services.control.facts import gathered
from cutline.services.control.standing import labels_of

router = APIRouter(tags=["metrics"], dependencies=[Depends(bearer)])
_RENDERING = Threads("metrics")


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def scrape(control: Shared) -> Response:
    """Return every metric, for Prometheus."""
    facts = await gathered(control.registry, control.store)
    held = await control.standing.look(facts)
    known = labels_of(held)
    body = await _RENDERING.call(partial(metrics.render, facts, most=control.metrics_tables, conditions=known))
    return Response(body, headers={"Content-Type": metrics.CONTENT_TYPE})
