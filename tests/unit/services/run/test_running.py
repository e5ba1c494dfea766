"""Commands of the command line that need no control service: they go into the store, as everybody's do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import ConfigError, CutlineError
from cutline.common.limits import Limits
from cutline.common.status.pipeline_status import Held, PipelineStatus, SparkWriterStatus
from cutline.common.store.command_records import Orders, Outcome
from cutline.common.store.store import PipelineStore, Store
from cutline.services.run import running
from tests.support.causes import because


@pytest.fixture
def shop(tmp_path: Path) -> PipelineStore:
    found = Store(f"file://{tmp_path}").pipeline("shop")
    found.define({"tables": ["shop.*"]})
    return found


@contextmanager
def leader(shop: PipelineStore, **outcome: Any) -> Iterator[None]:
    """A leader that finishes the first command so."""

    def work() -> None:
        deadline = time.monotonic() + 10
        while shop.commands.get(1) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        shop.commands.put_outcome(Outcome(n=1, at=1.0, orders=Orders(), **outcome))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def test_a_throttle_is_a_command_with_its_author_and_returns_once_it_is_done(shop: PipelineStore) -> None:
    with leader(shop, state="done"):
        running.throttle(shop, Limits(rows_per_second=50.0))
    command = shop.commands.get(1)
    assert command is not None
    assert (command.kind, command.by) == ("limits", "cutline throttle")
    assert command.arguments == {"rows_per_second": 50.0, "bytes_per_second": None}


def test_a_command_that_is_refused_or_that_nobody_takes_says_so(
    shop: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leader(shop, state="refused", cause="it was cold", remedy="warm it"):
        with pytest.raises(CutlineError, match=r"command 1 \(limits\) refused: it was cold; warm it"):
            running.throttle(shop, Limits())
    monkeypatch.setattr(running, "THROTTLE_SECONDS", 0.1)
    with pytest.raises(CutlineError, match="is accepted and not carried out yet"):
        running.throttle(shop, Limits())


def test_nothing_is_commanded_of_a_pipeline_that_is_not_there_or_is_being_deleted(
    shop: PipelineStore, tmp_path: Path
) -> None:
    other = Store(f"file://{tmp_path}").pipeline("other")
    with pytest.raises(ConfigError, match="no pipeline other"):
        running.throttle(other, Limits())
    assert other.commands.newest() == 0
    shop.commands.put_outcome(Outcome(n=1, state="done", at=1.0, orders=Orders(mode="deleting")))
    with pytest.raises(ConfigError, match="the pipeline is being deleted; wait"):
        running.throttle(shop, Limits())


def test_a_choice_about_commits_of_others_names_those_that_the_status_shows(shop: PipelineStore) -> None:
    held = Held(cause=because("c"), generation=1, seen="7/1", choices=("overwrite",))
    status = PipelineStatus(spark_writer=SparkWriterStatus(quarantined={"a.b": held}))
    with pytest.raises(ConfigError, match="awaits a choice"):
        running.choose(shop, PipelineStatus(), "a.b", "overwrite")
    with pytest.raises(ConfigError, match="can't be accepted"):
        running.choose(shop, status, "a.b", "accept")
    with leader(shop, state="done"):
        running.choose(shop, status, "a.b", "overwrite")
    command = shop.commands.get(1)
    assert command is not None
    assert command.arguments == {"table": "a.b", "choice": "overwrite", "seen": "7/1"}
