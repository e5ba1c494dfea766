"""The checkpoints of a pipeline: each part's size, the marker's way through the mesh, apply and publication."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field

from cutline.common.status.pipeline_status import Mark
from cutline.services.control.api.dependencies import CheckpointNumber, Known, Shared, router
from cutline.services.control.api.models import CheckpointView
from cutline.services.control.api.paging import Newest
from cutline.services.control.api.problems import Refused
from cutline.services.control.watch import PipelineWatch, Status
from cutline.services.control.window import Checkpoint

routes = router("checkpoints")


class StagedView(BaseModel):
    """What one table staged in a checkpoint."""

    table: str
    files: int
    rows: int
    bytes: int


class CheckpointDetail(CheckpointView):
    """A checkpoint with the tables that staged most (50 of them, largest first)."""

    tables: list[StagedView]


@routes.get("/pipelines/{pipeline}/checkpoints", operation_id="list_checkpoints")
async def checkpoints(found: Known, control: Shared, page: Newest) -> list[CheckpointView]:
    """List the checkpoints among the last 500 entries of the journal, newest first."""
    watch = control.watches.find(found)
    window, view = await watch.journal(), await viewer(watch)
    listed = page.take(list(window.checkpoints.values())[::-1], lambda seen: seen.slot, newest_first=True)
    return [CheckpointView(**view(seen)) for seen in listed]


@routes.get("/pipelines/{pipeline}/checkpoints/{number}", operation_id="get_checkpoint")
async def checkpoint(
    found: Known, control: Shared, number: CheckpointNumber
) -> CheckpointDetail:
    """Return one of the checkpoints that the list has."""
    watch = control.watches.find(found)
    seen = (await watch.journal()).checkpoints.get(number)
    if seen is None:
        raise unknown_checkpoint(found.name, number)
    tables = [
        StagedView(table=staged.table, files=staged.files, rows=staged.rows, bytes=staged.size)
        for staged in seen.largest
    ]
    return CheckpointDetail(**(await viewer(watch))(seen), tables=tables)


def unknown_checkpoint(pipeline: str, number: int) -> Refused:
    """The refusal of a request about a checkpoint that the journal does not have, or no longer."""
    return Refused(
        404,
        f"{number} is no checkpoint among the newest of pipeline {pipeline}",
        f"GET /v1/pipelines/{pipeline}/checkpoints lists them",
    )


class _Viewer:
    """Makes the fields of a CheckpointView."""

    def __init__(self, status: Status, published: int, released: Set[int]) -> None:
        self._published, self._released = published, released
        self._current, self._as_of = status.current, status.as_of
        self._applies = status.spark.applies
        self._marks: dict[int, dict[str, Mark]] = {}
        for member, part in status.parts.in_epoch().items():
            for mark in part.marks:
                self._marks.setdefault(mark.checkpoint, {})[member] = mark

    def __call__(self, seen: Checkpoint) -> dict[str, Any]:
        marks = self._marks.get(seen.slot, {})
        return {
            "number": seen.slot,
            "name": seen.name,
            "epoch": seen.epoch,
            "kept": seen.kept and seen.slot not in self._released,
            "inside": seen.inside,
            "position": seen.position,
            "source_time": seen.source_time,
            "started_at": seen.started_at,
            "written_at": seen.written_at,
            "staged_files": seen.files,
            "staged_rows": seen.rows,
            "staged_bytes": seen.size,
            "published": seen.slot <= self._published,
            "members": [
                {
                    "member": member,
                    "part_bytes": seen.parts.get(member),
                    "marker_at": marks[member].marker_at if member in marks else None,
                    "saved_at": marks[member].saved_at if member in marks else None,
                }
                for member in sorted({*seen.parts, *marks})
            ],
            "apply": self._apply(seen.slot),
            "current": self._current,
            "as_of": self._as_of,
        }

    def _apply(self, slot: int) -> Mapping[str, Any] | None:
        """The batch that applied this checkpoint, if the Spark writer still reports it."""
        found = next((batch for batch in self._applies if batch.first <= slot <= batch.last), None)
        return None if found is None else asdict(found)


async def viewer(watch: PipelineWatch) -> _Viewer:
    """Return the function that makes the fields of a CheckpointView, with what the status knows now."""
    newest = (await watch.publications()).newest
    return _Viewer(await watch.status(), 0 if newest is None else newest.n, watch.window.released)


class SavepointView(BaseModel):
    """A checkpoint that is kept until a person deletes it: a restore may begin there, and the lake has tags of it."""

    number: int = Field(description="the checkpoint")
    name: str | None
    written_at: float
    source_time: float | None
    position: dict[str, Any] | None
    published: bool


@routes.get("/pipelines/{pipeline}/savepoints", operation_id="list_savepoints")
async def savepoints(found: Known, control: Shared) -> list[SavepointView]:
    """List the savepoints, newest first."""
    watch = control.watches.find(found)
    newest = (await watch.publications()).newest
    published = 0 if newest is None else newest.n
    return [
        SavepointView(
            number=seen.slot,
            name=seen.name,
            written_at=seen.written_at,
            source_time=seen.source_time,
            position=None if seen.position is None else dict(seen.position),
            published=seen.slot <= published,
        )
        for seen in await watch.savepoints()
    ]
