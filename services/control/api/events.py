"""The events of a pipeline, as a list and as a stream (server-sent events): epochs with their causes, kept checkpoints,
tables that changed their phase, the ends of commands, publications, and conditions that began or ended.

A stream begins after the event that the header Last-Event-ID names, so a client that reconnects misses none of the last
thousands; without it, with the next event. A comment comes each 15 s. The stream ends when the service stops, when the
pipeline was deleted, or with its token (gate.py). A token has up to MOST streams at a time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Set
from contextlib import aclosing
from typing import Annotated, get_args

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from cutline.common.errors import Unavailable
from cutline.services.control.api.dependencies import CallerNow, Control, Flag, Known, Shared, router
from cutline.services.control.api.models import EventKind, EventView
from cutline.services.control.api.paging import Newest, several
from cutline.services.control.api.problems import RETRY_SECONDS, Refused
from cutline.services.control.api.roles import Caller
from cutline.services.control.history import BEGINNING, Event, Place
from cutline.services.control.store_calls import in_store
from cutline.services.control.watch import PipelineWatch

routes = router("events")
STREAM = "text/event-stream"
LOOK_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
RECONNECT_MS = 2000
MOST = 100
KINDS: tuple[str, ...] = get_args(EventKind)
_ID = re.compile(r"(\d{1,10})\.(\d{1,6})(?:\.(\d{1,10})\.(\d{1,10})(?:\.(\d{1,10})\.(\d{1,10}))?)?")


@routes.get(
    "/pipelines/{pipeline}/events",
    operation_id="list_events",
    response_model=list[EventView],
    responses={200: {"content": {STREAM: {"schema": {"type": "string"}}}}},
)
async def events(
    found: Known,
    control: Shared,
    caller: CallerNow,
    page: Newest,
    kind: Annotated[
        str | None,
        Query(description="only events of this kind; several with commas between", examples=["command,publication"]),
    ] = None,
    stream: Annotated[Flag, Query(description="send events as they come, as Accept: text/event-stream does")] = False,
    accept: Annotated[str | None, Header()] = None,
    last_event_id: Annotated[str | None, Header(description="of a stream: the last event that came")] = None,
) -> list[EventView] | Response:
    """List the newest events, newest first; or send them as they come (server-sent events)."""
    kinds = set(KINDS) if kind is None else several(kind, KINDS, "kind of event")
    watch = control.watches.find(found)
    if stream or (accept is not None and STREAM in accept):
        after = await _place(watch, last_event_id) if last_event_id else (await watch.history()).place
        if control.streams[caller.means, caller.by] >= MOST:
            raise Refused(
                429,
                f"{MOST} streams of events are open by this token",
                "close one of them, or use another token",
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        sent = _counted(control, caller, _stream(control, watch, after, kinds))
        return StreamingResponse(sent, media_type=STREAM, headers={"Cache-Control": "no-store"})
    known = [event for event in (await watch.history()).all() if event.kind in kinds]
    listed = page.take(known[::-1], lambda event: event.place.key, newest_first=True)
    return [_view(event) for event in listed]


async def _counted(control: Control, caller: Caller, stream: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    control.streams[caller.means, caller.by] += 1
    try:
        async with aclosing(stream):
            async for text in stream:
                yield text
    finally:
        control.streams[caller.means, caller.by] -= 1


async def _stream(control: Control, watch: PipelineWatch, after: Place, kinds: Set[str]) -> AsyncGenerator[str, None]:
    yield f"retry: {RECONNECT_MS}\nid: {after.id}\n\n"  # so that a client knows where it began
    sent_at, newest = time.monotonic(), 0
    while not control.stopping.is_set():
        try:
            history = await watch.history()
            if history.place.slot < newest:  # the pipeline was deleted, and defined again
                after = BEGINNING
            newest = history.place.slot
            for event in history.after(after):
                after = event.place
                if event.kind in kinds:
                    sent_at = time.monotonic()
                    yield f"id: {after.id}\nevent: {event.kind}\ndata: {_view(event).model_dump_json()}\n\n"
            if time.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                if await in_store(watch.store.definition) is None:
                    yield f": the pipeline {watch.store.name} was deleted\n\n"
                    return
                sent_at = time.monotonic()
                yield ": no news\n\n"
        except Unavailable as error:
            yield f": {' '.join(str(error).split())}\n\n"
        await asyncio.sleep(LOOK_SECONDS)


def _view(event: Event) -> EventView:
    return EventView(
        id=event.place.id,
        slot=event.place.slot,
        at=event.at,
        kind=event.kind,
        text=event.text,
        table=event.table,
        command=event.command,
        state=event.state,
        publication=event.publication,
        condition=event.condition,
        severity=event.severity,
        ended=event.ended,
    )


async def _place(watch: PipelineWatch, text: str) -> Place:
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise Refused(
            422, f"Last-Event-ID is {text[:40]!r}, which is no event of a pipeline", "send the id of an event, or none"
        )
    now = (await watch.history()).place
    slot, number, command, publication, condition, shared = found.groups()
    if int(slot) > now.slot and max(await in_store(watch.store.slots), default=0) < int(slot):
        return BEGINNING  # the pipeline was deleted, and defined again
    return Place(
        slot=int(slot),
        number=int(number),
        command=now.command if command is None else int(command),
        publication=now.publication if publication is None else int(publication),
        condition=now.condition if condition is None else int(condition),
        shared=now.shared if shared is None else int(shared),
    )
