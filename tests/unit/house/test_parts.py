"""The parts of `make test-full` together run each test file once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def part(number: int) -> list[Path]:
    """The folders and files of tests that a part has in the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(rf"^TESTS_{number} := (.+)$", text, re.MULTILINE)
    assert found is not None
    return [ROOT / name for name in found[1].split()]


def files_of(place: Path) -> set[Path]:
    return set(place.rglob("test_*.py")) if place.is_dir() else {place}


def test_each_test_file_is_in_one_part() -> None:
    apart = set(part(4))
    assert all(path.is_file() for path in apart)
    rooms = [place for number in (1, 2) for place in part(number)]
    assert all(place.is_dir() for place in rooms)
    run = [path for place in rooms for path in files_of(place) - apart] + sorted(apart)
    assert sorted(run) == sorted((ROOT / "tests").rglob("test_*.py"))
