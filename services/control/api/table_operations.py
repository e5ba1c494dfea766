"""Live operations on one table of a pipeline: each becomes a command."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from cutline.common.commands import kinds
from cutline.common.config.globs import TableGlob, select_tables
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.config.source import SourceConfig
from cutline.common.errors import ConfigError
from cutline.common.table_id import glob_of, split_names, table_id_of
from cutline.services.control.api.commands import Asked
from cutline.services.control.api.definitions import checked, normal
from cutline.services.control.api.dependencies import TableName, asks_for, router
from cutline.services.control.api.editing import Edited
from cutline.services.control.api.models import Body, CommandView
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.situation import Situation
from cutline.services.sources.mysql.catalogue import list_tables
from cutline.services.sources.mysql.hosts import Hosts

routes = router("tables")
_PATH = "/pipelines/{pipeline}/tables/{table}"


class Choice(Body):
    """A choice about the commits of others to a lake table."""

    choice: Literal["accept", "overwrite"] = Field(examples=["accept"])
    seen: str | None = Field(
        default=None,
        max_length=200,
        description="`seen` of the table, as it was when you chose: if others committed since, the choice is refused;"
        " null: as it is now",
        examples=["4358109269873137077/0"],
    )


class NewTable(Body):
    """A table, or a glob on several, to be captured too."""

    table: TableGlob = Field(max_length=300, description="schema.table, or a glob on it", examples=["shop.returns"])


@routes.post(
    "/pipelines/{pipeline}/tables", operation_id="add_table", status_code=202, openapi_extra=asks_for("add_table")
)
async def add(edit: Edited, wanted: NewTable) -> CommandView:
    """Add a table with its history: it is read while the others go on. An exclusion of just that table ends."""
    version, stored = await edit.base()
    config = PipelineConfig.from_definition(stored)
    glob = table_id_of(*split_names(wanted.table))
    patterns = [pattern for pattern in config.tables if pattern != f"!{glob}"]
    if glob not in patterns and not select_tables(patterns, [glob]):
        patterns.append(glob)
    if patterns == list(config.tables):
        raise Refused(409, f"pipeline {config.name} captures {glob} already", "GET .../tables lists its tables")
    changed = checked({**normal(stored), "tables": patterns})
    try:
        names = await edit.asked.shared.sources.run(partial(_names, config.source), config.source)
    except ConfigError as error:
        raise refused(409, error) from error
    if not changed.select(select_tables([glob], names)):
        cause = f"the source has no table that {glob} matches"
        raise Refused(409, cause, "correct the name, or GRANT SELECT on the table")
    return await edit.define(version, stored, changed)


def _names(source: SourceConfig) -> list[str]:
    with closing(Hosts(source).connect()) as connection:
        return list_tables(connection)


@routes.delete(_PATH, operation_id="remove_table", status_code=202, openapi_extra=asks_for("remove_table"))
async def remove(edit: Edited, table: TableName) -> CommandView:
    """Remove a table from the pipeline; its lake table stays as it is."""
    version, stored = await edit.base()
    config = PipelineConfig.from_definition(stored)
    (await edit.asked.situation()).need_table(table)
    only_it = glob_of(table)
    patterns = [pattern for pattern in config.tables if pattern != only_it]
    if select_tables(patterns, [table]):
        patterns.append(f"!{only_it}")
    if not any(not pattern.startswith("!") for pattern in patterns):
        raise Refused(409, f"{table} is the last table of pipeline {config.name}", "delete the pipeline instead")
    return await edit.define(version, stored, checked({**normal(stored), "tables": patterns}))


def _take(order: type[kinds.TableOrder]) -> None:
    """Make the route of an order about a table, of which nothing more is said."""

    async def ask(asked: Asked, table: TableName) -> CommandView:
        return await asked.command(order(table=table))

    ask.__doc__ = order.__doc__
    routes.add_api_route(
        f"{_PATH}/{order.act}",
        ask,
        methods=["POST"],
        name=order.act.replace("-", "_"),
        operation_id=order.kind,
        status_code=202,
        openapi_extra=asks_for(order.kind),
    )


for _order in kinds.TABLE_ORDERS:
    _take(_order)


@routes.post(f"{_PATH}/lake", operation_id="choose_about_lake", status_code=202, openapi_extra=asks_for("lake"))
async def choose(asked: Asked, table: TableName, chosen: Choice) -> CommandView:
    """Choose about the commits of others for which a table is quarantined: `accept` keeps them, `overwrite` replaces
    them by the source's content. The choice is only about the commits that `seen` names, so it is refused if others
    commit again before it is carried out."""
    wish = kinds.ChooseAboutLake(table=table, choice=chosen.choice, seen=chosen.seen)

    def exact(now: Situation) -> kinds.Wish:
        try:
            return replace(wish, seen=now.status.choice(table, chosen.choice, seen=chosen.seen))
        except ConfigError as error:
            raise refused(409, error) from error

    return await asked.command(wish, exact=exact)
