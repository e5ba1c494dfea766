"""Every command that a person can give (pure): one class each, with its arguments and the rule by which it makes sense.

A rule says who may give the command (`role`), in which states of the pipeline and phases of its table it makes sense,
what is said otherwise, and how the leader takes it (`taken`):

- `machine`: by the enumerator, beside others; it is done once a checkpoint has it.
- `checkpoint`: with a checkpoint, beside others.
- `alone`: no other command is taken before it is finished.

The state is the mode of the standing orders, but `halted` and `ended` (at its stop) for a pipeline that is to run and
does not. A rule says what the leader will do, not whether it succeeds: a source may be lost in between.

A field that is marked UNSAID is left out of the JSON where it is None: whoever gives the command has no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from cutline.common.form import OtherForm, read
from cutline.common.phases import CATCH_UP, DROPPED, LIVE, PAUSED, QUARANTINED, SNAPSHOT, WAITING, Phase

Mode = Literal["running", "paused", "stopped", "deleting"]
Role = Literal["operator", "admin"]
PipelineState = Literal["running", "paused", "stopped", "halted", "ended", "deleting"]
Taken = Literal["machine", "checkpoint", "alone"]
STATES: tuple[PipelineState, ...] = get_args(PipelineState)
UNSAID: Mapping[str, bool] = {"unsaid": True}

NOTHING = "there is nothing to do"
RUNS: frozenset[PipelineState] = frozenset({"running"})
NOT_DELETING: frozenset[PipelineState] = frozenset(STATES) - {"deleting"}
_READ = (WAITING, SNAPSHOT, CATCH_UP)
_STANDS: Mapping[PipelineState, tuple[str, str]] = {
    "running": ("the pipeline is running", "pause or stop it first"),
    "paused": ("the pipeline is paused", "resume it first"),
    "stopped": ("the pipeline is stopped", "start it first"),
    "halted": ("the pipeline is halted", "remove the cause and resume it, or read every table again"),
    "ended": ("the pipeline has ended at its stop", "make another pipeline"),
    "deleting": ("the pipeline is being deleted", "wait until it is gone, or use another name"),
}


class Refusal(NamedTuple):
    """Why a wish makes no sense now, and what does."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a command makes sense: see the head of this file. `own`: what is said in some of the other states; `phases`:
    of its table, () if it is not about a table's phase; `cause`, `otherwise`: what is said of a table in another phase,
    by default that it is in that one, and the remedy. `mode`: the one that the pipeline has afterwards, None: the same.
    `wakes`: a halted pipeline tries again."""

    states: frozenset[PipelineState]
    taken: Taken = "alone"
    role: Role = "operator"
    own: Mapping[PipelineState, tuple[str, str]] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    cause: str = ""
    otherwise: str = ""
    mode: Mode | None = None
    wakes: bool = False

    def refusal(self, state: PipelineState) -> Refusal | None:
        """Why it makes no sense in this state; None if it does."""
        return None if state in self.states else Refusal(*self.own.get(state, _STANDS[state]))

    def refusal_of(self, table: str, phase: Phase) -> Refusal | None:
        """Why it makes no sense for a table in this phase; None if it does."""
        if not self.phases or phase in self.phases:
            return None
        wanted = f", not {self.phases[0]}" if len(self.phases) == 1 else ""
        return Refusal(self.cause.format(table=table) or f"{table} is {phase}{wanted}", self.otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A command by its class; `kind` is its name in the store and in the API."""

    kind: ClassVar[str]
    rule: ClassVar[Rule]

    def refusal(self, state: PipelineState) -> Refusal | None:
        """Why it makes no sense in this state; None if it does."""
        return self.rule.refusal(state)

    def arguments(self) -> dict[str, Any]:
        """Its arguments as JSON."""
        known = {each.name: (getattr(self, each.name), each.metadata) for each in fields(self)}
        return {name: value for name, (value, about) in known.items() if value is not None or about != UNSAID}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWish(Wish):
    """A command about a table."""

    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOrder(TableWish):
    """A command about a table of which a person says no more. `act` is its name in the paths of the API, in the CLI and
    for clients; all of them take it, its rule and its docstring, which says what it does, from the class."""

    act: ClassVar[str]


# The pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Wish):
    """Take a last checkpoint and stand still."""

    kind = "pause"
    rule = Rule(
        states=frozenset({"running", "halted", "ended"}),
        own={"paused": ("the pipeline is paused already", NOTHING)},
        mode="paused",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Wish):
    """Go on after a pause, a stop or a halt."""

    kind = "resume"
    rule = Rule(
        states=frozenset({"paused", "stopped", "halted"}),
        own={"running": ("the pipeline is running, not paused", NOTHING)},
        mode="running",
        wakes=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Wish):
    """As a pause, with a savepoint of this name, if one is given."""

    kind = "stop"
    rule = Rule(
        states=frozenset({"running", "paused", "halted", "ended"}),
        own={"stopped": ("the pipeline is stopped already", NOTHING)},
        mode="stopped",
    )
    savepoint: str | None = None

    def refusal(self, state: PipelineState) -> Refusal | None:
        """Why it makes no sense in this state; None if it does."""
        if state in ("paused", "halted") and self.savepoint is not None:
            remedy = "resume it first, or stop it without a savepoint's name"
            return Refusal(f"a {state} pipeline takes no savepoint", remedy)
        return self.rule.refusal(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Wish):
    """Go on after a stop or a halt."""

    kind = "start"
    rule = Rule(
        states=frozenset({"stopped", "halted"}),
        own={
            "running": ("the pipeline is running already", NOTHING),
            "paused": ("the pipeline is paused, not stopped", "resume it"),
        },
        mode="running",
        wakes=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Wish):
    """Go back to a checkpoint."""

    kind = "restore"
    rule = Rule(states=NOT_DELETING, wakes=True)
    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAgain(Wish):
    """Read every table again, from the source's present position."""

    kind = "read_again"
    rule = Rule(states=NOT_DELETING - {"ended"}, wakes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Wish):
    """Delete the pipeline; with `purge` also the lake tables that it wrote."""

    kind = "delete"
    rule = Rule(
        states=NOT_DELETING,
        role="admin",
        own={
            "deleting": (
                "the pipeline is being deleted already",
                "wait until it is gone; if its lake can't be reached any more, `cutline pipeline leave-lake` ends the"
                " wait",
            )
        },
        mode="deleting",
    )
    purge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveLake(Wish):
    """Delete the pipeline without its lake tables after all."""

    kind = "leave_lake"
    rule = Rule(
        states=frozenset({"deleting"}),
        role="admin",
        own=dict.fromkeys(
            NOT_DELETING, ("the pipeline is not being deleted", "delete it without a purge, and its lake stays")
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Wish):
    """Take a checkpoint now."""

    kind = "checkpoint"
    rule = Rule(states=RUNS, taken="checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint(Wish):
    """Take a checkpoint that is kept, with a name. `run`: the `cutline run` that ends with it."""

    kind = "savepoint"
    rule = Rule(states=RUNS, taken="checkpoint")
    name: str | None = None
    run: str | None = field(default=None, metadata=UNSAID)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSavepoint(Wish):
    """Keep a savepoint no longer than any other checkpoint."""

    kind = "delete_savepoint"
    rule = Rule(states=NOT_DELETING)
    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCommand(Wish):
    """Withdraw a command that has no effect that lasts."""

    kind = "cancel_command"
    rule = Rule(states=NOT_DELETING)
    command: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits(Wish):
    """Change how fast all readers together may read; None: no limit."""

    kind = "limits"
    rule = Rule(states=NOT_DELETING)
    rows_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Define(Wish):
    """Put another definition in force: a whole one, made from version `base` (None: of whichever is in force by then),
    or only another `source`. `note`: a person's words about it."""

    kind = "define"
    rule = Rule(states=NOT_DELETING, role="admin", wakes=True)
    base: int | None = field(default=None, metadata=UNSAID)
    definition: Mapping[str, Any] | None = field(default=None, metadata=UNSAID)
    source: Mapping[str, Any] | None = field(default=None, metadata=UNSAID)
    note: str | None = field(default=None, metadata=UNSAID)


# A table


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTable(TableOrder):
    """Cancel the addition of a table that is not live yet."""

    kind, act = "cancel_table", "cancel"
    rule = Rule(states=NOT_DELETING, phases=_READ, otherwise="a live table can be removed instead", wakes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTable(TableOrder):
    """Pause a table: the lake keeps showing its last publication; the other tables go on."""

    kind, act = "pause_table", "pause"
    rule = Rule(states=RUNS, taken="machine", phases=(*_READ, LIVE), otherwise="there is nothing to pause")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTable(TableOrder):
    """Go on with a paused table."""

    kind, act = "resume_table", "resume"
    rule = Rule(
        states=RUNS,
        taken="machine",
        phases=(PAUSED,),
        cause="{table} is not paused",
        otherwise="there is nothing to resume",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTableAgain(TableOrder):
    """Read a table again from its beginning; the lake shows the old content until the new one is complete."""

    kind, act = "read_table_again", "read-again"
    rule = Rule(
        states=RUNS,
        taken="machine",
        phases=(SNAPSHOT, CATCH_UP, LIVE, QUARANTINED),
        otherwise="resume a paused table first; a waiting one is read anyway, and a dropped one can't be",
    )
    generation: int | None = field(default=None, metadata=UNSAID)
    """The one whose lake table lost data, as the Spark writer has found: once that is over, there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryTable(TableOrder):
    """Retry a quarantined table, after its cause was removed."""

    kind, act = "retry_table", "retry"
    rule = Rule(states=RUNS, taken="machine", phases=(QUARANTINED,), otherwise="there is nothing to retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTable(TableOrder):
    """Forget a table that was dropped at the source: it disappears from lists, and its lake table stays."""

    kind, act = "forget_table", "forget"
    rule = Rule(
        states=RUNS,
        taken="machine",
        phases=(DROPPED,),
        otherwise="only a table that was dropped at the source is forgotten; a captured one can be removed",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseAboutLake(TableWish):
    """Accept or overwrite the commits of others to a lake table. `seen`: the newest one that the person knows (None:
    the one in the status by then)."""

    kind = "lake"
    rule = Rule(
        states=NOT_DELETING,
        phases=(QUARANTINED,),
        otherwise="no commit of others awaits a choice; there is nothing to do",
    )
    choice: str
    seen: str | None = None


KINDS: Mapping[str, type[Wish]] = {
    wish.kind: wish
    for wish in (
        Pause, Resume, Stop, Start, Restore, ReadAgain, Delete, LeaveLake, Checkpoint, Savepoint, DeleteSavepoint,
        CancelCommand, SetLimits, Define, CancelTable, PauseTable, ResumeTable, ReadTableAgain, RetryTable, ForgetTable,
        ChooseAboutLake,
    )
}  # fmt: skip
"""The classes of all commands, by their kind."""
TABLE_ORDERS: tuple[type[TableOrder], ...] = tuple(wish for wish in KINDS.values() if issubclass(wish, TableOrder))


def wish_of(kind: str, arguments: Mapping[str, Any]) -> Wish | Refusal:
    """The command of this kind with these arguments (JSON), or why this version of Cutline can't carry it out."""
    found = KINDS.get(kind)
    if found is None:
        return Refusal(f"this version of Cutline knows no command {kind!r}", "upgrade its services")
    try:
        return read(found, arguments)
    except OtherForm:
        return Refusal(f"the arguments of the command {kind!r} are not those of this version of Cutline", "ask again")
