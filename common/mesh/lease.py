"""The lease of a pipeline's leader: liveness only.

The lease chooses a leader, so that two candidates don't disturb each other for long. It grants no right to write: Redis
may be emptied, and a process may be suspended past its lease. Only the journal's put-if-absent makes a leader's writes
safe.

A holder keeps its lease in a full Redis: Redis refuses a SET then, but not a GET and a PEXPIRE in a script. A candidate
can't take the lease there, so it frees all streams of a pipeline without a leader (`channels.free`).
"""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.mesh.redis import answered

_RENEW = """
local owner = redis.call('GET', KEYS[1])
if owner == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if owner then return 0 end
return -1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def lease_name(pipeline: str) -> str:
    """Name the key of a pipeline's lease."""
    return f"cutline:lease:{pipeline}"


class Lease:
    """One owner's claim on one name, for `ttl_seconds` from the last `acquire` or `renew` that returned True.

    Renew three times in a ttl. All methods raise Unavailable if Redis doesn't answer; the holder then continues (the
    journal protects it) and tries again; a candidate doesn't start.
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

    async def renew(self) -> bool:
        """Restart the time to live; False if the lease expired or has another owner: stop leading."""
        async with answered(f"renew the lease {self.name}"):
            return await self._run(_RENEW, self._ttl_ms) == 1

    async def release(self) -> None:
        """Release the lease if it is ours, so that a successor needn't wait."""
        async with answered(f"release the lease {self.name}"):
            await self._run(_RELEASE)

    async def _run(self, script: str, *arguments: int) -> int:
        return int(await cast(Any, self._redis.eval(script, 1, self.name, self.owner, *arguments)))
