"""The tables of the simulated source, and what its binlog has of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cutline.common.positions import FilePosition, Stop

MYSQL, MARIADB, PLAIN = "mysql with GTID", "mariadb", "mysql without GTID"
HIDES_SECONDS = 2.5  # the longest that a commit is flushed and not visible
SUM = 10_000  # the constant sum of the amounts of the two accounts tables

Row = tuple[Any, ...]
State = dict[str, dict[Row, Row]]  # table -> key -> row


@dataclass(frozen=True, slots=True)
class Change:
    """One row change, with full images; an insert has no `before`, a delete no `after`."""

    table: str
    before: Row | None
    after: Row | None


@dataclass(slots=True)
class Txn:
    """One item of the binlog: `rows`, `prepare`, `commit`, `rollback` (XA), `ddl`, `rotate` or `foreign`."""

    kind: str
    gtid: str | None
    changes: tuple[Change, ...] = ()
    table: str = ""
    ddl: str = ""  # add, drop, truncate, unlogged
    column: str = ""
    xid: int = 0
    at: float = 0.0
    file: str = ""
    start: int = 0
    end_file: str = ""
    end: int = 0
    state: State = field(default_factory=dict)  # of the whole source after it, in binlog order
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each table after it
    visible: bool = False
    shown: int = 0  # place in the order in which commits became visible
    executed: bool = False

    @property
    def end_place(self) -> FilePosition:
        return FilePosition(self.end_file, self.end)

    def behind(self, stop: Stop, server: str) -> bool:
        """Whether it begins after the stop."""
        if stop.time_us is not None:
            return int(self.at * 1e6) >= stop.time_us
        return bool(stop.file) and stop.server == server and FilePosition(self.file, self.start) >= FilePosition(
            stop.file, stop.offset
        )  # fmt: skip


@dataclass(slots=True)
class Kind:
    """A kind of table: its key columns with types, and how it is split. `keyless`: the catalogue shows no key."""

    key: tuple[tuple[str, str], ...]
    integer: bool
    keyless: bool = False


KINDS = {
    "shop.a": Kind((("id", "bigint"),), True),
    "shop.b": Kind((("id", "int"),), True),
    "shop.pair": Kind((("x", "int"), ("y", "int")), False),
    "shop.text": Kind((("name", "varchar(40)"),), False),
    "shop.log": Kind((("id", "bigint"),), True, keyless=True),
}
FEW = tuple(sorted(KINDS))
KINDS |= {f"shop.n{i}": Kind((("id", "bigint"),), True) for i in range(8)}
"""Of `FEW` most worlds have some; a few worlds have more tables."""
