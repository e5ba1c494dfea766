"""`cutline checkpoint`, `cutline savepoint` and `cutline cuts`."""

from __future__ import annotations

import time

import click

from cutline.services.client.rest.models import Checkpoint, Cut, CutAnswer
from cutline.services.run.cli.printing import name_of, print_json
from cutline.services.run.cli.remote import Session, asks, limit_option, orders, pipeline_argument
from cutline.services.run.figures import dated, size, span, when

NUMBER = click.argument("number", type=click.IntRange(min=1))


@click.group("checkpoint")
def checkpoints() -> None:
    """Look at checkpoints, and take one now."""


@checkpoints.command("list")
@pipeline_argument
@limit_option
@asks
def list_(session: Session, pipeline: str, limit: int) -> None:
    """List the newest checkpoints of PIPELINE."""
    session.list(
        session.client.checkpoints(pipeline, limit=limit),
        ("checkpoint", lambda found: name_of(found.number)),
        ("epoch", lambda found: name_of(found.epoch)),
        ("written", lambda found: when(found.written_at)),
        ("took", _took),
        ("rows", lambda found: found.staged_rows),
        ("staged", lambda found: size(found.staged_bytes)),
        ("applied in", lambda found: span(found.apply.seconds) if found.apply else None),
        ("published", lambda found: found.published),
        ("kept", lambda found: found.name or found.kept),
        none="no checkpoint yet",
    )


def _took(found: Checkpoint) -> str:
    return "" if found.started_at is None else span(found.written_at - found.started_at)


@checkpoints.command()
@pipeline_argument
@NUMBER
@asks
def show(session: Session, pipeline: str, number: int) -> None:
    """Show one checkpoint: each member's part, and the marker's way through the mesh."""
    found = session.client.checkpoint(pipeline, number)
    session.show(found)


@checkpoints.command()
@pipeline_argument
@orders
def take(session: Session, pipeline: str, wait: float) -> None:
    """Take a checkpoint of PIPELINE now."""
    session.report(session.client.take_checkpoint(pipeline, wait=wait))


@click.group("savepoint")
def savepoints() -> None:
    """Checkpoints that are kept until you delete them."""


@savepoints.command("list")
@pipeline_argument
@asks
def list_savepoints(session: Session, pipeline: str) -> None:
    """List the savepoints of PIPELINE."""
    session.list(
        session.client.savepoints(pipeline),
        ("checkpoint", lambda found: name_of(found.number)),
        ("name", lambda found: found.name),
        ("written", lambda found: when(found.written_at)),
        ("published", lambda found: found.published),
        none="no savepoint",
    )


@savepoints.command("take")
@pipeline_argument
@click.argument("name", required=False)
@orders
def take_savepoint(session: Session, pipeline: str, name: str | None, wait: float) -> None:
    """Take a savepoint of PIPELINE, called NAME."""
    session.report(session.client.take_savepoint(pipeline, name, wait=wait))


@savepoints.command("delete")
@pipeline_argument
@NUMBER
@orders
def delete_savepoint(session: Session, pipeline: str, number: int, wait: float) -> None:
    """Delete the savepoint of this checkpoint NUMBER."""
    session.report(session.client.delete_savepoint(pipeline, number, wait=wait))


@click.command("cuts")
@pipeline_argument
@click.option("--at", metavar="TIME", help="What the lake showed at this time (as in 2026-11-24T14:05:00Z).")
@click.option("--gtid", help="Which publication is the first that has these GTIDs.")
@click.option("--number", type=click.IntRange(min=1), help="What this publication shows of each table.")
@limit_option
@asks
def cuts(
    session: Session, pipeline: str, at: str | None, gtid: str | None, number: int | None, limit: int
) -> None:
    """List the publications of PIPELINE, or find the one that has a time or a GTID."""
    now = time.time()
    if at is not None or gtid is not None:
        found = session.client.cut_at(pipeline, at) if at is not None else session.client.cut_with(pipeline, gtid or "")
        _show_answer(session, found)
    elif number is not None:
        session.show(session.client.cut(pipeline, number))
    else:
        session.list(
            session.client.cuts(pipeline, limit=limit),
            ("publication", lambda cut: name_of(cut.number)),
            ("published", lambda cut: dated(cut.published_at, now)),
            ("source time", lambda cut: when(cut.source_time)),
            ("tables shown", lambda cut: f"{cut.shown} of {cut.tables_total}"),
            ("kept", lambda cut: cut.kept),
            none="nothing is published yet",
        )


def _show_answer(session: Session, found: CutAnswer) -> None:
    if session.as_json:
        print_json(found)
        return
    click.echo(f"shown: {_line(found.shown)}")
    click.echo(f"holds: {_line(found.holds)}")


def _line(cut: Cut | None) -> str:
    if cut is None:
        return "no publication"
    published, source_time = (dated(moment, time.time()) for moment in (cut.published_at, cut.source_time))
    return f"publication {cut.number} of {published}, with the source up to {source_time or 'an unknown time'}"


COMMANDS = (checkpoints, savepoints, cuts)
