"""`python -m tests.simulation --seeds N [--seed S] [--jobs J]`: the sweep, or the replay of one seed with its story.

`--seed S --world W --shrink` runs a seed that fails again and again, with fewer and fewer of its steps.

A seed has several worlds (`WORLDS`, `EVERY`), each for another part of the code; `--world` selects one."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation.binlog.world import StreamWorld
from tests.simulation.bites import BITES
from tests.simulation.channels.world import ChannelWorld
from tests.simulation.lives.world import LivesWorld
from tests.simulation.mesh.shape import Shape
from tests.simulation.mesh.sometimes import RARER
from tests.simulation.mesh.world import World
from tests.simulation.shrinking import run_world, shrink
from tests.simulation.storage.world import StoreWorld

ROLES = frozenset({"enumerator", "reader", "writer"})
WORLDS: dict[str, Any] = {
    "mesh": World, "driven": partial(World, driven=ROLES), "stream": StreamWorld,
    "store": StoreWorld, "channels": ChannelWorld, "lives": LivesWorld,
}  # fmt: skip
EVERY = {"mesh": 1, "driven": 8, "stream": 2, "store": 4, "channels": 4, "lives": 25}
"""In a sweep of all worlds, every how many seeds have this one; in a sweep of one world each seed has it."""
SEEDS = 2000
LONG_SEEDS = 10_000  # from so many on, the rarer states of the machines must have been reached too
ENFORCED_SEEDS = 1000  # from so many seeds on, a counter that stays 0 fails the sweep


def of_seed(seed: int, worlds: Sequence[str]) -> list[str]:
    """The worlds that a seed has."""
    return [name for name in worlds if len(worlds) == 1 or seed % EVERY[name] == 0]


def run_seed(seed: int, worlds: Sequence[str] = tuple(WORLDS)) -> tuple[int, Counter[str], str | None]:
    """One seed: its counters, and its fault, if any."""
    gc.disable()  # a world is one heap of cycles: swept once, when it is over
    if seed % 10 == 0:
        gc.collect()
    count: Counter[str] = Counter()
    fault = None
    for name in of_seed(seed, worlds):
        began = time.process_time()
        world = WORLDS[name](seed)
        try:
            world.run()
        except Exception as error:
            fault = fault or f"{type(error).__name__}: {error} (in its {name})"
        count += world.count
        count[f"{name}: microseconds"] += int(1e6 * (time.process_time() - began))
    return seed, count, fault


def replay(seed: int, worlds: Sequence[str]) -> int:
    """Run one seed and print its story."""
    for name in of_seed(seed, worlds):
        world = WORLDS[name](seed)
        try:
            world.run()
        except Exception:
            print("\n".join(world.story))
            traceback.print_exc(file=sys.stdout)
            print(f"seed {seed} failed in its {name}")
            return 1
        print("\n".join(world.story))
    print(f"seed {seed} passed")
    return 0


def shrunk(seed: int, name: str) -> int:
    """Shrink a seed that fails in a world; print the steps of the shortest schedule that fails alike, and its story."""
    found = shrink(partial(run_world, WORLDS[name], seed))
    if found is None:
        print(f"seed {seed} passes in its {name}")
        return 0
    print("\n".join(found.ended.story))
    print(found.ended.error)
    print(f"seed {seed} fails in its {name} with {len(found.ended.steps)} steps, after {found.runs} runs:")
    print("\n".join(f"    {step}" for step in found.ended.steps))
    return 1


def sweep(
    first: int,
    seeds: int,
    jobs: int,
    *,
    stop: bool = False,
    feature: str | None = None,
    worlds: Sequence[str] = tuple(WORLDS),
) -> tuple[Counter[str], list[tuple[int, str]]]:
    """All seeds from `first` on, or only those whose worlds have `feature`; `stop`: end at the first that fails."""
    count: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    drawn = range(first, first + seeds)
    numbers = [n for n in drawn if feature is None or getattr(Shape.from_seed(n), feature) is not None]
    pool = multiprocessing.get_context("fork").Pool(jobs) if jobs > 1 else None
    try:
        run = partial(run_seed, worlds=worlds)
        results = pool.imap_unordered(run, numbers, chunksize=4) if pool else map(run, numbers)
        for seed, counted, fault in results:
            count += counted
            count["seeds"] += 1
            if fault is not None:
                failed.append((seed, fault))
                if stop:
                    break
    finally:
        if pool:
            pool.terminate()
            pool.join()
    return count, failed


def never_met(count: Counter[str], seeds: int = SEEDS) -> list[str]:
    """The situations that a sweep of so many seeds did not meet and must."""
    return [name for name in (*BITES, *(sorted(RARER) if seeds >= LONG_SEEDS else ())) if not count[name]]


def main() -> int:
    """Run what the arguments ask for; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds")
    parser.add_argument("--seed", type=int, help="replay this one and print its story")
    parser.add_argument("--shrink", action="store_true", help="with --seed and --world: find its shortest failure")
    parser.add_argument("--first", type=int, default=1, help="the first seed of the sweep")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--feature", choices=("start", "stop"), help="only worlds that have this")
    parser.add_argument("--world", choices=WORLDS, help="only this one")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    args = parser.parse_args()
    worlds = (args.world,) if args.world else tuple(WORLDS)
    if args.shrink:
        if args.seed is None or args.world is None:
            parser.error("--shrink takes --seed and --world")
        return shrunk(args.seed, args.world)
    if args.seed is not None:
        return replay(args.seed, worlds)
    began = time.monotonic()
    count, failed = sweep(args.first, args.seeds, args.jobs, stop=args.stop, feature=args.feature, worlds=worlds)
    seconds = time.monotonic() - began
    spent = {name: count.pop(f"{name}: microseconds", 0) for name in worlds}
    for name, many in sorted(count.items()):
        print(f"{many:9d}  {name}")
    for seed, fault in sorted(failed)[:20]:
        print(f"seed {seed}: {fault[:400]}")
    whole = args.seeds >= ENFORCED_SEEDS and not (args.stop or args.feature or args.world)
    missed = never_met(count, args.seeds) if whole else []
    for name in missed:
        print(f"never met: {name}")
    ran = count["seeds"]
    print("; ".join(f"{name} {many / ran / 1000:.1f} CPU ms a seed" for name, many in spent.items()))
    print(
        f"{ran} seeds in {seconds:.1f} s ({ran / seconds:.1f} a second), {len(failed)} failed; replay one with --seed S"
    )
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
