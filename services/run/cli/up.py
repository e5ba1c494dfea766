"""`cutline up`: all services of this host by one command, and systemd units for the same."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cutline.common import threads
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError
from cutline.services.run.children import MODULES, Counts, command_of
from cutline.services.run.cli.exits import exit_codes
from cutline.services.run.cli.local import fetch_jars
from cutline.services.run.host import Host, check
from cutline.services.run.units import units

WORKDIR = Path(".cutline") / "_host"
_HOMES = ("/home/", "/root/")


@click.command()
@click.option(
    "--workdir",
    type=click.Path(path_type=Path, file_okay=False),
    default=WORKDIR,
    show_default=True,
    help="Folder for logs, Redis, and the store unless CUTLINE_STORE_URL is set.",
)
@click.option("--enumerators", type=click.IntRange(1, 16), default=2, show_default=True, help="A second one stands by.")
@click.option("--readers", type=click.IntRange(1, 64), default=2, show_default=True, help="Reader processes.")
@click.option("--writers", type=click.IntRange(1, 64), default=2, show_default=True, help="Writer processes.")
@click.option("--spark-writers", type=click.IntRange(1, 16), default=1, show_default=True, help="Each with a JVM.")
@click.option("--systemd", is_flag=True, help="Start nothing: print systemd units for the same services.")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="With --systemd: write them there.")
@exit_codes
def up(
    workdir: Path, enumerators: int, readers: int, writers: int, spark_writers: int, systemd: bool, to: Path | None
) -> None:
    """Run all services of this host until Ctrl-C, for the pipelines of the store at CUTLINE_STORE_URL.

    A Redis of its own is among them unless CUTLINE_REDIS_URL is set. Services that end are started again. With
    --systemd units are printed instead: a target, and a template for each role.
    """
    counts = Counts(enumerators=enumerators, readers=readers, writers=writers, spark_writers=spark_writers)
    if systemd:
        _write(_units(counts), to)
        return
    if to is not None:
        raise click.UsageError("--to needs --systemd")
    environment = Environment.read()
    folder = workdir.resolve()
    store_url = environment.store_url or f"file://{folder / 'store'}"
    extras = check(store_url, environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = f"the work folder {folder} can't be made ({error.strerror})"
        raise ConfigError(cause, "choose another with --workdir") from error
    fetch_jars(extras, {})
    threads.run(Host(counts, environment, workdir=folder, store_url=store_url, say=click.echo).go())


def _units(counts: Counts) -> dict[str, str]:
    commands = {role: command_of(role) for role in MODULES}
    commands["setup"] = [sys.executable, "-P", "-m", "cutline.services.run.cli", "setup"]
    return units(counts, command_of=commands, homes=sys.executable.startswith(_HOMES))


def _write(found: dict[str, str], folder: Path | None) -> None:
    """Print the units, each below its file's name; or write them into a folder."""
    for name, text in found.items():
        if folder is None:
            click.echo(f"# ---- {name}\n{text}")
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            cause = f"{folder / name} can't be written ({error.strerror})"
            raise ConfigError(cause, "choose another folder, or write there as root") from error
        click.echo(str(folder / name))


COMMANDS = (up,)
