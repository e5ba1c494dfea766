"""A simulated server's binlog, and the model of it: what a position has taken, and what a cursor must give out."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cutline.common.gtids import GtidSet, parse_gtids
from cutline.common.positions import FilePosition, Low, Position
from cutline.services.sources.mysql.binlog.scanner import INSIDE_BITS
from tests.simulation.binlog.history import (
    MYSQL,
    SID,
    DumpedTxn,
    History,
    Out,
    executed_of,
)
from tests.simulation.clock import SimulatedClock, Wrong


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """What a position has taken: the transactions, as bits by their numbers; and of the one that it is inside of, the
    row events and the row changes of the next."""

    taken: int
    txn: DumpedTxn | None = None
    events: int = 0
    rows: int = 0

    def not_before(self, other: ModelPlace) -> bool:
        """Whether all that `other` has taken is taken here."""
        if other.taken & ~self.taken:
            return False
        if other.txn is None or self.taken >> other.txn.number & 1:
            return True
        return self.txn is other.txn and (self.events, self.rows) >= (other.events, other.rows)


class Binlog:
    """One server's history; what of it is flushed, grows with the clock."""

    def __init__(self, rng: random.Random, clock: SimulatedClock, count: Counter[str]) -> None:
        history = History(rng, clock, count)
        self.rng, self.clock, self.count = rng, clock, count
        self.flavour, self.mysql, self.gtid = history.flavour, history.mysql, history.gtid
        self.checksum, self.identity = history.checksum, history.identity
        self.schemas, self.tables = history.schemas, history.tables
        self.txns, self.pieces = history.txns, history.pieces
        self.flushed, self.starts = history.flushed, history.starts
        self._passed = 0  # of the moments of `flushed`, how many have passed
        self._places: dict[str, int] = {}
        self._ranks = {file: i << 48 for i, file in enumerate(self.starts)}  # of a file's first byte among all bytes
        whole, self._torn = ([t for t in self.txns if (t.kind == "torn") == is_torn] for is_torn in (False, True))
        self._starts = [self._ranks[t.file] + t.start for t in self.txns]
        self._ends = [self._ranks[t.file] + t.end for t in whole]
        self._prefixes = list(accumulate((1 << t.number for t in whole), int.__or__, initial=0))

    def available(self) -> int:
        """How many pieces are flushed by now."""
        while self._passed < len(self.flushed) and self.flushed[self._passed][0] <= self.clock.now:
            self._passed += 1
        return self.flushed[self._passed - 1][1] if self._passed else 2

    def all_there(self) -> bool:
        return self.available() == len(self.pieces)

    def end(self) -> FilePosition:
        """The end of what is flushed."""
        last = self.pieces[self.available() - 1]
        return FilePosition(last.file, last.end)

    def committed(self) -> list[DumpedTxn]:
        """Every transaction that is whole and flushed."""
        bits = self.before(self.end())
        return [t for t in self.txns if bits >> t.number & 1]

    def executed(self, many: int) -> str:
        """The GTIDs of the first so many transactions, as the server prints them."""
        return self.executed_of(self.txns[:many])

    def executed_of(self, txns: Sequence[DumpedTxn]) -> str:
        """The GTIDs of these transactions."""
        return executed_of(txns, mysql=self.mysql)

    def some_gtids(self) -> str | None:
        """A GTID set that a person may name: of each server or domain the first so many."""
        if not self.gtid:
            return None
        many = [self.rng.randrange(len(self.committed()) + 1) for _ in range(3)]
        found = [t for t in self.committed() if t.number < many[_stretch(t.gtid or "")]]
        return self.executed_of(found)

    def bits(self, gtids: str) -> int:
        """The transactions of a GTID set, as bits."""
        if gtids not in self._places:
            taken, made = parse_gtids(gtids), 0
            if taken is not None:
                for txn in self.txns:
                    if txn.gtid and txn.kind != "torn" and taken.contains(txn.gtid):
                        made |= 1 << txn.number
            self._places[gtids] = made
        return self._places[gtids]

    def before(self, at: FilePosition) -> int:
        """The transactions that end at or before a place, as bits."""
        many = bisect_right(self._ends, at.offset + self._ranks.get(at.file, 0))
        return self._prefixes[many]

    def place(self, position: Position, *, given: bool = True) -> ModelPlace:
        """What a position has taken. Wrong if it is no place; `given`: by a cursor, which knows all of it."""
        at = position.file_position
        taken, passed = self.bits(position.gtids), self.before(at)
        here = bisect_right(self._starts, at.offset + self._ranks[at.file]) - 1
        around = [t for t in self.txns[max(here, 0) : here + 1] if t.file == at.file and at.offset < t.end]
        if given and self.gtid and (lost := passed & ~taken):
            raise Wrong(f"{position} has not the GTIDs of transactions {lost:b}, which end before it")
        if self.flavour != MYSQL:  # a cursor begins at a low, and MariaDB's lows name a file and an offset alone
            taken |= passed
        if not position.rows:
            if around and around[0].start < at.offset and around[0].end < 1 << 62:
                raise Wrong(f"{position} is said to be between two transactions, inside {around[0]}")
            return ModelPlace(taken)
        if not around or around[0].start != at.offset:
            raise Wrong(f"{position} is inside a transaction, and none starts there")
        events, rows = position.rows >> INSIDE_BITS, position.rows & (1 << INSIDE_BITS) - 1
        if taken >> around[0].number & 1:
            raise Wrong(f"{position} has the GTID of the transaction that it is inside of")
        whole = around[0].rows
        if events > len(whole) or (rows and (events == len(whole) or rows > len(whole[events][1]))):
            raise Wrong(f"{position} is behind the last row of a transaction of {len(whole)} row events")
        return ModelPlace(taken, around[0], events, rows)

    def low_bits(self, low: Low) -> int:
        """The transactions that a low watermark covers, as bits; those that were never committed too."""
        if self.flavour == MYSQL:
            taken = GtidSet.parse(low.gtids)
            torn = [t for t in self._torn if taken.contains(t.gtid or "")]
        else:
            torn = [t for t in self._torn if FilePosition(t.file, t.start) < FilePosition(low.file, low.offset)]
        whole = self.bits(low.gtids) if self.flavour == MYSQL else self.before(FilePosition(low.file, low.offset))
        return whole | sum(1 << t.number for t in torn)

    def changes(self, after: ModelPlace, to: ModelPlace, lows: dict[str, int]) -> list[tuple[str, Out]]:
        """What a cursor has to give out between two places, in order, of the tables in `lows`, each with what its low
        covers."""
        found: list[tuple[str, Out]] = []
        for txn in self.txns:
            bit = 1 << txn.number
            whole = to.taken & ~after.taken & bit
            if not (whole or to.txn is txn) or txn.kind in ("prepare", "rollback", "statement"):
                continue
            first = (after.events, after.rows) if after.txn is txn else (0, 0)
            last = (len(txn.rows), 0) if whole else (to.events, to.rows)
            for i, (table, outs) in enumerate(txn.rows):
                if table not in lows or lows[table] & bit:
                    continue
                for k, row in enumerate(outs):
                    if first <= (i, k) < last:
                        found += [(table, out) for out in row]
        return found


def _stretch(gtid: str) -> int:
    """By which of three limits a GTID goes: its server's, or its domain's."""
    return int(gtid[0]) if "-1-" in gtid and ":" not in gtid else SID.index(gtid.partition(":")[0])
