"""A reader's machine in its process, for unit tests that tell it facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event, MessageReceived, Send, Ticked
from cutline.common.mesh.messages import (
    IncludeTable,
    Message,
    SnapshotSplit,
)
from cutline.common.positions import High, Low, Position
from cutline.common.schema import Column, TableSchema
from cutline.services.reader.events import (
    ReadChanges,
)
from cutline.services.reader.machine import Reader
from cutline.services.reader.stream import INSIDE_ROWS
from cutline.services.reader.unsaved import Unsaved
from cutline.services.sources.contract import TableChanges
from tests.support.reads import changes_read
from tests.support.records import read_back

SCHEMA = TableSchema(
    table_id="d.t",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)
WIDER = SCHEMA.add_column("c", "int", nullable=True)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FAR = 64 << 20  # more than what catch-up may lie behind before main waits for it


def low(offset: int, gtids: str = "", server: str = "s") -> Low:
    return Low(server=server, file="b.000001", offset=offset, gtids=gtids)


def high(offset: int, server: str = "s") -> High:
    return High(server=server, file="b.000001", offset=offset)


def place(offset: int, *, rows: int = 0, gtids: str = "", server: str = "s") -> Position:
    return Position(server=server, file="b.000001", offset=offset, rows=rows, gtids=gtids)


def split(number: int = 1, attempt: int = 1) -> SnapshotSplit:
    return SnapshotSplit(
        split_id=f"d.t:1:{number}", table_id="d.t", generation=1, attempt=attempt, split_key_type=("int",),
        split_start=None,
        split_end=None, schema=SCHEMA,
    )  # fmt: skip


BENCHES: list[ReaderBench] = []


@pytest.fixture(autouse=True)
def invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.process.check()


class ReaderBench:
    """A reader with the stream, in its process, with two writers."""

    def __init__(
        self,
        *,
        stream: bool = True,
        state: Any = None,
        inside_rows: int = INSIDE_ROWS,
        most_bytes: int | None = None,
    ) -> None:
        writers, unsaved = ("writer-0", "writer-1"), Unsaved(most_bytes, base=4)
        self.reader = Reader(name="reader-0", writers=writers, stream=stream, inside_rows=inside_rows, unsaved=unsaved)
        if state is not None:
            self.reader.restore(read_back(state, SCHEMA, WIDER))
        out = ("writer-0", "writer-1", "enumerator")
        self.process = Process(self.reader, inbound=("enumerator",), outbound=out)
        self.now = 0.0
        BENCHES.append(self)

    def tell(self, event: Event) -> list[Effect]:
        return self.process.handle(event, self.now)

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes, tick by tick."""
        effects: list[Effect] = []
        for _ in range(round(seconds * 5)):
            self.now += 0.2
            effects += self.tell(Ticked())
        return effects

    def get(self, message: Message) -> list[Effect]:
        return self.tell(MessageReceived(channel="enumerator", message=message))

    def include(self, table: str = "d.t", *, at: int = 100, until: int = 200, **other: Any) -> list[Effect]:
        fields = {"table_id": table, "generation": 1, "schema": SCHEMA, "low": low(at), "high": high(until)}
        return self.get(IncludeTable(**(fields | other)))

    def read(
        self, offset: int, *, cursor: str = "main", rows: int = 0, table: str = "d.t", **other: Any
    ) -> list[Effect]:
        """The cursor's answer: it has come to `offset`, with `rows` changes of `table`, each of one byte."""
        batch = TableChanges(table_id=table, generation=1, schema_hash=SCHEMA.hash, rows=rows, size=rows, batch=[])
        batches = (batch,) if rows else ()
        fields = {"cursor": cursor, "position": place(offset), "rows": rows, "batches": batches}
        return self.tell(changes_read(**(fields | other)))

    def cursor_of(self, table: str) -> str | None:
        return self.reader.stream.tables[table].cursor


def asked(effects: list[Effect]) -> dict[str, ReadChanges]:
    return {e.cursor: e for e in effects if isinstance(e, ReadChanges)}


def sent(effects: list[Effect], kind: type) -> list[Any]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]
