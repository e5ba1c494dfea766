"""The steps of a world's schedule: each thing that its seed lets happen beside the plain course. A schedule that fails
can be run again without some of them (shrinking.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet


class Steps:
    """The steps of one run, in their order. A step is named by what happens, and the how manieth of that name it is."""

    def __init__(self, without: AbstractSet[str] = frozenset()) -> None:
        """`without`: steps that are drawn, and do not happen."""
        self.taken: list[str] = []
        self._without = without
        self._numbers: Counter[str] = Counter()

    def happens(self, what: str) -> bool:
        """Whether a step that was drawn happens. Ask once for each; a world draws the same number of times before it,
        whatever the answer."""
        self._numbers[what] += 1
        step = f"{what} #{self._numbers[what]}"
        if step in self._without:
            return False
        self.taken.append(step)
        return True
