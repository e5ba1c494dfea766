"""The earlier metadata files of a table live as long as the grace, and not much longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutline.spark_writer.sinks.iceberg.versions import LEAST, MOST, ROOM, is_due, wanted, young

GRACE_MS = 600_000


@given(st.lists(st.integers(0, 1000)).map(sorted), st.integers(0, 1000))
def test_the_young_files_are_those_that_were_current_after_the_moment(made_ms: list[int], since_ms: int) -> None:
    ends = [*made_ms[1:], since_ms + 1]
    assert young(made_ms, since_ms) == sum(end > since_ms for end in ends[: len(made_ms)])


@given(st.lists(st.tuples(st.sampled_from([50, 500, 5_000, 60_000]), st.integers(1, 300)), min_size=1, max_size=6))
def test_no_file_goes_within_the_grace_at_any_pace_of_commits_and_the_list_stays_bounded(
    paces: list[tuple[int, int]],
) -> None:
    """1. Commits at changing paces, each (ms between them, how many). 2. After each commit the list has every file that
    was current within the grace, and is not much longer than was needed once.
    """
    made: list[int] = []
    most, listed, now, peak = LEAST, 0, 0, 0
    for pause, count in paces:
        for _ in range(count):
            now += pause
            if is_due(listed, most):
                most = wanted(most, young(made[-listed:], now - GRACE_MS))
            made.append(now)
            listed = min(listed + 1, most)
            needed = young(made, now - GRACE_MS)
            peak = max(peak, needed)
            assert listed >= needed
            assert most <= max(LEAST, peak + peak // 8 + 3 * ROOM)


def test_the_list_is_never_longer_than_the_limit() -> None:
    assert wanted(MOST, 10 * MOST) == MOST
    assert wanted(1000, 10) == LEAST
