"""What the engine of the simulated server has, behind its binlog."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutline.common.gtids import GtidSet
from tests.simulation.source.transactions import Row, State, Txn


@dataclass(slots=True)
class Engine:
    """A commit is flushed to the binlog, then visible here, then (MySQL) in `executed`."""

    visible: State  # what a SELECT sees
    locks: dict[tuple[str, Row], Txn | int] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)  # tables under DDL
    prepared: dict[int, Txn] = field(default_factory=dict)  # XA, by xid
    pending: list[Txn] = field(default_factory=list)  # flushed, and not yet executed
    shows: int = 0
    executed: GtidSet = GtidSet.EMPTY
