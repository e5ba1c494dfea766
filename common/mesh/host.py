"""Driving a machine: facts in, effects out in order, channels on both sides. All waiting of a service happens here.

The order of durability, once for the whole of Cutline; nothing of a later line may happen before all of the earlier
ones:

1. the data of checkpoint N is durable (writers: staged files fsynced under their final names);
2. each member's part of N is saved (parts, fsynced);
3. the journal's entry N is written by put-if-absent: from here on N exists, and a restore begins at N;
4. the Spark writer applies N on its own branch of each table;
5. publication N is written by put-if-absent: from here on N is shown, whatever happens;
6. tags, `main` and `_cutline.publications` are made from publication N, as often as it takes.

A message is *taken* (trimmed from its stream, its credit returned) when all effects of its fact are carried out.
If anything of an epoch fails, everything of that epoch stops, and its cause is told by the service's presence; the
leader starts the next epoch. Blocking calls run in threads behind `Loop.spawn` or awaited: those to the store in the
store's own (`in_store`), those to a source in that source's own (`OneThread`), so that neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, CutlineError, ProtocolError, SourceLost, Unavailable
from cutline.common.mesh.loop import TICK_SECONDS, LoopLag, in_store
from cutline.common.mesh.presence import GaveUp, Registry, Service
from cutline.common.store.records import EpochEntry
from cutline.common.store.store import PipelineStore, Store

LEAVE_SECONDS = 8.0
END_SECONDS = 12.0
log = logging.getLogger("cutline.host")

Join = Callable[[PipelineStore, EpochEntry, int], Coroutine[Any, Any, None]]


class Host:
    """One service process of the mesh: says that it is there, and takes part in every pipeline whose plan names it.

    `join(store, entry, index)` runs its member (number `index` of its role) in the epoch of that journal entry, until
    it is cancelled or fails. A failure is told by the presence and touches no other pipeline.
    """

    def __init__(self, role: str, redis: Redis, store: Store) -> None:
        self.role = role
        self.redis = redis
        self.store = store
        self.registry = Registry(redis)
        self.incarnation = f"{role}-{secrets.token_hex(6)}"
        self.failed: dict[str, GaveUp] = {}
        self.asked_to_end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end)
        self._started_at = time.time()

    def _end(self) -> None:
        if not self.asked_to_end.is_set():
            self.asked_to_end.set()
            # A SELECT, or a store that doesn't answer, may hold a thread, which the interpreter would wait for.
            last = threading.Timer(END_SECONDS, os._exit, (0,))
            last.daemon = True
            last.start()

    async def present(self) -> None:
        """Say each second that this service is there, and at its end that it is gone."""
        lag = LoopLag()
        try:
            while True:
                service = Service(
                    incarnation=self.incarnation,
                    role=self.role,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    started_at=self._started_at,
                    failed=dict(self.failed),
                    leaving=self.asked_to_end.is_set(),
                    loop_lag_seconds=round(lag.longest(), 4),
                )
                with suppress(Unavailable):  # our absence is what tells
                    await self.registry.announce_presence(service)
                await asyncio.sleep(1.0)
        finally:
            lag.end()
            await finished(self.registry.withdraw_presence(self.incarnation))

    async def serve(self, join: Join) -> None:
        """Follow the announced epochs until the process is asked to end."""
        running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(join, running, group))
            present = group.create_task(self.present())
            await self.asked_to_end.wait()
            await self._released(running)
            for task in (following, *(member for _, member in running.values()), present):
                task.cancel()

    async def _follow(
        self, join: Join, running: dict[str, tuple[int, asyncio.Task[None]]], group: asyncio.TaskGroup
    ) -> None:
        while True:
            with suppress(Unavailable):
                epochs = await self.registry.epochs()
                for pipeline, epoch in epochs.items():
                    known = running.get(pipeline)
                    if known is not None and known[0] >= epoch:
                        continue
                    if known is not None:
                        known[1].cancel()
                        await asyncio.wait([known[1]])
                    task = group.create_task(self._member(join, pipeline, epoch))
                    running[pipeline] = (epoch, task)
            await asyncio.sleep(TICK_SECONDS)

    async def _released(self, running: Mapping[str, tuple[int, asyncio.Task[None]]]) -> None:
        """Wait until no epoch needs this service: its leader takes a checkpoint and begins the next one without it.

        Not longer than LEAVE_SECONDS, and not if nobody is there to lead.
        """
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(LEAVE_SECONDS):
                while any(not task.done() for _, task in running.values()):
                    there = await self.registry.services()
                    if not any(one.role == "enumerator" and not one.leaving for one in there):
                        return
                    await asyncio.sleep(TICK_SECONDS)

    async def _member(self, join: Join, pipeline: str, epoch: int) -> None:
        try:
            store = self.store.pipeline(pipeline)
            entry = await in_store(store.entry, epoch)
            if not isinstance(entry, EpochEntry):
                raise ProtocolError(f"epoch {epoch} of {pipeline} is announced but slot {epoch} holds no epoch entry")
            members = entry.members.readers if self.role == "reader" else entry.members.writers
            if self.incarnation not in members:
                return
            log.info("%s joins epoch %d of %s as %s", self.incarnation, epoch, pipeline, self.role)
            await join(store, entry, members.index(self.incarnation))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not isinstance(error, CutlineError):
                log.exception("%s failed in epoch %d of %s", self.incarnation, epoch, pipeline)
            else:
                log.warning("%s leaves epoch %d of %s: %s", self.incarnation, epoch, pipeline, error)
            self.failed[pipeline] = gave_up(epoch, error)


def gave_up(epoch: int, error: Exception) -> GaveUp:
    """What there is to tell of an epoch that ended by this error."""
    if isinstance(error, CutlineError):
        halts = isinstance(error, (ProtocolError, SourceLost))
        return GaveUp(epoch=epoch, cause=str(error) or type(error).__name__, halts=halts)
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    cause = f"Unexpected {type(error).__name__} ({error}){notes}: a bug of Cutline; report it with the service's log"
    return GaveUp(epoch=epoch, cause=cause, halts=True)


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Ask Redis for this at an end, in a task that nobody has cancelled (`wire` heeds that); it may be away."""
    with suppress(Unavailable):
        await asyncio.create_task(work)


def raise_open_files() -> None:
    """Let this process open as many files as its hard limit allows; the soft one is 1,024 nearly everywhere."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a service process until it is ended; a wrong configuration is told on stderr and exits with 2."""
    try:
        level = Environment.read().log_level
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        raise_open_files()
        asyncio.run(main())
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        sys.exit(2)
