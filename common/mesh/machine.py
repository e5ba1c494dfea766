"""The interface of every machine of the mesh, and the facts and effects that all machines share (pure).

A machine is a plain object without I/O: `handle(event, now) -> list[Effect]`. Events are facts, named in the past
tense; effects are orders, named in the imperative. Slow work is an effect whose result comes back as a fact, so an open
question is part of the state. The driver carries effects out in the order of the list; a `Send` is on its channel
before the next effect begins. That order lets a marker separate "before" from "after".

A machine without a rule for an event raises `ProtocolError` and leaves its state unchanged.
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
    """A machine's state at a cut, as plain JSON data, which is never changed.

    `head` is small and saved whole. A part may hold only those `values`, in named sections, that changed since an
    earlier one: an unchanged value is the same object in the next State. Values of the section `tables` name schemas by
    their hash, under `schema` and `before`; `schemas` are those that may not be in the store yet.
    """

    head: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    schemas: tuple[TableSchema, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact: it has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An order to the driver."""


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
    """Put `message` on the channel to `receiver`. Messages to one receiver arrive in the order in which they are
    sent."""

    receiver: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePart(Effect):
    """Put `state` into the store. Answered by `PartStored`."""

    checkpoint: int
    state: State


class Machine(Protocol):
    """The interface that Chandy and Lamport's process needs of the machine that it wraps."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one fact; `now` is seconds on one clock that never goes back."""

    def snapshot(self) -> State:
        """The state, detached from the live machine: a machine restored from it equals this one. The cost is that of
        what changed since the last call."""

    def ready(self) -> bool:
        """Whether a marker may be taken now (not by a reader inside a transaction).

        Called when a marker comes and after each fact while it waits, so a machine can work towards a yes.
        """

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        """The local snapshot for `checkpoint` is complete: `state`, and what was in flight on each inbound channel."""

    def check(self) -> None:
        """Raise ProtocolError where an invariant of the state does not hold. For tests: it may cost O(tables)."""
