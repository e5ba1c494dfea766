"""What the API's reads are made of: split grids, the journal's window, publications, marks, rows of tables."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from cutline.common.journal.applies import Applies
from cutline.common.mesh.log_lines import without_secrets
from cutline.common.mesh.machine import MessageReceived, Send
from cutline.common.mesh.marks import KEPT, Marks
from cutline.common.mesh.messages import Marker, PartSaved
from cutline.common.mesh.topology import Topology
from cutline.common.mesh.usage import Usage
from cutline.common.phases import LIVE, PAUSED, SNAPSHOT
from cutline.common.schema import Column, TableSchema
from cutline.common.status.pipeline_status import (
    BinlogStatus,
    EnumeratorStatus,
    Files,
    Held,
    PipelineStatus,
    SparkWriterStatus,
    TableStatus,
)
from cutline.common.store.records import ChangeCounts, Content, Main, Publication, PublishedTable, TableEntry
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.splits import runs as grid_runs
from cutline.services.control.api.tables import matches
from cutline.services.control.published import Published, Shown
from cutline.services.control.table_rows import Row, Rows, Steady, etag
from cutline.services.control.watch import Status
from cutline.services.control.window import Window
from cutline.services.enumerator.events import Plan
from cutline.services.enumerator.grids import AGAIN_SECONDS, Grids, SnapshotRates, runs
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.splitter import Splitter
from cutline.services.enumerator.tables import Table
from tests.support import records
from tests.support.causes import because

SCHEMA = TableSchema(
    table_id="d.t",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)


@pytest.fixture
def store(tmp_path: Path) -> PipelineStore:
    return records.begun(f"file://{tmp_path}")


# --- split grids ------------------------------------------------------------------------------------------------------


def in_snapshot(name: str, made: int, total: int) -> Table:
    splitter = Splitter(
        table_id=name, generation=1, schema=SCHEMA, chunk_rows=10, estimate=total * 10, row_bytes=1, integer_key=True,
        made=made,
    )  # fmt: skip
    return Table(table_id=name, phase=SNAPSHOT, schema=SCHEMA, splitter=splitter, estimate=total * 10)


def enumerator(*tables: Table) -> Enumerator:
    machine = Enumerator(
        Plan(topology=Topology({"reader": 1, "writer": 1}), chunk_rows=10, exact=False, snapshot_only=False)
    )
    for table in tables:
        machine._tables.put(table)
    return machine


def test_a_grid_is_sent_when_it_changed_and_now_and_then_and_removed_when_the_snapshot_has_ended() -> None:
    grids, machine = Grids(), enumerator(in_snapshot("d.t", 2, 5))
    (sent,) = grids.changed(machine, now=100.0).values()
    assert json.loads(sent or "") == {
        "generation": 1, "made": 2, "total": 5, "waiting": [], "reading": {}, "fresh": [],
    }  # fmt: skip
    assert grids.changed(machine, now=100.5) == {}
    machine.splits.accepted["d.t:1:1"] = 1
    (sent,) = grids.changed(machine, now=101.0).values()
    assert json.loads(sent or "")["fresh"] == [[1, 1]]
    machine.splits.accepted.clear()
    assert list(grids.changed(machine, now=101.5)) == ["d.t"]
    assert grids.changed(machine, now=102.0) == {}
    assert list(grids.changed(machine, now=101.0 + AGAIN_SECONDS)) == ["d.t"]  # Redis may have been emptied
    machine._tables.put(replace(machine.tables["d.t"], phase=LIVE, splitter=None))
    assert grids.changed(machine, now=120.0) == {"d.t": None}
    assert grids.changed(machine, now=121.0) == {}


def test_thousands_of_tables_are_looked_at_a_few_at_a_time_and_none_is_forgotten() -> None:
    machine, grids, sent = enumerator(*(in_snapshot(f"d.t{n}", 1, 3) for n in range(1000))), Grids(), set()
    for look in range(10):
        changed = grids.changed(machine, now=float(look) / 2)
        assert len(changed) <= 400
        sent |= changed.keys()
    assert len(sent) == 1000


def test_a_hundred_thousand_chunks_cost_no_more_than_those_in_motion() -> None:
    grid = {"made": 100_000, "total": 100_001, "waiting": [99_999], "reading": {"5": "reader-0"}}
    begun = time.perf_counter()
    found = grid_runs(grid, {99_998, 7, 8})
    assert time.perf_counter() - begun < 0.05
    assert [(run.first, run.last, run.state, run.reader) for run in found] == [
        (1, 4, "lake", None),
        (5, 5, "reading", "reader-0"),
        (6, 6, "lake", None),
        (7, 8, "done", None),
        (9, 99_997, "lake", None),
        (99_998, 99_998, "done", None),
        (99_999, 99_999, "waiting", None),
        (100_000, 100_000, "lake", None),
        (100_001, 100_001, "waiting", None),
    ]
    assert runs([5, 1, 2, 3, 9]) == [[1, 3], [5, 5], [9, 9]]


def test_the_rate_of_a_snapshot_is_shown_while_rows_arrive_and_not_after() -> None:
    rates, table = SnapshotRates(), in_snapshot("d.t", 2, 5)
    assert rates.shown({"d.t": table}, 100.0) == {"d.t": 0.0}
    table = replace(table, rows_done=50)
    assert rates.shown({"d.t": table}, 105.0) == {"d.t": 10.0}
    assert rates.shown({}, 106.0)["d.t"] < 10.0
    assert rates.shown({}, 116.0) == {}
    assert rates.shown({"d.t": replace(table, phase=LIVE)}, 117.0) == {}


# --- what members note ------------------------------------------------------------------------------------------------


def test_marks_have_the_first_marker_and_the_whole_part_of_the_last_fifty_checkpoints() -> None:
    marks = Marks(time)
    for n in range(1, KEPT + 11):
        for channel in ("reader-0", "reader-1"):
            marks.received(MessageReceived(channel=channel, message=Marker(checkpoint=n)))
            first = marks.shown()[-1]
        marks.sent(Send(receiver="enumerator", message=PartSaved(checkpoint=n, more=True)))
        assert marks.shown()[-1] == (n, first[1], None)
        marks.sent(Send(receiver="enumerator", message=PartSaved(checkpoint=n)))
    shown = marks.shown()
    assert [mark[0] for mark in shown] == list(range(11, KEPT + 11))
    assert all(marker is not None and saved is not None and marker <= saved for _, marker, saved in shown)
    marks.saved(1)  # long forgotten
    assert len(marks.shown()) == KEPT


def test_the_applies_of_the_spark_writer_name_the_slowest_tables_and_when_they_were_published() -> None:
    applies = Applies()
    for n in range(1, 31):
        applies.took(f"t{n}", n / 10)
    applies.took("t30", 1.0)
    applies.applied(first=2, last=4, rows=7, at=100.0, seconds=5.0)
    applies.applied(first=5, last=5, rows=1, at=101.0, seconds=0.5)
    applies.published(4, 102.0)
    first, second = applies.shown()
    assert (first.first, first.last, first.published_at, len(first.tables)) == (2, 4, 102.0, 20)
    assert next(iter(first.tables.items())) == ("t30", 4.0)
    assert (second.tables, second.published_at) == ({}, None)


def test_use_of_memory_and_cpu_is_repeated_unchanged_between_two_looks() -> None:
    usage = Usage()
    rss, cpu = usage.look()
    assert rss is not None
    assert cpu is not None
    assert 10 << 20 < rss < 8 << 30
    assert rss % (1 << 20) == 0
    held = bytearray(64 << 20)
    assert usage.look() == (rss, cpu)
    assert len(held) == 64 << 20


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("connect to redis://:hunter2@h:1/0 failed", "connect to redis://***@h:1/0 failed"),
        ("s3://bucket/x?secret=hunter2", "s3://bucket/x?secret=***"),
        ("password=hunter2, user=a", "password=***"),
        ("{'password': 'hunter2'}", "{'password': '***"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
        ("pipeline shop: 3 tables", "pipeline shop: 3 tables"),
    ],
)
def test_a_log_line_is_kept_without_what_looks_like_a_secret(line: str, shown: str) -> None:
    kept = without_secrets(line)
    assert "hunter2" not in kept
    assert kept.startswith(shown)


# --- the journal ------------------------------------------------------------------------------------------------------


def test_the_window_has_events_changes_and_schemas_and_takes_new_entries_only_once(store: PipelineStore) -> None:
    store.put_entry(records.epoch(1))
    tables = {"a.b": records.table(phase="snapshot", schema="one")}
    chunk = records.staged("a.b", kind="chunk", split="a.b:1:3#1")
    store.put_entry(records.checkpoint(2, tables=tables, staged=(chunk,)))
    window = Window(store)
    window.refresh()
    assert [(event.id, event.kind) for event in window.events] == [("1.0", "epoch"), ("2.0", "table")]
    assert window.checkpoints[2].chunks == {("a.b", 1): (3,)}
    assert window.changed_at == {}
    tables = {"a.b": records.table(schema="two"), "a.c": records.table(phase="quarantined", cause=because("no key"))}
    store.put_entry(records.checkpoint(3, kept=True, name="before", tables=tables, staged=(records.staged("a.b"),)))
    window.refresh()
    window.refresh()
    assert [event.text for event in window.events][2:] == [
        "checkpoint 3 is kept as before",
        "a.b is live in generation 1",
        "a.c is quarantined in generation 1: no key",
    ]
    assert window.changed_at == {"a.b": 1003.0}
    assert [(since.slot, since.schema) for since in window.schemas["a.b"]] == [(2, "one"), (3, "two")]
    assert [seen.slot for seen in window.savepoints()] == [3]
    store.put_entry(records.checkpoint(4, tables={"a.b": tables["a.b"]}))
    window.refresh()
    assert window.events[-1].text == "a.c is no longer captured"
    store.removal.release(3, 1)
    assert window.savepoints() == []
    assert window.epoch() is not None


def test_the_first_entry_of_a_journal_is_seen_at_the_next_look(store: PipelineStore) -> None:
    window = Window(store)
    window.refresh()
    assert window.epoch() is None
    store.put_entry(records.epoch(1))
    store.put_entry(records.checkpoint(2, tables={"a.b": records.table()}))
    window.refresh()
    assert [event.text for event in window.events][1:] == ["a.b is live in generation 1"]


def test_a_window_that_begins_in_the_middle_takes_no_phase_for_news_and_still_finds_old_savepoints(
    store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutline.services.control.window.WINDOW", 3)
    store.put_entry(records.epoch(1))
    tables = {"a.b": records.table()}
    for slot in range(2, 10):
        store.put_entry(records.checkpoint(slot, tables=tables, kept=slot == 4))
    window = Window(store)
    window.refresh()
    assert list(window.checkpoints) == [7, 8, 9]
    assert list(window.events) == []
    assert [seen.slot for seen in window.savepoints()] == [4]
    for slot in range(10, 20):
        store.put_entry(records.checkpoint(slot, tables=tables))
    window.refresh()
    assert window.newest == 19
    assert len(window.checkpoints) <= 7


# --- publications -----------------------------------------------------------------------------------------------------


def publication(n: int, **shown: bool) -> Publication:
    def table(is_shown: bool) -> PublishedTable:
        position = None if is_shown else records.place(1)
        main = Main(content=Content(str(n)), position=position)
        return PublishedTable(state="live", generation=1, main=main, work=None)

    tables = {name: table(is_shown) for name, is_shown in shown.items()}
    times = {"source_time": 100.0 + n, "published_at": 200.0 + n}
    return Publication(n=n, epoch=1, w=1, kept=False, position=records.place(n), tables=tables, **times)


def test_a_table_that_the_newest_publication_does_not_show_has_the_last_one_that_did(store: PipelineStore) -> None:
    for record in (publication(2, a=True, b=True), publication(3, a=True, b=False), publication(5, a=True, b=False)):
        assert store.publish(record)
    published = Published(store)
    published.refresh(expected=None)
    assert {name: shown.n for name, shown in published.shown.items()} == {"a": 5, "b": 2}
    store.publish(publication(6, a=False, b=True))
    published.refresh(expected=6)
    assert {name: shown.n for name, shown in published.shown.items()} == {"a": 5, "b": 6}
    assert published.newest is not None
    assert published.newest.n == 6


@pytest.mark.parametrize(("at", "shown", "holds"), [(150.5, None, 60), (202.0, 2, None), (250.5, 50, None)])
def test_publications_are_found_by_the_time_that_they_hold_and_were_made_at(
    store: PipelineStore, at: float, shown: int | None, holds: int | None
) -> None:
    for n in (2, 3, 40, 50, 60, 61):
        store.publish(publication(n, a=True))
    published = Published(store)
    found, holding = published.at(at), published.holding_time(at)
    assert (found and found.n, holding and holding.n) == (shown, holds)


# --- rows of tables ---------------------------------------------------------------------------------------------------


def status(**table: Any) -> Status:
    known = {"phase": "snapshot", "rows_done": 50, "rows_estimate": 150, **table}
    leader = EnumeratorStatus(at=1000.0, rates={"a.b": 10.0}, binlog=BinlogStatus(at=1000.0, lag_bytes=7))
    parts = PipelineStatus(enumerator=leader, tables={"a.b": TableStatus(**known)})
    return Status(parts=parts, tables=parts.tables, read_at=1002.0)


def test_a_row_has_rate_lag_and_last_change_and_its_etag_stays_while_only_these_move() -> None:
    row = row_of(status(), {"a.b": Shown(n=4, published_at=990.0, source_time=980.0)}, {"a.b": 970.0})
    assert (row["rate_rows_per_second"], row["eta_seconds"], row["lag_seconds"], row["lag_bytes"]) == (10, 10, 22, None)
    assert (row["published_checkpoint"], row["last_change_at"], row["current"]) == (4, 970.0, True)
    assert etag(row) == etag({**row, "lag_seconds": 1.0, "eta_seconds": None, "as_of": 5.0})
    assert etag(row) != etag({**row, "rows_done": 51})
    held = status(phase="quarantined", cause=because("it has no key", "add one"))
    row = row_of(held, {}, {})
    assert (row["code"], row["cause"]) == ("other", "it has no key")
    assert (row["remedy"], row["rate_rows_per_second"], row["lag_seconds"]) == ("add one", None, None)
    assert not row_of(replace(held, read_at=1100.0), {}, {})["current"]


def row_of(*made_of: Any) -> Row:
    row = Rows(*made_of).row("a.b")
    assert row is not None
    assert Rows(*made_of).row("a.c") is None
    return row


class Readings:
    """What the rows of 30 tables are made of, as one reading after another gives it: what is unchanged is the same."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tables = {f"a.t{n:02}": TableStatus(phase=LIVE, rows_done=n) for n in range(30)}
        self.entered: dict[str, TableEntry] = {}
        self.shown = dict.fromkeys(self.tables, Shown(n=1, published_at=900.0, source_time=890.0))
        self.changed_at: dict[str, float] = {}
        self.held: dict[str, Held] = {}
        self.files: dict[str, Files] = {}
        self.rates = {"a.t07": 10.0}
        self.now = 1000.0

    def next(self) -> tuple[Any, ...]:
        """A few tables change in one of the ways in which they can; time goes on."""
        self.now += self.rng.random()
        for name in self.rng.sample([*self.tables, "a.t77", "a.t78"], 3):
            match self.rng.randrange(7):
                case 0:
                    phase = self.rng.choice([LIVE, SNAPSHOT, PAUSED])
                    self.tables[name] = TableStatus(phase=phase, rows_done=3, rows_estimate=10, generation=2)
                case 1:
                    self.entered[name] = records.table(counts=ChangeCounts(self.rng.randrange(9), 1, 0))
                case 2:
                    self.shown[name] = Shown(n=self.rng.randrange(9), published_at=self.now, source_time=None)
                case 3:
                    self.changed_at[name] = self.now
                case 4:
                    self.held[name] = Held(cause=because("others"), generation=1, choices=("accept",), seen="5")
                case 5:
                    self.files[name] = Files(files=1, size=1, rows=self.rng.randrange(9))
                case 6:
                    self.tables.pop(name, None)
        leader = EnumeratorStatus(at=self.now, rates=self.rates, binlog=BinlogStatus(at=self.now, lag_bytes=7))
        spark = SparkWriterStatus(at=self.now, quarantined=dict(self.held), files=dict(self.files))
        parts = PipelineStatus(enumerator=leader, spark_writer=spark, tables=dict(self.tables))
        status = Status(parts=parts, tables=parts.tables, read_at=self.now)
        return status, dict(self.shown), dict(self.changed_at), dict(self.entered)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_go_on_from_an_earlier_reading_are_those_of_this_one(seed: int) -> None:
    readings, before = Readings(seed), dict[str, Steady]()
    for _ in range(60):
        made_of = readings.next()
        rows, anew = Rows(*made_of, before), Rows(*made_of)
        assert rows.body == anew.body
        assert json.loads(rows.body) == json.loads(to_json(rows.all()))
        assert rows.all() == [rows.row(name) for name in sorted(readings.tables)]
        assert any(rows.steady[name] is before.get(name) for name in rows.steady) or not before
        before = rows.steady


def test_if_none_match_compares_weakly_and_takes_a_list_and_a_star() -> None:
    assert matches('W/"a"', 'W/"a"')
    assert matches('"b", "a"', 'W/"a"')
    assert matches("*", 'W/"a"')
    assert not matches('"b"', 'W/"a"')
