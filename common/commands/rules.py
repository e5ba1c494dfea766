"""The operations of a pipeline, and whether each makes sense now (pure).

The control API asks before it accepts a command, the leader when the command has its turn; `GET /v1/operations`, the
dashboard and the docs show the same rows. So what is refused for a reason that is known at the request is refused with
the same sentence by both, and never accepted first.

An *operation* is what a person asks for; it becomes a *command* of the store, whose class has the rule (kinds.py).
Several operations are the command `define`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutline.common.commands.kinds import KINDS, STATES, Define, Mode, PipelineState, Refusal, Role, TableOrder, Wish
from cutline.common.phases import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: the class of its command, and who may ask for it."""

    wish: type[Wish]
    role: Role


OPERATIONS: Mapping[str, Operation] = {
    **{kind: Operation(wish=wish, role=wish.rule.role) for kind, wish in KINDS.items()},
    "restore_version": Operation(wish=Define, role="admin"),
    "add_table": Operation(wish=Define, role="operator"),
    "remove_table": Operation(wish=Define, role="operator"),
}
"""Every operation, by its name in the API (`operation_id` without what says how it is asked for)."""


def state(mode: Mode, *, halted: bool, ended: bool) -> PipelineState:
    """The state of a pipeline with these standing orders."""
    if mode == "running" and halted:
        return "halted"
    return "ended" if mode == "running" and ended else mode


def table_refusal(wish: type[Wish], table: str, phase: Phase | None) -> Refusal | None:
    """Why this command makes no sense for a table in this phase (None: the pipeline has no such table)."""
    return unknown_table(table) if phase is None else wish.rule.refusal_of(table, phase)


def to_json() -> dict[str, Any]:
    """The table as the dashboard reads it: by operation its role, why it is refused in a state and in a phase of its
    table (which stands as `{table}`); what is left out is allowed. `act`: of a TableOrder."""
    return {
        name: {
            "command": operation.wish.kind,
            "role": operation.role,
            "taken": operation.wish.rule.taken,
            "act": operation.wish.act if issubclass(operation.wish, TableOrder) else None,
            "does": " ".join((operation.wish.__doc__ or "").split()),
            "states": {
                state: f"{why.cause}: {why.remedy}"
                for state in STATES
                if (why := operation.wish.rule.refusal(state)) is not None
            },
            "phases": {
                phase.value: f"{why.cause}: {why.remedy}"
                for phase in Phase
                if (why := operation.wish.rule.refusal_of("{table}", phase)) is not None
            },
        }
        for name, operation in OPERATIONS.items()
    }


def unknown_table(table: str) -> Refusal:
    """What is said of a table that the pipeline does not have."""
    return Refusal(f"the pipeline captures no table {table!r}", "look at the list of its tables")
