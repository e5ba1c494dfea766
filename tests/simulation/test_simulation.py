"""The sweep of `make test`: thousands of worlds, each from one seed; together they must have met every fault."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.__main__ import SEEDS, WORLDS, never_met, run_seed, sweep
from tests.simulation.clock import Wrong
from tests.simulation.lives.surroundings import LakeTable
from tests.simulation.lives.world import LivesWorld
from tests.simulation.mesh.world import World


@pytest.fixture(scope="module")
def swept() -> tuple[Counter[str], list[tuple[int, str]]]:
    return sweep(1, SEEDS, jobs=2)


@pytest.mark.timeout(1200)
def test_no_seed_fails(swept: tuple[Counter[str], list[tuple[int, str]]]) -> None:
    _, failed = swept
    assert not failed, f"replay with `python -m tests.simulation --seed {failed[0][0]}`: {failed[:5]}"


@pytest.mark.timeout(1200)
def test_everything_that_can_go_wrong_went_wrong_somewhere(swept: tuple[Counter[str], list[tuple[int, str]]]) -> None:
    count, _ = swept
    assert never_met(count) == []


@pytest.mark.parametrize("name", WORLDS)
def test_a_seed_replays_exactly(name: str) -> None:
    stories = []
    for _ in range(2):
        world = WORLDS[name](4)
        world.run()
        stories.append((list(world.story), world.count))
    assert stories[0] == stories[1]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("lives", 12),  # a Spark writer started again and again, once the newest epoch's entry was removed
        ("lives", 29),  # a deletion waited for the store and said nothing
        ("lives", 53),  # a deletion whose leader died among the journal's files never ended
        ("lives", 43),  # nor did one of which the definition in force was removed already
        ("mesh", 182),  # chunk files stayed for ever after a start far behind had published once more
        ("mesh", 895),  # a slot of the journal was given twice, once retention had removed its entry
        ("mesh", 473),  # a source that hung inside a transaction got checkpoints without end
        ("mesh", 19848),  # a reader with chunks of two rows and a slow network was not given the time that it needs
        ("mesh", 135),  # and the pipeline could not be stopped
    ],
)
def test_a_seed_that_once_failed_passes(name: str, seed: int) -> None:
    WORLDS[name](seed).run()


def test_the_sweep_tells_which_seed_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(world: World) -> None:
        raise AssertionError(f"made to fail in seed {world.seed}")

    monkeypatch.setattr(World, "run", run)
    assert run_seed(7, ["mesh"])[2] == "AssertionError: made to fail in seed 7 (in its mesh)"


def test_a_check_fails_its_world_though_the_service_that_it_checks_catches_every_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(world: LivesWorld, table: LakeTable, snapshot: int) -> None:
        raise world.wrong("made to fail")

    monkeypatch.setattr(LivesWorld, "shown", shown)
    with pytest.raises(Wrong, match="made to fail"):
        LivesWorld(1).run()
