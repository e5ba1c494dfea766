"""The service processes."""

from __future__ import annotations

from cutline.services.control.api.dependencies import RegistryNow, router
from cutline.services.control.api.models import ServiceView

routes = router("services")


@routes.get("/services")
async def services(registry: RegistryNow) -> list[ServiceView]:
    """List the service processes that were alive within the last five seconds."""
    return [ServiceView.model_validate(service, from_attributes=True) for service in await registry.services()]
