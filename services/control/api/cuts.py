"""What the lake shows of each table at a publication."""

from __future__ import annotations

from cutline.services.control.api.dependencies import router

routes = router("cuts")
