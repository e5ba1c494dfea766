"""Makes a schedule that fails as short as it can be: fewer and fewer of its steps happen, and it still fails alike.

A step that is left out changes all that comes after it, since later draws are other ones; so each try is a run of its
own, and counts if it fails at the same place with fewer steps. What is left is not the least schedule, but no further
step of it can be left out alone."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

RUNS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run. `fault`: where it failed, and how; None if it passed."""

    fault: str | None
    error: str
    steps: tuple[str, ...]
    story: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The shortest run found."""

    without: frozenset[str]
    ended: Ended
    runs: int


def run_world(make: Callable[..., Any], seed: int, without: AbstractSet[str]) -> Ended:
    """One run of a world without some steps."""
    world = make(seed, without)
    fault, text = None, ""
    try:
        world.run()
    except Exception as error:
        fault, text = fault_of(error), f"{type(error).__name__}: {error}"
    return Ended(fault=fault, error=text, steps=tuple(world.steps.taken), story=tuple(world.story))


def fault_of(error: Exception) -> str:
    """What makes two failures the same: the error's class, and the function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {frames[-1].name if frames else 'nothing'}"


def shrink(run: Callable[[AbstractSet[str]], Ended], *, runs: int = RUNS) -> Shrunk | None:
    """Shrink what fails; None if it passes. `run` runs it without some of its steps."""
    gc.freeze()  # what was there before needs no look after each run
    try:
        return _shrunk(lambda without: _cleared(run, without), runs)
    finally:
        gc.unfreeze()


def _cleared(run: Callable[[AbstractSet[str]], Ended], without: AbstractSet[str]) -> Ended:
    """One run. Coroutines that a failure left end here, and not in a later run."""
    ended = run(without)
    gc.collect()
    return ended


def _shrunk(run: Callable[[AbstractSet[str]], Ended], runs: int) -> Shrunk | None:
    best, without, ran = run(frozenset()), frozenset[str](), 1
    if best.fault is None:
        return None
    size = max(1, len(best.steps) // 2)
    while ran < runs:
        shorter = None
        for part in _parts(best.steps, size):
            if ran == runs:
                break
            ran += 1
            ended = run(without | part)
            if ended.fault == best.fault and len(ended.steps) < len(best.steps):
                shorter = without | part, ended
                break
        if shorter is not None:
            without, best = shorter
            size = max(1, min(size, len(best.steps) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return Shrunk(without=without, ended=best, runs=ran)


def _parts(steps: Sequence[str], size: int) -> list[frozenset[str]]:
    """The steps in parts of that size, the last ones first: most of them come after what matters."""
    return [frozenset(steps[max(0, end - size) : end]) for end in range(len(steps), 0, -size)]
