"""The sharing rule of the Spark writers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cutline.spark_writer.shares import shared

NAMES = st.sets(st.sampled_from([f"p{number}" for number in range(12)]))
REPLICAS = st.sets(st.sampled_from("abcdef"), min_size=1)
LED = st.dictionaries(st.sampled_from([f"p{number}" for number in range(12)]), st.sampled_from("abcdefgh"))


def test_nobody_gets_anything_without_replicas() -> None:
    assert shared({"p1"}, set(), {"p1": "a"}) == {}


def test_who_joins_takes_over_what_others_have_too_much_of() -> None:
    assert shared(["p1", "p2", "p3"], ["a"], {}) == {"p1": "a", "p2": "a", "p3": "a"}
    two = shared(["p1", "p2", "p3"], ["a", "b"], {"p1": "a", "p2": "a", "p3": "a"})
    assert two == {"p1": "a", "p2": "a", "p3": "b"}
    assert shared(["p1", "p2", "p3"], ["c", "b", "a"], two) == {"p1": "a", "p2": "c", "p3": "b"}


def test_what_a_lost_replica_led_goes_to_those_who_lead_least() -> None:
    led = {"p1": "a", "p2": "b", "p3": "c", "p4": "a"}
    assert shared(list(led), ["a", "c"], led) == {"p1": "a", "p2": "c", "p3": "c", "p4": "a"}


@given(NAMES, REPLICAS, LED)
def test_shares_are_even_and_nothing_moves_without_need(
    names: set[str], replicas: set[str], led: dict[str, str]
) -> None:
    found = shared(names, replicas, led)
    assert set(found) == names
    counts = Counter(found.values())
    sizes = [counts[replica] for replica in replicas]
    assert max(sizes) - min(sizes) <= 1
    now = Counter(replica for name, replica in led.items() if name in names)
    more = -(-len(names) // len(replicas))
    for replica in replicas:
        lost = [name for name in names if led.get(name) == replica and found[name] != replica]
        gained = [name for name in names if led.get(name) != replica and found[name] == replica]
        assert not (lost and gained)
        if lost:
            assert now[replica] > len(names) // len(replicas)
            assert counts[replica] in (more, len(names) // len(replicas))


@given(NAMES, REPLICAS, LED)
def test_even_shares_stay_as_they_are(names: set[str], replicas: set[str], led: dict[str, str]) -> None:
    found = shared(names, replicas, led)
    assert shared(sorted(names, reverse=True), sorted(replicas, reverse=True), found) == found
