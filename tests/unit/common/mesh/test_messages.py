"""Messages and their wire form: the field's names, nothing lost on the way, foreign ones refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.limits import Limits
from cutline.common.mesh.messages import (
    AssignSplits,
    CheckpointWanted,
    ChunkDropped,
    ChunkEnd,
    CompletedSplit,
    EndStream,
    ExcludeTable,
    IncludeTable,
    LimitStream,
    Marker,
    Message,
    PartSaved,
    PauseTable,
    Records,
    Remedy,
    SnapshotSplit,
    SplitFailed,
    SplitReleased,
    SplitReport,
    SplitsWanted,
    StopStream,
    StreamCaughtUp,
    StreamCut,
    StreamedTable,
    StreamStopped,
    TablePaused,
    TableReport,
    TableState,
    TakeBackSplit,
    Throttle,
    camel,
    decode,
    encode,
)
from cutline.common.positions import High, Low, Position, Stop
from cutline.common.schema import Column, TableSchema
from tests.support import records
from tests.support.causes import because
from tests.support.records import PART

SCHEMA = TableSchema(
    table_id="shop.orders",
    columns=(
        Column(name="id", field_id=1, mysql_type="int unsigned", nullable=False),
        Column(name="note", field_id=2, mysql_type="text", nullable=True, charset="utf8mb4", initial_default="x"),
    ),
    key=("id",),
    last_field_id=2,
    retired=("old",),
)
LOW = Low(server="s", file="binlog.000999", offset=4, gtids="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3")
HIGH = High(server="s", file="binlog.001000", offset=157)
SPLIT = SnapshotSplit(
    split_id="shop.orders:1:2", table_id="shop.orders", generation=1, attempt=2, split_key_type=("int unsigned",),
    split_start=("10",), split_end=None, schema=SCHEMA,
)  # fmt: skip
OF = {"table_id": "shop.orders", "generation": 1}
MESSAGES: tuple[Message, ...] = (
    Marker(checkpoint=7, kept=True),
    AssignSplits(splits=(SPLIT,)),
    TakeBackSplit(split_id="x", attempt=1),
    IncludeTable(**OF, schema=SCHEMA, low=LOW, high=HIGH, splits=(CompletedSplit(split_start=None,
    split_end=({"hex": "00ff"},), high=HIGH),)),
    ExcludeTable(**OF),
    PauseTable(**OF),
    TablePaused(**OF, schema=SCHEMA, low=LOW, high=HIGH, splits=(CompletedSplit(split_start=None, split_end=("5",),
    high=HIGH),), looked_at=LOW, more=True),
    StopStream(),
    Throttle(limits=Limits(rows_per_second=12.5)),
    LimitStream(stop=Stop(server="s", file="b.000001", offset=4, gtids="0-1-2", time_us=5)),
    EndStream(place=Position(server="s", file="b.000001", offset=4)),
    StreamCaughtUp(),
    StreamStopped(),
    CheckpointWanted(),
    SplitsWanted(free=2),
    SplitReleased(split_id="x", attempt=1),
    SplitReport(split_id="x", **OF, attempt=1, rows=3, checksum="c", low=LOW, high=HIGH, schema=SCHEMA),
    SplitReport(split_id="x", **OF, attempt=1, rows=3, checksum="c", low=LOW, high=HIGH, schema=SCHEMA,
    cut_at=("5", {"hex": "00"})),
    *(SplitFailed(split_id="x", **OF, attempt=1, cause=because("gone"), remedy=remedy) for remedy in Remedy),
    TableReport(**OF, state=TableState.FAULT, cause=because("no")),
    Records(**OF, schema=SCHEMA.hash, rows=2, seq_base=40),
    Records(**OF, schema=SCHEMA.hash, rows=2, split_id="x", attempt=3),
    ChunkEnd(split_id="x", **OF, attempt=1, rows=0, schema=SCHEMA.hash),
    ChunkDropped(split_id="x", attempt=1),
    PartSaved(checkpoint=7, part=dataclasses.replace(PART, since=PART), more=True),
    PartSaved(checkpoint=7, staged=(records.staged(split="x#1"), records.staged(seq_min=1, seq_max=9, truncated_at=3))),
    PartSaved(
        checkpoint=7,
        stream=StreamCut(
            position=records.place(4),
            source_time=1.5,
            inside=True,
            tables=(StreamedTable(table_id="d.t", generation=1, schema="h", live=True),),
        ),
    ),
    PartSaved(checkpoint=7),
)  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_from_the_wire_as_it_was(message: Message) -> None:
    assert decode(json.loads(json.dumps(encode(message)))) == message


def test_every_kind_of_message_is_tried_above() -> None:
    assert {type(message).__name__ for message in MESSAGES} == {kind.__name__ for kind in Message.__subclasses__()}


def test_a_split_carries_the_names_of_its_field() -> None:
    header = encode(AssignSplits(splits=(SPLIT,)))["splits"][0]
    assert set(header) >= {"splitId", "tableId", "splitKeyType", "splitStart", "splitEnd"}
    assert header["splitStart"] == ["10"]
    assert header["splitEnd"] is None


def test_failures_and_reports_keep_the_form_that_parts_hold() -> None:
    failed = SplitFailed(split_id="x", **OF, attempt=1, cause=because("gone"), remedy=Remedy.RETRY)
    assert json.dumps(encode(failed)) == (
        '{"type": "SplitFailed", "splitId": "x", "tableId": "shop.orders", "generation": 1, "attempt": 1,'
        ' "cause": {"code": "other", "sentence": "gone", "remedy": ""}, "remedy": "retry"}'
    )
    assert json.dumps(encode(TableReport(**OF, state=TableState.RESTART, cause=because("DDL")))) == (
        '{"type": "TableReport", "tableId": "shop.orders", "generation": 1, "state": "restart",'
        ' "cause": {"code": "other", "sentence": "DDL", "remedy": ""}}'
    )


def test_camel_case_is_the_headers() -> None:
    assert [camel(name) for name in ("split_id", "rows", "split_key_type")] == ["splitId", "rows", "splitKeyType"]


def test_a_body_travels_beside_the_header_and_not_in_it() -> None:
    header = encode(Records(**OF, schema="h", rows=1, body=b"arrow"))
    assert "body" not in header
    back = decode(header, b"arrow")
    assert isinstance(back, Records)
    assert back.body == b"arrow"


@pytest.mark.parametrize("header", [{}, {"type": None}, {"type": "Drop"}, {"type": "object"}])
def test_a_foreign_message_is_refused_by_name(header: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="not known to this version"):
        decode(header)


@pytest.mark.parametrize(
    "header",
    [{"type": "Marker"}, {"type": "AssignSplits", "splits": [{"splitId": "x"}]}, {"type": "AssignSplits", "splits": 3}],
)
def test_an_incomplete_message_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="can't be read"):
        decode(header)
