"""Which channels a mesh has (pure): the members of an epoch by name, and each directed pair that has a stream.

    enumerator <-> reader 0..n     reader -> writer 0..m     writer <-> enumerator

A marker runs along every channel except those between writers and the enumerator. Writers send it only `PartSaved`,
which it takes outside the cut, and it sends writers only empty messages, by which they know that it lives (silence.py):
so these are no channels of a Chandy-Lamport process.

What must change together: the table of messages at the head of messages.py.
"""

from __future__ import annotations

from dataclasses import dataclass

ENUMERATOR = "enumerator"
Channel = tuple[str, str]
"""Sender and receiver."""


def reader_name(index: int) -> str:
    """The name of the reader at this place of the epoch entry's list of readers."""
    return f"reader-{index}"


def writer_name(index: int) -> str:
    """The name of the writer at this place of the epoch entry's list of writers."""
    return f"writer-{index}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The members of one epoch, in plan order."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]

    @classmethod
    def of(cls, readers: int, writers: int) -> Topology:
        """The topology of this many readers and writers."""
        return cls(tuple(map(reader_name, range(readers))), tuple(map(writer_name, range(writers))))

    def cut_channels(self) -> list[Channel]:
        """The channels that carry markers: a consistent cut has a state of each."""
        return [
            *((ENUMERATOR, reader) for reader in self.readers),
            *((reader, ENUMERATOR) for reader in self.readers),
            *((reader, writer) for reader in self.readers for writer in self.writers),
        ]

    def channels(self) -> list[Channel]:
        """Every channel of the epoch."""
        return [
            *self.cut_channels(),
            *((writer, ENUMERATOR) for writer in self.writers),
            *((ENUMERATOR, writer) for writer in self.writers),
        ]

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
