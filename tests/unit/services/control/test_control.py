"""The control API in process: real store, a registry that answers what it is told to."""

import time
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutline.common.mesh.presence import GaveUp, Registry, Service
from cutline.common.store.commands import Orders, Outcome
from cutline.common.store.lives import Key
from cutline.common.store.records import Publication
from cutline.common.store.store import Store
from cutline.common.waits import Party, Wait
from cutline.services.control import watch as watching
from cutline.services.control.history import Event, Place
from cutline.services.control.watch import Watches
from tests.support import records
from tests.support.causes import because
from tests.support.control_api import DEFINITION, FakeRegistry, api, client, registry, store

__all__ = ["api", "registry", "store"]  # the fixtures


async def test_services_are_listed_with_their_pids_and_what_they_gave_up(
    api: httpx.AsyncClient, registry: FakeRegistry, store: Store
) -> None:
    failure = GaveUp(epoch=3, cause=because("x"), halts=False)
    gave_up = {store.pipeline("shop").key: failure, Key("shop.000000000000"): failure}  # the latter was deleted
    registry.present[1] = replace(registry.present[1], failed=gave_up)
    services = (await api.get("/v1/services")).json()
    assert [(service["role"], service["pid"]) for service in services] == [("reader", 10), ("reader", 11)]
    assert services[1]["failed"] == {
        "shop": {"epoch": 3, "cause": because("x").to_json(), "halts": False, "lost": ""}
    }


async def test_a_pipeline_is_told_with_its_definition_and_how_it_goes(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    (pipeline,) = (await api.get("/v1/pipelines")).json()
    assert pipeline == (await api.get("/v1/pipelines/shop")).json()
    assert pipeline["definition"] == DEFINITION
    assert (pipeline["epoch"], pipeline["checkpoint"], pipeline["publication"]) == (1, 2, 2)
    assert pipeline["leader"] == "e1"
    assert pipeline["spark_writer"] is None  # the one that the status names is gone
    assert pipeline["tables"] == {"dropped": 1, "quarantined": 1, "snapshot": 1}
    assert pipeline["limits"] == {"rows_per_second": 100, "bytes_per_second": None}
    assert pipeline["waiting_for"] == {
        "party": "busy_source",
        "what": "the source to become less busy",
        "cause": None,
        "since": None,
    }
    registry.present.append(Service(incarnation="s1", role="spark_writer", host="h", pid=20, started_at=1.0))
    assert (await api.get("/v1/pipelines/shop")).json()["spark_writer"] == "s1"


async def test_a_pipeline_is_told_with_its_derived_tables(api: httpx.AsyncClient, registry: FakeRegistry) -> None:
    cause = because("the query of d.bad is refused by Spark: no", "correct sql in derived")
    good = {"checkpoint": 2, "rows": 7, "seconds": 0.5, "at": 100.0, "plan": "Aggregate"}
    good |= {"computed": 3, "in_full": ""}
    registry.parts["spark_writer"]["derived"] = {"d.good": good, "d.bad": {"cause": cause}}
    found = (await api.get("/v1/pipelines/shop")).json()
    assert found["derived"]["d.good"] == {**good, "cause": None}
    assert found["derived"]["d.bad"]["cause"] == cause.to_json()
    assert found["tables"] == {"dropped": 1, "quarantined": 1, "snapshot": 1}


async def test_what_a_late_checkpoint_lacks_stands_behind_the_reader_that_waits_for_it(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    waits = Wait(Party.CHECKPOINT, "a checkpoint", because("this reader has sent 9 MiB"))
    late = Wait(Party.CHECKPOINT, "checkpoint 4, begun 40 s ago", because("it lacks the store"))

    async def shown() -> str:
        return str(Wait.from_json((await api.get("/v1/pipelines/shop")).json()["waiting_for"]))

    registry.parts["reader-0"]["waiting_for"] = waits
    registry.parts["enumerator"] |= {"state": "leading", "waiting_for": late}
    assert await shown() == f"{waits}; {late}"
    registry.parts["enumerator"]["waiting_for"] = None
    assert await shown() == str(waits)


async def test_tables_and_splits_are_told_as_the_enumerator_tells_them(api: httpx.AsyncClient) -> None:
    tables = (await api.get("/v1/pipelines/shop/tables")).json()
    assert [(table["table"], table["phase"], table["rows_done"], table["cause"]) for table in tables] == [
        ("a.b", "snapshot", 5, None),
        ("a.c", "quarantined", None, "no key"),
        ("a.d", "dropped", None, "gone"),
    ]
    assert (await api.get("/v1/pipelines/shop/tables/a.c/schemas")).json() == []  # no row of it was read
    splits = (await api.get("/v1/pipelines/shop/splits")).json()
    assert splits[0] == {"table": "a.b", "generation": 2, "done": 1, "total": 4, "current": False, "as_of": None}


async def test_every_read_of_the_status_says_whether_a_leader_reports_now(
    registry: FakeRegistry, store: Store
) -> None:
    """1. A leader that reports.  2. One that died: the same numbers, as of then.  3. Redis was emptied, and nobody
    leads: the newest checkpoint has the tables."""
    paths = ("tables", "tables/a.b", "splits", "tables/a.b/splits", "checkpoints", "checkpoints/3", "limits")

    async def reads() -> set[tuple[bool, float | None]]:
        async with client(registry, store) as api:
            found = [(await api.get(f"/v1/pipelines/shop/{path}")).json() for path in paths]
        every = [view for each in found for view in (each if isinstance(each, list) else [each])]
        return {(view["current"], view["as_of"]) for view in every}

    registry.parts["enumerator"]["at"] = now = time.time()
    assert await reads() == {(True, now)}
    registry.parts["enumerator"]["at"] = now - 60
    assert await reads() == {(False, now - 60)}
    registry.parts = {}
    async with client(registry, store) as api:
        (table,) = (await api.get("/v1/pipelines/shop/tables")).json()
        assert (table["table"], table["phase"], table["current"], table["as_of"]) == ("a.b", "live", False, 2.0)
        assert (await api.get("/v1/pipelines/shop/tables/a.b")).status_code == 200
        assert (await api.get("/v1/pipelines/shop/limits")).json()["current"] is False


async def test_a_table_that_the_spark_writer_has_quarantined_is_told_so_and_can_be_retried(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    held = {"cause": because("it is a view"), "generation": 2}
    registry.parts["spark_writer"]["quarantined"] = {"a.b": held}
    tables = {table["table"]: table for table in (await api.get("/v1/pipelines/shop/tables")).json()}
    assert (tables["a.b"]["phase"], tables["a.b"]["cause"]) == ("quarantined", "it is a view")
    assert (await api.get("/v1/pipelines/shop")).json()["tables"] == {"dropped": 1, "quarantined": 2}
    answer = await api.post("/v1/pipelines/shop/tables/a.b/retry")
    assert (answer.status_code, answer.json()["kind"], answer.json()["state"]) == (202, "retry_table", "accepted")
    assert registry.asked == [("shop", "", {"kind": "command"})]
    assert (await api.post("/v1/pipelines/shop/tables/a.d/retry")).status_code == 409
    assert (await api.post("/v1/pipelines/shop/tables/a.x/retry")).status_code == 404
    assert len(registry.asked) == 1


async def test_a_choice_about_commits_of_others_is_accepted_if_there_is_one_to_make(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    def held(*choices: str, seen: str = "7/1") -> None:
        cause = because("another user ...")
        about = {"cause": cause, "generation": 2, "seen": seen, "choices": choices, "chosen": None}
        registry.parts["spark_writer"]["quarantined"] = {"a.b": about}

    path = "/v1/pipelines/shop/tables/a.b/lake"
    held("accept", "overwrite")
    answer = await api.post(path, json={"choice": "accept"})
    assert (answer.status_code, answer.json()["kind"]) == (202, "lake")
    assert answer.json()["arguments"] == {"table": "a.b", "choice": "accept", "seen": "7/1"}
    seen = (await api.get("/v1/pipelines/shop/tables/a.b")).json()["seen"]
    held("accept", "overwrite", seen="8/1")
    answer = await api.post(path, json={"choice": "accept", "seen": seen})
    assert (answer.status_code, "choose again" in answer.json()["remedy"]) == (409, True)
    held("overwrite")
    answer = await api.post(path, json={"choice": "accept"})
    assert (answer.status_code, "overwrite it" in answer.json()["remedy"]) == (409, True)
    view = {"cause": because("it is a view"), "generation": 2}
    registry.parts["spark_writer"]["quarantined"] = {"a.b": view}
    answer = await api.post(path, json={"choice": "overwrite"})
    assert (answer.status_code, "awaits a choice" in answer.json()["detail"]) == (409, True)
    assert (await api.post(path, json={"choice": "both"})).status_code == 422
    assert (await api.post("/v1/pipelines/shop/tables/a.x/lake", json={"choice": "accept"})).status_code == 404
    assert len(registry.asked) == 1


async def test_checkpoints_come_newest_first_with_what_they_staged(api: httpx.AsyncClient) -> None:
    checkpoints = (await api.get("/v1/pipelines/shop/checkpoints")).json()
    assert [
        (checkpoint["number"], checkpoint["kept"], checkpoint["published"], checkpoint["staged_rows"])
        for checkpoint in checkpoints
    ] == [
        (3, True, False, 8),
        (2, False, True, 8),
    ]
    assert len((await api.get("/v1/pipelines/shop/checkpoints?limit=1")).json()) == 1
    assert (await api.get("/v1/pipelines/shop/checkpoints?limit=0")).status_code == 422


async def test_events_tell_epochs_kept_checkpoints_changes_of_phase_and_publications(api: httpx.AsyncClient) -> None:
    texts = [event["text"] for event in (await api.get("/v1/pipelines/shop/events")).json()]
    assert texts == [
        "publication 2: the lake shows that checkpoint of 0 of 0 tables",
        "a.b is live in generation 2",
        "checkpoint 3 is kept",
        "a.b is snapshot in generation 2",
        "epoch 1 with 1 readers and 2 writers: start",
    ]


async def test_the_end_of_a_command_is_an_event_and_lists_of_events_have_pages_and_kinds(
    api: httpx.AsyncClient, store: Store
) -> None:
    commands = store.pipeline("shop").commands
    for n in (1, 2):
        commands.add("pause_table", {"table": "a.b"}, by="anna", now=1.0)
        end: dict[str, Any] = {"state": "refused", "cause": "it is paused"} if n == 2 else {"state": "done"}
        commands.put_outcome(Outcome(n=n, at=1.5 + n, orders=Orders(), **end))
    found = (await api.get("/v1/pipelines/shop/events?kind=command")).json()
    assert [(event["text"], event["command"], event["state"], event["table"]) for event in found] == [
        ("command 2 (pause_table) of anna is refused: it is paused", 2, "refused", "a.b"),
        ("command 1 (pause_table) of anna is done", 1, "done", "a.b"),
    ]
    every, url = (await api.get("/v1/pipelines/shop/events")).json(), "/v1/pipelines/shop/events?limit=2"
    paged: list[Any] = []
    while url:
        answer = await api.get(url)
        paged += answer.json()
        url = answer.links.get("next", {}).get("url", "")
    assert paged == every
    assert len({event["id"] for event in every}) == len(every) == 7
    assert (await api.get("/v1/pipelines/shop/events?kind=commands")).status_code == 422


async def test_a_stream_of_events_goes_on_after_any_of_them_and_also_begins_again_with_another_pipeline(
    registry: FakeRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A command ends and a checkpoint is published.  2. Whoever saw one of both gets the other.  3. The pipeline is
    deleted and defined again: the events are those of the new one only."""
    monkeypatch.setattr(watching, "STORE_SECONDS", 0.0)  # each look is a new one
    monkeypatch.setattr(watching, "STATUS_SECONDS", 0.0)
    shop = store.pipeline("shop")
    watches = Watches(cast(Registry, registry), store)
    watch = watches.find(shop)
    before = (await watch.history()).place
    shop.commands.add("pause", {}, by="anna", now=1.0)
    shop.commands.put_outcome(Outcome(n=1, state="done", at=9.0, orders=Orders()))
    record = {"n": 3, "epoch": 1, "w": 1, "kept": False, "position": None, "source_time": None, "published_at": 8.0}
    shop.publish(Publication(**record, tables={}))
    registry.parts["spark_writer"]["published"] = 3

    async def fresh(after: Place) -> list[Event]:
        return (await watch.history()).after(after)

    found = await fresh(before)
    assert [(event.kind, event.publication, event.command) for event in found] == [
        ("publication", 3, None),
        ("command", None, 1),
    ]
    assert [event.kind for event in await fresh(found[0].place)] == ["command"]
    assert await fresh(found[1].place) == []
    shop.put_deleting()
    shop.remove_files()
    shop.end()
    store.pipeline("shop").define(DEFINITION)
    again = store.pipeline("shop")
    again.put_entry(records.epoch(1, cause=because("anew"), written_at=20.0))
    watch.window._listed_at = float("-inf")
    assert (await watch.history()).all() == []
    assert ["anew" in event.text for event in (await watches.find(again).history()).all()] == [True]


@pytest.mark.parametrize("path", ["", "/tables", "/splits", "/checkpoints", "/events"])
@pytest.mark.parametrize("name", ["nobody", "..", "a%2Fb", "x y"])
async def test_an_unknown_pipeline_is_404(api: httpx.AsyncClient, name: str, path: str) -> None:
    assert (await api.get(f"/v1/pipelines/{name}{path}")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/pipelines"), ("POST", "/v1/pipelines/shop"), ("PUT", "/v1/me")]
)
async def test_a_method_that_a_path_lacks_is_405_and_names_those_it_has(
    api: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await api.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json")
    assert "GET" in answer.headers["allow"]


async def test_metrics_can_be_parsed_and_have_ages_in_seconds(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    for part in ("enumerator", "spark_writer"):
        registry.parts[part]["at"] = time.time()
    answer = await api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    shop = ("pipeline", "shop")
    assert samples["cutline_services", ("role", "reader")] == 2
    lags = {key: value for key, value in samples.items() if key[0] == "cutline_event_loop_lag_seconds"}
    assert lags == {("cutline_event_loop_lag_seconds", ("role", "reader"), ("service", "r1")): 0.02}
    assert samples["cutline_checkpoint", shop] == 2
    assert 29 < samples["cutline_checkpoint_age_seconds", shop] < 60
    assert 59 < samples["cutline_lake_lag_seconds", shop] < 90
    assert samples["cutline_table_rows_done", shop, ("table", "a.b")] == 5
    assert ("cutline_table_rows_done", shop, ("table", "a.c")) not in samples
    assert samples["cutline_tables", ("phase", "quarantined"), shop] == 1
    assert samples["cutline_tables", ("phase", "dropped"), shop] == 1
    counted = ("cutline_zero_dates_total", ("column", "d"), ("part", "reader-0"), shop, ("table", "a.b"))
    assert samples[counted] == 3


async def test_without_redis_it_is_alive_but_not_ready_and_says_the_cause(
    registry: FakeRegistry, api: httpx.AsyncClient
) -> None:
    assert (await api.get("/readyz")).json() == {"ready": True, "cause": None}
    registry.up = False
    assert (await api.get("/healthz")).status_code == 200
    ready = await api.get("/readyz")
    assert ready.status_code == 503
    assert "Redis did not answer" in ready.json()["cause"]
    failed = await api.get("/v1/services")
    assert failed.status_code == 503
    assert "Redis did not answer" in failed.json()["detail"]


async def test_a_token_guards_everything_but_health(registry: FakeRegistry, store: Store) -> None:
    async with client(registry, store, token="sesame") as api:
        for path in ("/v1/services", "/v1/pipelines", "/metrics"):
            assert (await api.get(path)).status_code == 401
            assert (await api.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 401
            assert (await api.get(path, headers={"Authorization": "Bearer sesame"})).status_code == 200
        assert (await api.get("/healthz")).status_code == 200
        assert (await api.get("/readyz")).status_code == 200


async def test_every_path_is_described_in_openapi(api: httpx.AsyncClient) -> None:
    paths = (await api.get("/openapi.json")).json()["paths"]
    assert {f"/v1/pipelines/{{pipeline}}/{part}" for part in ("tables", "checkpoints", "splits", "events")} <= set(
        paths
    )
    assert all(
        "summary" in operation and "description" in operation for path in paths.values() for operation in path.values()
    )
    assert (await api.get("/docs")).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/tables?phase=", "/tables?phase=dead", "/tables?cursor=AAAA", "/tables?limit=0", "/tables?cursor=MQ",
        "/tables/%00",
        "/tables/a.b?wait=later", "/tables/a%2Fb/splits", "/tables/x/schemas", "/checkpoints/0", "/checkpoints/99",
        "/checkpoints?cursor=ImEi", "/cuts?at=yesterday", "/cuts?at=nan", "/cuts?at=2026-11-24",
        "/cuts?gtid=x", "/cuts?gtid=", "/cuts?at=1&gtid=a", "/cuts/7", "/cuts?cursor=ImEi", "/events?cursor=ImEi",
    ],
)  # fmt: skip
async def test_a_read_with_a_wrong_part_is_refused_with_cause_and_remedy(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.get(f"/v1/pipelines/shop{path}")
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["detail"]
    assert answer.json()["remedy"]


@pytest.mark.parametrize(
    "at",
    ["inf", "-1e300", "1e400", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-24 14:05:00+02:00"],
)
async def test_any_time_has_an_answer(api: httpx.AsyncClient, at: str) -> None:
    answer = await api.get("/v1/pipelines/shop/cuts", params={"at": at})
    assert answer.status_code == 200, answer.text


async def test_a_stream_of_events_refuses_an_id_that_is_none(api: httpx.AsyncClient) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "nonsense"}
    assert (await api.get("/v1/pipelines/shop/events", headers=headers)).status_code == 422


async def test_tables_are_filtered_and_come_in_pages_that_stay_right_while_tables_come_and_go(
    api: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    async def names(query: str) -> list[str]:
        return [table["table"] for table in (await api.get(f"/v1/pipelines/shop/tables{query}")).json()]

    assert await names("?phase=quarantined,dropped") == ["a.c", "a.d"]
    assert await names("?q=A.B") == ["a.b"]
    assert await names("?q=nothing") == []
    first = await api.get("/v1/pipelines/shop/tables?limit=2&phase=snapshot,quarantined,dropped")
    assert [table["table"] for table in first.json()] == ["a.b", "a.c"]
    following = first.links["next"]["url"]
    assert "phase=snapshot" in following
    rest = await api.get(following)
    assert [table["table"] for table in rest.json()] == ["a.d"]
    assert "next" not in rest.links
