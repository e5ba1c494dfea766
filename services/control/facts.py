"""Gathers what metrics and alerts start from: every pipeline's status, the services, Redis's memory, local disks."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress
from dataclasses import replace

from cutline.common.errors import CutlineError, Unavailable
from cutline.common.mesh.presence import Registry
from cutline.common.store.lives import Life
from cutline.common.store.store import Store
from cutline.common.threads import Threads
from cutline.services.control.metrics import Disk, Facts
from cutline.services.control.store_calls import in_store

_LOCAL = "file://"
_DISKS, DISKS_SECONDS = Threads("disks"), 2.0
"""A lake's folder may be on a volume that hangs, and no other call may wait for that."""


async def gathered(registry: Registry, store: Store) -> Facts:
    """Read the registry and the store. If one of them does not answer, the facts say so, and name no pipeline."""
    unknown = Facts(statuses={}, services=[], now=time.time())
    try:
        lives = await in_store(store.lives)
        disks = await _looked_at(store, lives)
    except Unavailable as error:
        lives, disks, unknown = [], (), replace(unknown, store_away=error.cause)
    try:
        return replace(
            unknown,
            statuses={life.name: await registry.status(life.key) for life in lives},
            services=await registry.services(),
            memory=await registry.memory(),
            disks=disks,
            lives={life.name: life for life in lives},
        )
    except Unavailable as error:
        return replace(unknown, disks=disks, redis_away=error.cause)


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
