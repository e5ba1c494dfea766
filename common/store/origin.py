"""What a content that is no longer its table's newest one was made of (pure)."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """The generation of a content and the hash of its schema, and the time in seconds since 1970 up to which it has the
    source's changes (None: unknown)."""

    generation: int
    schema: str
    source_time: float | None
