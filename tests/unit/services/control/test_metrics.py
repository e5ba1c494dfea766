"""The metrics: every one that the code knows is rendered from a full status, listed in the docs and within bounds."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutline.common.causes import Cause, Code, counted
from cutline.common.form import read_each, text
from cutline.common.measures import OTHERS, Measures, TableRows
from cutline.common.mesh.presence import Service
from cutline.common.mesh.redis import Memory
from cutline.common.status.pipeline_status import PipelineStatus, TableStatus
from cutline.common.store.lives import Key
from cutline.common.waits import Party, Wait
from cutline.services.control.metrics import METRICS, Disk, Facts, render
from tests.support.status import status_of

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"
NOW = 1_000_000.0


def status(**more: Any) -> dict[str, dict[str, Any]]:
    """The status of a pipeline in which every part has all its numbers."""
    measured = Measures()
    for name in ("chunk_read", "checkpoint", "apply", "commit_to_publication"):
        measured.observe(name, 0.2)
    measured.count("epochs")
    measured.count("checkpoint_failures")
    written = TableRows(5)
    written.add("a.b", {"insert": 2, "update": 1}, 30)
    binlog = {"lag_bytes": 7, "clock_offset_seconds": -0.5, "retention_seconds": 86400, "left_seconds": 600, "at": NOW}
    binlog["oldest_transaction_seconds"] = 2.5
    table = {"generation": 1, "rows_done": 5, "rows_estimate": 9, "splits_done": 1, "splits_total": 3, "cause": None}
    return {
        "enumerator": {
            "at": NOW,
            "counters": measured.counters(),
            "histograms": measured.histograms(),
            "epoch": 3,
            "failures": 0,
            "halted": None,
            "checkpoint": {"number": 8, "completed_at": NOW - 4, "interval_seconds": 10},
            "source_time": NOW - 5,
            "binlog": binlog,
            "tables": {
                "a.b": {"phase": "snapshot", **table},
                "a.c": {"phase": "quarantined", **table, "cause": Cause(Code.NO_KEY, "a.c has no identity")},
            },
        },
        "spark_writer": {
            "at": NOW,
            "published": 7,
            "published_at": NOW - 6,
            "source_time": NOW - 7,
            "compaction": {"tables": 1, "files": 8},
            "files": {"a.b": [3, 300]},
        },
        "writer-0": {
            "at": NOW,
            "counters": [*written.shown(), ["zero_dates", {"table": "a.b", "column": "d"}, 1]],
            "channels": {"reader-0": {"outstanding_bytes": 1, "credit_bytes": 2}},
        },
        **more,
    }


def facts(parts: dict[str, dict[str, Any]] | PipelineStatus) -> Facts:
    common: dict[str, Any] = {"host": "h", "pid": 1, "started_at": 1.0, "loop_lag_seconds": 0.01}
    common |= {"rss_bytes": 1000, "cpu_seconds": 2.5}
    return Facts(
        statuses={"shop": parts if isinstance(parts, PipelineStatus) else status_of(parts)},
        services=[
            Service(incarnation="e1", role="enumerator", leads=(Key("shop.00ff00ff00ff"),), **common),
            Service(incarnation="e2", role="enumerator", **common),
            Service(incarnation="s1", role="spark_writer", leads=(Key("shop.00ff00ff00ff"),), **common),
        ],
        memory=Memory(used_bytes=5, limit_bytes=10),
        disks=(Disk(folder="/store", free_bytes=1, size_bytes=2),),
        now=NOW,
    )


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels; a series that comes twice is refused."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(body: bytes, name: str, **labels: str) -> float | None:
    return samples(body).get((name, tuple(sorted({"pipeline": "shop", **labels}.items()))))


def rendered_names() -> set[str]:
    """The name of every sample of a full status, of a pipeline that waits, with a condition."""
    waiting = status(**{"reader-0": {"at": NOW, "waiting_for": Wait(Party.MEMBER, "a writer")}})
    conditions = [("shop", "CutlineWaiting", "warning", "false")]
    return {name for name, _ in samples(render(facts(waiting), conditions=conditions))}


def test_every_metric_is_rendered_from_a_full_status_and_keeps_to_prometheus_conventions() -> None:
    names = rendered_names()
    for name, metric in METRICS.items():
        expected = f"{name}_bucket" if metric.kind == "histogram" else name
        assert expected in names, name
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|mib|gb|percent|count)(_|$)", name), name


def test_the_docs_list_every_metric_with_labels_and_meaning() -> None:
    listed = re.findall(r"^\| `(cutline_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    expected = [
        (name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
        for name, metric in METRICS.items()
    ]
    assert listed == expected


def test_ages_leaders_and_what_is_left_of_the_binlog() -> None:
    body = render(facts(status()))
    assert value(body, "cutline_checkpoint_age_seconds") == 4
    assert value(body, "cutline_binlog_left_seconds") == 600
    assert value(body, "cutline_leaders", role="enumerator") == 1
    assert value(body, "cutline_leader", role="enumerator", service="e2") == 0
    assert value(body, "cutline_mode", mode="running") == 1
    assert value(body, "cutline_tables_quarantined", cause="no_key") == 1
    assert value(body, "cutline_commit_to_publication_seconds_bucket", part="enumerator", le="0.5") == 1
    later = Facts(statuses={"shop": status_of(status())}, services=[], now=NOW + 60)
    assert value(render(later), "cutline_binlog_left_seconds") == 540


def test_the_source_is_connected_unless_a_service_that_is_alive_waits_for_it() -> None:
    def connected(at: float, party: Party) -> float | None:
        part = {"reader-0": {"at": at, "waiting_for": Wait(party, "the source")}}
        return value(render(facts(status(**part))), "cutline_source_connected")

    assert connected(NOW, Party.SOURCE) == 0
    assert connected(NOW, Party.BUSY_SOURCE) == 1
    assert connected(NOW - 60, Party.SOURCE) == 1


def test_a_pipeline_that_reached_its_stop_does_not_run() -> None:
    parts = status()
    parts["enumerator"]["ended"] = 9
    body = render(facts(parts))
    assert value(body, "cutline_mode", mode="running") == 0
    assert value(body, "cutline_mode", mode="stopped") == 1


def test_a_pipeline_without_any_part_and_parts_of_another_version_are_rendered() -> None:
    odd = {"histograms": {"chunk_read": {"buckets": [1], "sum": 1}, "new": {"buckets": [1], "sum": 1}}}
    other = {"reader-0": {**odd, "counters": [["of_the_future", {"table": "a.b"}, 1]], "channels": None}}
    for parts in ({}, other):
        names = {name for name, _ in samples(render(facts(parts)))}
        assert "cutline_leaders" in names
        assert not any("chunk_read" in name or "future" in name for name in names)


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """The collector looks through what the test makes, and not through what earlier tests left in this process."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("own_garbage")
def test_ten_thousand_tables_have_few_series_and_one_scrape_costs_little() -> None:
    """A scrape of 10,000 tables costs at most six times what it takes to parse the JSON that comes from Redis, which
    measures the machine: 0.4 of 0.1 seconds of CPU where this was written."""
    names = [f"shop.t{at:05}" for at in range(10_000)]
    parts = status()
    tables = {
        name: {"phase": "live", "generation": 1, "rows_done": 10, "rows_estimate": 10, "splits_done": 1}
        for name in names
    }
    tables["shop.t07777"]["phase"] = "snapshot"
    for at in range(4):
        written = TableRows(200)
        for name in names:
            written.add(name, {"insert": 2, "update": 1}, 30)
        zero = [["zero_dates", {"table": name, "column": "d"}, 1] for name in names]
        parts[f"writer-{at}"] = {"at": NOW, "counters": [*written.shown(), *zero]}
    bodies = {part: text(each) for part, each in {**parts, "tables": tables}.items()}
    times = []
    known = dict[str, tuple[object, TableStatus]]()
    for _ in range(5):
        began = time.thread_time()
        read = {part: json.loads(each) for part, each in bodies.items()}  # alive until the next are: no page is freed
        parsed = time.thread_time()
        raw = read.pop("tables")
        typed = read_each(TableStatus, raw, known)  # as the registry does: unchanged tables are not made again
        known = {name: (raw[name], table) for name, table in typed.items()}
        body = render(facts(PipelineStatus.put_together(read, typed)), most=200)
        times.append((time.thread_time() - began) / (parsed - began))
    found = samples(body)
    assert len(found) < 8_000
    assert min(times) < 6, times
    assert value(body, "cutline_table_rows_done", table="shop.t07777") == 10
    rows_done = [value for (name, _), value in found.items() if name == "cutline_table_rows_done"]
    assert (len(rows_done), sum(rows_done)) == (201, 100_000)
    zero_dates = [value for (name, _), value in found.items() if name == "cutline_zero_dates_total"]
    assert (len(zero_dates), sum(zero_dates)) == (4 * 201, 40_000)
    assert value(body, "cutline_staged_rows_total", part="writer-0", table=OTHERS, operation="insert") == 2 * 9_800


def test_a_quarantine_counts_under_the_code_of_its_cause_or_as_other() -> None:
    assert counted(Cause(Code.LAKE, "it is a view")) == "lake"
    assert counted(Cause(Code.PROTOCOL, "parts disagree")) == "other"
    assert counted(None) == "other"
