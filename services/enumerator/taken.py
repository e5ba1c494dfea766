"""A command whose turn has come (pure): its kind, its step, and the leader as the agenda needs it (agenda.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import cutline.common.commands.rules as rules
from cutline.common.causes import Cause
from cutline.common.mesh.machine import Effect, Event
from cutline.common.store.command_records import Command, Orders, Outcome, State
from cutline.services.enumerator.checkpointing import Checkpointing
from cutline.services.enumerator.events import Settings
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import CommandRequest

TABLE_KINDS = frozenset(kind for kind, row in rules.COMMANDS.items() if row.taken == "machine")
CHECKPOINT_KINDS = frozenset(kind for kind, row in rules.COMMANDS.items() if row.taken == "checkpoint")
KEEPING_KINDS = frozenset({"savepoint", "stop"})
DEFINING_KINDS = frozenset({"define", "cancel_table"})
ENDING_KINDS = frozenset({"pause", "delete"})


class Step(StrEnum):
    """Where a command that was taken stands: see the head of agenda.py."""

    ASKED = "asked"
    MACHINE = "machine"
    CHECKPOINT = "checkpoint"
    EPOCH = "epoch"
    ANSWERED = "answered"


_AWAITED = {
    Step.ASKED: "an answer of the store",
    Step.MACHINE: "a checkpoint that has it",
    Step.CHECKPOINT: "a checkpoint",
    Step.EPOCH: "the next epoch",
    Step.ANSWERED: "the store, to keep its outcome",
}


class LeaderForAgenda(Protocol):
    """What an agenda needs of its leader: what each means stands at `Leader`, the one that has it. It is named here
    since leader.py imports the agenda."""

    tail: int
    base: int | None
    checkpoints: Checkpointing
    enumerator: Enumerator | None

    @property
    def leads(self) -> bool:
        """Whether an epoch is open."""

    @property
    def reads(self) -> bool:
        """Whether the journal and the commands are to be read next."""

    @property
    def proposes(self) -> bool:
        """Whether the entry of an epoch is being written."""

    @property
    def waits(self) -> bool:
        """Whether no epoch is open, and it may last until one is."""

    @property
    def still(self) -> bool:
        """Whether no epoch is to be open."""

    @property
    def halted(self) -> bool:
        """Whether no epoch is opened since it would fail."""

    def begin_anew(self, cause: Cause) -> list[Effect]:
        """End the epoch, and begin the next one."""

    def stand_still(self, cause: Cause) -> list[Effect]:
        """End the epoch, and begin none."""

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Pass a command on to the enumerator."""


@dataclass(slots=True, kw_only=True)
class Taken:
    """A command whose turn has come.

    `orders`: the standing orders after it. `base`, `settings`, `anew`: of the epoch that it awaits; `begun`: that epoch
    is on its way. `unkept`: the checkpoint that it awaits is no savepoint.
    """

    command: Command
    step: Step
    orders: Orders
    base: int | None = None
    settings: Settings | None = None
    anew: bool = False
    begun: bool = False
    unkept: bool = False
    state: State = "done"
    cause: str | None = None
    remedy: str | None = None
    result: Mapping[str, Any] | None = None
    writing: bool = False

    @property
    def alone(self) -> bool:
        """Whether no other command is taken before this one is finished."""
        return self.step != Step.MACHINE and self.command.kind not in TABLE_KINDS | CHECKPOINT_KINDS

    @property
    def waits_for(self) -> str:
        """What it waits for, for the status."""
        if self.step == Step.ASKED and self.command.kind == "restore":
            return "the source, to say whether it has the binlog"
        return _AWAITED[self.step]

    def answer(
        self, state: State, cause: str | None = None, remedy: str | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        """Note what became of it."""
        self.step, self.state, self.cause, self.remedy, self.result = Step.ANSWERED, state, cause, remedy, result

    def outcome(self, orders: Orders, left_open: tuple[int, ...], now: float) -> Outcome:
        """What the store is to keep of it: with these standing orders, and these commands before it without one."""
        return Outcome(
            n=self.command.n,
            state=self.state,
            cause=self.cause,
            remedy=self.remedy,
            result=self.result or {},
            at=now,
            orders=orders,
            open=left_open,
        )


def named(command: Command) -> str:
    """How a sentence names a command."""
    return f"command {command.n} ({command.kind})"


def afterwards(ends: Command) -> str:
    """What helps whoever asked for something before the pipeline was paused or deleted."""
    return rules.NOTHING if ends.kind == "delete" else "resume the pipeline and ask again"


def withdrawn_by(cancel: Command) -> tuple[str, str]:
    """Cause and remedy of a command that another one cancels."""
    return f"{cancel.by} cancelled it by command {cancel.n}", "ask again if it is wanted after all"


def request_by(command: Command) -> CommandRequest:
    """The request of the checkpoint that a command awaits."""
    return CommandRequest(n=command.n)
