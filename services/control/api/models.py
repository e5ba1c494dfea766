"""The bodies of requests and answers that more than one module of the API uses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cutline.common.causes import Cause
from cutline.common.commands.kinds import Mode
from cutline.common.mesh.presence import GaveUp
from cutline.common.waits import Wait


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
    starting: bool = False
    leads: list[str] = Field(default_factory=list, description="pipelines whose lease it holds")
    members: dict[str, str] = Field(default_factory=dict, description="its name in the epoch of each pipeline")
    epochs: dict[str, int] = Field(default_factory=dict, description="the epoch of each pipeline that it is in")
    rss_bytes: int | None = Field(default=None, description="memory of the process and its children")
    cpu_seconds: float | None = Field(default=None, description="CPU time of the process and its children so far")
    loop_lag_seconds: float | None = Field(default=None, description="longest delay of its event loop in 15 s")


class AcknowledgementView(BaseModel):
    """A person knows of a condition. No alert is posted for it `until` then (seconds since 1970; null: until it
    ends)."""

    by: str = Field(examples=["anna"])
    at: float
    until: float | None
    note: str = Field(examples=["the vendor restores the table on Monday"])


Severity = Literal["critical", "warning", "info"]


class ConditionView(BaseModel):
    """What a person must act on, `since` then (seconds since 1970); `alerts_at`: when its alert is posted.

    `name` is that of the alert, `pipeline` null where all pipelines are concerned. `tables`: the first ones of
    `tables_total` that it is about. `runbook`: its section in the docs.
    """

    id: str = Field(description="the same whenever it holds", examples=["1f0c9b7d2a44e6c8"])
    name: str = Field(examples=["CutlineNoLeader"])
    severity: Severity
    pipeline: str | None = Field(examples=["shop"])
    labels: dict[str, str] = Field(examples=[{"pipeline": "shop", "role": "spark_writer"}])
    summary: str = Field(examples=["no spark_writer leads pipeline shop"])
    code: str | None = Field(description="kind of the cause: see docs/causes.md; null: unknown", examples=["no_key"])
    cause: str | None
    remedy: str = Field(examples=["start a service of that role, or see in its log why it ended"])
    tables: list[str]
    tables_total: int
    since: float
    alerts_at: float
    acknowledged: AcknowledgementView | None
    runbook: str = Field(examples=["operations/messages.md#cutlinenoleader"])


class DerivedView(BaseModel):
    """A derived table: `rows` of its content, computed at `at` (seconds since 1970). `checkpoint`: the publication for
    which the Spark writer, since it started, computed it last, in so many `seconds`, by Spark's `plan`: so many rows of
    it (`computed`), or with `refresh: keys` all of them, because of `in_full`. `cause`: why it does not go on, and what
    to do."""

    rows: int | None
    computed: int | None
    in_full: str
    at: float | None
    checkpoint: int | None
    seconds: float | None
    plan: str
    cause: Cause | None


class PipelineView(BaseModel):
    """One pipeline: its definition (without passwords) and its state; a number that does not exist yet is null.

    `limits`: how fast all readers together may SELECT; `waiting_for`: a member's obstacle, or the leader's.
    `failures`: epochs that failed in a row, while the next one waits until `retry_at` (seconds since 1970).
    `spark_writer`: the incarnation of the Spark writer that leads the pipeline in the lake, null if that is gone.
    `applied_by_spark`: the tables of the last batch that Spark's executors applied, each with the reason.
    `version`: of the definition, which is in force; `version_in_force`: the same as the leader last reported it.
    `id`: of this creation of the pipeline; one that is deleted and made again under its name has another.
    `mode`: what the last command that was carried out made of it.
    `current`: whether a leader reports now; else the state is of `as_of` (seconds since 1970, null: unknown).
    """

    name: str
    id: str
    definition: dict[str, Any]
    epoch: int | None
    leader: str | None
    tables: dict[str, int]
    checkpoint: int | None
    checkpoint_completed_at: float | None
    publication: int | None
    published_at: float | None
    source_time: float | None
    waiting_for: Wait | None
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
    derived: dict[str, DerivedView] = Field(default_factory=dict, description="the derived tables, by name")
    halted: Cause | None = Field(description="why the leader gave up until a person acts")
    spark_writer_error: Cause | None = Field(
        default=None, description="why the Spark writer can't go on; it tries again"
    )
    binlog_left_seconds: float | None = Field(
        default=None, description="until the source may remove binlog that is still needed; null: unknown, or never"
    )
    rows_sent: int | None = Field(
        default=None, description="rows, of snapshots and of changes, that the readers have sent since the epoch began"
    )
    current: bool
    as_of: float | None
    mode_since: float | None = None
    halted_since: float | None = None
    conditions: list[ConditionView] = Field(
        default_factory=list, description="what a person must act on, those first that nobody has acknowledged"
    )


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
    """One captured table, from the enumerator's status, or quarantined if the Spark writer can't apply it.

    Times are seconds since 1970. `rate_rows_per_second` and `eta_seconds` are of the snapshot. `lag_seconds`: how old
    the content is that the lake shows; `lag_bytes`: of the binlog that is still to be read. `last_change_at`: the time
    at the source of the checkpoint that has the last change. `published_checkpoint`: whose content the lake shows,
    since `published_at`. `choices`: what may become of the commits of others, for which the table is quarantined;
    `seen` names these commits.
    `current`: whether a leader reports now; else all this is `as_of` then.
    """

    table: str
    phase: str
    generation: int
    rows_done: int | None
    rows_estimate: int | None
    splits_done: int | None
    splits_total: int | None
    code: str | None = Field(default=None, description="kind of the cause: see docs/causes.md", examples=["no_key"])
    cause: str | None
    remedy: str | None = None
    choices: list[str] = Field(default_factory=list)
    seen: str | None = None
    rate_rows_per_second: float | None = None
    eta_seconds: float | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    last_change_at: float | None = None
    published_checkpoint: int | None = None
    published_at: float | None = None
    paused: bool = False
    since: float | None = Field(default=None, description="when it entered its phase, in seconds since 1970")
    rows: int | None = Field(default=None, description="rows of the lake table, as of its last change")
    inserts: int | None = Field(default=None, description="rows inserted since its snapshot began")
    updates: int | None = Field(default=None, description="rows updated since its snapshot began")
    deletes: int | None = Field(default=None, description="rows deleted since its snapshot began")
    current: bool = False
    as_of: float | None = None


class SplitsView(BaseModel):
    """How many chunks of a table have been read. `current`: whether a leader reports now; else it is `as_of` then."""

    table: str
    generation: int
    done: int | None
    total: int | None
    current: bool = False
    as_of: float | None = None


class MemberView(BaseModel):
    """A member's part of a checkpoint: its bytes, when the first marker reached the member, when the part was saved.

    A member without a state of its own has no bytes. The times are known of the last 50 checkpoints of the epoch.
    """

    member: str
    part_bytes: int | None
    marker_at: float | None
    saved_at: float | None


class ApplyView(BaseModel):
    """How the Spark writer applied the checkpoints `first` to `last`, a batch; `tables`: seconds of the 20 slowest.

    `published_at` is null if the batch is not published yet.
    """

    first: int
    last: int
    applied_at: float
    seconds: float
    rows: int
    published_at: float | None
    tables: dict[str, float]


class CheckpointView(BaseModel):
    """One checkpoint of the journal; `published`: the lake shows it or a later one; `name`: of a savepoint.

    `members` have the marker's way through the mesh; `apply` is null if the Spark writer has not applied the checkpoint
    yet, or no longer reports it (it does of the last 50 batches). Times are seconds since 1970.
    """

    number: int
    name: str | None = None
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
    members: list[MemberView] = Field(default_factory=list)
    apply: ApplyView | None = None
    current: bool = Field(
        default=False, description="whether a leader reports now: else times in `members` may be missing"
    )
    as_of: float | None = None


EventKind = Literal["epoch", "kept", "table", "command", "publication", "condition"]
EndState = Literal["done", "refused", "failed", "cancelled"]


class EventView(BaseModel):
    """An event: a new epoch with its cause, a kept checkpoint, a table that changed its phase; the end of a command; a
    publication; a condition that began or ended, or that a person acknowledged. `slot` is the journal's newest entry
    then."""

    id: str = Field(description="for Last-Event-ID", examples=["42.0.7.40.3.1"])
    slot: int
    at: float = Field(description="seconds since 1970")
    kind: EventKind = Field(examples=["command"])
    text: str = Field(examples=["command 7 (pause) of anna is done"])
    table: str | None = None
    command: int | None = Field(default=None, description="number of the command that has ended", examples=[7])
    state: EndState | None = Field(default=None, description="how it has ended", examples=["done"])
    publication: int | None = Field(default=None, description="number of the checkpoint that the lake shows")
    condition: str | None = Field(default=None, description="name of the condition", examples=["CutlineNoLeader"])
    severity: Severity | None = Field(default=None, description="of the condition")
    ended: bool = Field(default=False, description="whether the condition has ended")


CommandState = Literal["accepted", "running", "done", "refused", "failed", "cancelled"]


class CommandView(BaseModel):
    """A command: a change that was asked for, and what became of it.

    `accepted`: it is in the store, and survives every crash; `running`: the leader took it; then `done`, `refused`
    (it made no sense any more), `failed` or `cancelled` (by another command), with cause and remedy. Times are seconds
    since 1970.
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
    waiting_for: str | None = Field(
        default=None, description="what it waits for, by the leader", examples=["the Spark writer"]
    )
    url: str = Field(description="where to ask for its state", examples=["/v1/pipelines/shop/commands/7"])
