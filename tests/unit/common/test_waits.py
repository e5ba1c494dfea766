"""Waits as values: since when, also where they are made again with each try."""

from __future__ import annotations

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.waits import Party, Wait

AWAY, REFUSED = Cause(Code.UNAVAILABLE, "it does not answer"), Cause(Code.REFUSED, "it refuses us")


def test_a_wait_that_is_made_again_keeps_its_beginning_whatever_its_words_are() -> None:
    first = Wait(Party.SOURCE, "the source (1 s so far)", AWAY).as_before(None, 10.0)
    again = Wait(Party.SOURCE, "the source (5 s so far)", Cause(Code.UNAVAILABLE, "no route")).as_before(first, 14.0)
    assert (first.since, again.since, again.what) == (10.0, 10.0, "the source (5 s so far)")


@pytest.mark.parametrize(
    "other", [Wait(Party.STORE, "the store", AWAY), Wait(Party.SOURCE, "the source", REFUSED), Wait(Party.SOURCE, "it")]
)
def test_a_wait_for_another_party_or_by_another_kind_of_cause_begins_now(other: Wait) -> None:
    first = Wait(Party.SOURCE, "the source", AWAY).as_before(None, 10.0)
    assert other.as_before(first, 14.0).since == 14.0


def test_a_wait_is_read_back_also_that_of_a_version_that_knew_no_beginning() -> None:
    wait = Wait(Party.SOURCE, "the source", AWAY, 10.5)
    assert Wait.from_json(wait.to_json()) == wait
    older = {name: value for name, value in wait.to_json().items() if name != "since"}
    assert Wait.from_json(older) == Wait(Party.SOURCE, "the source", AWAY)
    assert Wait.from_json(older | {"since": "noon", "party": "of the future"}).since is None
