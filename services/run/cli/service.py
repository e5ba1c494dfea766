"""`cutline services`, `cutline logs` and `cutline channels`."""

from __future__ import annotations

import click

from cutline.services.client.rest.models import Service
from cutline.services.run.cli.printing import print_json
from cutline.services.run.cli.remote import Session, asks, pipeline_argument
from cutline.services.run.figures import size, span, when


@click.command("services")
@asks
def services(session: Session) -> None:
    """List the service processes."""
    session.list(
        session.client.services(),
        ("role", lambda found: found.role),
        ("incarnation", lambda found: found.incarnation),
        ("host", lambda found: found.host),
        ("pid", lambda found: str(found.pid)),
        ("since", lambda found: when(found.started_at)),
        ("memory", lambda found: size(found.rss_bytes)),
        ("CPU", lambda found: span(found.cpu_seconds)),
        ("does", work_of),
        none="no service is alive; start some, as with `cutline run`",
    )


def work_of(found: Service) -> str:
    """What a service does, in a few words."""
    words = [f"leads {name}" for name in found.leads]
    words += [f"{member} of {name}" for name, member in found.members.items()]
    words += ["is leaving"] * found.leaving + ["is starting"] * found.starting
    return ", ".join(words)


@click.command("logs")
@click.argument("incarnation")
@click.option(
    "--lines", "-n", type=click.IntRange(1, 500), default=100, show_default=True, help="The last lines, so many."
)
@asks
def logs(session: Session, incarnation: str, lines: int) -> None:
    """Print the last log lines of a service; INCARNATION is as `cutline services` lists it."""
    found = session.client.logs(incarnation, lines=lines)
    if session.as_json:
        print_json(found)
        return
    for line in found:
        click.echo(f"{when(line.at)} {line.level} {line.logger}: {line.text}")


@click.command("channels")
@pipeline_argument
@asks
def channels(session: Session, pipeline: str) -> None:
    """List the channels of PIPELINE's mesh."""
    session.list(
        session.client.channels(pipeline),
        ("from", lambda found: found.sender),
        ("to", lambda found: found.receiver),
        ("outstanding", lambda found: size(found.outstanding_bytes)),
        ("credit", lambda found: size(found.credit_bytes)),
        ("sent", lambda found: found.sent),
        ("taken", lambda found: found.taken),
        ("current", lambda found: found.current),
        none="the pipeline has no epoch now",
    )


COMMANDS = (services, logs, channels)
