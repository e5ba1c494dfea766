"""The writer's machine: which file a record goes to, and which files a cut names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event, MessageReceived, PartStored, Send, Ticked
from cutline.common.mesh.messages import ChunkDropped, ChunkEnd, Marker, Message, PartSaved, Records, StopStream
from cutline.services.writer.machine import Append, ChangesFile, ChunkFile, CutStaged, Drop, StageCut, Writer
from tests.simulation.checks.freeze import freeze

OF = {"table_id": "d.t", "generation": 1}


def changes(seq: int = 0, rows: int = 1, **other: Any) -> Records:
    return Records(**(OF | {"schema": "s", "rows": rows, "seq_base": seq} | other))


def piece(split: str = "x", rows: int = 2, attempt: int = 1) -> Records:
    return Records(**OF, schema="s", rows=rows, split_id=split, attempt=attempt)


def end(split: str = "x", rows: int = 2, attempt: int = 1) -> ChunkEnd:
    return ChunkEnd(**OF, split_id=split, attempt=attempt, rows=rows, schema="s")


BENCHES: list[WriterBench] = []


@pytest.fixture(autouse=True)
def _invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.process.check()


class WriterBench:
    """A writer in its process with two readers."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.process = Process(self.writer, inbound=("reader-0", "reader-1"), outbound=(), recording=False)
        BENCHES.append(self)

    def get(self, message: Message, reader: int = 0) -> list[Effect]:
        return self.tell(MessageReceived(channel=f"reader-{reader}", message=message))

    def tell(self, event: Event) -> list[Effect]:
        return self.process.handle(event, 0.0)

    def cut(self, checkpoint: int) -> StageCut:
        self.get(Marker(checkpoint=checkpoint), 0)
        (order,) = self.get(Marker(checkpoint=checkpoint), 1)
        assert isinstance(order, StageCut)
        return order


def test_changes_of_a_table_between_two_markers_are_one_file() -> None:
    bench = WriterBench()
    (first,), (second,) = bench.get(changes(0)), bench.get(changes(1))
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert first.file == second.file == ChangesFile(**OF, schema="s", after=0)
    assert second.seq_base == 1
    assert bench.cut(1).changes == (first.file,)
    assert bench.cut(2).changes == ()


@pytest.mark.parametrize("other", [{"schema": "s2"}, {"generation": 2}, {"table_id": "d.u"}])
def test_another_schema_generation_or_table_is_another_file(other: dict[str, Any]) -> None:
    bench = WriterBench()
    bench.get(changes())
    bench.get(changes(**other))
    assert len(bench.cut(1).changes) == 2


def test_a_schema_that_comes_again_after_another_one_begins_another_file() -> None:
    bench = WriterBench()
    names = [bench.get(changes(at, schema=schema))[0].file for at, schema in enumerate(("s", "s2", "s", "s"))]
    assert names[2] == names[3] != names[0]
    assert bench.cut(1).changes == tuple(names[:3])


def test_what_comes_after_a_channels_marker_belongs_to_the_next_checkpoint() -> None:
    bench = WriterBench()
    bench.get(changes(0))
    bench.get(Marker(checkpoint=1), 0)
    (late,) = bench.get(changes(1), 0)
    (early,) = bench.get(piece(), 1)
    bench.get(end(), 1)
    (order,) = bench.get(Marker(checkpoint=1), 1)
    assert isinstance(order, StageCut)
    assert [f.after for f in order.changes] == [0]
    assert [f.split_id for f in order.chunks] == ["x"]
    assert isinstance(early, Append)
    assert isinstance(late, Append)
    assert bench.cut(2).changes == (late.file,)


def test_a_chunks_rows_flow_across_markers_into_one_file_of_the_checkpoint_after_its_end() -> None:
    bench = WriterBench()
    (first,) = bench.get(piece())
    assert bench.cut(1).chunks == ()
    (second,) = bench.get(piece())
    bench.get(end(rows=4))
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert first.file == second.file
    assert bench.cut(2).chunks == (ChunkFile(**OF, schema="s", split_id="x", attempt=1),)
    assert bench.cut(3).chunks == ()


def test_a_chunk_without_rows_has_no_file() -> None:
    bench = WriterBench()
    bench.get(end(rows=0))
    assert bench.cut(1).chunks == ()


def test_a_failed_attempt_is_dropped_and_the_next_one_has_its_own_file() -> None:
    bench = WriterBench()
    bench.get(piece(attempt=1))
    assert bench.get(ChunkDropped(split_id="x", attempt=1)) == [Drop(split_id="x", attempt=1)]
    bench.get(piece(attempt=2))
    bench.get(end(attempt=2))
    assert [f.attempt for f in bench.cut(1).chunks] == [2]


def test_staged_files_are_told_to_the_enumerator_once() -> None:
    bench = WriterBench()
    bench.get(changes())
    bench.cut(1)
    staged = CutStaged(checkpoint=1, staged=({"path": "p"},))
    assert bench.tell(staged) == [Send(receiver="enumerator", message=PartSaved(checkpoint=1, staged=({"path": "p"},)))]
    with pytest.raises(ProtocolError):
        bench.tell(staged)


def test_an_illegal_step_is_refused_and_leaves_the_writer_as_it_was() -> None:
    bench = WriterBench()
    bench.get(piece())
    before = freeze(bench.writer)
    for message in (end(rows=3), end(rows=1), end("y", rows=1), StopStream()):
        with pytest.raises(ProtocolError):
            bench.get(message)
        assert freeze(bench.writer) == before
    with pytest.raises(ProtocolError):
        bench.writer.handle(PartStored(checkpoint=1, ref={}), 0.0)
    assert bench.writer.handle(Ticked(), 0.0) == []
    assert freeze(bench.writer) == before
