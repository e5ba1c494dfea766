"""`cutline table`: the tables of a pipeline, and operations on them."""

from __future__ import annotations

from typing import Literal

import click

from cutline.common.commands.kinds import TABLE_ORDERS, TableOrder
from cutline.services.run.cli.printing import because, name_of, print_json
from cutline.services.run.cli.remote import Session, asks, orders, pipeline_argument, table_argument
from cutline.services.run.figures import span, when


@click.group("table")
def group() -> None:
    """List tables, add and remove them, pause, read again and retry them."""


@group.command("list")
@pipeline_argument
@click.option("--phase", help="Only tables in this phase; several with commas between.")
@click.option("-q", "--search", "q", metavar="TEXT", help="Only tables whose name contains this.")
@asks
def list_(session: Session, pipeline: str, phase: str | None, q: str | None) -> None:
    """List the tables of PIPELINE."""
    session.list(
        list(session.client.each_table(pipeline, phase=phase, q=q)),
        ("table", lambda found: found.table),
        ("phase", lambda found: found.phase),
        ("since", lambda found: when(found.since)),
        ("generation", lambda found: name_of(found.generation)),
        ("rows", lambda found: found.rows_done if found.rows is None else found.rows),
        ("inserts", lambda found: found.inserts),
        ("updates", lambda found: found.updates),
        ("deletes", lambda found: found.deletes),
        ("rows/s", lambda found: found.rate_rows_per_second and round(found.rate_rows_per_second)),
        ("to go", lambda found: span(found.eta_seconds)),
        ("lag", lambda found: span(found.lag_seconds)),
        ("published", lambda found: name_of(found.published_checkpoint)),
        ("last change", lambda found: when(found.last_change_at)),
        ("cause", because),
        none="no table",
    )


@group.command()
@pipeline_argument
@table_argument
@asks
def show(session: Session, pipeline: str, table: str) -> None:
    """Show one table of PIPELINE."""
    session.show(session.client.table(pipeline, table))


@group.command()
@pipeline_argument
@table_argument
@asks
def schemas(session: Session, pipeline: str, table: str) -> None:
    """List the schemas that TABLE has had lately."""
    session.list(
        session.client.schemas(pipeline, table),
        ("schema", lambda found: found.schema_id),
        ("generation", lambda found: name_of(found.generation)),
        ("since", lambda found: when(found.since)),
        ("checkpoint", lambda found: name_of(found.since_checkpoint)),
        (
            "columns",
            lambda found: ", ".join(f"{column.name} {column.type}" for column in found.columns or ()),
        ),
        none="no schema yet",
    )


@group.command()
@pipeline_argument
@table_argument
@asks
def splits(session: Session, pipeline: str, table: str) -> None:
    """Show the chunks of TABLE's snapshot."""
    found = session.client.grid(pipeline, table)
    if session.as_json:
        print_json(found)
        return
    click.echo(f"{found.made} of about {found.total} chunks are made, in generation {found.generation}")
    session.list(
        found.runs,
        ("from", lambda run: name_of(run.first)),
        ("to", lambda run: name_of(run.last)),
        ("state", lambda run: run.state),
        ("reader", lambda run: run.reader),
        none="no chunk yet",
    )


@group.command()
@pipeline_argument
@table_argument
@orders
def add(session: Session, pipeline: str, table: str, wait: float) -> None:
    """Add TABLE (schema.table) with its history."""
    session.report(session.client.add_table(pipeline, table, wait=wait))


@group.command()
@pipeline_argument
@table_argument
@click.option("--yes", is_flag=True, help="Don't ask.")
@orders
def remove(session: Session, pipeline: str, table: str, yes: bool, wait: float) -> None:
    """Remove TABLE from the pipeline; the lake table stays as it is."""
    if not yes:
        click.confirm(f"Remove {table} from {pipeline}?", abort=True, err=True)
    session.report(session.client.remove_table(pipeline, table, wait=wait))


def _take(order: type[TableOrder]) -> None:
    """Make the command of an order about a table, of which nothing more is said."""

    @group.command(order.act, help=order.__doc__)
    @pipeline_argument
    @table_argument
    @orders
    def ask(session: Session, pipeline: str, table: str, wait: float) -> None:
        session.report(session.client.order_table(pipeline, table, order.act, wait=wait))


for _order in TABLE_ORDERS:
    _take(_order)


@group.command()
@pipeline_argument
@table_argument
@click.argument("choice", type=click.Choice(["accept", "overwrite"]))
@click.option("--seen", help="`seen` of `cutline table show`: refused if others committed since; default: now.")
@orders
def lake(
    session: Session,
    pipeline: str,
    table: str,
    choice: Literal["accept", "overwrite"],
    seen: str | None,
    wait: float,
) -> None:
    """Choose about other users' commits to the lake table of TABLE, for which it is quarantined."""
    session.report(session.client.choose_lake(pipeline, table, choice, seen=seen, wait=wait))


COMMANDS = (group,)
