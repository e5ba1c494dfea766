"""The commands of docs/developing.md that replay a failure, carried out as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\.venv/bin/python (-m tests\.simulation [^#\n]*)", PAGE, re.MULTILINE)


def test_the_page_shows_how_to_replay_a_seed_how_to_sweep_and_how_to_shrink_a_failure() -> None:
    options = [{word for word in ("--seed", "--seeds", "--shrink") if word in command.split()} for command in COMMANDS]
    assert options == [{"--seed"}, {"--seeds"}, {"--seed", "--shrink"}]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_replay_works_as_the_page_says(command: str) -> None:
    subprocess.run([sys.executable, *shlex.split(command)], cwd=ROOT, check=True, capture_output=True, timeout=120)


def test_the_page_names_each_room_of_the_integration_tests() -> None:
    rooms = {path.parent.name for path in (ROOT / "tests" / "integration").glob("*/__init__.py")}
    named = re.search(r"would show\s\(([^)]*)\)", PAGE)
    assert named is not None
    assert set(re.findall(r"`(\w+)`", named[1])) == rooms
