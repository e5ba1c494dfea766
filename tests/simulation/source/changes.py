"""Row changes as people make them: on rows that are not locked; amounts move between tables, and their sum stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.source.transactions import KINDS, Change, Row, State

if TYPE_CHECKING:
    from tests.simulation.source.server import SimulatedSource

BOUND = {"shop.a": "shop.b", "shop.b": "shop.a"}
"""The two tables of accounts, whose amounts add up to a constant."""


class Changes:
    """Draws the row changes of transactions."""

    def __init__(self, source: SimulatedSource) -> None:
        self.source = source
        self.stamps = 0

    def drawn(self, size: int) -> tuple[Change, ...]:
        """The changes of one transaction; up to so many, or none while every table is under DDL."""
        tables = [t for t in self.source.tables if t not in self.source.engine.frozen]
        if not tables:
            return ()
        drawing = _Drawing(self, tables)
        for _ in range(size):
            drawing.change()
        return tuple(drawing.changes)

    def new_key(self, table: str, i: int) -> Row:
        """The key number `i` of a table."""
        if table == "shop.pair":
            return (i % 7, i)
        if table == "shop.text":
            return (f"k{i * 37 % 997:03d}{i}",)
        return (i,)

    def stamp(self) -> int:
        """The number of a row's version, which grows over all tables."""
        self.stamps += 1
        return self.stamps


class _Drawing:
    """The changes of one transaction so far, and the rows as it sees them."""

    def __init__(self, by: Changes, tables: list[str]) -> None:
        self._by, self._source, self._rng = by, by.source, by.source.rng
        self._tables = tables
        self._state, self._columns = by.source.latest()
        self._local: State = {}
        self.changes: list[Change] = []

    def change(self) -> None:
        """Draw one step: one row of a table, or one of each of the accounts; none where no row is free."""
        rng = self._rng
        table = rng.choice(self._tables)
        width = len(KINDS[table].key)
        chance = rng.random()
        if KINDS[table].keyless and chance < 0.99:
            chance = 0.0
        if chance < 0.2:
            if (key := self._fresh(table)) is not None:
                extra = tuple(rng.randrange(9) for _ in self._columns[table][width + 2 :])
                amount = 0 if table in BOUND else rng.randrange(100)
                self._put(table, None, (*key, amount, self._by.stamp(), *extra))
        elif (row := self._pick(table)) is None:
            return
        elif table in BOUND:
            self._move(table, row, chance)
        elif chance < 0.35:
            self._put(table, row, None)
        elif chance > 0.9:
            self._new_key(table, row)
        else:
            self._put(table, row, self._with_amount(table, row, rng.randrange(100)))

    def _move(self, table: str, row: Row, chance: float) -> None:
        """An amount goes to a row of the other table of accounts; or the row gets another key."""
        other, width = BOUND[table], len(KINDS[table].key)
        target = self._pick(other) if other in self._tables else None
        if target is None or chance > 0.9:
            self._new_key(table, row)
            return
        moved = row[width] if chance < 0.35 else self._rng.randrange(0, max(1, row[width] + 1))
        at = self._columns[other].index("amount")
        self._put(table, row, None if chance < 0.35 else self._with_amount(table, row, row[width] - moved))
        self._put(other, target, self._with_amount(other, target, target[at] + moved))
        self._source.count["transaction over two tables"] += 1

    def _new_key(self, table: str, row: Row) -> None:
        width = len(KINDS[table].key)
        if (key := self._fresh(table)) is not None:
            self._put(table, row, (*key, row[width], self._by.stamp(), *row[width + 2 :]))
            self._source.count["key update"] += 1

    def _put(self, table: str, before: Row | None, after: Row | None) -> None:
        width = len(KINDS[table].key)
        self.changes.append(Change(table, before, after))
        rows = self._local.setdefault(table, dict(self._state[table]))
        if before is not None:
            del rows[before[:width]]
        if after is not None:
            rows[after[:width]] = after

    def _rows(self, table: str) -> dict[Row, Row]:
        return self._local.get(table, self._state[table])

    def _pick(self, table: str) -> Row | None:
        rows = self._rows(table)
        free = [key for key in rows if (table, key) not in self._source.engine.locks]
        return rows[self._rng.choice(free)] if free else None

    def _fresh(self, table: str) -> Row | None:
        for _ in range(4):
            key = self._by.new_key(table, self._rng.randrange(0, 240))
            if key not in self._rows(table) and (table, key) not in self._source.engine.locks:
                return key
        return None

    def _with_amount(self, table: str, row: Row, amount: int) -> Row:
        at = self._columns[table].index("amount")
        return (*row[:at], amount, self._by.stamp(), *row[at + 2 :])
