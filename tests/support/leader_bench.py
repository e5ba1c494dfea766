"""A leader's machine and the time, for unit tests that tell it facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cutline.common.mesh.machine import Effect, Event, MessageReceived, PartStored, Ticked
from cutline.common.mesh.messages import (
    Marker,
    PartSaved,
    StreamCut,
)
from cutline.common.mesh.topology import ROLES, Role, Topology
from cutline.common.positions import Position
from cutline.common.store.command_records import Command
from cutline.services.enumerator.events import (
    EntryWritten,
    JournalRead,
    MemberSeen,
    Observed,
    Plan,
    Settings,
    TablesFound,
    WriteEntry,
)
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.states import EpochOpened
from tests.support.records import PART

PLAN = Plan(topology=Topology({"reader": 1, "writer": 1}), chunk_rows=10, exact=False)
READER, WRITER = MemberSeen(incarnation="r1", role="reader"), MemberSeen(incarnation="w1", role="writer")
BENCHES: list[LeaderBench] = []


@pytest.fixture(autouse=True)
def invariants_hold() -> Iterator[None]:
    BENCHES.clear()
    yield
    for bench in BENCHES:
        bench.leader.check()


class LeaderBench:
    """A leader and the time."""

    def __init__(
        self, *, interval: float = 10.0, readers: int = 1, run: str = "r1", roles: tuple[Role, ...] = ROLES
    ) -> None:
        services = {role.name: 1 for role in roles} | {"reader": readers}
        settings = Settings(
            chunk_rows=10, exact=False, snapshot_only=False, interval_seconds=interval, services=services
        )
        self.leader = Leader(incarnation="e1", run=run, settings=settings, roles=roles)
        BENCHES.append(self)
        self.now = 0.0
        self.effects: list[Effect] = []
        self.members: tuple[MemberSeen, ...] = (READER, WRITER)

    def tell(self, event: Event) -> list[Effect]:
        effects = self.leader.handle(event, self.now)
        self.effects += effects
        return effects

    def see(self, *members: MemberSeen, held: bool = True) -> list[Effect]:
        return self.tell(Observed(held=held, members=members or self.members))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.tell(Ticked())

    def last(self, kind: type) -> Any:
        return next(e for e in reversed(self.effects) if isinstance(e, kind))

    def written(self) -> list[Effect]:
        order = self.last(WriteEntry)
        return self.tell(EntryWritten(slot=order.slot, nonce=order.entry.nonce))

    def lead(self, tail: int = 0, base: int | None = None, commands: tuple[Command, ...] = ()) -> LeaderBench:
        """From wherever it is to leading the next epoch."""
        if self.leader.state == "idle":
            self.see()
        self.tell(JournalRead(tail=tail, base=base, commands=commands))
        self.written()
        self.tell(EpochOpened(epoch=tail + 1, enumerator=None))
        self.tell(TablesFound(tables=()))
        assert self.leader.state == "leading"
        return self

    def complete(self, *, inside: bool = False, rows: int = 1) -> Any:
        """Bring the checkpoint in flight to its entry, which is not written yet; `inside` a transaction it is after so
        many of its rows."""
        assert self.leader.checkpoints.in_flight is not None
        n = self.leader.checkpoints.in_flight[0]
        self.tell(MessageReceived(channel="reader-0", message=Marker(checkpoint=n)))
        self.tell(PartStored(checkpoint=n, ref=PART))
        position = Position(server="s", file="b.1", offset=4, gtids="", rows=rows) if inside else None
        stream = StreamCut(position=position, source_time=None, inside=inside)
        self.tell(MessageReceived(channel="reader-0", message=PartSaved(checkpoint=n, part=PART, stream=stream)))
        self.tell(MessageReceived(channel="writer-0", message=PartSaved(checkpoint=n)))
        order = self.last(WriteEntry)
        assert order.slot == n
        return order.entry
