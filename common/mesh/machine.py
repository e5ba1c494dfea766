"""What every machine of the mesh shares: its one door, and the facts and effects that all of them know.

A machine is a plain object that owns no I/O: `handle(event, now) -> list[Effect]`. Events are facts, named in the past
tense; effects are orders, named in the imperative. Slow work is an effect whose result comes back as a fact, so that an
unanswered ask is part of the state. The driver carries effects out in the order of the list; a `Send` is on its channel
before the next effect begins, which is what lets a marker separate "before" from "after".

A machine that gets an event it has no rule for raises `ProtocolError` and leaves its state as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cutline.common.mesh.messages import Message
from cutline.common.schema import TableSchema
from cutline.common.store.records import PartRef


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a machine knows at a cut, as plain JSON data that neither the machine nor anybody else changes any more.

    `head` is small and saved whole. Of `values`, in named sections, a part may hold only those that changed since an
    earlier one: a value that did not change is the same object in the next State. Values of the section `tables` name
    schemas by their hash, under `schema` and `before`; `schemas` are those that no State of this epoch named before.
    """

    head: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schemas: tuple[TableSchema, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact: something that has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An order: something the driver shall do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(Event):
    """The epoch has begun; comes once, first, to the enumerator and to each reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived(Event):
    """One message, in its channel's order. `after` is the number of the last marker seen on that channel: the message
    belongs to the first checkpoint whose number is greater."""

    channel: str
    message: Message
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time has passed; comes a few times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStored(Event):
    """The part ordered by `SavePart` is in the store."""

    checkpoint: int
    ref: PartRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Effect):
    """Put `message` on the channel to `receiver`. What is sent to one receiver arrives in this order."""

    receiver: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePart(Effect):
    """Put `state` into the store; answered by `PartStored`."""

    checkpoint: int
    state: State


class Machine(Protocol):
    """What Chandy and Lamport's process asks of the machine that it wraps."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact; `now` is seconds on one clock that never goes back."""

    def snapshot(self) -> State:
        """The state, detached from the live machine: restored from it, another machine equals this one. It costs what
        changed since the last."""

    def ready(self) -> bool:
        """Whether a marker may be taken now (a reader inside a transaction says no). Asked while one waits: when it
        comes, and after each fact until the answer is yes, so a machine may see to it that it soon is."""

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        """The local snapshot for `checkpoint` is complete: `state`, and what was in flight on each inbound channel."""

    def check(self) -> None:
        """Raise ProtocolError where an invariant of the state does not hold. For tests: it may cost O(tables)."""
