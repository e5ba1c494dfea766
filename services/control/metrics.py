"""The metrics of all pipelines for Prometheus. Every name has its unit; times become ages at the scrape.

Services publish numbers in their status parts (`Registry.put_status`); only the control service renders them, so that
one scrape has those of all processes. Any part may have counters of its own:
`"counters": [[name, {label: value}, number], ...]` becomes `cutline_<name>_total`, with the labels `pipeline` and
`part` added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cutline.common.mesh.presence import Service, tables

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PHASES = ("waiting", "snapshot", "catch-up", "live", "paused", "quarantined", "dropped")

_TABLE_GAUGES = {
    "rows_done": ("cutline_table_rows_done", "rows that the snapshot of the table's generation has read"),
    "rows_estimate": ("cutline_table_rows_estimate", "rows of the table by the source's estimate"),
    "splits_done": ("cutline_table_splits_done", "chunks of the table that have been read"),
    "splits_total": ("cutline_table_splits_total", "chunks of the table that are known"),
    "generation": ("cutline_table_generation", "generation of the table: 1, and 1 more each time it is read again"),
}


class Statuses:
    """A Prometheus collector over one reading of the registry; made for one scrape."""

    def __init__(self, statuses: Mapping[str, Mapping[str, Any]], services: list[Service], now: float) -> None:
        """Take the status parts by pipeline, the live services, and the time of both (epoch seconds)."""
        self._statuses = statuses
        self._services = services
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; a number that no part has is left out, not reported as 0."""
        services = GaugeMetricFamily("cutline_services", "service processes that are alive", labels=["role"])
        for role in sorted({service.role for service in self._services}):
            services.add_metric([role], sum(service.role == role for service in self._services))
        yield services
        lag = GaugeMetricFamily(
            "cutline_event_loop_lag_seconds",
            "longest delay of a service's event loop in the last 15 s",
            labels=["role", "service"],
        )
        for service in self._services:
            if service.loop_lag_seconds is not None:
                lag.add_metric([service.role, service.incarnation], service.loop_lag_seconds)
        yield lag
        yield from self._pipelines()
        yield from self._tables()
        yield from self._counters()

    def _pipelines(self) -> Iterator[Metric]:
        for name, meaning, number in (
            ("cutline_epoch", "epoch of the mesh", lambda p: _get(p, "enumerator", "epoch")),
            (
                "cutline_checkpoint",
                "number of the newest checkpoint",
                lambda p: _get(p, "enumerator", "checkpoint", "number"),
            ),
            (
                "cutline_checkpoint_age_seconds",
                "seconds since the newest checkpoint was complete",
                lambda p: self._age(_get(p, "enumerator", "checkpoint", "completed_at")),
            ),
            (
                "cutline_source_lag_seconds",
                "seconds since the commit up to which the binlog was read",
                lambda p: self._age(_get(p, "enumerator", "source", "source_time")),
            ),
            ("cutline_publication", "number of the newest publication", lambda p: _get(p, "spark_writer", "published")),
            (
                "cutline_publication_age_seconds",
                "seconds since the newest publication",
                lambda p: self._age(_get(p, "spark_writer", "published_at")),
            ),
            (
                "cutline_lake_lag_seconds",
                "seconds since the commit up to which the lake shows the source",
                lambda p: self._age(_get(p, "spark_writer", "source_time")),
            ),
        ):
            family = GaugeMetricFamily(name, meaning, labels=["pipeline"])
            for pipeline, parts in self._statuses.items():
                if (value := number(parts)) is not None:
                    family.add_metric([pipeline], float(value))
            yield family

    def _tables(self) -> Iterator[Metric]:
        found = [
            (pipeline, name, table)
            for pipeline, parts in self._statuses.items()
            for name, table in sorted(tables(parts).items())
        ]
        for key, (metric, meaning) in _TABLE_GAUGES.items():
            family = GaugeMetricFamily(metric, meaning, labels=["pipeline", "table"])
            for pipeline, name, table in found:
                if table.get(key) is not None:
                    family.add_metric([pipeline, name], float(table[key]))
            yield family
        phases = GaugeMetricFamily("cutline_tables", "tables in a phase", labels=["pipeline", "phase"])
        for pipeline in self._statuses:
            for phase in PHASES:
                phases.add_metric(
                    [pipeline, phase], sum(p == pipeline and table["phase"] == phase for p, _, table in found)
                )
        yield phases

    def _counters(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily] = {}
        for pipeline, parts in self._statuses.items():
            for part, status in sorted(parts.items()):
                for name, labels, number in status.get("counters") or ():
                    plain = re.sub(r"[^a-z0-9_]", "_", str(name).lower())
                    keys = ["pipeline", "part", *sorted(labels)]
                    family = families.setdefault(
                        plain,
                        CounterMetricFamily(f"cutline_{plain}", f"{name}, counted since the part's start", labels=keys),
                    )
                    family.add_metric([pipeline, part, *(str(labels[key]) for key in sorted(labels))], float(number))
        yield from families.values()

    def _age(self, moment: float | None) -> float | None:
        return max(0.0, self._now - moment) if moment else None


def _get(parts: Mapping[str, Any], *path: str) -> Any:
    found: Any = parts
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def render(statuses: Mapping[str, Mapping[str, Any]], services: list[Service], now: float) -> bytes:
    """Return the text form of all numbers, of media type CONTENT_TYPE."""
    registry = CollectorRegistry()
    registry.register(Statuses(statuses, services, now))
    return generate_latest(registry)
