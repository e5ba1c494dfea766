"""Channels of the mesh: one Redis stream for each directed pair, one sender, one receiver, first in first out.

What a channel promises, and by what:

- **Nothing is lost unseen, nothing comes twice.** A message's stream ID is its number in its channel (`{n}-0`, from
  1, each one greater by one). The leader makes an epoch's streams with message 1; a sender never makes one
  (NOMKSTREAM), so a nil answer means that Redis lost the stream, or that the epoch is over. A receiver that misses a
  number knows that Redis lost a message. Both are `ChannelLost`: restore. A sender that is idle sends an empty
  message each second (`Sender.idle`), so that a lost tail shows too.
- **A lost answer does no harm.** We repeat an XADD with the same ID; "equal or smaller" on our own retry means that
  it is there already, which is verified by reading it. On a first try it means a second sender: `ProtocolError`.
- **Redis stays small.** The receiver trims what it has taken, and a sender holds counted messages back while those
  sent and not yet taken would pass its credit. It sees what was taken without a message from the receiver: numbers
  have no holes, so the stream's length says where its first entry stands. Nothing overtakes: later messages, counted
  or not, wait behind.
- **No message is too large for Redis.** A body over 8 MiB travels as fragments, and a counted one already over its
  channel's credit; a fragment is a number too, and has its own credit. So any message passes any credit.

On the wire an entry has the fields `h` (header, JSON), `b` (body, raw bytes such as Arrow IPC), `c` (crc32 of h and
b, decimal) and, for a fragment, `f` ("i/n", from 1; only the first carries the header). The types `open` and `idle`
belong to the channel itself and are not handed out. What is changed here must be changed in both classes.
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

    def __init__(self, channel: str, cause: str) -> None:
        """Take the stream's name and what was seen, one sentence."""
        super().__init__(f"channel {channel} is lost: {cause}")
        self.channel = channel
        self.cause = cause


def stream_name(pipeline: str, epoch: int, sender: str, receiver: str) -> str:
    """Name the stream from `sender` to `receiver` in one epoch of a pipeline."""
    return f"cutline:{pipeline}:{epoch}:{sender}>{receiver}"


async def create(
    redis: Redis, names: Iterable[str], first: Mapping[str, Any], *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Make an epoch's streams, each with message 1; only the leader that holds the epoch's journal entry calls this.

    `first` should carry epoch, nonce and cause, for whoever looks at the stream; its type is set to "open". Safe to
    repeat after a lost answer. Raises ProtocolError if a stream is there with another message 1, Unavailable if Redis
    stays silent.
    """
    header = json.dumps({**first, "type": "open"}, separators=(",", ":")).encode()
    wire = Wire(redis)
    try:
        for name in names:
            entry = _Entry(number=1, header=header, body=b"", fragment=None, counted=False)
            await _add(wire, name, [entry], patience_seconds=patience_seconds, make=True)
    finally:
        await wire.close()


async def drop(redis: Redis, pipeline: str, *, before: int) -> int:
    """Remove the streams of a pipeline's epochs below `before`, and return how many there were.

    Whoever still sends in such an epoch is mute from then on. Raises Unavailable.
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


async def free(redis: Redis, pipeline: str, lease: str) -> int:
    """Remove all streams of a pipeline that nobody leads: whoever leads it next makes an epoch of its own.

    For who can't take the key `lease` because Redis is full. Returns how many there were; none if somebody holds the
    lease. Needs no memory. Raises Unavailable.
    """
    freed = 0
    async with answered(f"remove the streams that nobody needs of pipeline {pipeline}"):
        async for name, _ in _streams(redis, pipeline):
            freed += int(await cast(Any, redis.eval(_FREE, 2, lease, name)))
    return freed


async def _streams(redis: Redis, pipeline: str) -> AsyncIterator[tuple[str, int]]:
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
    """How long to go on asking a Redis that doesn't answer: growing pauses, then the last cause is raised."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._since: float | None = None
        self._pause = _BACKOFF_SECONDS[0]

    async def failed(self, cause: Unavailable) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("%s: %s; trying again for %.0f s", self._what, cause, self._seconds)
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
    """Put the entries into the stream, in order, and return the stream's length after the last one.

    Repeats with the same IDs while Redis doesn't answer, up to the patience.
    """
    stream = name.encode()
    commands: list[Command] = [entry.command(stream, make) for entry in entries]
    commands.append((b"XLEN", stream))
    patience = _Patience(patience_seconds, f"sending on channel {name}")
    repeated = make
    while True:
        try:
            answers = await wire.exchange(commands)
            there = _judge(name, entries, answers, repeated=repeated)
            if there:
                await _verify(wire, name, there)
        except ChannelLost:
            raise
        except Unavailable as error:
            repeated = True
            await patience.failed(error)
        else:
            patience.answered()
            return int(answers[-1])


def _judge(name: str, entries: Sequence[_Entry], answers: Sequence[Any], *, repeated: bool) -> list[_Entry]:
    """Say what Redis's answers to our XADDs mean; return the entries of a repetition that were there already.

    The rules stand here only. nil: the stream is gone. "Equal or smaller": there already, if we repeat, else a second
    sender. No room or not writable: ask again, unless a later entry got in, which leaves a hole for ever.
    """
    there: list[_Entry] = []
    refused: tuple[int, ResponseError] | None = None
    for entry, answer in zip(entries, answers, strict=False):
        if not isinstance(answer, ResponseError):
            if answer is None:
                cause = f"the stream is gone at message {entry.number} (Redis was emptied, or the epoch is over)"
                raise ChannelLost(name, cause)
            if refused is not None:
                raise ChannelLost(name, f"Redis refused message {refused[0]} ({refused[1]}) and took {entry.number}")
        elif "equal or smaller" in str(answer):
            if not repeated:
                raise ProtocolError(
                    f"channel {name} already has a message {entry.number} that is not ours; stop the second sender"
                )
            there.append(entry)
        elif isinstance(answer, (OutOfMemoryError, ReadOnlyError)) or str(answer).startswith("MISCONF"):
            refused = refused or (entry.number, answer)
        else:
            raise ProtocolError(f"channel {name} can't take message {entry.number}: Redis says {answer}") from answer
    if refused is not None:
        raise Unavailable(f"Redis refused message {refused[0]} ({refused[1]}); give it room or make it writable")
    if isinstance(answers[-1], ResponseError):
        raise ProtocolError(f"channel {name} is no stream: Redis says {answers[-1]}") from answers[-1]
    return there


async def _verify(wire: Wire, name: str, entries: Sequence[_Entry]) -> None:
    """Make sure that what Redis has under our numbers is ours; what was trimmed was taken, so it was checked."""
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
                    remedy = "give each store its own Redis, or remove what an earlier one left there"
                raise ProtocolError(f"channel {name} has a message {entry.number} that is not ours; {remedy}")


class Sender:
    """The sending end of one channel of one epoch; message 1 was the leader's, so ours begin at 2.

    `post` takes a message at once and in order; a task of our own brings it to Redis, many to a round trip. `send` is
    `post`, then a wait until the outbox has room: whoever makes rows must use it, or memory grows. What the task met
    is raised by the next call of any method, so call `idle` each second. A body must not be changed after it was
    handed over.
    """

    def __init__(
        self, redis: Redis, name: str, *, credit_bytes: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Take a client of `wire.connect`; `credit_bytes` bounds the counted bytes that are sent and not taken, and may
        be set anew at any time. A single entry passes any credit: one of up to 64 KiB, or a message that was posted
        before the credit was lowered."""
        self.name = name
        self.credit_bytes = credit_bytes
        self._patience_seconds = patience_seconds
        self._wire = Wire(redis)
        self._number = 1
        self._added = 1
        self._taken = 1
        self._outbox: deque[_Entry] = deque()
        self._outbox_bytes = 0
        self._untaken: deque[tuple[int, int]] = deque()
        self._untaken_bytes = 0
        self._busy = False
        self._failure: Exception | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    def post(self, header: Mapping[str, Any], body: Body = b"", *, counted: bool) -> None:
        """Queue one message behind all earlier ones; several posts without an await between are one step.

        `header["type"]` names the message. `counted` bytes wait for credit. Raises what the channel has failed of
        (ChannelLost, Unavailable, ProtocolError), ProtocolError for a message over 256 MiB or with a header over 8
        MiB.
        """
        self._queue(json.dumps(header, separators=(",", ":")).encode(), body, counted=counted)

    async def send(self, header: Mapping[str, Any], body: Body = b"", *, counted: bool) -> None:
        """`post`, then `room`: waits while the receiver is behind by more than the credit, or Redis is away."""
        self.post(header, body, counted=counted)
        await self.room()

    async def room(self) -> None:
        """Wait until the outbox holds no more than 4 MiB (or the credit) and 1024 entries, and no fragment, which
        keeps all of its message's body alive.

        Raises what the channel has failed of.
        """
        limit = min(_OUTBOX_BYTES, self.credit_bytes)
        while self._outbox and (
            self._outbox_bytes > limit or len(self._outbox) > _OUTBOX_ENTRIES or self._outbox[-1].fragment is not None
        ):
            await self._step()
        self._check()

    async def idle(self) -> None:
        """Send an empty message if nothing has been posted since the last call; the driver calls this each second.

        Raises what the channel has failed of.
        """
        self._check()
        if not self._busy and not self._outbox:
            self._queue(_IDLE, b"", counted=False)
        self._busy = False

    async def flush(self) -> None:
        """Wait until all that was posted is in Redis, credit and all. Raises what the channel has failed of."""
        while self._outbox:
            await self._step()
        self._check()

    async def close(self) -> None:
        """Stop at once; what has not reached Redis stays unsent (call `flush` first if it matters)."""
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
                f"a message of {size} bytes (header {len(header)}) is too large for channel {self.name}; split it"
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
                self._note_taken(length)
                self._wake()
        except Exception as error:  # the next call of any method raises it
            self._failure = error
            self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _next_flight(self) -> tuple[list[_Entry], int]:
        """Take the entries that go out next, without removing them, after waiting for the first one's credit."""
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
        """Numbers have no holes, so all below the last `length` ones have been trimmed, which is to say taken."""
        self._taken = max(self._taken, self._added - length)
        while self._untaken and self._untaken[0][0] <= self._taken:
            self._untaken_bytes -= self._untaken.popleft()[1]


@dataclass(slots=True)
class _Inlet:
    """What the receiver knows of one channel; numbers are entries, fragments included."""

    name: str
    heard: float
    last: int = 0
    handed: deque[tuple[int, int]] = field(default_factory=deque)
    taken: int = 0
    trimmed: int = 0
    untrimmed_bytes: int = 0
    header: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    parts_expected: int = 0

    @property
    def settled(self) -> int:
        """Up to here Redis needs to keep nothing; idle messages and fragments in hand go with what was taken before."""
        return self.taken if self.handed else self.last


class Receiver:
    """The receiving end of all channels that lead to one service in one epoch.

    One task calls `receive`; `taken` may be called by others. Memory: about 16 MiB is asked for at a time, never more
    than the credits of all senders together, and a fragmented message on top while it is put together.
    """

    def __init__(
        self,
        redis: Redis,
        names: Iterable[str],
        *,
        silence_seconds: float = 10.0,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Take a client made by `wire.connect` and the streams' names, each read from its message 1."""
        now = time.monotonic()
        self._inlets = {name.encode(): _Inlet(name=name, heard=now) for name in names}
        self._silence_seconds = silence_seconds
        self._patience = _Patience(patience_seconds, "receiving")
        self._wire = Wire(redis)
        self._trim_wire = Wire(redis)
        self._trim_task: asyncio.Task[None] | None = None
        self._receiving = False
        self._largest = 4096

    async def receive(self, *, wait_seconds: float = 1.0) -> list[tuple[str, dict[str, Any], bytes]]:
        """Return the next messages as (channel, header, body): in order within a channel, each once, none left out.

        Waits at most about `wait_seconds` for the first one and may return nothing. Nothing is lost when it is
        cancelled. Raises ChannelLost at a gap or a missing stream, ProtocolError at a corrupt or foreign entry,
        Unavailable when Redis has been silent for longer than the patience. The typical mistake: not to call `taken`,
        which stops the senders for want of credit.
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
        """Note that the oldest `count` messages handed out of channel `name` are done with (None: all).

        That gives their credit back: the trim travels with the next `receive`, or by itself if one is waiting or much
        was taken. Never waits for Redis, and raises nothing if it is away: the next `receive` will.
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
        await self._check_silence(now)
        return messages

    async def _check_silence(self, now: float) -> None:
        silent = [(s, i) for s, i in self._inlets.items() if now - i.heard > self._silence_seconds]
        if silent:
            try:
                answers = await self._wire.exchange([(b"EXISTS", stream) for stream, _ in silent])
            except Unavailable as error:
                await self._patience.failed(error)
                return
            for (_, inlet), there in zip(silent, answers, strict=True):
                if there != 1:
                    raise ChannelLost(
                        inlet.name,
                        f"the stream is gone after message {inlet.last} (Redis emptied, or the epoch is over)",
                    )
                inlet.heard = now


def _take_entry(
    inlet: _Inlet, entry_id: bytes, fields: list[bytes]
) -> tuple[tuple[str, dict[str, Any], bytes] | None, int]:
    """Check one entry and fold it into its channel; return the message that it completes and its size in bytes."""
    if fields[::2] not in ([b"h", b"b", b"c"], [b"h", b"b", b"c", b"f"]):
        names = ", ".join(repr(f.decode(errors="replace")) for f in fields[::2])
        raise ProtocolError(
            f"channel {inlet.name} has a foreign entry {entry_id.decode()} with fields {names}; stop who writes there"
        )
    header, body, crc = fields[1], fields[3], fields[5]
    number = inlet.last + 1
    if entry_id != b"%d-0" % number:
        raise ChannelLost(
            inlet.name, f"after message {inlet.last} came {entry_id.decode()} (Redis lost what was between)"
        )
    if crc != b"%d" % crc32(body, crc32(header)):
        raise ProtocolError(
            f"message {number} of channel {inlet.name} is corrupt (its crc32 is wrong); check Redis and its machine"
        )
    inlet.last = number
    size = len(header) + len(body)
    if len(fields) == 6:
        if inlet.parts_expected:
            raise ProtocolError(
                f"message {number} of channel {inlet.name} came inside a fragmented one; stop the second sender"
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
            f"message {number} of channel {inlet.name} has no readable header; stop who writes there"
        ) from error
    if kind in ("open", "idle"):
        return None, size
    inlet.handed.append((number, len(header) + len(body)))
    return (inlet.name, known, body), size
