"""CPU and memory of all descendants of this process, read from /proc, without the source's servers.

CPU: the time of each living process and of its reaped children, and of this process's reaped children. So a short-lived
child is counted too, wherever it ended. This process itself (the bench) is not counted.

Memory: each process's high-water mark (`VmHWM`, reset at the start), and the sampled sum of the resident memory of all
processes. A page that processes share counts once for each of them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.5


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from [0] state on: [1] ppid, [11..14] user and system time, own and children's."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def descendants(but: Collection[int]) -> dict[int, list[str]]:
    """The descendants of this process by pid, without the processes of `but` and their descendants."""
    stats: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stats[int(name)] = _stat(int(name))
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[1]), []).append(pid)
    found: dict[int, list[str]] = {}
    ahead = [os.getpid()]
    while ahead:
        for pid in children.get(ahead.pop(), ()):
            if pid not in but:
                found[pid] = stats[pid]
                ahead.append(pid)
    return found


def peak_mib(pid: int) -> float:
    """The process's peak resident memory in MiB (getrusage gives its parent's peak where that was higher)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Meter:
    """Measures within the `with`; its figures are final afterwards.

    `but` are the pids of servers that are not measured; `names` gives a pid's name in `cpu_of` and `peak_of`, where
    its descendants are counted too.
    """

    def __init__(self, *, but: Collection[int], names: Mapping[int, str]) -> None:
        self._but = frozenset(but)
        self._names = names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.cpu_seconds = 0.0
        self.cpu_of: dict[str, float] = {}
        self.peak_rss_mib = 0.0
        self.peak_of: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._ended = _reaped_seconds()
        self._before = self._cpu()
        for pid in self._before:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        now = self._cpu()
        for pid, seconds in now.items():
            spent = seconds - self._before.get(pid, 0.0)
            name = self._name(pid)
            self.cpu_of[name] = self.cpu_of.get(name, 0.0) + spent
        # The CPU that our ended children had used before the measurement does not count.
        gone = sum(seconds for pid, seconds in self._before.items() if pid not in now and self._child[pid])
        self.cpu_of["ended"] = max(0.0, _reaped_seconds() - self._ended - gone)
        self.cpu_seconds = sum(self.cpu_of.values())
        self._stop.set()
        self._thread.join()
        self._look()

    def _cpu(self) -> dict[int, float]:
        found = descendants(self._but)
        self._parent = {pid: int(stat[1]) for pid, stat in found.items()}
        self._child = getattr(self, "_child", {}) | {pid: at == os.getpid() for pid, at in self._parent.items()}
        return {pid: sum(map(int, stat[11:15])) / _TICK for pid, stat in found.items()}

    def _name(self, pid: int) -> str:
        if pid in self._names:
            return self._names[pid]
        above = self._parent.get(pid, 0)
        if above not in self._parent:
            return "other"
        name = self._name(above)
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return f"{name}'s JVM"
        return name

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        found = descendants(self._but)
        self._parent = {pid: int(stat[1]) for pid, stat in found.items()}
        total = 0.0
        for pid, stat in found.items():
            total += int(stat[21]) * _PAGE / 2**20
            with contextlib.suppress(OSError):
                name, peak = self._name(pid), peak_mib(pid)
                self.peak_of[name] = max(self.peak_of.get(name, 0.0), peak)
        self.peak_rss_mib = max(self.peak_rss_mib, total)


def _reaped_seconds() -> float:
    """The CPU seconds of this process's reaped children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
