"""The status parts are read by name, also where another version of Cutline wrote them."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from cutline.common.form import read, read_each, text
from cutline.common.limits import Limits
from cutline.common.measures import Counted, Histogram
from cutline.common.status.pipeline_status import (
    Apply,
    BinlogStatus,
    ChannelStatus,
    CheckpointStatus,
    CommandsStatus,
    CompactionStatus,
    EnumeratorStatus,
    Failure,
    Files,
    Held,
    Mark,
    PartStatus,
    PipelineStatus,
    ReaderStatus,
    SparkWriterStatus,
    TableStatus,
    WriterStatus,
)
from cutline.common.waits import Party, Wait
from tests.support.causes import because

ENUMERATOR = EnumeratorStatus(
    at=1000.5,
    counters=(Counted("epochs", {}, 2),),
    histograms={"checkpoint": Histogram(buckets=(1, 2), sum=0.5)},
    epoch=7,
    waiting_for=Wait(Party.STORE, "the store, to answer", since=990.5),
    channels={"reader-0": ChannelStatus(outstanding_bytes=1, credit_bytes=2, sent_bytes=3, sent=4, taken=5)},
    marks=(Mark(8, 999.0, None), Mark(9, 1000.0, 1000.25)),
    leader="e1",
    state="leading",
    mode="paused",
    mode_since=900.5,
    definition=2,
    commands=CommandsStatus(running=4, done=3, apart=(1, 2), waiting={5: "an epoch"}),
    halted=because("the source lost a position", "read again"),
    halted_since=950.5,
    ended=11,
    checkpoint=CheckpointStatus(number=8, completed_at=999.5, in_flight=9, interval_seconds=10),
    failures=3,
    retry_at=1010.0,
    limits=Limits(rows_per_second=50.0),
    source_host="db:3306",
    source_time=998.0,
    binlog=BinlogStatus(at=990.0, left_seconds=3600.0, lag_bytes=12, clock_offset_seconds=-0.5),
    rates={"a.b": 12.5},
)
READER = ReaderStatus(at=1000.0, epoch=7, rows_total=10, bytes_total=100, source_host="db:3306", main_host="db:3307")
WRITER = WriterStatus(at=1000.0, epoch=7, rows_total=10, bytes_total=100, counters=(Counted("a", {"table": "a.b"}, 1),))
SPARK = SparkWriterStatus(
    at=1000.0,
    leader="s1",
    w=3,
    applied=8,
    published=7,
    published_at=999.0,
    source_time=998.0,
    quarantined={
        "a.c": Held(
            cause=because("others committed"), generation=2, since=991.5, seen="5", choices=("overwrite",),
            chosen="overwrite",
        )
    },
    commands={3: None, 4: "it is a view"},
    applied_by_spark={"a.b": "too many files"},
    applies=(Apply(first=6, last=7, rows=5, applied_at=998.5, seconds=0.25, tables={"a.b": 0.2}, published_at=999.0),),
    files={"a.b": Files(2, 2048, 30)},
    compaction=CompactionStatus(tables=1, files=20),
    failure=Failure(cause=because("no catalogue"), kind="ConfigError", again_seconds=0.5, since=992.5),
)
PARTS = [ENUMERATOR, READER, WRITER, SPARK]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_is_read_as_it_was_written(part: PartStatus) -> None:
    assert read(type(part), json.loads(text(part))) == part


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_that_nobody_has_written_says_nothing(part: PartStatus) -> None:
    kind = type(part)
    assert read(kind, None) == read(kind, {}) == kind()
    assert kind().at is None


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_of_an_older_version_has_defaults_for_what_that_lacked(part: PartStatus) -> None:
    """Each field in turn is one that the older version did not write."""
    kind: type[Any] = type(part)
    written = json.loads(text(part))
    for field in fields(kind):
        older = {name: value for name, value in written.items() if name != field.name}
        found = read(kind, older)
        assert getattr(found, field.name) == getattr(kind(), field.name)
        assert all(getattr(found, name) == getattr(part, name) for name in older)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_what_only_a_newer_version_knows_is_left_out(part: PartStatus) -> None:
    """A newer version may have more fields, also inside of others, and longer arrays."""

    def newer(body: Any) -> Any:
        if isinstance(body, dict):
            return {name: newer(value) for name, value in body.items()} | ({"invented": [{"x": 1}]} if body else {})
        return body

    written = json.loads(text(part))
    longer = newer(written) | {"counters": [[*each, "more"] for each in written["counters"]]}
    # what is added to a mapping of numbers, texts or objects has another form than its entries
    assert read(type(part), longer) == part


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"epoch": "7"}, {"epoch": 0}),
        ({"epoch": True}, {"epoch": 0}),
        ({"mode": "dreaming"}, {"mode": "running"}),
        ({"checkpoint": [8]}, {"checkpoint": CheckpointStatus()}),
        ({"checkpoint": {"number": 8, "completed_at": "noon"}}, {"checkpoint": CheckpointStatus(number=8)}),
        ({"limits": {"rows_per_second": 5}}, {"limits": Limits(rows_per_second=5)}),
        ({"binlog": {"left_seconds": 1.0}}, {"binlog": None}),  # it does not say when that was
        ({"marks": [[8, 999.0], [9, 999.0, None]]}, {"marks": (Mark(9, 999.0, None),)}),
        ({"rates": {"a.b": "fast", "a.c": 1}}, {"rates": {"a.c": 1}}),
        ({"commands": {"waiting": {"5": "rest", "last": "x"}}}, {"commands": CommandsStatus(waiting={5: "rest"})}),
        ({"channels": {"reader-0": 5, "reader-1": {"sent": 1}}}, {"channels": {"reader-1": ChannelStatus(sent=1)}}),
    ],
)  # fmt: skip
def test_a_field_of_another_form_counts_as_missing_and_only_that_one(
    other: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(EnumeratorStatus, {"at": 1.0, **other})
    assert found.at == 1.0
    assert {name: getattr(found, name) for name in expected} == expected


def test_what_the_version_before_did_not_know_is_none() -> None:
    held, failure = {"cause": {"sentence": "x"}, "generation": 2}, {"cause": {}, "kind": "E", "again_seconds": 1.0}
    found = read(SparkWriterStatus, {"files": {"a.b": [2, 2048]}, "quarantined": {"a.b": held}, "failure": failure})
    assert found.files == {"a.b": Files(2, 2048, None)}
    assert found.quarantined["a.b"].since is None
    assert found.failure is not None
    assert found.failure.since is None
    (table,) = read_each(TableStatus, {"a.b": {"phase": "live"}}, {}).values()
    assert table.since is None


def test_tables_that_are_unchanged_are_not_made_again_and_those_without_a_phase_are_left_out() -> None:
    before = {"a.b": {"phase": "live"}, "a.c": {"phase": "snapshot", "rows_done": 1}}
    first = read_each(TableStatus, before, {})
    known = {name: (before[name], table) for name, table in first.items()}
    after = {"a.b": {"phase": "live"}, "a.c": {"phase": "snapshot", "rows_done": 2}, "a.d": {"generation": 2}}
    second = read_each(TableStatus, after, known)
    assert second["a.b"] is first["a.b"]
    assert second == {"a.b": TableStatus(phase="live"), "a.c": TableStatus(phase="snapshot", rows_done=2)}


def test_a_pipeline_has_its_parts_by_role_and_leaves_out_what_this_version_does_not_know() -> None:
    written = {"enumerator": ENUMERATOR, "reader-0": READER, "writer-10": WRITER, "spark_writer": SPARK}
    raw = {name: json.loads(text(part)) for name, part in written.items()} | {"feed-0": {"at": 1.0, "epoch": 7}}
    tables = {"a.b": TableStatus(phase="live"), "a.c": TableStatus(phase="live", generation=2)}
    status = PipelineStatus.put_together(raw, tables)
    assert (status.enumerator, status.spark_writer) == (ENUMERATOR, SPARK)
    assert (status.readers, status.writers) == ({"reader-0": READER}, {"writer-10": WRITER})
    assert status.parts() == written
    assert status.members() == status.in_epoch() == {name: part for name, part in written.items() if part is not SPARK}
    assert PipelineStatus.put_together({}, {}) == PipelineStatus()
    assert PipelineStatus().parts() == PipelineStatus().in_epoch() == {}


def test_members_of_an_earlier_epoch_are_not_in_this_one() -> None:
    raw = {"enumerator": {"at": 1.0, "epoch": 8}, "reader-0": {"at": 1.0, "epoch": 8}, "reader-1": {"epoch": 7}}
    status = PipelineStatus.put_together(raw, {})
    assert sorted(status.in_epoch()) == ["enumerator", "reader-0"]
    assert sorted(status.members()) == ["enumerator", "reader-0", "reader-1"]


@pytest.mark.parametrize(
    ("table", "phase"),
    [
        (TableStatus(phase="live", generation=2), "quarantined"),
        (TableStatus(phase="live", generation=3), "live"),  # it is read again already
        (TableStatus(phase="dropped", generation=2), "dropped"),
    ],
)
def test_a_table_that_the_spark_writer_holds_is_quarantined_in_that_generation(table: TableStatus, phase: str) -> None:
    held = {"cause": {"code": "of_the_future", "sentence": "it is a view"}, "generation": 2, "since": 7.5}
    raw = {"spark_writer": {"quarantined": {"a.c": held}}}
    found = PipelineStatus.put_together(raw, {"a.c": table, "a.b": TableStatus(phase="live")}).tables
    assert (found["a.c"].phase, found["a.c"].since) == (phase, 7.5 if phase == "quarantined" else None)
    assert found["a.c"].cause == (because("it is a view") if phase == "quarantined" else None)
    assert found["a.b"] == TableStatus(phase="live")
