"""Shared notes in Redis beside the channels: which services are present, which epoch runs, status and requests.

Repeating an unchanged note needs no memory, so it succeeds in a full Redis too: services stay present, and a leader's
epoch stays announced.

Everything about a pipeline goes by its key, `{name}.{id}` (store/lives.py): what is left of one that was deleted says
nothing about the next one of its name.

Safety does not rest on these notes. After Redis was emptied, services write them again; requests must be repeated by
whoever made them. Keys: `cutline:service:{incarnation}` (JSON, 5 s) with the index `cutline:services`, and
`cutline:epochs`, `cutline:status:{pipeline}`, `cutline:splits:{pipeline}` (of tables in their snapshot),
`cutline:requests:{pipeline}` (the leader's) and `cutline:requests:{pipeline}:spark_writer`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, cast

from redis.asyncio import Redis

from cutline.common.causes import Cause
from cutline.common.errors import Loss, ProtocolError
from cutline.common.form import read_each, text
from cutline.common.mesh.log_lines import LogLine, LogLines, log_lines
from cutline.common.mesh.previews import Previews
from cutline.common.mesh.redis import Memory, answered, memory
from cutline.common.status.pipeline_status import (
    SPARK_WRITER,
    MemberStatus,
    PartStatus,
    PipelineStatus,
    TableStatus,
    part,
)
from cutline.common.store.lives import LIFE, Key

WIRE = 6
"""The version of the mesh's messages (messages.py) and of what its members put into their parts.

Count it up with a change after which an older service would refuse or misread what a newer one sends, or the other way
round: a leader takes only members of its own version, so a rolling update mixes none in an epoch.
"""
PRESENCE_SECONDS = 5
LEADER = ""
_INDEX = "cutline:services"
_TABLES = "tables"
_EPOCHS = "cutline:epochs"
_TAKE = """
local bodies = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1])
return bodies
"""
_PUT_WHILE_IN_EPOCH = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
end
"""


class RequestKind(StrEnum):
    """What a request in Redis (its field `kind`) asks of the leader, or of the Spark writer."""

    LOOK = "command"  # the leader: look at the commands in the store now
    CHOOSE = "lake"  # the Spark writer: do this about commits of others
    RETRY = "retry"  # the Spark writer: try a quarantined table again


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """An epoch that a service gave up, and why; `halts` if another try can't succeed, `lost` if the source lost
    something that every new generation of the tables does without."""

    epoch: int
    cause: Cause
    halts: bool
    lost: Loss = Loss.NOTHING

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {"epoch": self.epoch, "cause": self.cause.to_json(), "halts": self.halts, "lost": self.lost}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> GaveUp:
        """Read what `to_json` gave; what only a newer version knows is left out."""
        lost = body.get("lost", "")
        known = lost if lost in tuple(Loss) else Loss.NOTHING
        return cls(epoch=body["epoch"], cause=Cause.from_json(body["cause"]), halts=body["halts"], lost=Loss(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service process that was alive within the last 5 seconds.

    `failed` has the newest epoch of each pipeline that it gave up, by key; `leaving`: it was asked to end, and will as
    soon as no epoch needs it; `starting`: it can't take work yet. `loop_lag_seconds`: the longest delay of its event
    loop within the last 15 s. `rss_bytes` and `cpu_seconds`: of the process and its children, rounded (mesh/usage.py).
    `leads`: the keys of the pipelines that it leads, by its own knowledge. `wire`: its WIRE.
    """

    incarnation: str
    role: str
    host: str
    pid: int
    started_at: float
    failed: Mapping[Key, GaveUp] = field(default_factory=dict)
    leaving: bool = False
    starting: bool = False
    loop_lag_seconds: float | None = None
    rss_bytes: int | None = None
    cpu_seconds: float | None = None
    leads: tuple[Key, ...] = ()
    wire: int = WIRE


_NOTED = frozenset(noted.name for noted in fields(Service))


class Registry:
    """The shared notes in Redis. Every method raises Unavailable if Redis doesn't answer."""

    def __init__(self, redis: Redis) -> None:
        """Take a client of `mesh.redis.connect`."""
        self._redis: Any = redis
        self._announced: dict[str, str] = {}  # incarnation -> its note in Redis (JSON)
        # Of each pipeline the tables as last read: all in JSON, and by name parsed and typed.
        self._tables: dict[Key, tuple[bytes | str, dict[str, tuple[object, TableStatus]]]] = {}
        self._parts: dict[Key, dict[str, tuple[bytes | str, PartStatus | None]]] = {}  # the other parts, as last read

    @property
    def previews(self) -> Previews:
        """The previews that Spark writers are asked for."""
        return Previews(self._redis)

    async def announce_presence(self, service: Service) -> bool:
        """Announce that `service` is alive, for the next 5 s; call it each second. False if Redis no longer had the
        note of the last call: Redis was emptied, or the service was suspended.

        Raises NoRoom if something changed and Redis is full; the earlier note stays valid.
        """
        key, known = f"cutline:service:{service.incarnation}", asdict(service)
        del known["incarnation"]
        known["failed"] = {name: failure.to_json() for name, failure in service.failed.items()}
        body = json.dumps(known)
        async with answered("announce a service"), self._redis.pipeline(transaction=False) as pipe:
            pipe.expire(key, PRESENCE_SECONDS)
            pipe.sismember(_INDEX, service.incarnation)
            found = all(await pipe.execute())
            before = self._announced.pop(service.incarnation, None)  # unknown until Redis answers
            if not found or before != body:
                pipe.set(key, body, ex=PRESENCE_SECONDS)
                pipe.sadd(_INDEX, service.incarnation)
                await pipe.execute()
            self._announced[service.incarnation] = body
        return found or before is None

    async def withdraw_presence(self, incarnation: str) -> None:
        """Remove a service's note at once, so that nobody waits for its 5 s to pass."""
        self._announced.pop(incarnation, None)
        async with answered("withdraw a service"), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(f"cutline:service:{incarnation}")
            pipe.srem(_INDEX, incarnation)
            await pipe.execute()

    async def services(self) -> list[Service]:
        """Return the services that are alive, sorted by role, then by incarnation.

        Those of another version of Cutline too: what only that version knows is left out.
        """
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
                known = {"wire": 0} | _parsed(body, f"cutline:service:{incarnation}")
                known["failed"] = {Key(key): GaveUp.from_json(failure) for key, failure in known["failed"].items()}
                known["leads"] = tuple(Key(key) for key in known.get("leads") or ())
                # During an upgrade some services are of a newer version, whose notes may say more.
                found.append(Service(incarnation=incarnation, **{k: v for k, v in known.items() if k in _NOTED}))
        return sorted(found, key=lambda service: (service.role, service.incarnation))

    async def memory(self) -> Memory | None:
        """Return Redis's memory; None without the right to ask."""
        return await memory(self._redis)

    async def announce_epoch(self, pipeline: Key, epoch: int) -> None:
        """Announce the running epoch of a pipeline; services read its journal entry and join. Repeat it each second."""
        async with answered(f"announce an epoch of pipeline {pipeline}"):
            announced = await self._redis.hget(_EPOCHS, pipeline)
            if announced is None or _text(announced) != str(epoch):
                await self._redis.hset(_EPOCHS, pipeline, epoch)

    async def epochs(self) -> dict[Key, int]:
        """Return the announced epoch of each pipeline; empty after Redis was emptied, until leaders announce again."""
        async with answered("list the epochs"):
            found = await self._redis.hgetall(_EPOCHS)
        return {Key(_text(name)): int(epoch) for name, epoch in found.items()}

    async def put_status(
        self, pipeline: Key, part: str, status: PartStatus, *, tables: str | None = None
    ) -> None:
        """Replace the status of one part of a pipeline; with `tables`, also the enumerator's tables, as JSON; without,
        they stay as they are."""
        shown = {part: text(status)} | ({} if tables is None else {_TABLES: tables})
        async with answered(f"write the status of pipeline {pipeline}"):
            await self._redis.hset(_status(pipeline), mapping=cast(dict[str | bytes, Any], shown))

    async def put_member_status(self, pipeline: Key, member: str, status: MemberStatus) -> None:
        """Replace the status of a member of an epoch, if that epoch is announced: a member that has not yet seen its
        epoch end, or its pipeline deleted, leaves nothing behind."""
        arguments = (_EPOCHS, _status(pipeline), pipeline, status.epoch, member, text(status))
        async with answered(f"write the status of pipeline {pipeline}"):
            await self._redis.eval(_PUT_WHILE_IN_EPOCH, 2, *arguments)

    async def status(self, pipeline: Key) -> PipelineStatus:
        """Return the last status of each part of a pipeline. A part, or a table, that is unchanged since the last call
        is the same object: tables, and what members count of them, may be many."""
        key = _status(pipeline)
        async with answered(f"read the status of pipeline {pipeline}"):
            found = {_text(name): body for name, body in (await self._redis.hgetall(key)).items()}
        given = found.pop(_TABLES, b"{}")
        body, tables = self._tables.get(pipeline, (b"{}", {}))
        if given != body:
            parsed = _parsed(given, key)
            read = read_each(TableStatus, parsed, tables)
            tables = {name: (parsed[name], table) for name, table in read.items()}
            self._tables[pipeline] = given, tables
        known = self._parts.get(pipeline, {})
        parts = self._parts[pipeline] = {
            name: known[name] if name in known and known[name][0] == body else (body, part(name, _parsed(body, key)))
            for name, body in found.items()
        }
        if not found:  # nobody serves it, or it is deleted
            del self._parts[pipeline]
            self._tables.pop(pipeline, None)
        typed = {name: table for name, (_, table) in tables.items()}
        return PipelineStatus.of_parts({name: read for name, (_, read) in parts.items()}, typed)

    async def put_splits(self, pipeline: Key, changed: Mapping[str, str | None]) -> None:
        """Replace the split grids (JSON) of these tables; None removes a table's."""
        key = f"cutline:splits:{pipeline}"
        grids = {table: grid for table, grid in changed.items() if grid is not None}
        requested = f"write the splits of pipeline {pipeline}"
        async with answered(requested), self._redis.pipeline(transaction=False) as pipe:
            if gone := changed.keys() - grids.keys():
                pipe.hdel(key, *sorted(gone))
            if grids:
                pipe.hset(key, mapping=grids)
            await pipe.execute()

    async def splits(self, pipeline: Key, table: str) -> dict[str, Any] | None:
        """Return the split grid of a table, None if it is not in its snapshot."""
        key = f"cutline:splits:{pipeline}"
        async with answered(f"read the splits of pipeline {pipeline}"):
            found = await self._redis.hget(key, table)
        return None if found is None else _parsed(found, key)

    async def put_lines(self, lines: LogLines, incarnation: str) -> None:
        """Append what a service has logged since the last call."""
        await lines.flush_to(self._redis, incarnation)

    async def log_lines(self, incarnation: str, count: int) -> list[LogLine]:
        """Return the last `count` log lines of a service, oldest first; [] of an unknown one."""
        return await log_lines(self._redis, incarnation, count)

    async def request(self, pipeline: Key, request: Mapping[str, Any], *, to: str = LEADER) -> None:
        """Queue a request, of a `RequestKind`, to a pipeline's leader or to its Spark writer."""
        async with answered(f"pass a request to pipeline {pipeline}"):
            await self._redis.rpush(_requests(pipeline, to), json.dumps(request))

    async def take_requests(self, pipeline: Key) -> list[dict[str, Any]]:
        """Take all requests that wait for a pipeline's leader, oldest first. They are lost if the service dies, or if
        Redis's answer is lost: whoever makes one repeats it until its effect shows.
        """
        key = _requests(pipeline, LEADER)
        async with answered(f"take the requests to pipeline {pipeline}"):
            bodies = await self._redis.eval(_TAKE, 1, key)  # a full Redis refuses commands queued in a MULTI
        return [_parsed(body, key) for body in bodies]

    async def waiting(self, pipelines: Collection[Key], *, to: str) -> dict[Key, list[bytes]]:
        """Return the requests (JSON) to each of these pipelines that nobody has withdrawn, oldest first; in one round
        trip."""
        if not pipelines:
            return {}
        async with answered("read the requests"), self._redis.pipeline(transaction=False) as pipe:
            for pipeline in pipelines:
                pipe.lrange(_requests(pipeline, to), 0, -1)
            return dict(zip(pipelines, await pipe.execute(), strict=True))

    async def withdraw(self, pipeline: Key, request: bytes, *, to: str) -> None:
        """Remove the oldest of the waiting requests that equal this one, because it was carried out."""
        async with answered(f"withdraw a request to pipeline {pipeline}"):
            await self._redis.lrem(_requests(pipeline, to), 1, request)

    async def drop_status(self, pipeline: Key, part: str) -> None:
        """Remove the status of one part of a pipeline."""
        async with answered(f"remove a status of pipeline {pipeline}"):
            await self._redis.hdel(_status(pipeline), part)

    async def noted(self) -> set[str]:
        """Return the keys of all pipelines of which Redis has something: notes, streams or leases. Costs a scan of what
        Redis has, however many pipelines there have been."""
        found: set[str] = set(await self.epochs())
        async with answered("look for pipelines"):
            async for name in self._redis.scan_iter(match="cutline:*", count=1000):
                found.update(part for part in _text(name).split(":")[1:3] if LIFE.fullmatch(part))
        return found

    async def forget(self, pipeline: Key) -> None:
        """Remove all notes about a deleted pipeline."""
        async with answered(f"forget pipeline {pipeline}"), self._redis.pipeline(transaction=False) as pipe:
            self._tables.pop(pipeline, None)
            self._parts.pop(pipeline, None)
            pipe.hdel(_EPOCHS, pipeline)
            pipe.delete(_status(pipeline), f"cutline:splits:{pipeline}")
            pipe.delete(_requests(pipeline, LEADER), _requests(pipeline, SPARK_WRITER))
            await pipe.execute()


def _status(pipeline: Key) -> str:
    return f"cutline:status:{pipeline}"


def _requests(pipeline: Key, to: str) -> str:
    return f"cutline:requests:{pipeline}{to and f':{to}'}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _parsed(body: bytes | str, key: str) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(body))
    except ValueError as error:
        raise ProtocolError(
            f"{key} in Redis is not JSON that Cutline wrote", "remove that key and find its writer"
        ) from error
