"""What the status shows of snapshots under way: each table's split grid, and rows per second.

A grid is compact, however many chunks a table has: chunks are made in the order of their numbers, few are waiting or
being read, all others are done. It is sent only when it has changed, and now and then, since Redis may have been
emptied. The cost of a look is that of the chunks in motion and of the tables that changed.

Its form: `{"generation", "made", "total", "waiting": [number, ...], "reading": {number: reader}, "fresh": runs}`.
Numbers 1..made exist, `total` is an estimate. `fresh`: done, and in no checkpoint yet, as runs `[first, last]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutline.common.mesh.rates import RATE_WINDOW_SECONDS, Rates
from cutline.common.phases import SNAPSHOT
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.tables import Table

RATES_SHOWN = 200
AGAIN_SECONDS = 10.0
MOST_LOOKS = 200
"""At one time, since the event loop waits meanwhile; the rest comes at the next."""


@dataclass(slots=True)
class _Moving:
    """The chunks of one table that are in motion."""

    waiting: list[int] = field(default_factory=list)
    reading: dict[int, str] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)


class Grids:
    """The grids that the status has, and those that must be sent anew."""

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}
        self._seen: dict[str, Table] = {}  # tables in their snapshot, as last looked at
        self._moving: set[str] = set()  # had chunks in motion at the last look
        self._again: list[str] = []  # sent long ago, and due to be sent again
        self._again_at = 0.0

    def changed(self, enumerator: Enumerator | None, now: float) -> dict[str, str | None]:
        """The grids to send now, in JSON; None for a table whose snapshot has ended. `now` is monotonic.

        What it returns counts as sent: if Redis refuses it, call `forget`.
        """
        tables: Mapping[str, Table] = enumerator.tables if enumerator is not None else {}
        moving = _moving(enumerator) if enumerator is not None else {}
        in_snapshot = {name: table for name, table in tables.items() if table.phase == SNAPSHOT}
        looked = {name for name, table in in_snapshot.items() if self._seen.get(name) is not table}
        looked |= (self._moving | moving.keys()) & in_snapshot.keys()
        changes: dict[str, str | None] = dict.fromkeys(self._sent.keys() - in_snapshot.keys())
        later = set()
        for at, name in enumerate(sorted(looked)):
            if at >= MOST_LOOKS:
                later.add(name)
                continue
            grid = json.dumps(_grid(in_snapshot[name], moving.get(name) or _Moving()), separators=(",", ":"))
            self._seen[name] = in_snapshot[name]
            if self._sent.get(name) != grid:
                changes[name] = self._sent[name] = grid
        if now >= self._again_at and not self._again:
            self._again, self._again_at = list(self._sent), now + AGAIN_SECONDS
        for name in self._again[-MOST_LOOKS:]:
            if name in in_snapshot:
                changes.setdefault(name, self._sent[name])
        del self._again[-MOST_LOOKS:]
        for gone in self._seen.keys() - in_snapshot.keys():
            del self._seen[gone]
            self._sent.pop(gone, None)
        self._moving = moving.keys() | later
        return changes

    def forget(self) -> None:
        """Send every grid again, a few at a time."""
        self._again, self._again_at = [], 0.0


def _moving(enumerator: Enumerator) -> dict[str, _Moving]:
    found: dict[str, _Moving] = {}
    for split in enumerator.splits.todo:
        found.setdefault(split.table_id, _Moving()).waiting.append(_number(split.split_id))
    for split, reader in enumerator.splits.out.values():
        found.setdefault(split.table_id, _Moving()).reading[_number(split.split_id)] = reader
    for split_id in enumerator.splits.accepted:
        table_id, generation, number = split_id.rsplit(":", 2)
        table = enumerator.tables.get(table_id)
        if table is not None and table.phase == SNAPSHOT and table.generation == int(generation):
            found.setdefault(table_id, _Moving()).fresh.append(int(number))
    return found


def _grid(table: Table, moving: _Moving) -> dict[str, Any]:
    made = table.splitter.made if table.splitter is not None else table.splits_done
    return {
        "generation": table.generation,
        "made": made,
        "total": max(made, table.splits_total),
        "waiting": sorted(moving.waiting),
        "reading": {str(number): reader for number, reader in sorted(moving.reading.items())},
        "fresh": runs(moving.fresh),
    }


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as runs `[first, last]`, ascending."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def _number(split_id: str) -> int:
    return int(split_id.rpartition(":")[2])


class SnapshotRates:
    """Rows per second of the tables whose chunks are being read."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._counted: dict[str, tuple[Table, float]] = {}  # tables at work, when their count last grew

    def shown(self, changed: Mapping[str, Table], now: float) -> dict[str, float]:
        """The rate of each table in its snapshot of which rows arrived within the last 10 s, at most 200 of them.

        `changed` are the tables that changed since the last call, `now` is monotonic.
        """
        for name, table in changed.items():
            known = self._counted.get(name)
            if table.phase != SNAPSHOT:
                if known is not None:
                    self._drop(name)
            elif known is None or known[0].rows_done != table.rows_done:
                self._counted[name] = table, now
        for name in [name for name, (_, at) in self._counted.items() if now - at > RATE_WINDOW_SECONDS]:
            self._drop(name)
        found = {
            name: round(self._rates.observe(name, table.generation, table.rows_done, now), 1)
            for name, (table, _) in self._counted.items()
        }
        return dict(sorted(found.items(), key=lambda item: -item[1])[:RATES_SHOWN])

    def _drop(self, name: str) -> None:
        table, _ = self._counted.pop(name)
        self._rates.forget(name, table.generation)
