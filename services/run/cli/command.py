"""`cutline command` and `cutline events`."""

from __future__ import annotations

import json

import click

from cutline.services.client.rest.models import Command, Event
from cutline.services.run.cli.printing import name_of, plain
from cutline.services.run.cli.remote import Session, asks, limit_option, orders, pipeline_argument
from cutline.services.run.figures import when

NUMBER = click.argument("number", type=click.IntRange(min=1))
KINDS = ("epoch", "kept", "table", "command", "condition", "publication")
DROWNING = "publication"
"""The kind of which one comes with every interval."""


@click.group("command")
def group() -> None:
    """What people have asked of a pipeline, and what became of it."""


@group.command("list")
@pipeline_argument
@limit_option
@asks
def list_(session: Session, pipeline: str, limit: int) -> None:
    """List the newest commands of PIPELINE."""
    session.list(
        session.client.commands(pipeline, limit=limit),
        ("command", lambda found: name_of(found.number)),
        ("kind", lambda found: found.kind),
        ("state", lambda found: found.state),
        ("by", lambda found: found.by),
        ("at", lambda found: when(found.at)),
        ("arguments", _arguments),
        ("cause", lambda found: found.cause),
        none="no command",
    )


def _arguments(found: Command) -> str:
    """The arguments in one cell, without what `show` is for: a whole definition."""
    short = {name: value for name, value in found.arguments.items() if not isinstance(value, dict | list)}
    return ", ".join(f"{name} {value}" for name, value in short.items() if value not in (None, ""))


@group.command()
@pipeline_argument
@NUMBER
@asks
def show(session: Session, pipeline: str, number: int) -> None:
    """Show one command."""
    session.show(session.client.command(pipeline, number))


@group.command()
@pipeline_argument
@NUMBER
@click.option(
    "--wait",
    type=click.FloatRange(0, 86_400),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long at most.",
)
@asks
def wait(session: Session, pipeline: str, number: int, wait: float) -> None:
    """Wait until a command is carried out; the exit code is 1 if it is refused or fails."""
    session.report(session.client.wait_for_command(pipeline, number, wait=wait))


@group.command()
@pipeline_argument
@NUMBER
@orders
def cancel(session: Session, pipeline: str, number: int, wait: float) -> None:
    """Cancel a command, as long as it has no effect that lasts."""
    session.report(session.client.cancel_command(pipeline, number, wait=wait))


@click.command("events")
@pipeline_argument
@click.option("--follow", "-f", is_flag=True, help="Print events as they come, until Ctrl-C.")
@click.option("--after", metavar="ID", help="With --follow: from the event after this one.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only events of this kind; may be repeated."
)
@click.option("--all", "every", is_flag=True, help="Also publications, one of which comes with every interval.")
@limit_option
@asks
def events(
    session: Session, pipeline: str, follow: bool, after: str | None, kinds: tuple[str, ...], every: bool, limit: int
) -> None:
    """Print the newest events of PIPELINE, oldest first: epochs, savepoints, phases of tables, ends of commands,
    conditions that began or ended; with --all publications too."""
    kind = None if every else ",".join(kinds or (each for each in KINDS if each != DROWNING))
    if not follow:
        found = session.client.events(pipeline, kind=kind, limit=limit)[::-1]
        if session.as_json:
            click.echo(json.dumps(plain(found), indent=1))
        else:
            for event in found:
                click.echo(_line(event))
        return
    for event in session.client.follow(pipeline, after=after, kind=kind):
        click.echo(event.model_dump_json() if session.as_json else _line(event))


def _line(event: Event) -> str:
    return f"{when(event.at)}  {event.id}  {event.text}"


COMMANDS = (group, events)
