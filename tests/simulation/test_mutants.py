"""Tests of the simulation and of unit tests: a patch breaks one rule of the algorithms, and some test must then fail.

Each worker of pytest-xdist has one copy of the sources (`tree`) and one process that runs the tests there in forks
(`runner`). A mutant changes the copy, and changes it back when its test ends.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutants.below import BELOW
from tests.simulation.mutants.commands import COMMANDS
from tests.simulation.mutants.lives import LIVES
from tests.simulation.mutants.units import UNITS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("common", "services", "spark_writer", "tools")
TESTS = ("unit", "simulation", "support")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources without compiled modules, which a patch could not change.

    Its bytecode is checked by the hash of the source: by time and size alone, Python would take a file that was changed
    and changed back within a second for the changed one.
    """
    folder = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for part in (*FOLDERS, *(f"tests/{part}" for part in TESTS)):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    checked = py_compile.PycInvalidationMode.CHECKED_HASH
    for part in (*FOLDERS, "tests"):
        assert compileall.compile_dir(folder / part, quiet=1, invalidation_mode=checked)
    (folder / "cutline").symlink_to(".")  # found before the checkout's own `cutline`
    return folder


@contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Apply the patch to the tree until the end of the `with`; each old text must stand exactly once in its file."""
    before: dict[Path, str] = {}
    try:
        for file, old, new in mutant.edits:
            path = tree / file
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{file} has the text of the mutant {text.count(old)} times, not once: {old!r}"
            before.setdefault(path, text)
            path.write_text(text.replace(old, new), encoding="utf-8")
        yield
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")


class Runner:
    """A process of `tests.simulation.mutants.runner` in the tree; `close` ends it and its forks, `run` starts it."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._process: subprocess.Popen[str] | None = None

    def run(self, output: Path, words: list[str]) -> int:
        """Run the module `words[0]` with its arguments; return the exit code."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.simulation.mutants.runner"],
                cwd=self._tree,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps([str(output), *words]), file=self._process.stdin, flush=True)
            return int(self._process.stdout.readline())
        except BaseException:  # this test's time is up, too
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def runner(tree: Path) -> Iterator[Runner]:
    made = Runner(tree)
    yield made
    made.close()


def command(mutant: Mutant) -> list[str]:
    """The module that must fail on the mutant: a file of unit tests, or the sweep up to the first seed that fails."""
    if mutant.tests:  # with the same drawn examples each time, which show the mutant or never do
        words = ["pytest", "-x", "-q", "-rf", "-p", "no:cacheprovider", "--noconftest", "--hypothesis-seed=0"]
        names, _, test = mutant.tests.partition("::")
        files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "unit").rglob(names))]
        assert files, mutant.tests
        return [*words, *(f"{file}::{test}" if test else file for file in files)]
    words = ["tests.simulation", "--stop", "--first", str(mutant.first), "--seeds", str(mutant.seeds)]
    return [*words, *(["--feature", mutant.feature] if mutant.feature else []), "--world", mutant.world]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", [*MUTANTS, *BELOW, *COMMANDS, *LIVES, *UNITS], ids=lambda mutant: mutant.rule)
def test_a_test_fails_where_this_rule_is_broken(mutant: Mutant, tree: Path, runner: Runner, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with applied(mutant, tree):
        code = runner.run(output, command(mutant))
    text = output.read_text(encoding="utf-8", errors="replace")
    assert code == 1, f"no test fails: {text[-2000:]}"
    assert ("\nFAILED " if mutant.tests else "\nseed ") in text, f"the tests broke off: {text[-2000:]}"
