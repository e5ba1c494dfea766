"""`cutline up` as a real process: Redis and all services but Spark's start, are listed, and end in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from cutline.services.run.cli import main

UP = """
import sys
from cutline.services.run import cli, children, host
from cutline.services.run.cli import up

every = children.service_children
host.service_children = lambda counts, workdir: [
    child for child in every(counts, workdir) if "spark" not in child.name
]
up.fetch_jars = lambda extras, settings: ()
cli.main()
"""
NAMES = {"Redis", "enumerator-0", "reader-0", "writer-0", "control"}


class Up:
    """A `cutline up` in the background."""

    def __init__(self, folder: Path) -> None:
        self.workdir, self.out = folder / "work", folder / "out"
        (folder / "up.py").write_text(UP)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CUTLINE_")}
        environ |= {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "CUTLINE_API_PORT": "0"}
        words = ["up", "--workdir", str(self.workdir), "--enumerators", "1", "--readers", "1", "--writers", "1"]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(folder / "up.py"), *words],
                stdout=out, stderr=subprocess.STDOUT, env=environ, start_new_session=True,
            )  # fmt: skip

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.out.read_text()
            assert time.monotonic() < deadline, self.out.read_text()
            time.sleep(0.1)

    def file(self) -> dict[str, Any]:
        path = self.workdir / "run.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"services": {}}
        return found

    def cli(self, *words: str) -> str:
        return CliRunner().invoke(main, [*words, "--url", self.file()["api_url"]]).stdout


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.wait()


def test_all_services_start_are_started_again_and_end_in_order(up: Up) -> None:
    """1. Every process is there, and the control service lists those of the mesh. 2. One is killed: another comes.
    3. Ctrl-C ends all, with exit code 0. 4. The folder has the store and the logs."""
    up.until(lambda: set(up.file()["services"]) == NAMES)
    roles = ("control", "enumerator", "reader", "writer")
    up.until(lambda: all(role in up.cli("services") for role in roles))
    assert "there is no pipeline" in up.cli("status")
    before = up.file()["services"]["reader-0"]
    os.kill(before, signal.SIGKILL)
    up.until(lambda: up.file()["services"].get("reader-0", before) != before)
    pids = list(up.file()["services"].values())
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0, up.out.read_text()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    printed = up.out.read_text().splitlines()
    assert f"the reader-0 ({before}) was ended by SIGKILL; it is started again" in printed
    assert printed[-1].startswith("all services have ended")
    assert {path.name for path in up.workdir.iterdir()} == {"lock", "logs", "redis.conf", "store"}
