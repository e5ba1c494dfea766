"""Gathers what metrics and alerts start from: every pipeline's status, the services, Redis's memory, local disks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError, Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.common.store.lives import Life
from cutline.common.store.store import Store
from cutline.common.threads import Threads
from cutline.common.waits import Party
from cutline.services.control.metrics import Disk, Facts
from cutline.services.control.store_calls import in_store

_LOCAL = "file://"
FULL_BYTES = 1 << 20
_DISKS, DISKS_SECONDS = Threads("disks"), 2.0
"""A lake's folder may be on a volume that hangs, and no other call may wait for that."""


async def gathered(registry: Registry, store: Store) -> Facts:
    """Read the registry and the store. If one of them does not answer, the facts say so, and name no pipeline."""
    facts = await shared(registry, store)
    try:
        return with_statuses(facts, {life: await registry.status(life.key) for life in facts.lives.values()}, store)
    except Unavailable as error:
        return replace(facts, redis_away=error.cause)


async def shared(registry: Registry, store: Store) -> Facts:
    """Read what concerns all pipelines: the services, Redis's memory, disks, and which pipelines there are."""
    facts = Facts(statuses={}, services=[], now=time.time())
    try:
        lives = await in_store(store.lives)
        disks = await _looked_at(store, lives)
        facts = replace(facts, lives={life.name: life for life in lives}, disks=disks)
    except Unavailable as error:
        facts = replace(facts, store_away=error.cause)
    facts = replace(facts, store_full=full(store, facts.disks, ()))
    try:
        return replace(facts, services=await registry.services(), memory=await registry.memory())
    except Unavailable as error:
        return replace(facts, redis_away=error.cause)


def with_statuses(facts: Facts, statuses: Mapping[Life, PipelineStatus], store: Store) -> Facts:
    """The facts with what the services of these pipelines say; without it while Redis is away."""
    if facts.redis_away is not None:
        return facts
    return replace(
        facts,
        statuses={life.name: status for life, status in statuses.items()},
        lives={life.name: life for life in statuses},
        store_full=full(store, facts.disks, statuses.values()),
    )


def full(store: Store, disks: Iterable[Disk], statuses: Iterable[PipelineStatus]) -> Cause | None:
    """Why the store takes no more: its disk has no room, or a service says that a write failed for that."""
    for disk in disks:
        if store.url == f"{_LOCAL}{disk.folder}" and disk.free_bytes < FULL_BYTES:
            sentence = f"the disk that holds the store {disk.folder} is full ({disk.free_bytes:,} bytes are free)"
            return Cause(Code.DISK_FULL, sentence, "free space there, or enlarge the disk")
    for status in statuses:
        waits = [part.waiting_for for part in status.members().values() if part.waiting_for is not None]
        writing = [wait for wait in waits if wait.party == Party.STORE or wait is status.enumerator.waiting_for]
        for wait in writing:
            if wait.cause is not None and wait.cause.code == Code.DISK_FULL:
                return wait.cause
    return None


async def _looked_at(store: Store, lives: list[Life]) -> tuple[Disk, ...]:
    """The disks; none while one of them does not answer."""
    try:
        async with asyncio.timeout(DISKS_SECONDS):
            return await _DISKS.call(_disks, store, lives)
    except TimeoutError:
        return ()


def _disks(store: Store, lives: list[Life]) -> tuple[Disk, ...]:
    """The disks of the store and of the lakes, where they are folders that this process sees."""
    if not store.url.startswith(_LOCAL):
        return ()
    folders = [store.url.removeprefix(_LOCAL)]
    for life in lives:
        with suppress(CutlineError):  # another part of the API reports a definition that can't be read
            warehouse = str(((store.open(life).definition() or {}).get("sink") or {}).get("warehouse") or "")
            if warehouse.startswith("/") or warehouse.startswith(_LOCAL):
                folders.append(warehouse.removeprefix(_LOCAL))
    disks = []
    for folder in dict.fromkeys(folders):
        with suppress(OSError):  # the control service may have no such volume
            usage = shutil.disk_usage(folder)
            disks.append(Disk(folder=folder, free_bytes=usage.free, size_bytes=usage.total))
    return tuple(disks)
