"""What takes long is in the status, with the party that is waited for."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.mesh import awaited
from cutline.common.mesh.awaited import LATE_SECONDS, Awaited
from cutline.common.mesh.machine import State
from cutline.common.mesh.parts import Parts, PartSaving
from cutline.common.waits import Party, Wait
from tests.support.causes import because
from tests.support.ports import ports


def test_the_oldest_wait_is_told_once_it_is_late_and_no_longer_than_it_lasts() -> None:
    now = 100.0
    waits = Awaited(cast(Any, SimpleNamespace(monotonic=lambda: now, time=lambda: now + 1000.0)))
    assert waits.late is None
    with waits.on(Party.MEMBER, "writer-0, to take rows"):
        now += LATE_SECONDS - 1
        assert waits.late is None
        with waits.on(Party.STORE, "the store, to take a file"):
            now += 2
            assert waits.late == Wait(Party.MEMBER, "writer-0, to take rows (11 s so far)", since=1100.0)
        now += 100
        assert waits.late == Wait(Party.MEMBER, "writer-0, to take rows (111 s so far)", since=1100.0)
    assert waits.late is None


def test_a_wait_whose_tries_fail_is_told_at_once_with_the_last_cause_and_since_its_first_try() -> None:
    now = 100.0
    waits = Awaited(cast(Any, SimpleNamespace(monotonic=lambda: now, time=lambda: now)))
    with waits.on(Party.STORE, "the store, to take an entry") as failed:
        assert waits.late is None
        for sentence in ("it is away", "its disk is full"):
            now += 1.0
            failed(because(sentence))
        what = "the store, to take an entry (2 s so far)"
        assert waits.late == Wait(Party.STORE, what, because("its disk is full"), since=100.0)
    assert waits.late is None


async def test_a_store_that_takes_no_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited, "LATE_SECONDS", 0.0)
    asked, over = threading.Event(), threading.Event()

    def hangs(schemas: Any, *, epoch: int) -> None:
        asked.set()
        over.wait(30)
        raise OSError("over")

    store = cast(Any, SimpleNamespace(put_schemas=hangs))
    parts = PartSaving(Parts(store, member="reader-0", epoch=1, incarnation="r"), ports())
    assert parts.waiting_for is None
    saving = asyncio.create_task(parts.save(7, State(head={}, values={})))
    async with asyncio.timeout(10):
        while not asked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert str(parts.waiting_for).startswith("the store, to take the part of checkpoint 7")
    over.set()
    with pytest.raises(OSError, match="over"):
        await saving
    assert parts.waiting_for is None
