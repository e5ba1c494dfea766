"""A change of a pipeline's definition: made from a version, checked, and asked for as a command."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Header, Query

from cutline.common.commands.kinds import CancelTable, Define
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError
from cutline.services.control.api import definitions
from cutline.services.control.api.analysis import refuse_rules
from cutline.services.control.api.commands import Asked
from cutline.services.control.api.models import CommandView
from cutline.services.control.api.named import reach
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.situation import Situation
from cutline.services.control.store_calls import in_store
from cutline.services.sources.mysql.preflight import check_source
from cutline.spark_writer.sinks.iceberg import catalogue

Match = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=200,
        examples=['"3"'],
        description="ETag of the pipeline as you know it, or its definition's version: another one is refused (412)",
    ),
]
Note = Annotated[str | None, Query(max_length=500, description="why, for the list of versions", examples=["fresher"])]


class Edit:
    """A change of a definition: which version it was made from."""

    def __init__(self, asked: Asked, match: Match = None, note: Note = None) -> None:
        """Take what the request brings; FastAPI calls it."""
        self.asked = asked
        self._match = match
        self._note = note

    async def base(self) -> tuple[int, dict[str, Any]]:
        """The version in force, with its content. Raises Refused (412) if If-Match names another one."""
        found = self.asked.found
        version = await in_store(found.definition_version)
        self._compare(version)
        return version, await in_store(found.definition, version) or {}

    def _compare(self, version: int) -> None:
        if self._match is None or self._match.strip() == "*":
            return
        wanted = [tag.strip().removeprefix("W/").strip('"').partition("-")[0] for tag in self._match.split(",")]
        if str(version) not in wanted:
            raise Refused(
                412,
                f"the definition is version {version} now, not {' or '.join(wanted)}",
                "look at the newest version, and make your change there",
            )

    async def define(
        self,
        base: int,
        stored: Mapping[str, Any],
        config: PipelineConfig,
        *,
        known: Mapping[str, Any] | None = None,
    ) -> CommandView:
        """Have this definition take effect, in the place of the version `base` with the content `stored`. What `known`,
        an earlier version, names of this machine, it may name too."""
        definitions.allow(config, self.asked.shared.secrets, known or stored)
        changed = definitions.differences(definitions.normal(stored), config.definition())
        if not changed:
            raise Refused(409, f"version {base} of the definition is the same", "there is nothing to do")
        definitions.refuse_immutable(changed)
        if any(key.startswith("source.") for key in changed):
            await self._check_source(config)
        if changed.keys() & {"table_options", "derived"}:
            await refuse_rules(self.asked.shared, config, before=PipelineConfig.from_definition(stored))

        def allow(now: Situation) -> None:
            if pending := next((c for c in now.pending if isinstance(c.wish, Define | CancelTable)), None):
                raise Refused(
                    409 if self._match is None else 412,
                    f"command {pending.n} of {pending.by} is changing version {base} of the definition",
                    f"wait for it (GET .../commands/{pending.n}?wait=30s), and make your change to the new version",
                )

        wish = Define(base=base, definition=config.definition(), note=self._note)
        return await self.asked.command(wish, allow)

    async def _check_source(self, config: PipelineConfig) -> None:
        folds_case = catalogue.folds_case(config.definition()["sink"])
        try:
            run, check = self.asked.shared.sources.run, partial(check_source, begun=True, folds_case=folds_case)
            await run(partial(reach, config.source), config.source)
            await run(partial(check, config), config.source)
        except ConfigError as error:
            raise refused(422, error) from error


Edited = Annotated[Edit, Depends()]
