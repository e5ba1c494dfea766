"""All events of a pipeline in one order: those of the journal (window.py), the ends of commands, publications, and the
conditions that began, ended or were acknowledged, its own and those that concern all pipelines (condition_log.py).

Each of these has an order of its own, in which nothing is ever inserted before what was seen. So a *place*, how
far one has read each of them, says exactly what is new, for every control service alike, whatever the clocks of the
writers. The times of events only decide how the three are merged.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from cutline.common.commands.kinds import TableWish
from cutline.common.store.backends import side_by_side
from cutline.common.store.command_records import Command, Outcome, State
from cutline.common.store.condition_log import Change, ConditionLog
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore
from cutline.services.control.window import Happened, Window

FIRST_COMMANDS = 200
FIRST_PUBLICATIONS = 50
FIRST_CONDITIONS = 1_000
"""How many are read at the first look; a publication of a large pipeline has thousands of tables."""
MOST = 2_000
LISTED_SECONDS = 10.0


class Place(NamedTuple):
    """After the journal's event `slot.number`, the end of this command, this publication, and these changes of the
    pipeline's conditions and of those that concern all; 0: before the first."""

    slot: int
    number: int
    command: int
    publication: int
    condition: int
    shared: int

    @property
    def id(self) -> str:
        """The place as text, for Last-Event-ID."""
        return ".".join(map(str, self))

    @property
    def key(self) -> int:
        """The place as a number that is sorted as events are: each is after the one before it in one of the parts."""
        return int("".join(f"{part:010d}" for part in self))


BEGINNING = Place(0, 0, 0, 0, 0, 0)
_NONE = Place(-1, -1, -1, -1, -1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event, and the place after it. `command` has ended in `state`; `publication` was made; `condition` has begun,
    `ended`, or was acknowledged."""

    place: Place
    at: float
    kind: str
    text: str
    table: str | None = None
    command: int | None = None
    state: State | None = None
    publication: int | None = None
    condition: str | None = None
    severity: str | None = None
    ended: bool = False


class History:
    """The events of one pipeline; `refresh` blocks and may be called by any thread, the others may be called meanwhile.

    The window is refreshed by whoever owns it.
    """

    def __init__(self, store: PipelineStore, window: Window, conditions: tuple[ConditionLog, ConditionLog]) -> None:
        """Nothing is read before the first `refresh`. `conditions`: the history of the pipeline's own, and of those
        that concern all."""
        self._conditions = [_Changes(log, part) for log, part in zip(conditions, ("condition", "shared"), strict=True)]
        self._store = store
        self._window = window
        self._ends: deque[Event] = deque(maxlen=MOST)
        self._publications: deque[Event] = deque(maxlen=MOST)
        self._command = self._publication = 0
        self._listed_at = self._looked_at = float("-inf")

    def refresh(self, published: int | None) -> None:
        """Take what is new. `published` is the number of the newest publication by the status, None: unknown."""
        now = time.monotonic()
        if now - self._listed_at >= LISTED_SECONDS:
            newest = self._store.commands.newest_outcome()
            last = 0 if newest is None else newest.n
            first = max(self._command, last - FIRST_COMMANDS) + 1
            self._listed_at = now
            waits = () if newest is None else newest.open
            for n, end in sorted(side_by_side(self._ended, range(first, last + 1))):
                if end is None and n in waits:  # its end is told before that of later ones
                    break
                self._ends.extend(() if end is None else (end,))
                self._command = n
        else:
            while (end := self._ended(self._command + 1)) is not None:
                self._ends.append(end)
                self._command += 1
        self._publish(published, now)
        for changes in self._conditions:
            changes.refresh()

    def _publish(self, published: int | None, now: float) -> None:
        if published is not None and published == self._publication:
            return
        # The status may be gone, or of a Spark writer that died before it could tell of its last publication.
        if (published or 0) <= self._publication and now - self._looked_at < LISTED_SECONDS:
            return
        self._looked_at = now
        for n in self._store.publication_numbers(self._publication)[-FIRST_PUBLICATIONS:]:
            record = self._store.publication(n)
            if record is not None:
                self._publications.append(_published(record))
            self._publication = n

    def _ended(self, n: int) -> Event | None:
        outcome = self._store.commands.outcome(n)
        return None if outcome is None else _end(outcome, self._store.commands.get(n))

    @property
    def place(self) -> Place:
        """After everything that is known."""
        events = self._window.events
        slot, number = events[-1].place if events else (self._window.newest, 0)
        own, shared = (changes.newest for changes in self._conditions)
        return Place(slot, number, self._command, self._publication, own, shared)

    def after(self, place: Place) -> list[Event]:
        """The known events after a place, oldest first."""
        journal = [_of_journal(event) for event in list(self._window.events) if event.place > place[:2]]
        ends = [end for end in list(self._ends) if end.place.command > place.command]
        publications = [each for each in list(self._publications) if each.place.publication > place.publication]
        own, shared = (changes.after(place) for changes in self._conditions)
        return list(_placed(place, journal, ends, publications, own, shared))

    def all(self) -> list[Event]:
        """All known events, oldest first."""
        known = self.place
        journal, ends, publications = self._window.events, self._ends, self._publications
        return self.after(
            Place(
                journal[0].slot - 1 if journal else known.slot,
                0,
                ends[0].place.command - 1 if ends else known.command,
                publications[0].place.publication - 1 if publications else known.publication,
                *(changes.before_first for changes in self._conditions),
            )
        )


class _Changes:
    """The changes of one history of conditions; `part` is that of a place which counts them."""

    def __init__(self, log: ConditionLog, part: str) -> None:
        self._log = log
        self._part = part
        self._events: deque[Event] = deque(maxlen=FIRST_CONDITIONS)
        self._known = False
        self.newest = 0

    def refresh(self) -> None:
        """Read what is new."""
        if not self._known:
            for n, change in self._log.last(FIRST_CONDITIONS):
                self._take(n, change)
            self._known = True
        while (new := self._log.get(self.newest + 1)) is not None:
            self._take(self.newest + 1, new)

    def after(self, place: Place) -> list[Event]:
        """The known ones after a place."""
        return [event for event in list(self._events) if self._number(event.place) > self._number(place)]

    @property
    def before_first(self) -> int:
        """The number before the first known one."""
        return self._number(self._events[0].place) - 1 if self._events else self.newest

    def _number(self, place: Place) -> int:
        number: int = getattr(place, self._part)
        return number

    def _take(self, n: int, change: Change) -> None:
        place = _NONE._replace(**{self._part: n})
        self._events.append(_condition(place, change))
        self.newest = n


def _condition(place: Place, change: Change) -> Event:
    about = change.condition
    match change.what:
        case "began":
            text = f"{about.summary}{about.cause and f': {about.cause}'}"
        case "ended":
            text = f"ended after {change.at - about.since:.0f} s: {about.summary}"
        case "changed":
            text = f"{about.summary}: {change.note}"
        case "acknowledged":
            text = f"{change.by} acknowledged: {about.summary} ({change.note})"
        case _:
            text = f"{change.by} took the acknowledgement back: {about.summary}"
    return Event(
        place=place,
        at=about.since if change.what == "began" else change.at,
        kind="condition",
        text=text,
        table=about.tables[0] if len(about.tables) == 1 else None,
        condition=about.name,
        severity=about.severity,
        ended=change.what == "ended",
    )


def _placed(after: Place, *sources: Iterable[Event]) -> Iterator[Event]:
    """The events of all sources by their times, each source in its own order, and each with its place after `after`."""
    for event in heapq.merge(*sources, key=lambda event: event.at):
        own = {name: part for name, part in event.place._asdict().items() if part >= 0}
        after = after._replace(**own)
        yield replace(event, place=after)


def _of_journal(event: Happened) -> Event:
    place = _NONE._replace(slot=event.slot, number=event.number)
    return Event(place=place, at=event.at, kind=event.kind, text=event.text, table=event.table)


def _end(outcome: Outcome, command: Command | None) -> Event:
    asked = "" if command is None else f" ({command.kind}) of {command.by}"
    cause = f": {outcome.cause}" if outcome.cause else ""
    wish = None if command is None else command.wish
    table = wish.table if isinstance(wish, TableWish) else None
    return Event(
        place=_NONE._replace(command=outcome.n),
        at=outcome.at,
        kind="command",
        text=f"command {outcome.n}{asked} is {outcome.state}{cause}",
        table=table,
        command=outcome.n,
        state=outcome.state,
    )


def _published(record: Publication) -> Event:
    shown = sum(table.shown for table in record.tables.values())
    return Event(
        place=_NONE._replace(publication=record.n),
        at=record.published_at,
        kind="publication",
        text=f"publication {record.n}: the lake shows that checkpoint of {shown} of {len(record.tables)} tables",
        publication=record.n,
    )
