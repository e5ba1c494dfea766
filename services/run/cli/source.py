"""`cutline source` and `cutline schema`: what helps to write a pipeline file, asked of the control service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from cutline.common.errors import ConfigError
from cutline.services.client.rest.models import SourceTable, SourceTest
from cutline.services.run.cli.pipeline import FILE, content_of
from cutline.services.run.cli.printing import print_json
from cutline.services.run.cli.remote import Session, asks
from cutline.services.run.figures import size


def _source(content: dict[str, Any]) -> dict[str, Any]:
    found = content.get("source")
    if not isinstance(found, dict):
        raise ConfigError("the file has no section source", "see docs/settings.md")
    return found


@click.group("source")
def group() -> None:
    """Test the source of a pipeline file, and see what it has; needs the role admin."""


@group.command()
@click.argument("file", type=FILE)
@asks
def test(session: Session, file: Path) -> None:
    """Test the connection, grants and server settings of FILE's source; the exit code is 1 if there is a fault."""
    found = session.client.test_source(_source(content_of(file)))
    if session.as_json:
        print_json(found)
    else:
        _show(found)
    sys.exit(0 if found.ok else 1)


def _show(found: SourceTest) -> None:
    if found.server is not None:
        click.echo(found.server)
    for fault in found.faults:
        click.echo(f"FAULT {fault.detail}" + (f"; {fault.remedy}" if fault.remedy else ""))


@group.command()
@click.argument("file", type=FILE)
@asks
def schemas(session: Session, file: Path) -> None:
    """List the schemas (databases) of FILE's source."""
    session.list(
        session.client.source_schemas(_source(content_of(file))),
        ("schema", lambda found: found.name),
        ("tables", lambda found: found.tables),
        none="the user may see no schema; GRANT SELECT on some",
    )


@group.command()
@click.argument("file", type=FILE)
@click.option("--columns", is_flag=True, help="With each column's type at the source and in the lake.")
@asks
def tables(session: Session, file: Path, columns: bool) -> None:
    """List the tables that FILE selects, and what would quarantine them."""
    content = content_of(file)
    given = {"tables": content.get("tables"), "values": content.get("values")}
    found = list(session.client.each_source_table(_source(content), **given))
    if columns and not session.as_json:
        session.list(
            [(table, column) for table in found for column in table.columns],
            ("table", lambda each: each[0].table),
            ("column", lambda each: each[1].name),
            ("type", lambda each: each[1].type),
            ("in the lake", lambda each: each[1].lake_name),
            ("type there", lambda each: each[1].lake_type or "none"),
            ("nullable", lambda each: each[1].nullable),
            none="no table",
        )
        return
    session.list(
        found,
        ("table", lambda table: table.table),
        ("engine", lambda table: table.engine),
        ("rows", lambda table: table.rows),
        ("bytes", lambda table: size(table.bytes)),
        ("key", lambda table: ", ".join(table.key)),
        ("faults", _faults),
        none="no table",
    )


def _faults(table: SourceTable) -> str:
    return "; ".join(f"{fault.detail}; {fault.remedy}" if fault.remedy else fault.detail for fault in table.faults)


@click.command("schema")
@asks
def schema(session: Session) -> None:
    """Print the JSON Schema of pipeline.yaml, for editors."""
    print_json(session.client.definition_schema())


COMMANDS = (group, schema)
