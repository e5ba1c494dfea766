"""Calls to the store for requests, metrics and alerts: all of them learn within seconds that a store hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cutline.common.errors import Unavailable
from cutline.common.mesh import loop
from cutline.common.store.backends import answered_at

SILENT_SECONDS = 8.0
"""Less than the ten seconds that Prometheus waits for metrics."""
P = ParamSpec("P")
T = TypeVar("T")


async def in_store(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Make a blocking call to the store. Unavailable once the store has answered no call of this process for
    SILENT_SECONDS, even though its own time-outs are minutes, and a disk has none; many answers may take longer.

    A call that has begun goes on in its thread, and what it writes may be written later, as after a lost answer.
    """
    begun, asking = time.monotonic(), asyncio.ensure_future(loop.in_store(call, *arguments, **named))
    try:
        while True:
            left = max(begun, answered_at()) + SILENT_SECONDS - time.monotonic()
            if left <= 0:
                raise Unavailable(
                    f"the store has not answered for {SILENT_SECONDS:.0f} s",
                    "check the disk or the object storage that CUTLINE_STORE_URL names, and the way there",
                )
            await asyncio.wait([asking], timeout=left)
            if asking.done():
                return asking.result()
    finally:
        asking.cancel()
