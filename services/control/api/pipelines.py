"""Pipelines: their definitions with all versions, and their state."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request, Response

from cutline.common.commands.kinds import Delete
from cutline.common.config.pipeline import PipelineConfig, shown
from cutline.common.errors import ConfigError, Unavailable
from cutline.common.status.pipeline_status import BinlogStatus, PipelineStatus
from cutline.common.store.definitions import DefinitionVersion
from cutline.common.store.store import PipelineStore
from cutline.services.control.api import definitions
from cutline.services.control.api.acknowledgements import view as condition_view
from cutline.services.control.api.analysis import by_spark_writers, refuse_rules
from cutline.services.control.api.definitions import checked, content_of, merged
from cutline.services.control.api.dependencies import Flag, Known, Shared, StoreNow, asks_for, role, router
from cutline.services.control.api.editing import Edited
from cutline.services.control.api.models import CommandView, DerivedView, PipelineView, VersionContent, VersionView
from cutline.services.control.api.named import reach
from cutline.services.control.api.paging import WholeList
from cutline.services.control.api.plan import Plan, plan
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.api.source_threads import ALL
from cutline.services.control.api.waiting import Wait, matches, until
from cutline.services.control.standing import Held
from cutline.services.control.store_calls import in_store
from cutline.services.control.watch import Status
from cutline.services.run.preflight import check, differences

routes = router("pipelines")
ADMIN = role("admin")
_NEW = "/v1/pipelines"
Version = Annotated[int, Path(ge=1, le=10**10 - 1, description="version of the definition", examples=[2])]

Tags = Annotated[
    list[str] | None, Query(description="only those with this tag, as name:value; all of several", examples=["team:a"])
]


@routes.get("/pipelines", operation_id="list_pipelines")
async def pipelines(
    shared: Shared,
    store: StoreNow,
    page: WholeList,
    tag: Tags = None,
) -> list[PipelineView]:
    """List the pipelines of the store."""
    wanted = [(name, value) for name, _, value in (each.partition(":") for each in tag or ())]
    chosen: list[PipelineStore] = []
    for pipeline in map(store.open, await in_store(store.lives)):
        if wanted:
            tags = (await in_store(pipeline.definition) or {}).get("tags", {})
            if any(tags.get(key) != value for key, value in wanted):
                continue
        chosen.append(pipeline)
    shown_ones = page.take(chosen, key=lambda pipeline: pipeline.name)
    looked = [(pipeline, await shared.watches.find(pipeline).status_now()) for pipeline in shown_ones]
    known = {pipeline.life: status.parts for pipeline, status in looked if status.away is None}
    held = await shared.standing.of_pipelines(known)
    found = [await _view(shared, pipeline, status, held) for pipeline, status in looked]
    return [view for view in found if view is not None]


@routes.get(
    "/pipelines/{pipeline}",
    operation_id="get_pipeline",
    response_model=PipelineView,
    responses={304: {"description": "it is as the ETag in If-None-Match says"}},
)
async def one_pipeline(
    found: Known,
    shared: Shared,
    response: Response,
    seconds: Wait,
    known: Annotated[str | None, Header(alias="If-None-Match", max_length=200)] = None,
) -> Response | PipelineView:
    """Return one pipeline. Its ETag changes with its definition and its state; `wait` waits for another ETag than that
    in If-None-Match, or for any change without that."""

    async def look() -> PipelineView:
        return await _known_view(shared, found)

    first = await look()
    before = known if known is not None else etag(first)
    view = await until(look, lambda view: not matches(before, etag(view)), seconds) if seconds else first
    if known is not None and matches(known, etag(view)):
        return Response(status_code=304, headers={"ETag": etag(view)})
    response.headers["ETag"] = etag(view)
    return view


def etag(view: PipelineView) -> str:
    """The ETag of a pipeline: its definition's version, and what its state is."""
    state = view.model_dump_json(exclude={"as_of", "source_time", "binlog_left_seconds", "rows_sent", "conditions"})
    known = [(each.id, each.acknowledged is not None) for each in view.conditions]
    return f'"{view.version}-{hashlib.sha256(f"{state}{known}".encode()).hexdigest()[:16]}"'


async def _known_view(shared: Shared, found: PipelineStore) -> PipelineView:
    status = await shared.watches.find(found).status_now()
    held = await shared.standing.of_pipelines({found.life: status.parts} if status.away is None else {})
    view = await _view(shared, found, status, held)
    if view is None:
        raise Refused(404, f"the store has no pipeline {found.name!r}", "GET /v1/pipelines lists them")
    return view


def _stored(found: PipelineStore) -> tuple[dict[str, Any] | None, int, str, int]:
    """The definition in force and its version, the mode, and how many commands wait."""
    version = found.definition_version()
    newest = found.commands.newest_outcome()
    waiting = found.commands.newest() - (newest.n if newest else 0)
    return found.definition(version) if version else None, version, newest.orders.mode if newest else "running", waiting


async def _view(shared: Shared, found: PipelineStore, now: Status, held: Sequence[Held]) -> PipelineView | None:
    """One pipeline, None if it was deleted in between."""
    definition, version, mode, waiting = await in_store(_stored, found)
    if definition is None:
        return None
    alive: set[str] = set()
    if now.away is None:
        alive = {service.incarnation for service in await shared.registry.services()}
    status, leader, spark = now.parts, now.leader, now.spark
    phases = [table.phase for table in now.tables.values()]
    return PipelineView(
        name=found.name,
        id=found.id,
        definition=shown("", definition),
        version=version,
        version_in_force=leader.definition,
        mode=mode,
        commands_waiting=max(0, waiting),
        tags=definition.get("tags", {}),
        derived={name: DerivedView(**dataclasses.asdict(each)) for name, each in spark.derived.items()},
        epoch=leader.epoch or None,
        leader=leader.leader,
        tables={phase: phases.count(phase) for phase in sorted(set(phases))},
        checkpoint=leader.checkpoint.number,
        checkpoint_completed_at=leader.checkpoint.completed_at,
        publication=spark.published,
        published_at=spark.published_at,
        source_time=spark.source_time,
        waiting_for=status.obstacle(),
        halted=leader.halted,
        spark_writer_error=None if spark.failure is None else spark.failure.cause,
        binlog_left_seconds=_left(leader.binlog),
        failures=leader.failures,
        retry_at=leader.retry_at,
        limits=None if leader.limits is None else dataclasses.asdict(leader.limits),
        spark_writer=spark.leader if spark.leader in alive else None,
        applied_by_spark=dict(spark.applied_by_spark),
        rows_sent=_rows_sent(status),
        current=leader.leader in alive,
        as_of=now.as_of,
        mode_since=leader.mode_since,
        halted_since=leader.halted_since,
        conditions=[condition_view(each) for each in held if each.finding.pipeline in (None, found.name)],
    )


def _rows_sent(status: PipelineStatus) -> int | None:
    """The rows of all readers of the epoch in progress, as they last reported them."""
    rows = [reader.rows_total for reader in status.readers.values() if reader.epoch == status.enumerator.epoch]
    return sum(rows) if rows else None


def _left(binlog: BinlogStatus | None) -> float | None:
    """Seconds until the source may remove binlog that is still needed, by the leader's last look at it."""
    left = None if binlog is None else binlog.left_seconds
    return None if binlog is None or left is None else max(0.0, left - max(0.0, time.time() - binlog.at))


# Create


@routes.post(
    "/pipelines",
    operation_id="create_pipeline",
    status_code=201,
    responses={200: {"model": PipelineView | Plan, "description": "the pipeline was there, or the plan of a dry run"}},
    openapi_extra=ADMIN,
)
async def create(
    request: Request,
    shared: Shared,
    response: Response,
    dry_run: Annotated[Flag, Query(description="only look what it would do")] = False,
) -> PipelineView | Plan:
    """Create a pipeline from the content of its pipeline.yaml, as JSON or YAML.

    The source, the store and the lake are checked first. The same content again is the same pipeline (200); other
    content under its name is refused (409).
    """
    config = checked(await content_of(request))
    found = _of_name(shared, config.name)
    stored, version, mode, _ = await in_store(_stored, found)
    if stored is not None:
        config = checked(config.definition(), base=stored)
    definitions.allow(config, shared.secrets, stored)
    if dry_run:
        response.status_code = 200
        return await _plan(shared, found, config, stored, version)
    if stored is None:
        try:
            await shared.sources.run(partial(reach, config.source), config.source)
            call = partial(check, config, store_url=shared.store.url, workdir=None)
            definition = await shared.sources.run(call, config.source, asked=ALL)
            await refuse_rules(shared, config)
        except (ConfigError, Unavailable) as error:
            raise refused(422, error) from error
        try:
            made = await in_store(found.define, definition)
        except ConfigError as error:  # another request was faster
            raise refused(409, error) from error
        response.status_code = 201 if made else 200
    else:
        _same(config, stored, mode)
        response.status_code = 200
    view = await _known_view(shared, found)
    response.headers["Location"] = f"{_NEW}/{config.name}"
    response.headers["ETag"] = etag(view)
    return view


def _of_name(shared: Shared, name: str) -> PipelineStore:
    try:
        return shared.store.pipeline(name)
    except ConfigError as error:
        raise refused(422, error) from error


def _same(config: PipelineConfig, stored: Mapping[str, Any], mode: str) -> None:
    if mode == "deleting":
        raise Refused(409, f"the pipeline {config.name} is being deleted", "wait until it is gone, or use another name")
    if found := differences(definitions.normal(stored), config.definition()):
        raise Refused(
            409,
            f"the name {config.name!r} is in use with other content ({', '.join(found)})",
            f"change that pipeline (PUT {_NEW}/{config.name}), or choose another name",
        )


async def _plan(
    shared: Shared, found: PipelineStore, config: PipelineConfig, stored: Mapping[str, Any] | None, version: int
) -> Plan:
    phases: dict[str, str] = {}
    if stored is not None:
        with suppress(Unavailable):
            tables = (await shared.registry.status(found.key)).tables
            phases = {name: table.phase for name, table in tables.items()}
    call = partial(plan, config, store_url=shared.store.url, before=stored, version=version, phases=phases)
    call = partial(call, analyse=by_spark_writers(shared.registry))
    return await shared.sources.run(call, config.source, asked=ALL)


# Change


@routes.put("/pipelines/{pipeline}", operation_id="replace_pipeline", status_code=202, openapi_extra=asks_for("define"))
async def replace(request: Request, edit: Edited) -> CommandView:
    """Replace the definition. Secrets that are sent as the API shows them (`***`) stay as they are."""
    version, stored = await edit.base()
    config = checked(await content_of(request), base=stored)
    return await edit.define(version, stored, config)


@routes.patch("/pipelines/{pipeline}", operation_id="patch_pipeline", status_code=202, openapi_extra=asks_for("define"))
async def patch(request: Request, edit: Edited) -> CommandView:
    """Change parts of the definition by a JSON merge patch (RFC 7396): null gives a setting its default."""
    version, stored = await edit.base()
    content = await content_of(request, patch=True)
    return await edit.define(version, stored, checked(merged(stored, content), base=stored))


@routes.delete(
    "/pipelines/{pipeline}", operation_id="delete_pipeline", status_code=202, openapi_extra=asks_for("delete")
)
async def delete(
    edit: Edited,
    purge: Annotated[Flag, Query(description="also drop the lake tables that the pipeline wrote")] = False,
) -> CommandView:
    """Delete a pipeline with all that the store has of it; the lake tables stay, unless `purge`."""
    await edit.base()
    return await edit.asked.command(Delete(purge=purge))


@routes.post("/pipelines/{pipeline}/plan", operation_id="plan_pipeline", openapi_extra=ADMIN)
async def planned(request: Request, shared: Shared, found: Known) -> Plan:
    """Return what a new definition, or a merge patch, would do: tables added, read again, removed."""
    stored, version, _, _ = await in_store(_stored, found)
    content = await content_of(request, patch=True)
    is_patch = definitions.media_type(request) == definitions.MERGE_PATCH
    whole = not is_patch and all(key in content for key in definitions.WHOLE)
    config = checked(content if whole else merged(stored, content), base=stored)
    definitions.allow(config, shared.secrets, stored)
    return await _plan(shared, found, config, stored, version)


# Versions


@routes.get("/pipelines/{pipeline}/versions", operation_id="list_versions")
async def versions(found: Known, page: WholeList) -> list[VersionView]:
    """List the versions of the definition, oldest first."""
    listed = await in_store(found.versions)
    return page.take([_version_view(each) for each in listed], key=lambda view: view.version)


@routes.get("/pipelines/{pipeline}/versions/{version}", operation_id="get_version")
async def one_version(found: Known, version: Version) -> VersionContent:
    """Return one version of the definition."""
    content = await _content(found, version)
    listed = await in_store(found.versions)
    about = next((each for each in listed if each.version == version), DefinitionVersion(version=version))
    return VersionContent(**_version_view(about).model_dump(), definition=shown("", content))


@routes.post(
    "/pipelines/{pipeline}/versions/{version}/restore",
    operation_id="restore_version",
    status_code=202,
    openapi_extra=asks_for("restore_version"),
)
async def restore_version(edit: Edited, version: Version) -> CommandView:
    """Bring an old version back, as a new one with its content."""
    base, stored = await edit.base()
    content = await _content(edit.asked.found, version)
    return await edit.define(base, stored, PipelineConfig.from_definition(content), known=content)


async def _content(found: PipelineStore, version: int) -> dict[str, Any]:
    listed = await in_store(found.versions)
    known = any(each.version == version for each in listed)
    content = await in_store(found.definition, version) if known else None
    if content is None:
        raise Refused(404, f"pipeline {found.name} has no version {version}", "GET .../versions lists them")
    return content


def _version_view(about: DefinitionVersion) -> VersionView:
    return VersionView(version=about.version, by=about.by, at=about.at, command=about.command, note=about.note)
