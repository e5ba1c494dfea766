"""The events in a pipeline's journal: epochs with their causes, kept checkpoints, tables that changed their phase."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from cutline.common.store.records import EpochEntry, TableEntry, changes
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.dependencies import Known, router
from cutline.services.control.api.journal import newest
from cutline.services.control.api.models import EventView

routes = router("events")


@routes.get("/pipelines/{pipeline}/events")
async def events(found: Known, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[EventView]:
    """List the newest events, newest first: epochs with their causes, kept checkpoints, tables' phases."""
    return await asyncio.to_thread(_events, found, limit)


def _events(found: PipelineStore, limit: int) -> list[EventView]:
    events: list[EventView] = []
    before: Mapping[str, TableEntry] = {}
    for entry in newest(found, 10 * limit):
        slot, at = entry.slot, entry.written_at
        if isinstance(entry, EpochEntry):
            mesh = f"{len(entry.members.readers)} readers and {len(entry.members.writers)} writers"
            text = f"epoch {slot} with {mesh}: {entry.cause}"
            events.append(EventView(slot=slot, at=at, kind="epoch", text=text))
            continue
        if entry.kept:
            events.append(EventView(slot=slot, at=at, kind="kept", text=f"checkpoint {slot} is kept"))
        for table, now in sorted(changes(entry.tables, before).items()):
            known = before.get(table)
            if now is None or (known is not None and (known.generation, known.phase) == (now.generation, now.phase)):
                continue
            cause = f": {now.cause}" if now.cause else ""
            text = f"{table} is {now.phase} in generation {now.generation}{cause}"
            events.append(EventView(slot=slot, at=at, kind="table", text=text))
        before = entry.tables
    return events[::-1][:limit]
