"""The bodies of requests and answers that more than one module of the API uses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cutline.common.mesh.presence import GaveUp
from cutline.common.store.commands import Mode


class Body(BaseModel):
    """The body of a request: no unknown field, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
    `version`: of the newest definition, `version_in_force`: of the one that the mesh runs by.
    `mode`: what the last command that was carried out made of it.
    `current`: whether a leader reports now; else the state is of `as_of` (seconds since 1970, null: unknown).
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
    version: int = Field(examples=[3])
    version_in_force: int | None
    mode: Mode
    commands_waiting: int = Field(description="commands that are accepted and not finished")
    tags: dict[str, str]
    halted: str | None = Field(description="why the leader gave up until a person acts")
    current: bool
    as_of: float | None


class VersionView(BaseModel):
    """A version of a definition: who made it by which command, when (seconds since 1970) and why.

    Version 1 has none of these: it came with the pipeline.
    """

    version: int = Field(examples=[2])
    by: str | None = Field(examples=["anna"])
    at: float | None
    command: int | None = Field(examples=[7])
    note: str | None


class VersionContent(VersionView):
    """A version with its content, without passwords."""

    definition: dict[str, Any]


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


CommandState = Literal["accepted", "running", "done", "refused", "failed"]


class CommandView(BaseModel):
    """A command: a change that was asked for, and what became of it.

    `accepted`: it is in the store, and survives every crash; `running`: the leader took it; then `done`, `refused`
    (it made no sense any more) or `failed`, with cause and remedy. Times are seconds since 1970.
    """

    number: int = Field(description="commands are carried out in the order of their numbers", examples=[7])
    kind: str = Field(examples=["pause"])
    arguments: dict[str, Any] = Field(description="without passwords")
    state: CommandState
    by: str = Field(description="who asked", examples=["anna"])
    at: float = Field(description="when it was accepted")
    cause: str | None = Field(default=None, description="why it was refused or failed")
    remedy: str | None = None
    result: dict[str, Any] = Field(default_factory=dict, examples=[{"checkpoint": 42}])
    finished_at: float | None = None
    url: str = Field(description="where to ask for its state", examples=["/v1/pipelines/shop/commands/7"])
