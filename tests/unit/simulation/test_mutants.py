"""What the mutants of the simulation change still stands in the tree: a moved rule shows here, before the slow run."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.below import BELOW
from tests.simulation.mutants.commands import COMMANDS
from tests.simulation.mutants.lives import LIVES
from tests.simulation.mutants.units import UNITS

ROOT = Path(__file__).resolve().parents[3]


EVERY = (*MUTANTS, *BELOW, *COMMANDS, *LIVES, *UNITS)


def test_the_tests_that_a_mutant_must_fail_are_there() -> None:
    for mutant in EVERY:
        names, _, test = mutant.tests.partition("::")
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "unit").rglob(names or "test_*.py")]
        assert texts, mutant.rule
        assert not test or [f"def {test}(" in text for text in texts] == [True], mutant.rule


def test_what_a_mutant_replaces_stands_once_in_its_file() -> None:
    for mutant in EVERY:
        texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _, _ in mutant.edits}
        for file, old, new in mutant.edits:
            assert texts[file].count(old) == 1, (mutant.rule, file, old)
            texts[file] = texts[file].replace(old, new)
