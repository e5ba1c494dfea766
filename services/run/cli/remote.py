"""What the commands that ask the control service share: its address, the token, `--json`, waiting for a command."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import click
from click.shell_completion import CompletionItem
from pydantic import BaseModel

from cutline.services.client.rest.client import DEFAULT_URL, Client
from cutline.services.client.rest.errors import ApiError
from cutline.services.client.rest.models import Command
from cutline.services.run.cli.exits import exit_codes
from cutline.services.run.cli.printing import Column, print_columns, print_fields, print_json

P = ParamSpec("P")
WAIT_SECONDS = 60.0
COMPLETION_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A command's client of the API, and how it prints."""

    client: Client
    as_json: bool

    def list(self, items: Sequence[Any], *columns: Column, none: str) -> None:
        """Print a list."""
        if self.as_json:
            print_json(list(items))
        else:
            print_columns(items, columns, none=none)

    def show(self, found: BaseModel) -> None:
        """Print one thing."""
        if self.as_json:
            print_json(found)
        else:
            print_fields(found)

    def report(self, command: Command) -> None:
        """Print what became of a command."""
        if self.as_json:
            print_json(command)
            return
        result = ", ".join(f"{name} {value}" for name, value in command.result.items() if value is not None)
        click.echo(f"command {command.number} ({command.kind}): {command.state}" + (f", {result}" if result else ""))


def asks(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """Give a command the options `--url`, `--token` and `--json`, a session as its first argument, and exit codes."""

    @click.option(
        "--url", envvar="CUTLINE_API_URL", default=DEFAULT_URL, show_default=True, help="The control service's address."
    )
    @click.option("--token", envvar="CUTLINE_API_TOKEN", help="A token; CUTLINE_API_TOKEN hides it from `ps`.")
    @click.option("--json", "as_json", is_flag=True, help="Print the API's own answer, for scripts.")
    @exit_codes
    @functools.wraps(command)
    def wrapped(*args: Any, url: str, token: str | None, as_json: bool, **kwargs: Any) -> None:
        with Client(url, token=token) as client:
            command(Session(client=client, as_json=as_json), *args, **kwargs)

    return wrapped


def orders(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    """`asks`, for a command that changes something: it has the option `--wait` too."""
    waits = click.option(
        "--wait",
        type=click.FloatRange(0, 86_400),
        default=WAIT_SECONDS,
        show_default=True,
        metavar="SECONDS",
        help="Wait until it is carried out; 0: return once it is accepted.",
    )
    return waits(asks(command))


def _asked(names: Callable[[Client, click.Context], Sequence[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        url = context.params.get("url") or os.environ.get("CUTLINE_API_URL") or DEFAULT_URL
        token = context.params.get("token") or os.environ.get("CUTLINE_API_TOKEN")
        with suppress(ApiError), Client(url, token=token, timeout=COMPLETION_SECONDS) as client:
            return [CompletionItem(name) for name in names(client, context) if name.startswith(incomplete)]
        return []

    return complete


def _pipelines(client: Client, _: click.Context) -> list[str]:
    return [pipeline.name for pipeline in client.pipelines()]


def _tables(client: Client, context: click.Context) -> list[str]:
    return [table.table for table in client.tables(context.params["pipeline"], limit=1000)]


pipelines_completed = _asked(_pipelines)
pipeline_argument = click.argument("pipeline", shell_complete=pipelines_completed)
table_argument = click.argument("table", metavar="TABLE", shell_complete=_asked(_tables))
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Show the newest, so many."
)
