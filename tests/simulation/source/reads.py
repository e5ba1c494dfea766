"""What SELECTs see, and the watermarks around them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import High, Low, Position
from tests.simulation.source.transactions import (
    KINDS,
    MARIADB,
    MYSQL,
    Change,
    Row,
)

if TYPE_CHECKING:
    from tests.simulation.source.server import SimulatedSource

AGE_SECONDS = 4.0  # in the place of the 60 s that a flushed position ages before it may be a low


class Reads:
    """What SELECTs see, and the watermarks around them."""

    def __init__(self, source: SimulatedSource) -> None:
        self.source = source
        self.seen_flushed: list[tuple[float, Position]] = []  # when, and where

    def low(self, now: float) -> Low | None:
        """A low watermark as the flavour takes it, or None if it can't be taken yet."""
        source = self.source
        if source.engine.prepared:
            source.count["XA stands prepared when a low is wanted"] += 1
            return None
        if source.flavour == MYSQL:
            return Low(server=source.server, file=source.place[0], offset=4, gtids=str(source.engine.executed))
        if source.flavour == MARIADB:
            assert source.ordered
            last = len(source.log)
            while last and not source.log[last - 1].visible:
                last -= 1
            first = next(iter(source.boundary))
            file, offset = (source.log[last - 1].end_file, source.log[last - 1].end) if last else first
            gtids = next((t.gtid for t in reversed(source.log[:last]) if t.gtid), "") or ""
            return Low(server=source.server, file=file, offset=offset, gtids=gtids)
        aged = [p for at, p in self.seen_flushed if at <= now - AGE_SECONDS and p.server == source.server]
        if not aged:
            source.count["low has to age"] += 1
            return None
        return Low(server=aged[-1].server, file=aged[-1].file, offset=aged[-1].offset)

    def note_flushed(self, now: float) -> None:
        """Remember the flushed position, to be a low once it has aged."""
        self.seen_flushed = [*self.seen_flushed[-20:], (now, self.source.end())]

    def literal(self, table: str, key: Row) -> tuple[str, ...]:
        return tuple(str(part) for part in key)

    def native(self, table: str, bound: Iterable[Any] | None) -> Row | None:
        if bound is None:
            return None
        kinds = KINDS[table].key
        return tuple(
            part if kind.startswith("varchar") else int(part) for part, (_, kind) in zip(bound, kinds, strict=True)
        )

    def inside(self, table: str, key: Row, start: Any, end: Any) -> bool:
        """start <= key < end, compared as the server does."""
        first, last = self.native(table, start), self.native(table, end)
        return (first is None or first <= key) and (last is None or key < last)

    def select(self, split: SnapshotSplit) -> dict[Row, Row]:
        """The rows that a SELECT of the chunk sees now."""
        source = self.source
        ahead = any(not t.visible and t.kind in ("rows", "commit", "ddl") for t in source.engine.pending)
        source.count["SELECT while a flushed commit is not visible"] += ahead
        source.count["SELECT sees a commit that gtid_executed lacks"] += any(t.visible for t in source.engine.pending)
        found = source.engine.visible[split.table_id]
        return {k: r for k, r in found.items() if self.inside(split.table_id, k, split.split_start, split.split_end)}

    def window(self, table: str, low: Low, high: High) -> list[Change] | None:
        """The changes of a table in (low, high]; None if a DDL is among them."""
        source = self.source
        found: list[Change] = []
        for txn in source.log:
            if txn.kind == "rotate" or low.covers(server=source.server, end=txn.end_place, gtid=txn.gtid):
                continue
            if txn.end_place > high.file_position:
                break
            if txn.kind == "ddl" and txn.table == table:
                return None
            found += [change for change in source.changes_of(txn) if change.table == table]
        return found

    def rebuilt(self, table: str, low: Low) -> bool:
        """Whether a DDL since `low` made the table anew. A SELECT in a snapshot of that time is then refused (1412);
        where columns were added or dropped in place it is not, and gives the table as it looks now."""
        source = self.source
        return any(
            txn.table == table
            and txn.ddl in ("truncate", "unlogged")
            and not low.covers(server=source.server, end=txn.end_place, gtid=txn.gtid)
            for txn in source.log
        )

    def overlay(self, split: SnapshotSplit, rows: dict[Row, Row], low: Low, high: High) -> dict[Row, Row] | None:
        """`exact`: the chunk's changes in (low, high] laid over its rows; None if a DDL is among them."""
        source = self.source
        changes = self.window(split.table_id, low, high)
        if changes is None:
            source.count["exact: DDL between low and high"] += 1
            return None
        rows = dict(rows)
        width = len(KINDS[split.table_id].key)
        for change in changes:
            source.count["exact: change laid over a chunk"] += 1
            for row, gone in ((change.before, True), (change.after, False)):
                if row is not None and self.inside(split.table_id, row[:width], split.split_start, split.split_end):
                    rows.pop(row[:width], None)
                    if not gone:
                        rows[row[:width]] = row
        return rows
