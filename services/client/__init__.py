"""What users import: `from cutline import ...`. Installed as the package `cutline` itself (setup.py says how).

    from cutline import Client

    with Client("http://127.0.0.1:8642", token="cutline_...") as client:
        for table in client.each_table("shop", phase="quarantined"):
            print(table.table, table.cause, table.remedy)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutline.services.client.rest import (
        ApiError,
        AsyncClient,
        Client,
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
        models,
    )

    __version__: str

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


def __getattr__(name: str) -> Any:
    """Return a name when it is asked for: `__version__` and the client take longer than many a service's other
    imports."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cutline")
    if name in __all__:
        from cutline.services.client import rest

        return getattr(rest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
