"""What is shown of one pipeline at a moment, whichever way it was asked for: by the status in Redis, or by the API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cutline.common.causes import Cause
from cutline.common.commands import rules
from cutline.common.mesh.rates import Rates
from cutline.common.phases import CATCH_UP, DROPPED, LIVE, PAUSED, QUARANTINED, SNAPSHOT, WAITING
from cutline.common.status.pipeline_status import DerivedStatus, Files, PipelineStatus, TableStatus
from cutline.common.store.records import Publication
from cutline.common.waits import Wait
from cutline.services.client.rest import models
from cutline.services.run.conditions import ShownCondition, answered

READ = (SNAPSHOT, CATCH_UP, WAITING)
"""Phases on the way to `live`."""
DERIVED = "derived"
"""Where captured tables have their phase, a derived table that goes on has this word."""
_ORDER = (QUARANTINED, *READ, PAUSED, LIVE, DERIVED, DROPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table. `rows`: of its snapshot so far, or of the lake table if that is known; `fraction` is 0..1 of the
    snapshot (1 after it); rate in rows/s; what is None is unknown. `for_seconds`: how long it has been in its phase."""

    name: str
    phase: str
    rows: int | None
    fraction: float = 1.0
    rate: float = 0.0
    eta_seconds: float | None = None
    lag_seconds: float | None = None
    for_seconds: float | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content at the moment `now`; ages are in seconds. `state` is None while nobody has reported any. `lacking`:
    which role is missing. `obstacles`: sentences about what holds the pipeline up and no condition tells. `unlisted`:
    how many tables are in a phase and not among `tables`."""

    pipeline: str
    now: float
    state: str | None
    state_seconds: float | None
    epoch: int | None
    tables: tuple[TableLine, ...]
    lag_seconds: float | None
    checkpoint: int | None
    checkpoint_age_seconds: float | None
    in_flight: int | None
    publication: int | None
    publication_age_seconds: float | None
    lacking: tuple[str, ...] = ()
    conditions: tuple[ShownCondition, ...] = ()
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unlisted: Mapping[str, int] = field(default_factory=dict)


def of_status(
    pipeline: str,
    status: PipelineStatus,
    *,
    rates: Rates,
    now: float,
    publication: Publication | None = None,
    conditions: Sequence[ShownCondition] = (),
    notes: tuple[str, ...] = (),
) -> Picture:
    """The picture of the status; what no service has written yet is left out.

    `publication`: the newest one of the store, for the time until a Spark writer reports one. `now` is epoch seconds,
    as are the times in the status.
    """
    leader, spark, checkpoint = status.enumerator, status.spark_writer, status.enumerator.checkpoint
    published, published_at, source_time = spark.published, spark.published_at, spark.source_time
    if publication is not None and publication.n > (published or 0):
        published, published_at, source_time = publication.n, publication.published_at, publication.source_time
    state = rules.state(leader.mode, halted=leader.halted is not None, ended=leader.ended is not None)
    return Picture(
        pipeline=pipeline,
        now=now,
        state=None if leader.at is None else state,
        state_seconds=_age(getattr(leader, "mode_since" if leader.halted is None else "halted_since", None), now),
        epoch=leader.epoch or None,
        tables=_ordered([
            *(_line(name, table, spark.files.get(name), rates, now) for name, table in status.tables.items()),
            *(_derived(name, each, now) for name, each in spark.derived.items()),
        ]),
        lag_seconds=_age(source_time, now),
        checkpoint=checkpoint.number,
        checkpoint_age_seconds=_age(checkpoint.completed_at, now),
        in_flight=checkpoint.in_flight,
        publication=published,
        publication_age_seconds=_age(published_at, now),
        conditions=tuple(conditions),
        obstacles=_obstacles(conditions, halted=leader.halted, waits=leader.waiting_for),
        notes=notes,
    )


def _line(name: str, table: TableStatus, files: Files | None, rates: Rates, now: float) -> TableLine:
    rows, estimate = table.rows_done or 0, table.rows_estimate
    rate = rates.observe(name, table.generation, rows, now)
    fraction, eta = 1.0, None
    if table.phase in (WAITING, SNAPSHOT):
        fraction = min(0.99, rows / estimate) if estimate else 0.0
        if estimate and rate > 0:
            eta = max(0.0, estimate - rows) / rate
    return TableLine(
        name=name,
        phase=table.phase,
        rows=_rows(table.phase, table.rows_done, getattr(files, "rows", None)),
        fraction=fraction,
        rate=rate,
        eta_seconds=eta,
        for_seconds=_age(getattr(table, "since", None), now),
        cause=None if table.cause is None else str(table.cause),
    )


def _derived(name: str, found: DerivedStatus | models.DerivedTable, now: float) -> TableLine:
    """A derived table; one that goes on is in its phase since it was computed."""
    return TableLine(
        name=name,
        phase=DERIVED if found.cause is None else QUARANTINED,
        rows=found.rows,
        for_seconds=_age(found.at, now),
        cause=None if found.cause is None else str(found.cause),
    )


def of_answer(found: models.Pipeline, tables: Sequence[models.Table], now: float) -> Picture:
    """The picture of an answer of the control service, with those of the pipeline's tables that are to be shown."""
    lacking = [] if found.current else ["no enumerator leads it now"]
    if found.spark_writer is None and found.mode == "running":
        lacking.append("no Spark writer leads it now")
    conditions = answered(found.conditions)
    return Picture(
        pipeline=found.name,
        now=now,
        state=state_of(found),
        state_seconds=_age(found.halted_since if found.halted else found.mode_since, now),
        epoch=found.epoch,
        tables=_ordered([
            *(_answered(table, now) for table in tables),
            *(_derived(name, each, now) for name, each in found.derived.items()),
        ]),
        lag_seconds=_age(found.source_time, now),
        checkpoint=found.checkpoint,
        checkpoint_age_seconds=_age(found.checkpoint_completed_at, now),
        in_flight=None,
        publication=found.publication,
        publication_age_seconds=_age(found.published_at, now),
        lacking=tuple(lacking),
        conditions=tuple(conditions),
        obstacles=_obstacles(
            conditions, halted=found.halted, waits=found.waiting_for, spark_writer=found.spark_writer_error
        ),
        unlisted=Counter(found.tables) - Counter(table.phase for table in tables),
    )


def _answered(table: models.Table, now: float) -> TableLine:
    fraction = 1.0
    if table.phase in (WAITING, SNAPSHOT):
        done, estimate = table.rows_done or 0, table.rows_estimate
        fraction = min(0.99, done / estimate) if estimate else 0.0
    return TableLine(
        name=table.table,
        phase=table.phase,
        rows=_rows(table.phase, table.rows_done, table.rows),
        fraction=fraction,
        rate=table.rate_rows_per_second or 0.0,
        eta_seconds=table.eta_seconds,
        lag_seconds=table.lag_seconds,
        for_seconds=_age(table.since, now),
        cause="; ".join(filter(None, (table.cause, table.remedy))) or None,
    )


def _rows(phase: str, read: int | None, shown: int | None) -> int | None:
    """The rows that are read so far; once that is done, those of the lake table, if they are known."""
    return read if phase in READ or shown is None else shown


def state_of(found: models.Pipeline) -> str:
    """The word for what a pipeline does: its mode, but `halted` while its leader waits for a person."""
    return "halted" if found.halted is not None and found.mode == "running" else found.mode


def _obstacles(
    conditions: Sequence[ShownCondition],
    *,
    halted: Cause | models.Cause | None,
    waits: Wait | models.Wait | None,
    spark_writer: models.Cause | None = None,
) -> tuple[str, ...]:
    """What no condition tells."""
    told_by = "\n".join(each.cause or "" for each in conditions)
    found = []
    if halted is not None and halted.sentence not in told_by:
        found.append(f"halted: {halted}")
    elif halted is None and waits is not None:
        reason = waits.what if waits.cause is None else waits.cause.sentence
        if reason not in told_by:
            found.append(f"waiting for {waits}")
    if spark_writer is not None and spark_writer.sentence not in told_by:
        found.append(f"the Spark writer can't go on: {spark_writer}")
    return tuple(found)


def _ordered(lines: list[TableLine]) -> tuple[TableLine, ...]:
    """Those in trouble first, then those that are read, then the live ones; by name within."""
    known: list[str] = list(_ORDER)
    return tuple(sorted(lines, key=lambda line: (known.index(line.phase) if line.phase in known else 0, line.name)))


def _age(moment: float | None, now: float) -> float | None:
    return max(0.0, now - moment) if moment else None
