"""The simulated world: the real machines on a simulated network, store, source and lake, from one seed.

Leader (with Enumerator and Process), Process(Reader) and Process(Writer) are the real ones of common/ and services/.
The world carries their effects out in order, as common/mesh/host.py does, and its events come from one heap in the
order of a clock of its own. What can go wrong outside does: see `Faults`. What is checked, and when, stands in
tests/simulation/checks/."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from tests.simulation.checks.arrival import arrived, what_is_missing
from tests.simulation.checks.failure import Failure
from tests.simulation.checks.line import journal_is_of_one_line
from tests.simulation.mesh import upkeeping
from tests.simulation.mesh.clients import Clients
from tests.simulation.mesh.driven import driven_here
from tests.simulation.mesh.drivers import Drivers
from tests.simulation.mesh.faults import Faults
from tests.simulation.mesh.hanging import Hanging
from tests.simulation.mesh.lake import SimulatedLake
from tests.simulation.mesh.leading import Leading
from tests.simulation.mesh.network import Network
from tests.simulation.mesh.operators import Operators
from tests.simulation.mesh.questions import Questions
from tests.simulation.mesh.reading import Reading
from tests.simulation.mesh.schedule import Schedule
from tests.simulation.mesh.seen import Seen
from tests.simulation.mesh.services import Services
from tests.simulation.mesh.shape import Shape
from tests.simulation.mesh.spark import SparkWriters
from tests.simulation.mesh.store import SimulatedStore
from tests.simulation.mesh.upkeeping import Upkeeping
from tests.simulation.source.server import SimulatedSource
from tests.simulation.steps import Steps


class World:
    """One seed's run: `run()` returns, or raises Failure or a machine's error."""

    def __init__(
        self, seed: int, without: AbstractSet[str] = frozenset(), driven: frozenset[str] = frozenset()
    ) -> None:
        """`without`: steps that do not happen (tests/simulation/steps.py); `driven`: roles that run the real driver."""
        self.seed = seed
        self.steps = Steps(without)
        self.rng = random.Random(seed)
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=300)
        self.shape = Shape.drawn(self.rng, seed)
        self.schedule = Schedule()
        self.troubled = True  # faults still happen
        self.finished = False
        self.store = SimulatedStore()
        self.lake = SimulatedLake()
        self.source = SimulatedSource(
            self.rng,
            self.count,
            flavour=self.shape.flavour,
            tables=self.shape.tables,
            rows=self.shape.rows,
            schema_changes=self.shape.schema_changes,
        )
        self.seen = Seen()
        self.clients = Clients(self)
        self.mesh = Services(self, driven)
        self.drivers = Drivers(self)
        self.network = Network(self)
        self.reading = Reading(self)
        self.questions = Questions(self)
        self.leading = Leading(self)
        self.spark = SparkWriters(self)
        self.faults = Faults(self)
        self.operators = Operators(self)
        self.hanging = Hanging(self)
        self.upkeeping = Upkeeping(self)

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.schedule.now

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Plan a call in so many seconds."""
        self.schedule.at(delay, call, *args)

    def goes_wrong(self, what: str, chance: float, rng: random.Random | None = None) -> bool:
        """Whether something goes wrong here, with this chance; never once calm has come."""
        return self.troubled and (rng or self.rng).random() < chance and self.steps.happens(what)

    def lag(self, scale: float = 1.0) -> float:
        """The seconds that a step takes."""
        mean = self.shape.lag * scale
        if self.troubled and self.rng.random() < 0.04:
            mean *= 12
        return self.rng.expovariate(1.0 / mean)

    def tell_story(self, text: str) -> None:
        """Note what happens, for the replay of a seed."""
        self.story.append(f"{self.now:8.3f} {text}")

    def run(self) -> None:
        """Run from the first start until the lake equals the source."""
        shape, rng = self.shape, self.rng
        self.tell_story(str(shape))
        self.count["over 8 tables"] += len(shape.tables) > 8
        self.count["over 3 readers"] += shape.readers > 3
        begin = 0.0
        if shape.start is None:
            self.start_all()
        else:  # start within a binlog that already has events
            begin = rng.uniform(0.0, 3.0)
            self.at(begin, self.start_all)
        self.at(rng.random(), self.clients.write)
        self.at(0.0, self.clients.watch_flushed)
        for _ in range(shape.faults):
            self.at(begin + rng.uniform(0.5, shape.chaos), self.faults.trouble)
        if self.faults.own.random() < 0.08:
            self.at(begin + self.faults.own.uniform(0.5, shape.chaos), self.faults.fill_store)
        if self.faults.own.random() < 0.08:
            self.at(begin + self.faults.own.uniform(0.5, shape.chaos), self.faults.refuse_reads)
        if self.faults.leaderless.random() < 0.03:
            self.at(begin + self.faults.leaderless.uniform(0.5, shape.chaos), self.faults.lose_leaders)
        if self.seed % 20 == 7:  # few worlds, since most pipelines end by it
            for _ in range(2):
                self.at(rng.uniform(0.5, shape.chaos), self.faults.purge)
        for _ in range(2):
            self.at(rng.uniform(1.0, shape.chaos + 3), self.faults.feed_any)
        if rng.random() < 0.5:
            self.at(rng.uniform(0.5, shape.chaos), self.faults.ask_savepoint)
        self.operators.begin(begin, shape.chaos)
        self.at(shape.chaos, self.calm)
        self.schedule.deadline = shape.chaos + 200.0 + self.hanging.seconds
        with upkeeping.simulated(self), driven_here(self):
            while self.schedule and not self.finished:
                call, args = self.schedule.next()
                if self.now > self.schedule.deadline or self.schedule.events > 60_000 + 500 * self.hanging.seconds:
                    raise Failure(f"no end in sight: {what_is_missing(self)}")
                call(*args)
            journal_is_of_one_line(self)
            upkeeping.nothing_old_is_left(self)

    def start_all(self) -> None:
        shape = self.shape
        for role, many in (("enumerator", shape.enumerators), ("reader", shape.readers), ("writer", shape.writers)):
            for _ in range(many):
                self.mesh.start(role)
        self.spark.start()

    def calm(self) -> None:
        """Faults stop; the source writes on for a moment, then stops."""
        self.troubled = False
        self.tell_story("calm: no more faults")
        for service in self.mesh.services:
            service.paused_until = min(service.paused_until, self.now)
            self.at(0.0, self.drivers.pump, service)
        for role in ("enumerator", "reader", "writer"):
            if not self.mesh.alive(role):
                self.mesh.replace(role)
        if not any(self.spark.starts):
            self.spark.start()
        if self.hanging.planned:
            self.hanging.arm()
        else:
            self.at(1.0, self.clients.stop_writing)
        self.at(0.5, self.operators.settle)

    def look_for_end(self) -> None:
        if any(s.alive and s.leader is not None and s.leader.state == "halted" for s in self.mesh.services):
            if not self.faults.halts_expected:
                raise Failure("a leader halted though nothing was lost")
            if self.operators.revive():
                self.at(0.5, self.look_for_end)
                return
            self.finished = True
            self.count["halt that was called for"] += 1
            return
        if arrived(self):
            self.finished = True
            return
        self.at(0.5, self.look_for_end)
