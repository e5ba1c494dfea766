"""The states of a leader, and which of its handlers takes each fact in each of them (pure); the leader is leader.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cutline.common.mesh.machine import Event, MessageReceived, PartStored, Ticked
from cutline.services.enumerator.events import (
    BaseFound,
    BoundFound,
    CommandAccepted,
    CommandAnswered,
    DefinitionPut,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    JournalRead,
    Observed,
    OutcomeRefused,
    OutcomeWritten,
    PlaceFound,
    RangeFound,
    SplittingFailed,
    SplittingOutdated,
    StopFound,
    TableDescribed,
    TableLockedOut,
    TablesFound,
)
from cutline.services.enumerator.machine import Enumerator


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOpened(Event):
    """The epoch's streams are made; `enumerator` is restored from its base, if it has one."""

    epoch: int
    enumerator: Enumerator | None


@dataclass(slots=True, kw_only=True)
class Moments:
    """When what a leader is in the middle of began, in seconds since 1970.

    `watched`: gathering, or the presence of newcomers. `unled`: no epoch has been open since then. `failing`: the first
    epoch ended of those that have failed in a row, maybe under another leader.
    """

    watched: float = 0.0
    unled: float | None = None
    failing: float | None = None


class LeaderState(StrEnum):
    """Where a leader stands: see the head of this file."""

    IDLE = "idle"  # the lease is not ours
    READING = "reading"  # the journal, to find its end and the newest checkpoint
    GATHERING = "gathering"  # the members of the next epoch
    PROPOSING = "proposing"  # the epoch's entry is being written
    OPENING = "opening"  # the epoch's streams are being made
    LEADING = "leading"
    RESTING = "resting"  # until the next try
    HALTED = "halted"  # until a person resumes the pipeline or starts the service again, or the lease is lost
    STOPPED = "stopped"  # by a person, until another command


IDLE, READING, GATHERING, PROPOSING, OPENING, LEADING, RESTING, HALTED, STOPPED = LeaderState

# Why an event is ignored in a state:
LATE = "_ignore_late"  # it answers a question, or belongs to an epoch, that ended before it arrived
NOT_DUE = "_ignore_not_due"  # the state awaits an answer or a person; neither time nor members matter

Row = Mapping[type[Event], str]
_TO_THE_ENUMERATOR: tuple[type[Event], ...] = (
    MessageReceived, PartStored, TablesFound, PlaceFound, StopFound, TableDescribed, RangeFound, BoundFound,
    SplittingFailed, SplittingOutdated, TableLockedOut,
)  # fmt: skip
_COMMANDS: Row = {
    CommandAccepted: "_command_accepted",
    CommandAnswered: "_command_answered",
    DefinitionPut: "_definition_put",
    BaseFound: "_base_found",
    OutcomeWritten: "_outcome_written",
    OutcomeRefused: "_outcome_refused",
}
_BETWEEN_EPOCHS: Row = {
    **_COMMANDS,
    **dict.fromkeys((JournalRead, EntryWritten, EntryRefused, EpochOpened, EpochFailed), LATE),
    **dict.fromkeys(_TO_THE_ENUMERATOR, LATE),
    **dict.fromkeys((Observed, Ticked), NOT_DUE),
}

TABLE: Mapping[LeaderState, Row] = {
    IDLE: {**_BETWEEN_EPOCHS, **dict.fromkeys(_COMMANDS, LATE), Observed: "_lease_taken"},
    READING: {**_BETWEEN_EPOCHS, JournalRead: "_journal_read"},
    GATHERING: {**_BETWEEN_EPOCHS, Observed: "_gather"},
    PROPOSING: {**_BETWEEN_EPOCHS, EntryWritten: "_entry_written", EntryRefused: "_entry_refused"},
    # No fact of an older epoch can arrive any more: those queued before our proposal came before its answer. A message
    # that arrived now would be of the new epoch and would be lost, so it is refused.
    OPENING: {
        **_COMMANDS,
        Observed: "_watch",
        Ticked: NOT_DUE,
        EpochOpened: "_epoch_opened",
        EpochFailed: "_epoch_failed",
        **dict.fromkeys((JournalRead, EntryWritten, EntryRefused), LATE),
    },
    LEADING: {
        **_COMMANDS,
        Observed: "_watch",
        Ticked: "_tick",
        EpochOpened: LATE,
        EpochFailed: "_epoch_failed",
        JournalRead: "_journal_looked_at",
        EntryWritten: "_entry_written",
        EntryRefused: "_entry_refused",
        **dict.fromkeys(_TO_THE_ENUMERATOR, "_to_the_enumerator"),
    },
    RESTING: {**_BETWEEN_EPOCHS, Observed: "_rest"},
    HALTED: _BETWEEN_EPOCHS,
    STOPPED: _BETWEEN_EPOCHS,
}
"""The handler of each event in each state. An event that a state lacks is refused: ProtocolError, and nothing changed.
From every state a lost lease leads to idle (`handle`)."""
