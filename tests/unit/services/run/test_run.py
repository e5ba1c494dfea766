"""`cutline run` and a source that does not answer: it says what it waits for, and goes on looking meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import parse
from cutline.common.status.pipeline_status import PipelineStatus, TableStatus
from cutline.services.run import run as module
from cutline.services.run.run import Run

CONFIG = parse("name: shop\nsource: {host: db, user: cdc}\ntables: [s.*]\nsink: {warehouse: /lake}\n")


class View:
    """What the run shows."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, status: Mapping[str, Any], *, notes: tuple[str, ...] = ()) -> None:
        self.notes += notes


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A source that answers once this is set."""
    over = threading.Event()
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    yield over
    over.set()


def started(tmp_path: Path, view: View) -> Run:
    return Run(CONFIG, Environment(), workdir=tmp_path, until="caught-up", view=cast(Any, view))


async def test_ctrl_c_ends_a_start_whose_source_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: threading.Event
) -> None:
    view = View()
    run = started(tmp_path, view)
    monkeypatch.setattr(Run, "_check", lambda self: over.wait(30) and {})
    checked = asyncio.create_task(run._checked())
    async with asyncio.timeout(10):
        await asyncio.wait([checked], timeout=0.2)
        assert view.notes[-1] == "waiting for the source and the store to answer"
        run._interrupted()
        assert await checked is None


async def test_a_source_that_hangs_when_it_is_asked_for_its_end_stops_no_look_at_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: threading.Event
) -> None:
    """1. All tables are live, and the source is asked for its end, once. 2. Until it answers, each look says so. 3. The
    answer is the target."""
    asked: list[Any] = []
    high = cast(Any, SimpleNamespace())

    def hangs(config: Any, *, at: str | None) -> Any:
        asked.append(at)
        over.wait(30)
        return high

    monkeypatch.setattr(module, "flushed_high", hangs)
    run = started(tmp_path, View())
    run._status = PipelineStatus(tables={"s.t": TableStatus(phase="live")})
    async with asyncio.timeout(10):
        for _ in range(3):
            assert not await run._done()
            assert run._notes == ("waiting for the source to say where its binlog ends",)
        over.set()
        while run._target is None:
            assert not await run._done()
    assert (run._target, run._notes, asked) == (high, (), [None])
