"""The starts of the Spark writer: one after another, or two at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutline.common.store.records import Publication
from tests.simulation.checks.shown import publication_equals_source
from tests.simulation.mesh.lake import SparkWriter

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class SparkWriters:
    """The starts of the Spark writer: one after another, or two at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.starts: list[SparkWriter | None] = []

    def start(self) -> None:
        world = self.world
        world.store.claims = world.store.open().claim()
        self.starts.append(SparkWriter(world, world.store.claims))
        world.at(world.lag(5), self.step, len(self.starts) - 1)

    def step(self, index: int) -> None:
        world = self.world
        spark = self.starts[index]
        if spark is None:
            return
        did = spark.step()
        if did != "again":
            world.upkeeping.do(spark)
        if did == "again":
            self.starts[index] = None
            self.start()
            return
        delay = world.lag(8)
        if world.troubled:
            trouble = self._trouble(did)
            if trouble:
                world.count[trouble] += 1
            if trouble == "Spark writer crashed":
                self.starts[index] = None
                world.at(world.rng.uniform(0.1, 2), self.start)
                return
            if trouble == "zombie Spark writer":  # it sleeps, and another is started meanwhile
                delay += world.rng.uniform(1, 6)
                world.at(0.5, self.start)
            elif trouble == "long apply":
                delay += world.upkeeping.rng.uniform(4, 20)
            elif trouble == "Spark writer started slowly":
                delay += world.rng.uniform(1, 4)
            elif trouble:  # another is started, and this one goes on as long as it is let
                world.at(0.0, self.start)
        elif index != len(self.starts) - 1 and did == "idle":
            self.starts[index] = None
            return
        world.at(delay if did != "idle" else max(delay, 0.3), self.step, index)

    def _trouble(self, did: str) -> str:
        """What goes wrong with a start after such a step; empty: nothing."""
        luck = self.world.rng.random()
        if luck < 0.02:
            what = "Spark writer crashed" if luck < 0.01 else "zombie Spark writer"
        elif did == "applied" and luck < 0.08:
            what = "long apply"
        elif did == "started" and luck < 0.5:
            what = "Spark writer started slowly"
        else:
            what = "two Spark writers at once" if luck < 0.06 else ""
        return what if what and self.world.steps.happens(what) else ""

    def on_publication(self, publication: Publication) -> None:
        world = self.world
        world.count["publication"] += 1
        world.count["kept publication"] += publication.kept
        world.tell_story(f"publication {publication.n} by w{publication.w} at {publication.position}")
        publication_equals_source(world, publication)
