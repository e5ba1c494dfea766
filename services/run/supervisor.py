"""Service processes of one machine: started, started again when they end, and ended by their process ids only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cutline.common.errors import ConfigError, CutlineError

STOP_SECONDS = 15.0
STEADY_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 15.0
QUICK_DEATHS = 8
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """Have this child killed when its parent ends, even if that was just now. Runs between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Running(Protocol):
    """A process that was started, in a session of its own."""

    @property
    def pid(self) -> int:
        """Its id, which no other process gets before `end`."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; `end` is due then."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""

    def end(self) -> int:
        """Kill it and what it started (Spark's JVM must not outlive it), if it has not ended; return its exit code."""


Start = Callable[[Sequence[str], Path, Mapping[str, str]], Running]
"""Starts a command, whose output goes behind its log, with this environment. Raises OSError."""


class Program:
    """A process of this machine: see `Running`."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        """Start it. It ends with this process, however that ends."""
        parent = os.getpid()
        with log.open("ab") as output:
            # A session of its own: the terminal's Ctrl-C is for us alone, and killpg reaches what the child starts.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )

    @property
    def pid(self) -> int:
        """See `Running`."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """See `Running`. The process is not reaped: until then no other process can get its id, or its group's."""
        return (
            self._process.returncode is not None
            or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        )

    def terminate(self) -> None:
        """See `Running`."""
        self._process.terminate()

    def end(self) -> int:
        """See `Running`."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()


@dataclass(slots=True, kw_only=True)
class Child:
    """One service process and its state. `quick_deaths` counts ends in a row that came within STEADY_SECONDS."""

    name: str
    command: Sequence[str]
    log: Path
    process: Running | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    quick_deaths: int = 0

    def last_words(self) -> str:
        """The last line of the log, for messages."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1]
        return "its log is empty"


class Supervisor:
    """Starts children, starts them again when they end, and ends them by process id."""

    def __init__(
        self,
        children: Sequence[Child],
        environ: Mapping[str, str],
        start: Start = Program,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the children in the order in which to start them; the first `tick` starts them."""
        self.children = list(children)
        self._environ, self._start_one, self._monotonic = dict(environ), start, monotonic

    def pids(self) -> dict[str, int]:
        """The process id of each running child."""
        return {child.name: child.process.pid for child in self.children if child.process is not None}

    def tick(self, now: float) -> list[str]:
        """Start the children that are due at `now` (monotonic seconds); return a sentence for each one that has ended.

        ConfigError if a child ended with exit code 2 (its settings are wrong); CutlineError if one doesn't stay up.
        """
        ends = []
        for child in self.children:
            if child.process is not None and child.process.has_ended:
                ends.append(self._ended(child, child.process, now))
            if child.process is None and now >= child.due_at:
                self._start(child, now)
        return ends

    @staticmethod
    def _ended(child: Child, process: Running, now: float) -> str:
        code = process.end()
        child.process = None
        if code == 2:
            raise ConfigError(child.last_words())
        child.quick_deaths = child.quick_deaths + 1 if now - child.started_at < STEADY_SECONDS else 1
        if child.quick_deaths >= QUICK_DEATHS:
            raise CutlineError(
                f"the {child.name} ended {child.quick_deaths} times within {STEADY_SECONDS:.0f} s of its start"
                f" ({child.last_words()})",
                f"see {child.log}",
            )
        pause = 0.0 if child.quick_deaths == 1 else min(LONGEST_PAUSE_SECONDS, 0.25 * 2**child.quick_deaths)
        child.due_at = now + pause
        end = (
            f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code} ({child.last_words()})"
        )
        return f"the {child.name} ({process.pid}) {end}; it is started again" + (f" in {pause:.1f} s" if pause else "")

    def _start(self, child: Child, now: float) -> None:
        child.process = self._start_one(child.command, child.log, self._environ)
        child.started_at = now

    async def stop(self, *, grace_seconds: float = STOP_SECONDS, hurry: Callable[[], bool] = lambda: False) -> None:
        """End all children, the first one (our Redis, if we started one) last.

        Each gets SIGTERM, then SIGKILL after the grace or on `hurry`.
        """
        for group in (self.children[1:], self.children[:1]):
            running = [child.process for child in group if child.process is not None]
            for process in running:
                process.terminate()
            deadline = self._monotonic() + grace_seconds
            for process in running:
                # The event loop has no event for the end of a process that must not be reaped.
                while not process.has_ended and self._monotonic() < deadline and not hurry():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for process in running:
                process.end()
        for child in self.children:
            child.process = None


def free_port(wanted: int = 0) -> int:
    """`wanted` if that port is free on loopback, else a port that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise CutlineError("no port is free on 127.0.0.1", "end programs that listen there")
