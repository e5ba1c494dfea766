"""A pipeline's publications, as the API asks for them: what the lake shows of each table, and which one holds a time or
a GTID.

Publications are found by bisection: their numbers, and the times that they hold, grow together. After a restore to an
older checkpoint the source times begin again there, and a time that two publications hold is found in either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cutline.common.errors import ConfigError
from cutline.common.gtids import GtidSet, MariaGtid, parse_gtids
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore

LOOKED_BACK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The last publication whose cut of a table `main` shows."""

    n: int
    published_at: float
    source_time: float | None


class Published:
    """The publications of one pipeline; `refresh` and the searches block, any thread may call them."""

    def __init__(self, store: PipelineStore) -> None:
        """Nothing is read before the first `refresh`."""
        self.newest: Publication | None = None
        self.shown: Mapping[str, Shown] = {}
        self._store = store
        self._lock = threading.Lock()

    def refresh(self, expected: int | None) -> None:
        """Take the newest publication; `expected` is its number by the status, None: unknown."""
        with self._lock:
            if self.newest is not None and self.newest.n == expected:
                return
            numbers = self._store.publication_numbers()
            if not numbers or (self.newest is not None and numbers[-1] == self.newest.n):
                return
            if self.newest is not None and numbers[-1] < self.newest.n:  # the pipeline was deleted, and defined again
                self.newest = None
            record = self._store.publication(numbers[-1])
            if record is None:
                return
            known = self.shown
            if self.newest is None:
                known = self._looked_back(record, numbers[:-1])
            fresh = Shown(n=record.n, published_at=record.published_at, source_time=record.source_time)
            self.shown = {
                table: fresh if published.shown else known[table]
                for table, published in record.tables.items()
                if published.shown or table in known
            }
            self.newest = record

    def _looked_back(self, record: Publication, numbers: list[int]) -> dict[str, Shown]:
        """The last publications that showed the tables that `record` does not show at its own cut."""
        found: dict[str, Shown] = {}
        missing = {table for table, published in record.tables.items() if published.main and not published.shown}
        for n in numbers[: -LOOKED_BACK - 1 : -1]:
            if not missing or (older := self._store.publication(n)) is None:
                break
            shown = {table for table in missing if table in older.tables and older.tables[table].shown}
            at = Shown(n=older.n, published_at=older.published_at, source_time=older.source_time)
            found |= dict.fromkeys(shown, at)
            missing -= shown
        return found

    def numbers(self) -> list[int]:
        """The numbers of all retained publications, oldest first."""
        return self._store.publication_numbers()

    def get(self, n: int) -> Publication | None:
        """Publication `n`."""
        return self._store.publication(n)

    def at(self, moment: float) -> Publication | None:
        """What the lake showed at this time (seconds since 1970): the newest publication made until then."""
        after = self._first(lambda record: record.published_at > moment)
        numbers = [n for n in self.numbers() if after is None or n < after.n]
        return self._store.publication(numbers[-1]) if numbers else None

    def holding_time(self, moment: float) -> Publication | None:
        """The first publication that has every change committed up to this time; None if there is none yet."""
        return self._first(lambda record: record.source_time is not None and record.source_time >= moment)

    def holding_gtid(self, text: str) -> Publication | None:
        """The first publication that has all of these GTIDs. ConfigError if the text is malformed."""
        try:
            wanted = parse_gtids(text)
        except ValueError as error:
            raise ConfigError(f"{error}", "write a GTID or a GTID set as the source prints it") from error
        if wanted is None:
            raise ConfigError("the GTID is empty", "write a GTID or a GTID set as the source prints it")
        return self._first(lambda record: _holds(record, wanted))

    def _first(self, reached: Callable[[Publication], bool]) -> Publication | None:
        numbers = self.numbers()
        low, high, found = 0, len(numbers), None
        while low < high:
            middle = (low + high) // 2
            record = self._store.publication(numbers[middle])
            if record is not None and reached(record):
                found, high = record, middle
            else:
                low = middle + 1
        return found


def _holds(record: Publication, wanted: GtidSet | MariaGtid) -> bool:
    have = record.position.executed if record.position is not None else None
    if isinstance(have, GtidSet) and isinstance(wanted, GtidSet):
        return wanted <= have
    if isinstance(have, MariaGtid) and isinstance(wanted, MariaGtid):
        return wanted <= have
    return False
