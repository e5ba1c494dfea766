"""Exit codes of commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

import click

from cutline.common.errors import ConfigError, CutlineError
from cutline.services.client.rest.errors import ApiError, WrongRequest
from cutline.services.run.cli.hints import in_commands

P = ParamSpec("P")


def exit_codes(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into exit codes, with a sentence for each fault on stderr: 2 for a wrong configuration or request, 1
    for all others."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ConfigError as error:
            _end(2, *map(str, error.faults))
        except CutlineError as error:
            _end(1, str(error))
        except ApiError as error:
            faults = [f"{fault['detail']}; {fault['remedy']}" for fault in error.errors if fault.get("remedy")]
            _end(2 if isinstance(error, WrongRequest) else 1, *map(in_commands, faults or [str(error)]))
        except KeyboardInterrupt:
            _end(1, "interrupted")

    return wrapped


def _end(code: int, *sentences: str) -> None:
    for sentence in sentences:
        click.echo(f"cutline: {sentence}", err=True)
    sys.exit(code)
