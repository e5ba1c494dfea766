"""OpenLineage events, one for each publication: which source tables went into which snapshots of lake tables.

An event is a complete run of the job named as the pipeline. Its id is made from the pipeline and the publication, so a
repeated event is the same run. Redis keeps the last publication that was sent (`cutline:lineage`); without that the
newest one is the first.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx
from redis.asyncio import Redis

from cutline.common.config.environment import Environment
from cutline.common.errors import redacted
from cutline.common.mesh.redis import answered
from cutline.common.store.lives import Key, Life
from cutline.common.store.records import Publication
from cutline.common.store.store import PipelineStore, Store
from cutline.common.web import Barred, checked_peer
from cutline.services.control.metrics import Facts
from cutline.services.control.store_calls import in_store
from cutline.spark_writer.sinks.iceberg.works import snapshot_of

KEY = "cutline:lineage"
PRODUCER = f"urn:cutline:{version('cutline')}"
TIMEOUT_SECONDS = 5.0
LOOK_SECONDS = 5.0
"""A look ends after so long; the next one goes on."""
GIVE_UP_SECONDS = 600.0
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_RUN_FACET = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunFacet"
_VERSION = f"{_SPEC}/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
_JOB_TYPE = f"{_SPEC}/facets/2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
log = logging.getLogger("cutline.lineage")


class Lineage:
    """One control service's events, while it holds the lease of duties.py."""

    def __init__(self, url: str, redis: Redis, store: Store, *, key: str | None = None) -> None:
        """Take the receiver's address and, if it wants one, its bearer token."""
        self._url, self._key = url, key
        self._redis, self._store = redis, store
        self._sent: dict[Key, int] = {}  # life of a pipeline -> the last publication that was sent
        self._failing: dict[Key, float] = {}  # since when its next event is not taken

    @classmethod
    def configured(cls, environment: Environment, redis: Redis, store: Store) -> Lineage | None:
        """Return the sender of the settings, None if there is none."""
        if environment.lineage_url is None:
            return None
        return cls(environment.lineage_url, redis, store, key=environment.lineage_key)

    async def take_over(self) -> None:
        """Read what an earlier holder of the lease has sent. Raises Unavailable."""
        async with answered("read what lineage was sent"):
            kept = await self._redis.hgetall(KEY)
        self._sent = {Key(key.decode() if isinstance(key, bytes) else key): int(n) for key, n in kept.items()}

    async def give_up(self) -> None:
        """Nothing runs between two looks."""

    async def look(self, facts: Facts) -> None:
        """Send the events of new publications. Raises Unavailable."""
        until = time.monotonic() + LOOK_SECONDS
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, headers=headers) as client:
            for name, status in facts.statuses.items():
                published = status.spark_writer.published
                if published is None or published <= self._sent.get(facts.lives[name].key, 0):
                    continue
                pipeline = self._store.open(facts.lives[name])
                for n in await in_store(self._next, pipeline, published):
                    if time.monotonic() > until or not await self._send(client, pipeline, n):
                        break

    def _next(self, pipeline: PipelineStore, newest: int) -> list[int]:
        sent = self._sent.get(pipeline.key)
        return [newest] if sent is None else [n for n in pipeline.publication_numbers() if sent < n <= newest]

    async def _send(self, client: httpx.AsyncClient, pipeline: PipelineStore, n: int) -> bool:
        """Send the event of a publication; return whether the next one may follow."""
        name, key = pipeline.name, pipeline.key
        body = await in_store(_event, pipeline, n, self._sent.get(key))
        failure = await self._failure(client, body) if body is not None else None
        if failure is not None:
            since = self._failing.setdefault(key, time.monotonic())
            log.warning("pipeline %s: lineage of %d was not taken by %s: %s", name, n, redacted(self._url), failure)
            if time.monotonic() - since < GIVE_UP_SECONDS:
                return False
        self._failing.pop(key, None)
        self._sent[key] = n
        async with answered("keep what lineage was sent"):
            await self._redis.hset(KEY, key, str(n))
        return True

    async def _failure(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), client.stream(
                "POST", self._url, json=body, extensions={"trace": checked_peer}
            ) as answer:
                return None if answer.is_success else f"it answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, Barred, TimeoutError) as error:
            return str(error) or type(error).__name__


def _event(pipeline: PipelineStore, n: int, before: int | None) -> dict[str, Any] | None:
    """Return the event of a publication; None if it changed no table, or is no longer in the store."""
    record, definition = pipeline.publication(n), pipeline.definition()
    if record is None or definition is None:
        return None
    last = pipeline.publication(before) if before is not None else None
    return event(pipeline.life, record, last, definition)


def event(
    life: Life, record: Publication, last: Publication | None, definition: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the OpenLineage event of a publication, with the tables whose snapshot differs from that in `last`."""
    moved = {}
    for name, table in record.tables.items():
        before = last.tables.get(name) if last is not None else None
        shown = None if before is None or before.main is None else before.main.content
        if table.main is not None and table.main.content != shown:
            moved[name] = snapshot_of(table.main.content)
    if not moved:
        return None
    derived = {name: found.reads for name in moved if (found := record.tables[name].derived) is not None}
    read = sorted({each for reads in derived.values() for each in reads})
    source, warehouse = definition["source"], str(definition["sink"]["warehouse"])
    origin = f"mysql://{source['host']}:{source['port']}"
    lake = warehouse if "://" in warehouse else f"file://{warehouse}"
    position = None if record.position is None else str(record.position)
    return {
        "eventType": "COMPLETE",
        "eventTime": datetime.fromtimestamp(record.published_at, UTC).isoformat(),
        "producer": PRODUCER,
        "schemaURL": _EVENT,
        "run": {
            "runId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"cutline:{origin}/{life.key}/{record.n}")),
            "facets": {
                "cutline_publication": {
                    "_producer": PRODUCER,
                    "_schemaURL": _RUN_FACET,
                    "checkpoint": record.n,
                    "savepoint": record.kept,
                    "position": position,
                    "sourceTime": record.source_time,
                }
            },
        },
        "job": {
            "namespace": "cutline",
            "name": life.name,
            "facets": {
                "jobType": {
                    "_producer": PRODUCER,
                    "_schemaURL": _JOB_TYPE,
                    "processingType": "STREAMING",
                    "integration": "CUTLINE",
                    "jobType": "PIPELINE",
                }
            },
        },
        "inputs": [
            *({"namespace": origin, "name": name} for name in moved if name not in derived),
            *({"namespace": lake, "name": name} for name in read),
        ],
        "outputs": [
            {
                "namespace": lake,
                "name": name,
                "facets": {
                    "version": {"_producer": PRODUCER, "_schemaURL": _VERSION, "datasetVersion": str(snapshot)}
                },
            }
            for name, snapshot in moved.items()
        ],
    }
