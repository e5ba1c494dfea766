"""Threads share calls, each gets its own answer, and an error reaches those that it concerns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from cutline.spark_writer.sinks.iceberg.gathering import Gathering

SECONDS = 30.0


def test_what_comes_during_a_call_shares_the_next_one() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def together(items: Sequence[int]) -> list[int]:
        calls.append(sorted(items))
        if items == [0]:
            begun.set()
            assert go_on.wait(SECONDS)
        return [item * item for item in items]

    gathering = Gathering(together)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(gathering.ask, 0)
        assert begun.wait(SECONDS)
        others = [pool.submit(gathering.ask, item) for item in range(1, 8)]
        deadline = threading.Event()
        while len(gathering._waiting) < 7:
            assert not deadline.wait(0.001)
        go_on.set()
        assert first.result(SECONDS) == 0
        assert [other.result(SECONDS) for other in others] == [1, 4, 9, 16, 25, 36, 49]
    assert calls == [[0], [1, 2, 3, 4, 5, 6, 7]]


def test_an_error_is_raised_to_each_and_the_next_call_goes_on() -> None:
    def together(items: Sequence[int]) -> list[int]:
        if 0 in items:
            raise ValueError("nothing")
        return list(items)

    gathering = Gathering(together)
    with pytest.raises(ValueError, match="nothing"):
        gathering.ask(0)
    assert gathering.ask(1) == 1


def test_if_a_shared_call_fails_each_is_called_alone_and_only_the_guilty_one_fails() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def together(items: Sequence[int]) -> list[int]:
        calls.append(sorted(items))
        if items == [0]:
            begun.set()
            assert go_on.wait(SECONDS)
        if 3 in items:
            raise ValueError(f"{sorted(items)} crashed")
        return list(items)

    gathering = Gathering(together)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(gathering.ask, 0)
        assert begun.wait(SECONDS)
        others = [pool.submit(gathering.ask, item) for item in (1, 2, 3)]
        deadline = threading.Event()
        while len(gathering._waiting) < 3:
            assert not deadline.wait(0.001)
        go_on.set()
        assert [other.result(SECONDS) for other in others[:2]] == [1, 2]
        with pytest.raises(ValueError, match=r"\[3\] crashed"):
            others[2].result(SECONDS)
    assert calls[:2] == [[0], [1, 2, 3]]
    assert sorted(calls[2:]) == [[1], [2], [3]]
