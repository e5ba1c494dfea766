"""Alerts for those without Prometheus: which fire, which are resolved, and what is still to be posted (pure).

    pending -(held for `for_seconds`, nobody acknowledged it)-> firing -(no longer found)-> gone
       '----(no longer found)----> gone

`Judged` brings the conditions that hold now. One that is acknowledged begins to fire once that has ended. An alert that
begins to fire, or is resolved, becomes a `Delivery` at the end of one queue. The first delivery is posted until it is
taken (`Posted`), after pauses that grow (`PostFailed`), so a `resolved` never overtakes its `firing`; after DAY_SECONDS
it is given up. While Redis or the store does not answer, nothing is known of pipelines: their alerts stay as they are.

`kept` is the machine's state in plain JSON. A control service that takes over restores it, so it neither repeats an
alert nor forgets one. A delivery's id is made from the alert and the moment when it began: a receiver can ignore a
repeated one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cutline.common.causes import Cause
from cutline.services.control.conditions import Finding, Labels

PAUSE_SECONDS = (1.0, 300.0)
DAY_SECONDS = 86_400.0
MOST_DELIVERIES = 1000
SETTLED_SECONDS = 15.0
"""How long something must be seen, however long it has been so: after an outage of Redis everything looks old."""
FIRING, RESOLVED = "firing", "resolved"
_SHARED = ("CutlineRedisAway", "CutlineStoreAway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One condition that holds for these labels since `since`, and was first judged to at `seen`; `cause` is what is
    known of the reason."""

    name: str
    labels: Labels
    since: float
    severity: str
    summary: str
    runbook: str
    seen: float = 0.0
    firing: bool = False
    cause: Cause | None = None
    remedy: str = ""

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
    """The conditions that hold now, and the ids of those that a person has acknowledged; `blind`: nothing is known of
    the pipelines."""

    found: tuple[Finding, ...]
    acknowledged: Set[str] = frozenset()
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
        for finding in event.found:
            alert = self._alerts.get((finding.condition.name, finding.labels)) or _begun(finding, now)
            if not alert.firing:
                alert = replace(alert, cause=finding.cause, remedy=finding.remedy)
            wait = finding.condition.for_seconds
            held = now - alert.since >= wait and now - alert.seen >= min(wait, SETTLED_SECONDS)
            due = held and finding.id not in event.acknowledged
            if due and not alert.firing:
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


def _begun(finding: Finding, now: float) -> Alert:
    condition = finding.condition
    return Alert(
        name=condition.name,
        labels=finding.labels,
        since=finding.since,
        seen=now,
        severity=condition.severity,
        summary=finding.summary,
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
    annotations = {"summary": alert.summary, "remedy": alert.remedy, "runbook_url": link}
    if alert.cause is not None:
        annotations |= {"cause": str(alert.cause), "cause_url": f"{docs}/causes.md#{alert.cause.code}"}
    word = alert.severity if delivery.status == FIRING else RESOLVED
    sentence = [alert.cause.sentence] if alert.cause is not None else []
    cause = f": {'; '.join((*sentence, alert.remedy))}" if delivery.status == FIRING else ""
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
