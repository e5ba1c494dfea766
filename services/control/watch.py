"""What the control service knows of each pipeline: its status in Redis, kept for a fraction of a second, and what it
has read of the store.

Many requests at one time share one read. Nothing is read for a pipeline that nobody asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cutline.common.causes import Cause
from cutline.common.errors import Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.status.pipeline_status import (
    CheckpointStatus,
    EnumeratorStatus,
    PipelineStatus,
    SparkWriterStatus,
    TableStatus,
)
from cutline.common.store.condition_log import ConditionLog
from cutline.common.store.lives import Key, name_of
from cutline.common.store.store import PipelineStore, Store
from cutline.services.control.history import History
from cutline.services.control.published import Published
from cutline.services.control.store_calls import in_store
from cutline.services.control.window import Checkpoint, Window

STATUS_SECONDS = 0.3
STORE_SECONDS = 0.5
CURRENT_SECONDS = 5.0
"""A leader writes its status twice a second: what is older than this is not current."""
_PIPELINES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A pipeline's status parts, and its tables; `read_at` in seconds since 1970. `away`: why Redis gave no answer;
    then the parts have what the store knows."""

    parts: PipelineStatus
    tables: Mapping[str, TableStatus]
    read_at: float
    away: Cause | None = None
    tables_at: float | None = None
    """Set if no leader has told of the tables: when the checkpoint was written that they are of."""

    @property
    def leader(self) -> EnumeratorStatus:
        """The enumerator's part."""
        return self.parts.enumerator

    @property
    def spark(self) -> SparkWriterStatus:
        """The Spark writer's part."""
        return self.parts.spark_writer

    @property
    def as_of(self) -> float | None:
        """When the leader wrote its part, or the checkpoint that the tables are of; in seconds since 1970."""
        return self.tables_at if self.leader.at is None else self.leader.at

    @property
    def current(self) -> bool:
        """Whether a leader reports now."""
        return self.tables_at is None and self.as_of is not None and self.read_at - self.as_of <= CURRENT_SECONDS


class PipelineWatch:
    """One pipeline, of one life. `window` and `published` are others after its journal went back to an older one."""

    def __init__(
        self,
        registry: Registry,
        open_store: Callable[[], PipelineStore],
        conditions: tuple[ConditionLog, ConditionLog],
    ) -> None:
        """Nothing is read before it is asked for. `open_store` opens the pipeline's part of the store; `conditions`:
        the history of its own, and of those that concern all."""
        self._conditions = conditions
        self._registry = registry
        self._open_store = open_store
        self._status: Status | None = None
        self._status_at = float("-inf")
        self._reading = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._finding = asyncio.Lock()
        self._telling = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        self.store = self._open_store()
        self.window = Window(self.store)
        self.published = Published(self.store)
        self._history = History(self.store, self.window, self._conditions)
        self._window_at = self._published_at = self._history_at = float("-inf")

    async def status(self) -> Status:
        """The status, at most 0.3 s old; while Redis does not answer, what the store knows. Raises Unavailable if that
        does not answer either."""
        async with self._reading:
            if self._status is None or time.monotonic() - self._status_at >= STATUS_SECONDS:
                self._status = await self.status_now()
                self._status_at = time.monotonic()
            return self._status

    async def status_now(self) -> Status:
        """The status as `status`, of this moment."""
        away = None
        try:
            parts = await self._registry.status(self.store.key)
        except Unavailable as error:
            parts, away = await self._stored(), error.cause
        tables, at = await self.tables(parts)
        return Status(parts=parts, tables=tables, read_at=time.time(), tables_at=at, away=away)

    async def _stored(self) -> PipelineStatus:
        """What the newest checkpoint and publication say of what services tell otherwise."""
        window = await self.journal()
        newest = window.checkpoints[next(reversed(window.checkpoints))] if window.checkpoints else None
        await in_store(self.published.refresh, None)
        shown = self.published.newest
        return PipelineStatus(
            enumerator=EnumeratorStatus()
            if newest is None
            else EnumeratorStatus(
                epoch=newest.epoch,
                checkpoint=CheckpointStatus(number=newest.slot, completed_at=newest.written_at),
                source_time=newest.source_time,
            ),
            spark_writer=SparkWriterStatus()
            if shown is None
            else SparkWriterStatus(
                published=shown.n, published_at=shown.published_at, source_time=shown.source_time
            ),
        )

    async def tables(self, parts: PipelineStatus) -> tuple[Mapping[str, TableStatus], float | None]:
        """The tables of these status parts. If they have none (Redis was emptied, and no leader is there): those of the
        newest checkpoint, and when that was written."""
        if parts.tables:
            return parts.tables, None
        with suppress(Unavailable):
            window = await self.journal()
            if window.checkpoints:
                newest = window.checkpoints[next(reversed(window.checkpoints))]
                tables = {
                    name: TableStatus(
                        phase=table.phase, since=table.since, generation=table.generation, cause=table.cause
                    )
                    for name, table in window.tables.items()
                }
                return tables, newest.written_at
        return {}, None

    async def journal(self) -> Window:
        """The newest entries of the journal, at most 0.5 s old. Raises Unavailable if the store does not answer."""
        async with self._looking:
            if time.monotonic() - self._window_at >= STORE_SECONDS:
                if not await in_store(self.window.refresh):
                    self._begin()
                    await in_store(self.window.refresh)
                self._window_at = time.monotonic()
            return self.window

    async def savepoints(self) -> list[Checkpoint]:
        """The kept checkpoints of the whole journal, newest first. The first call reads the journal's older entries."""
        await self.journal()
        async with self._finding:
            return await in_store(self.window.savepoints)

    async def publications(self) -> Published:
        """The newest publication, at most 0.5 s old. Raises Unavailable if Redis or the store does not answer."""
        expected = (await self.status()).spark.published
        async with self._finding:
            if time.monotonic() - self._published_at >= STORE_SECONDS:
                await in_store(self.published.refresh, expected)
                self._published_at = time.monotonic()
            return self.published

    async def history(self) -> History:
        """All events, at most 0.5 s old. Raises Unavailable if the store does not answer."""
        await self.journal()
        published = None
        with suppress(Unavailable):  # of Redis: the store has all events
            published = (await self.status()).spark.published
        async with self._telling:
            history = self._history
            if time.monotonic() - self._history_at >= STORE_SECONDS:
                await in_store(history.refresh, published)
                self._history_at = time.monotonic()
            return history


class Watches:
    """The watch of each pipeline that was asked for."""

    def __init__(self, registry: Registry, store: Store) -> None:
        """Take an open registry and a store."""
        self._registry, self._store = registry, store
        self._watches: dict[Key, PipelineWatch] = {}

    def find(self, pipeline: PipelineStore) -> PipelineWatch:
        """The watch of a defined pipeline. Of another one that had its name nothing is known here."""
        found = self._watches.get(pipeline.key)
        if found is None:
            while len(self._watches) >= _PIPELINES:
                del self._watches[next(iter(self._watches))]
            open_store = partial(self._store.open, pipeline.life)
            conditions = self._store.conditions(pipeline.life), self._store.conditions(None)
            found = self._watches[pipeline.key] = PipelineWatch(self._registry, open_store, conditions)
        return found

    def forget(self, pipeline: str) -> None:
        """The pipeline of this name is deleted."""
        for key in [key for key in self._watches if name_of(key) == pipeline]:
            del self._watches[key]
