"""Reading a stream of server-sent events."""

from __future__ import annotations

from typing import Any

from cutline.services.client.rest.calls import quoted
from cutline.services.client.rest.models import Event

SILENCE_SECONDS = 60.0
"""The service sends a comment each 15 s: after this time the connection is dead."""


class EventReader:
    """Makes events of a stream's lines, and remembers the last one, from which a new connection goes on."""

    def __init__(self, after: str | None, kind: str | None = None) -> None:
        """Begin after this event (None: with the next one), with events of this kind (None: of all)."""
        self.last, self.kind = after, kind
        self._data: list[str] = []
        self._id: str | None = None

    def take(self, line: str) -> Event | None:
        """Take the next line, without its end; return the event that it completes."""
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            elif name == "id":
                self._id = value.removeprefix(" ")
            return None
        data, self._data = "\n".join(self._data), []
        event = Event.model_validate_json(data) if data else None
        if self._id is not None:  # a stream begins with the id of the event before it
            self.last = self._id
        return event

    def cut_off(self) -> None:
        """The connection is gone: what came of an event is dropped, since it comes again."""
        self._data, self._id = [], None


def events_request(pipeline: str, reader: EventReader) -> dict[str, Any]:
    """The arguments of httpx's `stream` for the events after the reader's last one."""
    headers = {"Accept": "text/event-stream"}
    if reader.last is not None:
        headers["Last-Event-ID"] = reader.last
    path = f"/v1/pipelines/{quoted(pipeline)}/events"
    query = {} if reader.kind is None else {"kind": reader.kind}
    return {"method": "GET", "url": path, "params": query, "headers": headers, "timeout": SILENCE_SECONDS}
