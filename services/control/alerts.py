"""Alerts for those without Prometheus: which fire, which are resolved, and what is still to be posted (pure).

    pending -(found for `for_seconds`)-> firing -(no longer found)-> gone
       '----(no longer found)----> gone

`Judged` brings what the conditions name now. An alert that begins to fire, or is resolved, becomes a `Delivery` at the
end of one queue. The first delivery is posted until it is taken (`Posted`), after pauses that grow (`PostFailed`), so a
`resolved` never overtakes its `firing`; after DAY_SECONDS it is given up. While Redis or the store does not answer,
nothing is known of pipelines: their alerts stay as they are.

`kept` is the machine's state in plain JSON. A control service that takes over restores it, so it neither repeats an
alert nor forgets one. A delivery's id is made from the alert and the moment when it began: a receiver can ignore a
repeated one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cutline.common.causes import Cause, joined
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.waits import Party
from cutline.services.control.conditions import Condition, Labels

PAUSE_SECONDS = (1.0, 300.0)
DAY_SECONDS = 86_400.0
MOST_DELIVERIES = 1000
FIRING, RESOLVED = "firing", "resolved"
_NAMED = 3  # tables of one alert
_SHARED = ("CutlineRedisAway", "CutlineStoreAway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One condition that holds for these labels, since `since`; `cause` is what is known of the reason."""

    name: str
    labels: Labels
    since: float
    severity: str
    summary: str
    runbook: str
    firing: bool = False
    cause: Cause | None = None

    @property
    def key(self) -> tuple[str, Labels]:
        """What tells it from others."""
        return self.name, self.labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A post about an alert that began to fire, or was resolved at `ended_at`."""

    alert: Alert
    at: float
    ended_at: float | None = None

    @property
    def status(self) -> str:
        """`firing` or `resolved`."""
        return FIRING if self.ended_at is None else RESOLVED

    @property
    def id(self) -> str:
        """The same for each try, and for each control service."""
        labels = ",".join(f"{name}={value}" for name, value in self.alert.labels)
        return f"{self.alert.name}/{labels}/{int(self.alert.since * 1000)}/{self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What each condition names now, each with its cause; `blind`: nothing is known of the pipelines."""

    found: Mapping[Condition, Mapping[Labels, Cause | None]]
    blind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The receiver has taken this delivery."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class PostFailed:
    """The receiver has not taken this delivery."""

    delivery: Delivery


class Alerts:
    """The machine of one control service, for all pipelines."""

    def __init__(self, kept: str | bytes | None = None) -> None:
        """Begin with what an earlier control service has `kept`; a text that is not its own counts as none."""
        self._alerts: dict[tuple[str, Labels], Alert] = {}
        self._queue: deque[Delivery] = deque()
        self._failures = 0
        self._due = 0.0
        if kept is not None:
            try:
                body = json.loads(kept)
                alerts = [_alert(each) for each in body["alerts"]]
                queue = [Delivery(**{**each, "alert": _alert(each["alert"])}) for each in body["queue"]]
            except (ValueError, KeyError, TypeError):  # of another version
                return
            self._alerts = {alert.key: alert for alert in alerts}
            self._queue = deque(queue)

    def handle(self, event: Judged | Posted | PostFailed, now: float) -> None:
        """Take one fact. `due` and `kept` have what follows from it."""
        match event:
            case Judged():
                self._judged(event, now)
            case Posted(delivery=delivery):
                self._failures, self._due = 0, now
                if self._queue and self._queue[0] == delivery:
                    self._queue.popleft()
            case PostFailed(delivery=delivery):
                shortest, longest = PAUSE_SECONDS
                self._due = now + min(longest, shortest * 2.0 ** min(self._failures, 30))
                self._failures += 1
                if self._queue and self._queue[0] == delivery and now - delivery.at >= DAY_SECONDS:
                    self._queue.popleft()

    def due(self, now: float) -> Delivery | None:
        """Return the delivery that is to be posted now, if one is."""
        return self._queue[0] if self._queue and now >= self._due else None

    @property
    def kept(self) -> str:
        """What a successor needs, in JSON."""
        return json.dumps(
            {
                "alerts": [asdict(alert) for alert in self._alerts.values()],
                "queue": [asdict(delivery) for delivery in self._queue],
            }
        )

    def _judged(self, event: Judged, now: float) -> None:
        seen = set()
        for condition, found in event.found.items():
            for labels, cause in found.items():
                alert = self._alerts.get((condition.name, labels)) or _begun(condition, labels, now)
                if not alert.firing:
                    alert = replace(alert, cause=cause)
                if not alert.firing and now - alert.since >= condition.for_seconds:
                    alert = replace(alert, firing=True)
                    self._enqueue(Delivery(alert=alert, at=now))
                self._alerts[alert.key] = alert
                seen.add(alert.key)
        for key, alert in list(self._alerts.items()):
            if key not in seen and (not event.blind or alert.name in _SHARED):
                del self._alerts[key]
                if alert.firing:
                    self._enqueue(Delivery(alert=alert, at=now, ended_at=now))

    def _enqueue(self, delivery: Delivery) -> None:
        if len(self._queue) < MOST_DELIVERIES:
            self._queue.append(delivery)


def _begun(condition: Condition, labels: Labels, now: float) -> Alert:
    return Alert(
        name=condition.name,
        labels=labels,
        since=now,
        severity=condition.severity,
        summary=condition.summary.format(**dict(labels)),
        runbook=condition.runbook,
    )


def _alert(body: Mapping[str, Any]) -> Alert:
    labels = tuple((name, value) for name, value in body["labels"])
    cause = None if body["cause"] is None else Cause.from_json(body["cause"])
    return Alert(**{**body, "labels": labels, "cause": cause})


def body(delivery: Delivery, *, docs_url: str | None, receiver: str = "cutline") -> dict[str, Any]:
    """Return the post of a delivery: that of Alertmanager's webhook, version 4, and `text` for chats."""
    alert = delivery.alert
    labels = {"alertname": alert.name, "severity": alert.severity, **dict(alert.labels)}
    docs = docs_url.rstrip("/") if docs_url else "docs"
    link = f"{docs}/{alert.runbook}"
    annotations = {"summary": alert.summary, "runbook_url": link}
    if alert.cause is not None:
        annotations |= {"cause": str(alert.cause), "cause_url": f"{docs}/causes.md#{alert.cause.code}"}
    word = alert.severity if delivery.status == FIRING else RESOLVED
    cause = f": {alert.cause}" if alert.cause is not None and delivery.status == FIRING else ""
    return {
        "version": "4",
        "status": delivery.status,
        "receiver": receiver,
        "groupKey": delivery.id.rpartition("/")[0],
        "truncatedAlerts": 0,
        "groupLabels": {"alertname": alert.name},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "text": f"[{word}] {alert.name}: {alert.summary}{cause} ({link})",
        "alerts": [
            {
                "status": delivery.status,
                "labels": labels,
                "annotations": annotations,
                "startsAt": _time(alert.since),
                "endsAt": _time(delivery.ended_at) if delivery.ended_at is not None else "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": delivery.id.rpartition("/")[0],
            }
        ],
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cause_of(name: str, status: PipelineStatus, tables: Iterable[tuple[str, Cause]]) -> Cause | None:
    """Return the cause of an alert as the status of its pipeline gives it, None if it gives none. `tables` are the
    quarantined tables of the alert's code, with their causes."""
    failure = status.spark_writer.failure
    match name:
        case "CutlineHalted":
            return status.enumerator.halted
        case "CutlineSparkWriterFailing" | "CutlinePublicationOverdue":
            return None if failure is None else failure.cause
        case "CutlineTableQuarantined":
            return _of_tables(list(tables))
        case "CutlineSourceDisconnected" | "CutlineCheckpointOverdue" | "CutlineEpochsFail":
            waits = [part.waiting_for for part in status.members().values() if part.waiting_for is not None]
            of_source = [wait for wait in waits if wait.party in (Party.SOURCE, Party.BUSY_SOURCE)]
            return next((wait.as_cause for wait in (*of_source, *waits)), None)
    return None


def _of_tables(listed: list[tuple[str, Cause]]) -> Cause | None:
    if not listed:
        return None
    found = joined(cause.before(f"{table}: ") for table, cause in listed[:_NAMED])
    more = f"; and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return replace(found, sentence=f"{found.sentence}{more}")
