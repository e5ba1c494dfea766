"""What a person must act on, judged from one reading of the services (pure): for the API, the dashboard, the command
line, metrics and the webhook alike, and by the same conditions as the rules in k8s/monitoring/alerts.yaml. A test
judges the same samples by both.

What must change together: a condition here, its rule there, its section in docs/operations/messages.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cutline.common.causes import Cause, Code, counted, joined
from cutline.common.status.pipeline_status import SPARK_WRITER, PipelineStatus
from cutline.common.waits import Party

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
class Finding:
    """A condition that holds for these labels, `since` then (seconds since 1970). `about`: the tables that it is about,
    each with its cause. `id` is the same whenever it holds for this pipeline, and has only letters and digits."""

    id: str
    condition: Condition
    labels: Labels
    since: float
    cause: Cause | None
    about: Mapping[str, Cause] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that it is about, sorted."""
        return tuple(self.about)

    @property
    def pipeline(self) -> str | None:
        """The pipeline; None where all of them are concerned."""
        return dict(self.labels).get("pipeline")

    @property
    def summary(self) -> str:
        """One sentence."""
        return self.condition.summary.format(**dict(self.labels))

    @property
    def remedy(self) -> str:
        """What to do."""
        return (self.cause.remedy if self.cause else "") or self.condition.remedy.format(**dict(self.labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A kind of trouble: `found` names the labels for which it holds now. It is shown once it was seen for
    `shown_after` seconds (before that it is mostly a start, or a change of leaders); its alert fires once it has held
    for `for_seconds`. `summary` and `remedy` have the labels' names in braces; the remedy stands where the cause has
    none."""

    name: str
    severity: str
    for_seconds: float
    summary: str
    found: Callable[[Samples], Iterable[Labels]]
    remedy: str
    shown_after: float = 0.0

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
        remedy="start Redis, or see why it does not answer at CUTLINE_REDIS_URL; pipelines go on by themselves",
    ),
    Condition(
        name="CutlineStoreAway",
        severity="critical",
        for_seconds=30,
        summary="the store does not answer or is full, so no checkpoint can be written",
        found=_where("cutline_store_up", lambda value: value == 0),
        remedy="see that the store runs and has room; pipelines go on by themselves",
    ),
    Condition(
        name="CutlineHalted",
        severity="critical",
        for_seconds=0,
        summary="pipeline {pipeline} is halted until a person acts",
        found=_where("cutline_halted", lambda value: value == 1),
        remedy="remove the cause, then `cutline pipeline start {pipeline}`",
    ),
    Condition(
        name="CutlineSourceDisconnected",
        severity="critical",
        for_seconds=120,
        summary="pipeline {pipeline} can't reach its source",
        found=_where("cutline_source_connected", lambda value: value == 0),
        remedy="see that the source runs and takes the account of the pipeline file; it is tried again by itself",
    ),
    Condition(
        name="CutlineBinlogPurgeNear",
        severity="critical",
        for_seconds=300,
        summary="the source of pipeline {pipeline} will soon remove binlog that is still needed",
        found=_purge_near,
        remedy="keep binlogs longer at the source (`binlog_expire_logs_seconds`), and see what holds the"
        " pipeline up",
    ),
    Condition(
        name="CutlineNoLeader",
        severity="critical",
        for_seconds=60,
        summary="no {role} leads pipeline {pipeline}",
        found=_where("cutline_leaders", lambda value: value == 0),
        remedy="start a service of that role (`cutline up`, compose or Helm), or see in its log why it ended",
        shown_after=10,
    ),
    Condition(
        name="CutlineSeveralLeaders",
        severity="critical",
        for_seconds=60,
        summary="more than one {role} leads pipeline {pipeline}",
        found=_where("cutline_leaders", lambda value: value > 1),
        remedy="nothing: the store lets only one of them write; report it with their logs if it stays",
        shown_after=10,
    ),
    Condition(
        name="CutlineCheckpointOverdue",
        severity="critical",
        for_seconds=60,
        summary="pipeline {pipeline} has made no checkpoint for over ten intervals",
        found=_checkpoint_overdue,
        remedy="see what the pipeline waits for: `cutline status {pipeline}`",
    ),
    Condition(
        name="CutlinePublicationOverdue",
        severity="critical",
        for_seconds=60,
        summary="pipeline {pipeline} has checkpoints that the lake does not show",
        found=_publication_overdue,
        remedy="see the Spark writer's log: `cutline logs`",
    ),
    Condition(
        name="CutlineSparkWriterFailing",
        severity="critical",
        for_seconds=300,
        summary="the Spark writer of pipeline {pipeline} can't go on",
        found=_where("cutline_spark_writer_failing", lambda value: value == 1),
        remedy="see the Spark writer's log: `cutline logs`; it tries again by itself",
    ),
    Condition(
        name="CutlineWaiting",
        severity="warning",
        for_seconds=300,
        summary="pipeline {pipeline} is held up by its {party}",
        found=_where("cutline_waiting", lambda value: value == 1),
        remedy="see what it waits for: `cutline status {pipeline}`; it goes on by itself",
        shown_after=10,
    ),
    Condition(
        name="CutlineEpochsFail",
        severity="warning",
        for_seconds=60,
        summary="the epochs of pipeline {pipeline} fail one after the other",
        found=_where("cutline_failures_in_row", lambda value: value >= 3),
        remedy="see what the pipeline waits for: `cutline status {pipeline}`; it is tried again by itself",
    ),
    Condition(
        name="CutlineTableQuarantined",
        severity="warning",
        for_seconds=60,
        summary="pipeline {pipeline} has quarantined tables (cause: {cause})",
        found=_where("cutline_tables_quarantined", lambda value: value > 0),
        remedy="`cutline table list {pipeline} --phase quarantined` has the remedy of each",
    ),
    Condition(
        name="CutlineDiskNearlyFull",
        severity="critical",
        for_seconds=300,
        summary="less than a tenth of the disk that holds {folder} is free",
        found=_disk_nearly_full,
        remedy="free space there, or enlarge the disk",
    ),
    Condition(
        name="CutlineRedisNearlyFull",
        severity="critical",
        for_seconds=300,
        summary="the mesh's Redis uses more than nine tenths of its memory",
        found=_redis_nearly_full,
        remedy="raise Redis's maxmemory, or remove keys of other programs",
    ),
    Condition(
        name="CutlineClockOff",
        severity="warning",
        for_seconds=600,
        summary="the clocks of pipeline {pipeline}'s source and of this machine differ by over a minute",
        found=_where("cutline_source_clock_offset_seconds", lambda value: abs(value) > 60),
        remedy="have both machines keep their clocks by NTP",
    ),
)
"""What may be the cause of others comes first: a full store also makes checkpoints overdue and its disk nearly full."""
SEVERITIES = ("critical", "warning", "info")
_BY_NAME = {condition.name: condition for condition in CONDITIONS}
_NAMED = 3  # tables of one finding
_UNKNOWN = Cause(Code.OTHER, "no cause is known")


def conditions(
    samples: Samples,
    statuses: Mapping[str, PipelineStatus],
    *,
    now: float,
    ids: Mapping[str, str],
    away: Mapping[str, Cause],
    known: Mapping[str, float],
) -> tuple[Finding, ...]:
    """Every condition that holds `now`, most severe first, then as in CONDITIONS, then oldest first.

    `samples` are the numbers of the same reading (metrics.py), `statuses` and `ids` the pipelines' by name; while Redis
    is away there are none. `away`: why, by the conditions that say that something is away. `known`: by id, since when a
    finding has been seen, for those of which no service says when they began.
    """
    found = []
    for condition in CONDITIONS:
        for labels in condition.found(samples):
            pipeline = dict(labels).get("pipeline")
            status = PipelineStatus() if pipeline is None else statuses[pipeline]
            finding = _finding(condition, labels, status, ids.get(pipeline or "", ""))
            cause = away.get(condition.name) or finding.cause
            since = known.get(finding.id, now) if math.isnan(finding.since) else min(finding.since, now)
            found.append(replace(finding, cause=cause, since=since))
    return tuple(sorted(found, key=_place))


def _place(finding: Finding) -> tuple[int, int, float, str]:
    condition = finding.condition
    return SEVERITIES.index(condition.severity), CONDITIONS.index(condition), finding.since, finding.id


def _finding(condition: Condition, labels: Labels, status: PipelineStatus, life: str) -> Finding:
    """What holds; its `since` is NaN if no service says when it began."""
    named, about = dict(labels), dict[str, Cause]()
    since = _since(condition.name, named, status)
    if condition.name == "CutlineTableQuarantined":
        about = _quarantined(status, named["cause"])
        held = status.quarantined()
        since = min((at for name in about if (at := held[name].since) is not None), default=None)
    return Finding(
        id=hashlib.sha256(repr((condition.name, labels, life)).encode()).hexdigest()[:16],
        condition=condition,
        labels=labels,
        since=math.nan if since is None else since,
        cause=cause_of(condition.name, status, about.items()),
        about=about,
    )


def _quarantined(status: PipelineStatus, code: str) -> dict[str, Cause]:
    """The quarantined tables with this code, by name, each with its cause."""
    return {
        name: table.cause or _UNKNOWN
        for name, table in status.quarantined().items()
        if counted(table.cause) == code
    }


def _since(name: str, about: Mapping[str, str], status: PipelineStatus) -> float | None:
    """Since when a condition holds, as the services say; None if they do not."""
    leader, spark = status.enumerator, status.spark_writer
    match name:
        case "CutlineHalted":
            return leader.halted_since
        case "CutlineSparkWriterFailing":
            return None if spark.failure is None else spark.failure.since
        case "CutlineNoLeader":
            return spark.at if about["role"] == SPARK_WRITER else leader.at
        case "CutlineCheckpointOverdue":
            return leader.checkpoint.completed_at
        case "CutlinePublicationOverdue":
            return spark.published_at
        case "CutlineWaiting":
            wait = status.obstacle()
            return None if wait is None else wait.since
        case "CutlineSourceDisconnected":
            waits = [part.waiting_for for part in status.members().values()]
            times = [wait.since for wait in waits if wait is not None and wait.party == Party.SOURCE]
            return min((at for at in times if at is not None), default=None)
    return None


def cause_of(name: str, status: PipelineStatus, tables: Iterable[tuple[str, Cause]]) -> Cause | None:
    """Return the cause of a condition as the status of its pipeline gives it, None if it gives none. `tables` are the
    quarantined tables that it is about, with their causes."""
    failure = status.spark_writer.failure
    match name:
        case "CutlineHalted":
            return status.enumerator.halted
        case "CutlineSparkWriterFailing" | "CutlinePublicationOverdue":
            return None if failure is None else failure.cause
        case "CutlineTableQuarantined":
            return _of_tables(list(tables))
        case "CutlineWaiting":
            wait = status.obstacle()
            return None if wait is None else wait.as_cause
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
