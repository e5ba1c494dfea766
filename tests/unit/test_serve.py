"""Threads of the Spark writer: who is served when, and what becomes of errors and requests. No Spark runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.status.pipeline_status import CompactionStatus, Held
from cutline.common.store.commands import SPARK
from cutline.common.store.lives import Life
from cutline.common.store.records import Quarantine
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer import serve as module
from cutline.spark_writer.progress import Progress
from cutline.spark_writer.serve import Everything, Lead, PipelineApplier, serve
from tests.support import records
from tests.support.causes import because

DEFINITION = {"sink": {"spark": {"spark.driver.memory": "2g"}}}


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with two pipelines, to be served without Spark."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module.session, "start", lambda settings: settings)
    monkeypatch.setattr(module, "_check", lambda spark: None)
    store = Store(f"file://{tmp_path}")
    for name in ("crm", "shop"):
        store.pipeline(name).define(DEFINITION)
    return store


class Threads:
    """Plays the threads of leads: each runs until its lead's `stop` and then until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[str] = []
        self.may_end = threading.Event()
        self.spark: Any = None
        monkeypatch.setattr(module, "_applier", self._applier)

    def _applier(self, pipeline: PipelineStore, store_url: str, spark: Any, lead: Lead) -> Any:
        self.spark = spark

        def run() -> None:
            self.began.append(pipeline.name)
            lead.stop.wait(20)
            self.may_end.wait(20)
            lead.ended.set()

        return SimpleNamespace(run=run)


@contextmanager
def serving(
    store: Store, leads: Callable[[Collection[str]], Mapping[str, Lead]] | None = None
) -> Iterator[tuple[threading.Event, threading.Thread]]:
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(store, stop, leads))
    thread.start()
    try:
        yield stop, thread
    finally:
        stop.set()
        thread.join(20)


def test_a_pipeline_that_comes_back_is_served_while_its_last_step_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A lead is lost in a long step. 2. The next one is served at once. 3. The end waits for both."""
    threads, old, new = Threads(monkeypatch), Lead(), Lead()
    key = store.pipeline("shop").key
    led = {key: old}
    with serving(store, lambda names: dict(led)) as (stop, thread):
        until(lambda: threads.began == ["shop"])
        old.stop.set()
        led[key] = new
        until(lambda: threads.began == ["shop", "shop"])
        stop.set()
        thread.join(0.2)
        assert thread.is_alive()
        assert not old.ended.is_set()
        threads.may_end.set()
        thread.join(20)
        assert old.ended.is_set()
        assert new.ended.is_set()


def test_a_store_that_can_not_be_listed_ends_nothing_and_counts_as_not_served(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads, everything, asked = Threads(monkeypatch), Everything(), 0
    listing, away = store.lives, threading.Event()

    def lives() -> list[Life]:
        if away.is_set():
            raise ConfigError("the store can't be used")
        return listing()

    def leads(names: Collection[str]) -> Mapping[str, Lead]:
        nonlocal asked
        asked += 1
        return everything(names)

    monkeypatch.setattr(store, "lives", lives)
    threads.may_end.set()
    with serving(store, leads) as (_, thread):
        until(lambda: len(threads.began) == 2)
        away.set()
        until(lambda: "could not be listed" in caplog.text)
        before = asked
        time.sleep(0.2)
        assert asked - before <= 1
        assert thread.is_alive()
        assert caplog.text.count("could not be listed") == 1
        away.clear()
        until(lambda: asked > before + 1)
    assert sorted(threads.began) == ["crm", "shop"]


def test_a_definition_that_is_corrupt_or_gone_prevents_no_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(monkeypatch)
    threads.may_end.set()
    Path(store.pipeline("crm").location("pipeline.json")).write_text("{")
    store.pipeline("old").define({})
    with serving(store):
        until(lambda: sorted(threads.began) == ["crm", "old", "shop"])
    assert threads.spark == DEFINITION["sink"]["spark"]


def test_alone_a_process_ends_what_is_removed_and_begins_again_what_has_ended() -> None:
    leads = Everything()
    before = dict(leads(["crm", "shop"]))
    before["crm"].ended.set()
    after = leads(["crm"])
    assert before["shop"].stop.is_set()
    assert set(after) == {"crm"}
    assert not after["crm"].ended.is_set()


class Played:
    """An incarnation whose lake the test plays: `faults` are the next errors of its start, its steps and choices."""

    faults: dict[str, list[Exception]]
    done: list[str]
    w = 0
    definition = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        Played._fail("start")
        Played.w += 1
        held = {"shop.stock": Quarantine(cause=because("it is a view"), generation=1, applied=None)}
        self.progress = Progress(w=Played.w, published=None, applied=7, work={}, quarantined=held)
        self.upkeep = SimpleNamespace(run=lambda: False, files=lambda most: {}, compaction=CompactionStatus)

    @staticmethod
    def _fail(what: str) -> None:
        if errors := Played.faults.get(what):
            raise errors.pop(0)

    def step(self) -> bool:
        Played._fail("step")
        return False

    def choose(self, table: str, choice: str, seen: str) -> None:
        Played._fail("choose")
        Played.done.append(f"{choice} {table}")

    def retry(self, table: str | None = None) -> None:
        Played.done.append(f"retry {table}")

    def rest(self, seconds: float, pause: Callable[[float], bool]) -> None:
        pause(seconds)

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def applied(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lead]:
    """The lead of a pipeline whose incarnations are played."""
    Played.faults, Played.done, Played.w = {}, [], 0
    monkeypatch.setattr(module, "Incarnation", Played)
    monkeypatch.setattr(PipelineApplier, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(PipelineApplier, "AGAIN_SECONDS", (0.05, 0.05))
    monkeypatch.setattr(PipelineApplier, "REQUEST_SECONDS", 0.05)
    pipeline, lead = store.pipeline("shop"), Lead()
    pipeline.put_entry(records.epoch(1))
    pipeline.put_entry(records.checkpoint(2))
    config: Any = SimpleNamespace(sink=SimpleNamespace(engine="auto"), retention=None)
    lake: Any = None
    thread = threading.Thread(target=PipelineApplier(pipeline, lambda version: (lake, config), lead).run)
    thread.start()
    yield lead
    lead.stop.set()
    thread.join(20)
    assert lead.ended.is_set()


def request(**known: str | int) -> bytes:
    return json.dumps({"kind": "lake", "table": "shop.stock", "choice": "accept", "seen": "7/1", **known}).encode()


def test_requests_are_carried_out_wait_while_the_lake_is_away_and_are_dropped_if_wrong(applied: Lead) -> None:
    wrong = [b"no JSON", b"[]", b"{}", request(choice="refused", command=8)]
    Played.faults["choose"] = [ConfigError("nothing awaits a choice"), Unavailable("away"), OSError("the JVM ended")]
    asked = [*reversed(wrong), request(), request(kind="retry", command=7)]
    applied.requests.extend(asked)
    until(lambda: len(applied.handled) == len(asked))
    assert sorted(Played.done) == ["accept shop.stock", "retry shop.stock"]
    assert applied.status.commands == {8: "nothing awaits a choice", 7: None}
    assert sorted(applied.handled) == sorted(asked)
    assert not applied.requests
    assert Played.w == 1  # no request has ended a start


def test_a_request_whose_command_was_withdrawn_is_not_carried_out(applied: Lead, store: Store) -> None:
    store.pipeline("shop").commands.take(8, "ann cancelled it by command 9")
    asked = [request(command=8), request(kind="retry", command=10)]
    applied.requests.extend(asked)
    until(lambda: len(applied.handled) == len(asked))
    assert Played.done == ["retry shop.stock"]
    assert applied.status.commands == {8: "command 8 was withdrawn: ann cancelled it by command 9", 10: None}
    assert store.pipeline("shop").commands.taker(10) == SPARK


def test_a_start_that_fails_keeps_the_last_known_status(applied: Lead) -> None:
    until(lambda: applied.status.applied == 7)
    Played.faults["start"] = [Unavailable("the catalogue is away") for _ in range(1000)]
    Played.faults["step"] = [Unavailable("another Spark writer has published")]
    until(lambda: (now := applied.status.failure) is not None and str(now.cause) == "the catalogue is away")
    assert applied.status.applied == 7
    assert applied.status.quarantined == {"shop.stock": Held(cause=because("it is a view"), generation=1)}
    Played.faults["start"] = []
    until(lambda: applied.status.failure is None)
    assert applied.status.w == Played.w == 2
