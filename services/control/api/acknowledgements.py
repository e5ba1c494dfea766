"""What a person must act on: the conditions that hold, and who has acknowledged them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Path
from pydantic import Field

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.store.condition_log import Acknowledgement
from cutline.services.control.api.dependencies import CallerNow, Control, Known, Shared, role, router
from cutline.services.control.api.models import AcknowledgementView, Body, ConditionView
from cutline.services.control.api.problems import Refused, refused
from cutline.services.control.facts import gathered
from cutline.services.control.metrics import Facts
from cutline.services.control.standing import Held

routes = router("conditions")
OPERATOR = role("operator")
FIRST_TABLES = 20
Id = Annotated[str, Path(max_length=64, description="id of a condition", examples=["1f0c9b7d2a44e6c8"])]


class Acknowledge(Body):
    """That a person knows of a condition, and until when no alert shall be posted for it."""

    note: str = Field(min_length=1, max_length=1000, examples=["the vendor restores the table on Monday"])
    until: float | None = Field(
        default=None,
        gt=0,
        le=1e11,
        allow_inf_nan=False,
        description="in seconds since 1970; null: until the condition ends",
    )


@routes.get("/conditions", operation_id="list_conditions")
async def conditions(control: Shared) -> list[ConditionView]:
    """List the conditions of all pipelines that a person must act on: first those that nobody has acknowledged, most
    severe first, then causes before what they bring about."""
    return [view(held) for held in await control.standing.all()]


@routes.get("/pipelines/{pipeline}/conditions", operation_id="list_pipeline_conditions")
async def of_pipeline(found: Known, control: Shared) -> list[ConditionView]:
    """List the conditions of one pipeline, and those that concern all."""
    status = {}
    try:
        status = {found.life: await control.registry.status(found.key)}
    except Unavailable:  # that is one of the conditions
        pass
    return [view(held) for held in await control.standing.of_pipelines(status)]


@routes.put("/conditions/{condition}/acknowledgement", operation_id="acknowledge_condition", openapi_extra=OPERATOR)
async def acknowledge(control: Shared, caller: CallerNow, condition: Id, given: Acknowledge) -> ConditionView:
    """Acknowledge a condition, or change its acknowledgement. It is still listed, and posts no alert until then."""
    now = time.time()
    if given.until is not None and given.until <= now:
        raise Refused(422, "`until` has passed", "give a later time, or none")
    made = Acknowledgement(by=caller.name, at=now, note=given.note, until=given.until)
    return await _put(control, condition, made, caller.name)


@routes.delete(
    "/conditions/{condition}/acknowledgement", operation_id="unacknowledge_condition", openapi_extra=OPERATOR
)
async def unacknowledge(control: Shared, caller: CallerNow, condition: Id) -> ConditionView:
    """Take an acknowledgement back."""
    return await _put(control, condition, None, caller.name)


async def _put(control: Control, condition: str, given: Acknowledgement | None, by: str) -> ConditionView:
    facts = await gathered(control.registry, control.store)
    held = await _find(control, condition, facts)
    if given is None and held.acknowledged is None:
        return view(held)
    try:
        await control.standing.acknowledge(held, facts, given, by=by)
    except ConfigError as error:
        raise refused(409, error) from error
    return view(await _find(control, condition, facts))


async def _find(control: Control, condition: str, facts: Facts) -> Held:
    for held in await control.standing.look(facts):
        if held.finding.id == condition:
            return held
    raise Refused(404, f"no condition {condition!r} holds now", "GET /v1/conditions lists them")


def view(held: Held) -> ConditionView:
    """A condition as the API shows it."""
    finding, known = held.finding, held.acknowledged
    return ConditionView(
        id=finding.id,
        name=finding.condition.name,
        severity=finding.condition.severity,
        pipeline=finding.pipeline,
        labels=dict(finding.labels),
        summary=finding.summary,
        code=finding.cause and finding.cause.code,
        cause=finding.cause and finding.cause.sentence,
        remedy=finding.remedy,
        tables=list(finding.tables[:FIRST_TABLES]),
        tables_total=len(finding.tables),
        since=finding.since,
        alerts_at=finding.since + finding.condition.for_seconds,
        acknowledged=known and AcknowledgementView(by=known.by, at=known.at, until=known.until, note=known.note),
        runbook=finding.condition.runbook,
    )
