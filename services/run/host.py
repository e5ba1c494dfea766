"""All services of this machine, for the many pipelines of one store: what `cutline up` does.

In this order:
1. If this machine lacks Java or Redis, or the store can't be written, that is said and nothing is started. Spark's jars
   are fetched. The work folder is locked.
2. Redis is started unless CUTLINE_REDIS_URL names one; then enumerators, readers, writers, Spark writers and the
   control service, each in a session of its own, its log in <workdir>/logs.
3. A service that ends is started again, after a pause that grows; one that never stays up ends all of them.
4. On Ctrl-C or SIGTERM all are asked to end, Redis last. Pipelines go on from their last checkpoints at the next start,
   so no savepoint is taken. A second Ctrl-C ends them at once.

Services die with this process, and are ended by their process ids only.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cutline.common.config.environment import Environment
from cutline.common.errors import ConfigError, redacted
from cutline.common.store.store import Store
from cutline.services.run.children import Addresses, Counts, addresses, missing_programs, service_children
from cutline.services.run.supervisor import Child, Supervisor
from cutline.services.run.workdir import locked, remove_run_file, write_run_file
from cutline.spark_writer.sinks.iceberg import catalogue

LOOK_SECONDS = 0.5


def check(store_url: str, environment: Environment) -> frozenset[str]:
    """Return which optional jars the store's pipelines need. Makes the store's folder, and writes a probe into it.

    Raises ConfigError with all that this machine lacks, Unavailable if the store does not answer. Blocks.
    """
    faults, extras, store = missing_programs(environment), frozenset[str](), Store(store_url)
    try:
        store.check()
        store.prepare()
        for definition in (store.open(life).definition() for life in store.lives()):
            extras |= catalogue.extras(definition["sink"]) if definition else frozenset()
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError.several(faults)
    return extras


class Host:
    """One `cutline up`, from its first service to the end of its last."""

    def __init__(
        self, counts: Counts, environment: Environment, *, workdir: Path, store_url: str, say: Callable[[str], None]
    ) -> None:
        """`say` takes a sentence for each event. Nothing happens before `go`."""
        self._counts, self._environment = counts, environment
        self._workdir, self._store_url, self._say = workdir, store_url, say
        self._interrupts = 0
        self._woken = asyncio.Event()

    async def go(self) -> None:
        """Run until Ctrl-C or SIGTERM. Raises the error that names the cause if a service can't stay up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted)
        with locked(self._workdir, "up"):
            temporary = self._workdir / "tmp"
            shutil.rmtree(temporary, ignore_errors=True)  # left by one that was killed: we hold the lock
            temporary.mkdir(mode=0o700)
            (self._workdir / "logs").mkdir(exist_ok=True)
            where = addresses(
                self._environment,
                self._workdir,
                store_url=self._store_url,
                readers=self._counts.readers,
                writers=self._counts.writers,
            )
            children = [*where.redis, *service_children(self._counts, self._workdir)]
            supervisor = Supervisor(children, where.environ)
            self._say_where(where, children)
            try:
                await self._supervise(supervisor, where)
                self._say("ending the services; Ctrl-C again ends them at once")
            finally:
                await supervisor.stop(hurry=lambda: self._interrupts > 1)
                remove_run_file(self._workdir)
                shutil.rmtree(temporary, ignore_errors=True)
            self._say("all services have ended; pipelines go on from their last checkpoints at the next start")

    async def _supervise(self, supervisor: Supervisor, where: Addresses) -> None:
        while not self._interrupts:
            for sentence in supervisor.tick(time.monotonic()):
                self._say(sentence)
            content = {"pid": os.getpid(), "redis_url": where.redis_url, "store_url": self._store_url}
            write_run_file(self._workdir, {**content, "api_url": where.api_url, "services": supervisor.pids()})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LOOK_SECONDS)

    def _say_where(self, where: Addresses, children: list[Child]) -> None:
        logs = self._workdir / "logs"
        self._say(f"{len(children)} processes start, logs in {logs}, store {redacted(self._store_url)}")
        environment = self._environment
        if environment.api_host != Environment().api_host and environment.api_token is None:
            self._say(f"if the API needs a token, its first start prints an admin's into {logs / 'control.log'}")
        self._say(f"API and dashboard at {where.api_url}; `cutline pipeline create FILE` makes a pipeline")

    def _interrupted(self) -> None:
        self._interrupts += 1
        self._woken.set()
