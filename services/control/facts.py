"""Gathers what metrics and alerts start from: every pipeline's status, the services, Redis's memory, local disks."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import suppress

from cutline.common.errors import CutlineError
from cutline.common.mesh.presence import Registry
from cutline.common.store.store import Store
from cutline.services.control.metrics import Disk, Facts

_LOCAL = "file://"


async def gathered(registry: Registry, store: Store) -> Facts:
    """Read the registry and the store. Raises Unavailable if one of them does not answer."""
    names = await asyncio.to_thread(store.pipelines)
    return Facts(
        statuses={name: await registry.status(name) for name in names},
        services=await registry.services(),
        memory=await registry.memory(),
        disks=await asyncio.to_thread(_disks, store, names),
        now=time.time(),
    )


def _disks(store: Store, pipelines: list[str]) -> tuple[Disk, ...]:
    """The disks of the store and of the lakes, where they are folders that this process sees."""
    if not store.url.startswith(_LOCAL):
        return ()
    folders = [store.url.removeprefix(_LOCAL)]
    for name in pipelines:
        with suppress(CutlineError):  # another part of the API reports a definition that can't be read
            warehouse = str(((store.pipeline(name).definition() or {}).get("sink") or {}).get("warehouse") or "")
            if warehouse.startswith("/") or warehouse.startswith(_LOCAL):
                folders.append(warehouse.removeprefix(_LOCAL))
    disks = []
    for folder in dict.fromkeys(folders):
        with suppress(OSError):  # the control service may have no such volume
            usage = shutil.disk_usage(folder)
            disks.append(Disk(folder=folder, free_bytes=usage.free, size_bytes=usage.total))
    return tuple(disks)
