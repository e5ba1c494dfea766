"""A person at a shell, in a folder: carries out lines of the docs as they stand there."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import SESSION_MARK
from tests.support.mesh import waited

BASH = "/bin/bash"


class Shell:
    """A folder, and an environment that `export` changes; nothing of this session's settings is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = ("CUTLINE_CACHE", "CUTLINE_SPARK_JARS", SESSION_MARK)
        kept = {name: value for name, value in os.environ.items() if name in ours or not name.startswith("CUTLINE_")}
        self.environ = {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def do(self, line: str, *, exit_code: int = 0) -> str:
        """Carry out a line to its end, and return what it printed."""
        if line.startswith("export "):
            self.environ |= dict(word.split("=", 1) for word in shlex.split(line)[1:])
            return ""
        done = self._run(line)
        assert done.returncode == exit_code, f"{line}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def answer(self, line: str) -> str:
        """What a line printed if it succeeded; nothing while what it asks does not serve yet."""
        done = self._run(line)
        return "" if done.returncode else done.stdout

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BASH, "-c", line], cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip

    @contextmanager
    def doing(self, line: str) -> Iterator[None]:
        """Carry out a line in another terminal; at the end Ctrl-C ends it, with exit code 0."""
        with (self.folder / "terminal").open("ab") as out:
            running = subprocess.Popen(
                [BASH, "-c", f"exec {line}"], cwd=self.folder, env=self.environ, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield
            assert running.poll() is None, self.logs()
            running.send_signal(signal.SIGINT)
            assert running.wait(200) == 0, self.logs()
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()

    def logs(self) -> str:
        """The ends of the terminal's text and of the services' logs."""
        files = [self.folder / "terminal", *sorted((self.folder / ".cutline").rglob("*.log"))]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in files if file.exists())

    def until(self, condition: Callable[[], Any], goal: str) -> Any:
        """Wait for a condition; a failure shows the logs."""
        return waited(condition, goal, 120, self.logs)
