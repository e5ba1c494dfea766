"""The chunks of tables that are being read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from cutline.common.errors import Unavailable
from cutline.common.phases import SNAPSHOT
from cutline.services.control.api.dependencies import Known, Shared, TableName, router
from cutline.services.control.api.models import SplitsView
from cutline.services.control.api.tables import unknown_table
from cutline.services.control.watch import PipelineWatch, Status

routes = router("tables")
CellState = Literal["lake", "done", "reading", "waiting"]


class Run(BaseModel):
    """The chunks `first` to `last`, which are all in this state: `lake` (applied to the lake), `done` (read, not yet
    applied), `reading` (by `reader`), `waiting`."""

    first: int
    last: int
    state: CellState
    reader: str | None = None


class GridView(BaseModel):
    """Every chunk of a table's snapshot, as runs of chunks in the same state, in the order of their numbers.

    `total` is an estimate until the last chunk is made (`made` exist). Once the snapshot is over all are done.
    """

    table: str
    generation: int
    made: int
    total: int
    runs: list[Run]
    current: bool = Field(description="whether a leader reports now")
    as_of: float | None


@routes.get("/pipelines/{pipeline}/splits", operation_id="list_splits")
async def splits(found: Known, control: Shared) -> list[SplitsView]:
    """How many chunks of each table have been read."""
    status = await control.watches.find(found).status()
    return [
        SplitsView(
            table=name,
            generation=table.generation,
            done=table.splits_done,
            total=table.splits_total,
            current=status.current,
            as_of=status.as_of,
        )
        for name, table in sorted(status.tables.items())
    ]


@routes.get("/pipelines/{pipeline}/tables/{table}/splits", operation_id="get_grid")
async def grid(found: Known, control: Shared, table: TableName) -> GridView:
    """Return the state of every chunk of a table's snapshot."""
    watch = control.watches.find(found)
    status = await watch.status()
    known = status.tables.get(table)
    if known is None:
        raise unknown_table(found.name, table)
    generation, done = known.generation, known.splits_done or 0
    given = await control.registry.splits(found.key, table) if known.phase == SNAPSHOT else None
    if given is None or given["generation"] != generation:
        total = max(done, known.splits_total or 0)
        given = {"made": done, "total": total, "waiting": [], "reading": {}, "fresh": []}
    behind = await _not_in_lake(watch, status, table, generation, given["fresh"])
    return GridView(
        table=table,
        generation=generation,
        made=given["made"],
        total=given["total"],
        runs=runs(given, behind),
        current=status.current,
        as_of=status.as_of,
    )


async def _not_in_lake(
    watch: PipelineWatch, status: Status, table: str, generation: int, fresh: Iterable[tuple[int, int]]
) -> set[int]:
    """The numbers of chunks that are read and not yet applied: in no checkpoint, or in one that is not applied."""
    behind = {number for first, last in fresh for number in range(first, last + 1)}
    applied = status.spark.applied or 0
    try:
        window = await watch.journal()
    except Unavailable:
        return behind
    for checkpoint in reversed(list(window.checkpoints.values())):
        if checkpoint.slot <= applied:
            break
        behind.update(checkpoint.chunks.get((table, generation), ()))
    return behind


def runs(grid: Mapping[str, Any], behind: set[int]) -> list[Run]:
    """The grid as runs. Costs what is in motion, however many chunks there are."""
    cells: dict[int, tuple[CellState, str | None]] = {number: ("done", None) for number in behind}
    cells |= {number: ("waiting", None) for number in grid["waiting"]}
    cells |= {int(number): ("reading", reader) for number, reader in grid["reading"].items()}
    found: list[Run] = []

    def add(first: int, last: int, state: CellState, reader: str | None = None) -> None:
        if found and (found[-1].state, found[-1].reader) == (state, reader):
            found[-1].last = last
        elif first <= last:
            found.append(Run(first=first, last=last, state=state, reader=reader))

    at = 1
    for number in sorted(number for number in cells if number <= grid["made"]):
        if at < number:
            add(at, number - 1, "lake")
        add(number, number, *cells[number])
        at = number + 1
    if at <= grid["made"]:
        add(at, grid["made"], "lake")
    if grid["made"] < grid["total"]:
        add(grid["made"] + 1, grid["total"], "waiting")
    return found
