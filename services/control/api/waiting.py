"""`?wait=30s`: an answer that comes once something changed, or when that time has passed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Query

from cutline.services.control.api.problems import Refused

LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.25
_WAIT = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
T = TypeVar("T")


async def _seconds(
    wait: Annotated[
        str | None,
        Query(description="wait up to this long for the end or a change, 60s at most", examples=["1s"], max_length=16),
    ] = None,
) -> float:
    if wait is None:
        return 0.0
    found = _WAIT.fullmatch(wait)
    if found is None:
        raise Refused(422, f"wait is {wait!r}, which is no duration", "write it as in ?wait=30s")
    return min(LONGEST_SECONDS, float(found[1]) * _UNITS[found[2] or "s"])


Wait = Annotated[float, Depends(_seconds)]
"""How long a request is to wait, in seconds; 0: not at all."""


def matches(if_none_match: str, tag: str) -> bool:
    """Whether the header If-None-Match names this ETag, compared weakly."""
    named = re.findall(r'(?:W/)?("[^"]*")', if_none_match)
    return if_none_match.strip() == "*" or tag.removeprefix("W/") in named


async def until(look: Callable[[], Awaitable[T]], done: Callable[[T], bool], seconds: float) -> T:
    """Return what `look` returns as soon as `done` says so of it, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found, left = await look(), deadline - time.monotonic()
        if done(found) or left <= 0:
            return found
        await asyncio.sleep(min(_LOOK_SECONDS, left))
