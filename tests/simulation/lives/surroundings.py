"""What the services of tests/simulation/lives/world.py find around them: the store's files, Redis, a source, the lake's
catalogue with its tables. Each call to them is a step at which another process may come, or that fails."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cutline.common.errors import ConfigError, Unavailable
from cutline.common.journal.plan import StagedLost
from cutline.common.mesh.ports import Ports
from cutline.common.schema import TableSchema
from cutline.common.status.pipeline_status import PartStatus, PipelineStatus
from cutline.common.store.access import AccessFiles
from cutline.common.store.lives import Key, Lives
from cutline.common.store.store import PipelineStore, Store
from cutline.services.enumerator.events import (
    DescribeTable,
    FindRange,
    FindTables,
    RangeFound,
    TableDescribed,
    TableFound,
    TablesFound,
)
from cutline.services.enumerator.splitter import KeyRange
from cutline.spark_writer.sinks.contract import TableFault
from cutline.spark_writer.sinks.iceberg.claiming import SOURCE
from cutline.spark_writer.sinks.iceberg.owner import ID, OWNER, Owner, Relation
from tests.support.binlog_bytes import schema_of

TABLE: TableSchema = replace(schema_of(("id", "int"), ("v", "varchar(60)")), table_id="d.t")

if TYPE_CHECKING:
    from tests.simulation.lives.world import LivesWorld


PRESENT_SECONDS = 4.0


class Files:
    """The store's files in memory. Each call is a step at which another process may come; some are slow, or fail."""

    look_seconds = 0.2

    def __init__(self, world: LivesWorld) -> None:
        self.world = world
        self.files: dict[str, bytes] = {}
        self.folders: dict[str, set[str]] = defaultdict(set)

    def _call(self) -> None:
        self.world.visit("store")

    def create(self, path: str, data: bytes) -> bool:
        self._call()
        if path in self.files:
            return self.files[path] == data
        self.files[path] = data
        self.world.written(path)
        while path:
            path, _, name = path.rpartition("/")
            self.folders[path].add(name)
        return True

    def read(self, path: str) -> bytes | None:
        self._call()
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        self._call()
        return path in self.files

    def names(self, folder: str) -> list[str]:
        self._call()
        return sorted(self.folders[folder])

    def remove(self, path: str) -> None:
        self._call()
        if path in self.files:
            self.world.removing(path)
            del self.files[path]
            while path:
                path, _, name = path.rpartition("/")
                self.folders[path].discard(name)
                if self.folders[path]:
                    break

    def remove_folder(self, folder: str) -> None:
        self._call()

    def remove_all(self, folder: str) -> None:
        for path in [path for path in self.files if path.startswith(f"{folder}/")]:
            self.remove(path)

    def stale(self, folder: str, name: str) -> bool:
        return False

    def location(self, path: str) -> str:
        return f"/store/{path}"


def store_of(world: LivesWorld) -> Store:
    """A process's own client of the store."""
    store = Store.__new__(Store)
    backend = cast(Any, world.files)
    store.url, store._backend, store.access, store._lives = "memory://", backend, AccessFiles(backend), Lives(backend)
    return store


class Registry:
    """What common/mesh/presence.py keeps in Redis, by life."""

    def __init__(self, world: LivesWorld) -> None:
        self.world = world

    async def services(self) -> list[Any]:
        self.world.visit("redis")
        now = self.world.clock.now
        return [service for at, service in self.world.present.values() if now - at < PRESENT_SECONDS]

    async def announce_epoch(self, key: Key, epoch: int) -> None:
        self.world.visit("redis")
        self.world.streams.announced[key] = epoch

    async def take_requests(self, key: Key) -> list[Any]:
        return []

    async def put_status(self, key: Key, part: str, status: PartStatus, *, tables: str | None = None) -> None:
        self.world.visit("redis")
        self.world.notes.setdefault(key, {})[part] = status

    async def status(self, key: Key) -> PipelineStatus:
        return PipelineStatus()

    async def put_splits(self, key: Key, changed: Any) -> None:
        pass

    async def noted(self) -> set[str]:
        self.world.visit("redis")
        return {*self.world.notes, *self.world.streams.by_life, *self.world.streams.announced}

    async def forget(self, key: Key) -> None:
        self.world.visit("redis")
        self.world.forgets(key)
        self.world.notes.pop(key, None)
        self.world.streams.announced.pop(key, None)


class Lease:
    """A lease in Redis."""

    def __init__(self, world: LivesWorld, pipeline: Key, owner: str, ttl_seconds: float) -> None:
        self.world, self.name, self.owner, self.ttl = world, pipeline, owner, ttl_seconds

    async def acquire(self) -> bool:
        self.world.visit("redis")
        owner, until = self.world.leases.get(self.name, ("", 0.0))
        if owner not in ("", self.owner) and until > self.world.clock.now:
            return False
        self.world.leases[self.name] = (self.owner, self.world.clock.now + self.ttl)
        return True

    async def release(self) -> None:
        self.world.visit("redis")
        if self.world.leases.get(self.name, ("", 0.0))[0] == self.owner:
            del self.world.leases[self.name]


class LeaderStreams:
    """The streams in Redis, as a leader makes and removes them."""

    def __init__(self, world: LivesWorld) -> None:
        self.world = world

    async def create(self, key: Key, epoch: int, channels: Any, *, leader: str) -> None:
        self.world.visit("redis")
        for pair in channels:
            self.world.streams.by_life[key][(epoch, *pair)] = deque()

    async def drop(self, key: Key, *, before: int) -> int:
        self.world.visit("redis")
        if before > 10**9:
            self.world.forgets(key)
        self.world.streams.drop(key, before)
        return 0

    async def free(self, key: Key) -> int:
        raise AssertionError("Redis is never full here")

    async def tight(self) -> bool:
        return False


class Host:
    """The host of an enumerator."""

    def __init__(self, role: str, world: LivesWorld, store: Store, ports: Ports) -> None:
        self.role, self.store, self.ports = role, store, ports
        self.incarnation = world.name(role)
        self.leads: set[Key] = set()
        self.asked_to_end = asyncio.Event()
        assert world.actors.current is not None
        world.hosts[world.actors.current.process] = self

    async def present(self) -> None:
        await asyncio.Event().wait()


class Source:
    """A source with one table of a few rows, which do not change."""

    waiting_for = None
    hosts = SimpleNamespace(several=False, chosen=None)

    def __init__(self, config: Any) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass

    async def binlog(self, **_: Any) -> Any:
        raise Unavailable("there is none")

    async def answer(self, order: Any) -> Any:
        await asyncio.sleep(0.1)
        found = TableFound(table_id=TABLE.table_id, schema=TABLE, estimate=60_000, row_bytes=1, integer_key=True)
        match order:
            case DescribeTable(generation=generation):
                return TableDescribed(generation=generation, table=found)
            case FindTables(known=known):
                return TablesFound(tables=() if TABLE.table_id in known else (found,))
            case FindRange(table_id=table_id, generation=generation):
                return RangeFound(table_id=table_id, generation=generation, range=KeyRange(low=1, high=60_000))
        raise Unavailable(f"nobody answers {order}")


# --- the lake ---


class Catalogue:
    """The tables of the lake by name: properties, snapshots, `main`, branches."""

    def __init__(self, world: LivesWorld) -> None:
        self.world = world
        self.tables: dict[str, Any] = {}
        self.rows: dict[str, str] = {}  # `_cutline.publications`: by pipeline the id of its last writer
        self.snapshots = 0

    def ensure(self, table_id: str, owner: Owner) -> Any:
        self.world.visit("lake")
        made = SimpleNamespace(
            properties={OWNER: owner.name, ID: owner.id, SOURCE: table_id}, snapshots={}, main=None, published=(0, 0),
            branches={}, tags={},
        )  # fmt: skip
        return self.tables.setdefault(table_id, made)

    # as purging.py asks

    def listNamespaces(self) -> list[str]:
        self.world.visit("lake")
        return sorted({name.split(".")[0] for name in self.tables})

    def listTables(self, namespace: str) -> list[Any]:
        self.world.visit("lake")
        return [_Identifier(name) for name in sorted(self.tables) if name.startswith(f"{namespace}.")]

    def loadTable(self, identifier: Any) -> Any:
        self.world.visit("lake")
        found = self.tables.get(str(identifier))
        properties = {} if found is None else dict(found.properties)
        return SimpleNamespace(properties=lambda: properties)

    def renameTable(self, identifier: Any, to: Any) -> None:
        self.world.visit("lake")
        if str(identifier) not in self.tables or str(to) in self.tables:
            raise Unavailable(f"{identifier} can't be renamed to {to}")
        self.tables[str(to)] = self.tables.pop(str(identifier))

    def dropTable(self, identifier: Any, purge: bool) -> None:
        self.world.visit("lake")
        if (found := self.tables.get(str(identifier))) is not None:
            self.world.drops(str(identifier), found)
            del self.tables[str(identifier)]


class _Identifier(str):
    def namespace(self) -> str:
        return self.split(".")[0]

    def name(self) -> str:
        return self.split(".")[1]


class Lake:
    """One pipeline's view of the catalogue."""

    def __init__(self, world: LivesWorld, session: Any, owner: Owner, *_: Any) -> None:
        self.world, self.owner, self.pipeline = world, owner, owner.name
        self.catalog, self.w, self.grace_began = world.catalogue, 0, lambda: 0.0
        self.jvm = SimpleNamespace(cores=1)

    def beside(self, identifier: Any, name: str) -> Any:
        return _Identifier(f"{identifier.namespace()}.{name}")

    def activate(self) -> None:
        pass

    def sync_catalogue(self) -> None:
        pass

    def load(self, table_id: str) -> LakeTable | None:
        self.world.visit("lake")
        found = self.catalog.tables.get(table_id)
        return None if found is None else LakeTable(self, table_id, found)

    def ensure(self, table_id: str) -> LakeTable:
        self.world.visit("lake")
        return LakeTable(self, table_id, self.catalog.ensure(table_id, self.owner))


class LakeTable:
    """A lake table as a start of the Spark writer uses it; whose it is decides the real owner.py."""

    rights = SimpleNamespace(expire=False)

    def __init__(self, lake: Lake, table_id: str, java: Any) -> None:
        self.lake, self.table_id, self.java, self.index = lake, table_id, java, None
        name, life = java.properties[OWNER], java.properties[ID]
        if (refusal := lake.owner.refusal(f"the table {table_id}", name, life)) is not None:
            lake.world.count["lives: table of an earlier life refused"] += 1
            raise TableFault(refusal)
        if lake.owner.relation(name, life) == Relation.ADOPTED:
            lake.world.count["lives: table of an earlier life taken over"] += 1
            java.properties[ID], java.published = lake.owner.id, (0, 0)
            java.branches.clear()

    def theirs(self, known: int | None) -> None:
        self._ours()

    def _ours(self) -> None:
        """A catalogue refuses a commit to a table that was dropped, or that is another's by now."""
        self.lake.world.visit("lake")
        found = self.lake.catalog.tables.get(self.table_id)
        if found is not self.java:
            raise TableFault(f"{self.table_id} was dropped", lost=True)
        if found.properties[ID] != self.lake.owner.id:
            raise TableFault(f"{self.table_id} is another life's")

    def check_writable(self) -> None:
        pass

    def has_snapshot(self, snapshot: int) -> bool:
        return snapshot in self.java.snapshots

    def metadata(self) -> Any:
        """Of Java's table, as far as the sink asks: the rows of a snapshot."""

        def snapshot(number: int) -> Any:
            _, _, rows = self.java.snapshots[number]
            return SimpleNamespace(summary=lambda: {"total-records": str(len(rows))})

        return SimpleNamespace(snapshot=snapshot)

    def begin_generation(self, schema: Any, generation: int) -> None:
        self._ours()

    def layout(self, schema: Any, generation: int) -> Any:
        return SimpleNamespace(schema=schema, defaults={}, in_memory=True)

    def commit(self, *, branch: str, change: list[str], **_: Any) -> int:
        self._ours()
        world = self.lake.world
        self.lake.catalog.snapshots += 1
        number = self.lake.catalog.snapshots
        self.java.snapshots[number] = (self.lake.owner.id, world.clock.now, tuple(change))
        self.java.branches[branch] = number
        return number

    def rewind(self, branch: str, snapshot: int | None) -> None:
        self._ours()
        if snapshot is None:
            self.java.branches.pop(branch, None)
        else:
            self.java.branches[branch] = snapshot

    def show(self, *, snapshot_id: int, w: int, n: int, allowed: Callable[[tuple[int, int]], bool], **_: Any) -> bool:
        self._ours()
        if not allowed(self.java.published):
            return False
        self._ours()
        if snapshot_id not in self.java.snapshots:
            raise TableFault(f"snapshot {snapshot_id} of {self.table_id} is gone", lost=True)
        self.java.main, self.java.published = snapshot_id, (w, n)
        self.lake.world.shown(self, snapshot_id)
        return True

    def tag(self, tags: Any) -> None:
        pass

    def untag(self, tags: Any) -> None:
        pass

    def made_ms(self, snapshot: int) -> int | None:
        made = self.java.snapshots.get(snapshot)
        return None if made is None else int(1000 * made[1])


class Publications:
    """The rows of `_cutline.publications` of one start."""

    table_id = "_cutline.publications"

    def __init__(self, lake: Lake, w: int) -> None:
        self.lake = lake

    def check_holder(self) -> None:
        self.lake.world.visit("lake")
        life = self.lake.catalog.rows.get(self.lake.pipeline)
        name = None if life is None else self.lake.pipeline
        if name is not None and (refusal := self.lake.owner.refusal("what is there", name, life)) is not None:
            self.lake.world.count["lives: publications of an earlier life refused"] += 1
            raise ConfigError(refusal)

    def write(self, record: Any, before: Any, left_behind: Any) -> None:
        self.check_holder()
        self.lake.catalog.rows[self.lake.pipeline] = self.lake.owner.id

    def check(self, *, expected: bool) -> None:
        self.lake.world.visit("lake")

    def tidy(self, *_: Any) -> None:
        self.lake.world.visit("lake")

    def make_view(self) -> None:
        pass

    def load(self) -> None:
        return None


def forget(lake: Lake) -> None:
    lake.world.visit("lake")
    life = lake.catalog.rows.get(lake.pipeline)
    if life is not None and lake.owner.relation(lake.pipeline, life) == Relation.OURS:
        del lake.catalog.rows[lake.pipeline]


class Pool:
    """A ThreadPoolExecutor that works in the caller's thread."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        return map(call, items)

    def shutdown(self, **_: Any) -> None:
        pass


def expire(table: LakeTable, *, before_ms: int, kept: Any) -> None:
    table._ours()
    held = {*kept, *table.java.branches.values(), table.java.main}
    for snapshot, (_, at, _) in list(table.java.snapshots.items()):
        if snapshot not in held and 1000 * at < before_ms:
            del table.java.snapshots[snapshot]


class _Row(str):
    def location(self) -> str:
        return self


def adopt(store: PipelineStore, staged: Any, table: LakeTable, layout: Any) -> list[str]:
    """The rows of a staged file; each begins with the id of the life for which it was read."""
    data = store._folder.read(staged.record.path)
    if data is None:
        raise StagedLost(f"{staged.record.path} is gone")
    return [_Row(row) for row in data.decode().split()]


def replace_all(table: LakeTable, chunks: list[str]) -> list[str]:
    return chunks


def append(table: LakeTable, head: int | None, chunks: list[str]) -> list[str]:
    return [*(() if head is None else table.java.snapshots[head][2]), *chunks]


def drop_branches(table: LakeTable, *, ours: str) -> None:
    table._ours()
    if ours in table.java.branches:
        for name in [name for name in table.java.branches if int(name[8:]) < int(ours[8:])]:
            del table.java.branches[name]
