"""A service process of the mesh: its presence, the epochs that it joins, how it starts and ends.

The order of durability for the whole of Cutline. No part of a step may happen before all earlier steps are complete:

1. the data of checkpoint N is durable (writers: staged files fsynced under their final names);
2. each member's part of N is saved (parts, fsynced);
3. journal entry N is written by put-if-absent: from then on N exists, and a restore begins at N;
4. the Spark writer applies N on its own branch of each table;
5. publication N is written by put-if-absent: from then on the lake will show N, whatever happens;
6. tags, `main` and `_cutline.publications` are made from publication N, repeatedly until they succeed.

A message is *taken* (trimmed from its stream, its credit returned) once all effects of its fact are carried out.
If any task of an epoch fails, all tasks of that epoch stop and the service's presence reports the cause; the leader
starts the next epoch. Blocking calls run in threads, awaited or behind `Loop.spawn`: calls to the store in the store's
threads (`Pools.store`), calls to a source in threads of that pipeline (`Pools.own`), so neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from cutline.common import logs, threads
from cutline.common.causes import Cause, Code
from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable, lost
from cutline.common.mesh.channels import ChannelLost, LeaderLost
from cutline.common.mesh.log_lines import kept_here
from cutline.common.mesh.loop import TICK_SECONDS, LoopLag, together
from cutline.common.mesh.ports import Ports
from cutline.common.mesh.presence import GaveUp, Service
from cutline.common.mesh.production import ports
from cutline.common.mesh.redis import connect
from cutline.common.mesh.usage import Usage
from cutline.common.store.lives import Key, name_of
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore, Store

LEAVE_SECONDS = 8.0
END_SECONDS = 12.0
OVER_SECONDS = 5.0
"""How long the store may take to say whether an epoch whose channels are gone has ended by order."""
log = logging.getLogger("cutline.host")

Join = Callable[[PipelineStore, EpochEntry, int], Coroutine[Any, Any, None]]


class Host:
    """One service process of the mesh: it announces its presence and joins each pipeline whose epoch entry names it.

    `join(store, entry, index)` runs its member (number `index` of its role) in the epoch of that journal entry, until
    it is cancelled or fails. The presence reports a failure; no other pipeline is affected.
    """

    def __init__(self, role: str, store: Store, ports: Ports) -> None:
        self.role = role
        self.store = store
        self.ports = ports
        self.incarnation = f"{role}-{ports.token(6)}"
        self.failed: dict[Key, GaveUp] = {}
        self.leads: set[Key] = set()
        self.asked_to_end = asyncio.Event()
        self._started_at = ports.clock.time()

    @classmethod
    def of_process(cls, role: str, environment: Environment) -> Host:
        """The host of this process, which SIGTERM and SIGINT ask to end. ConfigError without the URLs that it needs."""
        redis = connect(environment.need_redis_url())
        host = cls(role, Store(environment.need_store_url()), ports(redis))
        logs.note_service(host.incarnation)
        logs.say_started(role, host.incarnation, environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, host._end)
        return host

    def _end(self) -> None:
        if not self.asked_to_end.is_set():
            self.asked_to_end.set()
            # The interpreter waits for its threads at exit, and a SELECT or an unreachable store may block a thread.
            last = threading.Timer(END_SECONDS, os._exit, (0,))
            last.daemon = True
            last.start()

    async def present(self) -> None:
        """Announce this service each second, and withdraw it at the end."""
        lag, usage, lines = LoopLag(), Usage(), kept_here()
        try:
            while True:
                rss_bytes, cpu_seconds = usage.look()
                service = Service(
                    incarnation=self.incarnation,
                    role=self.role,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_at=self._started_at,
                    failed=dict(self.failed),
                    leaving=self.asked_to_end.is_set(),
                    loop_lag_seconds=round(lag.longest(), 4),
                    rss_bytes=rss_bytes,
                    cpu_seconds=cpu_seconds,
                    leads=tuple(sorted(self.leads)),
                )
                with suppress(Unavailable):  # the missing presence reports it
                    await self.ports.notes.announce_presence(service)
                with suppress(Unavailable):
                    await self.ports.notes.put_lines(lines, self.incarnation)
                await asyncio.sleep(1.0)
        finally:
            lag.end()
            await finished(self.ports.notes.withdraw_presence(self.incarnation))

    async def serve(self, join: Join) -> None:
        """Follow the announced epochs until the process is asked to end."""
        running: dict[Key, tuple[int, asyncio.Task[None]]] = {}
        async with together() as group:
            following = group.create_task(self._follow(join, running, group))
            present = group.create_task(self.present())
            await self.asked_to_end.wait()
            await self._released(running)
            for task in (following, *(member for _, member in running.values()), present):
                task.cancel()

    async def _follow(
        self, join: Join, running: dict[Key, tuple[int, asyncio.Task[None]]], group: asyncio.TaskGroup
    ) -> None:
        """Join each announced epoch that is later than the last one of that life of the pipeline."""
        while True:
            with suppress(Unavailable):
                epochs = await self.ports.notes.epochs()
                for key in [key for key, (_, task) in running.items() if key not in epochs and task.done()]:
                    del running[key]  # deleted, or Redis was emptied: its streams too, so no member can go on there
                    self.failed.pop(key, None)
                for key, epoch in epochs.items():
                    known = running.get(key)
                    if known is not None and known[0] >= epoch:
                        continue
                    if known is not None:
                        known[1].cancel()
                        await asyncio.wait([known[1]])
                    running[key] = (epoch, group.create_task(self._member(join, key, epoch)))
            await asyncio.sleep(TICK_SECONDS)

    async def _released(self, running: Mapping[Key, tuple[int, asyncio.Task[None]]]) -> None:
        """Wait until no epoch needs this service: the leader takes a checkpoint, then begins an epoch without it.

        At most LEAVE_SECONDS, and not where no enumerator is left to lead.
        """
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(LEAVE_SECONDS):
                while any(not task.done() for _, task in running.values()):
                    services = await self.ports.notes.services()
                    if not any(service.role == "enumerator" and not service.leaving for service in services):
                        return
                    await asyncio.sleep(TICK_SECONDS)

    async def _member(self, join: Join, key: Key, epoch: int) -> None:
        pipeline = name_of(key)
        logs.note(pipeline=pipeline, epoch=epoch)
        try:
            life = await self.ports.pools.store.call(self.store.life, key)
            store = None if life is None else self.store.open(life)
            entry = None if store is None else await self.ports.pools.store.call(store.entry, epoch)
            if store is None or not isinstance(entry, EpochEntry):
                raise ProtocolError(
                    f"Redis announces epoch {epoch} of {pipeline} ({key}), and the store has no such epoch: the"
                    " pipeline was deleted, or Redis serves another store too",
                    "give each store its own Redis",
                )
            members = entry.members.by_role.get(self.role, ())
            if self.incarnation not in members:
                return
            log.info("%s joins epoch %d of %s as %s", self.incarnation, epoch, pipeline, self.role)
            await join(store, entry, members.index(self.incarnation))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if isinstance(error, ChannelLost | LeaderLost) and await self._is_over(key, epoch):
                log.info("%s leaves epoch %d of %s, which is over", self.incarnation, epoch, pipeline)
                return
            if not isinstance(error, CutlineError):
                log.exception("%s failed in epoch %d of %s", self.incarnation, epoch, pipeline)
            else:
                log.warning("%s leaves epoch %d of %s: %s", self.incarnation, epoch, pipeline, error)
            self.failed[key] = gave_up(epoch, error)

    async def _is_over(self, key: Key, epoch: int) -> bool:
        """Whether an epoch whose channels are gone has ended by order, which is no fault: its pipeline is deleted or
        stands still, or another epoch has followed. False where the store does not say so in time."""

        def look() -> bool:
            life = self.store.life(key)
            if life is None:
                return True
            store = self.store.open(life)
            if store.deleting() or store.commands.orders().mode != "running":
                return True
            last = store.entry(store.last_slot())
            return last is not None and last.epoch > epoch

        with suppress(TimeoutError, CutlineError):
            async with asyncio.timeout(OVER_SECONDS):
                return await self.ports.pools.store.call(look)
        return False


def gave_up(epoch: int, error: Exception) -> GaveUp:
    """The report of an epoch that this error ended."""
    if isinstance(error, CutlineError):
        halts = isinstance(error, (ProtocolError, SourceLost))
        return GaveUp(epoch=epoch, cause=error.cause, halts=halts, lost=lost(error))
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    sentence = f"Unexpected {type(error).__name__} ({error}){notes}: a bug of Cutline"
    return GaveUp(epoch=epoch, cause=Cause(Code.UNEXPECTED, sentence, "report it with the service's log"), halts=True)


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Make a last request to Redis while this task is being cancelled; `mesh.redis` refuses to work in such a task, so
    another task makes it. Redis may be unreachable."""
    with suppress(Unavailable):
        await asyncio.create_task(work)


def raise_open_files() -> None:
    """Raise the limit of open files to the hard limit; the default soft limit is 1,024 nearly everywhere."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service process until it ends; a wrong configuration is reported on stderr and exits with 2."""
    try:
        logs.configure(Environment.read())
        raise_open_files()
        threads.run(main())
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        sys.exit(2)
