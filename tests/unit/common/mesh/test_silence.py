"""A member's lease on its leader: what counts as the leader's silence."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cutline.common.mesh.silence import LEADER_SECONDS, STEP_SECONDS, Silence


def lost_at(reads: Iterable[tuple[float, bool]]) -> float | None:
    """Read the leader's channel at these times, with or without an entry; return when the leader was lost."""
    silence = Silence(0.0)
    return next((now for now, heard in reads if silence.read(now, heard=heard)), None)


def test_a_leader_that_says_nothing_is_lost_after_its_time() -> None:
    assert lost_at((float(n), False) for n in range(1, 100)) == LEADER_SECONDS


def test_an_empty_message_now_and_then_keeps_the_members() -> None:
    assert lost_at((float(n), n % int(LEADER_SECONDS - 1) == 0) for n in range(1, 1000)) is None


def test_silence_begins_anew_with_each_message() -> None:
    assert lost_at((float(n), n == 20) for n in range(1, 100)) == 20 + LEADER_SECONDS


@pytest.mark.parametrize("hours", [1.0, 1000.0])
def test_time_in_which_the_member_could_hear_nothing_counts_as_one_step(hours: float) -> None:
    """It was suspended, or Redis did not answer it: the next read may still be without the leader's next message."""
    later = hours * 3600
    silence = Silence(0.0)
    assert not silence.read(1.0, heard=True)
    assert not silence.read(later, heard=False)
    assert silence.seconds == STEP_SECONDS
    assert not silence.read(later + 1, heard=True)
    assert silence.seconds == 0.0


def test_a_member_that_reads_seldom_loses_its_leader_too() -> None:
    assert lost_at((10.0 * n, False) for n in range(1, 100)) == 10.0 * LEADER_SECONDS / STEP_SECONDS
