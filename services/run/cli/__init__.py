"""The command line. Exit codes: 0 done, 1 failed (the cause on stderr), 2 wrong usage or configuration.

| file | commands |
|---|---|
| `local.py` | those that need no control service: run, setup, doctor, define, where, throttle, lake, settings |
| `planning.py` | plan, which needs none either |
| `up.py` | all services of this host, and their systemd units |
| `access.py`, `checkpoint.py`, `command.py`, `condition.py`, `pipeline.py` | calls of the API |
| `service.py`, `source.py`, `table.py` | more of them |
| `watching.py` | status and top |
| `completion.py` | completion for shells |
| `remote.py`, `exits.py`, `hints.py`, `printing.py` | what the commands share |
"""

from __future__ import annotations

import click

from cutline.services.run.cli import (
    access,
    checkpoint,
    command,
    completion,
    condition,
    local,
    pipeline,
    planning,
    service,
    source,
    table,
    up,
    watching,
)

__all__ = ["main"]


@click.group()
@click.version_option(package_name="cutline")
def main() -> None:
    """Copy MySQL or MariaDB into an Iceberg lake, and keep the copy current."""


_MODULES = (
    local, planning, up, watching, condition, pipeline, table, checkpoint, command, service, access, source, completion,
)  # fmt: skip
for _module in _MODULES:
    for _command in _module.COMMANDS:
        main.add_command(_command)
