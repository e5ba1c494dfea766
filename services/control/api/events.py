"""The events in a pipeline's journal, as a list and as a stream (server-sent events): epochs with their causes, kept
checkpoints, tables that changed their phase.

A stream begins after the event that the header Last-Event-ID names, so a client that reconnects misses none of the last
5,000; without it, with the next event. A comment comes each 15 s, and the stream ends when the service stops.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from cutline.common.errors import Unavailable
from cutline.services.control.api.dependencies import Control, Known, Shared, router
from cutline.services.control.api.models import EventView
from cutline.services.control.api.paging import Newest
from cutline.services.control.api.problems import Refused
from cutline.services.control.watch import PipelineWatch
from cutline.services.control.window import Happened

routes = router("events")
STREAM = "text/event-stream"
LOOK_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
RECONNECT_MS = 2000
_ID = re.compile(r"(\d{1,10})\.(\d{1,6})")


@routes.get(
    "/pipelines/{pipeline}/events",
    operation_id="list_events",
    response_model=list[EventView],
    responses={200: {"content": {STREAM: {"schema": {"type": "string"}}}}},
)
async def events(
    found: Known,
    control: Shared,
    page: Newest,
    stream: Annotated[bool, Query(description="send events as they come, as Accept: text/event-stream does")] = False,
    accept: Annotated[str | None, Header()] = None,
    last_event_id: Annotated[str | None, Header(description="of a stream: the last event that came")] = None,
) -> list[EventView] | Response:
    """List the newest events, newest first; or send them as they come (server-sent events)."""
    watch = control.watches.of(found.name)
    if stream or (accept is not None and STREAM in accept):
        after = None if not last_event_id else _place(last_event_id)
        window = await watch.journal()
        if after is None:
            after = window.events[-1].place if window.events else (window.newest, 0)
        sent = _stream(control, watch, after)
        return StreamingResponse(sent, media_type=STREAM, headers={"Cache-Control": "no-store"})
    window = await watch.journal()
    listed = page.of(
        list(window.events)[::-1], lambda event: event.slot * 1_000_000 + event.number, newest_first=True
    )
    return [_view(event) for event in listed]


async def _stream(control: Control, watch: PipelineWatch, after: tuple[int, int]) -> AsyncIterator[str]:
    yield f"retry: {RECONNECT_MS}\nid: {after[0]}.{after[1]}\n\n"  # so that a client knows where it began
    said_at = time.monotonic()
    while not control.stopping.is_set():
        try:
            window = await watch.journal()
        except Unavailable as error:
            yield f": {' '.join(str(error).split())}\n\n"
        else:
            fresh = [event for event in list(window.events) if event.place > after]
            for event in fresh:
                after, said_at = event.place, time.monotonic()
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {_view(event).model_dump_json()}\n\n"
        if time.monotonic() - said_at >= HEARTBEAT_SECONDS:
            said_at = time.monotonic()
            yield ": no news\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def _view(event: Happened) -> EventView:
    return EventView(
        id=event.id, slot=event.slot, at=event.at, kind=event.kind, text=event.text, table=event.table
    )


def _place(text: str) -> tuple[int, int]:
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise Refused(
            422, f"Last-Event-ID is {text[:40]!r}, which is no event of a pipeline", "send the id of an event, or none"
        )
    return int(found[1]), int(found[2])
