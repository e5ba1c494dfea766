"""What the lake shows of each table at a publication, and which publication holds a time or a GTID."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from math import isnan
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from cutline.common.errors import ConfigError
from cutline.common.store.records import Publication
from cutline.services.control.api.dependencies import CheckpointNumber, Known, Shared, router
from cutline.services.control.api.paging import Newest
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.store_calls import in_store
from cutline.spark_writer.sinks.iceberg.works import snapshot_of

routes = router("cuts")


class CutTable(BaseModel):
    """What the lake shows of one table at a cut. `shown`: the cut itself; else the table stays at an older `position`.
    `snapshot_id` is null if the lake shows no rows yet."""

    table: str
    state: str
    generation: int
    shown: bool
    snapshot_id: int | None
    position: dict[str, Any] | None
    code: str | None
    cause: str | None
    remedy: str | None


class CutView(BaseModel):
    """A publication: a cut of the source that the lake shows. Times are seconds since 1970."""

    number: int = Field(description="the checkpoint")
    kept: bool
    published_at: float
    source_time: float | None = Field(description="every change committed up to this time is in it")
    position: dict[str, Any] | None
    shown: int = Field(description="tables of which the lake shows this cut")
    tables_total: int


class CutDetail(CutView):
    """A publication with what it shows of each table."""

    tables: list[CutTable]


class CutAnswer(BaseModel):
    """The answer to `?at=` and `?gtid=`.

    `shown`: what the lake showed at that time (of a GTID: shows now). `holds`: the first publication that has every
    change up to that time, or all those GTIDs; null if there is none yet.
    """

    shown: CutDetail | None
    holds: CutDetail | None


@routes.get("/pipelines/{pipeline}/cuts", operation_id="list_cuts")
async def cuts(
    found: Known,
    control: Shared,
    page: Newest,
    at: Annotated[
        str | None, Query(description="a time: ISO 8601, or seconds since 1970", examples=["2026-11-24T14:05:00Z"])
    ] = None,
    gtid: Annotated[
        str | None,
        Query(
            description="a GTID or a GTID set", examples=["3e11fa47-71ca-11e1-9e33-c80aa9429562:23"], max_length=8000
        ),
    ] = None,
) -> list[CutView] | CutAnswer:
    """List the retained publications, newest first; or answer which one the lake showed, and which one holds, a time
    or a GTID."""
    published = control.watches.find(found).published
    if at is not None and gtid is not None:
        raise Refused(422, "both at and gtid were given", "ask for one of them")
    if at is not None:
        moment = _moment(at)
        shown, holds = await in_store(lambda: (published.at(moment), published.holding_time(moment)))
        return CutAnswer(shown=_detail(shown), holds=_detail(holds))
    if gtid is not None:
        try:
            holds = await in_store(published.holding_gtid, gtid)
        except ConfigError as error:
            raise refused(422, error) from error
        newest = (await control.watches.find(found).publications()).newest
        return CutAnswer(shown=_detail(newest), holds=_detail(holds))
    numbers = page.take((await in_store(published.numbers))[::-1], int, newest_first=True)

    def read() -> list[CutView]:
        records = (published.get(n) for n in numbers)
        return [CutView(**_fields(record)) for record in records if record is not None]

    return await in_store(read)


@routes.get("/pipelines/{pipeline}/cuts/{number}", operation_id="get_cut")
async def cut(found: Known, control: Shared, number: CheckpointNumber) -> CutDetail:
    """Return what publication `number` shows of each table."""
    record = await in_store(control.watches.find(found).published.get, number)
    if record is None:
        raise Refused(
            404,
            f"checkpoint {number} of pipeline {found.name} is not published, or its publication is not retained",
            f"GET /v1/pipelines/{found.name}/cuts lists those that are",
        )
    return CutDetail(**_fields(record), tables=_tables(record))


def _detail(record: Publication | None) -> CutDetail | None:
    return None if record is None else CutDetail(**_fields(record), tables=_tables(record))


def _fields(record: Publication) -> Mapping[str, Any]:
    return {
        "number": record.n,
        "kept": record.kept,
        "published_at": record.published_at,
        "source_time": record.source_time,
        "position": None if record.position is None else record.position.to_json(),
        "shown": sum(table.shown for table in record.tables.values()),
        "tables_total": len(record.tables),
    }


def _tables(record: Publication) -> list[CutTable]:
    found = []
    for name, table in sorted(record.tables.items()):
        position = record.position_of(name)
        found.append(
            CutTable(
                table=name,
                state=table.state,
                generation=table.generation,
                shown=table.shown,
                snapshot_id=None if table.main is None else snapshot_of(table.main.content),
                position=None if position is None else position.to_json(),
                code=None if table.held is None else table.held.cause.code,
                cause=None if table.held is None else table.held.cause.sentence,
                remedy=None if table.held is None else table.held.cause.remedy or None,
            )
        )
    return found


def _moment(text: str) -> float:
    with suppress(ValueError):
        if not isnan(seconds := float(text)):
            return seconds
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a + in a query string is a space
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise Refused(
            422,
            f"at is {text!r}, which is no time with a zone",
            "write it as in 2026-11-24T14:05:00Z, or in seconds since 1970",
        ) from None
