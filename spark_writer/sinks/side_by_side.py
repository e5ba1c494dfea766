"""Work on several tables of a pipeline at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

SIDE_BY_SIDE = 8
"""The tables of a pipeline that are worked on at once. Each waits for the catalogue and the disk most of the time, so
they are more than the cores."""


class SideBySide:
    """Calls for several tables, each in a thread of `pool` that `enter` has made ready for the sink."""

    def __init__(self, pool: Executor, enter: Callable[[], None]) -> None:
        """The threads stay the caller's."""
        self.pool = pool
        self._enter = enter

    def each(self, items: Iterable[Any], do: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """Call `do` for each item, in parallel; return (item, result).

        The first error is raised at once: calls not yet begun are cancelled, but those under way go on.
        """

        def run(item: Any) -> Any:
            self._enter()
            return do(item)

        items = list(items)
        if len(items) == 1:
            return [(items[0], run(items[0]))]
        return list(zip(items, self.pool.map(run, items), strict=True))
