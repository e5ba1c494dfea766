"""The lease of a pipeline's leader, and that of the Spark writer which leads it in the lake: liveness only.

A lease chooses one process, so that two candidates don't disturb each other for long. It grants no right to write:
Redis may be emptied, and a process may be suspended past its lease. Only the journal's put-if-absent makes a leader's
writes safe; the Spark writer's are safe by its claim w and its publications.

A holder keeps its lease in a full Redis: Redis refuses a SET then, but not a GET and a PEXPIRE in a script. A candidate
can't take the lease there, so it frees all streams of a pipeline without a leader (`streams.free`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.mesh.redis import answered
from cutline.common.store.lives import Key

_RENEW = """
local owner = redis.call('GET', KEYS[1])
if owner == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if owner then return 0 end
return -1
"""
_GIVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def lease_name(pipeline: Key, role: str = "") -> str:
    """Name the key of a pipeline's lease: its leader's, or that of the leading process of a role ("spark_writer")."""
    return f"cutline:lease:{pipeline}{role and f':{role}'}"


async def owners(redis: Redis, names: Sequence[str]) -> list[str | None]:
    """Return the owner of each of these leases (keys of `lease_name`), None where nobody holds it.

    Raises Unavailable.
    """
    if not names:
        return []
    async with answered("read the leases"):
        found = await redis.mget(names)
    return [owner.decode() if isinstance(owner, bytes) else owner for owner in found]


async def renew(redis: Redis, names: Sequence[str], owner: str, ttl_seconds: float) -> list[bool | None]:
    """Renew the owner's leases of these names, in one round trip: True where that succeeded, False where somebody else
    has the lease, None where it is free (the holder then tries `Lease.acquire`). Raises Unavailable.
    """
    if not names:
        return []
    async with answered("renew the leases"), cast(Any, redis).pipeline(transaction=False) as pipe:
        for name in names:
            pipe.eval(_RENEW, 1, name, owner, int(ttl_seconds * 1000))
        answers = await pipe.execute()
    return [None if answer < 0 else answer == 1 for answer in answers]


class Lease:
    """One owner's claim on one name, for `ttl_seconds` from the last `acquire` that returned True.

    Acquire it again three times in a ttl, or use `renew`. All methods raise Unavailable if Redis doesn't answer; the
    holder then continues (the journal protects it) and tries again; a candidate doesn't start.
    """

    def __init__(self, redis: Redis, name: str, owner: str, ttl_seconds: float) -> None:
        """Take a client of `mesh.redis.connect`, the key (`lease_name`), the owner's incarnation, the time to live."""
        self.name = name
        self.owner = owner
        self._redis = redis
        self._ttl_ms = int(ttl_seconds * 1000)

    async def acquire(self) -> bool:
        """Take the lease if it is free; True also if it is already ours (which renews it).

        Raises NoRoom if it is free and Redis is full.
        """
        async with answered(f"take the lease {self.name}"):
            renewed = await self._run(_RENEW, self._ttl_ms)
            if renewed >= 0:
                return renewed == 1
            return bool(await self._redis.set(self.name, self.owner, nx=True, px=self._ttl_ms))

    async def give(self, successor: str) -> bool:
        """Make `successor` the owner, for one time to live; False if the lease is not ours any more.

        Raises NoRoom in a full Redis (before version 7 Unavailable); the lease stays ours then.
        """
        async with answered(f"give the lease {self.name} to {successor}"):
            return await self._run(_GIVE, successor, self._ttl_ms) == 1

    async def release(self) -> None:
        """Release the lease if it is ours, so that a successor needn't wait."""
        async with answered(f"release the lease {self.name}"):
            await self._run(_RELEASE)

    async def _run(self, script: str, *arguments: int | str) -> int:
        return int(await cast(Any, self._redis.eval(script, 1, self.name, self.owner, *arguments)))
