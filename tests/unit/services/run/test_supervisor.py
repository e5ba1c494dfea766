"""The supervisor on simulated processes: starts that fail, ends in a row, a child that does not listen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import CutlineError
from cutline.services.run.supervisor import QUICK_DEATHS, STEADY_SECONDS, STOP_SECONDS, Child, Supervisor


class Started:
    """A process that ends when the test says so; `deaf`: it does not end when it is asked to."""

    def __init__(self, number: int, *, deaf: bool) -> None:
        self.pid, self.deaf = number, deaf
        self.has_ended = self.killed = False
        self.code = 0

    def terminate(self) -> None:
        self.has_ended = not self.deaf

    def end(self) -> int:
        self.killed = not self.has_ended
        self.has_ended = True
        return -9 if self.killed else self.code


class Machine:
    """A machine on which processes are started."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.refuses = 0
        self.deaf: tuple[str, ...] = ()
        self.now = 0.0

    def start(self, command: Any, log: Path, environ: Any) -> Started:
        if self.refuses:
            self.refuses -= 1
            raise OSError("no memory for a process")
        self.started.append(Started(len(self.started) + 1, deaf=command[0] in self.deaf))
        return self.started[-1]

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def supervised(machine: Machine, folder: Path, *names: str) -> Supervisor:
    children = [Child(name=name, command=[name], log=folder / f"{name}.log") for name in names]
    return Supervisor(children, {}, machine.start, machine.monotonic)


def test_a_start_that_fails_is_told_and_the_next_tick_tries_again(tmp_path: Path) -> None:
    machine = Machine()
    supervisor = supervised(machine, tmp_path, "redis", "reader-0")
    machine.refuses = 1
    with pytest.raises(OSError, match="no memory"):
        supervisor.tick(0.0)
    assert supervisor.pids() == {}
    assert supervisor.tick(1.0) == []
    assert supervisor.pids() == {"redis": 1, "reader-0": 2}


def test_ends_in_a_row_count_and_a_steady_time_ends_the_row(tmp_path: Path) -> None:
    machine, now = Machine(), 0.0
    supervisor = supervised(machine, tmp_path, "reader-0")
    supervisor.tick(now)
    for _ in range(QUICK_DEATHS - 1):
        machine.started[-1].has_ended, machine.started[-1].code = True, 1
        assert len(supervisor.tick(now)) == 1
        now = supervisor.children[0].due_at
        supervisor.tick(now)
    now += STEADY_SECONDS + 1.0
    machine.started[-1].has_ended = True
    assert len(supervisor.tick(now)) == 1
    assert supervisor.children[0].quick_deaths == 1
    for _ in range(QUICK_DEATHS - 2):
        now = supervisor.children[0].due_at
        supervisor.tick(now)
        machine.started[-1].has_ended = True
        supervisor.tick(now)
    supervisor.tick(supervisor.children[0].due_at)
    machine.started[-1].has_ended = True
    with pytest.raises(CutlineError, match=f"ended {QUICK_DEATHS} times"):
        supervisor.tick(supervisor.children[0].due_at)


def test_the_first_child_ends_last_and_who_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    machine = Machine()
    machine.deaf = ("reader-0",)
    supervisor = supervised(machine, tmp_path, "redis", "reader-0", "writer-0")
    supervisor.tick(0.0)
    redis, reader, writer = machine.started
    began = machine.now
    asyncio.run(supervisor.stop())
    assert (redis.killed, reader.killed, writer.killed) == (False, True, False)
    assert machine.now - began >= STOP_SECONDS
    assert supervisor.pids() == {}
