"""The view of one pipeline in a terminal: summary, conditions, then tables; as plain lines, or drawn to fit a screen.

What matters comes first, so that a screen of ten lines has it: the summary, the conditions that a person must act on,
notes, the tables in trouble, those that are read with a progress bar each, the live ones. What has no room is counted.
In a terminal the picture is redrawn in place; elsewhere plain lines are printed when something changed, seconds apart.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cutline.common.mesh.rates import Rates
from cutline.common.phases import DROPPED, LIVE, PAUSED, QUARANTINED, SNAPSHOT, WAITING
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.records import Publication
from cutline.services.run.conditions import ShownCondition, block, in_order, listed
from cutline.services.run.figures import duration, number, span
from cutline.services.run.layout import Bar, Column, Items, grid, shared, wrapped
from cutline.services.run.picture import Picture, TableLine, of_status

PLAIN_INTERVAL_SECONDS = 5.0
_COLOURS: Mapping[str, str] = {LIVE: "green", PAUSED: "yellow", QUARANTINED: "red", DROPPED: "bright_black"}
_STATES = {"halted": "bold red", "running": "green"}
_COLUMNS = (
    Column(heading="table", least=12),
    Column(heading="phase"),
    Column(heading="for", right=True, goes=1),
    Column(heading=""),
    Column(heading="rows", right=True),
    Column(heading="rows/s", right=True, goes=3),
    Column(heading="to go", right=True),
    Column(heading="lag", right=True, goes=2),
)


def summary(current: Picture) -> str:
    """One line: the state, lag, last checkpoint, last publication, and which role is missing."""
    parts = []
    if current.state is not None:
        since = "" if current.state_seconds is None else f" for {duration(current.state_seconds)}"
        parts.append(f"{current.state}{since}")
    parts.append("lag unknown" if current.lag_seconds is None else f"lag {duration(current.lag_seconds)}")
    for word, count, seconds in (
        ("checkpoint", current.checkpoint, current.checkpoint_age_seconds),
        ("publication", current.publication, current.publication_age_seconds),
    ):
        ago = "" if seconds is None else f" ({duration(seconds)} ago)"
        parts.append(f"no {word} yet" if count is None else f"{word} {count}{ago}")
    if current.in_flight is not None:
        parts.append(f"checkpoint {current.in_flight} under way")
    return ", ".join([*parts, *current.lacking])


def lines(current: Picture) -> list[str]:
    """The picture as plain lines, not wrapped: the summary, conditions, what holds it up, notes, one for each table."""
    plain = [f"{current.pipeline}: {summary(current)}"]
    for condition in in_order(current.conditions):
        plain += [line.plain for line in block(condition, current.now, None)]
    plain += [*current.obstacles, *current.notes]
    return plain + [_plain_table(table) for table in current.tables]


def _plain_table(table: TableLine) -> str:
    text = f"{table.name}: {table.phase}"
    text += "" if table.for_seconds is None or table.phase == LIVE else f" for {duration(table.for_seconds)}"
    text += "" if table.phase == DROPPED or table.rows is None else f", {number(table.rows)} rows"
    if table.phase in (WAITING, SNAPSHOT):
        text += f", {table.fraction:.0%}, {number(table.rate)} rows/s"
        text += "" if table.eta_seconds is None else f", {duration(table.eta_seconds)} to go"
    return text + ("" if table.cause is None else f": {table.cause}")


def drawing(current: Picture, *, width: int, height: int | None, others: Sequence[Items] = ()) -> Group:
    """The picture for a terminal of `width` columns and `height` lines (None: any number), with `others` after the
    tables. The most severe condition is shown whole, whatever else has no room then."""
    head, notes = _head(current, width), _notes(current, width)
    conditions = listed(current.conditions, current.now, width)
    lists = [table_list(current, width), *others]
    if height is None:
        return Group(*head, *conditions.lines(None), *notes.lines(None), *shared(lists, None))
    room = height - len(head)
    shown = conditions.lines(max(_first(conditions), room - (4 if room > 12 else 1)))
    room -= len(shown)
    below = notes.lines(max(1, room - 1))
    return Group(*[*head, *shown, *below, *shared(lists, max(0, room - len(below)))][:height])


def drawings(pictures: Sequence[Picture], *, width: int, height: int | None) -> Group:
    """Several pipelines on one screen: all conditions first, then the pipelines in trouble, each with those of its
    tables that are not live."""
    if len(pictures) == 1:
        return drawing(pictures[0], width=width, height=height)
    found: list[ShownCondition] = []
    for picture in pictures:
        found += [each for each in picture.conditions if each not in found]
    conditions = listed(found, max((picture.now for picture in pictures), default=0.0), width)
    ordered = sorted(pictures, key=lambda each: not (each.conditions or each.obstacles or each.lacking))
    items = [_short(picture, width) for picture in ordered]
    pipelines = Items(items=items, more=lambda shown: Text(f"and {len(items) - shown} more pipelines"))
    if height is None:
        return Group(*conditions.lines(None), *pipelines.lines(None))
    most = max(_first(conditions), height - min(pipelines.height, height // 2))
    shown = conditions.lines(most)
    return Group(*[*shown, *pipelines.lines(max(1, height - len(shown)))][:height])


def printed(pictures: Sequence[Picture], *, width: int, height: int) -> Group:
    """What a command prints once in a terminal of this size: all that matters, and the quiet tables if they have room.
    """
    whole = len(drawings(pictures, width=width, height=None).renderables)
    quiet = sum(1 for picture in pictures for table in picture.tables if table.phase in (LIVE, DROPPED))
    return drawings(pictures, width=width, height=max(height - 1, whole - quiet + 5))


def _first(conditions: Items) -> int:
    """The lines of the first condition, and one that counts the others."""
    return len(conditions.items[0]) + (len(conditions.items) > 1) if conditions.items else 0


def _head(current: Picture, width: int) -> list[Text]:
    epoch = "" if current.epoch is None else f" (epoch {current.epoch})"
    style = _STATES.get(current.state or "", "yellow")
    return wrapped(Text.assemble((f"{current.pipeline}{epoch}", style), f": {summary(current)}"), width)


def _notes(current: Picture, width: int) -> Items:
    notes = [wrapped(Text(text, style="yellow"), width) for text in (*current.obstacles, *current.notes)]
    return Items(items=notes, more=lambda shown: Text(f"and {len(notes) - shown} more notes", style="yellow"))


def _short(current: Picture, width: int) -> list[Text]:
    """A pipeline among others: its summary, what holds it up, and those of its tables that are not live."""
    restless = replace(
        current,
        tables=tuple(table for table in current.tables if table.phase not in (LIVE, DROPPED)),
        unlisted=Counter(current.unlisted) + Counter(t.phase for t in current.tables if t.phase in (LIVE, DROPPED)),
    )
    return [*_head(current, width), *_notes(current, width).lines(None), *table_list(restless, width).lines(None)]


def table_list(current: Picture, width: int) -> Items:
    """The tables as a list that may be shortened: a line for each, below it its cause, wrapped."""
    tables, unlisted = current.tables, Counter(current.unlisted)
    heading, *rows = grid(_COLUMNS, [_row(table) for table in tables], width)
    items = [
        [row, *(wrapped(Text(table.cause, style=_cause_style(table)), width, 2) if table.cause else ())]
        for table, row in zip(tables, rows, strict=True)
    ]

    def more(shown: int) -> Text:
        left = Counter(table.phase for table in tables[shown:]) + unlisted
        phases = ", ".join(f"{number(count)} {phase}" for phase, count in left.items())
        return Text(f"{'and ' if shown else ''}{number(left.total())} {'more ' if shown else ''}tables: {phases}")

    if unlisted:
        items.append([more(len(tables))])
    return Items(items=items, more=more, heading=[heading] if tables else [])


def _cause_style(table: TableLine) -> str:
    return _COLOURS[DROPPED] if table.phase == DROPPED else "red"


def _row(table: TableLine) -> list[Text | str | Bar]:
    colour = _COLOURS.get(table.phase, "cyan")
    read = table.phase in (WAITING, SNAPSHOT)
    return [
        table.name,
        Text(table.phase, style=colour),
        "" if table.phase == LIVE else span(table.for_seconds),
        Bar(fraction=table.fraction, style=colour) if read else "",
        number(table.rows),
        number(table.rate) if table.rate else "",
        span(table.eta_seconds),
        span(table.lag_seconds),
    ]


class PlainLines:
    """Prints a picture again and again where no terminal is: the lines that are new, at once if a phase, a condition or
    a note changed, else some seconds apart, since ages and rates change all the time."""

    def __init__(self, console: Console) -> None:
        """Print on `console`."""
        self._console = console
        self._printed: set[str] = set()
        self._news: set[object] = set()
        self._next = 0.0

    def update(self, pictures: Sequence[Picture]) -> None:
        """Take the newest pictures."""
        news: set[object] = {(each.pipeline, line.name, line.phase) for each in pictures for line in each.tables}
        news |= {(each.pipeline, each.state) for each in pictures}
        news |= {text for each in pictures for text in (*each.obstacles, *each.notes, *each.lacking)}
        news |= {(text.severity, text.summary, text.cause) for each in pictures for text in each.conditions}
        if news == self._news and time.monotonic() < self._next:
            return
        plain = [line for each in pictures for line in lines(each)]
        for line in plain:
            if line not in self._printed:
                self._console.print(Text(line), soft_wrap=True)
        self._printed, self._news = set(plain), news
        self._next = time.monotonic() + PLAIN_INTERVAL_SECONDS


class TerminalView:
    """Shows pictures on a console: in place if it is a terminal, else as plain lines. Use as a context manager."""

    def __init__(self, pipeline: str, console: Console | None = None) -> None:
        """Show `pipeline` on `console` (standard output if None)."""
        self._pipeline = pipeline
        self._console = console or Console(soft_wrap=True, highlight=False)
        self._rates = Rates()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._plain = PlainLines(self._console)

    def __enter__(self) -> Self:
        """Take the lower part of the terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture on the terminal."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print one line that stays: an event, such as the restart of a service, or a savepoint."""
        self._console.print(Text(text), soft_wrap=True)

    def update(
        self,
        status: PipelineStatus,
        *,
        publication: Publication | None = None,
        conditions: Sequence[ShownCondition] = (),
        notes: tuple[str, ...] = (),
    ) -> None:
        """Show the newest status, with the store's newest publication, and the conditions that hold.

        May be called at any rate: plain lines are printed only if changed, seconds apart."""
        current = of_status(
            self._pipeline,
            status,
            rates=self._rates,
            now=time.time(),
            publication=publication,
            conditions=conditions,
            notes=notes,
        )
        if self._live is not None:
            size = self._console.size
            self._live.update(drawing(current, width=size.width, height=size.height - 1), refresh=True)
        else:
            self._plain.update([current])
