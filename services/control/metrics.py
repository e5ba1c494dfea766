"""The metrics of all pipelines for Prometheus. Every name has its unit; times become ages at the scrape.

Services publish numbers in their status parts (common/status/pipeline_status.py); only the control service renders
them, so that one scrape has those of all processes. `METRICS` has every metric with its labels and its meaning;
docs/metrics.md shows the same table.

The number of series is bounded: of each pipeline the `most` tables with most to show (not live yet, then most rows
staged) have their own, the others are added up under `table="(others)"`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from cutline.common.causes import QUARANTINES, Cause, counted
from cutline.common.measures import OTHERS, SECONDS
from cutline.common.mesh.presence import Service
from cutline.common.mesh.redis import Memory
from cutline.common.phases import DROPPED, LIVE, PAUSED, Phase
from cutline.common.status.pipeline_status import (
    SPARK_WRITER,
    BinlogStatus,
    EnumeratorStatus,
    PartStatus,
    PipelineStatus,
    TableStatus,
)
from cutline.common.store.lives import Life, name_of
from cutline.common.waits import Party
from cutline.services.control.conditions import Samples

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MODES = ("running", "paused", "stopped", "deleting")
CURRENT_SECONDS = 30.0
"""A status part that is older says nothing about now: its service is gone."""
_AT_REST = frozenset({LIVE, DROPPED, PAUSED})
_OF_TABLES = frozenset({"table", "column"})  # labels that the sum of the other tables has not


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its kind (gauge, counter, histogram), its labels and its meaning."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


def _gauge(meaning: str, *labels: str) -> Metric:
    return Metric(kind="gauge", labels=labels, meaning=meaning)


def _counter(meaning: str, *labels: str) -> Metric:
    return Metric(kind="counter", labels=labels, meaning=meaning)


def _histogram(meaning: str) -> Metric:
    return Metric(kind="histogram", labels=("pipeline", "part"), meaning=meaning)


METRICS: Mapping[str, Metric] = {
    # processes
    "cutline_services": _gauge("service processes that are alive", "role"),
    "cutline_event_loop_lag_seconds": _gauge(
        "longest delay of a service's event loop in the last 15 s", "role", "service"
    ),
    "cutline_process_resident_memory_bytes": _gauge("memory that a service process holds", "role", "service"),
    "cutline_process_cpu_seconds_total": _counter("CPU time that a service process has used", "role", "service"),
    "cutline_redis_up": _gauge("1 if the mesh's Redis answers the control service, else 0"),
    "cutline_store_up": _gauge("1 if the store answers the control service and has room, else 0"),
    "cutline_redis_memory_used_bytes": _gauge("memory that the mesh's Redis uses"),
    "cutline_redis_memory_limit_bytes": _gauge("maxmemory of the mesh's Redis; missing if it has none"),
    "cutline_disk_free_bytes": _gauge("free bytes of the disk that holds the store or a lake in a folder", "folder"),
    "cutline_disk_size_bytes": _gauge("size of that disk", "folder"),
    # a pipeline
    "cutline_leader": _gauge("1 if the service leads the pipeline, else 0", "pipeline", "role", "service"),
    "cutline_leaders": _gauge("services that lead the pipeline; exactly 1 is right", "pipeline", "role"),
    "cutline_mode": _gauge("1 for the mode that the pipeline is in, else 0", "pipeline", "mode"),
    "cutline_halted": _gauge("1 if the pipeline is halted until a person acts, else 0", "pipeline"),
    "cutline_failures_in_row": _gauge("epochs in a row that failed, while the next try waits", "pipeline"),
    "cutline_epoch": _gauge("number of the epoch of the mesh", "pipeline"),
    "cutline_epochs_total": _counter("epochs that were opened", "pipeline", "part"),
    "cutline_checkpoint": _gauge("number of the newest checkpoint", "pipeline"),
    "cutline_checkpoint_age_seconds": _gauge("seconds since the newest checkpoint was complete", "pipeline"),
    "cutline_checkpoint_interval_seconds": _gauge("the setting checkpoint.interval_seconds", "pipeline"),
    "cutline_checkpoint_failures_total": _counter("checkpoints that ended with their epoch", "pipeline", "part"),
    "cutline_publication": _gauge("number of the newest publication", "pipeline"),
    "cutline_publication_age_seconds": _gauge("seconds since the newest publication", "pipeline"),
    "cutline_waiting": _gauge(
        "1 while a running pipeline waits for this party, other than its source or a person", "pipeline", "party"
    ),
    "cutline_condition": _gauge(
        "conditions that a person must act on; `acknowledged`: whether one knows of it", "pipeline", "condition",
        "severity", "acknowledged",
    ),
    "cutline_source_connected": _gauge("0 while a service waits for an unreachable source, else 1", "pipeline"),
    "cutline_source_lag_seconds": _gauge("seconds since the commit up to which the binlog was read", "pipeline"),
    "cutline_source_lag_bytes": _gauge(
        "bytes of the binlog after the newest checkpoint, looked at each minute", "pipeline"
    ),
    "cutline_source_clock_offset_seconds": _gauge("how far the source's clock is ahead of ours", "pipeline"),
    "cutline_source_oldest_transaction_seconds": _gauge(
        "how long the oldest transaction of Cutline's user at the source has been open", "pipeline"
    ),
    "cutline_binlog_left_seconds": _gauge(
        "seconds until the source may remove binlog that is still needed; missing if it keeps all, or if unknown",
        "pipeline",
    ),
    "cutline_binlog_retention_seconds": _gauge(
        "how long the source keeps a binlog file; missing if for ever, or if unknown", "pipeline"
    ),
    "cutline_lake_lag_seconds": _gauge("seconds since the commit up to which the lake shows the source", "pipeline"),
    "cutline_spark_writer_failing": _gauge(
        "1 while the Spark writer can't go on and tries again, else 0", "pipeline"
    ),
    "cutline_compaction_waiting_tables": _gauge("tables with new files that compaction has yet to look at", "pipeline"),
    "cutline_compaction_waiting_files": _gauge("files that are worth merging, as far as is known", "pipeline"),
    "cutline_channel_outstanding_bytes": _gauge(
        "bytes sent on a channel of the mesh and not yet taken", "pipeline", "part", "peer"
    ),
    "cutline_channel_credit_bytes": _gauge(
        "the most bytes that may be outstanding on the channel", "pipeline", "part", "peer"
    ),
    # its tables
    "cutline_tables": _gauge("tables in a phase", "pipeline", "phase"),
    "cutline_tables_quarantined": _gauge("quarantined tables by the code of the cause", "pipeline", "cause"),
    "cutline_table_rows_done": _gauge("rows that the snapshot of the table's generation has read", "pipeline", "table"),
    "cutline_table_rows_estimate": _gauge("rows of the table by the source's estimate", "pipeline", "table"),
    "cutline_table_splits_done": _gauge("chunks of the table that have been read", "pipeline", "table"),
    "cutline_table_splits": _gauge("chunks of the table that are known", "pipeline", "table"),
    "cutline_table_generation": _gauge(
        "generation of the table: 1, and 1 more each time it is read again", "pipeline", "table"
    ),
    "cutline_table_files": _gauge("data files of the lake table, as of its last change", "pipeline", "table"),
    "cutline_table_bytes": _gauge("bytes of these files", "pipeline", "table"),
    "cutline_staged_rows_total": _counter(
        "rows that writers have staged, by operation: snapshot, insert, update, delete, truncate",
        *("pipeline", "part", "table", "operation"),
    ),
    "cutline_staged_bytes_total": _counter(
        "bytes of these rows in memory, divided among the operations of a batch by rows",
        *("pipeline", "part", "table", "operation"),
    ),
    "cutline_zero_dates_total": _counter(
        "zero and partial dates that became null", "pipeline", "part", "table", "column"
    ),
    # durations
    "cutline_chunk_read_seconds": _histogram("from the order to read a chunk to its last row"),
    "cutline_checkpoint_seconds": _histogram("from a checkpoint's first marker to its entry in the journal"),
    "cutline_apply_seconds": _histogram("to apply a batch of checkpoints to the lake tables"),
    "cutline_commit_to_publication_seconds": _histogram("from a commit at the source to its publication"),
}
_TABLE_GAUGES: Mapping[str, Callable[[TableStatus], int | None]] = {
    "cutline_table_rows_done": lambda table: table.rows_done,
    "cutline_table_rows_estimate": lambda table: table.rows_estimate,
    "cutline_table_splits_done": lambda table: table.splits_done,
    "cutline_table_splits": lambda table: table.splits_total,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The disk that holds the store, or the lake of a pipeline."""

    folder: str
    free_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a scrape, and the judgement of alerts, starts from: the status parts by pipeline, the services that are
    alive, Redis's memory, disks, and the time of all that (seconds since 1970). `redis_away`, `store_away`: why one of
    them gave no answer; then nothing is known of pipelines. `store_full`: why the store takes no more."""

    statuses: Mapping[str, PipelineStatus]
    services: list[Service]
    now: float
    redis_away: Cause | None = None
    store_away: Cause | None = None
    store_full: Cause | None = None
    memory: Memory | None = None
    disks: tuple[Disk, ...] = ()
    lives: Mapping[str, Life] = field(default_factory=dict)
    """Which life of its name each pipeline is."""

    @property
    def blind(self) -> bool:
        """Whether nothing is known of pipelines."""
        return self.redis_away is not None or self.store_away is not None


class Statuses:
    """A Prometheus collector over one reading of the registry; made for one scrape."""

    def __init__(self, facts: Facts, *, most: int = 200, conditions: Iterable[tuple[str, ...]] = ()) -> None:
        """`most`: how many tables of a pipeline have series of their own; `conditions`: labels of cutline_condition."""
        self._conditions = Counter(conditions)
        self._facts = facts
        self._now = facts.now
        self._most = most
        self._families: dict[str, Any] = {}

    def collect(self) -> Iterator[Family]:
        """Yield every metric family; a number that no part has is left out, not reported as 0."""
        yield from self.essential()
        self._families = {}
        for labels, number in self._conditions.items():
            self._put("cutline_condition", labels, number)
        for pipeline, status in self._facts.statuses.items():
            self._counters(pipeline, status)
            self._tables(pipeline, status)
        yield from self._families.values()

    def judged(self) -> Iterator[Family]:
        """Yield the families by which conditions are judged."""
        self._families = {}
        self._processes()
        for pipeline, status in self._facts.statuses.items():
            self._pipeline(pipeline, status)
            self._leaders(pipeline)
            self._phases(pipeline, status)
        yield from self._families.values()

    def essential(self) -> Iterator[Family]:
        """Yield the families that have no series by table."""
        yield from self.judged()
        self._families = {}
        for pipeline, status in self._facts.statuses.items():
            self._channels(pipeline, status)
            self._histograms(pipeline, status)
        yield from self._families.values()

    def _family(self, name: str) -> Any:
        family = self._families.get(name)
        if family is None:
            metric = METRICS[name]
            made: Callable[..., Family] = {
                "gauge": GaugeMetricFamily,
                "counter": CounterMetricFamily,
                "histogram": HistogramMetricFamily,
            }[metric.kind]
            family = self._families[name] = made(name, metric.meaning, labels=metric.labels)
        return family

    def _put(self, name: str, labels: Iterable[str], value: float | None) -> None:
        if value is not None:
            self._family(name).add_metric(list(labels), float(value))

    def _processes(self) -> None:
        services = self._facts.services
        self._put("cutline_redis_up", [], self._facts.redis_away is None)
        facts = self._facts
        self._put("cutline_store_up", [], facts.store_away is None and facts.store_full is None)
        for role in sorted({service.role for service in services}):
            self._put("cutline_services", [role], sum(service.role == role for service in services))
        for service in services:
            who = [service.role, service.incarnation]
            self._put("cutline_event_loop_lag_seconds", who, service.loop_lag_seconds)
            self._put("cutline_process_resident_memory_bytes", who, service.rss_bytes)
            self._put("cutline_process_cpu_seconds_total", who, service.cpu_seconds)
        if (memory := self._facts.memory) is not None:
            self._put("cutline_redis_memory_used_bytes", [], memory.used_bytes)
            self._put("cutline_redis_memory_limit_bytes", [], memory.limit_bytes)
        for disk in self._facts.disks:
            self._put("cutline_disk_free_bytes", [disk.folder], disk.free_bytes)
            self._put("cutline_disk_size_bytes", [disk.folder], disk.size_bytes)

    def _pipeline(self, pipeline: str, status: PipelineStatus) -> None:
        leader, spark = status.enumerator, status.spark_writer
        for name, value in (
            ("cutline_publication", spark.published),
            ("cutline_compaction_waiting_tables", spark.compaction.tables),
            ("cutline_compaction_waiting_files", spark.compaction.files),
            ("cutline_source_lag_seconds", self._age(leader.source_time)),
            ("cutline_publication_age_seconds", self._age(spark.published_at)),
            ("cutline_lake_lag_seconds", self._age(spark.source_time)),
        ):
            self._put(name, [pipeline], value)
        if leader.at is not None:
            self._leader(pipeline, leader)
            waits = [part.waiting_for for part in status.members().values() if self._is_current(part)]
            connected = all(wait is None or wait.party != Party.SOURCE for wait in waits)
            self._put("cutline_source_connected", [pipeline], connected)
            self._waits(pipeline, status)
        if leader.binlog is not None:
            self._binlog(pipeline, leader.binlog)
        if spark.at is not None:
            self._put("cutline_spark_writer_failing", [pipeline], spark.failure is not None)

    def _waits(self, pipeline: str, status: PipelineStatus) -> None:
        wait, leader = status.obstacle(), status.enumerator
        if wait is not None and leader.mode == "running" and leader.halted is None and self._is_current(leader):
            if wait.party not in (Party.SOURCE, Party.PERSON):
                self._put("cutline_waiting", [pipeline, wait.party], 1)

    def _leader(self, pipeline: str, leader: EnumeratorStatus) -> None:
        for name, value in (
            ("cutline_epoch", leader.epoch),
            ("cutline_failures_in_row", leader.failures),
            ("cutline_halted", leader.halted is not None),
            ("cutline_checkpoint", leader.checkpoint.number),
            ("cutline_checkpoint_interval_seconds", leader.checkpoint.interval_seconds),
            ("cutline_checkpoint_age_seconds", self._age(leader.checkpoint.completed_at)),
        ):
            self._put(name, [pipeline], value)
        at_stop = leader.ended is not None and leader.mode == "running"  # it is to run, and has nothing more to read
        for mode in MODES:
            self._put("cutline_mode", [pipeline, mode], mode == ("stopped" if at_stop else leader.mode))

    def _binlog(self, pipeline: str, binlog: BinlogStatus) -> None:
        left = binlog.left_seconds
        for name, value in (
            ("cutline_source_lag_bytes", binlog.lag_bytes),
            ("cutline_source_clock_offset_seconds", binlog.clock_offset_seconds),
            ("cutline_source_oldest_transaction_seconds", binlog.oldest_transaction_seconds),
            ("cutline_binlog_retention_seconds", binlog.retention_seconds),
            ("cutline_binlog_left_seconds", None if left is None else max(0.0, left - (self._age(binlog.at) or 0.0))),
        ):
            self._put(name, [pipeline], value)

    def _age(self, moment: float | None) -> float | None:
        return max(0.0, self._now - moment) if moment else None

    def _is_current(self, part: PartStatus) -> bool:
        return part.at is not None and self._now - part.at < CURRENT_SECONDS

    def _leaders(self, pipeline: str) -> None:
        for role in ("enumerator", SPARK_WRITER):
            leads = {s.incarnation: pipeline in map(name_of, s.leads) for s in self._facts.services if s.role == role}
            for incarnation, led in leads.items():
                self._put("cutline_leader", [pipeline, role, incarnation], led)
            self._put("cutline_leaders", [pipeline, role], sum(leads.values()))

    def _phases(self, pipeline: str, status: PipelineStatus) -> None:
        phases, causes = dict.fromkeys(Phase, 0), dict.fromkeys(QUARANTINES, 0)
        for table in status.tables.values():
            phases[table.phase] += 1
        for table in status.quarantined().values():
            causes[counted(table.cause)] += 1
        for phase, number in phases.items():
            self._put("cutline_tables", [pipeline, phase], number)
        for known, number in causes.items():
            self._put("cutline_tables_quarantined", [pipeline, known], number)

    def _channels(self, pipeline: str, status: PipelineStatus) -> None:
        for name, part in sorted(status.members().items()):
            for peer, channel in (part.channels if self._is_current(part) else {}).items():
                self._put("cutline_channel_outstanding_bytes", [pipeline, name, peer], channel.outstanding_bytes)
                self._put("cutline_channel_credit_bytes", [pipeline, name, peer], channel.credit_bytes)

    def _histograms(self, pipeline: str, status: PipelineStatus) -> None:
        for part, measured in sorted(status.parts().items()):
            for name, histogram in measured.histograms.items():
                bounds = SECONDS.get(name)
                if bounds is None or len(histogram.buckets) != len(bounds) + 1:
                    continue  # of another version
                buckets = zip((*map(str, bounds), "+Inf"), accumulate(histogram.buckets), strict=True)
                family = self._family(f"cutline_{name}_seconds")
                family.add_metric([pipeline, part], buckets=list(buckets), sum_value=histogram.sum)

    def _counters(self, pipeline: str, status: PipelineStatus) -> None:
        for part, measured in sorted(status.parts().items()):
            own: dict[str, set[str]] = {}
            others: dict[tuple[str, ...], float] = {}
            for name, labels, number in measured.counters:
                full = f"cutline_{name}_total"
                metric = METRICS.get(full)
                if metric is None:
                    continue  # of another version
                own_labels = metric.labels[2:]
                if (table := labels.get("table")) is not None:
                    names = own.setdefault(name, set())  # a part keeps its order, so a table keeps its series
                    if table == OTHERS or (table not in names and len(names) >= self._most):
                        values = [OTHERS if each in _OF_TABLES else str(labels.get(each, "")) for each in own_labels]
                        key = (full, *values)
                        others[key] = others.get(key, 0) + number
                        continue
                    names.add(table)
                values = [str(labels.get(each, "")) for each in own_labels]
                self._put(full, [pipeline, part, *values], number)
            for (full, *values), number in others.items():
                self._put(full, [pipeline, part, *values], number)

    def _tables(self, pipeline: str, status: PipelineStatus) -> None:
        found = status.tables
        staged: dict[str, float] = {}
        for writer in status.writers.values():
            for name, labels, rows in writer.counters:
                if name == "staged_rows":
                    staged[labels["table"]] = staged.get(labels["table"], 0) + rows
        chosen = heapq.nlargest(
            self._most,
            sorted(found),
            key=lambda name: (found[name].phase not in _AT_REST, staged.get(name, 0)),
        )
        own = set(chosen)
        for name in sorted(own):
            self._put("cutline_table_generation", [pipeline, name], found[name].generation)
            for metric, number_of in _TABLE_GAUGES.items():
                self._put(metric, [pipeline, name], number_of(found[name]))
        if rest := [table for name, table in found.items() if name not in own]:
            for metric, number_of in _TABLE_GAUGES.items():
                known = [gauge for table in rest if (gauge := number_of(table)) is not None]
                self._put(metric, [pipeline, OTHERS], sum(known) if known else None)
        for name, (files, size, _) in status.spark_writer.files.items():
            self._put("cutline_table_files", [pipeline, name], files)
            self._put("cutline_table_bytes", [pipeline, name], size)


def samples(facts: Facts) -> Samples:
    """The numbers by which conditions are judged."""
    families = Statuses(facts).judged()
    return Samples((each.name, each.labels, each.value) for family in families for each in family.samples)


def render(facts: Facts, *, most: int = 200, conditions: Iterable[tuple[str, ...]] = ()) -> bytes:
    """Return the text form of all numbers, of media type CONTENT_TYPE; `conditions`: labels of cutline_condition."""
    registry = CollectorRegistry()
    registry.register(Statuses(facts, most=most, conditions=conditions))
    return generate_latest(registry)
