"""Which channels a mesh has (pure): the members of an epoch by role and name, and each directed pair that has a stream.

    enumerator <-> reader 0..n     reader -> writer 0..m     writer <-> enumerator

`ROLES` is the one list of roles: the leader, the entry of an epoch, checkpoints and hosts go by it.

A marker runs along every channel except those between the enumerator and a role that is not `marked`. Writers send it
only `PartSaved`, which it takes outside the cut, and it sends writers only empty messages, by which they know that it
lives (silence.py): so these are no channels of a Chandy-Lamport process.

What must change together: the table of messages at the head of messages.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass

ENUMERATOR = "enumerator"
Channel = tuple[str, str]
"""Sender and receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of members. Each has a channel to the enumerator and one from it.

    `marked`: these two carry markers, so the enumerator records what is in flight to it. `feeds`: the roles whose every
    member gets rows, and markers, of each member of this role.
    """

    name: str
    marked: bool
    feeds: tuple[str, ...] = ()


READER = Role(name="reader", marked=True, feeds=("writer",))
WRITER = Role(name="writer", marked=False)
ROLES = (READER, WRITER)


def member_name(role: Role, index: int) -> str:
    """The name of the member at this place of the epoch entry's list of a role."""
    return f"{role.name}-{index}"


STREAM_READER = member_name(READER, 0)
"""The reader that holds the incremental split."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The members of one epoch: how many of each role."""

    counts: Mapping[str, int]
    roles: tuple[Role, ...] = ROLES

    @classmethod
    def joined_by(cls, by_role: Mapping[str, Sized], roles: tuple[Role, ...] = ROLES) -> Topology:
        """The topology of an epoch with these services."""
        return cls({role.name: len(by_role[role.name]) for role in roles}, roles)

    def named(self, role: Role) -> tuple[str, ...]:
        """The members of a role, in plan order."""
        return tuple(member_name(role, index) for index in range(self.counts[role.name]))

    @property
    def members(self) -> tuple[str, ...]:
        """All members but the enumerator, role by role."""
        return tuple(member for role in self.roles for member in self.named(role))

    @property
    def unmarked(self) -> tuple[str, ...]:
        """The members whose messages to the enumerator are no part of a cut."""
        return tuple(member for role in self.roles if not role.marked for member in self.named(role))

    def cut_channels(self) -> list[Channel]:
        """The channels that carry markers: a consistent cut has a state of each."""
        marked = [member for role in self.roles if role.marked for member in self.named(role)]
        return [
            *((ENUMERATOR, member) for member in marked),
            *((member, ENUMERATOR) for member in marked),
            *self._fed(),
        ]

    def channels(self) -> list[Channel]:
        """Every channel of the epoch."""
        return [
            *self.cut_channels(),
            *((member, ENUMERATOR) for member in self.unmarked),
            *((ENUMERATOR, member) for member in self.unmarked),
        ]

    def rows_channels(self) -> int:
        """How many channels carry rows."""
        return sum(1 for _ in self._fed())

    def _fed(self) -> Iterator[Channel]:
        named = {role.name: self.named(role) for role in self.roles}
        for role in self.roles:
            for fed in role.feeds:
                yield from ((member, receiver) for member in named[role.name] for receiver in named[fed])

    def inbound(self, member: str) -> tuple[str, ...]:
        """The senders of a member's inbound channels."""
        return _senders(self.channels(), member)

    def outbound(self, member: str) -> tuple[str, ...]:
        """The receivers of a member's outbound channels, the enumerator last."""
        return _receivers(self.channels(), member)

    def cut_inbound(self, member: str) -> tuple[str, ...]:
        """The senders from which a member's Chandy-Lamport process awaits a marker."""
        return _senders(self.cut_channels(), member)

    def cut_outbound(self, member: str) -> tuple[str, ...]:
        """The receivers to which a member's Chandy-Lamport process sends its marker, the enumerator last."""
        return _receivers(self.cut_channels(), member)


def _senders(channels: list[Channel], member: str) -> tuple[str, ...]:
    return tuple(sender for sender, receiver in channels if receiver == member)


def _receivers(channels: list[Channel], member: str) -> tuple[str, ...]:
    return tuple(sorted((receiver for sender, receiver in channels if sender == member), key=ENUMERATOR.__eq__))
