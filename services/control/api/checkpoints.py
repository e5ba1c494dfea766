"""The checkpoints of a pipeline."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query

from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.dependencies import Known, router
from cutline.services.control.api.journal import newest
from cutline.services.control.api.models import CheckpointView

routes = router("checkpoints")


@routes.get("/pipelines/{pipeline}/checkpoints")
async def checkpoints(found: Known, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[CheckpointView]:
    """List the newest checkpoints, newest first."""
    return await asyncio.to_thread(_checkpoints, found, limit)


def _checkpoints(found: PipelineStore, limit: int) -> list[CheckpointView]:
    published = max(found.publication_numbers(), default=0)
    checkpoints = [
        CheckpointView(
            number=entry.slot,
            epoch=entry.epoch,
            kept=entry.kept,
            inside=entry.inside,
            position=None if entry.position is None else entry.position.to_json(),
            source_time=entry.source_time,
            started_at=entry.started_at,
            written_at=entry.written_at,
            staged_files=len(entry.staged),
            staged_rows=sum(file.rows for file in entry.staged),
            staged_bytes=sum(file.size for file in entry.staged),
            published=entry.slot <= published,
        )
        for entry in newest(found, limit)
        if isinstance(entry, CheckpointEntry)
    ]
    return checkpoints[::-1]
