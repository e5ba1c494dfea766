"""The upkeep of simulated Spark writers: the real sinks/iceberg/upkeep.py and its rule of what retention keeps, on the
simulated lake and the real store in memory. Its sweep of the store runs later, beside applies, publications, and
restores that people command meanwhile.

Checked after each expiry: what a restore or a reader may still ask for is there (`whatever_can_be_restored_is_whole`);
and, once a world has arrived and its grace is over: nothing is left that only older cuts needed
(`nothing_old_is_left`)."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cutline.common.config.pipeline import RetentionConfig
from cutline.common.journal.progress import Progress
from cutline.common.store.records import CheckpointEntry, Publication, PublishedTable
from cutline.spark_writer.sinks.iceberg import upkeep
from cutline.spark_writer.sinks.iceberg.start import Start
from cutline.spark_writer.sinks.iceberg.upkeep import Upkeep
from cutline.spark_writer.sinks.iceberg.works import branch_of, snapshot_of
from tests.simulation.checks.chain import chain
from tests.simulation.checks.failure import Failure

if TYPE_CHECKING:
    from tests.simulation.mesh.lake import SparkWriter
    from tests.simulation.mesh.world import World

EXPIRE_SECONDS = 1.5
SAVEPOINTS = 3


class _Table:
    """A lake table as upkeep sees it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def made_ms(self, snapshot: int) -> int | None:
        made = self.world.lake.made.get(snapshot)
        return None if made is None else int(1000 * made[1])

    def untag(self, tags: Collection[str]) -> None:
        for tag in tags:
            self.world.lake.tags.get(self.name, {}).pop(tag, None)


class _Tables:
    def __init__(self, world: World) -> None:
        self.get: Callable[[str], Any] = lambda name: _Table(world, name)

    @staticmethod
    def each(items: Collection[Any], do: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        return [(item, do(item)) for item in items]


def _expire(table: _Table, *, before_ms: int, kept: Collection[int]) -> None:
    """Expire what Iceberg would: snapshots that no branch, no tag and no `main` names, and that are old enough."""
    lake, name = table.world.lake, table.name
    held = {*kept, *lake.branches.get(name, {}).values(), *lake.tags.get(name, {}).values()}
    if name in lake.main:
        held.add(lake.main[name].snapshot)
    for snapshot, (table_id, at) in list(lake.made.items()):
        if table_id == name and snapshot not in held and int(1000 * at) < before_ms:
            del lake.made[snapshot], lake.snapshots[snapshot]
            table.world.count["snapshot expired"] += 1


def _drop_branches(table: _Table, *, ours: str) -> None:
    branches = table.world.lake.branches.get(table.name, {})
    if ours in branches:
        for name in [name for name in branches if int(name.split("_")[1]) < int(ours.split("_")[1])]:
            del branches[name]


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """sinks/iceberg/upkeep.py works in this world."""

    class Thread:
        """A sweep, which begins after a while: seconds, in a store with many files."""

        def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
            self._call, self._args, self._alive = target, args, True

        def start(self) -> None:
            if world.upkeeping.at_once:
                self._run()
            else:
                world.at(world.upkeeping.rng.choice((0.0, 0.5, 6.0)), self._run)

        def is_alive(self) -> bool:
            return self._alive

        def _run(self) -> None:
            self._alive = False
            world.seen.retired = max(world.seen.retired, self._args[0])
            self._call(*self._args)
            world.count["what older restores needed is removed"] += 1
            whatever_can_be_restored_is_whole(world)

    new = {
        "threading": SimpleNamespace(Thread=Thread, Event=threading.Event),
        "expire": _expire,
        "drop_branches": _drop_branches,
        "may_be_own": lambda error: False,  # the simulated lake raises none
        "remove_orphans": lambda *_, **__: [],
        "EXPIRE_SECONDS": EXPIRE_SECONDS,
    }
    before = {name: getattr(upkeep, name) for name in new}
    vars(upkeep).update(new)
    level = upkeep.logger.level
    upkeep.logger.setLevel(logging.CRITICAL)  # that a sweep was given up is no news here
    try:
        yield
    finally:
        upkeep.logger.setLevel(level)
        vars(upkeep).update(before)


class Upkeeping:
    """The retention of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"upkeep {world.seed}")  # apart, so that worlds draw the same
        self.at_once = False  # a sweep is done when it begins
        self.released: set[int] = set()  # savepoints that people gave up; retention forgets it
        self.settings = RetentionConfig.model_construct(
            grace_seconds=self.rng.choice((1.0, 4.0, 15.0)), savepoints=SAVEPOINTS, savepoint_days=None
        )

    def begun(self, spark: SparkWriter) -> Upkeep:
        """The upkeep of one start."""
        world: Any = self.world
        nobody: Any = SimpleNamespace(
            activate=lambda: None, load=lambda *_: None, owner=None, pipeline="shop", table_id="_cutline.publications",
            make_view=lambda: None,
            tidy=lambda *_: None, sweep=lambda *_: None, has_more=lambda: False,
            pool=SimpleNamespace(submit=lambda call: call()),
        )  # fmt: skip
        nobody.load = lambda table=None: None if table is None else _Table(world, table)
        progress = Progress(w=spark.w, published=None, applied=0, work=spark.work, quarantined={})
        tables: Any = _Tables(world)
        clock = SimpleNamespace(time=lambda: world.now, monotonic=lambda: world.now)
        return Upkeep(Start(
            store=spark.store, lake=nobody, branch=branch_of(spark.w), progress=progress, journal=nobody, tables=tables,
            publications=nobody, side_by_side=nobody, indexes=nobody, retention=self.settings, clock=clock,
        ))  # fmt: skip

    def do(self, spark: SparkWriter) -> None:
        """The upkeep that is due after a step of this start, if it leads by all that is known."""
        if spark.w != self.world.store.claims or not spark.begun:
            return
        spark.upkeep._progress.published = spark.published
        spark.upkeep._to_compact.clear()  # compaction is a matter of the lake's files, which there are none of here
        self.released |= spark.store.removal.released()
        spark.upkeep.run()
        whatever_can_be_restored_is_whole(self.world)


def named_by(table: PublishedTable) -> set[int]:
    """The snapshots that a publication names for a table."""
    return {snapshot_of(ref.content) for ref in (table.main, table.work) if ref is not None}


def _restorable(world: World) -> list[Publication]:
    """The publications that retention promises to keep: an oracle for common/journal/retention.py."""
    settings, publications = world.upkeeping.settings, world.store.publications
    store = world.store.open()
    on_chain = set(chain(world.store.journal))
    began = world.now - settings.grace_seconds
    # One that a start far behind has made, where retention had removed another, was never to be restored. After a
    # restore the chain goes on below publications that it left behind: against these one on the chain is not late.
    late: set[int] = set()
    first = first_on_chain = world.now
    for n in sorted(publications, reverse=True):
        at = publications[n].published_at
        late |= {n} if at > (first_on_chain if n in on_chain else first) else set()
        first, first_on_chain = min(first, at), min(first_on_chain, at) if n in on_chain else first_on_chain
    publications = {n: record for n, record in publications.items() if n not in late}
    within = [record for record in publications.values() if record.published_at > began]
    older = sorted(n for n, record in publications.items() if n in on_chain and record.published_at <= began)
    newest = [publications[older[-1]]] if older else []
    found = {record.n: record for record in (*within, *newest)}
    kept = [n for n in sorted(publications, reverse=True) if publications[n].kept and n in on_chain]
    released = world.upkeeping.released
    released |= store.removal.released()
    for n in kept[:SAVEPOINTS]:
        if n not in released:
            found[n] = publications[n]
    return list(found.values())


def whatever_can_be_restored_is_whole(world: World) -> None:
    """Every publication within the grace, the newest before it, and every savepoint can be read: each snapshot that it
    names is in the lake. The chain's newest can be restored: its entry and parts are in the store."""
    for record in _restorable(world):
        for table, published in record.tables.items():
            for snapshot in named_by(published):
                if snapshot not in world.lake.snapshots:
                    raise Failure(f"publication {record.n} names snapshot {snapshot} of {table}, which has expired")
    world.count["retained publications looked at"] += 1


def nothing_old_is_left(world: World) -> None:
    """The grace passes, nothing moves, and upkeep is done: store and lake go back to what the newest cuts need."""
    spark = next((spark for spark in reversed(world.spark.starts) if spark is not None), None)
    if spark is None or spark.published is None or spark.w != world.store.claims or world.operators.orders.base:
        return
    world.upkeeping.at_once = True
    for _ in range(2):  # a sweep that was under way, or the work of a start before, is gone at the second
        world.schedule.now += world.upkeeping.settings.grace_seconds + EXPIRE_SECONDS
        spark.upkeep.sweeping = None
        spark.upkeep._to_expire.update(spark.work)
        world.upkeeping.do(spark)
    n, store, files = spark.published.n, world.store.open(), world.store.memory.files
    most = 4 * (SAVEPOINTS + 1)  # a record may build on two others
    for what, found in (("publications", store.publication_numbers()), ("entries of the journal", store.slots())):
        if len(old := [at for at in found if at < n]) > most:
            raise Failure(f"{len(old)} {what} from before publication {n} are left: {old}")
    for entry in world.store.journal.values():
        staged = entry.staged if isinstance(entry, CheckpointEntry) and entry.slot <= n else ()
        if left := [file.path for file in staged if f"{store.life.folder}/{file.path}" in files]:
            raise Failure(f"{left} of checkpoint {entry.slot} are left after publication {n}")
    needed = {(t, s) for r in _restorable(world) for t, published in r.tables.items() for s in named_by(published)}
    for snapshot, (table, _) in world.lake.made.items():
        work = spark.published.tables[table].work if table in spark.published.tables else None
        refs = {*world.lake.branches.get(table, {}).values(), *world.lake.tags.get(table, {}).values()}
        refs |= {world.lake.main[table].snapshot} if table in world.lake.main else set()
        if work is None or work.place != branch_of(spark.w) or (table, snapshot) in needed or snapshot in refs:
            continue  # a table that this start has not written keeps what it has
        if world.lake.made[snapshot][1] >= world.lake.made[snapshot_of(work.content)][1]:
            continue  # of another start; it goes once the table has a later commit
        raise Failure(f"snapshot {snapshot} of {table} is left, which nobody needs")
    world.count["nothing old is left"] += 1
