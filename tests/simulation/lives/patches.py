"""The services of tests/simulation/lives/world.py work in that world: what their modules use of time, threads, Redis,
source and lake is replaced."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.mesh import host as mesh_host
from cutline.common.mesh import loop as mesh_loop
from cutline.common.mesh import parts as mesh_parts
from cutline.common.store import commands as commands_module
from cutline.common.store import lives as lives_module
from cutline.common.store import store as store_module
from cutline.common.store.lives import Key
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator import commanding, pipelines
from cutline.services.enumerator import driver as enumerator_driver
from cutline.spark_writer import apply, serve, upkeep
from cutline.spark_writer.sinks.iceberg import purging
from tests.simulation.actors import Actors, Event
from tests.simulation.lives import members
from tests.simulation.lives.surroundings import (
    Host,
    Lake,
    Lease,
    Pool,
    Publications,
    Source,
    adopt,
    drop_branches,
    expire,
    forget,
    store_of,
)

if TYPE_CHECKING:
    from tests.simulation.lives.world import LivesWorld

RETENTION = RetentionConfig.model_construct(grace_seconds=6.0, savepoints=2, savepoint_days=None)
EXPIRE_SECONDS = 4.0
SWEEP_SECONDS = 15.0
KEPT_SECONDS = 300.0


def _streams(world: LivesWorld) -> SimpleNamespace:
    """What common/mesh/channels.py does to the streams of epochs."""

    async def create(redis: Any, names: list[tuple[Key, Any]], about: Any) -> None:
        world.visit("redis")
        for key, channel in names:
            world.streams.of[key][channel] = deque()

    async def drop(redis: Any, key: Key, *, before: int) -> int:
        world.visit("redis")
        if before > 10**9:
            world.forgets(key)
        world.streams.drop(key, before)
        return 0

    return SimpleNamespace(
        create=create, drop=drop, free=None, stream_name=lambda key, epoch, *pair: (key, (epoch, *pair))
    )


async def _memory(redis: Any) -> None:
    return None


def _thread_of(actors: Actors) -> Any:
    """`threading.Thread` of a process of the world."""

    class Thread:
        def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any) -> None:
            self._call, self._actor, self._process = partial(target, *args), None, actors.current.process  # type: ignore[union-attr]

        def start(self) -> None:
            self._actor = cast(Any, actors.start(self._process, self._call))

        def is_alive(self) -> bool:
            return self._actor is not None and not self._actor.done

        def join(self) -> None:
            while self.is_alive():
                actors.sleep(0.5)

    return Thread


@contextmanager
def simulated(world: LivesWorld) -> Iterator[None]:
    """The services work in this world."""
    actors = world.actors

    def started(store: PipelineStore, lake: Any, *, engine: str, retention: Any, clock: Any) -> Any:
        return apply.Incarnation(store, lake, engine=engine, retention=RETENTION, clock=world.clock.time)

    drawn = random.Random(world.rng.random())
    secrets = SimpleNamespace(token_hex=lambda size: drawn.randbytes(size).hex())
    threading = SimpleNamespace(Thread=_thread_of(actors), Event=partial(Event, actors))
    threads = SimpleNamespace(call=actors.in_thread)
    lead = partial(serve.Lead)
    nobody = SimpleNamespace(of=lambda _: None, sweep=lambda _: None)
    session = SimpleNamespace(start=lambda _: None, for_pipeline=lambda *_: None, first_line=str)
    new: list[tuple[Any, dict[str, Any]]] = [
        (lives_module, {"time": world.clock, "secrets": secrets, "_KEPT_SECONDS": KEPT_SECONDS}),
        (store_module, {"time": world.clock, "secrets": secrets}),
        (commands_module, {"secrets": secrets}),
        (mesh_loop, {"time": world.clock, "TICK_SECONDS": 1.0}),
        (mesh_host, {"in_store": actors.in_thread, "TICK_SECONDS": 0.5}),
        (mesh_parts, {"in_store": actors.in_thread}),
        (commanding, {
            "time": world.clock, "in_store": world.of_a_leader, "_REMOVING": SimpleNamespace(call=world.of_a_leader),
        }),
        (pipelines, {"in_store": actors.in_thread, "SWEEPING": threads, "SWEEP_SECONDS": SWEEP_SECONDS}),
        (enumerator_driver, {
            "time": world.clock, "secrets": secrets, "in_store": actors.in_thread, "SWEEPING": threads,
            "Lease": Lease, "SourceReader": Source,
            "channels": _streams(world),
            "Links": members.Links, "memory": _memory, "STATUS_SECONDS": 2.0, "TICK_SECONDS": 0.5,
        }),
        (serve, {
            "time": world.clock, "threading": threading, "session": session, "_check": lambda _: None,
            "Lake": partial(Lake, world), "catalogue": SimpleNamespace(faults=lambda *_: []), "Incarnation": started,
            "Lead": lambda **known: lead(**{name: Event(actors) for name in ("stop", "hand_over", "ended")}, **known),
        }),
        (apply, {
            "time": world.clock, "Publications": Publications, "KeyIndexes": lambda _: nobody, "adopt": adopt,
            "sync_files": list,
            "ThreadPoolExecutor": Pool, "network_volume_of": lambda _: None,
        }),
        (upkeep, {
            "time": world.clock, "threading": threading, "expire": expire, "drop_branches": drop_branches,
            "remove_orphans": lambda *_, **__: [], "EXPIRE_SECONDS": EXPIRE_SECONDS,
        }),
        (purging, {"items": list, "forget": forget}),
    ]  # fmt: skip
    before = [(module, {name: vars(module)[name] for name in names}) for module, names in new]
    for module, names in new:
        vars(module).update(names)
    logger = logging.getLogger("cutline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        for module, names in before:
            vars(module).update(names)


async def enumerators(world: LivesWorld) -> None:
    """One enumerator process."""
    environment: Any = SimpleNamespace(readers=1, writers=1, run=None)
    store = store_of(world)
    host: Any = Host("enumerator", world, store)
    await pipelines.serve(host, store, environment)
