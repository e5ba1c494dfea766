"""Starts services of the mesh by fork, from a process that has imported them: real processes, a second of CPU cheaper.

An interpreter that starts the module imports for a second before its first line of work, and the tests start hundreds.
`python -m` itself is what `cutline run` starts, so the tests of that, the demo and the bench cover it.

`fork` is called by tests. The other side (`python -m tests.support.forge`) reads a JSON line from stdin for each
order, and answers each by one number: the new process's pid, or the exit code of a process that has ended.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MODULES = ("cutline.services.enumerator", "cutline.services.reader", "cutline.services.writer")
"""Those whose process can be forked: they must not be importing, or running threads, when it is."""
_lock = threading.Lock()
_forge: subprocess.Popen[str] | None = None


class Forked:
    """A service's process, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), None while the process runs."""
        with _lock:
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                self.returncode = _ask({"ended": self.pid})
                os.close(self._ended)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            select.select([self._ended], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork(module: str, environ: Mapping[str, str], folder: Path, log: Path) -> Forked:
    """Start one of MODULES as `python -m` would, in a session of its own, with its output in `log`."""
    with _lock:
        return Forked(_ask({"module": module, "environ": dict(environ), "folder": str(folder), "log": str(log)}))


def stop() -> None:
    """End the forge; the processes that it started go on."""
    global _forge
    if _forge is not None:
        _forge.communicate()
        _forge = None


def _ask(order: Mapping[str, Any]) -> int:
    global _forge
    if _forge is None:
        _forge = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).resolve().parents[2], start_new_session=True,
        )  # fmt: skip
    assert _forge.stdin is not None
    assert _forge.stdout is not None
    _forge.stdin.write(json.dumps(order) + "\n")
    _forge.stdin.flush()
    return int(_forge.stdout.readline())


def serve() -> None:
    """Carry out orders until stdin ends."""
    for module in MODULES:
        __import__(f"{module}.__main__")
    while line := sys.stdin.readline():
        order = json.loads(line)
        if "ended" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1])
        elif (answer := os.fork()) == 0:
            _become(**order)
        print(answer, flush=True)


def _become(module: str, environ: Mapping[str, str], folder: str, log: str) -> NoReturn:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    with open(os.devnull, "rb") as nothing, open(log, "wb") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdin = open(0, closefd=False)
    sys.stdout, sys.stderr = (open(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))
    sys.argv = [module]
    del sys.modules[f"{module}.__main__"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    serve()
