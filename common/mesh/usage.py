"""Memory and CPU of this process and its children (Spark's JVM is one), as Linux counts them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

REFRESH_SECONDS = 15.0


class Usage:
    """The process's use of memory and CPU, looked at each 15 s at most: a note that repeats it stays the same between.

    Numbers are rounded (MiB, seconds), since a changed note needs room in Redis and an unchanged one needs none.
    None where there is no /proc.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._rss: int | None = None
        self._cpu: float | None = None

    def look(self) -> tuple[int | None, float | None]:
        """The resident bytes, and the seconds of CPU so far, of the process and all its descendants."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH_SECONDS
            found = [figures for pid in _family(os.getpid()) if (figures := _figures(pid)) is not None]
            if found:
                self._rss = sum(rss for rss, _ in found) >> 20 << 20
                self._cpu = float(round(sum(cpu for _, cpu in found)))
        return self._rss, self._cpu


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    family, todo = [], [pid]
    while todo:
        pid = todo.pop()
        family.append(pid)
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    todo += map(int, (task / "children").read_text().split())
    return family


def _figures(pid: int) -> tuple[int, float] | None:
    """Resident bytes and seconds of CPU of a process; None if it has ended."""
    try:
        # The name, in parentheses, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")
