"""A server as a process of its own: on a free port, with a data folder, and gone with whoever started it.

If the process that owns a server dies without closing it, a watcher (a shell that reads a pipe) kills the server and
removes its data.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

HOST = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 60.0
Option = str | int | float | bool | None


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself; the message has the end of its log."""


def free_port() -> int:
    """A port that was free a moment ago; another process may take it first, so be ready to try again."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for error messages."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


class Process:
    """One child process, and its watcher, which ends it and removes `folder` if this Python process dies first."""

    def __init__(self, command: Sequence[str], log: Path, folder: Path) -> None:
        with open(log, "ab") as output:
            # Its own session, so that a Ctrl-C in the terminal reaches the tests and not the server.
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        # A line on its input ends the watcher; the end of its input means that our process died. The watcher ends
        # before the server is reaped, so the pid that it kills can't be another process's.
        script = 'read -r line && exit 0; kill -KILL "$1"; sleep 0.2; rm -rf "$2"'
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", script, "watcher", str(self.popen.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def end(self, first: signal.Signals) -> None:
        """Send `first`, wait, then send SIGKILL; return when the process is reaped."""
        with contextlib.suppress(BrokenPipeError):
            self._watcher.communicate(b"done\n")
        # The process may have ended by itself: then send_signal does nothing.
        self.popen.send_signal(first)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class LocalServer:
    """A server's folder, port and process; the module's docstring describes its life."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.host = HOST
        self.port = 0
        self.folder: Path | None = None
        self._process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's pid; None while it doesn't run."""
        if self._process is None or self._process.popen.poll() is not None:
            return None
        return self._process.popen.pid

    @property
    def log(self) -> Path:
        """The file with the server's output since it was first started."""
        assert self.folder is not None
        return self.folder / "server.log"

    def log_end(self, lines: int = 15) -> str:
        """The last lines of the log, for messages."""
        return tail(self.log, lines) if self.folder is not None else "(no log)"

    def start(self) -> None:
        """Start on the existing data (at first: fresh) and return when the server answers; does nothing if it runs."""
        if self.pid is not None:
            return
        if self._process is not None:
            self._process.end(signal.SIGKILL)  # it ended by itself: reap it and end its watcher
            self._process = None
        fresh = self.folder is None
        if self.folder is None:
            self.folder = self._make_folder()
        tries = 1 if self.port else 3  # another process may take the port before the server binds it
        for attempt in range(1, tries + 1):
            self.port = self.port or free_port()
            try:
                self._process = Process(self._command(), self.log, self.folder)
                self._wait_until_it_answers(self._process.popen)
                return
            except BaseException as error:
                if self._process is not None:
                    self._process.end(signal.SIGKILL)
                    self._process = None
                if not isinstance(error, ServerFailed) or attempt == tries:
                    if fresh:
                        self.close()  # the caller got no server and will not close it
                    raise
                self.port = 0

    def stop(self) -> None:
        """End the process by SIGTERM, after a while by SIGKILL; the data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process by SIGKILL; the data stays as it is."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start, on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the data."""
        self._end(signal.SIGTERM)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _end(self, first: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(first)
            self._process = None

    def _wait_until_it_answers(self, popen: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            if popen.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {popen.returncode} at its start:\n{self.log_end()}")
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} gave no answer in {START_SECONDS:.0f} s:\n{self.log_end()}")
            time.sleep(0.03)

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"cutline-{self.name}-"))

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError
