"""How members are dismissed and a pipeline is deleted: by tries, until store and Redis have answered."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from cutline.common.causes import Cause
from cutline.common.errors import Unavailable
from cutline.common.mesh.ports import Ports
from cutline.common.store.lives import Life
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.commanding import Commanding

log = logging.getLogger("cutline.enumerator")
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts work that ends with this leader."""


class Dismissal:
    """The dismissal of the members of old epochs, whose streams are removed."""

    def __init__(self, store: PipelineStore, ports: Ports) -> None:
        self._store, self._ports = store, ports
        self._before = 0  # epochs below it must have no members
        self._task: asyncio.Task[None] | None = None

    def order(self, before: int, spawn: Spawn) -> None:
        """Dismiss the members of the epochs below `before`."""
        self._before = max(self._before, before)
        if self._task is None or self._task.done():
            self._task = spawn(self._run())

    async def _run(self) -> None:
        """Remove the streams of the epochs below `_before`, by tries until Redis has answered."""
        before, pause = 0, 0.2
        while before < self._before:
            trying = self._before
            try:
                await self._ports.streams.drop(self._store.key, before=trying)
                before = trying
            except Unavailable as error:
                log.warning("pipeline %s: members are not yet dismissed: %s; trying again", self._store.name, error)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)


class Deletion:
    """The deletion of one pipeline. `showing` is held while a status is written."""

    def __init__(self, store: PipelineStore, ports: Ports, commanding: Commanding, showing: asyncio.Lock) -> None:
        self._store, self._ports, self._commanding, self._showing = store, ports, commanding, showing
        self.over = asyncio.Event()  # the pipeline is deleted
        self.forgotten = False  # Redis has nothing of it any more
        self.failed: Cause | None = None  # why the last try failed
        self._task: asyncio.Task[None] | None = None

    def order(self, spawn: Spawn) -> None:
        """Delete the pipeline, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = spawn(self._run())

    async def _run(self) -> None:
        pause = 1.0
        while True:
            try:
                await self._commanding.delete()
                async with self._showing:  # so that no status comes after it
                    self.forgotten = True
                    await forget(self._ports, self._store.life)
                await self._ports.pools.store.call(self._store.end)
                self.over.set()
                log.info("pipeline %s is deleted", self._store.name)
                return
            except Unavailable as error:
                self.failed = error.cause
                name = self._store.name
                log.warning("pipeline %s is not yet deleted: %s; trying again in %.0f s", name, error, pause)
                await asyncio.sleep(pause)


async def forget(ports: Ports, life: Life) -> None:
    """Remove everything about a life that has ended from Redis."""
    await ports.notes.forget(life.key)
    await ports.streams.drop(life.key, before=sys.maxsize)
