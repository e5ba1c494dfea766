"""The pace of a reader: rows and bytes a second, changed while somebody waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from cutline.common.mesh.messages import Limits
from cutline.services.reader.__main__ import Pace


async def seconds(pace: Pace, rows: int, size: int) -> float:
    began = time.monotonic()
    await pace.spend(rows, size)
    return time.monotonic() - began


@pytest.mark.parametrize("limits", [Limits(rows_per_second=1000), Limits(bytes_per_second=50_000)])
def test_rows_are_given_no_faster_than_either_limit(limits: Limits) -> None:
    async def run() -> float:
        pace = Pace()
        assert await seconds(pace, 10**9, 10**12) < 0.1  # nothing is owed from before there was a limit
        pace.set(limits)
        return sum([await seconds(pace, 100, 5000) for _ in range(3)])

    assert asyncio.run(run()) >= 0.29


def test_who_waits_at_a_low_limit_goes_on_when_it_is_raised() -> None:
    async def run() -> None:
        pace = Pace()
        pace.set(Limits(rows_per_second=0.001))
        waiting = asyncio.create_task(pace.spend(1000, 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        pace.set(Limits(rows_per_second=100_000))
        await asyncio.wait_for(waiting, 20)

    asyncio.run(run())
