"""What the mutants of the simulation change still stands in the tree: a moved rule shows here, before the slow run."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.below import BELOW
from tests.simulation.mutants.commands import COMMANDS
from tests.simulation.mutants.lives import LIVES
from tests.simulation.mutants.units import UNITS

ROOT = Path(__file__).resolve().parents[2]


def test_what_a_mutant_replaces_stands_once_in_its_file() -> None:
    for mutant in (*MUTANTS, *BELOW, *COMMANDS, *LIVES, *UNITS):
        texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _, _ in mutant.edits}
        for file, old, new in mutant.edits:
            assert texts[file].count(old) == 1, (mutant.rule, file, old)
            texts[file] = texts[file].replace(old, new)
