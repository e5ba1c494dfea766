"""Traces and lineage reach real HTTP receivers: OTLP's protobuf is decoded, and the events of OpenLineage are read."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis.asyncio import Redis as Client

from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import parse
from cutline.common.mesh.presence import Registry
from cutline.common.status.pipeline_status import Apply, Mark, ReaderStatus, SparkWriterStatus, WriterStatus
from cutline.common.store.records import Content, Main, Publication, PublishedTable
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control import duties as watch_file
from cutline.services.control.duties import jobs_of, watch
from cutline.services.control.lineage import KEY, event
from cutline.services.control.traces import Traces
from tests.support import openlineage, records
from tests.support.receiver import Receiver

SHOP = "name: shop\nsource: {host: db, user: u, password_env: P}\ntables: [a.*]\nsink: {warehouse: /lake}\n"
AT = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "LOOK_SECONDS", 0.05)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"file://{tmp_path}")
    shop = store.pipeline("shop")
    shop.define(parse(SHOP).definition())
    shop.put_entry(records.epoch(1))
    return store


def publish(shop: PipelineStore, n: int, **snapshots: int) -> None:
    """Checkpoint `n`, and its publication, which shows these snapshots of the tables."""
    staged = (records.staged("a.b", rows=7, size=100),)
    times = {"started_at": AT + n, "written_at": AT + n + 0.5}
    shop.put_entry(records.checkpoint(n, 1, staged=staged, kept=n == 3, **times))
    tables = {
        f"a.{name}": PublishedTable(state="live", generation=1, main=Main(content=Content(str(snapshot))), work=None)
        for name, snapshot in snapshots.items()
    }
    known: dict[str, Any] = {"epoch": 1, "w": 1, "kept": False, "position": records.place(n), "source_time": AT}
    shop.publish(Publication(n=n, published_at=AT + n + 1, tables=tables, **known))


def applied(n: int) -> Apply:
    return Apply(
        first=n,
        last=n,
        rows=7,
        applied_at=AT + n + 0.9,
        seconds=0.3,
        tables={"a.b": 0.2},
        published_at=AT + n + 1,
    )


class Control:
    """A control service that watches one store and one Redis."""

    def __init__(self, redis: Client, store: Store, environment: Environment) -> None:
        self.registry, self.store = Registry(redis), store
        self._jobs = jobs_of(environment, redis, store)
        self._work = watch(self.registry, store, redis, self._jobs, "c1")

    async def __aenter__(self) -> Control:
        self._task = asyncio.create_task(self._work)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def has_seen(self, n: int) -> None:
        """Return once the traces begin after publication `n`."""
        (traces,) = (job for job in self._jobs if isinstance(job, Traces))
        async with asyncio.timeout(20):
            while traces._seen.get(self.store.pipeline("shop").key) != n:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def shows(self, n: int, *applies: int) -> None:
        """The status once publication `n` is made."""
        marks = tuple(Mark(each, AT + each + 0.1, AT + each + 0.2) for each in applies)
        for member, part in (("reader-0", ReaderStatus(marks=marks)), ("writer-0", WriterStatus(marks=marks))):
            await self.registry.put_status(self.store.pipeline("shop").key, member, part)
        status = SparkWriterStatus(
            published=n, published_at=AT + n + 1, applies=tuple(applied(each) for each in applies)
        )
        await self.registry.put_status(self.store.pipeline("shop").key, "spark_writer", status)


async def kept(redis: Client, n: int) -> None:
    """Return once Redis has that publication `n` was sent; a control service that ends before sends it again."""
    async with asyncio.timeout(20):
        while await redis.hget(KEY, (await redis.hkeys(KEY) or [b""])[0]) != str(n).encode():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_publication_is_an_event_with_source_tables_and_snapshots(
    redis: Client, store: Store, tmp_path: Path
) -> None:
    """1. The newest publication is sent at first, with all its tables. 2. The receiver refuses the next two posts; the
    following publications come in order, each with what it moved, and one that moved nothing is left out. 3. A control
    service that takes over sends nothing again.
    """
    shop = store.pipeline("shop")
    publish(shop, 2, b=20, c=21)
    with Receiver() as receiver:
        environment = Environment(lineage_url=f"{receiver.url}/api/v1/lineage", lineage_key="sesame")
        async with Control(redis, store, environment) as control:
            await control.shows(2)
            await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 1)
            receiver.refuse = 2
            for n, c in ((3, 31), (4, 31), (5, 32)):
                publish(shop, n, b=20, c=c)
            await control.shows(5)
            await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 3)
            await kept(redis, 5)
        async with Control(redis, store, environment) as control:
            publish(shop, 6, b=60, c=32)
            await control.shows(6)
            await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 4)
            await kept(redis, 6)
    assert {(post.path, post.headers["authorization"]) for post in receiver.taken} == {
        ("/api/v1/lineage", "Bearer sesame")
    }
    events = [json.loads(post.body) for post in receiver.taken]
    assert [fault for event in events for fault in openlineage.faults(event)] == []
    outputs = [
        {each["name"]: each["facets"]["version"]["datasetVersion"] for each in event["outputs"]} for event in events
    ]
    assert outputs == [{"a.b": "20", "a.c": "21"}, {"a.c": "31"}, {"a.c": "32"}, {"a.b": "60"}]
    first = events[0]
    assert (first["eventType"], first["job"]["namespace"], first["job"]["name"]) == ("COMPLETE", "cutline", "shop")
    assert first["inputs"] == [{"namespace": "mysql://db:3306", "name": name} for name in ("a.b", "a.c")]
    assert {each["namespace"] for each in first["outputs"]} == {"file:///lake"}
    assert len({uuid.UUID(event["run"]["runId"]) for event in events}) == 4
    assert first["run"]["facets"]["cutline_publication"]["checkpoint"] == 2


def test_an_event_that_openlineage_forbids_is_found_out() -> None:
    main = PublishedTable(state="live", generation=1, main=Main(content=Content("5")), work=None)
    known: dict[str, Any] = {"epoch": 1, "w": 1, "kept": False, "position": None, "source_time": None}
    definition = parse(SHOP).definition()

    def faults(change: Callable[[Any], object]) -> list[str]:
        record = Publication(n=2, published_at=AT, tables={"a.b": main}, **known)
        made: Any = event(records.LIFE, record, None, definition)
        change(made)
        return openlineage.faults(made)

    assert faults(lambda made: None) == []
    for change in (
        lambda made: made.pop("producer"),
        lambda made: made.update(eventTime="yesterday"),
        lambda made: made["run"].update(runId="2"),
        lambda made: made["run"]["facets"]["cutline_publication"].pop("_schemaURL"),
        lambda made: made["job"]["facets"]["jobType"].pop("integration"),
        lambda made: made["outputs"][0]["facets"]["version"].update(datasetVersion=5),
        lambda made: made["inputs"][0].pop("namespace"),
    ):
        assert len(faults(change)) == 1


async def test_a_publication_is_a_trace_of_its_checkpoint(redis: Client, store: Store, tmp_path: Path) -> None:
    """1. The newest publication is there at the start, and has no trace. 2. The next one is sent as OTLP; a refused
    post is sent again. Each span lies within its parent, and has the times of the status."""
    shop = store.pipeline("shop")
    publish(shop, 2, b=20)
    with Receiver(refuse=1) as receiver:
        environment = Environment(traces_url=f"{receiver.url}/v1/traces")
        made = Control(redis, store, environment)
        await made.shows(2, 2)
        async with made as control:
            await control.has_seen(2)
            publish(shop, 3, b=30)
            await control.shows(3, 2, 3)
            await asyncio.to_thread(receiver.wait, lambda r: len(r.taken) == 1)
    (post,) = receiver.taken
    assert (post.path, post.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    request = ExportTraceServiceRequest.FromString(post.body)
    (resource,) = request.resource_spans
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "cutline"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    inner = {f"{step} {member}": member for member in ("reader-0", "writer-0") for step in ("marker", "part")}
    inner["apply a.b"] = "apply"
    assert spans.keys() - inner.keys() == {"checkpoint", "reader-0", "writer-0", "entry", "apply", "publish"}
    assert len({span.trace_id for span in spans.values()}) == 1
    by_id = {span.span_id: span for span in spans.values()}
    for span in spans.values():
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        if span.name == "checkpoint":
            assert not span.parent_span_id
            continue
        parent = by_id[span.parent_span_id]
        assert parent.name == inner.get(span.name, "checkpoint")
        assert parent.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
    root = spans["checkpoint"]
    attributes = {a.key: a.value for a in root.attributes}
    assert attributes["cutline.checkpoint"].int_value == 3
    assert attributes["cutline.staged_rows"].int_value == 7
    assert attributes["cutline.savepoint"].bool_value
    assert root.end_time_unix_nano - root.start_time_unix_nano == 1_000_000_000
    assert spans["apply"].end_time_unix_nano - spans["apply"].start_time_unix_nano == pytest.approx(3e8, abs=1e3)
