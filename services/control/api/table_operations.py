"""Live operations on one table of a pipeline: each becomes a command."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Literal

from pydantic import Field

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
    return await edit.define(version, stored, changed, "add_table")


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
    return await edit.define(version, stored, checked({**normal(stored), "tables": patterns}), "remove_table")


@routes.post(f"{_PATH}/pause", operation_id="pause_table", status_code=202, openapi_extra=asks_for("pause_table"))
async def pause(asked: Asked, table: TableName) -> CommandView:
    """Pause a table: the lake keeps showing its last publication; the other tables go on."""
    return await asked.command("pause_table", {"table": table})


@routes.post(f"{_PATH}/resume", operation_id="resume_table", status_code=202, openapi_extra=asks_for("resume_table"))
async def resume(asked: Asked, table: TableName) -> CommandView:
    """Go on with a paused table."""
    return await asked.command("resume_table", {"table": table})


@routes.post(
    f"{_PATH}/read-again", operation_id="read_table_again", status_code=202, openapi_extra=asks_for("read_table_again")
)
async def read_again(asked: Asked, table: TableName) -> CommandView:
    """Read a table again from its beginning; the lake shows the old content until the new one is complete."""
    return await asked.command("read_table_again", {"table": table})


@routes.post(f"{_PATH}/retry", operation_id="retry_table", status_code=202, openapi_extra=asks_for("retry_table"))
async def retry(asked: Asked, table: TableName) -> CommandView:
    """Retry a quarantined table, after its cause was removed."""
    return await asked.command("retry_table", {"table": table})


@routes.post(f"{_PATH}/forget", operation_id="forget_table", status_code=202, openapi_extra=asks_for("forget_table"))
async def forget(asked: Asked, table: TableName) -> CommandView:
    """Forget a table that was dropped at the source: it disappears from lists, and its lake table stays."""
    return await asked.command("forget_table", {"table": table})


@routes.post(f"{_PATH}/cancel", operation_id="cancel_table", status_code=202, openapi_extra=asks_for("cancel_table"))
async def cancel(asked: Asked, table: TableName) -> CommandView:
    """Cancel the addition of a table that is not live yet."""
    return await asked.command("cancel_table", {"table": table})


@routes.post(f"{_PATH}/lake", operation_id="choose_about_lake", status_code=202, openapi_extra=asks_for("lake"))
async def choose(asked: Asked, table: TableName, chosen: Choice) -> CommandView:
    """Choose about the commits of others for which a table is quarantined: `accept` keeps them, `overwrite` replaces
    them by the source's content. The choice is only about the commits that `seen` names, so it is refused if others
    commit again before it is carried out."""
    arguments = {"table": table, "choice": chosen.choice, "seen": chosen.seen}

    def allow(now: Situation) -> None:
        try:
            arguments["seen"] = now.status.choice(table, chosen.choice, seen=chosen.seen)
        except ConfigError as error:
            raise refused(409, error) from error

    return await asked.command("lake", arguments, allow)
