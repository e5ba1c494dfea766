"""The pace of a reader: rows and bytes a second, changed while a batch waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.limits import UNLIMITED, Limits
from cutline.services.reader.chunk_reading import ChunkReading
from cutline.services.reader.pace import Pace
from tests.support.ports import ports


@pytest.mark.parametrize("limits", [Limits(rows_per_second=1000), Limits(bytes_per_second=50_000)])
def test_rows_are_given_no_faster_than_either_limit(limits: Limits) -> None:
    pace, now = Pace(now=5.0), 5.0
    pace.spend(10**9, 10**12, now=now)
    assert pace.seconds_left(now=now) == 0  # nothing is owed from before there was a limit
    pace.set(limits, now=now)
    for _ in range(3):
        pace.spend(100, 5000, now=now)
        now += pace.seconds_left(now=now)
    assert now == pytest.approx(5.3)
    assert pace.seconds_left(now=now) == pytest.approx(0)


def test_what_rounding_leaves_of_a_wait_is_no_wait() -> None:
    pace, now = Pace(now=0.0), 15.99117734822954
    pace.set(Limits(rows_per_second=60), now=now)
    for rows in range(1, 500):
        pace.spend(rows, 1, now=now)
        now += pace.seconds_left(now=now)
        assert pace.seconds_left(now=now) == 0


def test_time_in_which_nothing_was_owed_is_no_credit() -> None:
    pace = Pace(now=0.0)
    pace.set(Limits(rows_per_second=10), now=0.0)
    pace.spend(10, 1, now=100.0)
    assert pace.seconds_left(now=100.5) == pytest.approx(0.5)
    pace.set(UNLIMITED, now=100.5)
    assert pace.seconds_left(now=100.5) == 0


def test_a_batch_that_waits_at_a_low_limit_goes_on_when_it_is_raised() -> None:
    async def run() -> None:
        source = cast(Any, SimpleNamespace(chunks=SimpleNamespace(close=lambda: None)))
        reading = ChunkReading(source, max_threads_running=None, ports=ports())
        reading.set_limits(Limits(rows_per_second=0.001))
        waiting = asyncio.create_task(reading.spend(1000, 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        reading.set_limits(Limits(rows_per_second=100_000))
        await asyncio.wait_for(waiting, 20)
        reading.close()

    asyncio.run(run())
