"""The rare states that a sweep must reach: each is a question that every machine of its kind can be asked."""

from __future__ import annotations

from collections import Counter

import pytest

from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.topology import Topology
from cutline.services.enumerator.events import Plan, Settings
from cutline.services.enumerator.leader import Leader
from cutline.services.enumerator.machine import Enumerator
from cutline.services.reader.machine import Reader
from cutline.services.writer.machine import Writer
from tests.simulation.bites import BITES
from tests.simulation.mesh.sometimes import LEADER, SOMETIMES, note_states

PLAN = Plan(topology=Topology({"reader": 1, "writer": 1}), chunk_rows=10, exact=False, snapshot_only=False)
SETTINGS = Settings(chunk_rows=10, exact=False, snapshot_only=False, interval_seconds=1.0)


def test_no_state_is_asked_for_twice() -> None:
    assert len(set(SOMETIMES)) == len(SOMETIMES) >= 50
    assert len(set(BITES)) == len(BITES)


@pytest.mark.parametrize(
    "machine",
    [Enumerator(PLAN), Reader(name="reader-0", writers=("writer-0",), stream=True), Writer()],
    ids=lambda machine: type(machine).__name__,
)
def test_a_machine_that_has_not_begun_is_in_no_rare_state(machine: Enumerator | Reader | Writer) -> None:
    process = Process(machine, inbound=("reader-0",), outbound=("reader-0",), after=0)
    count: Counter[str] = Counter()
    note_states(count, process)
    assert count == {}


def test_a_leader_that_has_not_begun_is_in_no_rare_state() -> None:
    leader = Leader(incarnation="enumerator-1", run="r", settings=SETTINGS)
    assert [name for name, state in LEADER.items() if state(leader)] == []
