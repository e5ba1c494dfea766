"""The live view of one pipeline: a progress bar for each table, then lag, last checkpoint and last publication.

The caller provides the content: the status parts from Redis, and notes of `cutline run`. In a terminal the picture is
redrawn in place; elsewhere plain lines are printed when something changed, seconds apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cutline.common.causes import Cause
from cutline.common.mesh.rates import Rates
from cutline.common.phases import DROPPED, LIVE, PAUSED, QUARANTINED, SNAPSHOT, WAITING, Phase
from cutline.common.status.pipeline_status import PipelineStatus, TableStatus
from cutline.common.waits import Wait

PLAIN_INTERVAL_SECONDS = 5.0
_COLOURS = {LIVE: "green", PAUSED: "yellow", QUARANTINED: "red", DROPPED: "bright_black"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """The line of one table. `fraction` is 0..1 of the snapshot; rate in rows/s; `eta_seconds` is None if unknown."""

    name: str
    phase: Phase
    generation: int
    rows: int
    fraction: float
    rate: float
    eta_seconds: float | None
    cause: Cause | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content of the view at one moment; ages are in seconds."""

    pipeline: str
    epoch: int | None
    tables: tuple[TableLine, ...]
    lag_seconds: float | None
    checkpoint: int | None
    checkpoint_age_seconds: float | None
    in_flight: int | None
    publication: int | None
    publication_age_seconds: float | None
    waiting_for: Wait | None
    notes: tuple[str, ...]


def picture(
    pipeline: str, status: PipelineStatus, *, rates: Rates, now: float, notes: tuple[str, ...] = ()
) -> Picture:
    """The picture of the status; what no service has written yet is left out.

    `now` is epoch seconds, as are the times in the status.
    """
    leader, spark, checkpoint = status.enumerator, status.spark_writer, status.enumerator.checkpoint
    return Picture(
        pipeline=pipeline,
        epoch=leader.epoch or None,
        tables=tuple(_line(name, table, rates, now) for name, table in sorted(status.tables.items())),
        lag_seconds=_age(spark.source_time, now),
        checkpoint=checkpoint.number,
        checkpoint_age_seconds=_age(checkpoint.completed_at, now),
        in_flight=checkpoint.in_flight,
        publication=spark.published,
        publication_age_seconds=_age(spark.published_at, now),
        waiting_for=leader.waiting_for,
        notes=notes,
    )


def _line(name: str, table: TableStatus, rates: Rates, now: float) -> TableLine:
    rows, estimate = table.rows_done or 0, table.rows_estimate
    rate = rates.observe(name, table.generation, rows, now)
    fraction, eta = 1.0, None
    if table.phase in (WAITING, SNAPSHOT):
        fraction = min(0.99, rows / estimate) if estimate else 0.0
        if estimate and rate > 0:
            eta = max(0.0, estimate - rows) / rate
    return TableLine(
        name=name,
        phase=table.phase,
        generation=table.generation,
        rows=rows,
        fraction=fraction,
        rate=rate,
        eta_seconds=eta,
        cause=table.cause,
    )


def _age(moment: float | None, now: float) -> float | None:
    return max(0.0, now - moment) if moment else None


def duration(seconds: float) -> str:
    """A time span for people to read: 0.4 s, 42 s, 3:05, 2:03:04."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def summary(current: Picture) -> str:
    """The line below the tables: lag, last checkpoint, last publication."""
    parts = ["lag unknown" if current.lag_seconds is None else f"lag {duration(current.lag_seconds)}"]
    for word, number, age in (
        ("checkpoint", current.checkpoint, current.checkpoint_age_seconds),
        ("publication", current.publication, current.publication_age_seconds),
    ):
        ago = "" if age is None else f" {duration(age)} ago"
        parts.append(f"no {word} yet" if number is None else f"{word} {number}{ago}")
    if current.in_flight is not None:
        parts.append(f"checkpoint {current.in_flight} under way")
    return ", ".join(parts)


def lines(current: Picture) -> list[str]:
    """The picture as plain lines: one for each table, the summary, then `waiting_for` and the notes."""
    plain = []
    for table in current.tables:
        text = f"{table.name}: {table.phase}"
        text += "" if table.phase == DROPPED else f", {table.rows:,} rows"
        if table.phase in (WAITING, SNAPSHOT):
            text += f", {table.fraction:.0%}, {table.rate:,.0f} rows/s"
            text += "" if table.eta_seconds is None else f", {duration(table.eta_seconds)} to go"
        plain.append(text + ("" if table.cause is None else f": {table.cause}"))
    plain.append(f"{current.pipeline}: {summary(current)}")
    if current.waiting_for:
        plain.append(f"waiting for {current.waiting_for}")
    return plain + list(current.notes)


def drawing(current: Picture, *, height: int) -> Group:
    """The picture for a terminal of `height` lines; if it has too few, live tables are left out first."""
    room = max(1, height - 6 - len(current.notes) - sum(1 for line in current.tables if line.cause))
    live_last = sorted(current.tables, key=lambda line: (line.phase == LIVE, line.name))
    kept = sorted(live_last[:room], key=lambda line: line.name)
    table = Table(box=None, pad_edge=False)
    for heading, side in (("table", "left"), ("phase", "left"), ("", "left"), ("rows", "right"), ("rows/s", "right")):
        table.add_column(heading, justify="right" if side == "right" else "left", no_wrap=True)
    table.add_column("to go", justify="right", no_wrap=True)
    for line in kept:
        colour = _COLOURS.get(line.phase, "cyan")
        table.add_row(
            line.name,
            Text(line.phase, style=colour),
            ProgressBar(total=1.0, completed=line.fraction, width=24, complete_style=colour, finished_style=colour),
            f"{line.rows:,}",
            f"{line.rate:,.0f}" if line.rate else "",
            "" if line.eta_seconds is None else duration(line.eta_seconds),
        )
    epoch = "" if current.epoch is None else f" (epoch {current.epoch})"
    below = [Text(f"{current.pipeline}{epoch}: {summary(current)}")]
    if len(kept) < len(current.tables):
        below.insert(0, Text(f"and {len(current.tables) - len(kept)} more tables"))
    below += [
        Text(f"{line.name}: {line.cause}", style=_COLOURS[DROPPED] if line.phase == DROPPED else "red")
        for line in current.tables
        if line.cause
    ]
    if current.waiting_for:
        below.append(Text(f"waiting for {current.waiting_for}", style="yellow"))
    below += [Text(note, style="yellow") for note in current.notes]
    return Group(table, *below)


class TerminalView:
    """Shows pictures on a console: in place if it is a terminal, else as plain lines. Use as a context manager."""

    def __init__(self, pipeline: str, console: Console | None = None) -> None:
        """Show `pipeline` on `console` (standard output if None)."""
        self._pipeline = pipeline
        self._console = console or Console(soft_wrap=True, highlight=False)
        self._rates = Rates()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._printed: set[str] = set()
        self._news: set[tuple[str, str]] = set()
        self._next_plain = 0.0

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

    def update(self, status: PipelineStatus, *, notes: tuple[str, ...] = ()) -> None:
        """Show the newest status. May be called at any rate: plain lines are printed only if changed, seconds apart."""
        current = picture(self._pipeline, status, rates=self._rates, now=time.time(), notes=notes)
        if self._live is not None:
            self._live.update(drawing(current, height=self._console.height), refresh=True)
            return
        # Rates and ages change all the time; a changed phase or note is printed at once.
        news = {(line.name, str(line.phase)) for line in current.tables} | {
            ("", str(note)) for note in (*current.notes, current.waiting_for)
        }
        if news != self._news or time.monotonic() >= self._next_plain:
            plain = lines(current)
            for line in plain:
                if line not in self._printed:
                    self._console.print(Text(line), soft_wrap=True)
            self._printed, self._news = set(plain), news
            self._next_plain = time.monotonic() + PLAIN_INTERVAL_SECONDS
