"""The sending end of a channel: an outbox, and a task that appends it to the stream within the credit."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.mesh.channels import PATIENCE_SECONDS, Body, Entry, Patience, add
from cutline.common.mesh.redis import Wire
from cutline.common.status.pipeline_status import ChannelStatus

_FLIGHT_ENTRIES = 256
_OUTBOX_BYTES = 4 << 20
_OUTBOX_ENTRIES = 1024
_CREDIT_POLL_SECONDS = (0.002, 0.05)
_IDLE = b'{"type":"idle"}'
LEAST_CREDIT_BYTES = 64 << 10
FRAGMENT_BYTES = 8 << 20
MAX_MESSAGE_BYTES = 256 << 20


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
        self._outbox: deque[Entry] = deque()
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
            self._outbox.append(Entry(self._number, header, body, None, counted))
        else:
            view = memoryview(body)
            cuts = [0, *range(max(0, most - len(header)), len(view), most), len(view)]
            parts = [view[start:end] for start, end in pairwise(cuts)]
            for i, part in enumerate(parts):
                self._number += 1
                fragment = b"%d/%d" % (i + 1, len(parts))
                self._outbox.append(Entry(self._number, b"" if i else header, part, fragment, counted))
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
                length = await add(self._wire, self.name, flight, patience_seconds=self._patience_seconds)
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

    async def _next_flight(self) -> tuple[list[Entry], int]:
        """Return the next entries to send, without removing them, once there is credit for the first."""
        pause, longest = _CREDIT_POLL_SECONDS
        while True:
            flight: list[Entry] = []
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
        patience = Patience(self._patience_seconds, f"waiting for credit on channel {self.name}")
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
