"""What one of the control services does for all of them: posts alerts, sends traces and lineage.

A lease in Redis chooses which one. While Redis does not answer, its last holder goes on, since that is when people
wait for an alert. Nothing runs here if none of the three is set up.
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
    jobs: list[Job | None] = [
        Webhook.of(environment, redis),
        Lineage.of(environment, redis, store),
        Traces.of(environment, store),
    ]
    return [job for job in jobs if job is not None]


async def watch(registry: Registry, store: Store, redis: Redis, jobs: Sequence[Job], incarnation: str) -> None:
    """Do these jobs until cancelled; return at once if there is none."""
    if not jobs:
        return
    lease = Lease(redis, LEASE, incarnation, LEASE_SECONDS)
    held = False
    try:
        while True:
            try:
                acquired = await lease.acquire()
            except CutlineError:  # /readyz reports it
                acquired = held
            held = await _changed(jobs, held, acquired)
            if held:
                facts = await gathered(registry, store)
                for job in jobs:
                    await _guarded(job, facts)
            await asyncio.sleep(LOOK_SECONDS)
    finally:
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


async def _guarded(job: Job, facts: Facts) -> None:
    """Let a job look; its failure must not stop the others."""
    try:
        await job.look(facts)
    except CutlineError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("unexpected error in %s", type(job).__name__)
