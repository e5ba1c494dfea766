"""Several Spark writers of one store: each pipeline is led by one of them, the others stand by.

**A lease for each pipeline** (`cutline:lease:{name}.{id}:spark_writer` in Redis, 5 s, renewed each half second) says
who leads it. Each Spark writer looks at presence and leases, and computes by the same rule (shares.py) to whom each
pipeline belongs. It takes free leases of its own share; it gives away those that belong to another, once nothing is
applied that is not published, and goes on leading where a full Redis refuses that. A Spark writer has a share once its
Spark runs, and none once it was asked to end. If one is killed, or its JVM or its store hangs for HUNG_SECONDS, its
leases and its presence lapse after 5 s, and the others take its pipelines.

**The lease is liveness; the claim w is the fence** (apply.py). Two Spark writers may be at work on a pipeline: one that
was suspended past its lease goes on when it wakes, until it sees its loss and ends at its next step. What it makes
meanwhile is on its own branches, and its publication is refused, or it is right. But a start claims a number above
all others and ends the work of those, and upkeep removes what nobody names any more: neither is begun unless the lease
is ours by all that is known (`Lead.is_sure`), which after a suspension takes a renewal.

**While Redis does not answer** a Spark writer goes on with the pipelines that it leads. Nobody can take their leases
then; and if Redis is only cut off from this one, another takes over after 5 s, publishes, and ends the work here as it
ends that of a suspended one. It begins nothing new: no other pipeline, no next start after an error, no upkeep. Little
is lost by that: without Redis the mesh makes no checkpoints.

**After Redis was emptied** leaders take their leases again at their next look, for which one may have to wait out a
connection's time-out. So a free lease is taken by another only at the second look that finds it free, and only once
Redis has answered for SETTLE_SECONDS and kept our own presence.

**Requests** to a Spark writer stay in Redis until they are carried out, so that the next leader finds what is left of
them. After a crash one may be carried out twice, which does no harm.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from redis.asyncio import Redis

from cutline.common import logs
from cutline.common.errors import ConfigError, CutlineError, NoRoom, Unavailable
from cutline.common.mesh.lease import Lease, lease_name, owners, renew
from cutline.common.mesh.log_lines import kept_here
from cutline.common.mesh.presence import Registry, Service
from cutline.common.mesh.usage import Usage
from cutline.common.status.pipeline_status import SPARK_WRITER, SparkWriterStatus
from cutline.common.store.lives import Key, name_of
from cutline.spark_writer.lead import Lead
from cutline.spark_writer.shares import shared

logger = logging.getLogger("cutline.spark_writer")
LEASE_SECONDS = 5.0
LOOK_SECONDS = 0.5
"""A look renews the leases: well over three times in their time to live."""
HUNG_SECONDS = 15.0
"""A Spark writer whose JVM or store keeps a call for so long, or whose store fails so long, lets its leases lapse."""
SETTLE_SECONDS = 3.0
"""More than a time-out of `__main__.py` and a look together."""
KEEP_SECONDS = 30.0
"""A leader goes on for so long after Redis refused a hand-over."""
AGAIN_SECONDS = 10.0
"""An unchanged status is written again after this time."""


class Replica:
    """This process among the Spark writers of its store: its presence, its leases, the status of what it leads."""

    def __init__(self, redis: Redis, stop: threading.Event) -> None:
        """Take a client of `mesh.redis.connect`; `stop` is set once the process was asked to end."""
        self._redis = redis
        self._registry = Registry(redis)
        self._stop = stop
        self._service = Service(
            incarnation=f"spark_writer-{secrets.token_hex(6)}",
            role=SPARK_WRITER,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
            starting=True,
        )
        self._usage, self._lines = Usage(), kept_here()
        logs.note_service(self._service.incarnation)
        self._pipelines: tuple[Key, ...] | None = None
        self._served_at = 0.0
        self._leads: dict[Key, Lead] = {}
        self._shown: dict[Key, tuple[SparkWriterStatus | None, float]] = {}
        self._given: dict[Key, set[bytes]] = {}  # the requests that a lead's thread has got
        self._free: set[Key] = set()
        self._settled_at = self._keeps_until = float("-inf")
        self._stands_by: dict[Key, str] = {}
        self._error: Exception | None = None  # of this look
        self._logged: type[Exception] | None = None

    @property
    def incarnation(self) -> str:
        """The name of this process among the services."""
        return self._service.incarnation

    def leads(self, pipelines: Collection[Key]) -> Mapping[Key, Lead]:
        """Return the pipelines that this process leads; `pipelines` are those of the store. Spark must run by now.

        The thread of `driver.serve` calls it.
        """
        self._pipelines, self._served_at = tuple(pipelines), time.monotonic()
        return dict(self._leads)

    # Tasks

    async def run(self) -> None:
        """Announce presence, keep the leases, publish status and pass requests on, until cancelled.

        Raises ConfigError if Redis refuses the very first look; any later error is logged, and the next look comes.
        """
        looked = False
        while True:
            self._error = None
            try:
                await self._look()
                looked = True
            except Exception as error:
                if isinstance(error, ConfigError) and not looked:
                    raise
                self._error = error
                self._settled_at = time.monotonic() + SETTLE_SECONDS
            self._log()
            await asyncio.sleep(LOOK_SECONDS)

    async def leave(self) -> None:
        """Give away the leases, or release them, and withdraw the presence; call it after `driver.serve`."""
        with suppress(Exception):  # whatever is left in Redis lapses by itself
            await self._look()
        with suppress(Exception):
            for name in list(self._leads):
                await self._end(name, None)
            await self._registry.withdraw_presence(self._service.incarnation)

    def _log(self) -> None:
        """Log the look's error, if the last one had none of its kind."""
        error, kind = self._error, None if self._error is None else type(self._error)
        if error is None and self._logged is not None:
            logger.info("Redis answers again")
        elif error is not None and kind is not self._logged:
            trace = None if isinstance(error, CutlineError) else error
            logger.warning("%s; going on with what this Spark writer leads", error, exc_info=trace)
        self._logged = kind

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        """Go on with the look after an error that concerns one pipeline, or one that a full Redis causes."""
        try:
            yield
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, NoRoom):
                raise
            self._error = error

    async def _look(self) -> None:
        names, leaving = self._pipelines, self._stop.is_set()
        if names is not None and not leaving and time.monotonic() - self._served_at > HUNG_SECONDS:
            return
        await self._renew()
        with self._sparing():
            rss_bytes, cpu_seconds = self._usage.look()
            service = replace(
                self._service,
                starting=names is None,
                leaving=leaving,
                leads=tuple(sorted(self._leads)),
                rss_bytes=rss_bytes,
                cpu_seconds=cpu_seconds,
            )
            if not await self._registry.announce_presence(service):  # Redis was emptied
                self._settled_at = time.monotonic() + SETTLE_SECONDS
                self._shown.clear()
        await self._show()
        with suppress(NoRoom):
            await self._lines.flush_to(self._redis, self._service.incarnation)
        if names is not None:
            await self._share(set(names), leaving=leaving)

    async def _renew(self) -> None:
        leads, asked_at = dict(self._leads), time.monotonic()
        names = [lease_name(name, SPARK_WRITER) for name in leads]
        answers = await renew(self._redis, names, self._service.incarnation, LEASE_SECONDS)
        for (name, lead), held in zip(leads.items(), answers, strict=True):
            ours = held
            if held is None:  # it lapsed, or Redis was emptied
                with self._sparing():
                    ours = await self._lease(name).acquire()
            if ours:
                lead.sure_until = asked_at + LEASE_SECONDS
            elif ours is False:
                text = "pipeline %s: this Spark writer's lease was lost; ending after the current step"
                logger.warning(text, name_of(name))
                self._forget(name)

    async def _show(self) -> None:
        """Publish the status of each pipeline that this process leads, and pass on the requests to it."""
        for name, lead in self._leads.items():
            with self._sparing():
                await self._show_status(name, lead.status)
            while lead.handled:
                await self._registry.withdraw(name, lead.handled[0], to=SPARK_WRITER)
                self._given[name].discard(lead.handled.popleft())
        for name, requests in (await self._registry.waiting(list(self._leads), to=SPARK_WRITER)).items():
            given = self._given.setdefault(name, set())
            for request in requests:
                if request not in given:
                    given.add(request)
                    self._leads[name].requests.append(request)

    async def _show_status(self, name: Key, status: SparkWriterStatus) -> None:
        shown, shown_at = self._shown.get(name, (None, float("-inf")))
        due = time.monotonic() - shown_at >= AGAIN_SECONDS
        if status is shown and not due:
            return
        await self._registry.put_status(name, SPARK_WRITER, replace(status, leader=self._service.incarnation))
        self._shown[name] = (status, time.monotonic() if due else shown_at)

    async def _share(self, names: set[Key], *, leaving: bool) -> None:
        """Take what belongs to this process, and give away what does not."""
        ours, ordered = self._service.incarnation, sorted(names | self._leads.keys())
        found = await owners(self._redis, [lease_name(name, SPARK_WRITER) for name in ordered])
        led = {name: owner for name, owner in zip(ordered, found, strict=True) if owner is not None}
        able = {
            service.incarnation
            for service in await self._registry.services()
            if service.role == SPARK_WRITER and not service.starting and not service.leaving
        }
        # Redis may have been emptied since we announced ourselves.
        shares = shared(names, able - {ours} if leaving else able | {ours}, led)
        for name in ordered:
            with self._sparing():
                await self._decide(name, led.get(name), shares.get(name), removed=name not in names, leaving=leaving)
        self._free = names - led.keys()

    async def _decide(
        self, name: Key, owner: str | None, successor: str | None, *, removed: bool, leaving: bool
    ) -> None:
        lead, ours, now = self._leads.get(name), self._service.incarnation, time.monotonic()
        if lead is not None:
            if removed:
                lead.stop.set()
            if lead.ended.is_set() or (leaving and not lead.served):
                await self._end(name, successor)
                if removed:
                    await self._registry.drop_status(name, SPARK_WRITER)  # written since the enumerator forgot it
            elif successor not in (None, ours) and not lead.hand_over.is_set() and now >= self._keeps_until:
                logger.info("pipeline %s: it is handed over to %s after the next publication", name_of(name), successor)
                lead.hand_over.set()
        elif owner == ours:
            await (self._end(name, successor) if leaving else self._take(name))
        elif owner is None:
            if successor == ours and name in self._free and now >= self._settled_at:
                await self._take(name)
        elif owner != self._stands_by.get(name):
            logger.info("pipeline %s: led by %s; this Spark writer (%s) stands by", name_of(name), owner, ours)
            self._stands_by[name] = owner

    async def _take(self, name: Key) -> None:
        asked_at = time.monotonic()
        if await self._lease(name).acquire():
            lead = Lead(sure_until=asked_at + LEASE_SECONDS)
            with self._sparing():  # until the first report, the status is what the last leader reported
                lead.status = (await self._registry.status(name)).spark_writer
            logger.info("pipeline %s: led by this Spark writer (%s)", name_of(name), self._service.incarnation)
            self._stands_by.pop(name, None)
            self._leads[name] = lead

    async def _end(self, name: Key, successor: str | None) -> None:
        """Pass a lease on; without a successor it is free at once.

        If we are the successor, or Redis refuses, the next look finds the lease ours and takes the pipeline again.
        """
        self._forget(name)
        if successor is None:
            await self._lease(name).release()
            return
        try:
            await self._lease(name).give(successor)
        except Unavailable:
            self._keeps_until = time.monotonic() + KEEP_SECONDS
            raise

    def _forget(self, name: Key) -> None:
        """Lead a pipeline no more, if we do."""
        if name in self._leads:
            self._leads.pop(name).stop.set()
        self._shown.pop(name, None)
        self._given.pop(name, None)

    def _lease(self, name: Key) -> Lease:
        return Lease(self._redis, lease_name(name, SPARK_WRITER), self._service.incarnation, LEASE_SECONDS)
