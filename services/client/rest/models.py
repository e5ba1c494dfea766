"""The answers of the API, typed. A field that this version does not know is ignored; times are seconds since 1970."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["waiting", "snapshot", "catch-up", "live", "paused", "quarantined", "dropped"]
Role = Literal["viewer", "operator", "admin"]


class Answer(BaseModel):
    """An answer, or a part of it; frozen."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Cause(Answer):
    """What happened, and what to do; `code` is its kind: docs/causes.md lists them."""

    code: str
    sentence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}" if self.remedy else self.sentence


class Wait(Answer):
    """What a pipeline waits for; `what` completes the words "waiting for", `party` says whose turn it is."""

    party: str
    what: str
    cause: Cause | None = None
    since: float | None = None

    def __str__(self) -> str:
        return self.what if self.cause is None else f"{self.what}: {self.cause}"


class Acknowledgement(Answer):
    """Who has taken note of a condition, and why; its alert is not posted until `until` (None: while it holds)."""

    by: str
    at: float
    until: float | None = None
    note: str


class Condition(Answer):
    """What a person must act on; `severity` is critical, warning or info, `pipeline` None where all are concerned.

    `id` is the same while it lasts. `alerts_at`: when its alert is due. `tables`: the first ones of `tables_total`.
    """

    id: str
    name: str
    severity: str
    pipeline: str | None = None
    labels: dict[str, str] = {}
    summary: str
    code: str | None = None
    cause: str | None = None
    remedy: str | None = None
    tables: list[str] = []
    tables_total: int = 0
    since: float
    alerts_at: float
    acknowledged: Acknowledgement | None = None
    runbook: str = ""


class GaveUp(Answer):
    """An epoch that a service gave up, and why; `halts` if another try can't succeed."""

    epoch: int
    cause: Cause
    halts: bool


class Service(Answer):
    """A service process."""

    role: str
    incarnation: str
    host: str
    pid: int
    started_at: float
    failed: dict[str, GaveUp]
    leaving: bool
    starting: bool = False
    leads: list[str] = []
    members: dict[str, str] = {}
    epochs: dict[str, int] = {}
    rss_bytes: int | None = None
    cpu_seconds: float | None = None
    loop_lag_seconds: float | None = None


class LogLine(Answer):
    """One line of a service's log."""

    at: float
    level: str
    logger: str
    text: str


class DerivedTable(Answer):
    """A derived table: the rows of its content, when it was computed, for which publication, in how many seconds and by
    which plan of Spark; how many rows were computed, and why all of them were where `refresh: keys` was asked for; why
    it does not go on."""

    rows: int | None = None
    computed: int | None = None
    in_full: str = ""
    at: float | None = None
    checkpoint: int | None = None
    seconds: float | None = None
    plan: str = ""
    cause: Cause | None = None


class Pipeline(Answer):
    """A pipeline: its definition and its state."""

    name: str
    id: str = ""
    """Of this creation of the pipeline; one that is deleted and made again under its name has another."""
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
    spark_writer_error: Cause | None = None
    binlog_left_seconds: float | None = None
    rows_sent: int | None = None
    version: int = 1
    version_in_force: int | None = None
    mode: str = "running"
    commands_waiting: int = 0
    tags: dict[str, str] = {}
    derived: dict[str, DerivedTable] = {}
    halted: Cause | None = None
    halted_since: float | None = None
    mode_since: float | None = None
    conditions: list[Condition] = []
    current: bool = False
    as_of: float | None = None


class Version(Answer):
    """A version of a definition; its content if one was asked for."""

    version: int
    by: str | None = None
    at: float | None = None
    command: int | None = None
    note: str | None = None
    definition: dict[str, Any] | None = None


class Table(Answer):
    """A captured table, in its phase `since` then; `rows` are those that the lake table has now, `inserts`, `updates`
    and `deletes` the changes since its snapshot (None: unknown)."""

    table: str
    phase: str
    generation: int
    rows_done: int | None
    rows_estimate: int | None
    splits_done: int | None
    splits_total: int | None
    code: str | None = None
    cause: str | None
    remedy: str | None = None
    choices: list[str] = []
    seen: str | None = None
    rate_rows_per_second: float | None = None
    eta_seconds: float | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    last_change_at: float | None = None
    published_checkpoint: int | None = None
    published_at: float | None = None
    paused: bool = False
    since: float | None = None
    rows: int | None = None
    inserts: int | None = None
    updates: int | None = None
    deletes: int | None = None
    current: bool = False
    as_of: float | None = None


class Splits(Answer):
    """How many chunks of a table have been read."""

    table: str
    generation: int
    done: int | None
    total: int | None
    current: bool = False
    as_of: float | None = None


class Run(Answer):
    """Chunks `first` to `last`, all in this state."""

    first: int
    last: int
    state: Literal["lake", "done", "reading", "waiting"]
    reader: str | None = None


class Grid(Answer):
    """Every chunk of a table's snapshot."""

    table: str
    generation: int
    made: int
    total: int
    runs: list[Run]
    current: bool
    as_of: float | None


class Column(Answer):
    """A column of a schema."""

    name: str
    type: str
    lake_type: str | None
    nullable: bool
    field_id: int
    generated: bool


class Schema(Answer):
    """A schema that a table has, or had, at the source, and the rule by which the lake's columns are made of it."""

    schema_id: str = Field(alias="schema")
    generation: int
    since_checkpoint: int
    since: float
    key: list[str] | None
    columns: list[Column] | None
    select: list[str] | None = None
    where: str | None = None
    mask: list[str] | None = None
    mode: str | None = None


class Member(Answer):
    """A member's part of a checkpoint."""

    member: str
    part_bytes: int | None
    marker_at: float | None
    saved_at: float | None


class Apply(Answer):
    """A batch of checkpoints that the Spark writer applied."""

    first: int
    last: int
    applied_at: float
    seconds: float
    rows: int
    published_at: float | None
    tables: dict[str, float]


class Staged(Answer):
    """What one table staged in a checkpoint."""

    table: str
    files: int
    rows: int
    bytes: int


class Checkpoint(Answer):
    """A checkpoint; `tables` only if one was asked for."""

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
    members: list[Member] = []
    apply: Apply | None = None
    current: bool = False
    as_of: float | None = None
    tables: list[Staged] = []


class Savepoint(Answer):
    """A checkpoint that is kept."""

    number: int
    name: str | None
    written_at: float
    source_time: float | None
    position: dict[str, Any] | None
    published: bool


class Channel(Answer):
    """A channel of the mesh."""

    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    outstanding_bytes: int
    credit_bytes: int
    sent_bytes: int = 0
    sent: int
    taken: int
    current: bool
    as_of: float


class CutTable(Answer):
    """What the lake shows of one table at a cut."""

    table: str
    state: str
    generation: int
    shown: bool
    snapshot_id: int | None
    position: dict[str, Any] | None
    code: str | None = None
    cause: str | None
    remedy: str | None = None


class Cut(Answer):
    """A publication; `tables` only if one was asked for."""

    number: int
    kept: bool
    published_at: float
    source_time: float | None
    position: dict[str, Any] | None
    shown: int
    tables_total: int
    tables: list[CutTable] = []


class CutAnswer(Answer):
    """What the lake showed at a time, and the first cut that holds it."""

    shown: Cut | None
    holds: Cut | None


class Event(Answer):
    """An event of a pipeline: in its journal, the end of a command, a publication, or the begin or end (`ended`) of a
    condition of this name."""

    id: str
    slot: int
    at: float
    kind: str
    text: str
    table: str | None = None
    command: int | None = None
    state: Literal["done", "refused", "failed", "cancelled"] | None = None
    publication: int | None = None
    condition: str | None = None
    severity: str | None = None
    ended: bool = False


class OperationRules(Answer):
    """When and for whom an operation is possible: `states` and `phases` have those that refuse it, and why."""

    command: str
    role: Literal["operator", "admin"]
    taken: str
    act: str | None = None
    does: str
    states: dict[str, str]
    phases: dict[str, str]


class Limits(Answer):
    """How fast all readers together may SELECT; null: no limit."""

    rows_per_second: float | None
    bytes_per_second: float | None
    current: bool = False
    as_of: float | None = None


class Command(Answer):
    """A command, and what became of it."""

    number: int
    kind: str
    arguments: dict[str, Any]
    state: Literal["accepted", "running", "done", "refused", "failed", "cancelled"]
    by: str
    at: float
    cause: str | None = None
    remedy: str | None = None
    result: dict[str, Any] = {}
    finished_at: float | None = None
    waiting_for: str | None = None
    url: str

    @property
    def finished(self) -> bool:
        """Whether it was carried out, refused, cancelled, or failed."""
        return self.state not in ("accepted", "running")


class Fault(Answer):
    """One fault, with what to do."""

    field: str | None = None
    detail: str
    remedy: str | None = None
    code: str | None = None


class Finding(Answer):
    """One finding of a plan."""

    check: str
    ok: bool
    found: str
    remedy: str | None = None
    code: str | None = None
    table: str | None = None
    place: str | None = None


class PlannedTable(Answer):
    """What a plan does with one table."""

    table: str
    action: str
    key: list[str]
    rows: int | None
    bytes: int | None
    seconds: float | None
    causes: list[str] = []


class Change(Answer):
    """One setting that a plan changes."""

    key: str
    before: Any
    after: Any
    effect: str
    possible: bool


class Plan(Answer):
    """What a definition would do."""

    pipeline: str
    exists: bool
    version: int
    possible: bool
    findings: list[Finding]
    tables: list[PlannedTable]
    changes: list[Change]
    rows: int
    bytes: int
    seconds: float
    rate: str


class SourceTest(Answer):
    """Whether a source answers."""

    ok: bool
    server: str | None
    faults: list[Fault]


class SourceSchema(Answer):
    """A schema of a source; `glob` stands for all of its tables."""

    name: str
    tables: int
    glob: str


class SourceColumn(Answer):
    """A column at a source, and how it will look in the lake."""

    name: str
    type: str
    nullable: bool
    lake_name: str
    lake_type: str | None
    comment: str


class SourceTable(Answer):
    """A table of a source."""

    table: str
    engine: str | None
    rows: int | None
    bytes: int | None
    key: list[str]
    columns: list[SourceColumn]
    faults: list[Fault]


class Me(Answer):
    """Who the token says one is."""

    name: str
    role: Role
    means: str
    expires_at: float | None


class Token(Answer):
    """A token's record; `token` is the token itself, only in the answer that makes it."""

    id: str
    name: str
    role: Role
    by: str
    at: float
    expires_at: float | None
    revoked_at: float | None = None
    revoked_by: str | None = None
    token: str | None = Field(default=None, repr=False)


class AuditRecord(Answer):
    """One mutating call."""

    at: float
    request_id: str
    by: str | None
    role: str | None
    means: str | None
    identity: str | None
    address: str
    method: str
    path: str
    query: str
    operation: str | None
    status: int
    command: int | None
    cause: str | None
    count: int = 1
