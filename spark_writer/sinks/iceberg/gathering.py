"""Lets threads that work on a table each share one call: what comes while a call is under way waits for the next one.

So one call is as large as the tables that are worked on at once, and none waits for others to come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class _Asked:
    item: Any
    done: bool = False
    answer: Any = None
    error: BaseException | None = None


class Gathering:
    """Calls of `together` for the items of several threads. Thread-safe."""

    def __init__(self, together: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """`together` returns an answer for each item, in order; it is called by one of their threads, never by two at
        once. If it raises an Exception for several items it is called again for each alone, so that the error is raised
        only to those that cause it: its calls must be repeatable.
        """
        self._together = together
        self._changed = threading.Condition()
        self._waiting: list[_Asked] = []
        self._running = False

    def ask(self, item: Any) -> Any:
        """Return the answer for an item."""
        asked = _Asked(item)
        with self._changed:
            self._waiting.append(asked)
            self._changed.wait_for(lambda: asked.done or not self._running)
            taken = [] if asked.done else self._waiting
            if taken:
                self._waiting, self._running = [], True
        if taken:
            self._answer(taken)
        if asked.error is not None:
            raise asked.error
        return asked.answer

    def _answer(self, taken: Sequence[_Asked]) -> None:
        try:
            if not self._call(taken) and len(taken) > 1:
                for each in taken:
                    self._call([each])
        except BaseException as error:
            for each in taken:
                each.error = error
        finally:
            with self._changed:
                self._running = False
                for each in taken:
                    each.done = True
                self._changed.notify_all()

    def _call(self, taken: Sequence[_Asked]) -> bool:
        """Whether all have their answers, and none has an error."""
        try:
            answers = self._together([each.item for each in taken])
            for each, answer in zip(taken, answers, strict=True):
                each.answer, each.error = answer, None
        except Exception as error:
            for each in taken:
                each.error = error
            return False
        return True
