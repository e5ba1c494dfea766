"""The lease of a pipeline's leader: liveness only.

It says who should lead, so that two candidates don't disturb each other for long. It does not say who may: Redis may
be emptied, a process may sleep through its time. What a leader writes is safe by the journal's put-if-absent alone.

Who holds it keeps it in a Redis that is full: a SET is refused there, but not a GET and a PEXPIRE in a script. Who
doesn't can't take it there, and frees what the pipeline's dead epochs left (`channels.free`).
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

    Renew three times in a ttl. All methods raise Unavailable if Redis doesn't answer; the holder then goes on (the
    journal protects it) and asks again, and a candidate doesn't start.
    """

    def __init__(self, redis: Redis, name: str, owner: str, ttl_seconds: float) -> None:
        """Take a client of `wire.connect`, the key (`lease_name`), the owner's incarnation and the lease's time."""
        self.name = name
        self.owner = owner
        self._redis = redis
        self._ttl_ms = int(ttl_seconds * 1000)

    async def acquire(self) -> bool:
        """Take the lease if nobody has it; True also if it is ours already (then its time begins again).

        Raises NoRoom if nobody has it and Redis is full.
        """
        async with answered(f"take the lease {self.name}"):
            there = await self._run(_RENEW, self._ttl_ms)
            if there >= 0:
                return there == 1
            return bool(await self._redis.set(self.name, self.owner, nx=True, px=self._ttl_ms))

    async def renew(self) -> bool:
        """Begin the time again; False if the lease ran out, or is another's: stop leading."""
        async with answered(f"renew the lease {self.name}"):
            return await self._run(_RENEW, self._ttl_ms) == 1

    async def release(self) -> None:
        """Give the lease back if it is ours, so that a successor needn't wait."""
        async with answered(f"release the lease {self.name}"):
            await self._run(_RELEASE)

    async def _run(self, script: str, *arguments: int) -> int:
        return int(await cast(Any, self._redis.eval(script, 1, self.name, self.owner, *arguments)))
