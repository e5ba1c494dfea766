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
are the channel's own and are not handed out. Change `Sender` and `Receiver` together.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast
from zlib import crc32

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.mesh.redis import Command, Wire, answered
from cutline.common.mesh.silence import Silence
from cutline.common.status.parts import ChannelStatus
from cutline.common.store.lives import Key

FRAGMENT_BYTES = 8 << 20
LEAST_CREDIT_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 256 << 20
PATIENCE_SECONDS = 30.0

_FLIGHT_ENTRIES = 256
_OUTBOX_BYTES = 4 << 20
_OUTBOX_ENTRIES = 1024
_PREFETCH_BYTES = 16 << 20
_PREFETCH_ENTRIES = 512
_EAGER_TRIM_BYTES = 1 << 20
_BLOCK_SECONDS = 1.0
_CREDIT_POLL_SECONDS = (0.002, 0.05)
_BACKOFF_SECONDS = (0.05, 1.0)
_IDLE = b'{"type":"idle"}'
_log = logging.getLogger("cutline.channels")

Body = bytes | memoryview


class ChannelLost(Unavailable):
    """Redis lost a message, or the whole stream, of `channel`; only a restore goes on from here."""

    def __init__(self, channel: str, evidence: str) -> None:
        """Take the stream's name and the evidence, one sentence."""
        super().__init__(f"channel {channel} is lost: {evidence}")


def stream_name(pipeline: Key, epoch: int, sender: str, receiver: str) -> str:
    """Name the stream from `sender` to `receiver` in one epoch of a pipeline."""
    return f"cutline:{pipeline}:{epoch}:{sender}>{receiver}"


async def create(
    redis: Redis, names: Iterable[str], first: Mapping[str, Any], *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Create an epoch's streams, each with message 1; only the leader that wrote the epoch's journal entry calls this.

    `first` names the epoch and its leader; its type is set to "open". Safe to repeat after a lost answer. Raises
    ProtocolError if a stream exists with another message 1, Unavailable if Redis doesn't answer.
    """
    header = json.dumps({**first, "type": "open"}, separators=(",", ":")).encode()
    wire = Wire(redis)
    try:
        for name in names:
            entry = _Entry(number=1, header=header, body=b"", fragment=None, counted=False)
            await _add(wire, name, [entry], patience_seconds=patience_seconds, make=True)
    finally:
        await wire.close()


async def drop(redis: Redis, pipeline: Key, *, before: int) -> int:
    """Remove the streams of a pipeline's epochs below `before`; return their number.

    Members of such an epoch can no longer send. Raises Unavailable.
    """
    dropped = 0
    async with answered(f"remove old streams of pipeline {pipeline}"):
        async for name, epoch in _streams(redis, pipeline):
            if epoch < before:
                dropped += await redis.unlink(name)
    return dropped


_FREE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
return redis.call('UNLINK', KEYS[2])
"""


async def free(redis: Redis, pipeline: Key, lease: str) -> int:
    """Remove all streams of a pipeline without a leader; its next leader starts a new epoch anyway.

    For a candidate that can't take the key `lease` because Redis is full. Returns the number of streams removed: 0 if
    the lease has an owner. Needs no memory. Raises Unavailable.
    """
    freed = 0
    async with answered(f"remove unused streams of pipeline {pipeline}"):
        async for name, _ in _streams(redis, pipeline):
            freed += int(await cast(Any, redis.eval(_FREE, 2, lease, name)))
    return freed


async def _streams(redis: Redis, pipeline: Key) -> AsyncIterator[tuple[str, int]]:
    """The streams of a pipeline's epochs, each with its epoch."""
    prefix = f"cutline:{pipeline}:"
    pattern = "".join(f"[{c}]" if c in "*?[]\\" else c for c in prefix) + "*"
    async for key in redis.scan_iter(match=pattern, count=1000, _type="STREAM"):
        name = key.decode() if isinstance(key, bytes) else key
        epoch = name[len(prefix) :].split(":", 1)[0]
        if epoch.isdigit():
            yield name, int(epoch)


@dataclass(slots=True)
class _Entry:
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
        return b"%d" % crc32(self.body, crc32(self.header))

    def command(self, stream: bytes, make: bool) -> Command:
        head = (b"XADD", stream) if make else (b"XADD", stream, b"NOMKSTREAM")
        tail = () if self.fragment is None else (b"f", self.fragment)
        return (*head, b"%d-0" % self.number, b"h", self.header, b"b", self.body, b"c", self.crc, *tail)


class _Patience:
    """Retries while Redis doesn't answer: growing pauses, then the last error is raised."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._since: float | None = None
        self._pause = _BACKOFF_SECONDS[0]

    async def failed(self, cause: Unavailable) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("%s: %s; retrying for %.0f s", self._what, cause, self._seconds)
        if now - self._since + self._pause > self._seconds:
            raise Unavailable(f"{self._what}: {cause} (for {now - self._since:.0f} s)") from cause
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _BACKOFF_SECONDS[1])

    def answered(self) -> None:
        if self._since is not None:
            _log.warning("%s: Redis answers again after %.1f s", self._what, time.monotonic() - self._since)
            self._since = None
            self._pause = _BACKOFF_SECONDS[0]


async def _add(wire: Wire, name: str, entries: Sequence[_Entry], *, patience_seconds: float, make: bool = False) -> int:
    """Append the entries to the stream, in order, and return the stream's length after the last one.

    Repeats with the same IDs while Redis doesn't answer, for at most `patience_seconds`.
    """
    stream = name.encode()
    commands: list[Command] = [entry.command(stream, make) for entry in entries]
    commands.append((b"XLEN", stream))
    patience = _Patience(patience_seconds, f"sending on channel {name}")
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


def _interpret(name: str, entries: Sequence[_Entry], answers: Sequence[Any], *, repeated: bool) -> list[_Entry]:
    """Interpret Redis's answers to our XADDs; return the entries that an earlier try had already appended.

    nil: the stream is gone. "Equal or smaller": appended by an earlier try of ours, or, on a first try, by a second
    sender. Out of memory or not writable: retry, unless Redis took a later entry, which leaves a gap forever.
    """
    existing: list[_Entry] = []
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


async def _verify(wire: Wire, name: str, entries: Sequence[_Entry]) -> None:
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


class LeaderLost(Unavailable):
    """The leader of the epoch has been silent for too long: see silence.py."""


class Sender:
    """The sending end of one channel of one epoch; message 1 was the leader's, so ours begin at 2.

    `post` queues a message at once and in order; a task of the sender's own appends many per round trip. `send` is
    `post`, then a wait until the outbox has room: callers that produce rows must use it, or memory grows. The next
    call of any method raises the task's error, so call `idle` each second. Don't change a body after handing it over.
    """

    def __init__(
        self, redis: Redis, name: str, *, credit_bytes: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Take a client of `mesh.redis.connect`; `credit_bytes` limits the counted bytes that are sent and not taken,
        and may be changed at any time. A single entry passes any credit: one of up to 64 KiB, or a message that was
        posted before the credit was lowered."""
        self.name = name
        self.credit_bytes = credit_bytes
        self._patience_seconds = patience_seconds
        self._wire = Wire(redis)
        self._number = 1  # of the last entry queued
        self._added = 1  # the last entry in Redis
        self._taken = 1  # the last entry trimmed by the receiver
        self._outbox: deque[_Entry] = deque()
        self._outbox_bytes = 0
        self._untaken: deque[tuple[int, int]] = deque()  # number and size of counted entries in Redis
        self._untaken_bytes = 0
        self._sent_bytes = 0
        self._busy = False  # since the last `idle`
        self._failure: Exception | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()  # set, and replaced, when the outbox shrinks or the channel fails

    @property
    def state(self) -> ChannelStatus:
        """What the channel holds, for the status."""
        return ChannelStatus(
            outstanding_bytes=self._untaken_bytes,
            credit_bytes=self.credit_bytes,
            sent_bytes=self._sent_bytes,
            sent=self._added - 1,
            taken=self._taken - 1,
        )

    def post(self, header: Mapping[str, Any], body: Body = b"", *, counted: bool) -> None:
        """Queue one message behind all earlier ones; several posts without an await between them are one step.

        `header["type"]` names the message. `counted` bytes wait for credit. Raises the error that ended the channel
        (ChannelLost, Unavailable, ProtocolError), ProtocolError for a message over 256 MiB or with a header over 8
        MiB.
        """
        self._queue(json.dumps(header, separators=(",", ":")).encode(), body, counted=counted)

    async def send(self, header: Mapping[str, Any], body: Body = b"", *, counted: bool) -> None:
        """`post`, then `room`: waits while the receiver is behind by more than the credit, or Redis is unreachable."""
        self.post(header, body, counted=counted)
        await self.room()

    async def room(self) -> None:
        """Wait until the outbox holds no more than 4 MiB (or the credit) and 1024 entries, and no fragment, which
        keeps its message's whole body in memory.

        Raises the error that ended the channel.
        """
        limit = min(_OUTBOX_BYTES, self.credit_bytes)
        while self._outbox and (
            self._outbox_bytes > limit or len(self._outbox) > _OUTBOX_ENTRIES or self._outbox[-1].fragment is not None
        ):
            await self._step()
        self._check()

    async def idle(self) -> None:
        """Send an empty message if none was posted since the last call; `Links` calls this each second.

        Raises the error that ended the channel.
        """
        self._check()
        if not self._busy and not self._outbox:
            self._queue(_IDLE, b"", counted=False)
        self._busy = False

    async def flush(self) -> None:
        """Wait until all posted messages are in Redis. Raises the error that ended the channel."""
        while self._outbox:
            await self._step()
        self._check()

    async def close(self) -> None:
        """Stop at once; queued messages stay unsent (call `flush` first if they matter)."""
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
        self._failure = self._failure or Unavailable(f"channel {self.name} is closed")
        self._wake()
        await self._wire.close()

    def _queue(self, header: bytes, body: Body, *, counted: bool) -> None:
        self._check()
        if not isinstance(body, bytes):
            body = memoryview(body).cast("B")
        size = len(header) + len(body)
        if size > MAX_MESSAGE_BYTES or len(header) > FRAGMENT_BYTES:
            raise ProtocolError(
                f"a message of {size} bytes (header {len(header)}) is too large for channel {self.name}", "split it"
            )
        self._busy = True
        most = min(FRAGMENT_BYTES, max(self.credit_bytes, LEAST_CREDIT_BYTES)) if counted else FRAGMENT_BYTES
        if size <= most:
            self._number += 1
            self._outbox.append(_Entry(self._number, header, body, None, counted))
        else:
            view = memoryview(body)
            cuts = [0, *range(max(0, most - len(header)), len(view), most), len(view)]
            parts = [view[start:end] for start, end in pairwise(cuts)]
            for i, part in enumerate(parts):
                self._number += 1
                fragment = b"%d/%d" % (i + 1, len(parts))
                self._outbox.append(_Entry(self._number, b"" if i else header, part, fragment, counted))
        self._outbox_bytes += size
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = asyncio.get_running_loop().create_task(self._pump(), name=f"pump {self.name}")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _step(self) -> None:
        self._check()
        await self._moved.wait()

    async def _pump(self) -> None:
        try:
            while self._outbox:
                flight, size = await self._next_flight()
                length = await _add(self._wire, self.name, flight, patience_seconds=self._patience_seconds)
                self._added = flight[-1].number
                for entry in flight:
                    self._outbox.popleft()
                    if entry.counted:
                        self._untaken.append((entry.number, entry.size))
                        self._untaken_bytes += entry.size
                self._outbox_bytes -= size
                self._sent_bytes += size
                self._note_taken(length)
                self._wake()
        except Exception as error:  # the next call of any method raises it
            self._failure = error
            self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _next_flight(self) -> tuple[list[_Entry], int]:
        """Return the next entries to send, without removing them, once there is credit for the first."""
        pause, longest = _CREDIT_POLL_SECONDS
        while True:
            flight: list[_Entry] = []
            size = untaken = 0
            for entry in self._outbox:
                if flight and (size + entry.size > FRAGMENT_BYTES or len(flight) == _FLIGHT_ENTRIES):
                    break
                if entry.counted:
                    behind = self._untaken_bytes + untaken
                    if behind and behind + entry.size > self.credit_bytes:
                        break
                    untaken += entry.size
                flight.append(entry)
                size += entry.size
            if flight:
                return flight, size
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
            self._note_taken(await self._length())

    async def _length(self) -> int:
        patience = _Patience(self._patience_seconds, f"waiting for credit on channel {self.name}")
        while True:
            try:
                length = (await self._wire.exchange([(b"XLEN", self.name.encode())]))[0]
            except Unavailable as error:
                await patience.failed(error)
                continue
            if isinstance(length, ResponseError):
                raise ProtocolError(f"channel {self.name} is not a stream: Redis says {length}") from length
            return int(length)

    def _note_taken(self, length: int) -> None:
        """Numbers have no gaps, so all entries before the last `length` ones were taken and trimmed."""
        self._taken = max(self._taken, self._added - length)
        while self._untaken and self._untaken[0][0] <= self._taken:
            self._untaken_bytes -= self._untaken.popleft()[1]


@dataclass(slots=True)
class _Inlet:
    """The receiver's state of one channel; numbers count entries, fragments included."""

    name: str
    heard: float  # when it last had an entry, or was seen to exist
    last: int = 0  # entry read
    handed: deque[tuple[int, int]] = field(default_factory=deque)  # messages not taken yet: last entry, size
    taken: int = 0
    trimmed: int = 0
    untrimmed_bytes: int = 0
    header: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    parts_expected: int = 0

    @property
    def settled(self) -> int:
        """The last entry that Redis may forget: the last taken, or the last read if no message waits to be taken."""
        return self.taken if self.handed else self.last


class Receiver:
    """The receiving end of all channels that lead to one service in one epoch.

    One task calls `receive`; any task may call `taken`. Memory: it reads about 16 MiB at a time, never more than the
    credits of all senders together, and holds a fragmented message on top while it joins the fragments.
    """

    def __init__(
        self,
        redis: Redis,
        names: Iterable[str],
        *,
        leader: str | None = None,
        silence_seconds: float = 10.0,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Take a client of `mesh.redis.connect` and the streams' names; reads each from its message 1.

        `leader`: the name of the stream that comes from the epoch's leader; None for the leader itself.
        """
        now = time.monotonic()
        self._leader = None if leader is None else leader.encode()
        self._silence = Silence(now)
        self._inlets = {name.encode(): _Inlet(name=name, heard=now) for name in names}
        self._silence_seconds = silence_seconds
        self._patience = _Patience(patience_seconds, "receiving")
        self._wire = Wire(redis)
        self._trim_wire = Wire(redis)
        self._trim_task: asyncio.Task[None] | None = None
        self._receiving = False
        self._largest = 4096

    async def receive(self, *, wait_seconds: float = 1.0) -> list[tuple[str, dict[str, Any], bytes]]:
        """Return the next messages as (channel, header, body): in order within a channel, each once, none skipped.

        Waits about `wait_seconds` for the first one and may return an empty list. A cancellation loses no message.
        Raises ChannelLost at a gap or a missing stream, LeaderLost if the leader is silent, ProtocolError at a corrupt
        or foreign entry, Unavailable if Redis does not answer for `patience_seconds`. The typical mistake: not to call
        `taken`, so that senders stop without credit.
        """
        if not self._inlets:
            await asyncio.sleep(wait_seconds)
            return []
        deadline = time.monotonic() + wait_seconds
        while True:
            messages = await self._read(max(0.001, min(_BLOCK_SECONDS, deadline - time.monotonic())))
            if messages or time.monotonic() >= deadline:
                return messages

    async def taken(self, name: str, count: int | None = None) -> None:
        """Note that the oldest `count` messages handed out of channel `name` are processed (None: all).

        That returns their credit: the trim travels with the next `receive`, or by itself if a `receive` is waiting or
        much was taken. Never waits for Redis and never raises: the next `receive` reports an unreachable Redis.
        """
        inlet = self._inlets[name.encode()]
        for _ in range(len(inlet.handed) if count is None else count):
            inlet.taken, size = inlet.handed.popleft()
            inlet.untrimmed_bytes += size
        due = self._receiving or inlet.untrimmed_bytes >= _EAGER_TRIM_BYTES
        if due and (self._trim_task is None or self._trim_task.done()):
            self._trim_task = asyncio.get_running_loop().create_task(self._trim(), name="trim")

    async def close(self) -> None:
        """Close the connections; the streams stay."""
        if self._trim_task is not None:
            self._trim_task.cancel()
            await asyncio.gather(self._trim_task, return_exceptions=True)
        await self._wire.close()
        await self._trim_wire.close()

    async def _trim(self) -> None:
        while commands := self._trims():
            try:
                await self._trim_wire.exchange(commands)
            except (Unavailable, ConfigError):
                return
            self._trimmed(commands)

    def _trims(self) -> list[Command]:
        return [
            (b"XTRIM", stream, b"MINID", b"=", inlet.settled + 1)
            for stream, inlet in self._inlets.items()
            if inlet.settled > inlet.trimmed
        ]

    def _trimmed(self, trims: Iterable[Command]) -> None:
        for command in trims:
            _, stream, _, _, first = command
            assert isinstance(stream, bytes)
            assert isinstance(first, int)
            inlet = self._inlets[stream]
            inlet.trimmed = max(inlet.trimmed, first - 1)
            inlet.untrimmed_bytes = 0

    async def _read(self, block_seconds: float) -> list[tuple[str, dict[str, Any], bytes]]:
        entries = max(1, min(_PREFETCH_ENTRIES, _PREFETCH_BYTES // len(self._inlets) // self._largest))
        trims = self._trims()
        read: Command = (
            b"XREAD", b"COUNT", entries, b"BLOCK", int(block_seconds * 1000) or 1, b"STREAMS",
            *self._inlets, *(b"%d-0" % inlet.last for inlet in self._inlets.values()),
        )  # fmt: skip
        self._receiving = True
        try:
            answers = await self._wire.exchange([*trims, read], wait_seconds=block_seconds)
        except Unavailable as error:
            await self._patience.failed(error)
            return []
        finally:
            self._receiving = False
        self._patience.answered()
        self._trimmed(trims)
        answer = answers[-1]
        if isinstance(answer, ResponseError):
            raise ProtocolError(f"the channels can't be read: Redis says {answer}") from answer
        now = time.monotonic()
        messages: list[tuple[str, dict[str, Any], bytes]] = []
        largest = 0
        for stream, found in answer.items() if isinstance(answer, dict) else answer or ():
            inlet = self._inlets[stream]
            inlet.heard = now
            for entry_id, fields in found:
                message, size = _take_entry(inlet, entry_id, fields)
                largest = max(largest, size)
                if message is not None:
                    messages.append(message)
        if largest:
            self._largest = max(largest, self._largest // 2, 256)
        self._listen(now)
        await self._check_silence(now)
        return messages

    def _listen(self, now: float) -> None:
        if self._leader is not None and self._silence.read(now, heard=self._inlets[self._leader].heard == now):
            raise LeaderLost(
                f"the enumerator that leads this epoch has sent nothing for {self._silence.seconds:.0f} s",
                "start an enumerator if none runs",
            )

    async def _check_silence(self, now: float) -> None:
        silent = [(s, i) for s, i in self._inlets.items() if now - i.heard > self._silence_seconds]
        if silent:
            try:
                answers = await self._wire.exchange([(b"EXISTS", stream) for stream, _ in silent])
            except Unavailable as error:
                await self._patience.failed(error)
                return
            for (_, inlet), exists in zip(silent, answers, strict=True):
                if exists != 1:
                    raise ChannelLost(
                        inlet.name,
                        f"the stream is gone after message {inlet.last} (Redis emptied, or the epoch is over)",
                    )
                inlet.heard = now


def _take_entry(
    inlet: _Inlet, entry_id: bytes, fields: list[bytes]
) -> tuple[tuple[str, dict[str, Any], bytes] | None, int]:
    """Check one entry and add it to its channel; return the message that it completes, and its size in bytes."""
    if fields[::2] not in ([b"h", b"b", b"c"], [b"h", b"b", b"c", b"f"]):
        names = ", ".join(repr(f.decode(errors="replace")) for f in fields[::2])
        raise ProtocolError(
            f"channel {inlet.name} has a foreign entry {entry_id.decode()} with fields {names}", "stop its writer"
        )
    header, body, crc = fields[1], fields[3], fields[5]
    number = inlet.last + 1
    if entry_id != b"%d-0" % number:
        raise ChannelLost(
            inlet.name, f"after message {inlet.last} came {entry_id.decode()} (Redis lost the entries between)"
        )
    if crc != b"%d" % crc32(body, crc32(header)):
        raise ProtocolError(
            f"message {number} of channel {inlet.name} is corrupt (its crc32 is wrong)", "check Redis and its machine"
        )
    inlet.last = number
    size = len(header) + len(body)
    if len(fields) == 6:
        if inlet.parts_expected:
            raise ProtocolError(
                f"message {number} of channel {inlet.name} came inside a fragmented one", "stop the second sender"
            )
    else:
        i, _, n = fields[7].partition(b"/")
        at = len(inlet.parts) + 1
        if i != b"%d" % at or not n.isdigit() or (at > 1 and int(n) != inlet.parts_expected):
            raise ProtocolError(
                f"message {number} of channel {inlet.name} is fragment {fields[7]!r} where {at} was due"
            )
        if at == 1:
            inlet.header, inlet.parts_expected = header, int(n)
        inlet.parts.append(body)
        if at < inlet.parts_expected:
            return None, size
        header, body = inlet.header, b"".join(inlet.parts)
        inlet.header, inlet.parts_expected = b"", 0
        inlet.parts.clear()
    try:
        known = json.loads(header)
        kind = known["type"]
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(
            f"message {number} of channel {inlet.name} has no readable header", "stop its writer"
        ) from error
    if kind in ("open", "idle"):
        return None, size
    inlet.handed.append((number, len(header) + len(body)))
    return (inlet.name, known, body), size
