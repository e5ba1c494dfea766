"""What a person must act on in made-up pipelines: conditions in the shape of the API's contract."""

from __future__ import annotations

import time
from typing import Any

SEVERITIES = ("critical", "warning", "info")
NAMED = 3
"""Tables of one condition that it names."""


def condition(
    name: str, severity: str, summary: str, *, pipeline: str | None = None, seconds: float = 136.0, **more: Any
) -> dict[str, Any]:
    """One condition that began this many seconds ago."""
    labels = {**({"pipeline": pipeline} if pipeline else {}), **more.pop("labels", {})}
    since = time.time() - seconds
    return {
        "id": "-".join((name, *labels.values())),
        "name": name,
        "severity": severity,
        "pipeline": pipeline,
        "labels": labels,
        "summary": summary,
        "code": None,
        "cause": None,
        "remedy": "see its runbook",
        "tables": [],
        "tables_total": 0,
        "since": since,
        "alerts_at": since + 60,
        "acknowledged": None,
        "runbook": f"operations/messages.md#{name.lower()}",
        **more,
    }


def no_leader(pipeline: str, role: str, seconds: float = 136.0) -> dict[str, Any]:
    """Nobody of this role leads the pipeline."""
    called = {"spark_writer": "Spark writer"}.get(role, role)
    return condition(
        "CutlineNoLeader", "critical", f"no {called} leads pipeline {pipeline}", pipeline=pipeline, seconds=seconds,
        labels={"role": role}, cause=f"no {called} runs", remedy=f"start one, and see what the {called}'s log says",
    )  # fmt: skip


def redis_away(seconds: float = 93.0) -> dict[str, Any]:
    """The mesh's Redis is away, which concerns every pipeline."""
    return condition(
        "CutlineRedisAway", "critical", "the mesh's Redis does not answer, so every pipeline waits", seconds=seconds,
        cause="10.0.0.5:6379 refused the connection", remedy="start Redis; its memory may be empty",
    )  # fmt: skip


def quarantines(pipeline: str, tables: list[dict[str, Any]], seconds: float = 7200.0) -> list[dict[str, Any]]:
    """The condition of these quarantined tables; none if there are none."""
    if not tables:
        return []
    first = tables[:NAMED]
    cause = "; ".join(f"{each['table']}: {each['cause']}" for each in first)
    return [
        condition(
            "CutlineTableQuarantined", "warning",
            f"{len(tables)} table{'s' if len(tables) > 1 else ''} of pipeline {pipeline} "
            f"{'are' if len(tables) > 1 else 'is'} quarantined",
            pipeline=pipeline, seconds=seconds, labels={"cause": "other"}, code="other", cause=cause,
            remedy=first[0]["remedy"] or "retry it", tables=[each["table"] for each in first], tables_total=len(tables),
        )
    ]  # fmt: skip


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the API sorts them: acknowledged ones last, the most severe first, then the oldest."""
    return sorted(found, key=lambda c: (c["acknowledged"] is not None, SEVERITIES.index(c["severity"]), c["since"]))
