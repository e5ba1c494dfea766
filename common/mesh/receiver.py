"""The receiving end of all channels of a member: reads, checks, joins fragments, and trims what was taken."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from cutline.common.errors import ConfigError, ProtocolError, Unavailable
from cutline.common.mesh.channels import PATIENCE_SECONDS, ChannelLost, LeaderLost, Patience
from cutline.common.mesh.redis import Command, Wire
from cutline.common.mesh.silence import Silence

_PREFETCH_BYTES = 16 << 20
_PREFETCH_ENTRIES = 512
_EAGER_TRIM_BYTES = 1 << 20
_BLOCK_SECONDS = 1.0


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
        self._patience = Patience(patience_seconds, "receiving")
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
