"""What a service counts and measures, as its status part shows it: plain numbers, which the control service renders.

Counting costs an addition, and nothing is sent but the status that is sent anyway. The numbers begin at 0 with the
object, so Prometheus takes a new epoch or a new process for a restart of the counter, as it should.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SECONDS = {
    "chunk_read": (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    "checkpoint": (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "apply": (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    "commit_to_publication": (0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0),
}
"""The upper bounds of each histogram's buckets, in seconds. The control service renders with the same table."""


class Counted(NamedTuple):
    """A number that only grows, `cutline_<name>_total`, with its labels but for pipeline and part."""

    name: str
    labels: Mapping[str, str]
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The number of values in each bucket (the last one has no bound), and their sum."""

    buckets: tuple[int, ...]
    sum: float


class Measures:
    """The counters and histograms of one part of a pipeline since its start. Any thread may call it: a lost update of
    two that count at the same moment is harmless."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, name: str, more: float = 1) -> None:
        """Add to the counter `cutline_<name>_total`; the control service must know the name."""
        self._counts[name] = self._counts.get(name, 0) + more

    def observe(self, name: str, seconds: float) -> None:
        """Add a duration to the histogram `cutline_<name>_seconds`, one of SECONDS."""
        bounds = SECONDS[name]
        buckets = self._buckets.setdefault(name, [0] * (len(bounds) + 1))
        buckets[bisect_left(bounds, seconds)] += 1
        self._sums[name] = self._sums.get(name, 0.0) + seconds

    def counters(self) -> tuple[Counted, ...]:
        """Return what was counted, for the status."""
        return tuple(Counted(name, {}, number) for name, number in list(self._counts.items()))

    def histograms(self) -> dict[str, Histogram]:
        """Return what was measured, by name, for the status."""
        return {
            name: Histogram(buckets=tuple(buckets), sum=round(self._sums[name], 6))
            for name, buckets in list(self._buckets.items())
        }


OTHERS = "(others)"
"""The label of all tables without a series of their own."""
_RANK_SECONDS = 60.0
_FADE = 0.5


class TableRows:
    """Rows and bytes by table and operation, with a bounded number of series: at most `most` tables have their own.

    A table gets a series of its own while there is room; later, each minute, one that has become far more active takes
    the place of the least active one. Every series only grows, since what a table without a series adds stays counted
    under OTHERS, so rates are right across such a change.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._own: dict[str, dict[str, list[int]]] = {}  # table -> operation -> rows, bytes
        self._others: dict[str, list[int]] = {}
        self._recent: dict[str, float] = {}  # rows of each table, the older ones counting less
        self._ranked_at: float | None = None

    def add(self, table: str, rows: Mapping[str, int], size: int) -> None:
        """Count rows by operation; `size`, the bytes of all of them, is divided by the number of rows."""
        total = sum(rows.values())
        if not total:
            return
        self._recent[table] = self._recent.get(table, 0.0) + total
        series = self._own.get(table)
        if series is None:
            series = self._others if len(self._own) >= self._most else self._own.setdefault(table, {})
        for operation, number in rows.items():
            counted = series.setdefault(operation, [0, 0])
            counted[0] += number
            counted[1] += size * number // total

    def rank(self, now: float) -> None:
        """Give the tables that are most active now a series of their own; call it often, it acts each minute."""
        if self._ranked_at is not None and now - self._ranked_at < _RANK_SECONDS:
            return
        self._ranked_at = now
        recent = {table: rows * _FADE for table, rows in list(self._recent.items()) if rows * _FADE >= 1}
        self._recent = recent
        if len(self._own) < self._most or not self._most:
            return
        least = sorted(self._own, key=lambda table: recent.get(table, 0.0))
        eager = sorted(recent.keys() - self._own.keys(), key=lambda table: recent[table], reverse=True)
        for idle, active in zip(least, eager, strict=False):
            if recent[active] <= 2 * recent.get(idle, 0.0):
                break
            del self._own[idle]
            self._own[active] = {}

    def shown(self) -> tuple[Counted, ...]:
        """Return the counters `staged_rows` and `staged_bytes` for the status."""
        series = [*((table, counted) for table, counted in list(self._own.items())), (OTHERS, self._others)]
        return tuple(
            Counted(name, {"table": table, "operation": operation}, numbers[at])
            for table, counted in series
            for operation, numbers in list(counted.items())
            for at, name in enumerate(("staged_rows", "staged_bytes"))
        )
