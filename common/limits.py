"""How fast the readers of a pipeline may read the source (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that may be SELECTed a second, in rows and in bytes of Arrow; None: no limit."""

    rows_per_second: float | None = None
    bytes_per_second: float | None = None


UNLIMITED = Limits()
