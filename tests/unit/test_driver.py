"""The driver's clock; what every service does first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from cutline.common.mesh.host import Clock, LoopLag


def test_time_goes_on_while_the_systems_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, steady = 1_000_000.0, 50.0
    monkeypatch.setattr(time, "time", lambda: wall)
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    clock = Clock()
    assert clock() == 1_000_000.0
    wall, steady = wall - 3600.0, steady + 10.0
    assert clock() == 1_000_010.0  # else nothing would be due for an hour
    wall, steady = wall + 5.0, steady + 5.0
    assert clock() == 1_000_015.0
    wall, steady = wall + 7200.0, steady + 1.0
    assert clock() == wall


@pytest.mark.parametrize("module", ["services.enumerator", "services.reader", "services.writer", "services.control"])
def test_every_service_takes_all_the_descriptors_that_it_may(module: str) -> None:
    program = f"""
import asyncio, resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
def run(work):
    work.close()
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
asyncio.run = run
runpy.run_module("cutline.{module}", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "(256, 256)\n", ended.stderr


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
