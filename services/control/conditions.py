"""What a person must act on, judged from the metrics: the same conditions as the rules in k8s/monitoring/alerts.yaml
(pure). A test judges the same samples by both.

What must change together: a condition here, its rule there, its section in docs/operations/messages.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]
"""The labels of a sample or an alert, sorted by name."""


class Samples:
    """The numbers of one scrape."""

    def __init__(self, samples: Iterable[tuple[str, Mapping[str, str], float]]) -> None:
        """Take each sample's name, labels and value."""
        self._by_name: dict[str, dict[Labels, float]] = {}
        for name, labels, value in samples:
            self._by_name.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def series(self, name: str) -> Iterator[tuple[Labels, float]]:
        """Yield the labels and the value of each series of a metric."""
        yield from self._by_name.get(name, {}).items()

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the series with exactly these labels; None if there is none."""
        return self._by_name.get(name, {}).get(tuple(sorted(labels.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One alert: it fires once `found` has named the same labels for `for_seconds`. `summary` has the labels' names in
    braces."""

    name: str
    severity: str
    for_seconds: float
    summary: str
    found: Callable[[Samples], Iterable[Labels]]

    @property
    def runbook(self) -> str:
        """The section of the operations guide."""
        return f"operations/messages.md#{self.name.lower()}"


def _where(name: str, holds: Callable[[float], bool]) -> Callable[[Samples], list[Labels]]:
    return lambda samples: [labels for labels, value in samples.series(name) if holds(value)]


def _checkpoint_overdue(samples: Samples) -> Iterator[Labels]:
    for labels, age in samples.series("cutline_checkpoint_age_seconds"):
        pipeline = dict(labels)["pipeline"]
        interval = samples.value("cutline_checkpoint_interval_seconds", pipeline=pipeline)
        runs = samples.value("cutline_mode", pipeline=pipeline, mode="running") == 1
        halted = samples.value("cutline_halted", pipeline=pipeline) == 1
        if interval is not None and runs and not halted and age > 60 + 10 * interval:
            yield labels


def _publication_overdue(samples: Samples) -> Iterator[Labels]:
    for labels, published in samples.series("cutline_publication"):
        pipeline = dict(labels)["pipeline"]
        newest = samples.value("cutline_checkpoint", pipeline=pipeline)
        age = samples.value("cutline_publication_age_seconds", pipeline=pipeline)
        interval = samples.value("cutline_checkpoint_interval_seconds", pipeline=pipeline)
        if None not in (newest, age, interval) and published < newest and age > 300 + 30 * interval:  # type: ignore
            yield labels


def _purge_near(samples: Samples) -> Iterator[Labels]:
    for labels, left in samples.series("cutline_binlog_left_seconds"):
        retention = samples.value("cutline_binlog_retention_seconds", pipeline=dict(labels)["pipeline"])
        if retention is not None and left <= 0.25 * retention:
            yield labels


def _disk_nearly_full(samples: Samples) -> Iterator[Labels]:
    for labels, free in samples.series("cutline_disk_free_bytes"):
        size = samples.value("cutline_disk_size_bytes", **dict(labels))
        if size and free / size < 0.1:
            yield labels


def _redis_nearly_full(samples: Samples) -> Iterator[Labels]:
    for labels, used in samples.series("cutline_redis_memory_used_bytes"):
        limit = samples.value("cutline_redis_memory_limit_bytes")
        if limit and used / limit > 0.9:
            yield labels


CONDITIONS = (
    Condition(
        name="CutlineRedisAway",
        severity="critical",
        for_seconds=60,
        summary="the mesh's Redis does not answer, so every pipeline waits",
        found=_where("cutline_redis_up", lambda value: value == 0),
    ),
    Condition(
        name="CutlineStoreAway",
        severity="critical",
        for_seconds=60,
        summary="the store does not answer, so no checkpoint can be written",
        found=_where("cutline_store_up", lambda value: value == 0),
    ),
    Condition(
        name="CutlineHalted",
        severity="critical",
        for_seconds=0,
        summary="pipeline {pipeline} is halted; mend the cause and start it again",
        found=_where("cutline_halted", lambda value: value == 1),
    ),
    Condition(
        name="CutlineSourceDisconnected",
        severity="critical",
        for_seconds=120,
        summary="pipeline {pipeline} can't reach its source",
        found=_where("cutline_source_connected", lambda value: value == 0),
    ),
    Condition(
        name="CutlineBinlogPurgeNear",
        severity="critical",
        for_seconds=300,
        summary="the source of pipeline {pipeline} will soon remove binlog that is still needed",
        found=_purge_near,
    ),
    Condition(
        name="CutlineNoLeader",
        severity="critical",
        for_seconds=60,
        summary="no {role} leads pipeline {pipeline}; start one",
        found=_where("cutline_leaders", lambda value: value == 0),
    ),
    Condition(
        name="CutlineSeveralLeaders",
        severity="critical",
        for_seconds=60,
        summary="more than one {role} leads pipeline {pipeline}",
        found=_where("cutline_leaders", lambda value: value > 1),
    ),
    Condition(
        name="CutlineCheckpointOverdue",
        severity="critical",
        for_seconds=60,
        summary="pipeline {pipeline} has made no checkpoint for over ten intervals",
        found=_checkpoint_overdue,
    ),
    Condition(
        name="CutlinePublicationOverdue",
        severity="critical",
        for_seconds=60,
        summary="pipeline {pipeline} has checkpoints that the lake does not show",
        found=_publication_overdue,
    ),
    Condition(
        name="CutlineSparkWriterFailing",
        severity="critical",
        for_seconds=300,
        summary="the Spark writer of pipeline {pipeline} can't go on",
        found=_where("cutline_spark_writer_failing", lambda value: value == 1),
    ),
    Condition(
        name="CutlineEpochsFail",
        severity="warning",
        for_seconds=60,
        summary="the epochs of pipeline {pipeline} fail one after the other",
        found=_where("cutline_failures_in_row", lambda value: value >= 3),
    ),
    Condition(
        name="CutlineTableQuarantined",
        severity="warning",
        for_seconds=60,
        summary="pipeline {pipeline} has quarantined tables (cause: {cause})",
        found=_where("cutline_tables_quarantined", lambda value: value > 0),
    ),
    Condition(
        name="CutlineDiskNearlyFull",
        severity="critical",
        for_seconds=300,
        summary="less than a tenth of the disk that holds {folder} is free",
        found=_disk_nearly_full,
    ),
    Condition(
        name="CutlineRedisNearlyFull",
        severity="critical",
        for_seconds=300,
        summary="the mesh's Redis uses more than nine tenths of its memory",
        found=_redis_nearly_full,
    ),
    Condition(
        name="CutlineClockOff",
        severity="warning",
        for_seconds=600,
        summary="the clocks of pipeline {pipeline}'s source and of this machine differ by over a minute",
        found=_where("cutline_source_clock_offset_seconds", lambda value: abs(value) > 60),
    ),
)
