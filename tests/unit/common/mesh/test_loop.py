"""The clock that machines see; how long the event loop was held."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from cutline.common.mesh.loop import LoopLag, SteadyTime


def test_time_goes_on_while_the_systems_clock_is_set_back() -> None:
    wall, steady = 1_000_000.0, 50.0
    clock = SteadyTime(SimpleNamespace(time=lambda: wall, monotonic=lambda: steady))
    assert clock() == 1_000_000.0
    wall, steady = wall - 3600.0, steady + 10.0
    assert clock() == 1_000_010.0  # else nothing would be due for an hour
    wall, steady = wall + 5.0, steady + 5.0
    assert clock() == 1_000_015.0
    wall, steady = wall + 7200.0, steady + 1.0
    assert clock() == wall


async def test_the_longest_hold_of_the_event_loop_is_told_for_a_while() -> None:
    lag = LoopLag(window_seconds=0.5)
    time.sleep(0.2)  # noqa: ASYNC251 (the hold)
    await asyncio.sleep(0.05)
    assert lag.longest() >= 0.18
    for _ in range(100):  # however busy the machine is, it lets go in the end
        await asyncio.sleep(0.1)
        if lag.longest() < 0.18:
            break
    assert lag.longest() < 0.18
    lag.end()
