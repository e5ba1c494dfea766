"""A command whose turn has come, the leader as it needs it, and what follows from its kind (pure).

- *asked*: the driver carries it out, or looks whether it can be.
- *machine*: the enumerator has taken it. It is answered once the journal holds a checkpoint whose part has it, also if
  it is refused: so a leader that was deposed, and does not know it yet, answers nothing.
- *checkpoint*: the checkpoint that carries its request is awaited.
- *epoch*: it changes how the next epoch begins (its base, the definition's version, or that there is one at all), and
  is answered once that epoch's entry is in the journal. A leader that dies before has changed nothing that lasts, and
  the next one takes the command again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cutline.common.causes import Cause
from cutline.common.commands.kinds import (
    NOTHING,
    CancelCommand,
    ChooseAboutLake,
    Delete,
    Refusal,
    RetryTable,
    Savepoint,
    Stop,
    Wish,
)
from cutline.common.mesh.machine import Effect, Event
from cutline.common.phases import QUARANTINED
from cutline.common.store.command_records import Command, Orders, Outcome, State
from cutline.services.enumerator.events import Settings
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.requests import CommandRequest, Request


class Step(StrEnum):
    """Where a command that was taken stands: see the head of this file."""

    ASKED = "asked"
    MACHINE = "machine"
    CHECKPOINT = "checkpoint"
    EPOCH = "epoch"
    ANSWERED = "answered"


AWAITS: Mapping[Step, str] = {
    Step.ASKED: "an answer of the store",
    Step.MACHINE: "a checkpoint that has it",
    Step.CHECKPOINT: "a checkpoint",
    Step.EPOCH: "the next epoch",
    Step.ANSWERED: "the store, to keep its outcome",
}


class Leader(Protocol):
    """The leader, as its agenda needs it: what each property means stands there."""

    tail: int
    base: int | None
    answered: Request | None
    ended: int | None
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

    def may_have(self, command: Command) -> bool:
        """Whether a checkpoint that the journal has, or may have since its entry was ordered, has this effect."""

    def request(self, request: Request) -> None:
        """Ask for a checkpoint."""

    def ends(self, run: object) -> None:
        """A `cutline run` ends with the savepoint that it asks for."""

    def withdraw(self, request: Request) -> None:
        """Ask no more for it."""

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

    def answer(
        self, state: State, cause: str | None = None, remedy: str | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        """Note what became of it."""
        self.step, self.state, self.cause, self.remedy, self.result = Step.ANSWERED, state, cause, remedy, result

    def outcome(self, *, at: float, orders: Orders, left_open: tuple[int, ...]) -> Outcome:
        """What became of it, with the standing orders after it."""
        return Outcome(
            n=self.command.n, state=self.state, cause=self.cause, remedy=self.remedy, result=self.result or {}, at=at,
            orders=orders, open=left_open,
        )  # fmt: skip


def is_sparks(wish: Wish | Refusal, leader: Leader) -> bool:
    """Whether only the Spark writer can carry it out: a choice about the lake, or another try of a table that it has
    quarantined, and not the enumerator."""
    if not isinstance(wish, RetryTable) or leader.enumerator is None:
        return isinstance(wish, ChooseAboutLake)
    table = leader.enumerator.tables.get(wish.table)
    return table is not None and table.phase != QUARANTINED


def named(command: Command) -> str:
    """A command in a sentence."""
    return f"command {command.n} ({command.kind})"


def afterwards(ends: Command) -> str:
    """What helps whoever asked for something before the pipeline was paused or deleted."""
    return NOTHING if isinstance(ends.wish, Delete) else "resume the pipeline and ask again"


def withdrawn(cancel: Command) -> tuple[str, str]:
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


def request_for(command: Command) -> CommandRequest:
    """The request of the checkpoint that a command awaits."""
    return CommandRequest(n=command.n)
