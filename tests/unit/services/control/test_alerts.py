"""The machine of the webhook's alerts: what fires, what is resolved, what is posted, and what a successor knows."""

from __future__ import annotations

import pytest

from cutline.common.status.pipeline_status import (
    EnumeratorStatus,
    Failure,
    PipelineStatus,
    ReaderStatus,
    SparkWriterStatus,
)
from cutline.common.waits import Party, Wait
from cutline.services.control.alerts import DAY_SECONDS, Alerts, Delivery, Judged, Posted, PostFailed, body
from cutline.services.control.conditions import CONDITIONS, Condition, Finding, Labels, cause_of
from tests.support.causes import because

BY_NAME = {condition.name: condition for condition in CONDITIONS}
DISCONNECTED, HALTED = BY_NAME["CutlineSourceDisconnected"], BY_NAME["CutlineHalted"]
SHOP: Labels = (("pipeline", "shop"),)


def held(condition: Condition, now: float, labels: Labels = SHOP, cause: str = "x") -> Finding:
    return Finding(id=condition.name, condition=condition, labels=labels, since=now, cause=because(cause))


def judge(
    alerts: Alerts,
    now: float,
    *found: Condition,
    blind: bool = False,
    cause: str = "x",
    since: float | None = None,
    acknowledged: frozenset[str] = frozenset(),
) -> None:
    findings = tuple(held(condition, now if since is None else since, cause=cause) for condition in found)
    alerts.handle(Judged(found=findings, acknowledged=acknowledged, blind=blind), now)


def post(alerts: Alerts, now: float) -> list[tuple[str, str]]:
    """Post all that is due."""
    posted = []
    while (delivery := alerts.due(now)) is not None:
        posted.append((delivery.alert.name, delivery.status))
        alerts.handle(Posted(delivery=delivery), now)
    return posted


def test_an_alert_fires_once_its_condition_has_held_long_enough_and_is_resolved_when_it_ends() -> None:
    alerts = Alerts()
    judge(alerts, 0.0, DISCONNECTED)
    judge(alerts, 119.0, DISCONNECTED)
    assert post(alerts, 119.0) == []
    judge(alerts, 120.0, DISCONNECTED)
    judge(alerts, 130.0, DISCONNECTED)
    assert post(alerts, 130.0) == [("CutlineSourceDisconnected", "firing")]
    judge(alerts, 140.0)
    judge(alerts, 150.0)
    assert post(alerts, 150.0) == [("CutlineSourceDisconnected", "resolved")]


def test_what_has_held_for_long_fires_once_it_was_seen_for_a_moment() -> None:
    """After an outage of Redis, or a start of the control service, everything looks old for a second."""
    alerts = Alerts()
    judge(alerts, 1000.0, DISCONNECTED, since=0.0)
    judge(alerts, 1010.0, DISCONNECTED, since=0.0)
    assert post(alerts, 1010.0) == []
    judge(alerts, 1015.0, DISCONNECTED, since=0.0)
    assert post(alerts, 1015.0) == [("CutlineSourceDisconnected", "firing")]


def test_an_acknowledged_condition_posts_nothing_until_that_ends() -> None:
    alerts, known = Alerts(), frozenset({HALTED.name})
    judge(alerts, 0.0, HALTED, acknowledged=known)
    judge(alerts, 500.0, HALTED, since=0.0, acknowledged=known)
    assert post(alerts, 500.0) == []
    judge(alerts, 510.0, HALTED, since=0.0)
    judge(alerts, 520.0, HALTED, since=0.0, acknowledged=known)
    assert post(alerts, 520.0) == [("CutlineHalted", "firing")]
    judge(alerts, 530.0)
    assert post(alerts, 530.0) == [("CutlineHalted", "resolved")]


def test_a_condition_that_holds_only_shortly_is_never_told() -> None:
    alerts = Alerts()
    for now in (0.0, 200.0, 400.0):
        judge(alerts, now, DISCONNECTED)
        judge(alerts, now + 100)
    assert post(alerts, 1000.0) == []


def test_a_refused_post_comes_again_after_pauses_that_grow_and_nothing_overtakes_it() -> None:
    alerts = Alerts()
    judge(alerts, 0.0, HALTED)
    judge(alerts, 1.0)
    now, pauses = 1.0, []
    for _ in range(10):
        delivery = alerts.due(now)
        assert delivery is not None
        assert delivery.status == "firing"
        alerts.handle(PostFailed(delivery=delivery), now)
        began = now
        while alerts.due(now) is None:
            now += 1.0
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert post(alerts, now) == [("CutlineHalted", "firing"), ("CutlineHalted", "resolved")]


def test_after_a_day_a_post_is_given_up() -> None:
    alerts = Alerts()
    judge(alerts, 0.0, HALTED)
    delivery = alerts.due(0.0)
    assert delivery is not None
    alerts.handle(PostFailed(delivery=delivery), DAY_SECONDS - 1)
    assert alerts.due(DAY_SECONDS + 1) == delivery
    alerts.handle(PostFailed(delivery=delivery), DAY_SECONDS + 1)
    assert alerts.due(DAY_SECONDS * 2) is None


def test_a_successor_neither_repeats_an_alert_nor_forgets_to_resolve_it() -> None:
    """1. One fires and is posted, one is pending, one waits for its post. 2. A successor goes on from what is kept."""
    alerts = Alerts()
    judge(alerts, 0.0, HALTED)
    assert len(post(alerts, 0.0)) == 1
    judge(alerts, 10.0, HALTED, DISCONNECTED, BY_NAME["CutlineEpochsFail"])
    judge(alerts, 80.0, HALTED, DISCONNECTED, BY_NAME["CutlineEpochsFail"])
    successor = Alerts(alerts.kept)
    judge(successor, 100.0, HALTED, DISCONNECTED, BY_NAME["CutlineEpochsFail"])
    assert post(successor, 100.0) == [("CutlineEpochsFail", "firing")]
    judge(successor, 131.0, DISCONNECTED)
    assert post(successor, 131.0) == [("CutlineSourceDisconnected", "firing"), ("CutlineHalted", "resolved"),
                                      ("CutlineEpochsFail", "resolved")]  # fmt: skip


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"alerts": [{}], "queue": []}', b'{"alerts": 1}'])
def test_what_is_kept_by_another_version_counts_as_nothing(kept: str | bytes) -> None:
    alerts = Alerts(kept)
    judge(alerts, 0.0, HALTED)
    assert post(alerts, 0.0) == [("CutlineHalted", "firing")]


def test_while_redis_is_away_alerts_of_pipelines_stay_and_that_of_redis_fires() -> None:
    away = BY_NAME["CutlineRedisAway"]
    alerts = Alerts()
    judge(alerts, 0.0, HALTED)
    alerts.handle(Judged(found=(held(away, 10.0, labels=()),), blind=True), 10.0)
    alerts.handle(Judged(found=(held(away, 10.0, labels=()),), blind=True), 70.0)
    assert post(alerts, 70.0) == [("CutlineHalted", "firing"), ("CutlineRedisAway", "firing")]
    judge(alerts, 80.0, HALTED)
    assert post(alerts, 80.0) == [("CutlineRedisAway", "resolved")]


def test_each_delivery_of_an_alert_has_an_id_that_a_repeat_shares() -> None:
    alerts = Alerts()
    judge(alerts, 5.0, HALTED, cause="the binlog is purged")
    first = alerts.due(5.0)
    assert first is not None
    again = Alerts(alerts.kept).due(9.0)
    assert again == first
    assert first.id == "CutlineHalted/pipeline=shop/5000/firing"
    assert Delivery(alert=first.alert, at=9.0, ended_at=9.0).id == "CutlineHalted/pipeline=shop/5000/resolved"


def test_the_body_is_that_of_alertmanager_with_a_text() -> None:
    alerts = Alerts()
    judge(alerts, 5.0, HALTED, cause="the binlog is purged")
    delivery = alerts.due(5.0)
    assert delivery is not None
    sent = body(delivery, docs_url="https://docs.example.com/cutline/")
    assert (sent["version"], sent["status"], sent["commonLabels"]["alertname"]) == ("4", "firing", "CutlineHalted")
    (alert,) = sent["alerts"]
    assert (alert["startsAt"], alert["endsAt"]) == ("1970-01-01T00:00:05.000Z", "0001-01-01T00:00:00Z")
    link = "https://docs.example.com/cutline/operations/messages.md#cutlinehalted"
    assert alert["annotations"] == {
        "summary": "pipeline shop is halted until a person acts",
        "remedy": "remove the cause, then `cutline pipeline start shop`",
        "runbook_url": link,
        "cause": "the binlog is purged",
        "cause_url": "https://docs.example.com/cutline/causes.md#other",
    }
    assert sent["text"].startswith("[critical] CutlineHalted: pipeline shop is halted")
    assert sent["text"].endswith(
        f": the binlog is purged; remove the cause, then `cutline pipeline start shop` ({link})"
    )
    unset = body(delivery, docs_url=None)["commonAnnotations"]["runbook_url"]
    assert unset == "docs/operations/messages.md#cutlinehalted"


def test_an_alert_has_the_cause_that_the_status_names() -> None:
    status = PipelineStatus(
        enumerator=EnumeratorStatus(at=1.0, halted=because("purged"), waiting_for=Wait(Party.EPOCH, "a new epoch")),
        readers={"reader-0": ReaderStatus(waiting_for=Wait(Party.SOURCE, "the source", because("refused")))},
        spark_writer=SparkWriterStatus(failure=Failure(cause=because("disk full"), kind="OSError", again_seconds=1.0)),
    )
    assert cause_of("CutlineHalted", status, ()) == because("purged")
    assert cause_of("CutlineSourceDisconnected", status, ()) == because("the source: refused")
    assert cause_of("CutlineSparkWriterFailing", status, ()) == because("disk full")
    tables = [(f"a.t{at}", because("no key", "add one")) for at in range(5)]
    assert str(cause_of("CutlineTableQuarantined", status, tables)).endswith("a.t2: no key; and 2 more; add one")
    assert cause_of("CutlineClockOff", PipelineStatus(), ()) is None
