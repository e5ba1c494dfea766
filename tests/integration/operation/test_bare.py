"""`.ci/bare`: a command sees an empty Debian and the committed tree, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cutline.common.config.environment import cache_folder

BARE = Path(__file__).resolve().parents[3] / ".ci" / "bare"
REFUSED = 77
Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def base(nothing_left_running: None) -> Path:
    """The empty system, made at its first use; a machine without namespaces skips these tests."""
    tried = subprocess.run(
        [BARE, "true"], env=os.environ | {"BARE_USER": "somebody"}, capture_output=True, text=True, check=False
    )
    if tried.returncode == REFUSED:
        pytest.skip(tried.stderr.strip())
    assert tried.returncode == 0, tried.stderr
    return cache_folder() / "bare" / "bookworm"


@pytest.fixture
def start(base: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts `.ci/bare` on the base, with its copies where only this test has any; none may be left."""
    home = tmp_path / "cache" / "bare"
    home.mkdir(parents=True)
    (home / "bookworm").symlink_to(base)
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str, **environ: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [BARE, *command],
                env=os.environ | {"CUTLINE_CACHE": str(home.parent)} | environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()
    assert sorted(path.name for path in home.iterdir()) == ["bookworm", "lock"]


def alive(mark: str) -> bool:
    """Whether a process runs with this word on its command line."""
    return any(mark in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


def test_a_command_runs_in_the_committed_tree_and_sees_nothing_of_this_machine(start: Start, tmp_path: Path) -> None:
    script = f"git status --short; pwd; ls ~ /home; ls -d {tmp_path} .venv ~/.cache; type java; ps; cat; exit 7"
    process = start("bash", "-c", script)
    seen, errors = process.communicate(timeout=600)
    assert process.returncode == 7, errors
    assert seen.split() == ["/root/cutline", "/home:", "/root:", "cutline"]
    assert errors.count("No such file or directory") == 3
    assert errors.count("not found") == 2


def test_an_ordinary_user_has_a_home_with_the_given_folder_and_no_rights(start: Start, tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a.whl").write_text("a wheel")
    script = "id -un; pwd; ls; cat dist/a.whl; touch dist/mine ~/mine; touch /etc/passwd || exit 3"
    process = start("bash", "-c", script, BARE_USER="somebody", BARE_FILES=str(tmp_path / "dist"))
    seen, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    assert seen.split("\n") == ["somebody", "/home/somebody", "dist", "a wheel"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_that_was_started(start: Start, number: signal.Signals) -> None:
    """1. the command starts a process in a session of its own; 2. the run is ended; 3. that process is gone, and the
    copy.
    """
    mark = f"86400.{os.getpid()}{number.value}"
    process = start("bash", "-c", f"setsid sleep {mark} & echo begun; wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    deadline = time.monotonic() + 20
    while not alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(mark)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert not alive(mark)


def test_the_copy_of_a_run_that_was_killed_goes_with_the_next_run(start: Start) -> None:
    mark = f"86400.{os.getpid()}9"
    process = start("bash", "-c", f"echo begun; sleep {mark}")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.wait(60)
    deadline = time.monotonic() + 20
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(mark)
    assert start("true").wait(600) == 0
