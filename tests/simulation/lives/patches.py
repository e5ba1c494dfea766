"""The services of tests/simulation/lives/world.py work in that world: what their modules use of time, threads, Redis,
source and lake is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cutline.common.config.pipeline import PipelineConfig, RetentionConfig
from cutline.common.journal.plan import TableStep
from cutline.common.mesh import host as mesh_host
from cutline.common.mesh import loop as mesh_loop
from cutline.common.mesh.ports import Pools, Ports
from cutline.common.schema import TableSchema
from cutline.common.store import commands as commands_module
from cutline.common.store import lives as lives_module
from cutline.common.store import store as store_module
from cutline.common.store.store import PipelineStore
from cutline.services.enumerator import driver as enumerator_driver
from cutline.services.enumerator import pipelines
from cutline.services.enumerator.ports import Sources
from cutline.spark_writer import driver
from cutline.spark_writer.ports import Ports as SparkPorts
from cutline.spark_writer.production import owner_of
from cutline.spark_writer.sinks.contract import Known
from cutline.spark_writer.sinks.iceberg import purging, sink, upkeep
from tests.simulation.actors import Actors, Event
from tests.simulation.clock import log_judged
from tests.simulation.lives import members
from tests.simulation.lives.surroundings import (
    Host,
    Lake,
    LeaderStreams,
    Lease,
    Pool,
    Publications,
    Registry,
    Source,
    adopt,
    append,
    drop_branches,
    expire,
    forget,
    replace_all,
    store_of,
)

if TYPE_CHECKING:
    from tests.simulation.lives.world import LivesWorld

RETENTION = RetentionConfig.model_construct(grace_seconds=6.0, savepoints=2, savepoint_days=None)
EXPIRE_SECONDS = 4.0
SWEEP_SECONDS = 15.0
KEPT_SECONDS = 300.0


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

    secrets = SimpleNamespace(token_hex=lambda size: world.drawn.randbytes(size).hex())
    threading = SimpleNamespace(Thread=_thread_of(actors), Event=partial(Event, actors))
    nobody = SimpleNamespace(find=lambda _: None, sweep=lambda _: None)
    new: list[tuple[Any, dict[str, Any]]] = [
        (lives_module, {"time": world.clock, "secrets": secrets, "_KEPT_SECONDS": KEPT_SECONDS}),
        (store_module, {"time": world.clock, "secrets": secrets}),
        (commands_module, {"secrets": secrets}),
        (mesh_loop, {"TICK_SECONDS": 1.0}),
        (mesh_host, {"TICK_SECONDS": 0.5}),
        (pipelines, {"SWEEP_SECONDS": SWEEP_SECONDS}),
        (enumerator_driver, {"STATUS_SECONDS": 2.0, "TICK_SECONDS": 0.5}),
        (sink, {
            "Publications": Publications, "KeyIndexes": lambda _: nobody, "adopt": adopt, "sync_files": list,
            "append": append, "replace_all": replace_all,
            "ThreadPoolExecutor": Pool, "network_volume_of": lambda _: None,
        }),
        (upkeep, {
            "threading": threading, "expire": expire, "drop_branches": drop_branches,
            "remove_orphans": lambda *_, **__: [], "EXPIRE_SECONDS": EXPIRE_SECONDS,
        }),
        (purging, {"items": list, "forget": forget}),
    ]  # fmt: skip
    before = [(module, {name: vars(module)[name] for name in names}) for module, names in new]
    for module, names in new:
        vars(module).update(names)
    try:
        with log_judged(lambda: actors.current is not None and actors.current.process.dead):
            yield
    finally:
        for module, names in before:
            vars(module).update(names)


class Unshaped:
    """Rules in a world whose tables have none."""

    def begin(self, w: int) -> None:
        pass

    def lake_schema(self, schema: TableSchema) -> TableSchema:
        return schema

    def parts(self, step: TableStep) -> list[TableStep]:
        return [step]

    def shaped(self, step: TableStep, known: Known) -> AbstractContextManager[TableStep]:
        return nullcontext(step)

    def close(self) -> None:
        pass

    def carried(self, schema: TableSchema, arrow: Any, earlier: Any, before: Any) -> str:
        return "no table has a mode"


class Engine:
    """The modelled lake of the world, in place of Spark."""

    def __init__(self, world: LivesWorld) -> None:
        self.world = world

    def check(self) -> None:
        pass

    def _lake(self, store: PipelineStore, version: int) -> Any:
        config = PipelineConfig.from_definition(store.definition(version) or {})
        return Lake(self.world, None, owner_of(store.life, config))

    def open(self, store: PipelineStore, version: int) -> sink.IcebergSink:
        shaping = Unshaped()
        return sink.IcebergSink(
            store, self._lake(store, version), shaping, engine="local", retention=RETENTION, clock=self.world.clock
        )

    def purge(self, store: PipelineStore, version: int) -> int:
        return len(purging.purge(self._lake(store, version), store.purges))


def spark_writer(world: LivesWorld) -> None:
    """One process of the Spark writer."""
    actors = world.actors

    def start(call: Callable[[], None], name: str) -> Any:
        thread = _thread_of(actors)(target=call)
        thread.start()
        return thread

    flag: Any = partial(Event, actors)
    ports = SparkPorts(clock=world.clock, flag=flag, start=start, pool=Pool, engine=Engine(world))
    driver.serve(store_of(world), flag(), ports)


async def enumerators(world: LivesWorld) -> None:
    """One enumerator process."""
    environment: Any = SimpleNamespace(readers=1, writers=1, run=None)
    host: Any = Host("enumerator", world, store_of(world), ports_of(world))
    await pipelines.serve(host, environment, Sources(open=Source, verify_reach=lambda source, place: None))


async def serve_members(world: LivesWorld, role: str) -> None:
    """One reader process, or writer process."""
    await members.serve(world, role, replace(ports_of(world), notes=members.Presence(world)))


def ports_of(world: LivesWorld) -> Ports:
    """The ports of one process."""
    threads: Any = SimpleNamespace(call=world.actors.in_thread, end=lambda call=None: None)
    store: Any = SimpleNamespace(call=world.in_store)
    pools = Pools(own=lambda name, most: threads, store=store, sweep=threads, remove=store, encode=threads)
    links: Any = partial(members.Links, world)
    return Ports(
        clock=world.clock, token=lambda size: world.drawn.randbytes(size).hex(), pools=pools, notes=Registry(world),
        links=links, streams=LeaderStreams(world), lease=partial(Lease, world),
    )  # fmt: skip
