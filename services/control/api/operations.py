"""Live operations on a pipeline: each becomes a command. None of them stops the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from pydantic import BaseModel, Field

from cutline.common.commands import kinds, rules
from cutline.common.commands.kinds import Role, Taken
from cutline.common.errors import ProtocolError
from cutline.common.store.records import CheckpointEntry
from cutline.common.store.store import PipelineStore
from cutline.services.control.api.commands import Asked, Asking
from cutline.services.control.api.dependencies import CheckpointNumber, Known, Shared, asks_for, router
from cutline.services.control.api.models import Body, CommandView
from cutline.services.control.api.problems import Refused
from cutline.services.control.api.situation import checkpoint
from cutline.services.control.store_calls import in_store

routes = router("operations")
Name = Annotated[
    str | None,
    Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="name of the savepoint: letters, digits, `.`, `_` and `-`, 63 at most",
        examples=["before-migration"],
    ),
]


class OperationRules(BaseModel):
    """When and for whom an operation is possible. It may still be refused for a reason of its arguments."""

    command: str = Field(description="the command that it becomes")
    role: Role
    taken: Taken = Field(description="`alone`, or beside others: by the `machine`, or with a `checkpoint`")
    act: str | None = Field(
        description="its name in the path of a table, of an order about one", examples=["pause"], default=None
    )
    does: str = Field(description="what it does", examples=["Go on with a paused table."])
    states: dict[str, str] = Field(
        description="states of the pipeline in which it is refused, and why",
        examples=[{"paused": "the pipeline is paused: resume it first"}],
    )
    phases: dict[str, str] = Field(
        description="phases of its table for which it is refused, and why; `{table}` stands for the table",
        examples=[{"live": "{table} is live, not quarantined: there is nothing to retry"}],
    )


@routes.get("/operations", operation_id="list_operations")
async def operations() -> dict[str, OperationRules]:
    """Return what decides whether each operation is refused, by its name; the dashboard has the same table."""
    return {name: OperationRules(**row) for name, row in rules.to_json().items()}


class Stop(Body):
    """How to stop."""

    savepoint: Name


class Savepoint(Body):
    """A savepoint to be taken."""

    name: Name


class Restore(Body):
    """Where to go back to."""

    checkpoint: int = Field(ge=1, le=10**10 - 1, description="number of a checkpoint or savepoint", examples=[42])


class Limits(Body):
    """How fast all readers together may SELECT; null: no limit."""

    rows_per_second: float | None = Field(default=None, gt=0, le=1e15, allow_inf_nan=False, examples=[50_000])
    bytes_per_second: float | None = Field(default=None, gt=0, le=1e18, allow_inf_nan=False, examples=[10_000_000])


class LimitsView(BaseModel):
    """The limits in force. `current`: whether a leader reports them now; else they are `as_of` then, or the
    definition's (null)."""

    rows_per_second: float | None
    bytes_per_second: float | None
    current: bool
    as_of: float | None = None


@routes.post("/pipelines/{pipeline}/pause", operation_id="pause", status_code=202, openapi_extra=asks_for("pause"))
async def pause(asked: Asked) -> CommandView:
    """Pause: nothing is read from the source and nothing published, until it is resumed."""
    return await asked.command(kinds.Pause())


@routes.post("/pipelines/{pipeline}/resume", operation_id="resume", status_code=202, openapi_extra=asks_for("resume"))
async def resume(asked: Asked) -> CommandView:
    """Go on after a pause or a stop, or try again after the pipeline halted."""
    return await asked.command(kinds.Resume())


@routes.post("/pipelines/{pipeline}/stop", operation_id="stop", status_code=202, openapi_extra=asks_for("stop"))
async def stop(asked: Asked, how: Stop | None = None) -> CommandView:
    """Stop with a savepoint: the last checkpoint is kept, and no service works for the pipeline until it is started."""
    return await asked.command(kinds.Stop(savepoint=how.savepoint if how else None))


@routes.post("/pipelines/{pipeline}/start", operation_id="start", status_code=202, openapi_extra=asks_for("start"))
async def start(asked: Asked) -> CommandView:
    """Start a stopped pipeline, from its last checkpoint or the one that it was restored to; or one that halted."""
    return await asked.command(kinds.Start())


@routes.post(
    "/pipelines/{pipeline}/restore", operation_id="restore", status_code=202, openapi_extra=asks_for("restore")
)
async def restore(asked: Asked, where: Restore) -> CommandView:
    """Go back to a checkpoint or savepoint: the pipeline reads the source from there again, and so does the lake."""
    restore = kinds.Restore(checkpoint=where.checkpoint)
    (await asked.situation()).allow(restore)
    await _restorable(asked, where.checkpoint)
    return await asked.command(restore)


@routes.post(
    "/pipelines/{pipeline}/read-again",
    operation_id="read_again",
    status_code=202,
    openapi_extra=asks_for("read_again"),
)
async def read_again(asked: Asked) -> CommandView:
    """Read every table again, from the source's present position; also of a pipeline that halted since the source no
    longer has what it needs. The lake shows the old content until the new one is complete. A paused or stopped pipeline
    does it once it goes on."""
    return await asked.command(kinds.ReadAgain())


@routes.post(
    "/pipelines/{pipeline}/leave-lake",
    operation_id="leave_lake",
    status_code=202,
    openapi_extra=asks_for("leave_lake"),
)
async def leave_lake(asked: Asked) -> CommandView:
    """End the purge of a pipeline that is being deleted, as of a lake that can't be reached any more: what is still in
    the lake stays there, and the deletion goes on without it."""
    return await asked.command(kinds.LeaveLake())


async def _restorable(asked: Asking, number: int) -> CheckpointEntry:
    entry = await in_store(checkpoint, asked.found, number)
    remedy = "GET .../checkpoints lists those that are there"
    if entry is None:
        last = await in_store(asked.found.last_slot)
        cause = "was swept, or is an epoch" if number <= last else "was not taken yet"
        raise Refused(409, f"checkpoint {number} can't be restored: it {cause}", remedy)
    if entry.inside:
        raise Refused(409, f"checkpoint {number} can't be restored: it is inside a transaction", remedy)
    try:
        for ref in entry.parts.values():
            await in_store(asked.found.read_part, ref)
    except ProtocolError as error:
        raise Refused(409, f"checkpoint {number} can't be restored: its parts were swept", remedy) from error
    return entry


@routes.post(
    "/pipelines/{pipeline}/checkpoints",
    operation_id="take_checkpoint",
    status_code=202,
    openapi_extra=asks_for("checkpoint"),
)
async def take_checkpoint(asked: Asked) -> CommandView:
    """Take a checkpoint now."""
    return await asked.command(kinds.Checkpoint())


@routes.post(
    "/pipelines/{pipeline}/savepoints",
    operation_id="take_savepoint",
    status_code=202,
    openapi_extra=asks_for("savepoint"),
)
async def take_savepoint(asked: Asked, wanted: Savepoint | None = None) -> CommandView:
    """Take a savepoint: a checkpoint that is kept, with a name."""
    return await asked.command(kinds.Savepoint(name=wanted.name if wanted else None))


@routes.delete(
    "/pipelines/{pipeline}/savepoints/{number}",
    operation_id="delete_savepoint",
    status_code=202,
    openapi_extra=asks_for("delete_savepoint"),
)
async def delete_savepoint(asked: Asked, number: CheckpointNumber) -> CommandView:
    """Delete a savepoint: its checkpoint is kept no longer than any other."""
    entry = await in_store(checkpoint, asked.found, number)
    if entry is None or not entry.kept:
        cause = f"pipeline {asked.found.name} has no savepoint {number}"
        raise Refused(404, cause, "GET .../savepoints lists those that are there")
    return await asked.command(kinds.DeleteSavepoint(checkpoint=number))


@routes.get("/pipelines/{pipeline}/limits", operation_id="get_limits")
async def limits(found: Known, control: Shared) -> LimitsView:
    """Return how fast all readers together may SELECT."""
    status = await control.watches.find(found).status()
    known = status.leader.limits
    if known is None:
        return LimitsView(**await in_store(_ordered_limits, found), current=False)
    return LimitsView(**asdict(known), current=status.current, as_of=status.as_of)


def _ordered_limits(found: PipelineStore) -> Mapping[str, float | None]:
    if (ordered := found.commands.orders().limits) is not None:
        return ordered
    snapshot = (found.definition() or {}).get("snapshot", {})
    return {key: snapshot.get(f"max_{key}") for key in ("rows_per_second", "bytes_per_second")}


@routes.put(
    "/pipelines/{pipeline}/limits", operation_id="set_limits", status_code=202, openapi_extra=asks_for("limits")
)
async def set_limits(asked: Asked, wanted: Limits) -> CommandView:
    """Change how fast all readers together may SELECT, from now on and across restarts, until the next such command or
    a definition with other limits."""
    return await asked.command(kinds.SetLimits(**wanted.model_dump()))
