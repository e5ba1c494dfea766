"""`cutline pipeline`: definitions and live operations of pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click
import yaml

from cutline.common.config.pipeline import absolute_warehouse
from cutline.common.errors import ConfigError
from cutline.services.client.rest.models import Finding, Pipeline, Plan
from cutline.services.run.cli.condition import print_conditions
from cutline.services.run.cli.printing import name_of, plain, print_json
from cutline.services.run.cli.remote import Session, asks, orders, pipeline_argument
from cutline.services.run.conditions import answered
from cutline.services.run.figures import number, size, span, when
from cutline.services.run.picture import state_of

FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
YES = click.option("--yes", is_flag=True, help="Don't ask.")
NOTE = click.option("--note", metavar="TEXT", help="Why, for the list of versions.")


def content_of(file: Path) -> dict[str, Any]:
    """The content of a pipeline file as it is: the control service checks it, and finds passwords where it runs.

    Only a relative folder of the lake is made absolute, as `cutline run` does: beside the file, or from the current
    folder if the file is standard input.
    """
    given = str(file) == "-"
    content = _mapping(str(file), click.get_binary_stream("stdin").read() if given else file.read_bytes())
    sink = content.get("sink")
    if isinstance(sink, dict) and isinstance(warehouse := sink.get("warehouse"), str) and warehouse:
        folder = Path.cwd() if given else file.resolve().parent
        return {**content, "sink": {**sink, "warehouse": absolute_warehouse(warehouse, folder)}}
    return content


def _mapping(name: str, text: bytes | str) -> dict[str, Any]:
    """The mapping that this YAML holds, as JSON can send it: a time as text, as in ISO 8601."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not YAML ({' '.join(str(error).split())})", "correct it") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is not a mapping of settings", "see docs/settings.md")
    try:
        sent: dict[str, Any] = json.loads(json.dumps(found, default=_time, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} has a value that is no setting ({error})", "see docs/settings.md") from error
    return sent


def _time(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not text, number, list or mapping")


@click.group("pipeline")
def group() -> None:
    """Create, change, pause and stop pipelines, by the control service."""


@group.command("list")
@click.option("--tag", metavar="KEY:VALUE", help="Only pipelines with this tag.")
@asks
def list_(session: Session, tag: str | None) -> None:
    """List the pipelines, below the conditions that somebody must act on."""
    found = list(session.client.each_pipeline(tag=tag))
    if not session.as_json:
        conditions = answered(each for pipeline in found for each in pipeline.conditions)
        if conditions:
            print_conditions(conditions)
            click.echo()
    session.list(
        found,
        ("pipeline", lambda found: found.name),
        ("state", state_of),
        ("conditions", _counts),
        ("tables", _phases),
        ("checkpoint", lambda found: name_of(found.checkpoint)),
        ("published", lambda found: when(found.published_at)),
        ("waiting for", _waits),
        none="there is no pipeline; create one with `cutline pipeline create FILE`",
    )


def _phases(found: Pipeline) -> str:
    return ", ".join(f"{number(count)} {phase}" for phase, count in found.tables.items())


def _counts(found: Pipeline) -> str:
    """How many of its conditions nobody has acknowledged, by severity."""
    severities = [each.severity for each in found.conditions if each.acknowledged is None]
    return ", ".join(f"{severities.count(each)} {each}" for each in dict.fromkeys(severities))


def _waits(found: Pipeline) -> object:
    """What holds it up; if it has conditions, which stand above, they say why."""
    if found.conditions:
        return None if found.waiting_for is None else found.waiting_for.what
    return found.halted or found.waiting_for


@group.command()
@pipeline_argument
@asks
def show(session: Session, pipeline: str) -> None:
    """Show one pipeline: its definition and its state."""
    session.show(session.client.pipeline(pipeline))


@group.command()
@click.argument("file", type=FILE)
@click.option("--dry-run", is_flag=True, help="Only show what it would do; the exit code is 1 if it is impossible.")
@asks
def create(session: Session, file: Path, dry_run: bool) -> None:
    """Create a pipeline from FILE (a pipeline.yaml; - for standard input); the mesh then runs it."""
    if dry_run:
        _show_plan(session, session.client.plan_pipeline(content_of(file)))
        return
    made = session.client.create_pipeline(content_of(file))
    if session.as_json:
        print_json(made)
    else:
        click.echo(f"pipeline {made.name} is defined, version {made.version}")


@group.command()
@pipeline_argument
@click.argument("file", type=FILE)
@asks
def plan(session: Session, pipeline: str, file: Path) -> None:
    """Show what the definition in FILE would change; the exit code is 1 if that is impossible."""
    _show_plan(session, session.client.plan_change(pipeline, content_of(file)))


def _show_plan(session: Session, found: Plan) -> None:
    """Print a plan; the exit code is 1 if it is impossible."""
    if not show_plan(found, as_json=session.as_json):
        sys.exit(1)


def show_plan(found: Plan, *, as_json: bool, place: Callable[[str], str] = str) -> bool:
    """Print a plan, and if it is impossible its faults to stderr; return whether it is possible. `place` says where a
    place of the definition is."""
    faults = [finding for finding in found.findings if not finding.ok]
    if as_json:
        print_json(found)
    else:
        _print_plan(found, [] if found.possible else faults)
    if not found.possible:
        for fault in faults:
            where = "" if fault.table is None or fault.table in fault.found else f" {fault.table}"
            about = f"{fault.check}{where}" if fault.place is None else place(fault.place)
            click.echo(f"cutline: {about}: {_with_remedy(fault.found, fault.remedy)}", err=True)
    return found.possible


def _print_plan(found: Plan, apart: Sequence[Finding]) -> None:
    for finding in found.findings:
        if finding not in apart:
            remedy = None if finding.ok else finding.remedy
            click.echo(f"{'ok  ' if finding.ok else 'note'} {finding.check}: {_with_remedy(finding.found, remedy)}")
    for change in found.changes:
        before, after = json.dumps(change.before), json.dumps(change.after)
        click.echo(f"{'' if change.possible else 'IMPOSSIBLE: '}{change.key}: {before} -> {after}: {change.effect}")
    for table in found.tables:
        is_read = table.action in ("read", "read again")
        rows = f"{number(table.rows)} rows" if table.rows is not None else ""
        about = ", ".join(filter(None, (rows, size(table.bytes), span(table.seconds)))) if is_read else ""
        causes = f": {'; '.join(table.causes)}" if table.causes else ""
        click.echo(f"{table.action:12} {table.table} {about}".rstrip() + causes)
    if any(table.action in ("read", "read again") for table in found.tables):
        click.echo(f"{number(found.rows)} rows, {size(found.bytes)}, about {span(found.seconds)} ({found.rate})")
    elif found.possible:
        click.echo("no table is read")


def _with_remedy(what: str, remedy: str | None) -> str:
    return f"{what}; {remedy}" if remedy else what


@group.command()
@pipeline_argument
@click.argument("file", type=FILE)
@click.option("--if-match", metavar="ETAG", help="Only if the pipeline still has this ETag.")
@NOTE
@orders
def replace(
    session: Session, pipeline: str, file: Path, if_match: str | None, note: str | None, wait: float
) -> None:
    """Replace the definition of a pipeline by FILE."""
    content = content_of(file)
    session.report(session.client.replace_pipeline(pipeline, content, if_match=if_match, note=note, wait=wait))


@group.command()
@pipeline_argument
@click.argument("patch", metavar="PATCH")
@click.option("--if-match", metavar="ETAG", help="Only if the pipeline still has this ETag.")
@NOTE
@orders
def patch(
    session: Session, pipeline: str, patch: str, if_match: str | None, note: str | None, wait: float
) -> None:
    """Change parts of a definition: PATCH is JSON or YAML, as in '{checkpoint: {interval_seconds: 5}}'; null gives a
    setting its default."""
    content = _mapping("PATCH", patch)
    session.report(session.client.patch_pipeline(pipeline, content, if_match=if_match, note=note, wait=wait))


@group.command()
@pipeline_argument
@click.option("--purge", is_flag=True, help="Drop the lake tables that it wrote, too.")
@YES
@orders
def delete(session: Session, pipeline: str, purge: bool, yes: bool, wait: float) -> None:
    """Delete a pipeline with all that the store has of it; the lake tables stay without --purge."""
    if not yes:
        also = " and drop its lake tables" if purge else ""
        click.confirm(f"Delete the pipeline {pipeline}{also}?", abort=True, err=True)
    session.report(session.client.delete_pipeline(pipeline, purge=purge, wait=wait))


@group.command("leave-lake")
@pipeline_argument
@YES
@orders
def leave_lake(session: Session, pipeline: str, yes: bool, wait: float) -> None:
    """End the purge of a pipeline that is being deleted: its lake tables stay, for a lake that can't be reached."""
    if not yes:
        click.confirm(f"Delete the pipeline {pipeline} without its lake tables?", abort=True, err=True)
    session.report(session.client.leave_lake(pipeline, wait=wait))


@group.command()
@pipeline_argument
@click.option("--show", type=click.IntRange(min=1), metavar="VERSION", help="Print the content of one version.")
@click.option("--restore", type=click.IntRange(min=1), metavar="VERSION", help="Bring a version back, as a new one.")
@orders
def versions(session: Session, pipeline: str, show: int | None, restore: int | None, wait: float) -> None:
    """List the versions of a definition, print one, or bring one back."""
    if restore is not None:
        session.report(session.client.restore_version(pipeline, restore, wait=wait))
    elif show is not None:
        found = session.client.version(pipeline, show)
        if session.as_json:
            print_json(found)
        else:
            click.echo(yaml.safe_dump(plain(found)["definition"], sort_keys=False, allow_unicode=True), nl=False)
    else:
        session.list(
            list(session.client.each_version(pipeline)),
            ("version", lambda found: name_of(found.version)),
            ("at", lambda found: when(found.at)),
            ("by", lambda found: found.by),
            ("command", lambda found: name_of(found.command)),
            ("note", lambda found: found.note),
            none="there is no version",
        )


@group.command()
@pipeline_argument
@orders
def pause(session: Session, pipeline: str, wait: float) -> None:
    """Pause a pipeline: nothing is read until it is resumed."""
    session.report(session.client.pause(pipeline, wait=wait))


@group.command()
@pipeline_argument
@orders
def resume(session: Session, pipeline: str, wait: float) -> None:
    """Resume a paused pipeline."""
    session.report(session.client.resume(pipeline, wait=wait))


@group.command()
@pipeline_argument
@click.option("--savepoint", metavar="NAME", help="The name of the last savepoint.")
@orders
def stop(session: Session, pipeline: str, savepoint: str | None, wait: float) -> None:
    """Stop a pipeline with a savepoint."""
    session.report(session.client.stop(pipeline, savepoint=savepoint, wait=wait))


@group.command()
@pipeline_argument
@orders
def start(session: Session, pipeline: str, wait: float) -> None:
    """Start a stopped pipeline."""
    session.report(session.client.start(pipeline, wait=wait))


@group.command()
@pipeline_argument
@click.argument("checkpoint", type=click.IntRange(min=1))
@YES
@orders
def restore(session: Session, pipeline: str, checkpoint: int, yes: bool, wait: float) -> None:
    """Go back to CHECKPOINT, a checkpoint's or savepoint's number; what came after it is read again."""
    if not yes:
        click.confirm(f"Restore {pipeline} to checkpoint {checkpoint}?", abort=True, err=True)
    session.report(session.client.restore(pipeline, checkpoint, wait=wait))


@group.command("read-again")
@pipeline_argument
@YES
@orders
def read_again(session: Session, pipeline: str, yes: bool, wait: float) -> None:
    """Read every table again from its beginning; also of a pipeline that halted since its binlog is gone."""
    if not yes:
        click.confirm(f"Read every table of {pipeline} again?", abort=True, err=True)
    session.report(session.client.read_again(pipeline, wait=wait))


@group.command()
@pipeline_argument
@click.option("--rows-per-second", type=click.FloatRange(min=0, min_open=True), help="Rows, all readers together.")
@click.option("--bytes-per-second", type=click.FloatRange(min=0, min_open=True), help="Bytes of decoded rows.")
@click.option("--lift", is_flag=True, help="Lift all limits.")
@orders
def limits(
    session: Session,
    pipeline: str,
    rows_per_second: float | None,
    bytes_per_second: float | None,
    lift: bool,
    wait: float,
) -> None:
    """Show how fast a pipeline may read chunks, or limit it; a limit that is not given then is lifted."""
    if lift or rows_per_second is not None or bytes_per_second is not None:
        session.report(
            session.client.set_limits(
                pipeline, rows_per_second=rows_per_second, bytes_per_second=bytes_per_second, wait=wait
            )
        )
    else:
        session.show(session.client.limits(pipeline))


COMMANDS = (group,)
