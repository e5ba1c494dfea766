"""A command whose turn has come (pure): its step, and the leader as the agenda needs it (agenda.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cutline.common.causes import Cause
from cutline.common.commands.kinds import (
    NOTHING,
    CancelCommand,
    Delete,
    Refusal,
    Restore,
    RetryTable,
    Savepoint,
    Stop,
    Wish,
)
from cutline.common.mesh.machine import Effect, Event
from cutline.common.phases import QUARANTINED
from cutline.common.positions import Position
from cutline.common.store.command_records import Command, Orders, Outcome, State
from cutline.services.enumerator.checkpointing import Checkpointing
from cutline.services.enumerator.events import (
    Settings,
)
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import CommandRequest


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
        return self.step != Step.MACHINE and self.command.taken == "alone"

    @property
    def waits_for(self) -> str:
        """What it waits for, for the status."""
        if self.step == Step.ASKED and isinstance(self.command.wish, Restore):
            return "the source, to say whether it has the binlog"
        return _AWAITED[self.step]

    def answer(
        self, state: State, cause: str | None = None, remedy: str | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        """Note what became of it."""
        self.step, self.state, self.cause, self.remedy, self.result = Step.ANSWERED, state, cause, remedy, result

    def fail_silent(self, at: Position | None) -> None:
        """It fails: the source has fallen silent inside a transaction, at this place."""
        place = "" if at is None else f" at {at.file}:{at.offset}"
        cause = (
            f"the source sends no more of the transaction{place}, and a checkpoint inside a transaction can't be a"
            " savepoint"
        )
        way = ", or stop it without a savepoint's name" if isinstance(self.command.wish, Stop) else ""
        self.answer("failed", cause, f"see that the source answers, and ask again{way}")

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
    return NOTHING if isinstance(ends.wish, Delete) else "resume the pipeline and ask again"


def withdrawn_by(cancel: Command) -> tuple[str, str]:
    """Cause and remedy of a command that another one cancels."""
    return f"{cancel.by} cancelled it by command {cancel.n}", "ask again if it is wanted after all"


def cancels(later: Command, command: Command) -> bool:
    """Whether the later one is to withdraw the other."""
    return isinstance(later.wish, CancelCommand) and later.wish.command == command.n


def savepoint_of(command: Command) -> str | None:
    """The name of the savepoint that a command asks for."""
    match command.wish:
        case Savepoint(name=name) | Stop(savepoint=name):
            return name
    return None


def request_by(command: Command) -> CommandRequest:
    """The request of the checkpoint that a command awaits."""
    return CommandRequest(n=command.n)


def is_sparks(wish: Wish | Refusal, leader: LeaderForAgenda) -> bool:
    """Whether the Spark writer has quarantined the table to retry: the enumerator has not."""
    if not isinstance(wish, RetryTable) or leader.enumerator is None:
        return False
    table = leader.enumerator.tables.get(wish.table)
    return table is not None and table.phase != QUARANTINED
