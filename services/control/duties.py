"""What one of the control services does for all of them: writes the history of conditions, posts alerts, sends traces
and lineage.

A lease in Redis chooses which one. While Redis does not answer, its last holder goes on, since that is when people
wait for an alert. A receiver that hangs delays its own job alone: each looks in a task of its own, and misses what is
read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from redis.asyncio import Redis

from cutline.common.config.environment import Environment
from cutline.common.errors import CutlineError, Unavailable
from cutline.common.mesh.host import finished
from cutline.common.mesh.lease import Lease, lease_name
from cutline.common.mesh.presence import Registry
from cutline.common.store.lives import Key
from cutline.common.store.store import Store
from cutline.services.control.facts import gathered
from cutline.services.control.lineage import Lineage
from cutline.services.control.metrics import Facts
from cutline.services.control.standing import Standing
from cutline.services.control.traces import Traces
from cutline.services.control.webhook import Webhook

LOOK_SECONDS = 10.0
LEASE_SECONDS = 30.0
LEASE = lease_name(Key("(control)"))  # no pipeline has such a name
log = logging.getLogger("cutline.control")


class Job(Protocol):
    """What the holder of the lease does."""

    async def take_over(self) -> None:
        """Called once the lease is ours, before the first look; raises Unavailable to be called again."""

    async def look(self, facts: Facts) -> None:
        """Called with every reading of the registry, as long as the lease is ours."""

    async def give_up(self) -> None:
        """Called when the lease is lost, and at the end."""


def jobs_of(environment: Environment, redis: Redis, store: Store) -> list[Job]:
    """Return the jobs that the settings ask for. ConfigError if one needs packages that are not installed."""
    standing = Standing(Registry(redis), store)
    jobs: list[Job | None] = [
        Recorder(standing),
        Webhook.configured(environment, redis, standing),
        Lineage.configured(environment, redis, store),
        Traces.configured(environment, store),
    ]
    return [job for job in jobs if job is not None]


class Recorder:
    """Writes what began and what ended into the histories of the conditions."""

    def __init__(self, standing: Standing) -> None:
        """Take what judges."""
        self._standing = standing

    async def take_over(self) -> None:
        """Go on with the histories as they are."""

    async def look(self, facts: Facts) -> None:
        """Write what has changed; while the store does not answer, it waits in memory."""
        with suppress(Unavailable):
            await self._standing.note(facts, await self._standing.look(facts))

    async def give_up(self) -> None:
        """Leave the rest to the next holder of the lease."""


async def watch(registry: Registry, store: Store, redis: Redis, jobs: Sequence[Job], incarnation: str) -> None:
    """Do these jobs until cancelled."""
    lease = Lease(redis, LEASE, incarnation, LEASE_SECONDS)
    held, looks = False, _Looks(jobs)
    try:
        while True:
            try:
                acquired = await lease.acquire()
            except CutlineError:  # /readyz reports it
                acquired = held
            if held and not acquired:
                await looks.end()
            held = await _changed(jobs, held, acquired)
            if held:
                looks.begin(await gathered(registry, store))
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await looks.end()
        for job in jobs:
            await job.give_up()
        await finished(lease.release())


async def _changed(jobs: Sequence[Job], held: bool, acquired: bool) -> bool:
    """Tell the jobs that the lease was taken or lost; return whether they may look."""
    if acquired and not held:
        with suppress(Unavailable):
            for job in jobs:
                await job.take_over()
            return True
        acquired = False
    if not acquired:
        for job in jobs:
            await job.give_up()
    return acquired


class _Looks:
    """The looks that go on, at most one of each job."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, facts: Facts) -> None:
        """Have each job look, except those whose last look goes on."""
        for number, job in enumerate(self._jobs):
            if number not in self._tasks or self._tasks[number].done():
                self._tasks[number] = asyncio.create_task(_guarded(job, facts))

    async def end(self) -> None:
        """Break off what goes on."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()


async def _guarded(job: Job, facts: Facts) -> None:
    """Let a job look; its failure must not stop the others."""
    try:
        await job.look(facts)
    except CutlineError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("unexpected error in %s", type(job).__name__)
