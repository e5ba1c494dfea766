"""`cutline status` and `cutline top`: the state of pipelines, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from cutline.common import threads
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.mesh.rates import Rates
from cutline.common.phases import DROPPED, LIVE, PAUSED, QUARANTINED
from cutline.common.store.store import Store
from cutline.services.client.rest.client import Client
from cutline.services.client.rest.errors import ServiceUnavailable, Unreachable
from cutline.services.client.rest.models import Pipeline, Service, Table
from cutline.services.run import running
from cutline.services.run.cli.local import workdir_of
from cutline.services.run.cli.printing import because, print_json, size, span
from cutline.services.run.cli.remote import Session, asks, pipeline_argument
from cutline.services.run.cli.service import work_of
from cutline.services.run.terminal import lines, picture
from cutline.services.run.workdir import redis_url_of, store_url_of

LOOK_SECONDS = 2.0
_COLOURS = {LIVE: "green", QUARANTINED: "red", DROPPED: "bright_black", PAUSED: "yellow"}


@click.command()
@click.argument("pipeline", required=False)
@click.option("--workdir", type=click.Path(path_type=Path, file_okay=False), help="With a file: as given to `run`.")
@click.option("--watch", "-w", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
@asks
def status(session: Session, pipeline: str | None, workdir: Path | None, watch: bool) -> None:
    """Print the status of pipelines.

    PIPELINE is a name, which the control service is asked for (without one: every pipeline); or a pipeline file: then
    the status of that pipeline on this machine, or at CUTLINE_REDIS_URL, as `run` shows it.
    """
    if pipeline is not None and (Path(pipeline).is_file() or pipeline.endswith((".yaml", ".yml"))):
        look = _of_file(Path(pipeline), workdir)
    elif session.as_json:
        names = [pipeline] if pipeline else [found.name for found in session.client.each_pipeline()]
        print_json(
            [
                {
                    "pipeline": session.client.pipeline(name).model_dump(mode="json"),
                    "tables": [table.model_dump(mode="json") for table in session.client.each_table(name)],
                }
                for name in names
            ]
        )
        return
    else:
        look = _of_name(session.client, pipeline)
    if watch:
        _shown(lambda: Text("\n".join(look())))
    else:
        click.echo("\n".join(look()))


def _of_file(file: Path, workdir: Path | None) -> Callable[[], list[str]]:
    config, rates = load(file), Rates()
    folder, environment = workdir_of(file, config, workdir), Environment.read()
    url = redis_url_of(folder, environment)
    store = Store(store_url_of(folder, environment)).pipeline(config.name)

    def look() -> list[str]:
        parts = threads.run(running.status_of(url, store))
        return lines(picture(config.name, parts, rates=rates, now=time.time()))

    return look


def _of_name(client: Client, name: str | None) -> Callable[[], list[str]]:
    def look() -> list[str]:
        found = [client.pipeline(name)] if name else list(client.each_pipeline())
        lines = [line for pipeline in found for line in _lines(pipeline, list(client.each_table(pipeline.name)))]
        return lines or ["there is no pipeline; create one with `cutline pipeline create FILE`"]

    return look


def _lines(pipeline: Pipeline, tables: list[Table]) -> Iterator[str]:
    for table in tables:
        text = f"{table.table}: {table.phase}"
        text += "" if table.rows_done is None or table.phase == DROPPED else f", {table.rows_done:,} rows"
        if table.rate_rows_per_second:
            text += f", {table.rate_rows_per_second:,.0f} rows/s"
        text += "" if table.eta_seconds is None else f", {span(table.eta_seconds)} to go"
        yield text + ("" if table.cause is None else f": {because(table)}")
    now = time.time()
    lag = f"lag {span(max(0.0, now - pipeline.source_time))}" if pipeline.source_time else "lag unknown"
    parts = [pipeline.mode, lag]
    for word, number, at in (
        ("checkpoint", pipeline.checkpoint, pipeline.checkpoint_completed_at),
        ("publication", pipeline.publication, pipeline.published_at),
    ):
        ago = f" {span(max(0.0, now - at))} ago" if at else ""
        parts.append(f"no {word} yet" if number is None else f"{word} {number}{ago}")
    if not pipeline.current:
        parts.append("no leader reports now")
    yield f"{pipeline.name}: {', '.join(parts)}"
    if pipeline.halted:
        yield f"{pipeline.name}: halted: {pipeline.halted}"
    elif pipeline.waiting_for:
        yield f"{pipeline.name}: waiting for {pipeline.waiting_for}"


def _shown(draw: Callable[[], RenderableType]) -> None:
    """Show what `draw` returns, again and again, until Ctrl-C. A service that stops answering is waited for, one that
    never did is an error."""
    first = draw()
    console = Console(highlight=False)
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        live.update(first, refresh=True)
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                live.update(draw(), refresh=True)
            except (Unreachable, ServiceUnavailable) as error:
                live.update(Text(f"{error}; trying again", style="yellow"), refresh=True)


@click.command()
@pipeline_argument
@asks
def top(session: Session, pipeline: str) -> None:
    """Watch PIPELINE: its services with memory and CPU, the tables being read and those in trouble, its channels."""
    if session.as_json:
        print_json(_top(session.client, pipeline))
        return
    processors = Processors()
    _shown(lambda: drawing(_top(session.client, pipeline), processors, time.time()))


def _top(client: Client, name: str) -> dict[str, Any]:
    tables = client.tables(name, phase="snapshot,catch-up,quarantined,waiting,paused", limit=200)
    live = client.tables(name, phase=LIVE, limit=1000)
    return {
        "pipeline": client.pipeline(name),
        "services": client.services(),
        "tables": [*tables, *sorted(live, key=lambda table: -(table.lag_seconds or 0))[:10]],
        "channels": client.channels(name),
    }


class Processors:
    """How much of a processor each service uses, from its seconds of CPU at two looks."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # when the seconds were first seen to be these
        self._share: dict[str, float] = {}

    def share(self, service: Service, now: float) -> float | None:
        """1.0 is one processor; None until the seconds have changed."""
        seconds = service.cpu_seconds
        if seconds is None:
            return None
        at, before = self._seen.setdefault(service.incarnation, (now, seconds))
        if seconds != before:
            self._share[service.incarnation] = (seconds - before) / max(0.001, now - at)
            self._seen[service.incarnation] = now, seconds
        return self._share.get(service.incarnation)


def drawing(found: dict[str, Any], processors: Processors, now: float) -> RenderableType:
    """The picture of `cutline top`."""
    services = _grid("service", "host", ">pid", ">memory", ">CPU", "does")
    for service in found["services"]:
        share = processors.share(service, now)
        services.add_row(
            service.role,
            service.host,
            str(service.pid),
            size(service.rss_bytes),
            "" if share is None else f"{share:.0%}",
            work_of(service),
        )
    tables = _grid("table", "phase", ">rows", ">rows/s", ">to go", ">lag", "cause")
    for table in found["tables"]:
        tables.add_row(
            table.table,
            Text(table.phase, style=_COLOURS.get(table.phase, "cyan")),
            "" if table.rows_done is None else f"{table.rows_done:,}",
            "" if not table.rate_rows_per_second else f"{table.rate_rows_per_second:,.0f}",
            span(table.eta_seconds),
            span(table.lag_seconds),
            because(table),
        )
    channels = _grid("channel", ">outstanding", ">credit", ">sent", ">taken")
    for channel in found["channels"]:
        channels.add_row(
            f"{channel.sender} > {channel.receiver}",
            size(channel.outstanding_bytes),
            size(channel.credit_bytes),
            f"{channel.sent:,}",
            f"{channel.taken:,}",
        )
    summary = "\n".join(_lines(found["pipeline"], []))
    return Group(Text(summary), Text(), services, Text(), tables, Text(), channels)


def _grid(*headings: str) -> Grid:
    grid = Grid(box=None, pad_edge=False)
    for heading in headings:
        grid.add_column(heading.removeprefix(">"), justify="right" if heading[0] == ">" else "left", no_wrap=True)
    return grid


COMMANDS = (status, top)
