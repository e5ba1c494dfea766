"""What takes long is in the status, with the party that is waited for."""

from __future__ import annotations

import pytest

from cutline.common.mesh import awaited
from cutline.common.mesh.awaited import LATE_SECONDS, Awaited


def test_the_oldest_wait_is_told_once_it_is_late_and_no_longer_than_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(awaited.time, "monotonic", lambda: now)
    waits = Awaited()
    assert waits.late is None
    with waits.on("writer-0, to take rows"):
        now += LATE_SECONDS - 1
        assert waits.late is None
        with waits.on("the store, to take a file"):
            now += 2
            assert waits.late == "writer-0, to take rows (11 s so far)"
        now += 100
        assert waits.late == "writer-0, to take rows (111 s so far)"
    assert waits.late is None
