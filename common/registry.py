"""What services tell each other in Redis beside the channels: who is there, which epoch runs, how it goes, what is
asked.

Nothing here is relied on for safety, and all of it comes back by itself after Redis was emptied, except requests,
which whoever asked must ask again. Keys: `cutline:service:{incarnation}` (JSON, 5 s) with the index
`cutline:services`, and `cutline:epochs`, `cutline:status:{pipeline}`, `cutline:requests:{pipeline}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.errors import ProtocolError
from cutline.common.wire import answered

PRESENCE_SECONDS = 5
_INDEX = "cutline:services"
_EPOCHS = "cutline:epochs"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """An epoch that a service had to give up, and why; `halts` if trying again can't mend it."""

    epoch: int
    cause: str
    halts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service process that was alive within the last 5 seconds.

    `failed` names the newest epoch that it gave up of each pipeline; `leaving`: it was asked to end, and does as soon
    as no epoch needs it.
    """

    incarnation: str
    role: str
    host: str
    pid: int
    started_at: float
    failed: Mapping[str, GaveUp] = field(default_factory=dict)
    leaving: bool = False


class Registry:
    """The shared notes in Redis. Every method raises Unavailable if Redis doesn't answer."""

    def __init__(self, redis: Redis) -> None:
        """Take a client of `wire.connect`."""
        self._redis: Any = redis

    async def announce_presence(self, service: Service) -> None:
        """Say that `service` is alive; call it each second, it counts for 5."""
        body = asdict(service)
        del body["incarnation"]
        async with answered("announce a service"), self._redis.pipeline(transaction=False) as pipe:
            pipe.set(f"cutline:service:{service.incarnation}", json.dumps(body), ex=PRESENCE_SECONDS)
            pipe.sadd(_INDEX, service.incarnation)
            await pipe.execute()

    async def withdraw_presence(self, incarnation: str) -> None:
        """Say that a service is leaving, so that nobody waits out its 5 seconds."""
        async with answered("withdraw a service"), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(f"cutline:service:{incarnation}")
            pipe.srem(_INDEX, incarnation)
            await pipe.execute()

    async def services(self) -> list[Service]:
        """Return who is alive, by role and then by incarnation."""
        async with answered("list the services"):
            incarnations = sorted(_text(name) for name in await self._redis.smembers(_INDEX))
            if not incarnations:
                return []
            bodies = await self._redis.mget([f"cutline:service:{name}" for name in incarnations])
            if gone := [name for name, body in zip(incarnations, bodies, strict=True) if body is None]:
                await self._redis.srem(_INDEX, *gone)
        found = []
        for incarnation, body in zip(incarnations, bodies, strict=True):
            if body is not None:
                known = _parsed(body, f"cutline:service:{incarnation}")
                known["failed"] = {name: GaveUp(**of) for name, of in known["failed"].items()}
                found.append(Service(incarnation=incarnation, **known))
        return sorted(found, key=lambda service: (service.role, service.incarnation))

    async def announce_epoch(self, pipeline: str, epoch: int) -> None:
        """Say which epoch of a pipeline runs; services read its journal entry and join. Repeat it each second."""
        async with answered(f"announce an epoch of pipeline {pipeline}"):
            await self._redis.hset(_EPOCHS, pipeline, epoch)

    async def epochs(self) -> dict[str, int]:
        """Return the announced epoch of each pipeline; empty after Redis was emptied, until leaders announce again."""
        async with answered("list the epochs"):
            found = await self._redis.hgetall(_EPOCHS)
        return {_text(name): int(epoch) for name, epoch in found.items()}

    async def put_status(self, pipeline: str, part: str, status: Mapping[str, Any]) -> None:
        """Replace what one part of a pipeline (a member, or a topic such as "source") shows of itself."""
        async with answered(f"write the status of pipeline {pipeline}"):
            await self._redis.hset(f"cutline:status:{pipeline}", part, json.dumps(status))

    async def status(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """Return what each part of a pipeline last showed of itself; each should carry its own time."""
        key = f"cutline:status:{pipeline}"
        async with answered(f"read the status of pipeline {pipeline}"):
            found = await self._redis.hgetall(key)
        return {_text(part): _parsed(body, key) for part, body in found.items()}

    async def request(self, pipeline: str, request: Mapping[str, Any]) -> None:
        """Ask a pipeline's leader for something (pause, resume, restore, a kept checkpoint); the newest goes last."""
        async with answered(f"pass a request to pipeline {pipeline}"):
            await self._redis.rpush(f"cutline:requests:{pipeline}", json.dumps(request))

    async def take_requests(self, pipeline: str) -> list[dict[str, Any]]:
        """Take all waiting requests, oldest first; a leader that dies with them loses them, and a person asks again."""
        key = f"cutline:requests:{pipeline}"
        async with (
            answered(f"take the requests to pipeline {pipeline}"),
            self._redis.pipeline(transaction=True) as pipe,
        ):
            pipe.lrange(key, 0, -1)
            pipe.delete(key)
            bodies, _ = await pipe.execute()
        return [_parsed(body, key) for body in bodies]

    async def forget(self, pipeline: str) -> None:
        """Remove all notes about a pipeline that was deleted."""
        async with answered(f"forget pipeline {pipeline}"), self._redis.pipeline(transaction=False) as pipe:
            pipe.hdel(_EPOCHS, pipeline)
            pipe.delete(f"cutline:status:{pipeline}", f"cutline:requests:{pipeline}")
            await pipe.execute()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _parsed(body: bytes | str, key: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(body))
    except ValueError as error:
        raise ProtocolError(f"{key} in Redis is not JSON of ours; remove that key and see who writes there") from error
