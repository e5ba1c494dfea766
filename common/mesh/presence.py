"""What services tell each other in Redis beside the channels: who is there, which epoch runs, how it goes, what is
asked.

What is said again and again without a change needs no memory, so that it goes on in a Redis that is full: services
stay present there, and a leader's epoch stays announced.

Nothing here is relied on for safety, and all of it comes back by itself after Redis was emptied, except requests,
which whoever asked must ask again. Keys: `cutline:service:{incarnation}` (JSON, 5 s) with the index
`cutline:services`, and `cutline:epochs`, `cutline:status:{pipeline}`, `cutline:requests:{pipeline}` (the leader's) and
`cutline:requests:{pipeline}:spark_writer`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.errors import ProtocolError
from cutline.common.mesh.redis import answered

PRESENCE_SECONDS = 5
LEADER = ""
SPARK_WRITER = "spark_writer"
_INDEX = "cutline:services"
_TABLES = "tables"
_EPOCHS = "cutline:epochs"
_TAKE = """
local bodies = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1])
return bodies
"""


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
    as no epoch needs it. `loop_lag_seconds`: the longest that its event loop let somebody wait in the last 15 s.
    """

    incarnation: str
    role: str
    host: str
    pid: int
    started_at: float
    failed: Mapping[str, GaveUp] = field(default_factory=dict)
    leaving: bool = False
    loop_lag_seconds: float | None = None


class Registry:
    """The shared notes in Redis. Every method raises Unavailable if Redis doesn't answer."""

    def __init__(self, redis: Redis) -> None:
        """Take a client of `wire.connect`."""
        self._redis: Any = redis
        self._said: dict[str, str] = {}  # of each service that was announced here, what Redis has of it

    async def announce_presence(self, service: Service) -> None:
        """Say that `service` is alive; call it each second, it counts for 5.

        Raises NoRoom if there is something new to be said and Redis is full; what was said before goes on to count.
        """
        key, known = f"cutline:service:{service.incarnation}", asdict(service)
        del known["incarnation"]
        body = json.dumps(known)
        async with answered("announce a service"), self._redis.pipeline(transaction=False) as pipe:
            pipe.expire(key, PRESENCE_SECONDS)
            pipe.sismember(_INDEX, service.incarnation)
            if all(await pipe.execute()) and self._said.get(service.incarnation) == body:
                return
            self._said.pop(service.incarnation, None)  # unknown until it is answered
            pipe.set(key, body, ex=PRESENCE_SECONDS)
            pipe.sadd(_INDEX, service.incarnation)
            await pipe.execute()
            self._said[service.incarnation] = body

    async def withdraw_presence(self, incarnation: str) -> None:
        """Say that a service is leaving, so that nobody waits out its 5 seconds."""
        self._said.pop(incarnation, None)
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
            said = await self._redis.hget(_EPOCHS, pipeline)
            if said is None or _text(said) != str(epoch):
                await self._redis.hset(_EPOCHS, pipeline, epoch)

    async def epochs(self) -> dict[str, int]:
        """Return the announced epoch of each pipeline; empty after Redis was emptied, until leaders announce again."""
        async with answered("list the epochs"):
            found = await self._redis.hgetall(_EPOCHS)
        return {_text(name): int(epoch) for name, epoch in found.items()}

    async def put_status(
        self, pipeline: str, part: str, status: Mapping[str, Any], *, tables: str | None = None
    ) -> None:
        """Replace what one part of a pipeline (a member, or a topic such as "source") shows of itself; with `tables`
        also the enumerator's tables, as JSON, which stay until then."""
        shown = {part: json.dumps(status)} | ({} if tables is None else {_TABLES: tables})
        async with answered(f"write the status of pipeline {pipeline}"):
            await self._redis.hset(f"cutline:status:{pipeline}", mapping=cast(dict[str | bytes, Any], shown))

    async def status(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """Return what each part of a pipeline last showed of itself; each should carry its own time."""
        key = f"cutline:status:{pipeline}"
        async with answered(f"read the status of pipeline {pipeline}"):
            found = await self._redis.hgetall(key)
        return merged({_text(part): _parsed(body, key) for part, body in found.items()})

    async def request(self, pipeline: str, request: Mapping[str, Any], *, to: str = LEADER) -> None:
        """Ask a pipeline's leader (a kept checkpoint, a table to be read again) or its Spark writer (a table to be
        tried again) for something; the newest goes last.
        """
        async with answered(f"pass a request to pipeline {pipeline}"):
            await self._redis.rpush(_requests(pipeline, to), json.dumps(request))

    async def take_requests(self, pipeline: str, *, to: str = LEADER) -> list[dict[str, Any]]:
        """Take all waiting requests, oldest first; a service that dies with them loses them, and a person asks
        again.
        """
        key = _requests(pipeline, to)
        async with answered(f"take the requests to pipeline {pipeline}"):
            bodies = await self._redis.eval(_TAKE, 1, key)  # a full Redis refuses whatever is queued in a MULTI
        return [_parsed(body, key) for body in bodies]

    async def forget(self, pipeline: str) -> None:
        """Remove all notes about a pipeline that was deleted."""
        async with answered(f"forget pipeline {pipeline}"), self._redis.pipeline(transaction=False) as pipe:
            pipe.hdel(_EPOCHS, pipeline)
            pipe.delete(f"cutline:status:{pipeline}", _requests(pipeline, LEADER), _requests(pipeline, SPARK_WRITER))
            await pipe.execute()


def merged(parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The status of a pipeline, of the parts that Redis has: the enumerator's tables are one of their own there."""
    tables = parts.pop(_TABLES, None)
    if tables is not None and "enumerator" in parts:
        parts["enumerator"]["tables"] = tables
    return parts


def tables(status: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the captured tables of a pipeline's status: as the enumerator tells, but quarantined where the Spark
    writer can't apply that generation.
    """
    found = dict((status.get("enumerator") or {}).get("tables") or {})
    for table, held in ((status.get("spark_writer") or {}).get("quarantined") or {}).items():
        one = found.get(table, {})
        if one.get("generation") == held["generation"] and one["phase"] != "dropped":
            found[table] = {**one, "phase": "quarantined", "cause": held["cause"]}
    return found


def _requests(pipeline: str, to: str) -> str:
    return f"cutline:requests:{pipeline}{to and f':{to}'}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _parsed(body: bytes | str, key: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(body))
    except ValueError as error:
        raise ProtocolError(f"{key} in Redis is not JSON of ours; remove that key and see who writes there") from error
