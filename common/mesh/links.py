"""All channels of one member in one epoch, and the share of Redis that each of them gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from redis.asyncio import Redis

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, Unavailable
from cutline.common.mesh.channels import LEAST_CREDIT_BYTES, Receiver, Sender, stream_name
from cutline.common.mesh.loop import Loop
from cutline.common.mesh.machine import MessageReceived, Send
from cutline.common.mesh.messages import Records, decode, encode
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import memory

CREDIT_BYTES = 32 << 20
SHARE_SECONDS = 10.0


def credit_bytes(redis_bytes: int, *, pipelines: int, channels: int) -> int:
    """How many bytes of rows one channel may have under way: a quarter of Redis is shared by all pipelines' channels.

    Redis can hold such bytes three times: in the command that brings them, in the stream, and in the answer that a slow
    or hung receiver has not read yet. The last quarter is for each channel's overhead, and for the streams of an epoch
    that has just ended. At most 32 MiB, and at least the 64 KiB that any message passes in pieces.
    """
    share = redis_bytes // 4 // max(1, pipelines) // max(1, channels)
    return max(LEAST_CREDIT_BYTES, min(CREDIT_BYTES, share))


class Links:
    """All channels of one member in one epoch."""

    def __init__(
        self,
        redis: Redis,
        pipeline: str,
        epoch: int,
        name: str,
        *,
        inbound: Iterable[str],
        outbound: Iterable[str],
        channels: int = 1,
    ) -> None:
        """`channels`: how many of the epoch carry rows, all members' together; they share what Redis has for them."""
        self._redis = redis
        self._channels = channels
        self._inbound = {stream_name(pipeline, epoch, peer, name): peer for peer in inbound}
        self._receiver = Receiver(redis, self._inbound)
        self._senders = {
            peer: Sender(redis, stream_name(pipeline, epoch, name, peer), credit_bytes=LEAST_CREDIT_BYTES)
            for peer in outbound
        }
        self._used: set[str] = set()

    async def send(self, order: Send) -> None:
        """Queue the message behind all earlier ones to that receiver; waits while its channel has no room."""
        message, sender = order.message, self._senders[order.receiver]
        self._used.add(order.receiver)
        if isinstance(message, Records):
            await sender.send(encode(message), message.body, counted=True)
        else:
            await sender.send(encode(message), counted=False)

    async def pump(self, loop: Loop) -> None:
        """Hand every message that comes to the loop; returns its credit when it was taken."""
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
        """Send an empty message each second where nothing else was sent, so that a lost tail shows; and keep each
        channel's credit its share of Redis, which pipelines that come later make smaller."""
        share_at = 0.0
        while True:
            if time.monotonic() >= share_at and await self._shared():
                share_at = time.monotonic() + SHARE_SECONDS
            await asyncio.sleep(1.0)
            used, self._used = self._used, set()
            for peer, sender in self._senders.items():
                if peer not in used:
                    await sender.idle()

    async def _shared(self) -> bool:
        """Set the credits; until then they are the least, since nothing is known of Redis. False if it is away."""
        try:
            told = await memory(self._redis)
            pipelines = len(await Registry(self._redis).epochs())
        except (Unavailable, ConfigError):  # the channels themselves tell what is wrong
            return False
        limit = (told and told.limit_bytes) or Environment.read().redis_memory_bytes
        for sender in self._senders.values():
            sender.credit_bytes = credit_bytes(limit, pipelines=pipelines, channels=self._channels)
        return True

    async def close(self) -> None:
        """End all connections; what is still queued is not sent any more."""
        with suppress(CutlineError):
            await self._receiver.close()
        for sender in self._senders.values():
            with suppress(CutlineError):
                await sender.close()
