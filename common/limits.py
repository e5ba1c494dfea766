"""How fast the readers of a pipeline may read the source (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that may be SELECTed a second, in rows and in bytes of Arrow; None: no limit."""

    rows_per_second: float | None = None
    bytes_per_second: float | None = None

    def __str__(self) -> str:
        given = ((self.rows_per_second, "rows/s"), (self.bytes_per_second, "bytes/s"))
        return " and ".join(f"{most:,.0f} {unit}" for most, unit in given if most is not None) or "any speed"

    def shared(self, readers: int) -> Limits:
        """Each one's share, where so many readers keep them together."""
        rows, size = self.rows_per_second, self.bytes_per_second
        return Limits(rows_per_second=rows and rows / readers, bytes_per_second=size and size / readers)


UNLIMITED = Limits()
