"""Whether this process serves, and whether what it needs answers; open to everyone."""

from __future__ import annotations

from fastapi import APIRouter, Response

from cutline.common.errors import CutlineError
from cutline.services.control.api.dependencies import RegistryNow, StoreNow
from cutline.services.control.api.models import Health
from cutline.services.control.facts import shared

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Health:
    """Return 200 while this process serves."""
    return Health(ready=True)


@router.get("/readyz", responses={503: {"model": Health}})
async def readyz(registry: RegistryNow, store: StoreNow, response: Response) -> Health:
    """Whether Redis and the store answer, and the store has room."""
    try:
        facts = await shared(registry, store)
        cause = facts.redis_away or facts.store_away or facts.store_full
    except CutlineError as error:
        cause = error.cause
    if cause is not None:
        response.status_code = 503
        return Health(ready=False, cause=str(cause))
    return Health(ready=True)
