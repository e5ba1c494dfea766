"""docs/security.md: each line names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_every_line_of_the_threat_model_names_tests_that_exist() -> None:
    known: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| may")]
    assert len(lines) > 20
    for line in lines:
        named = re.findall(r"`(test_\w+)`", line)
        assert named, f"no test: {line}"
        assert set(named) <= known, sorted(set(named) - known)
