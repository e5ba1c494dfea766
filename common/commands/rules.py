"""The rules of every wish that a person can have (pure): the one place that says whether it makes sense now.

The control API asks before it accepts a command, the leader when the command has its turn; `GET /v1/operations`, the
dashboard and the docs show the same rows. So what is refused for a reason that is known at the request is refused with
the same sentence by both, and never accepted first.

An *operation* is what a person asks for; it becomes a *command* of the store. Several operations are the command
`define`. Each row says who may ask for it, in which *states* of the pipeline and *phases* of a table it makes sense,
and how the leader takes it:

- `machine`: by the enumerator, beside others; it is done once a checkpoint has it.
- `checkpoint`: with a checkpoint, beside others.
- `alone`: no other command is taken before it is finished.

The state is the mode of the standing orders, but `halted` and `ended` (at its stop) for a pipeline that is to run and
does not. A rule says what the leader will do, not whether it succeeds: a source may be lost in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Role = Literal["operator", "admin"]
PipelineState = Literal["running", "paused", "stopped", "halted", "ended", "deleting"]
How = Literal["machine", "checkpoint", "alone"]
STATES: tuple[PipelineState, ...] = get_args(PipelineState)
PHASES = ("waiting", "snapshot", "catch-up", "live", "paused", "quarantined", "dropped")

NOTHING = "there is nothing to do"
_RUNS: frozenset[PipelineState] = frozenset({"running"})
_NOT_DELETING: frozenset[PipelineState] = frozenset(STATES) - {"deleting"}
_STANDS: Mapping[PipelineState, tuple[str, str]] = {
    "running": ("the pipeline is running", "pause or stop it first"),
    "paused": ("the pipeline is paused", "resume it first"),
    "stopped": ("the pipeline is stopped", "start it first"),
    "halted": ("the pipeline is halted", "remove the cause and resume it, or read every table again"),
    "ended": ("the pipeline has ended at its stop", "make another pipeline"),
    "deleting": ("the pipeline is being deleted", "wait until it is gone, or use another name"),
}
_OWN: Mapping[tuple[str, PipelineState], tuple[str, str]] = {
    ("pause", "paused"): ("the pipeline is paused already", NOTHING),
    ("resume", "running"): ("the pipeline is running, not paused", NOTHING),
    ("start", "running"): ("the pipeline is running already", NOTHING),
    ("start", "paused"): ("the pipeline is paused, not stopped", "resume it"),
    ("stop", "stopped"): ("the pipeline is stopped already", NOTHING),
    ("delete", "deleting"): (
        "the pipeline is being deleted already",
        "wait until it is gone; if its lake can't be reached any more, `cutline pipeline leave-lake` ends the wait",
    ),
    **{
        ("leave_lake", state): ("the pipeline is not being deleted", "delete it without a purge, and its lake stays")
        for state in STATES
        if state != "deleting"
    },
}


class Refusal(NamedTuple):
    """Why a wish makes no sense now, and what does."""

    cause: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row: see the head of this file. `phases`: of its table, () if it is not about a table's phase; `otherwise`:
    the remedy for a table in another phase."""

    name: str
    command: str
    role: Role
    states: frozenset[PipelineState]
    taken: How
    phases: tuple[str, ...] = ()
    otherwise: str = ""


def _row(
    name: str,
    taken: How,
    states: frozenset[PipelineState],
    *,
    command: str | None = None,
    role: Role = "operator",
    phases: tuple[str, ...] = (),
    otherwise: str = "",
) -> Operation:
    return Operation(
        name=name, command=command or name, role=role, states=states, taken=taken, phases=phases, otherwise=otherwise
    )


_READ = ("waiting", "snapshot", "catch-up")
OPERATIONS: Mapping[str, Operation] = {
    row.name: row
    for row in (
        _row("pause", "alone", frozenset({"running", "halted", "ended"})),
        _row("resume", "alone", frozenset({"paused", "stopped", "halted"})),
        _row("stop", "alone", frozenset({"running", "paused", "halted", "ended"})),
        _row("start", "alone", frozenset({"stopped", "halted"})),
        _row("restore", "alone", _NOT_DELETING),
        _row("read_again", "alone", _NOT_DELETING - {"ended"}),
        _row("delete", "alone", _NOT_DELETING, role="admin"),
        _row("leave_lake", "alone", frozenset({"deleting"}), role="admin"),
        _row("checkpoint", "checkpoint", _RUNS),
        _row("savepoint", "checkpoint", _RUNS),
        _row("delete_savepoint", "alone", _NOT_DELETING),
        _row("cancel_command", "alone", _NOT_DELETING),
        _row("limits", "alone", _NOT_DELETING),
        _row("define", "alone", _NOT_DELETING, role="admin"),
        _row("restore_version", "alone", _NOT_DELETING, command="define", role="admin"),
        _row("add_table", "alone", _NOT_DELETING, command="define"),
        _row("remove_table", "alone", _NOT_DELETING, command="define"),
        _row("cancel_table", "alone", _NOT_DELETING, phases=_READ, otherwise="a live table can be removed instead"),
        _row("pause_table", "machine", _RUNS, phases=(*_READ, "live"), otherwise="there is nothing to pause"),
        _row("resume_table", "machine", _RUNS, phases=("paused",), otherwise="there is nothing to resume"),
        _row(
            "read_table_again",
            "machine",
            _RUNS,
            phases=("snapshot", "catch-up", "live", "quarantined"),
            otherwise="resume a paused table first; a waiting one is read anyway, and a dropped one can't be",
        ),
        _row("retry_table", "machine", _RUNS, phases=("quarantined",), otherwise="there is nothing to retry"),
        _row(
            "forget_table",
            "machine",
            _RUNS,
            phases=("dropped",),
            otherwise="only a table that was dropped at the source is forgotten; a captured one can be removed",
        ),
        _row(
            "lake",
            "alone",
            _NOT_DELETING,
            phases=("quarantined",),
            otherwise="no commit of others awaits a choice; there is nothing to do",
        ),
    )
}
"""Every wish, by its name in the API (`operation_id` without what says how it is asked for)."""

COMMANDS: Mapping[str, Operation] = {name: row for name, row in OPERATIONS.items() if row.command == name}
"""The rows of the commands, by their kind."""


def state(mode: str, *, halted: bool, ended: bool) -> PipelineState:
    """The state of a pipeline with these standing orders."""
    if mode == "running" and halted:
        return "halted"
    if mode == "running" and ended:
        return "ended"
    found: PipelineState = next(known for known in STATES if known == mode)
    return found


def refusal(operation: str, now: PipelineState, arguments: Mapping[str, Any] | None = None) -> Refusal | None:
    """Why this operation makes no sense in this state of the pipeline; None if it does."""
    row = OPERATIONS.get(operation)
    if row is None:
        return Refusal(f"this version of Cutline knows no command {operation!r}", "upgrade its services")
    if now not in row.states:
        return Refusal(*_OWN.get((operation, now), _STANDS[now]))
    if operation == "stop" and now in ("paused", "halted") and (arguments or {}).get("savepoint") is not None:
        return Refusal(f"a {now} pipeline takes no savepoint", "resume it first, or stop it without a savepoint's name")
    return None


def table_refusal(operation: str, table: str, phase: str | None) -> Refusal | None:
    """Why this operation makes no sense for a table in this phase (None: the pipeline has no such table)."""
    row = OPERATIONS[operation]
    if phase is None:
        return unknown_table(table)
    if not row.phases or phase in row.phases:
        return None
    if operation == "resume_table":
        return Refusal(f"{table} is not paused", row.otherwise)
    wanted = f", not {row.phases[0]}" if len(row.phases) == 1 else ""
    return Refusal(f"{table} is {phase}{wanted}", row.otherwise)


def to_json() -> dict[str, Any]:
    """The table as the dashboard reads it: by operation its role, why it is refused in a state and in a phase of its
    table (which stands as `{table}`); what is left out is allowed."""
    return {
        name: {
            "command": row.command,
            "role": row.role,
            "taken": row.taken,
            "states": {state: f"{why[0]}: {why[1]}" for state in STATES if (why := refusal(name, state)) is not None},
            "phases": {
                phase: f"{why[0]}: {why[1]}"
                for phase in PHASES
                if (why := table_refusal(name, "{table}", phase)) is not None
            },
        }
        for name, row in OPERATIONS.items()
    }


def unknown_table(table: str) -> Refusal:
    """What is said of a table that the pipeline does not have."""
    return Refusal(f"the pipeline captures no table {table!r}", "look at the list of its tables")
