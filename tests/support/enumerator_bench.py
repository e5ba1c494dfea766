"""An enumerator's machine in its process, for unit tests that tell it facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State
from cutline.common.mesh.messages import (
    AssignSplits,
    Marker,
    Message,
    PartSaved,
    SnapshotSplit,
    SplitReport,
    SplitsWanted,
    StreamCut,
    TableReport,
    TableState,
)
from cutline.common.mesh.topology import Topology
from cutline.common.positions import High, Low, Stop
from cutline.common.schema import Column, TableSchema
from cutline.common.store.command_records import Command
from cutline.common.store.records import CheckpointEntry, StagedFile, TableEntry
from cutline.services.enumerator.events import (
    BoundFound,
    CommandTaken,
    Plan,
    TableFound,
    TablesFound,
    WriteCheckpoint,
)
from cutline.services.enumerator.machine import Enumerator
from tests.support.records import PART, read_back

SCHEMA = TableSchema(
    table_id="d.t",
    columns=(Column(name="id", field_id=1, mysql_type="int", nullable=False),),
    key=("id",),
    last_field_id=1,
)
WIDER = SCHEMA.add_column("c", "int", nullable=True)


def low(offset: int, server: str = "s") -> Low:
    return Low(server=server, file="binlog.000001", offset=offset)


def high(offset: int, server: str = "s") -> High:
    return High(server=server, file="binlog.000001", offset=offset)


def found(table: str = "d.t", **fields: Any) -> TableFound:
    return TableFound(**({"table_id": table, "schema": SCHEMA, "estimate": 20, "row_bytes": 10} | fields))


BENCHES: list[EnumeratorBench] = []


@pytest.fixture(autouse=True)
def invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.process.check()


class EnumeratorBench:
    """An enumerator in its process, with `readers` readers and one writer; keeps what was sent."""

    def __init__(
        self,
        readers: int = 1,
        *,
        exact: bool = False,
        snapshot_only: bool = False,
        quarantine_changed: bool = False,
        part: State | None = None,
        entered: Mapping[str, TableEntry] = MappingProxyType({}),
    ) -> None:
        names = tuple(f"reader-{i}" for i in range(readers))
        plan = Plan(
            topology=Topology({"reader": readers, "writer": 1}),
            chunk_rows=10,
            exact=exact,
            snapshot_only=snapshot_only,
            quarantine_changed=quarantine_changed,
        )
        self.machine = Enumerator(plan)
        if part is not None:
            self.machine = Enumerator.restored(plan, read_back(part, SCHEMA, WIDER), entered)
        self.process = Process(self.machine, inbound=names, outbound=names, initiator=True)
        BENCHES.append(self)
        self.sent: list[tuple[str, Message]] = []
        self.orders: list[Effect] = []
        self.assigned: list[tuple[str, SnapshotSplit]] = []

    def tell(self, event: Event) -> list[Effect]:
        return self.note(self.process.handle(event, 1.0))

    def note(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append((effect.receiver, effect.message))
                if isinstance(effect.message, AssignSplits):
                    self.assigned += [(effect.receiver, split) for split in effect.message.splits]
            else:
                self.orders.append(effect)
        return effects

    def get(self, message: Message, reader: int = 0) -> list[Effect]:
        return self.tell(MessageReceived(channel=f"reader-{reader}", message=message))

    def begin(self, *tables: TableFound) -> EnumeratorBench:
        self.tell(Began())
        self.tell(TablesFound(tables=tables or (found(),)))
        return self

    def split_in(self, *ends: str | None, table: str = "d.t", generation: int = 1) -> EnumeratorBench:
        """Answer the walk's questions: one chunk for each end."""
        for end in ends:
            self.tell(BoundFound(table_id=table, generation=generation, end=None if end is None else (end,)))
        return self

    def report(self, split: SnapshotSplit, reader: int = 0, at: int = 100, **other: Any) -> list[Effect]:
        fields = {
            "split_id": split.split_id, "table_id": split.table_id, "generation": split.generation,
            "attempt": split.attempt,
            "rows": 3, "checksum": "", "low": low(at), "high": high(at + 10), "schema": SCHEMA,
        }  # fmt: skip
        return self.get(SplitReport(**(fields | other)), reader)

    def sent_of(self, kind: type) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    def start(self, checkpoint: int) -> None:
        self.machine.begin(checkpoint, 1.0)
        self.note(self.process.start(checkpoint, False, 1.0))

    def part(self) -> Any:
        return next(o.state for o in reversed(self.orders) if isinstance(o, SavePart))


def live(bench: EnumeratorBench) -> EnumeratorBench:
    """Bring the first chunk of d.t, and with it the table, to the stream, and say that it is live there."""
    bench.split_in(None).get(SplitsWanted(free=1))
    bench.report(bench.assigned[0][1])
    bench.get(TableReport(table_id="d.t", generation=1, state=TableState.LIVE))
    return bench


# --- the stop ---
STOP = Stop(time_us=7)


def finish(
    bench: EnumeratorBench, checkpoint: int, *files: StagedFile, stream: StreamCut | None = None
) -> CheckpointEntry:
    """Bring the checkpoint to its entry."""
    for i in range(len(bench.machine.plan.readers)):
        bench.get(Marker(checkpoint=checkpoint), i)
    bench.tell(PartStored(checkpoint=checkpoint, ref=PART))
    for i in range(len(bench.machine.plan.readers)):
        bench.get(PartSaved(checkpoint=checkpoint, part=PART, stream=stream if i == 0 else None), i)
    saved = PartSaved(checkpoint=checkpoint, staged=tuple(files))
    bench.note(bench.machine.handle(MessageReceived(channel="writer-0", message=saved), 2.0))
    order = bench.orders[-1]
    assert isinstance(order, WriteCheckpoint)
    return order.entry


# Commands about tables


def commanded(bench: EnumeratorBench, kind: str, n: int = 1, table: str = "d.t") -> str | None:
    """Give a command; return the cause if it is refused."""
    command = Command(n=n, kind=kind, arguments={"table": table}, by="ann", at=0.0)
    bench.tell(CommandTaken(command=command))
    assert bench.machine.commands_done == n
    return bench.machine.refused.get(n, (None, None))[0]
