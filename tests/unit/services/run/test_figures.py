"""Times, durations, sizes and counts as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cutline.services.run import figures


@pytest.fixture(params=["UTC", "Asia/Kathmandu"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A machine in this time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (59.4, "59 s"), (185, "3:05"), (7384, "2:03:04"), (2 * 86_400 + 3 * 3600, "2 d 3 h")],
)
def test_durations_are_said_as_a_person_reads_them(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == figures.span(seconds) == text


def test_a_time_is_in_the_zone_of_this_machine_which_it_names(zone: str) -> None:
    shown = {"UTC": "2026-11-27 20:00:00 UTC", "Asia/Kathmandu": "2026-11-28 01:45:00 +0545"}[zone]
    assert figures.when(1_795_809_600.0) == shown


def test_a_time_has_its_age_before_and_after_now(zone: str) -> None:
    assert figures.dated(1000.0, 1185.0).endswith(" (3:05 ago)")
    assert figures.dated(1000.0, 958.0).endswith(" (in 42 s)")
    assert figures.dated(None, 958.0) == figures.when(None) == figures.span(None) == figures.size(None) == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_a_unit(count: int, text: str) -> None:
    assert figures.size(count) == text


def test_counts_have_separators_from_a_thousand_on() -> None:
    assert [figures.number(count) for count in (999, 8996, 10_104, None)] == ["999", "8,996", "10,104", ""]
