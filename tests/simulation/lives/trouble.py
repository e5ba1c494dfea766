"""What goes wrong in the world of lives: processes are suspended or killed, and what they call does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.errors import Unavailable
from tests.simulation.actors import Process

if TYPE_CHECKING:
    from tests.simulation.lives.world import LivesWorld


class Trouble:
    """The troubles of one world; none once it is calm."""

    def __init__(self, world: LivesWorld) -> None:
        self.world = world
        self.failing = world.rng.choice((0.0, 0.0, 0.02, 0.1))  # chance that a call fails
        self.restless = world.rng.choice((0.0, 0.002, 0.01))  # chance of a suspension at a call
        self.down: dict[str, float] = {}  # until when the store, Redis, or the lake answers nobody

    def at_call(self, process: Process) -> None:
        """At a call: the process may be suspended, or killed."""
        world = self.world
        if world.calm or process.name.startswith(("people", "supervisor")):
            return
        luck = world.rng.random()
        if process.name.startswith(("enumerator", "reader", "writer")) and world.deleting != world.ended:
            luck /= 8  # most of what can go wrong goes wrong in the middle of a deletion
        role = process.name.partition("-")[0].partition(" ")[0]
        if luck < self.restless:
            if world.steps.happens(f"{role} suspended"):
                self._suspend(process, role)
        elif luck < 1.1 * self.restless and world.steps.happens(f"{role} killed"):
            world.count[f"lives: {role} killed"] += 1
            world.tell(f"{process.name} is killed")
            world.actors.kill(process)

    def _suspend(self, process: Process, role: str) -> None:
        world = self.world
        seconds = world.rng.choice((1.0, 7.0, 40.0)) * world.rng.uniform(0.5, 1.5)
        process.suspended_until = world.clock.now + seconds
        world.count[f"lives: {role} suspended"] += 1
        world.tell(f"{process.name} sleeps for {seconds:.1f} s")

    def visit(self, to: str) -> None:
        """A call to the store, Redis or the lake; Unavailable if it fails."""
        world = self.world
        slow = 0.0 if world.calm or world.rng.random() > 0.01 else world.rng.uniform(0.1, 2.0)
        world.actors.sleep(slow)
        process = world.actors.current and world.actors.current.process
        if world.calm or process is None or process.name.startswith("people"):
            return
        if self.failing and world.rng.random() < 0.002 and world.steps.happens(f"{to} away"):
            self.down[to] = world.clock.now + world.rng.choice((2.0, 10.0, 45.0))
            world.count[f"lives: {to} away"] += 1
        down = world.clock.now < self.down.get(to, 0.0)
        if down or (world.rng.random() < self.failing / 10 and world.steps.happens(f"{to} fails")):
            raise Unavailable(f"the {to} does not answer")
