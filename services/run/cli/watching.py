"""`cutline status` and `cutline top`: the state of pipelines, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from cutline.common import threads
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import load
from cutline.common.mesh.rates import Rates
from cutline.common.phases import LIVE
from cutline.common.store.store import Store
from cutline.services.client.rest.client import Client
from cutline.services.client.rest.errors import ServiceUnavailable, Unreachable
from cutline.services.client.rest.models import Channel, Service
from cutline.services.run import running
from cutline.services.run.cli.local import workdir_of
from cutline.services.run.cli.printing import print_json
from cutline.services.run.cli.remote import Session, asks, pipeline_argument
from cutline.services.run.cli.service import work_of
from cutline.services.run.conditions import judged
from cutline.services.run.figures import number, size
from cutline.services.run.layout import Column, Items, grid
from cutline.services.run.picture import Picture, of_answer, of_status
from cutline.services.run.terminal import PlainLines, drawing, drawings, lines, printed
from cutline.services.run.workdir import redis_url_of, store_url_of

LOOK_SECONDS = 2.0
_SERVICES = (
    Column(heading="service"),
    Column(heading="host", least=8, goes=1),
    Column(heading="pid", right=True),
    Column(heading="memory", right=True),
    Column(heading="CPU", right=True),
    Column(heading="does", least=12),
)
_CHANNELS = (
    Column(heading="channel", least=16),
    Column(heading="outstanding", right=True),
    Column(heading="credit", right=True, goes=1),
    Column(heading="sent", right=True),
    Column(heading="taken", right=True),
)


@click.command()
@click.argument("pipeline", required=False)
@click.option("--workdir", type=click.Path(path_type=Path, file_okay=False), help="With a file: as given to `run`.")
@click.option("--watch", "-w", is_flag=True, help="Show it every 2 s, until Ctrl-C; to a pipe: lines as they come.")
@asks
def status(session: Session, pipeline: str | None, workdir: Path | None, watch: bool) -> None:
    """Print the status of pipelines: what somebody must act on first.

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
    show(look, Console(highlight=False), watch=watch)


def _of_file(file: Path, workdir: Path | None) -> Callable[[], list[Picture]]:
    config, rates = load(file), Rates()
    folder, environment = workdir_of(file, config, workdir), Environment.read()
    url = redis_url_of(folder, environment)
    root = Store(store_url_of(folder, environment))
    store = root.pipeline(config.name)

    def look() -> list[Picture]:
        found, held = threads.run(running.look_of(url, root, store))
        publication, conditions = running.newest_publication(store), judged(held)
        return [
            of_status(
                config.name, found, rates=rates, now=time.time(), publication=publication, conditions=conditions
            )
        ]

    return look


def _of_name(client: Client, name: str | None) -> Callable[[], list[Picture]]:
    def look() -> list[Picture]:
        found = [client.pipeline(name)] if name else list(client.each_pipeline())
        return [of_answer(each, list(client.each_table(each.name)), time.time()) for each in found]

    return look


def show(look: Callable[[], list[Picture]], console: Console, *, watch: bool) -> None:
    """Show what `look` returns, once or until Ctrl-C: drawn in a terminal, as plain lines elsewhere."""
    found = look()
    if not found:
        click.echo("there is no pipeline; create one with `cutline pipeline create FILE`")
        if not watch:
            return
    if watch and console.is_terminal:
        _redrawn(found, look, lambda found, width, height: drawings(found, width=width, height=height), console)
    elif watch:
        _printed(found, look, console)
    elif console.is_terminal:
        console.print(printed(found, width=console.width, height=console.height))
    else:
        for line in (line for picture in found for line in lines(picture)):
            click.echo(line)


def _redrawn(
    first: Any, look: Callable[[], Any], draw: Callable[[Any, int, int], RenderableType], console: Console
) -> None:
    """Draw what `look` returns on the whole screen, every 2 s until Ctrl-C. A service that stops answering is waited
    for, one that never did is an error."""
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=True) as live:
        live.update(draw(first, console.width, console.height), refresh=True)
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                live.update(draw(look(), console.width, console.height), refresh=True)
            except (Unreachable, ServiceUnavailable) as error:
                live.update(Text(f"{error}; trying again", style="yellow"), refresh=True)


def _printed(first: list[Picture], look: Callable[[], list[Picture]], console: Console) -> None:
    """Print the lines that are new, as they come, until Ctrl-C."""
    plain = PlainLines(console)
    with suppress(KeyboardInterrupt):
        plain.update(first)
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                plain.update(look())
            except (Unreachable, ServiceUnavailable) as error:
                console.print(Text(f"{error}; trying again"), soft_wrap=True)


@click.command()
@pipeline_argument
@asks
def top(session: Session, pipeline: str) -> None:
    """Watch PIPELINE: what somebody must act on, its tables, those in trouble first, its services with memory and CPU,
    and its channels. To a pipe it is printed once."""
    console = Console(highlight=False)
    found = _top(session.client, pipeline)
    if session.as_json:
        print_json(found)
        return
    processors = Processors()
    if console.is_terminal:
        _redrawn(
            found,
            lambda: _top(session.client, pipeline),
            lambda found, width, height: screen(found, processors, time.time(), width=width, height=height),
            console,
        )
    else:
        console.print(screen(found, processors, time.time(), width=console.width, height=None))


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


def screen(
    found: dict[str, Any], processors: Processors, now: float, *, width: int, height: int | None
) -> RenderableType:
    """The picture of `cutline top`."""
    current = of_answer(found["pipeline"], found["tables"], now)
    others = [_services(found["services"], processors, now, width), _channels(found["channels"], width)]
    return drawing(current, width=width, height=height, others=others)


def _services(found: list[Service], processors: Processors, now: float, width: int) -> Items:
    rows = []
    for service in found:
        share = processors.share(service, now)
        used = "" if share is None else f"{share:.0%}"
        about = (service.role, service.host, str(service.pid), size(service.rss_bytes), used, work_of(service))
        rows.append(about)
    heading, *shown = grid(_SERVICES, rows, width)
    return Items(items=[[line] for line in shown], heading=[Text(), heading], more=_counted(len(rows), "services"))


def _channels(found: list[Channel], width: int) -> Items:
    rows = [
        (
            f"{channel.sender} > {channel.receiver}",
            size(channel.outstanding_bytes),
            size(channel.credit_bytes),
            number(channel.sent),
            number(channel.taken),
        )
        for channel in found
    ]
    heading, *shown = grid(_CHANNELS, rows, width)
    return Items(items=[[line] for line in shown], heading=[Text(), heading], more=_counted(len(rows), "channels"))


def _counted(total: int, word: str) -> Callable[[int], Text]:
    return lambda shown: Text(f"and {total - shown} more {word}" if shown else f"{total} {word}")


COMMANDS = (status, top)
