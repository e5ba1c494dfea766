"""The driver's clock."""

from __future__ import annotations

import time

import pytest

from cutline.common.driver import Clock


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
