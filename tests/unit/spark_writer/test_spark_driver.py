"""The driver of the Spark writer: who is served when, the order of durability, and what becomes of errors and requests.

No Spark runs: one pipeline is served on a played lake, in played time; several by real threads without a lake."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.schema import Column, TableSchema
from cutline.common.shape import Shape
from cutline.common.status.pipeline_status import Held, SparkWriterStatus
from cutline.common.store.commands import SPARK
from cutline.common.store.lives import Life
from cutline.common.store.store import PipelineStore, Store
from cutline.spark_writer import driver as module
from cutline.spark_writer.apply import Incarnation
from cutline.spark_writer.driver import Driver, serve
from cutline.spark_writer.lead import Everything, Lead
from cutline.spark_writer.ports import Ports
from cutline.spark_writer.sinks.contract import TableFault
from tests.support import records
from tests.support.played_sink import (
    HerePool,
    PlayedClock,
    PlayedEngine,
    PlayedFlag,
    PlayedLake,
    PlayedSink,
    played,
    played_lead,
)

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
    store = Store(f"file://{tmp_path}")
    for name in ("crm", "shop"):
        store.pipeline(name).define(DEFINITION)
    return store


class Threads:
    """Plays the threads of leads: each runs until its lead's `stop` and then until it may end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[str] = []
        self.may_end = threading.Event()
        monkeypatch.setattr(module, "Driver", self._driver)

    def _driver(self, pipeline: PipelineStore, lead: Lead, ports: Ports, *, metrics_tables: int) -> Any:
        def run() -> None:
            self.began.append(pipeline.name)
            lead.stop.wait(20)
            self.may_end.wait(20)
            lead.ended.set()

        return SimpleNamespace(run=run)


def started(call: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


def ports() -> Ports:
    """Real threads and clocks; the engine never ends."""
    engine: Any = SimpleNamespace(check=lambda: None)
    return Ports(clock=time, flag=threading.Event, start=started, pool=HerePool, engine=engine)


@contextmanager
def serving(
    store: Store, leads: Callable[[Collection[str]], Mapping[str, Lead]] | None = None
) -> Iterator[tuple[threading.Event, threading.Thread]]:
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(store, stop, ports(), leads))
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


def test_an_engine_that_has_ended_ends_the_process_after_its_threads(store: Store) -> None:
    ended, driven = Lead(), ports()
    driven.engine.check = lambda: fail("Spark has stopped")  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="Spark has stopped"):
        serve(store, threading.Event(), driven, lambda keys: {next(iter(keys)): ended})
    assert ended.stop.is_set()


def fail(cause: str) -> None:
    raise Unavailable(cause)


def test_alone_a_process_ends_what_is_removed_and_begins_again_what_has_ended() -> None:
    leads = Everything()
    before = dict(leads(["crm", "shop"]))
    before["crm"].ended.set()
    after = leads(["crm"])
    assert before["shop"].stop.is_set()
    assert set(after) == {"crm"}
    assert not after["crm"].ended.is_set()



# One pipeline, on a played lake


ORDERS = TableSchema(
    table_id="shop.orders",
    columns=(Column(field_id=1, name="id", mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)
STOCK = replace(ORDERS, table_id="shop.stock")
SECONDS = 30.0
VIEW = Cause(Code.LAKE, "it is a view", "drop it")


class Bench:
    """A pipeline whose journal the test writes, its lead, and a played lake; `run` serves it for some seconds."""

    def __init__(self, store: PipelineStore) -> None:
        self.store, self.clock, self.lake = store, PlayedClock(), PlayedLake()
        self.lead = played_lead(self.clock)
        self.store.put_schemas([ORDERS, STOCK], epoch=1)
        self.store.put_entry(records.epoch(1))
        self.slot = 1

    def checkpoint(self, *tables: str, generation: int = 1, **other: Any) -> int:
        """A checkpoint with a file of changes of each of these tables; all are live."""
        self.slot += 1
        hashes = {schema.table_id: schema.hash for schema in (ORDERS, STOCK)}
        staged = [
            records.staged(table, path=f"{table} {self.slot}", schema=hashes[table], generation=generation)
            for table in tables
        ]
        entries = {
            table: records.table(schema=schema, generation=generation) for table, schema in hashes.items()
        }
        self.store.put_entry(records.checkpoint(self.slot, staged=tuple(staged), tables=entries, **other))
        return self.slot

    def run(self, seconds: float = SECONDS) -> SparkWriterStatus:
        """Serve; return the last status."""
        self.clock.at(self.clock.now - 1000.0 + seconds, self.lead.stop.set)
        Driver(self.store, self.lead, played(self.clock, self.lake)).run()
        assert self.lead.ended.is_set()
        return self.lead.status

    def again(self) -> None:
        """The lead comes back."""
        self.lead = played_lead(self.clock)


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store.pipeline("shop"))


def test_the_order_of_durability(bench: Bench) -> None:
    """Others' commits, data, commits made durable, the publication, what readers see, the telling of it."""
    n = bench.checkpoint("shop.orders")
    bench.lake.faults["record"] = [Unavailable("killed")]  # the first start ends once all is shown
    seen: list[tuple[str, bool]] = []
    reach = bench.lake.reach
    bench.lake.reach = lambda call, table="": (  # type: ignore[method-assign]
        seen.append((call, n in bench.store.publication_numbers())), reach(call, table))[1]  # fmt: skip
    bench.run()
    calls = [call for call, _ in seen]
    first = [(call, published) for call, published in seen[: calls.index("abandon")] if call != "upkeep"]
    each = [("foreign", False), ("foreign", False), ("apply", False), ("apply", False)]
    assert first == [
        ("open", False), ("check_holder", False), ("begin", False), *each, ("foreign", False), ("foreign", False),
        ("make_durable", False), ("show", True), ("show", True), ("record", True),
    ]  # fmt: skip
    second = calls[calls.index("abandon") + 1 :]
    assert second[:6] == ["open", "check_holder", "begin", "show", "show", "record"]
    assert "apply" not in second
    assert bench.lake.recorded == [n]
    assert bench.lake.rows("shop.orders") == (f"shop.orders {n}",)


def test_requests_are_carried_out_wait_while_the_lake_is_away_and_are_dropped_if_wrong(bench: Bench) -> None:
    wrong = [b"no JSON", b"[]", b"{}", request(seen="nothing", command=8)]
    bench.checkpoint("shop.orders")
    bench.lake.faults["choose"] = [Unavailable("away"), OSError("the JVM ended")]
    asked = [request(), request(kind="retry", command=7), *wrong]
    bench.lead.requests.extend(asked)
    status = bench.run(60.0)
    assert status.commands == {8: "nothing awaits a choice", 7: None}
    assert sorted(bench.lead.handled) == sorted(asked)
    assert not bench.lead.requests
    assert bench.lake.starts == [1]  # no request has ended a start


def test_a_request_whose_command_was_withdrawn_is_not_carried_out(bench: Bench) -> None:
    bench.store.commands.take(8, "ann cancelled it by command 9")
    bench.checkpoint("shop.orders")
    asked = [request(command=8), request(kind="retry", command=10)]
    bench.lead.requests.extend(asked)
    status = bench.run()
    assert "choose shop.stock" not in bench.lake.calls
    assert status.commands == {8: "command 8 was withdrawn: ann cancelled it by command 9", 10: None}
    assert bench.store.commands.taker(10) == SPARK


def test_a_start_that_fails_keeps_the_last_known_status_and_the_pauses_double(bench: Bench) -> None:
    """1. A checkpoint is published. 2. The next apply fails, and so do four starts. 3. The fifth one succeeds."""
    n = bench.checkpoint("shop.orders")
    failures: list[SparkWriterStatus] = []

    class Heard(Lead):
        def report(self, status: SparkWriterStatus) -> None:
            self.status = status
            failures.extend([status] if status.failure is not None else [])

    bench.lead = Heard.by(lambda: PlayedFlag(bench.clock))
    bench.clock.at(5.0, lambda: bench.lake.faults["apply"].append(Unavailable("the lake is away")))
    bench.clock.at(5.0, lambda: bench.lake.faults["open"].extend([Unavailable("away")] * 4))
    bench.clock.at(5.0, lambda: bench.checkpoint("shop.orders"))
    status = bench.run(60.0)
    assert [each.failure and each.failure.again_seconds for each in failures] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert [str(each.failure and each.failure.cause) for each in failures] == ["the lake is away"] + ["away"] * 4
    assert {each.applied for each in failures} == {n}
    first, *others = (each.failure.since for each in failures if each.failure is not None)
    assert first is not None
    assert 1005.0 <= first < 1006.0
    assert others == [first] * 4
    assert status.failure is None
    assert (status.w, status.published) == (2, n + 1)
    assert bench.lake.rows("shop.orders") == (f"shop.orders {n}", f"shop.orders {n + 1}")


def test_a_table_of_its_own_fault_is_left_out_and_the_next_start_applies_what_it_missed(bench: Bench) -> None:
    """1. The first rows of two tables. 2. One refuses its changes twice: it is quarantined, the other goes on. 3. The
    next start applies all that it missed, once."""
    first = bench.checkpoint("shop.orders", "shop.stock")
    bench.clock.at(5.0, lambda: bench.lake.faults["apply shop.stock"].extend([TableFault(VIEW)] * 2))
    bench.clock.at(5.0, lambda: bench.checkpoint("shop.orders", "shop.stock"))
    bench.clock.at(10.0, lambda: bench.checkpoint("shop.orders", "shop.stock"))
    status = bench.run()
    held = status.quarantined["shop.stock"]
    assert held.since is not None
    assert 1005.0 <= held.since < 1010.0
    assert status.quarantined == {"shop.stock": Held(cause=VIEW, generation=1, since=held.since)}
    assert status.published == first + 2
    assert bench.lake.rows("shop.stock") == (f"shop.stock {first}",)
    bench.again()
    bench.clock.at(bench.clock.now - 1000.0 + 1.0, lambda: bench.checkpoint("shop.orders"))
    assert bench.run().quarantined == {}
    for table in ("shop.orders", "shop.stock"):
        missed = 4 if table == "shop.orders" else 3
        assert bench.lake.rows(table) == tuple(f"{table} {slot}" for slot in range(first, first + missed))


def test_a_generation_takes_over_what_its_mode_keeps_in_the_publication_that_shows_it_first(bench: Bench) -> None:
    """1. Two tables of which one is a log. 2. Both are read again; the first start that would show that dies before it
    publishes. 3. The log is paused and resumed. 4. It is read again, and what was to be taken over is refused twice:
    it waits, then a retry shows it."""
    log = replace(ORDERS, shape=Shape(mode="append"))
    bench.store.put_schemas([log], epoch=1)

    def checkpoint(generation: int, *, show: bool = True, rows: bool = True) -> int:
        bench.slot += 1
        schemas = {"shop.orders": log.hash, "shop.stock": STOCK.hash}
        entries = {
            table: records.table(schema=schema, generation=generation, phase="live" if show else "paused", show=show)
            for table, schema in schemas.items()
        }
        staged = [
            records.staged(table, path=f"{table} {bench.slot}", schema=schema, generation=generation)
            for table, schema in schemas.items()
            if rows
        ]
        bench.store.put_entry(records.checkpoint(bench.slot, staged=tuple(staged), tables=entries))
        return bench.slot

    first = checkpoint(1)
    bench.run()
    second = checkpoint(2, show=False)
    bench.again()
    bench.run()
    assert bench.lake.rows("shop.orders") == (f"shop.orders {first}",)
    third = checkpoint(2)
    bench.lake.faults["make_durable"] = [Unavailable("killed")]
    bench.again()
    bench.run()
    for show in (False, True):
        checkpoint(2, show=show, rows=False)
    bench.again()
    bench.run()
    assert bench.lake.calls.count("carry_over shop.orders") == 2
    assert bench.lake.rows("shop.orders") == tuple(f"shop.orders {n}" for n in (first, second, third))
    assert bench.lake.rows("shop.stock") == tuple(f"shop.stock {n}" for n in (second, third))
    bench.lake.faults["carry_over shop.orders"] = [TableFault(VIEW)] * 2
    fourth = checkpoint(3)
    bench.again()
    assert bench.run().quarantined.keys() == {"shop.orders"}
    assert bench.lake.rows("shop.orders") == tuple(f"shop.orders {n}" for n in (first, second, third))
    fifth = checkpoint(3)
    bench.again()
    assert bench.run().quarantined == {}
    every = (first, second, third, fourth, fifth)
    assert bench.lake.rows("shop.orders") == tuple(f"shop.orders {n}" for n in every)
    assert not any(call == "carry_over shop.stock" for call in bench.lake.calls)


def test_a_table_is_quarantined_since_the_first_fault_also_under_the_next_start_and_by_another_cause(
    bench: Bench,
) -> None:
    bench.checkpoint("shop.orders", "shop.stock")
    bench.clock.at(5.0, lambda: bench.lake.faults["apply shop.stock"].extend([TableFault(VIEW)] * 2))
    bench.clock.at(5.0, lambda: bench.checkpoint("shop.orders", "shop.stock"))
    since = bench.run().quarantined["shop.stock"].since
    other = Cause(Code.LAKE, "it has another form")
    bench.again()
    bench.lake.faults["apply shop.stock"].extend([TableFault(other)] * 2)
    bench.clock.at(bench.clock.now - 1000.0 + 1.0, lambda: bench.checkpoint("shop.orders"))
    held = bench.run().quarantined["shop.stock"]
    assert (held.cause, held.since) == (other, since)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded")]
)
def test_a_full_disk_is_named_with_what_helps(bench: Bench, error: OSError) -> None:
    bench.checkpoint("shop.orders")
    bench.lake.faults["open"].extend([error] * 99)
    failure = bench.run(5.0).failure
    assert failure is not None
    assert failure.cause.code == Code.DISK_FULL
    assert str(failure.cause).endswith("; free space on it, or enlarge it")


def test_a_start_that_a_deletion_ends_is_no_failure(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """1. A checkpoint is being applied while the pipeline is deleted. 2. What the apply needs is gone."""
    caplog.set_level("INFO")
    bench.checkpoint("shop.orders")
    reach = bench.lake.reach

    def reached(call: str, table_id: str = "") -> None:
        reach(call, table_id)
        if call == "apply":
            bench.store.put_deleting()
            raise ProtocolError("a staged file is missing")

    bench.lake.reach = reached  # type: ignore[method-assign]
    assert bench.run(5.0).failure is None
    assert "as the pipeline is deleted: a staged file is missing" in caplog.text
    assert {record.levelname for record in caplog.records} <= {"INFO"}


def test_an_error_while_the_sink_refuses_all_commits_is_no_table_s_own(bench: Bench) -> None:
    n = bench.checkpoint("shop.orders")
    bench.lake.faults["apply shop.orders"] = [OSError("the disk of the lake")]
    bench.lake.faults["check"] = [Unavailable("the lake takes no commit")]
    status = bench.run()
    assert (status.w, status.quarantined, status.published) == (2, {}, n)


def test_a_lead_that_is_handed_over_ends_between_two_batches_with_all_that_is_applied_published(bench: Bench) -> None:
    """1. A cut inside a transaction is applied, which can't be published. 2. The hand-over waits for the next one."""
    bench.checkpoint("shop.orders", inside=True)
    bench.clock.at(5.0, bench.lead.hand_over.set)
    bench.clock.at(9.0, lambda: bench.checkpoint("shop.orders"))
    status = bench.run()
    assert bench.clock.now < 1000.0 + SECONDS
    assert status.published == status.applied == bench.slot


def test_without_a_sure_lease_no_start_and_no_upkeep_is_begun(bench: Bench) -> None:
    bench.checkpoint("shop.orders")
    bench.lead.sure_until = 0.0
    bench.clock.at(10.0, lambda: setattr(bench.lead, "sure_until", 1020.0))
    starts: list[int] = []
    bench.clock.at(9.9, lambda: starts.append(len(bench.lake.starts)))
    tended: list[int] = []
    for seconds in (20.0, 29.0):
        bench.clock.at(seconds, lambda: tended.append(bench.lake.calls.count("upkeep")))
    bench.run()
    assert starts == [0]
    assert bench.lake.starts == [1]
    assert tended[0] == tended[1] > 0


def test_a_start_whose_publication_another_one_has_made_ends(bench: Bench) -> None:
    """1. Start 1 has applied a checkpoint. 2. Start 2, a zombie's rival, publishes it first. 3. Start 3 goes on."""
    n = bench.checkpoint("shop.orders")
    rival = PlayedEngine(bench.lake)

    def overtake() -> None:
        bench.lake.faults.clear()
        Incarnation(bench.store, rival.open(bench.store, 1), clock=bench.clock, pool=HerePool).step()

    make_durable = PlayedSink.make_durable

    def durable(sink: PlayedSink) -> None:
        make_durable(sink)
        if sink.w == 1:
            overtake()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlayedSink, "make_durable", durable)
        status = bench.run()
    record = bench.store.publication(n)
    assert record is not None
    assert record.w == 2
    assert (status.w, status.published) == (3, n)
    assert bench.lake.tables["shop.orders"].by[0] == 3
    assert bench.lake.rows("shop.orders") == (f"shop.orders {n}",)


def test_a_deleted_pipeline_is_purged_once_and_nothing_is_applied(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.checkpoint("shop.orders")
    monkeypatch.setattr(PipelineStore, "deleting", lambda store: True)
    monkeypatch.setattr(PipelineStore, "purges", lambda store: not store.has("purged.json"))
    bench.run()
    assert [call for call in bench.lake.calls if call != "engine"] == ["purge"]


def request(**known: str | int) -> bytes:
    return json.dumps({"kind": "lake", "table": "shop.stock", "choice": "accept", "seen": "7/1", **known}).encode()
