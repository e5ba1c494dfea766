"""The ports of production: Redis, the threads of this process and its clocks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial

from redis.asyncio import Redis

from cutline.common.mesh import streams
from cutline.common.mesh.lease import Lease, lease_name
from cutline.common.mesh.links import Links
from cutline.common.mesh.loop import STORE
from cutline.common.mesh.ports import Pools, Ports
from cutline.common.mesh.presence import Registry
from cutline.common.mesh.redis import memory
from cutline.common.mesh.topology import Channel
from cutline.common.store.lives import Key
from cutline.common.threads import Threads

_SWEEPING, _REMOVING, _ENCODING = Threads("sweep"), Threads("remove", 2), Threads("encode", 2)


class RedisStreams:
    """The streams in Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def create(self, pipeline: Key, epoch: int, channels: Sequence[Channel], *, leader: str) -> None:
        """See `Streams`."""
        names = [streams.stream_name(pipeline, epoch, *pair) for pair in channels]
        await streams.create(self._redis, names, {"epoch": epoch, "leader": leader})

    async def drop(self, pipeline: Key, *, before: int) -> int:
        """See `Streams`."""
        return await streams.drop(self._redis, pipeline, before=before)

    async def free(self, pipeline: Key) -> int:
        """See `Streams`."""
        return await streams.free(self._redis, pipeline, lease_name(pipeline))

    async def tight(self) -> bool:
        """See `Streams`: Redis has more than half of its memory in use."""
        used = await memory(self._redis)
        return used is not None and used.limit_bytes is not None and 2 * used.used_bytes > used.limit_bytes


def ports(redis: Redis) -> Ports:
    """The ports of a process with this Redis."""
    return Ports(
        clock=time,
        token=secrets.token_hex,
        pools=Pools(own=Threads, store=STORE, sweep=_SWEEPING, remove=_REMOVING, encode=_ENCODING),
        notes=Registry(redis),
        links=partial(Links, redis, clock=time),
        streams=RedisStreams(redis),
        lease=lambda pipeline, owner, seconds: Lease(redis, lease_name(pipeline), owner, seconds),
    )
