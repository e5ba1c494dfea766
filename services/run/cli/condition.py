"""`cutline conditions`: what a person must act on, and taking note of it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console

from cutline.services.run.cli.printing import print_json
from cutline.services.run.cli.remote import Session, asks, pipelines_completed
from cutline.services.run.conditions import ShownCondition, answered, block, in_order
from cutline.services.run.figures import when

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Span(click.ParamType[float]):
    """A duration, as in 30m, 2h, 3d; its value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; wrong usage if the text is no duration."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is no duration; write it as 30m, 2h or 3d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Moment(click.ParamType[float]):
    """A time, as in 2026-11-24T14:05:00Z; without a zone it is this machine's. Its value is in seconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; wrong usage if the text is no time."""
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            self.fail(f"{value!r} is no time; write it as 2026-11-24T14:05:00Z", param, ctx)


class _Listed(click.Group):
    """A group that lists if no command of its own is named: `cutline conditions shop`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before what is no command. While a shell completes a command's name there is none yet."""
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        if not known and (args or not ctx.resilient_parsing):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group("conditions", cls=_Listed)
def group() -> None:
    """List what somebody must act on, of all pipelines or of one: `cutline conditions [PIPELINE]`.

    The exit code is 1 if one of them is critical or a warning and nobody has acknowledged it.
    """


@group.command("list")
@click.argument("pipeline", required=False, shell_complete=pipelines_completed)
@asks
def list_(session: Session, pipeline: str | None) -> None:
    """List the conditions of PIPELINE, or of all pipelines: most severe first, with since, cause and remedy.

    The exit code is 1 if one of them is critical or a warning and nobody has acknowledged it.
    """
    found = session.client.conditions(pipeline)
    shown = answered(found)
    if session.as_json:
        print_json(found)
    elif shown:
        print_conditions(shown, ids=True)
    else:
        click.echo("nothing needs anybody")
    sys.exit(1 if any(each.is_due for each in shown) else 0)


def print_conditions(found: Sequence[ShownCondition], *, ids: bool = False) -> None:
    """Print conditions: wrapped in a terminal, a line for each sentence elsewhere."""
    console, now = Console(highlight=False, soft_wrap=True), time.time()
    width = console.width if console.is_terminal else None
    for condition in in_order(found):
        for line in block(condition, now, width, ids=ids):
            console.print(line)


@group.command()
@click.argument("condition", metavar="ID")
@click.option("--note", required=True, metavar="TEXT", help="What you do about it, or why it may stay.")
@click.option("--for", "span", type=Span(), metavar="2h", help="For so long: 30m, 2h, 3d; while it lasts by default.")
@click.option("--until", type=Moment(), metavar="TIME", help="Until this time, as in 2026-11-24T14:05:00Z.")
@asks
def acknowledge(session: Session, condition: str, note: str, span: float | None, until: float | None) -> None:
    """Take note of a condition: it comes last in lists, and posts no alert meanwhile. `cutline conditions` has its ID.
    """
    if span is not None and until is not None:
        raise click.UsageError("--for and --until exclude each other")
    end = time.time() + span if span is not None else until
    if end is not None and end <= time.time():
        raise click.UsageError("--until is in the past")
    found = session.client.acknowledge(condition, note, end)
    if session.as_json:
        print_json(found)
    else:
        click.echo(f"condition {condition} is acknowledged {'while it lasts' if end is None else f'until {when(end)}'}")


@group.command()
@click.argument("condition", metavar="ID")
@asks
def unacknowledge(session: Session, condition: str) -> None:
    """Take an acknowledgement back: the condition posts its alert again."""
    found = session.client.unacknowledge(condition)
    if session.as_json:
        print_json(found)
    else:
        click.echo(f"condition {condition} is no longer acknowledged")


COMMANDS = (group,)
