"""The commands that need no control service."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from cutline.common import threads
from cutline.common.commands.kinds import Define
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig, load
from cutline.common.config.settings import settings_table
from cutline.common.errors import ConfigError
from cutline.common.limits import Limits
from cutline.common.store.store import PipelineStore, Store
from cutline.services.run import doctor, lake, running
from cutline.services.run.cli.exits import exit_codes
from cutline.services.run.preflight import check
from cutline.services.run.run import Run
from cutline.services.run.terminal import TerminalView
from cutline.services.run.until import Until
from cutline.services.run.workdir import default_workdir, redis_url_of, store_url_of
from cutline.spark_writer import classes, jars

P = ParamSpec("P")
PIPELINE_FILE = click.Path(path_type=Path)
REPLACE_SECONDS = 60.0
"""How long `define --replace` waits for the leader."""


def _choice(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the arguments of a choice."""
    command = click.option("--workdir", type=click.Path(path_type=Path, file_okay=False), help="As given to run.")(
        exit_codes(command)
    )
    return click.argument("pipeline", type=PIPELINE_FILE)(click.argument("table", metavar="TABLE")(command))


def workdir_of(pipeline: Path, config: PipelineConfig, given: Path | None) -> Path:
    """The work folder of a pipeline file; `given` on the command line."""
    return (given or default_workdir(pipeline, config)).resolve()


def _store_of(pipeline: Path, config: PipelineConfig, workdir: Path | None) -> PipelineStore:
    """The pipeline's part of the store that its run has, or would have."""
    url = store_url_of(workdir_of(pipeline, config, workdir), Environment.read())
    return Store(url).pipeline(config.name)


@click.command()
@click.argument("pipeline", type=PIPELINE_FILE)
@click.option(
    "--until",
    type=click.Choice(["snapshot", "caught-up"]),
    help="Stop when every table's snapshot is published, or when the lake has caught up with the source.",
)
@click.option(
    "--workdir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for logs, Redis and the store; .cutline/NAME beside PIPELINE by default.",
)
@click.option("--readers", type=click.IntRange(1, 64), help="Reader processes; workers.readers of PIPELINE by default.")
@click.option("--writers", type=click.IntRange(1, 64), help="Writer processes; workers.writers of PIPELINE by default.")
@click.option("--replace", "replaces", is_flag=True, help="Undo live changes: take the definition of PIPELINE.")
@click.option(
    "--read-again",
    "reads_again",
    is_flag=True,
    help="Read every table again from its beginning, such as when the source's binlog is gone.",
)
@exit_codes
def run(
    pipeline: Path,
    until: Until | None,
    workdir: Path | None,
    readers: int | None,
    writers: int | None,
    replaces: bool,
    reads_again: bool,
) -> None:
    """Run PIPELINE (a YAML file) on this machine until Ctrl-C; the same command resumes.

    If the stored definition has changed since (a table was added, say), the difference is printed and the stored one
    taken, or with --replace the file's.
    """
    config = load(pipeline)
    workers = config.workers.model_copy(
        update={"readers": readers or config.workers.readers, "writers": writers or config.workers.writers}
    )
    config = config.model_copy(update={"workers": workers})
    folder = workdir_of(pipeline, config, workdir)
    with TerminalView(config.name) as view:
        running_here = Run(
            config,
            Environment.read(),
            workdir=folder,
            until=until,
            view=view,
            replaces=replaces,
            reads_again=reads_again,
        )
        threads.run(running_here.go())


@click.command()
@click.option(
    "--repository", "repositories", multiple=True, metavar="URL", help="Another Maven repository to fetch from."
)
@click.option("--ivy-settings", type=click.Path(path_type=Path), help="An ivysettings.xml, which may name mirrors.")
@click.option(
    "--with",
    "extras",
    multiple=True,
    type=click.Choice(jars.all_extras()),
    help="Fetch also what a pipeline with this store or catalogue needs; may be repeated.",
)
@exit_codes
def setup(repositories: tuple[str, ...], ivy_settings: Path | None, extras: tuple[str, ...]) -> None:
    """Fetch Spark's jars, as the first `run` does too, and make an archive of Spark's classes, with which each start
    takes half the time (a minute once, 190 MB). Jars that are there already are verified, not fetched again.
    """
    settings = {"spark.jars.repositories": ",".join(repositories)} if repositories else {}
    if ivy_settings is not None:
        settings["spark.jars.ivySettings"] = str(ivy_settings.absolute())
    fetched = fetch_jars(extras, settings)
    outcome = f"fetched {', '.join(jar.file for jar in fetched)} into" if fetched else "Spark's jars are in"
    click.echo(f"{outcome} {jars.folder()}")
    try:
        archive = classes.make(jars.folder())
    except ConfigError as error:  # Spark starts without it too
        click.echo(f"no archive of Spark's classes could be made: {error}", err=True)
        return
    if archive is not None:
        click.echo(f"Spark starts with {archive}, in half the time")


def fetch_jars(extras: Collection[str], settings: Mapping[str, str]) -> tuple[jars.Jar, ...]:
    """Fetch the jars that are missing, with a bar on the terminal, and return them."""
    columns = (TextColumn("Spark's jars"), BarColumn(), DownloadColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)
        return jars.fetch(
            jars.folder(),
            extras=extras,
            settings=settings,
            progress=lambda done, total: bar.update(task, completed=done, total=total, visible=True),
        )


@click.command("doctor")
@click.argument("pipeline", type=PIPELINE_FILE, required=False)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object: ok, and findings, each with name, found, remedy, hinders and ok.",
)
@exit_codes
def examine(pipeline: Path | None, as_json: bool) -> None:
    """Report what this machine has and lacks for Cutline, and whether PIPELINE's source and store answer; which of its
    tables will be quarantined, and how its definition differs from the one in the store.

    The exit code is 1 if any check fails; a note is none.
    """
    findings = doctor.examine(pipeline, Environment.read())
    ok = all(finding.ok for finding in findings)
    if as_json:
        click.echo(
            json.dumps({"ok": ok, "findings": [asdict(finding) | {"ok": finding.ok} for finding in findings]}, indent=1)
        )
    else:
        doctor.show(findings, Console(highlight=False))
    sys.exit(0 if ok else 1)


@click.command()
@click.argument("pipeline", type=PIPELINE_FILE)
@click.option("--replace", "replaces", is_flag=True, help="If it has another definition, change it to this one.")
@exit_codes
def define(pipeline: Path, replaces: bool) -> None:
    """Check PIPELINE and its source, then define it in the store at CUTLINE_STORE_URL, for services elsewhere."""
    config, environment = load(pipeline), Environment.read()
    store_url = environment.need_store_url()
    found = Store(store_url).pipeline(config.name)
    definition = check(config, store_url=store_url, workdir=None, takes="file" if replaces else "same")
    if not replaces or found.definition() in (None, definition):
        found.define(definition)
        click.echo(f"pipeline {config.name} is defined in the store")
    else:
        click.echo(_replaced(found, definition))


def _replaced(store: PipelineStore, definition: Mapping[str, Any]) -> str:
    """Command another definition, and wait until a leader has carried it out. Returns what became of it."""
    wish = Define(base=store.definition_version(), definition=definition, note="cutline define --replace")
    command = running.ask(store, wish, by="cutline define")
    outcome = running.outcome_of(store, command, REPLACE_SECONDS)
    if outcome is None:
        return f"pipeline {store.name} takes its new definition (command {command.n}) once an enumerator leads it"
    if outcome.state != "done":
        cause = f"{outcome.cause}; {outcome.remedy}"
        raise ConfigError(f"the new definition of pipeline {store.name} was {outcome.state}: {cause}")
    return f"pipeline {store.name} has version {outcome.result['version']} of its definition"


@click.command()
@click.argument("table", metavar="TABLE")
@click.option(
    "--pipeline", type=PIPELINE_FILE, default=Path("pipeline.yaml"), show_default=True, help="The pipeline file."
)
@exit_codes
def where(table: str, pipeline: Path) -> None:
    """Print the path of the current Iceberg metadata file of TABLE (schema.table), for DuckDB's iceberg_scan."""
    click.echo(lake.where(load(pipeline), table))


@click.command()
@click.argument("pipeline", type=PIPELINE_FILE)
@click.option(
    "--rows-per-second", type=click.IntRange(min=1), help="Rows that all readers together may SELECT each second."
)
@click.option("--bytes-per-second", type=click.IntRange(min=1), help="The same, in bytes of decoded rows.")
@click.option("--workdir", type=click.Path(path_type=Path, file_okay=False), help="The folder given to `run`.")
@exit_codes
def throttle(pipeline: Path, rows_per_second: int | None, bytes_per_second: int | None, workdir: Path | None) -> None:
    """Limit how fast PIPELINE reads chunks, from now on and across restarts; a limit that is not given is lifted.

    It is the command `limits`: in force until the next one, or until a definition with other limits comes into force.
    """
    config = load(pipeline)
    store = _store_of(pipeline, config, workdir)
    running.throttle(store, Limits(rows_per_second=rows_per_second, bytes_per_second=bytes_per_second))
    rates = [
        f"{rate:,} {unit} a second" for rate, unit in ((rows_per_second, "rows"), (bytes_per_second, "bytes")) if rate
    ]
    click.echo(f"pipeline {config.name} reads chunks at {' and '.join(rates) or 'any speed'}")


@click.group("lake")
def lake_group() -> None:
    """Choose what becomes of other users' commits to a lake table, for which the Spark writer has quarantined it."""


@lake_group.command()
@_choice
def accept(pipeline: Path, table: str, workdir: Path | None) -> None:
    """Keep what others committed to TABLE (schema.table), and apply later changes of the source on top of it."""
    _choose(pipeline, table, workdir, "accept")


@lake_group.command()
@_choice
def overwrite(pipeline: Path, table: str, workdir: Path | None) -> None:
    """Replace what others committed to TABLE (schema.table) by what the source has."""
    _choose(pipeline, table, workdir, "overwrite")


def _choose(pipeline: Path, table: str, workdir: Path | None, choice: str) -> None:
    config = load(pipeline)
    url = redis_url_of(workdir_of(pipeline, config, workdir), Environment.read())
    store = _store_of(pipeline, config, workdir)
    running.choose(store, threads.run(running.status_of(url, store)), table, choice)
    click.echo(f"{table}: the choice to {choice} is kept; the table goes on with the next checkpoint")


@click.command()
def settings() -> None:
    """Print every setting, of the environment and of the pipeline file, as the table in docs/settings.md."""
    click.echo(settings_table(), nl=False)


COMMANDS = (run, setup, examine, define, where, throttle, lake_group, settings)
