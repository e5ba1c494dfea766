"""All channels of one member in one epoch, and the share of Redis's memory for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from redis.asyncio import Redis

from cutline.common.clock import Clock
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.awaited import Awaited
from cutline.common.mesh.machine import MessageReceived, Send
from cutline.common.mesh.messages import Records, decode, encode
from cutline.common.mesh.ports import Inbox
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.receiver import Receiver
from cutline.common.mesh.redis import memory
from cutline.common.mesh.sender import LEAST_CREDIT_BYTES, Sender
from cutline.common.mesh.streams import stream_name
from cutline.common.mesh.topology import ENUMERATOR
from cutline.common.status.pipeline_status import ChannelStatus
from cutline.common.store.lives import Key
from cutline.common.waits import Party, Wait

CREDIT_BYTES = 32 << 20
SHARE_SECONDS = 10.0


def credit_bytes(redis_bytes: int, *, pipelines: int, channels: int) -> int:
    """How many bytes of rows one channel may have in flight: all pipelines' channels share a quarter of Redis's memory.

    Redis can hold such bytes three times: in the command that brings them, in the stream, and in the answer that a slow
    or hung receiver has not read yet. The last quarter is for each channel's overhead, and for the streams of an epoch
    that has just ended. At most 32 MiB, and at least the 64 KiB of the smallest fragments.
    """
    share = redis_bytes // 4 // max(1, pipelines) // max(1, channels)
    return max(LEAST_CREDIT_BYTES, min(CREDIT_BYTES, share))


class Links:
    """All channels of one member in one epoch."""

    def __init__(
        self,
        redis: Redis,
        pipeline: Key,
        epoch: int,
        name: str,
        *,
        inbound: Iterable[str],
        outbound: Iterable[str],
        channels: int = 1,
        clock: Clock,
    ) -> None:
        """`channels`: how many channels of the epoch carry rows, of all members; they share Redis's memory for rows."""
        self._redis = redis
        self._channels = channels
        self._inbound = {stream_name(pipeline, epoch, peer, name): peer for peer in inbound}
        leader = next((stream for stream, peer in self._inbound.items() if peer == ENUMERATOR), None)
        self._receiver = Receiver(redis, self._inbound, leader=leader)
        self._senders = {
            peer: Sender(redis, stream_name(pipeline, epoch, name, peer), credit_bytes=LEAST_CREDIT_BYTES)
            for peer in outbound
        }
        self._used: set[str] = set()
        self._clock, self._awaited = clock, Awaited(clock)

    async def send(self, order: Send) -> None:
        """Queue the message behind all earlier ones to that receiver; waits while its channel is full."""
        message, sender = order.message, self._senders[order.receiver]
        self._used.add(order.receiver)
        with self._awaited.on(Party.MEMBER, f"{order.receiver}, to take what was sent to it"):
            if isinstance(message, Records):
                await sender.send(encode(message), message.body, counted=True)
            else:
                await sender.send(encode(message), counted=False)

    async def pump(self, loop: Inbox) -> None:
        """Hand every received message to the loop; return its credit once its effects are carried out."""
        room = asyncio.Semaphore(64)
        while True:
            for stream, header, body in await self._receiver.receive():
                await room.acquire()

                async def taken(stream: str = stream) -> None:
                    room.release()
                    await self._receiver.taken(stream, 1)

                message = decode(header, body or None)
                loop.tell(MessageReceived(channel=self._inbound[stream], message=message), taken)

    async def idle(self) -> None:
        """Send an empty message each second on channels without traffic, so that the receiver notices a lost tail, and
        members a lost leader; and adjust each channel's credit, since more pipelines make the shares smaller."""
        share_at = 0.0
        while True:
            if self._clock.monotonic() >= share_at and await self._set_credits():
                share_at = self._clock.monotonic() + SHARE_SECONDS
            await asyncio.sleep(1.0)
            used, self._used = self._used, set()
            for peer, sender in self._senders.items():
                if peer not in used:
                    await sender.idle()

    async def _set_credits(self) -> bool:
        """Set each channel's credit, which begins at the minimum; False if Redis is unreachable."""
        try:
            used = await memory(self._redis)
            pipelines = len(await Registry(self._redis).epochs())
        except (Unavailable, ConfigError):  # the channels report the same error
            return False
        limit = (used and used.limit_bytes) or Environment.read().redis_memory_bytes
        for sender in self._senders.values():
            sender.credit_bytes = credit_bytes(limit, pipelines=pipelines, channels=self._channels)
        return True

    @property
    def waiting_for(self) -> Wait | None:
        """The receiver whose channel has been full for long."""
        return self._awaited.late

    def state(self) -> dict[str, ChannelStatus]:
        """What each outbound channel holds, by the peer at its other end, for the status."""
        return {peer: sender.state for peer, sender in self._senders.items()}

    async def close(self) -> None:
        """Close all connections; queued messages stay unsent."""
        with suppress(CutlineError):
            await self._receiver.close()
        for sender in self._senders.values():
            with suppress(CutlineError):
                await sender.close()
