"""Channels of the mesh: one Redis stream for each directed pair, one sender, one receiver, first in first out.

What a channel promises, and how:

- **No message is lost unnoticed, none arrives twice.** A message's stream ID is its number in the channel (`{n}-0`,
  counting from 1 without gaps). The leader creates an epoch's streams with message 1; a sender never creates a stream
  (NOMKSTREAM), so a nil answer means that Redis lost the stream, or that the epoch is over. A receiver that sees a gap
  knows that Redis lost a message. Both are `ChannelLost`: restore. An idle sender sends an empty message each second
  (`Sender.idle`), so that the receiver notices a lost tail too.
- **A lost answer does no harm.** A sender repeats the XADD with the same ID; "equal or smaller" on its own retry means
  that the entry exists, which it verifies by reading it. On a first try it means a second sender: `ProtocolError`.
- **Redis stays small.** The receiver trims taken messages, and a sender holds *counted* messages (rows) back while
  those sent and not yet taken would exceed its credit. The sender needs no message from the receiver: numbers have no
  gaps, so the stream's length tells its first entry. Order holds: later messages, counted or not, wait behind.
- **No message is too large for Redis.** A body over 8 MiB travels as fragments, a counted body already above its
  channel's credit; each fragment has its own number and its own credit, so any message passes with any credit.

An entry of the stream has the fields `h` (header, JSON), `b` (body, raw bytes such as Arrow IPC), `c` (crc32 of h and
b, decimal) and, for a fragment, `f` ("i/n", from 1; only the first carries the header). The types `open` and `idle`
are the channel's own and are not handed out. Change sender.py and receiver.py together. This file has what both rest
on: an entry, how entries are added, and patience with Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.mesh.redis import Command, Wire

PATIENCE_SECONDS = 30.0

_BACKOFF_SECONDS = (0.05, 1.0)
_log = logging.getLogger("cutline.channels")

Body = bytes | memoryview


class ChannelLost(Unavailable):
    """Redis lost a message, or the whole stream, of `channel`; only a restore goes on from here."""

    def __init__(self, channel: str, evidence: str) -> None:
        """Take the stream's name and the evidence, one sentence."""
        super().__init__(f"channel {channel} is lost: {evidence}")
        self.channel = channel


class LeaderLost(Unavailable):
    """The leader of the epoch has been silent for too long: see silence.py."""


@dataclass(slots=True)
class Entry:
    """One stream entry: a message, or one fragment of it."""

    number: int
    header: bytes
    body: Body
    fragment: bytes | None
    counted: bool
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.header) + len(self.body)

    @property
    def crc(self) -> bytes:
        """The field `c`."""
        return b"%d" % crc32(self.body, crc32(self.header))

    def command(self, stream: bytes, make: bool) -> Command:
        """The XADD; `make`: it may create the stream."""
        head = (b"XADD", stream) if make else (b"XADD", stream, b"NOMKSTREAM")
        tail = () if self.fragment is None else (b"f", self.fragment)
        return (*head, b"%d-0" % self.number, b"h", self.header, b"b", self.body, b"c", self.crc, *tail)


class Patience:
    """Retries while Redis doesn't answer: growing pauses, then the last error is raised."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._since: float | None = None
        self._pause = _BACKOFF_SECONDS[0]

    async def failed(self, cause: Unavailable) -> None:
        """Redis didn't answer: return after a pause; Unavailable once patience is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("%s: %s; retrying for %.0f s", self._what, cause, self._seconds)
        if now - self._since + self._pause > self._seconds:
            raise Unavailable(f"{self._what}: {cause} (for {now - self._since:.0f} s)") from cause
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _BACKOFF_SECONDS[1])

    def answered(self) -> None:
        """Redis answered: the next failure begins patience again."""
        if self._since is not None:
            _log.warning("%s: Redis answers again after %.1f s", self._what, time.monotonic() - self._since)
            self._since = None
            self._pause = _BACKOFF_SECONDS[0]


async def add(wire: Wire, name: str, entries: Sequence[Entry], *, patience_seconds: float, make: bool = False) -> int:
    """Append the entries to the stream, in order, and return the stream's length after the last one.

    Repeats with the same IDs while Redis doesn't answer, for at most `patience_seconds`.
    """
    stream = name.encode()
    commands: list[Command] = [entry.command(stream, make) for entry in entries]
    commands.append((b"XLEN", stream))
    patience = Patience(patience_seconds, f"sending on channel {name}")
    repeated = make
    while True:
        try:
            answers = await wire.exchange(commands)
            existing = _interpret(name, entries, answers, repeated=repeated)
            if existing:
                await _verify(wire, name, existing)
        except ChannelLost:
            raise
        except Unavailable as error:
            repeated = True
            await patience.failed(error)
        else:
            patience.answered()
            return int(answers[-1])


def _interpret(name: str, entries: Sequence[Entry], answers: Sequence[Any], *, repeated: bool) -> list[Entry]:
    """Interpret Redis's answers to our XADDs; return the entries that an earlier try had already appended.

    nil: the stream is gone. "Equal or smaller": appended by an earlier try of ours, or, on a first try, by a second
    sender. Out of memory or not writable: retry, unless Redis took a later entry, which leaves a gap forever.
    """
    existing: list[Entry] = []
    refused: tuple[int, ResponseError] | None = None
    for entry, answer in zip(entries, answers, strict=False):
        if not isinstance(answer, ResponseError):
            if answer is None:
                evidence = f"the stream is gone at message {entry.number} (Redis was emptied, or the epoch is over)"
                raise ChannelLost(name, evidence)
            if refused is not None:
                raise ChannelLost(name, f"Redis refused message {refused[0]} ({refused[1]}) and took {entry.number}")
        elif "equal or smaller" in str(answer):
            if not repeated:
                raise ProtocolError(
                    f"channel {name} already has a message {entry.number} that is not ours", "stop the second sender"
                )
            existing.append(entry)
        elif isinstance(answer, (OutOfMemoryError, ReadOnlyError)) or str(answer).startswith("MISCONF"):
            refused = refused or (entry.number, answer)
        else:
            raise ProtocolError(f"channel {name} can't take message {entry.number}: Redis says {answer}") from answer
    if refused is not None:
        raise Unavailable(f"Redis refused message {refused[0]} ({refused[1]})", "give it memory or make it writable")
    if isinstance(answers[-1], ResponseError):
        raise ProtocolError(f"channel {name} is not a stream: Redis says {answers[-1]}") from answers[-1]
    return existing


async def _verify(wire: Wire, name: str, entries: Sequence[Entry]) -> None:
    """Verify that the entries in Redis with our numbers are ours; the receiver checked those that it trimmed."""
    stream = name.encode()
    ids = [b"%d-0" % entry.number for entry in entries]
    for entry, found in zip(entries, await wire.exchange([(b"XRANGE", stream, i, i) for i in ids]), strict=True):
        if isinstance(found, ResponseError):
            raise ProtocolError(f"channel {name} can't be read: Redis says {found}") from found
        if found:
            fields = found[0][1]
            if fields[::2][:3] != [b"h", b"b", b"c"] or fields[1] != entry.header or fields[5] != entry.crc:
                remedy = "stop the second sender"
                if entry.number == 1:
                    remedy = "give each store its own Redis, or remove the keys of an earlier store"
                raise ProtocolError(f"channel {name} has a message {entry.number} that is not ours", remedy)
