"""The sweep is itself tested: for each rule of the algorithms, a patch that breaks it, which some seed must notice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutants.below import BELOW

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("common", "services", "spark_writer", "tests/simulation")
JOBS = 2


def outcome(mutant: Mutant, folder: Path) -> subprocess.CompletedProcess[str]:
    """Apply the patch to a copy of the tree and run the sweep there, up to the first seed that fails."""
    for part in COPIED:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("__init__.py", "binlog_bytes.py", "records.py"):
        shutil.copy(ROOT / "tests" / file, folder / "tests" / file)
    (folder / "cutline").symlink_to(".")  # found before the checkout's own `cutline`
    for file, old, new in mutant.edits:
        text = (folder / file).read_text()
        if text.count(old) != 1:
            raise AssertionError(f"{file} has {text.count(old)} times the text that the mutant replaces: {old!r}")
        (folder / file).write_text(text.replace(old, new))
    if mutant.tests:
        (folder / "tests" / "unit").mkdir()
        shutil.copy(ROOT / "tests" / "unit" / mutant.tests, folder / "tests" / "unit")
        shutil.copy(ROOT / "pyproject.toml", folder)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "--noconftest", "tests/unit"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    command = [sys.executable, "-m", "tests.simulation", "--stop"]
    command += ["--first", str(mutant.first), "--seeds", str(mutant.seeds)]
    command += ["--of", mutant.of] if mutant.of else []
    command += ["--world", mutant.world]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """The outcome of every mutant that is asked for, several at a time."""
    asked = [item.callspec.params["mutant"] for item in request.session.items if item.parent is request.node]
    with ThreadPoolExecutor(JOBS) as pool:
        yield {m.rule: pool.submit(outcome, m, tmp_path_factory.mktemp("mutant")) for m in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", [*MUTANTS, *BELOW], ids=lambda mutant: mutant.rule)
def test_the_sweep_fails_where_this_rule_is_broken(
    mutant: Mutant, outcomes: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    done = outcomes[mutant.rule].result()
    assert done.returncode == 1, f"{mutant.seeds} seeds notice nothing: {done.stdout[-300:]} {done.stderr[-2000:]}"
    assert "\nFAILED " in done.stdout if mutant.tests else "\nseed " in done.stdout, (
        f"the sweep broke off: {done.stderr[-2000:]}"
    )
