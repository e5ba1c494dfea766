"""Every pipeline of the store: starts a driver for each, ends those of deleted ones, and sweeps what these left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress

from cutline.common import logs
from cutline.common.config.environment import Environment
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import CutlineError, Unavailable
from cutline.common.mesh.host import Host
from cutline.common.mesh.loop import together
from cutline.common.mesh.ports import Ports
from cutline.common.store.lives import Key, Life
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator.driver import EnumeratorDriver
from cutline.services.enumerator.ending import forget
from cutline.services.enumerator.ports import Sources

SWEEP_SECONDS = 60.0
log = logging.getLogger("cutline.enumerator")


async def serve(host: Host, environment: Environment, sources: Sources) -> None:
    """Serve every pipeline of the store until the process is asked to end; then release their leases."""
    store, pools = host.store, host.ports.pools
    leading: dict[Key, asyncio.Task[None]] = {}

    async def look(group: asyncio.TaskGroup) -> None:
        while True:
            with suppress(Unavailable):
                lives = {life.key: life for life in await pools.store.call(store.lives)}
                for key in [key for key in leading if key not in lives]:
                    leading.pop(key).cancel()  # deleted, by this service or another
                for key, life in lives.items():
                    if key not in leading or leading[key].done():
                        leading[key] = group.create_task(lead(host, store.open(life), environment, sources))
            await asyncio.sleep(1.0)

    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await sweep_redis(host.ports, await pools.sweep.call(store.sweep))
            except (CutlineError, OSError) as error:
                log.warning("what deleted pipelines left could not be swept: %s; trying again later", error)

    async with together() as group:
        looking, present = group.create_task(look(group)), group.create_task(host.present())
        sweeping = group.create_task(sweep())
        await host.asked_to_end.wait()
        for task in (looking, sweeping, *leading.values(), present):
            task.cancel()


async def sweep_redis(ports: Ports, ended: Collection[Life]) -> None:
    """Remove what Redis still has, or has again, of lives that have ended. One look tells of which it has something, so
    a life of which nothing is left costs nothing, and none need be given up: whoever outlived it may write at any time.
    """
    noted = await ports.notes.noted() if ended else ()
    for life in ended:
        if life.key in noted:
            await forget(ports, life)


async def lead(host: Host, store: PipelineStore, environment: Environment, sources: Sources) -> None:
    """Lead this pipeline, or try to, until cancelled or until it is deleted; return after an error, to be tried
    again."""
    logs.note(pipeline=store.name)
    in_store = host.ports.pools.store.call
    try:
        version = (await in_store(store.commands.orders)).definition
        definition = await in_store(store.definition, version)
        if definition is None and await in_store(store.deleting):  # a leader before has removed all but the first
            version, definition = 1, await in_store(store.definition, 1)
        if definition is not None:
            config = PipelineConfig.from_definition(definition)
            await EnumeratorDriver(host, store, config, environment, sources, version).run()
    except Exception as error:  # a failed pipeline must not affect the others
        with suppress(CutlineError):
            if await in_store(store.has_ended):  # deleted by another leader meanwhile: what it needs is gone
                log.info("pipeline %s is deleted", store.name)
                return
        unknown = not isinstance(error, (CutlineError, OSError))
        log.error("pipeline %s stopped: %s; trying again in 5 s", store.name, error, exc_info=unknown)
        await asyncio.sleep(5.0)
