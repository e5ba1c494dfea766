"""The typed client of the REST API. Import its names from `cutline`."""

from __future__ import annotations

from cutline.services.client.rest import models
from cutline.services.client.rest.client import AsyncClient, Client
from cutline.services.client.rest.errors import (
    ApiError,
    CommandFailed,
    Conflict,
    Forbidden,
    NotFound,
    PreconditionFailed,
    ServiceUnavailable,
    TimedOut,
    Unauthorized,
    Unreachable,
    WrongRequest,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "CommandFailed",
    "Conflict",
    "Forbidden",
    "NotFound",
    "PreconditionFailed",
    "ServiceUnavailable",
    "TimedOut",
    "Unauthorized",
    "Unreachable",
    "WrongRequest",
    "models",
]
