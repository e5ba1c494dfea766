"""The streams of an epoch in Redis: who makes them, and when they go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.mesh.channels import PATIENCE_SECONDS, Entry, add
from cutline.common.mesh.redis import Wire, answered
from cutline.common.store.lives import Key


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
            entry = Entry(number=1, header=header, body=b"", fragment=None, counted=False)
            await add(wire, name, [entry], patience_seconds=patience_seconds, make=True)
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
