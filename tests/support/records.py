"""Records of a store with what a test doesn't care about filled in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cutline.common.mesh.machine import State
from cutline.common.positions import Position
from cutline.common.schema import TableSchema
from cutline.common.store.lives import Life
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, Members, PartRef, StagedFile, TableEntry
from cutline.common.store.store import PipelineStore, Store
from tests.support.causes import because

PART = PartRef(path="parts/p", sha256="", size=1)
LIFE = Life(name="shop", number=1, id="0" * 12, folder=f"shop.{'0' * 12}")


def begun(url: str, name: str = "shop") -> PipelineStore:
    """A pipeline without a definition."""
    store = Store(url)
    return store.open(store._lives.begin(name))


def entries(store: PipelineStore, after: int = 0) -> Iterator[Entry]:
    """The entries that still exist in the slots above `after`, in order, read one by one."""
    for slot in store.slots():
        if slot > after and (entry := store.entry(slot)) is not None:  # else removed in the meantime
            yield entry


def epoch(slot: int, base: int | None = None, nonce: str = "n", **other: Any) -> EpochEntry:
    """An epoch that begins at `slot`."""
    members = Members(enumerator="e1", by_role={"reader": ("r1",), "writer": ("w1",)})
    defaults = {"leader": "e1", "members": members, "cause": because("test"), "written_at": 0.0}
    return EpochEntry(slot=slot, base=base, nonce=nonce, **(defaults | other))


def checkpoint(slot: int, epoch: int = 1, **other: Any) -> CheckpointEntry:
    """A checkpoint of `epoch`, at offset `slot`."""
    known: dict[str, Any] = {
        "nonce": "n",
        "kept": False,
        "inside": False,
        "position": place(slot),
        "source_time": 1000.0 + slot,
        "started_at": 0.0,
        "written_at": 0.0,
        "parts": {},
        "staged": (),
        "tables": {},
    }
    return CheckpointEntry(slot=slot, epoch=epoch, **(known | other))


def place(offset: int) -> Position:
    """A position."""
    return Position(server="s", file="binlog.000001", offset=offset)


def staged(table: str = "shop.orders", **other: Any) -> StagedFile:
    """A file of changes of a table."""
    known = {"kind": "changes", "path": "staged/f", "sha256": "", "size": 1, "rows": 1, "generation": 1, "schema": "h"}
    return StagedFile(table=table, **(known | other))


def table(**other: Any) -> TableEntry:
    """A live table."""
    known: dict[str, Any] = {"generation": 1, "phase": "live", "schema": "h", "show": True}
    return TableEntry(**(known | other))


def read_back(state: State, *schemas: TableSchema) -> State:
    """A state as it comes back from the store, which has these schemas too."""
    head, values = json.loads(json.dumps([state.head, state.values]))
    return State(head=head, values=values, schemas=(*state.schemas, *schemas))
