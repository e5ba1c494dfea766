"""The control API: services, pipelines and their state, metrics for Prometheus; the retry of a quarantined table, and
the choice about commits of others to a lake table.

Each request reads the registry (Redis) and the store; nothing is kept. If one of them does not answer, the response is
503 with the cause, but /healthz stays 200: a restart would not help. A bearer token, if set, protects everything but
/healthz, /readyz and the API's description (/docs, /redoc, /openapi.json).
"""

# No `from __future__ import annotations` here: FastAPI must see the types that are made inside `build` and `_v1`.
import asyncio
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from cutline.common.config.pipeline import shown
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.presence import SPARK_WRITER, GaveUp, Registry, choice
from cutline.common.mesh.presence import tables as captured
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, TableEntry, changes
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control import metrics
from cutline.services.control.facts import gathered


class Health(BaseModel):
    """Whether the service is ready, and the cause if it is not."""

    ready: bool
    cause: str | None = None


class ServiceView(BaseModel):
    """One service process. `failed`: by pipeline, the newest epoch that it gave up; `leaving`: it was asked to end."""

    role: str
    incarnation: str
    host: str
    pid: int
    started_at: float
    failed: dict[str, GaveUp]
    leaving: bool


class PipelineView(BaseModel):
    """One pipeline: its definition (without passwords) and its state; a number that does not exist yet is null.

    `limits`: how fast all readers together may SELECT; `waiting_for`: the leader's obstacle, else any other member's.
    `failures`: epochs that failed in a row, while the next one waits until `retry_at` (seconds since 1970).
    `spark_writer`: the incarnation of the Spark writer that leads the pipeline in the lake, null if that is gone.
    `applied_by_spark`: the tables of the last batch that Spark's executors applied, each with the reason.
    """

    name: str
    definition: dict[str, Any]
    epoch: int | None
    leader: str | None
    tables: dict[str, int]
    checkpoint: int | None
    checkpoint_completed_at: float | None
    publication: int | None
    published_at: float | None
    source_time: float | None
    waiting_for: str | None
    failures: int
    retry_at: float | None
    limits: dict[str, float | None] | None
    spark_writer: str | None
    applied_by_spark: dict[str, str]


class TableView(BaseModel):
    """One captured table, from the enumerator's status, or quarantined if the Spark writer can't apply it."""

    table: str
    phase: str
    generation: int
    rows_done: int | None
    rows_estimate: int | None
    splits_done: int | None
    splits_total: int | None
    cause: str | None


class Choice(BaseModel):
    """A choice about the commits of others to a lake table."""

    choice: Literal["accept", "overwrite"]


class SplitsView(BaseModel):
    """How many chunks of a table have been read."""

    table: str
    generation: int
    done: int | None
    total: int | None


class CheckpointView(BaseModel):
    """One checkpoint of the journal; `published`: the lake shows it or a later one."""

    number: int
    epoch: int
    kept: bool
    inside: bool
    position: dict[str, Any] | None
    source_time: float | None
    started_at: float | None
    written_at: float
    staged_files: int
    staged_rows: int
    staged_bytes: int
    published: bool


class EventView(BaseModel):
    """An event in the journal: a new epoch with its cause, a kept checkpoint, a table that changed its phase."""

    slot: int
    at: float
    kind: str
    text: str


def build(registry: Registry, store: Store, *, token: str | None = None, metrics_tables: int = 200) -> FastAPI:
    """Return the application over an open registry and a store; it closes neither. `metrics_tables`: how many tables of
    a pipeline have metrics of their own."""
    bearer = HTTPBearer(auto_error=False, description="CUTLINE_API_TOKEN, if the service has one")

    def allowed(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if token is None:
            return
        if given is None or not secrets.compare_digest(given.credentials.encode(), token.encode()):
            raise HTTPException(
                401, "send the header Authorization: Bearer CUTLINE_API_TOKEN", {"WWW-Authenticate": "Bearer"}
            )

    app = FastAPI(title="Cutline", summary="Pipelines, services and their state")
    app.add_exception_handler(CutlineError, _failed)
    app.include_router(_health(registry, store))
    app.include_router(_metrics(registry, store, metrics_tables), dependencies=[Depends(allowed)])
    app.include_router(_v1(registry, store), dependencies=[Depends(allowed)])
    return app


async def _failed(_: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, Unavailable) else 500
    return JSONResponse({"detail": str(error)}, status_code=status)


def _health(registry: Registry, store: Store) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """Return 200 while this process serves."""
        return Health(ready=True)

    @router.get("/readyz", responses={503: {"model": Health}})
    async def readyz(response: Response) -> Health:
        """Whether Redis and the store answer."""
        try:
            await registry.services()
            await asyncio.to_thread(store.pipelines)
        except CutlineError as error:
            response.status_code = 503
            return Health(ready=False, cause=str(error))
        return Health(ready=True)

    return router


def _metrics(registry: Registry, store: Store, most: int) -> APIRouter:
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def scrape() -> Response:
        """Return every metric, for Prometheus."""
        body = await asyncio.to_thread(partial(metrics.render, await gathered(registry, store), most=most))
        return Response(body, headers={"Content-Type": metrics.CONTENT_TYPE})

    return router


def _v1(registry: Registry, store: Store) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["v1"])

    async def known(pipeline: str) -> PipelineStore:
        try:
            found = store.pipeline(pipeline)
        except ConfigError as error:
            raise HTTPException(404, str(error)) from error
        if await asyncio.to_thread(found.definition) is None:
            raise HTTPException(404, f"there is no pipeline {pipeline!r} in the store; GET /v1/pipelines lists them")
        return found

    Known = Annotated[PipelineStore, Depends(known)]

    @router.get("/services")
    async def services() -> list[ServiceView]:
        """List the service processes that were alive within the last five seconds."""
        return [ServiceView.model_validate(service, from_attributes=True) for service in await registry.services()]

    @router.get("/pipelines")
    async def pipelines() -> list[PipelineView]:
        """List the pipelines of the store."""
        names = await asyncio.to_thread(store.pipelines)
        return [await _pipeline(registry, store.pipeline(name)) for name in names]

    @router.get("/pipelines/{pipeline}")
    async def one_pipeline(found: Known) -> PipelineView:
        """Return one pipeline."""
        return await _pipeline(registry, found)

    @router.get("/pipelines/{pipeline}/tables")
    async def tables(found: Known) -> list[TableView]:
        """List the captured tables with their phases."""
        tables = captured(await registry.status(found.name))
        return [_table_view(name, table) for name, table in sorted(tables.items())]

    @router.post("/pipelines/{pipeline}/tables/{table}/retry", status_code=202)
    async def retry(found: Known, table: str) -> TableView:
        """Have the Spark writer retry all tables that it has quarantined, with the next checkpoint.

        Returns the named table as it is now, which must be one of them.
        """
        status = await registry.status(found.name)
        view = captured(status).get(table)
        if view is None:
            raise HTTPException(404, f"pipeline {found.name} captures no table {table!r}; GET .../tables lists them")
        if table not in (status.get("spark_writer", {}).get("quarantined") or {}):
            raise HTTPException(409, f"the Spark writer has not quarantined {table}, which is {view['phase']}")
        await registry.request(found.name, {"kind": "retry", "table": table}, to=SPARK_WRITER)
        return _table_view(table, view)

    @router.post("/pipelines/{pipeline}/tables/{table}/lake", status_code=202)
    async def choose(found: Known, table: str, chosen: Choice) -> TableView:
        """Choose about the commits of others for which the Spark writer has quarantined a table: `accept` keeps them,
        `overwrite` replaces them by what the source has.

        The choice is about the commits that the table's cause names now. Returns the table as it is now.
        """
        status = await registry.status(found.name)
        view = captured(status).get(table)
        if view is None:
            raise HTTPException(404, f"pipeline {found.name} captures no table {table!r}; GET .../tables lists them")
        try:
            request = choice(status, table, chosen.choice)
        except ConfigError as error:
            raise HTTPException(409, str(error)) from error
        await registry.request(found.name, request, to=SPARK_WRITER)
        return _table_view(table, view)

    @router.get("/pipelines/{pipeline}/splits")
    async def splits(found: Known) -> list[SplitsView]:
        """How many chunks of each table have been read."""
        return [
            SplitsView(
                table=name,
                generation=table.get("generation", 1),
                done=table.get("splits_done"),
                total=table.get("splits_total"),
            )
            for name, table in sorted(captured(await registry.status(found.name)).items())
        ]

    @router.get("/pipelines/{pipeline}/checkpoints")
    async def checkpoints(found: Known, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[CheckpointView]:
        """List the newest checkpoints, newest first."""
        return await asyncio.to_thread(_checkpoints, found, limit)

    @router.get("/pipelines/{pipeline}/events")
    async def events(found: Known, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[EventView]:
        """List the newest events, newest first: epochs with their causes, kept checkpoints, tables' phases."""
        return await asyncio.to_thread(_events, found, limit)

    return router


_BLANK: dict[str, Any] = dict.fromkeys(("rows_done", "rows_estimate", "splits_done", "splits_total", "cause"))


def _table_view(name: str, status: dict[str, Any]) -> TableView:
    known = {key: status[key] for key in TableView.model_fields if key in status}
    return TableView(table=name, **{**_BLANK, **known})


async def _pipeline(registry: Registry, found: PipelineStore) -> PipelineView:
    definition = await asyncio.to_thread(found.definition)
    status = await registry.status(found.name)
    alive = {service.incarnation for service in await registry.services()}
    leader, spark = status.get("enumerator", {}), status.get("spark_writer", {})
    phases = [table["phase"] for table in captured(status).values()]
    checkpoint = leader.get("checkpoint") or {}
    return PipelineView(
        name=found.name,
        definition=shown("", definition or {}),
        epoch=leader.get("epoch"),
        leader=leader.get("leader"),
        tables={phase: phases.count(phase) for phase in sorted(set(phases))},
        checkpoint=checkpoint.get("number"),
        checkpoint_completed_at=checkpoint.get("completed_at"),
        publication=spark.get("published"),
        published_at=spark.get("published_at"),
        source_time=spark.get("source_time"),
        waiting_for=next((part["waiting_for"] for part in (leader, *status.values()) if part.get("waiting_for")), None),
        failures=leader.get("failures") or 0,
        retry_at=leader.get("retry_at"),
        limits=leader.get("limits"),
        spark_writer=spark.get("leader") if spark.get("leader") in alive else None,
        applied_by_spark=spark.get("applied_by_spark") or {},
    )


def _newest(found: PipelineStore, limit: int) -> Iterator[Entry]:
    """The journal's last `limit` entries, oldest first."""
    return found.journal_tail(after=max(0, found.last_slot() - limit))


def _checkpoints(found: PipelineStore, limit: int) -> list[CheckpointView]:
    published = max(found.publication_numbers(), default=0)
    checkpoints = [
        CheckpointView(
            number=entry.slot,
            epoch=entry.epoch,
            kept=entry.kept,
            inside=entry.inside,
            position=None if entry.position is None else entry.position.to_json(),
            source_time=entry.source_time,
            started_at=entry.started_at,
            written_at=entry.written_at,
            staged_files=len(entry.staged),
            staged_rows=sum(file.rows for file in entry.staged),
            staged_bytes=sum(file.size for file in entry.staged),
            published=entry.slot <= published,
        )
        for entry in _newest(found, limit)
        if isinstance(entry, CheckpointEntry)
    ]
    return checkpoints[::-1]


def _events(found: PipelineStore, limit: int) -> list[EventView]:
    events: list[EventView] = []
    before: Mapping[str, TableEntry] = {}
    for entry in _newest(found, 10 * limit):
        slot, at = entry.slot, entry.written_at
        if isinstance(entry, EpochEntry):
            mesh = f"{len(entry.members.readers)} readers and {len(entry.members.writers)} writers"
            text = f"epoch {slot} with {mesh}: {entry.cause}"
            events.append(EventView(slot=slot, at=at, kind="epoch", text=text))
            continue
        if entry.kept:
            events.append(EventView(slot=slot, at=at, kind="kept", text=f"checkpoint {slot} is kept"))
        for table, now in sorted(changes(entry.tables, before).items()):
            known = before.get(table)
            if now is None or (known is not None and (known.generation, known.phase) == (now.generation, now.phase)):
                continue
            cause = f": {now.cause}" if now.cause else ""
            text = f"{table} is {now.phase} in generation {now.generation}{cause}"
            events.append(EventView(slot=slot, at=at, kind="table", text=text))
        before = entry.tables
    return events[::-1][:limit]
