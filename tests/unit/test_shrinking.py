"""A schedule that fails shrinks to the few steps that make it fail."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Set as AbstractSet
from functools import partial

import pytest

from tests.simulation.channels.world import ChannelWorld
from tests.simulation.clock import Wrong
from tests.simulation.shrinking import run_world, shrink
from tests.simulation.steps import Steps


class PlantedWorld:
    """Forty steps; it fails at the end if the third crash and a cut after it happened."""

    def __init__(self, seed: int, without: AbstractSet[str] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.steps = Steps(without)
        self.story: deque[str] = deque()

    def run(self) -> None:
        crashed = cut = False
        for _ in range(40):
            what = self.rng.choice(("crash", "cut", "sleep"))
            if not self.steps.happens(what):
                continue
            self.story.append(what)
            crashed |= self.steps.taken[-1] == "crash #3"
            cut |= crashed and what == "cut"
        self.judge(crashed=crashed, cut=cut)

    def judge(self, *, crashed: bool, cut: bool) -> None:
        if crashed and cut:
            raise Wrong("planted")
        if not any(step.startswith("sleep") for step in self.steps.taken) and len(self.steps.taken) > 3:
            raise ValueError("another fault, of fewer steps")


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_fault_shrinks_to_the_two_steps_that_make_it(seed: int) -> None:
    found = shrink(partial(run_world, PlantedWorld, seed))
    assert found is not None
    assert found.ended.fault == "Wrong in judge"
    first, second = found.ended.steps
    assert (first, second.split()[0]) == ("crash #3", "cut")
    assert found.ended.story == ("crash", "cut")


def test_what_is_left_out_fails_again_in_the_same_way() -> None:
    found = shrink(partial(run_world, PlantedWorld, 1))
    assert found is not None
    assert run_world(PlantedWorld, 1, found.without) == found.ended


def test_a_schedule_that_passes_is_not_shrunk() -> None:
    def passes(without: AbstractSet[str]) -> object:
        return run_world(ChannelWorld, 8, without)

    assert shrink(passes) is None  # type: ignore[arg-type]


def test_the_number_of_runs_is_bounded() -> None:
    found = shrink(partial(run_world, PlantedWorld, 1), runs=4)
    assert found is not None
    assert found.runs == 4


def test_a_fault_in_the_channels_shrinks_to_few_steps_of_their_world(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = ChannelWorld.judge

    def judge(world: ChannelWorld) -> None:
        if world.count["channels: receiver slept"] and world.count["channels: answer lost"]:
            raise Wrong("planted: an answer was lost, and a receiver has slept")
        judged(world)

    monkeypatch.setattr(ChannelWorld, "judge", judge)
    whole = run_world(ChannelWorld, 8, frozenset())
    assert whole.fault == "Wrong in judge"
    assert len(whole.steps) > 20
    found = shrink(partial(run_world, ChannelWorld, 8))
    assert found is not None
    assert {step.partition(" #")[0] for step in found.ended.steps} == {"exchange lost", "receiver sleeps"}
    assert len(found.ended.steps) <= 4
