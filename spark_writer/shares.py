"""The rule by which Spark writers share the pipelines out. Pure, so that all of them come to the same result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

K = TypeVar("K", bound=str)


def shared(pipelines: Collection[K], replicas: Collection[str], led: Mapping[K, str]) -> dict[K, str]:
    """Return which replica each pipeline belongs to; {} without replicas. `led` says which one leads it now.

    The numbers of pipelines of any two replicas differ by one at most. A pipeline stays where it is unless its replica
    has too many: replicas that lead the most keep the most. What is led by no replica of the list counts as free.
    """
    if not replicas:
        return {}
    names = sorted(pipelines)
    keeps = {replica: [name for name in names if led.get(name) == replica] for replica in replicas}
    order = sorted(keeps, key=lambda replica: (-len(keeps[replica]), replica))
    least, over = divmod(len(names), len(order))
    room = {replica: least + (at < over) for at, replica in enumerate(order)}
    found = {name: replica for replica in order for name in keeps[replica][: room[replica]]}
    free = iter([name for name in names if name not in found])
    for replica in order:
        for _ in range(room[replica] - len(keeps[replica])):
            found[next(free)] = replica
    return found
