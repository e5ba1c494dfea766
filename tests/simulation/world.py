"""The simulated world: the real machines on a simulated network, store, source and lake, from one seed.

Leader (with Enumerator and Process), Process(Reader) and Process(Writer) are the real ones of common/ and services/.
The world carries their effects out in order, as common/mesh/host.py does, and its events come from one heap in the
order of a clock of its own. What can go wrong outside does: see `World.faults`. What is checked, and when, stands in
checks.py."""

from __future__ import annotations

import dataclasses
import heapq
import json
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from cutline.common.causes import Cause, Code
from cutline.common.errors import Loss, ProtocolError, SourceLost, lost
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Began, Effect, Event, MessageReceived, PartStored, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import (
    UNLIMITED,
    Limits,
    Marker,
    Records,
    Remedy,
    SplitFailed,
    SplitReport,
    StreamStopped,
    TablePaused,
    TableReport,
    decode,
    encode,
)
from cutline.common.mesh.parts import Parts, load_part
from cutline.common.mesh.silence import LEADER_SECONDS, Silence
from cutline.common.mesh.topology import ENUMERATOR, Topology, reader_name, writer_name
from cutline.common.positions import High, Low, Stop
from cutline.common.schema import SchemaChanges, TableSchema
from cutline.common.store.lives import Folder, Lives
from cutline.common.store.records import CheckpointEntry, Entry, EpochEntry, PartRef, Publication, StagedFile
from cutline.common.store.store import PipelineStore, file_name
from cutline.services.enumerator.events import (
    AskSparkWriter,
    BoundFound,
    CloseEpoch,
    DeletePipeline,
    DescribeTable,
    Dismiss,
    EntryRefused,
    EntryWritten,
    EpochFailed,
    FindBase,
    FindBound,
    FindOutcome,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    JournalRead,
    MemberSeen,
    Observed,
    OpenEpoch,
    PlaceFound,
    PutDefinition,
    RangeFound,
    ReadJournal,
    ReleaseSavepoint,
    Settings,
    SplittingFailed,
    StopFound,
    TableDescribed,
    TableFound,
    TableLockedOut,
    TablesFound,
    WriteEntry,
    WriteOutcome,
)
from cutline.services.enumerator.leader import EpochOpened, Leader
from cutline.services.enumerator.machine import Enumerator
from cutline.services.enumerator.splitter import KeyRange
from cutline.services.reader.events import (
    ChunkFailed,
    ChunkRead,
    ChunkRowsRead,
    CloseCursor,
    ContinueChunk,
    ReadChanges,
    ReadChunk,
    SetLimits,
)
from cutline.services.reader.machine import Reader
from cutline.services.reader.unsaved import Unsaved
from cutline.services.sources.mysql.watermark import Commits
from cutline.services.writer.machine import Append, ChunkFile, CutStaged, Drop, StageCut, Writer
from tests.simulation import checks, upkeeping
from tests.simulation.checks import Failure, chain
from tests.simulation.commanding import Operators
from tests.simulation.hanging import Hanging
from tests.simulation.lake import SimulatedLake, SparkWriter
from tests.simulation.source import FEW, HIDES_SECONDS, KINDS, MARIADB, MYSQL, PLAIN, SimulatedSource, Txn
from tests.simulation.upkeeping import Upkeeping
from tests.support.causes import because
from tests.support.records import LIFE

LEASE_SECONDS = 5.0
LEAVE_SECONDS = 8.0
PRESENCE_SECONDS = 3.0
INSIDE_ROWS = 25
CREDIT_ROWS = 60
CHECK_EVERY = 7


@dataclass(slots=True)
class Channel:
    """One stream: numbered messages from one sender to one receiver."""

    name: tuple[int, str, str]  # epoch, sender, receiver
    sent: int = 0
    expected: int = 1
    queue: deque[tuple[int, Any]] = field(default_factory=deque)
    gone: bool = False
    scheduled: bool = False
    credit: int = 0  # rows sent and not taken
    waiting: SimulatedService | None = None


class SimulatedFileSystem:
    """The file system under the real store: names and bytes, each put once."""

    look_seconds = 0.02

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def remove_folder(self, folder: str) -> None:
        pass

    def create(self, path: str, data: bytes) -> bool:
        return self.files.setdefault(path, data) is data

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, folder: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.files if path.rpartition("/")[0] == folder]

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def stale(self, folder: str, name: str) -> bool:
        return False

    def location(self, path: str) -> str:
        return path


class SimulatedStore:
    """The real store in memory; each process opens its own. For the checks it keeps everything ever put: rows of staged
    files, and all entries and publications, removed ones too."""

    def __init__(self) -> None:
        self.memory = SimulatedFileSystem()
        Lives(cast(Any, self.memory))._put(LIFE)  # else the first `define` would begin another life
        self.journal: dict[int, Entry] = {}
        self.files: dict[str, list[Any]] = {}
        self.publications: dict[int, Publication] = {}
        self.claims = 0

    def open(self) -> PipelineStore:
        return PipelineStore(Folder(cast(Any, self.memory), "shop", life=LIFE))

    def put_entry(self, by: PipelineStore, entry: Entry) -> bool:
        if not by.put_entry(entry):
            return False
        if entry.slot in self.journal:
            raise Failure(f"slot {entry.slot} of the journal was given twice")
        if self.open().entry(entry.slot) != entry:
            raise Failure(f"entry {entry.slot} reads {self.open().entry(entry.slot)} and was {entry}")
        self.journal[entry.slot] = entry
        return True

    def publish(self, by: PipelineStore, record: Publication) -> bool:
        if not by.publish(record):
            return False
        if self.open().publication(record.n) != record:
            raise Failure(f"publication {record.n} reads otherwise than it was written")
        if record.n < (oldest := self.open().retired()[0]):
            raise Failure(f"publication {record.n} is made, and retention has removed all before {oldest}")
        self.publications[record.n] = record
        return True

    def stage(self, name: str, *, epoch: int, incarnation: str, rows: list[Any]) -> PartRef:
        path = f"staged/{file_name(name, epoch=epoch, incarnation=incarnation)}"
        self.files[path] = rows
        self.memory.create(f"{LIFE.folder}/{path}", b"rows")
        return PartRef(path=path, sha256="", size=len(rows))

    def has(self, path: str) -> bool:
        return self.memory.exists(f"{LIFE.folder}/{path}")

    def rows(self, path: str) -> list[Any]:
        if not self.has(path):
            raise Failure(f"the staged file {path} was removed, and is to be applied")
        return self.files[path]


class Probe:
    """Stands between a Process and its machine: counts messages taken and sent, sees every local snapshot."""

    def __init__(self, world: World, name: str, machine: Any, epoch: int) -> None:
        self.world, self.name, self.machine, self.epoch = world, name, machine, epoch
        self.given: Counter[str] = Counter()
        self.taken: dict[str, list[int]] = {}
        self.last: tuple[Counter[str], dict[str, int], Any] | None = None
        self.rows_since = 0  # sent since the newest marker
        self.rows_before: dict[int, int] = {}  # sent between that checkpoint's marker and the one before it

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self.machine.handle(event, now)
        if isinstance(event, MessageReceived):
            self.taken.setdefault(event.channel, []).append(event.after)
        self.count(effects)
        return effects

    def count(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and not isinstance(effect.message, Marker):
                self.given[effect.receiver] += 1
        if isinstance(self.machine, Reader):
            checks.rows_without_a_checkpoint_are_bounded(self, effects)

    def ready(self) -> bool:
        ready = self.machine.ready()
        self.world.count["marker waits for a transaction's end"] += not ready
        return ready

    def snapshot(self) -> State:
        state: State = self.machine.snapshot()
        taken = {channel: len(after) for channel, after in self.taken.items()}
        self.last = (self.given.copy(), taken, checks.state_of(self.machine))
        return state

    def cut(self, checkpoint: int, state: Any, recorded: dict[str, list[Any]], kept: bool) -> list[Effect]:
        assert self.last is not None
        given, taken, live = self.last
        if isinstance(self.machine, Writer):
            taken = {c: sum(a < checkpoint for a in after) for c, after in self.taken.items()}
        else:
            taken = {c: taken.get(c, 0) + len(recorded.get(c, ())) for c in {*taken, *recorded}}
        self.world.cuts.setdefault((self.epoch, checkpoint), {})[self.name] = (given, taken)
        self.world.live[self.epoch, self.name, checkpoint] = live
        self.world.count["channel state recorded"] += any(recorded.values())
        for messages in recorded.values():
            for message in messages:
                if isinstance(message, SplitReport | SplitFailed | TableReport | TablePaused | StreamStopped):
                    self.world.count[f"recorded {type(message).__name__}"] += 1
        self.rows_before[checkpoint], self.rows_since = self.rows_since, 0
        effects = self.machine.cut(checkpoint, state, recorded, kept)
        self.count(effects)
        return effects

    def check(self) -> None:
        self.machine.check()


@dataclass(slots=True)
class SimulatedDump:
    """One cursor of a reader: its connection, the transactions prepared on it, and commits not yet in the engine."""

    connection: int = 0
    prepared: dict[int, Any] = field(default_factory=dict)
    commits: Commits = field(default_factory=Commits)


@dataclass(slots=True, eq=False)
class SimulatedService:
    """One process of the mesh."""

    role: str
    incarnation: str
    store: PipelineStore
    parts: Parts | None = None  # of its epoch
    alive: bool = True
    died_at: float = 0.0
    paused_until: float = 0.0
    leaving: bool = False
    inbox: deque[tuple[Any, Event]] = field(default_factory=deque)
    effects: deque[tuple[Any, Effect]] = field(default_factory=deque)
    blocked: bool = False
    busy: bool = False
    # a member's
    name: str = ""
    epoch: int = 0
    token: Any = None  # identifies its part in one epoch; answers to an older one are dropped
    process: Process | None = None
    probe: Probe | None = None
    silence: Silence | None = None  # of its leader
    failed: tuple[int, str, bool, Loss] = (0, "", False, Loss.NOTHING)
    chunk: Any = None
    limits: Limits = UNLIMITED
    dumps: dict[str, SimulatedDump] = field(default_factory=dict)
    open: dict[Any, list[Any]] = field(default_factory=dict)
    # a leader's
    leader: Leader | None = None
    held_seen: float = -100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Drawn from a seed: size, speed and faults of its world."""

    flavour: str
    exact: bool
    tables: tuple[str, ...]
    rows: int
    chunk_rows: int
    readers: int
    writers: int
    enumerators: int
    interval: float
    lag: float
    gap: float  # seconds between transactions
    chaos: float  # seconds of trouble
    faults: int
    max_rows: int
    snapshot_only: bool
    wire: bool
    start: str | None  # kind; None: with a snapshot
    stop: tuple[str, float] | None  # kind, seconds from the pipeline's beginning
    schema_changes: SchemaChanges
    unsaved_rows: int | None = None  # that a reader may send without a complete checkpoint; a row has one byte

    @classmethod
    def of(cls, seed: int) -> Shape:
        """The shape of a seed's world."""
        return cls.drawn(random.Random(seed), seed)

    @classmethod
    def drawn(cls, rng: random.Random, seed: int) -> Shape:
        flavour = rng.choice((MYSQL, MYSQL, MARIADB, PLAIN))
        tables = tuple(rng.sample(FEW, k=rng.choice((1, 2, 3, 4))))
        if flavour == PLAIN:
            tables = tuple(table for table in tables if not KINDS[table].keyless) or ("shop.text",)
        if rng.random() < 0.7:
            tables = tuple({"shop.a": 0, "shop.b": 0, **dict.fromkeys(tables)})
        start = stop = None
        own = random.Random(f"start {seed}")
        if own.random() < 0.15:
            start = own.choice(("latest", "place"))
        own = random.Random(f"stop {seed}")  # apart, so that worlds without a stop draw the same
        if own.random() < 0.15:
            kinds = ("file", "time") if flavour == PLAIN else ("file", "time", "GTIDs")
            stop = (own.choice(kinds), own.uniform(0.1, 12))
        shape = cls(
            flavour=flavour, exact=flavour != PLAIN and rng.random() < 0.4, tables=tables, rows=rng.choice((4, 12, 24)),
            chunk_rows=rng.choice((2, 5, 9)), readers=rng.choice((1, 2, 3)), writers=rng.choice((1, 2, 3)),
            enumerators=rng.choice((1, 2, 2)), interval=rng.choice((0.3, 1.0, 2.0)),
            lag=rng.choice((0.005, 0.03, 0.12)),
            gap=rng.choice((0.05, 0.15, 0.4)), chaos=rng.uniform(4, 12), faults=rng.choice((0, 1, 2, 4)),
            max_rows=rng.choice((3, 8, 40)), snapshot_only=stop is None and start is None and rng.random() < 0.05,
            wire=rng.random() < 0.15, start=start, stop=stop,
            schema_changes=rng.choice(("evolve", "evolve", "evolve", "exact", "exact", "ignore", "halt")),
        )  # fmt: skip
        own = random.Random(f"unsaved {seed}")
        if own.random() < 0.4:
            shape = dataclasses.replace(shape, unsaved_rows=own.choice((12, 40)))
        own = random.Random(f"size {seed}")
        if own.random() < 0.04:
            more = tuple(table for table in KINDS if table not in FEW)[: own.choice((4, 8))]
            shape = dataclasses.replace(shape, tables=shape.tables + more, readers=own.choice((4, 6)))
        return shape


class World:
    """One seed's run: `run()` returns, or raises Failure or a machine's error."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.locks = random.Random(f"locks {seed}")  # apart, so that seeds mean what they meant before
        self.count: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=300)
        self.shape = Shape.drawn(self.rng, seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.events = 0
        self.pushed = 0
        self.steps = 0  # of all machines
        self.store = SimulatedStore()
        self.lake = SimulatedLake()
        self.channels: dict[tuple[int, str, str], Channel] = {}
        self.services: list[SimulatedService] = []
        self.sparks: list[SparkWriter | None] = []
        self.announced = 0
        self.lease: tuple[SimulatedService | None, float] = (None, 0.0)
        self.cuts: dict[tuple[int, int], dict[str, Any]] = {}
        self.live: dict[Any, Any] = {}
        self.begun: dict[int, set[tuple[str, int]]] = {}  # by checkpoint: the generations of which it has rows
        self.began: dict[tuple[str, int], int] = {}  # the checkpoint in which each of them began
        self.tokens = 0
        self.troubled = True  # faults still happen
        self.writing = True  # the source still changes
        self.finished = False
        self.deadline = 0.0  # by then it must have arrived
        self.halts_expected = False
        self.schemas: dict[str, TableSchema] = {}  # that parts have named
        self.retired = 0  # the publication behind which records were removed
        self.facts: list[tuple[str, Event]] = []
        self.versions: dict[str, dict[Any, Any]] = {}
        self.quarantined: set[str] = set()
        self.began: dict[int, Low] = {}  # by epoch: where its stream without a snapshot began
        self.late: set[str] = set()  # tables that appeared after the pipeline had begun
        self.stop: Stop | None = None
        self.source = SimulatedSource(
            self.rng,
            self.count,
            flavour=self.shape.flavour,
            tables=self.shape.tables,
            rows=self.shape.rows,
            schema_changes=self.shape.schema_changes,
        )
        self.own = random.Random(f"refusals {seed}")  # apart, so that other worlds draw the same
        self.leaderless = random.Random(f"leaderless {seed}")
        self.nobody_until = 0.0  # no enumerator starts before
        self.entered_at = 0.0  # when the journal got its newest entry, or an epoch was open
        self.full_until = self.refused_until = 0.0
        self.refused_epochs: set[int] = set()
        self.names = 0
        self.known_tables = list(self.shape.tables)
        if len(self.known_tables) > 2 and self.rng.random() < 0.3:
            self.known_tables.pop()  # created later, as far as the pipeline can tell
        self.keyless = self.rng.random() < 0.1
        self.operators = Operators(self)
        self.hanging = Hanging(self)
        self.upkeeping = Upkeeping(self)

    # --- time ---

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (self.now + delay, self.pushed, call, args))

    def lag(self, scale: float = 1.0) -> float:
        mean = self.shape.lag * scale
        if self.troubled and self.rng.random() < 0.04:
            mean *= 12
        return self.rng.expovariate(1.0 / mean)

    def tell_story(self, text: str) -> None:
        self.story.append(f"{self.now:8.3f} {text}")

    def run(self) -> None:
        """Run from the first start until the lake equals the source."""
        shape, rng = self.shape, self.rng
        self.tell_story(str(shape))
        self.count["over 8 tables"] += len(shape.tables) > 8
        self.count["over 3 readers"] += shape.readers > 3
        begin = 0.0
        if shape.start is None:
            self.start_all()
        else:  # start within a binlog that already has events
            begin = rng.uniform(0.0, 3.0)
            self.at(begin, self.start_all)
        self.at(rng.random(), self.write)
        self.at(0.0, self.watch_flushed)
        for _ in range(shape.faults):
            self.at(begin + rng.uniform(0.5, shape.chaos), self.trouble)
        if self.own.random() < 0.08:
            self.at(begin + self.own.uniform(0.5, shape.chaos), self.fill_store)
        if self.own.random() < 0.08:
            self.at(begin + self.own.uniform(0.5, shape.chaos), self.refuse_reads)
        if self.leaderless.random() < 0.03:
            self.at(begin + self.leaderless.uniform(0.5, shape.chaos), self.lose_leaders)
        if self.seed % 20 == 7:  # few worlds, since most pipelines end by it
            for _ in range(2):
                self.at(rng.uniform(0.5, shape.chaos), self.purge)
        for _ in range(2):
            self.at(rng.uniform(1.0, shape.chaos + 3), self.feed_any)
        if rng.random() < 0.5:
            self.at(rng.uniform(0.5, shape.chaos), self.ask_savepoint)
        self.operators.begin(begin, shape.chaos)
        self.at(shape.chaos, self.calm)
        self.deadline = shape.chaos + 200.0 + self.hanging.seconds
        with upkeeping.simulated(self):
            while self.heap and not self.finished:
                self.now, _, call, args = heapq.heappop(self.heap)
                self.events += 1
                if self.now > self.deadline or self.events > 60_000 + 500 * self.hanging.seconds:
                    raise Failure(f"no end in sight: {checks.what_is_missing(self)}")
                call(*args)
            checks.journal_is_of_one_line(self)
            upkeeping.nothing_old_is_left(self)

    def start_all(self) -> None:
        shape = self.shape
        for role, many in (("enumerator", shape.enumerators), ("reader", shape.readers), ("writer", shape.writers)):
            for _ in range(many):
                self.start_service(role)
        self.start_spark()

    def calm(self) -> None:
        """Faults stop; the source writes on for a moment, then stops."""
        self.troubled = False
        self.tell_story("calm: no more faults")
        for service in self.services:
            service.paused_until = min(service.paused_until, self.now)
            self.at(0.0, self.pump, service)
        for role in ("enumerator", "reader", "writer"):
            if not self.alive(role):
                self.replace(role)
        if not any(self.sparks):
            self.start_spark()
        if self.hanging.planned:
            self.hanging.arm()
        else:
            self.at(1.0, self.stop_writing)
        self.at(0.5, self.operators.settle)

    def stop_writing(self) -> None:
        self.writing = False
        self.deadline += self.reading_seconds()
        source = self.source
        for xid in list(source.prepared):
            if not any(t.xid == xid for t in source.pending):
                self.flush(Txn("commit", source._gtid(), xid=xid))
        self.at(HIDES_SECONDS + 1.0, self.look_for_end)

    def reading_seconds(self) -> float:
        """The longest time in which one reader reads every table once more: a chunk takes about ten steps, or twice as
        many if its table's columns changed meanwhile."""
        chunks = 0
        for table, rows in self.source.visible.items():
            keys = [key[0] for key in rows]
            integer = KINDS[table].integer and keys
            chunks += 1 + (max(keys) - min(keys) + 1 if integer else len(keys)) // self.shape.chunk_rows
        return 20 * self.shape.lag * chunks

    def look_for_end(self) -> None:
        if any(s.alive and s.leader is not None and s.leader.state == "halted" for s in self.services):
            if not self.halts_expected:
                raise Failure("a leader halted though nothing was lost")
            if self.operators.revive():
                self.at(0.5, self.look_for_end)
                return
            self.finished = True
            self.count["halt that was called for"] += 1
            return
        if checks.arrived(self):
            self.finished = True
            return
        self.at(0.5, self.look_for_end)

    # --- the source's life ---

    def watch_flushed(self) -> None:
        self.source.note_flushed(self.now)
        self.at(0.5, self.watch_flushed)

    def flush(self, txn: Txn) -> None:
        source, rng = self.source, self.rng
        source.commit(txn, self.now)
        delay = rng.expovariate(1 / 0.01) if rng.random() < 0.85 else rng.uniform(0.05, HIDES_SECONDS)
        self.at(delay, self.becomes_visible, txn)

    def becomes_visible(self, txn: Txn) -> None:
        source = self.source
        if txn not in source.pending:
            return
        if source.ordered:  # group commit in the order of the binlog: earlier ones first
            for earlier in list(source.pending[: source.pending.index(txn)]):
                source.show(earlier)
                source.execute(earlier)
        source.show(txn)
        if txn in source.pending:
            self.at(self.rng.expovariate(1 / 0.02), source.execute, txn)

    def write(self) -> None:
        if not self.writing:
            return
        if self.hanging.hangs:
            self.at(1.0, self.write)
            return
        rng, source = self.rng, self.source
        chance = rng.random()
        if chance < 0.03 and not source.prepared:
            source.xids += 1
            changes = source.random_changes(rng.randrange(1, 3))
            txn = Txn("prepare", source._gtid(), changes=changes, xid=source.xids)
            source.prepare(txn, self.now)
            self.count["XA PREPARE"] += 1
            self.at(rng.uniform(0.02, 0.6), self.end_xa, source.xids)
        elif chance < 0.05:
            source.rotate(self.now)
        elif chance < 0.075:
            self.ddl()
        elif chance < 0.12:
            self.flush(Txn("foreign", source._gtid()))
        elif chance < 0.15:
            self.flush(Txn("rows", source._gtid(), changes=source.random_changes(rng.randrange(20, 45))))
            self.count["large transaction"] += 1
        else:
            changes = source.random_changes(rng.choice((1, 1, 2, 4)))
            if changes:
                self.flush(Txn("rows", source._gtid(), changes=changes))
        self.at(rng.expovariate(1 / self.shape.gap), self.write)

    def end_xa(self, xid: int) -> None:
        source = self.source
        if xid in source.prepared and not any(t.xid == xid for t in source.pending):
            kind = "commit" if self.rng.random() < 0.7 else "rollback"
            self.count[f"XA {kind.upper()}"] += 1
            self.flush(Txn(kind, source._gtid(), xid=xid))

    def ddl(self) -> None:
        rng, source = self.rng, self.source
        tables = [t for t in source.tables if t not in source.frozen and not any(held == t for held, _ in source.locks)]
        if not tables:
            return
        table = rng.choice(tables)
        columns = source.latest()[1][table]
        extra = [c for c in columns if c.startswith("c")]
        ddl = rng.choice(("add", "add", "drop", "unlogged", "truncate"))
        if table in ("shop.a", "shop.b") and ddl in ("unlogged", "truncate"):
            ddl = "add"
        column = ""
        if ddl == "drop":
            if not extra:
                return
            column = rng.choice(extra)
        elif ddl == "add":
            if len(extra) > 2:
                return
            column = f"c{rng.randrange(6)}"
            if column in columns:
                return
        self.tell_story(f"source: {ddl} {column} on {table}")
        self.flush(Txn("ddl", source._gtid(), table=table, ddl=ddl, column=column))

    # --- services ---

    def start_service(self, role: str) -> SimulatedService:
        self.names += 1
        service = SimulatedService(role, f"{role}-{self.names:03d}", self.store.open())
        if role == "enumerator":
            service.leader = self.new_leader(service.incarnation)
            self.at(self.rng.random() * 0.3, self.observe, service)
        else:
            self.at(self.rng.random() * 0.3, self.follow, service)
        self.at(0.2, self.tick, service)
        self.services.append(service)
        self.tell_story(f"{service.incarnation} starts")
        return service

    def new_leader(self, incarnation: str) -> Leader:
        self.names += 1
        return Leader(incarnation=incarnation, run=f"run-{self.names:03d}", settings=self.settings())

    def settings(self) -> Settings:
        shape = self.shape
        return Settings(
            chunk_rows=shape.chunk_rows, exact=shape.exact, quarantine_changed=shape.schema_changes == "halt",
            snapshot_only=shape.snapshot_only,
            interval_seconds=shape.interval, reads_again=self.operators.reads_again,
            readers=shape.readers, writers=shape.writers,
        )  # fmt: skip

    def kill(self, service: SimulatedService, cause: str) -> None:
        if not service.alive:
            return
        service.alive = False
        service.died_at = self.now
        service.inbox.clear()
        service.effects.clear()
        service.token = None
        self.tell_story(f"{service.incarnation} is killed: {cause}")
        self.count[f"{service.role} crashed"] += 1

    def tick(self, service: SimulatedService) -> None:
        if service.alive:
            if service.leader is not None or service.process is not None:
                self.tell(service, service.token, Ticked())
                if service.silence is not None:
                    self.listen(service, service.silence)
            self.at(0.4, self.tick, service)

    def listen(self, service: SimulatedService, silence: Silence) -> None:
        """A member that is awake reads the channel from its leader, which sends an empty message each second while it
        is awake and its epoch is open."""
        if service.paused_until > self.now:
            return
        heard = any(
            leader.leader is not None and leader.alive and leader.token is not None and leader.epoch == service.epoch
            and leader.paused_until <= self.now
            for leader in self.services
        )  # fmt: skip
        if silence.read(self.now, heard=heard):
            self.count["member left a leader that is gone"] += 1
            self.fail(service, because("its leader is silent"))

    def observe(self, service: SimulatedService) -> None:
        """Observe lease and presence, and announce the epoch, as the driver does."""
        if not service.alive:
            return
        self.at(0.4, self.observe, service)
        if service.paused_until > self.now:
            return
        holder, until = self.lease
        held = holder is service and until > self.now
        if holder is None or until <= self.now or held:
            if not held:
                self.count["lease taken over"] += holder is not None and holder is not service
                self.tell_story(f"{service.incarnation} takes the lease")
            self.lease = (service, self.now + LEASE_SECONDS)
            held = True
        members = []
        for other in self.services:
            if other.role != "enumerator" and (other.alive or other.died_at + PRESENCE_SECONDS > self.now):
                epoch, cause, halts, loss = other.failed
                members.append(
                    MemberSeen(
                        incarnation=other.incarnation,
                        role=other.role,
                        leaving=other.leaving,
                        failed_epoch=epoch,
                        failed=cause or None,
                        halts=halts,
                        lost=loss,
                    )
                )
        assert service.leader is not None
        if held and service.token is not None and service.leader.state == "leading":
            self.announced = service.epoch
        self.tell(service, "any", Observed(held=held, members=tuple(members)))
        if held:
            self.operators.look(service)
            checks.nobody_waits_without_saying_so(self, service.leader)

    def follow(self, service: SimulatedService) -> None:
        """A member looks which epoch is announced."""
        if not service.alive:
            return
        self.at(self.rng.uniform(0.1, 0.5), self.follow, service)
        if service.paused_until > self.now or self.announced <= service.epoch:
            return
        epoch = self.announced
        entry = self.store.journal.get(epoch)
        if not isinstance(entry, EpochEntry):
            raise Failure(f"epoch {epoch} is announced but its slot holds no epoch entry")
        self.leave(service)
        service.epoch = epoch
        members = entry.members.readers if service.role == "reader" else entry.members.writers
        if service.incarnation in members:
            self.join(service, entry, members.index(service.incarnation))

    def leave(self, service: SimulatedService) -> None:
        service.token = service.process = service.probe = service.silence = None
        service.inbox.clear()
        service.effects.clear()
        service.blocked = False
        service.open.clear()
        service.dumps.clear()
        service.chunk = None
        service.limits = UNLIMITED

    def join(self, service: SimulatedService, entry: EpochEntry, index: int) -> None:
        """Build the machine of this epoch and take part."""
        epoch = entry.slot
        topology = Topology.of(len(entry.members.readers), len(entry.members.writers))
        machine: Any
        if service.role == "reader":
            service.name = reader_name(index)
            base = entry.base
            machine = Reader(
                name=service.name,
                writers=topology.writers,
                stream=index == 0,
                inside_rows=INSIDE_ROWS,
                unsaved=Unsaved(self.shape.unsaved_rows, base=base),
            )
            if index == 0 and base is not None:
                machine.restore(self.part(service, base, "reader-0"))
                checks.restore_is_exact(self, machine, base, "reader-0")
                if entry.anew:
                    machine.begin_anew()
        else:
            service.name = writer_name(index)
            machine = Writer()
        inbound, outbound = topology.cut_inbound(service.name), topology.cut_outbound(service.name)
        self.tokens += 1
        service.token = (self.tokens, epoch)
        service.parts = Parts(service.store, member=service.name, epoch=epoch, incarnation=service.incarnation)
        service.probe = Probe(self, service.name, machine, epoch)
        service.process = Process(
            service.probe, inbound=inbound, outbound=outbound, recording=service.role == "reader", after=epoch
        )
        self.tell_story(f"{service.incarnation} joins epoch {epoch} as {service.name}")
        service.silence = Silence(self.now)
        if service.role == "reader":
            self.tell(service, service.token, Began())
        for sender in inbound:
            self.kick(self.channels.get((epoch, sender, service.name)))

    def part(self, service: SimulatedService, checkpoint: int, member: str) -> State:
        """A member's part of a checkpoint, as the service reads it."""
        entry = service.store.entry(checkpoint)
        if not isinstance(entry, CheckpointEntry) or member not in entry.parts:
            raise Failure(f"checkpoint {checkpoint} has no part of {member}")
        files = len(entry.parts[member].paths)
        self.count["part of two files read"] += files == 2
        self.count["part of three files read"] += files == 3
        return load_part(service.store, entry.parts[member])

    def fail(
        self, service: SimulatedService, cause: Cause, halts: bool = False, loss: Loss = Loss.NOTHING
    ) -> None:
        """The member gives up its epoch; its presence has the cause."""
        if service.leader is not None:
            self.tell(service, service.token, EpochFailed(epoch=service.epoch, cause=cause, halts=halts, lost=loss))
            return
        self.tell_story(f"{service.incarnation} gives up epoch {service.epoch}: {cause}")
        service.failed = (service.epoch, cause, halts, loss)
        self.leave(service)

    # --- facts and effects ---

    def tell(self, service: SimulatedService, token: Any, event: Event) -> None:
        """Put a fact into a service's inbox; answers to an older epoch are dropped."""
        if service.alive and (
            token == "any"
            or (token is not None and token == service.token)
            or (service.leader and isinstance(event, Ticked))
        ):
            service.inbox.append((token, event))
            self.pump(service)

    def pump(self, service: SimulatedService) -> None:
        if service.busy:
            return
        service.busy = True
        try:
            self.perform_all(service)
            while service.inbox and service.alive and not service.blocked:
                if service.paused_until > self.now:
                    self.at(service.paused_until - self.now + 0.001, self.pump, service)
                    return
                token, event = service.inbox.popleft()
                channel = None
                if isinstance(event, tuple):
                    channel, event = event
                if service.leader is not None:
                    effects = self.handle_leader(service, event)
                elif token == service.token and service.process is not None:
                    if self.rng.random() < 0.02:
                        self.facts.append((service.role, event))
                    try:
                        effects = service.process.handle(event, self.now)
                    except (ProtocolError, SourceLost) as error:
                        raise Failure(f"{service.name} refused {event}: {error!r}") from error
                    self.check(service.process, event)
                else:
                    continue
                service.effects.extend((service.token, effect) for effect in effects)
                self.perform_all(service)
                if channel is not None and not service.blocked:
                    self.taken(channel, event)
        finally:
            service.busy = False

    def handle_leader(self, service: SimulatedService, event: Event) -> list[Effect]:
        leader = service.leader
        assert leader is not None
        if self.rng.random() < 0.02:
            self.facts.append(("enumerator", event))
        before, was = leader.state, leader.process
        try:
            effects = leader.handle(event, self.now)
        except (ProtocolError, SourceLost) as error:
            raise Failure(f"{service.incarnation} refused {event}: {error!r}") from error
        if leader.process is not was and leader.process is not None:
            service.probe = Probe(self, "enumerator", leader.process.machine, leader.epoch)
            service.probe.count(effects)
            leader.process.machine = service.probe
        self.check(leader, event)
        if before != leader.state:
            self.tell_story(f"{service.incarnation}: {before} -> {leader.state} ({leader.cause})")
            if before == "opening":
                self.entered_at = self.now  # it said so, and now waits for its members
        if leader.state == "leading" and isinstance(event, EntryWritten | EntryRefused | EpochOpened):
            checks.limits_are_obeyed(self, leader)
        return effects

    def check(self, machine: Leader | Process, event: Event) -> None:
        """The machine's invariants hold after this step; only each `CHECK_EVERY`th is looked at: it costs O(tables)."""
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            try:
                machine.check()
            except ProtocolError as error:
                raise Failure(f"after {type(event).__name__}: {error}") from error

    def perform_all(self, service: SimulatedService) -> None:
        effects = service.effects
        service.blocked = False
        while effects and service.alive:
            token, effect = effects[0]
            if service.leader is None and token != service.token:
                effects.popleft()
                continue
            if self.troubled and self.rng.random() < self.crash_rate:
                self.count["crash between two effects"] += 1
                self.crash(service, f"before {type(effect).__name__}")
                return
            if not self.perform(service, effect):
                service.blocked = True
                return
            if effects:
                effects.popleft()

    crash_rate = 0.00015

    def crash(self, service: SimulatedService, cause: str) -> None:
        self.kill(service, cause)
        self.at(self.rng.uniform(0.2, 4.0), self.replace, service.role)

    def replace(self, role: str) -> None:
        if role == "enumerator" and self.now < self.nobody_until:
            self.at(self.nobody_until - self.now, self.replace, role)
        elif role == "enumerator" or sum(s.alive and s.role == role for s in self.services) < 4:
            self.start_service(role)

    def ask_source(self, service: SimulatedService, event_of: Callable[[], Event | None]) -> None:
        """Ask the source a question; one that hangs answers once it goes on."""

        def answer() -> Event | None:
            if not self.hanging.hangs:
                return event_of()
            self.later(service, 1.0, answer)
            return None

        self.later(service, self.lag(2), answer)

    def later(self, service: SimulatedService, delay: float, event_of: Callable[[], Event | None]) -> None:
        """Do slow work in the background; its answer is dropped if the epoch that asked is over."""
        token = service.token

        def done() -> None:
            if not service.alive or (token != service.token):
                self.count["answer to an epoch that is over"] += 1
                return
            event = event_of()
            if event is not None and service.token == token:
                self.tell(service, token, event)

        self.at(delay, done)

    def perform(self, service: SimulatedService, effect: Effect) -> bool:
        """Carry one effect out; False if it has to wait for credit."""
        match effect:
            case Send(receiver=receiver, message=message):
                return self.send(service, receiver, message)
            case SavePart(checkpoint=checkpoint, state=state):
                self.schemas.update({schema.hash: schema for schema in state.schemas})
                if service.leader is not None and service.probe is not None and checkpoint % 3 == 0:
                    assert service.probe.last is not None
                    checks.enumerator_part_restores(self, service.probe.last[2], service.probe.machine, state)
                parts = service.parts
                assert parts is not None

                def stored() -> Event | None:
                    if self.no_room(service):
                        return None
                    return PartStored(checkpoint=checkpoint, ref=parts.put(checkpoint, state))

                self.later(service, self.lag(2), stored)
            case ReadChunk(split=split):
                self.count["read chunk"] += 1
                service.chunk = {"split": split, "rows": None}
                self.take_low(service, service.chunk, self.source.connection)
            case SetLimits(limits=limits):
                service.limits = limits
            case ContinueChunk():
                self.give_rows(service, service.chunk)
            case ReadChanges() if self.now < self.refused_until:
                self.count["epoch failed again for the same cause, which does not halt"] += bool(
                    self.refused_epochs - {service.epoch}
                )
                self.refused_epochs.add(service.epoch)
                self.at(self.lag(2), self.refused, service, service.token)
            case ReadChanges():
                self.later(service, self.lag(), lambda: self.changes_read(service, effect))
            case CloseCursor(cursor=cursor):
                self.count["catch-up meets main"] += 1
                service.dumps.pop(cursor, None)
            case Append(file=file, seq_base=seq_base, body=body):
                rows = service.open.setdefault(file, [])
                if isinstance(file, ChunkFile):
                    rows += body
                else:
                    rows += [(seq_base + seq, op, key, row) for seq, op, key, row in body]
            case Drop(split_id=split_id, attempt=attempt):
                self.count["chunk file dropped"] += 1
                for file in [
                    f
                    for f in service.open
                    if isinstance(f, ChunkFile) and (f.split_id, f.attempt) == (split_id, attempt)
                ]:
                    del service.open[file]
            case StageCut():
                self.later(service, self.lag(3), lambda: self.staged(service, effect))
            case _:
                self.perform_leader(service, effect)
        return True

    def perform_leader(self, service: SimulatedService, effect: Effect) -> None:
        match effect:
            case ReadJournal():
                self.at(self.lag(), self.read_journal, service, service.leader)
            case WriteEntry(entry=entry):
                delay = self.lag(2) if self.rng.random() < 0.9 or not self.troubled else self.rng.uniform(1.0, 12.0)
                self.count["slow write of an entry"] += delay > 1.0
                if delay > 1.0 and self.rng.random() < 0.2:
                    self.at(self.rng.uniform(0.0, 1.0), self.rebuild_leader, service)
                self.at(delay, self.write_entry, service, service.leader, entry)
            case OpenEpoch():
                self.tokens += 1
                service.token, service.epoch, service.name = (self.tokens, effect.epoch), effect.epoch, ""
                service.parts = Parts(
                    service.store, member="enumerator", epoch=effect.epoch, incarnation=service.incarnation
                )
                service.store.sweep()
                self.later(service, self.lag(2), lambda: self.open_epoch(service, effect))
            case CloseEpoch():
                service.token = None
            case Dismiss(before=before):
                self.dismiss(before)
            case DeletePipeline() if self.hanging.hangs:
                self.hanging.deleting = True
            case WriteOutcome() | PutDefinition() | FindBase() | ReleaseSavepoint() | AskSparkWriter() | FindOutcome():
                self.operators.carry_out(service, effect)
            case FindPlace(table_id=table, generation=generation, low=low):
                self.ask_source(service, lambda: self.find_place(table, generation, low))
            case FindTables(begins=begins, known=known):
                starts = begins and self.shape.start and not effect.anew
                start = self.source.start(self.shape.start) if starts else (None, None)
                if start[0] is not None and service.leader is not None:
                    self.began[service.leader.epoch] = start[0][0]
                self.ask_source(service, lambda: self.find_tables(service, begins, known, *start))
            case FindStop(stop=stop):
                self.ask_source(service, lambda: self.find_stop(service, stop))
            case DescribeTable(table_id=table, generation=generation):
                self.ask_source(
                    service, lambda: TableDescribed(generation=generation, table=self.table_described(table))
                )
            case FindRange():
                self.ask_source(service, lambda: self.find_range(effect))
            case FindBound():
                self.ask_source(service, lambda: self.find_bound(effect))
            case _:
                raise Failure(f"nobody can carry out {effect}")

    # --- channels ---

    def send(self, service: SimulatedService, receiver: str, message: Any) -> bool:
        sender = service.name or "enumerator"
        channel = self.channels.get((service.epoch, sender, receiver))
        if service.leader is not None and service.token is None:
            return True
        if channel is None or channel.gone:
            self.count["send to a stream that is gone"] += 1
            service.effects.clear()
            self.fail(service, because(f"the channel to {receiver} is gone"))
            return True
        rows = message.rows if isinstance(message, Records) else 0
        if channel.credit and (channel.credit + rows > CREDIT_ROWS) and channel.credit > CREDIT_ROWS - 1:
            self.count["send waits for credit"] += 1
            channel.waiting = service
            return False
        self.note_message(message)
        if self.shape.wire:
            message = decode(json.loads(json.dumps(encode(message))), getattr(message, "body", None))
        channel.sent += 1
        channel.credit += rows
        channel.queue.append((channel.sent, message))
        if self.troubled and self.rng.random() < 0.01:
            self.count["lost answer of Redis: message sent again, refused"] += 1
        self.kick(channel)
        return True

    def note_message(self, message: Any) -> None:
        kind = type(message).__name__
        if isinstance(message, TableReport):
            kind += f" {message.state}"
        elif isinstance(message, SplitFailed):
            kind += "" if message.remedy == Remedy.QUARANTINE else f" {message.remedy}"
        if isinstance(message, TableReport) and "can't be shown at the stop" in str(message.cause):
            kind += " at the stop"
        self.count[f"sent {kind}"] += 1

    def kick(self, channel: Channel | None) -> None:
        if channel is not None and channel.queue and not channel.scheduled and not channel.gone:
            channel.scheduled = True
            self.at(self.lag(), self.deliver, channel)

    def receiver_of(self, channel: Channel) -> SimulatedService | None:
        epoch, _, receiver = channel.name
        for service in self.services:
            if service.alive and service.epoch == epoch and service.token is not None:
                if receiver == (service.name or "enumerator") and (service.leader is not None) == (
                    receiver == "enumerator"
                ):
                    return service
        return None

    def deliver(self, channel: Channel) -> None:
        channel.scheduled = False
        service = self.receiver_of(channel)
        if channel.gone or service is None or not channel.queue:
            return
        if service.leader is not None and service.leader.state == "opening":
            self.at(0.05, self.kick, channel)
            return
        number, message = channel.queue.popleft()
        if number != channel.expected:
            self.count["gap seen in a channel"] += 1
            self.fail(service, because(f"the channel from {channel.name[1]} lost message {channel.expected}"))
            return
        channel.expected += 1
        if message is not None:
            fact = MessageReceived(channel=channel.name[1], message=message)
            if service.alive and service.token is not None:
                service.inbox.append((service.token, (channel, fact)))  # type: ignore[arg-type]
                self.pump(service)
        self.kick(channel)

    def taken(self, channel: Channel, event: Event) -> None:
        if isinstance(event, MessageReceived) and isinstance(event.message, Records):
            channel.credit -= event.message.rows
            waiting, channel.waiting = channel.waiting, None
            if waiting is not None:
                self.at(0.001, self.pump_again, waiting)

    def pump_again(self, service: SimulatedService) -> None:
        if service.alive:
            service.blocked = False
            self.pump(service)

    def idle(self, channel: Channel) -> None:
        """The sender's empty message, which reveals a lost tail."""
        channel.sent += 1
        channel.queue.append((channel.sent, None))
        self.kick(channel)

    # --- answers: reader ---

    def still(self, service: SimulatedService, chunk: Any, connection: int) -> bool:
        """Whether the chunk is still being read on its connection; a broken one fails the attempt."""
        if service.chunk is not chunk or not service.alive:
            return False
        if connection == self.source.connection:
            return True
        self.count["connection broke while a chunk was read"] += 1
        self.fail_chunk(service, chunk, "the connection broke", Remedy.RETRY)
        return False

    def fail_chunk(self, service: SimulatedService, chunk: Any, cause: str, remedy: Remedy) -> None:
        """The attempt at the chunk fails."""
        split, service.chunk = chunk["split"], None
        failed = ChunkFailed(split_id=split.split_id, attempt=split.attempt, cause=because(cause), remedy=remedy)
        self.tell(service, service.token, failed)

    def take_low(self, service: SimulatedService, chunk: Any, connection: int) -> None:
        if not self.still(service, chunk, connection):
            return
        if self.troubled and self.locks.random() < 0.05:
            self.count["chunk of a locked table"] += 1
            self.fail_chunk(service, chunk, "locked by another session", Remedy.WAIT)
            return
        low = None if self.hanging.hangs else self.source.low(self.now)
        if low is None:
            self.at(0.1, self.take_low, service, chunk, connection)
            return
        chunk["low"] = low
        if self.shape.flavour == MARIADB:
            self.select(service, chunk, connection)
        else:
            self.at(self.lag(3), self.select, service, chunk, connection)

    def select(self, service: SimulatedService, chunk: Any, connection: int) -> None:
        if not self.still(service, chunk, connection):
            return
        if self.shape.flavour == MYSQL and self.source.prepared:
            self.at(0.05, self.take_low, service, chunk, connection)
            return
        split = chunk["split"]
        if split.table_id in self.source.frozen or self.hanging.hangs:  # the DDL's metadata lock
            self.count["SELECT waits for a DDL"] += not self.hanging.hangs
            self.at(0.05, self.select, service, chunk, connection)
            return
        if self.shape.flavour == MARIADB and self.source.rebuilt(split.table_id, chunk["low"]):
            self.count["SELECT in a snapshot from before its table was made anew"] += 1
            self.fail_chunk(service, chunk, "table definition has changed", Remedy.RESTART)
            return
        chunk["rows"] = self.source.select(split)
        chunk["schema"] = self.source.schema(split.table_id)
        if self.shape.flavour == MARIADB:
            low = chunk["low"]
            self.take_high(service, chunk, connection, High(server=low.server, file=low.file, offset=low.offset))
        else:
            self.at(self.lag(3), self.take_high, service, chunk, connection, None)

    def take_high(self, service: SimulatedService, chunk: Any, connection: int, high: Any) -> None:
        if not self.still(service, chunk, connection):
            return
        split = chunk["split"]
        chunk["high"] = high or self.source.flushed()
        if KINDS[split.table_id].keyless:
            changes = self.source.window(split.table_id, chunk["low"], chunk["high"])
            if changes:
                self.count["keyless: the table did not rest while its snapshot was begun"] += 1
                self.at(0.05, self.take_low, service, chunk, connection)
                return
            chunk["rows"] = None if changes is None else chunk["rows"]
        elif self.shape.exact:
            chunk["rows"] = self.source.overlay(split, chunk["rows"], chunk["low"], chunk["high"])
        other = chunk["schema"].hash != split.schema.hash
        if chunk["rows"] is None or (other and self.rng.random() < 0.5) or (self.troubled and self.rng.random() < 0.01):
            self.fail_chunk(service, chunk, "a DDL came between", Remedy.RESTART if other else Remedy.RETRY)
            return
        if other:
            self.count["chunk of other columns reported"] += 1
        chunk["left"], chunk["cut_at"] = sorted(chunk["rows"].items()), None
        keyed = not KINDS[split.table_id].keyless
        if keyed and self.troubled and len(chunk["left"]) > 1 and self.rng.random() < 0.05:
            at = self.rng.randrange(1, len(chunk["left"]))  # its time is over: it ends before the last key read
            chunk["cut_at"] = self.source.literal(split.table_id, chunk["left"][at][0])
            chunk["left"] = chunk["left"][:at]
            self.count["chunk ran out of time and was split"] += 1
        chunk["total"] = len(chunk["left"])
        self.count["chunk without rows"] += not chunk["left"]
        self.give_rows(service, chunk)

    def give_rows(self, service: SimulatedService, chunk: Any) -> None:
        split = chunk["split"]
        size = self.rng.choice((1, 3, 50))
        rows, chunk["left"] = chunk["left"][:size], chunk["left"][size:]
        event: Event
        if rows:
            sizes = {"rows": len(rows), "size": len(rows)}
            event = ChunkRowsRead(split_id=split.split_id, attempt=split.attempt, **sizes, body=rows)
        else:
            service.chunk = None
            event = ChunkRead(
                split_id=split.split_id, attempt=split.attempt, rows=chunk["total"], checksum="", low=chunk["low"],
                high=chunk["high"], schema=chunk["schema"], cut_at=chunk["cut_at"],
            )  # fmt: skip
        if self.troubled and rows and self.rng.random() < 0.01:
            service.chunk = None
            self.count["chunk failed after some rows"] += 1
            event = ChunkFailed(
                split_id=split.split_id, attempt=split.attempt, cause=because("lost connection"), remedy=Remedy.RETRY
            )
        self.later(service, self.lag(), lambda: event)

    def changes_read(self, service: SimulatedService, order: ReadChanges) -> Event | None:
        if (nothing := self.hanging.read(order)) is not None:
            self.later(service, 0.5, lambda: nothing)
            return None
        dump = service.dumps.setdefault(order.cursor, SimulatedDump())
        max_rows = self.rng.randrange(1, self.shape.max_rows + 1)
        try:
            if self.troubled and self.rng.random() < 0.02:
                dump.connection = 0
                self.count["connection of a dump broke"] += 1
            if dump.connection != self.source.connection:
                dump.prepared.clear()  # a new connection knows no prepared transactions
                if not self.source.connects(order.after, dump.commits, self.now):
                    self.later(service, self.rng.uniform(0.2, 0.6), lambda: self.changes_read(service, order))
                    return None
                dump.connection = self.source.connection
            max_rows = 1 if self.hanging.armed else max_rows
            event = self.source.read(order, dump.prepared, exact=self.shape.exact, max_rows=max_rows)
            self.hanging.look(event)
        except SourceLost as error:
            self.halts_expected |= self.source.servers > 1 or self.source.purged > 0
            self.count["source refused: its history parted or its identity changed"] += 1
            self.fail(service, error.cause, halts=True, loss=lost(error))
            return None
        self.count[f"read by {order.cursor}"] += 1
        self.count["main read on to a transaction's end for those that wait"] += order.at_boundary
        if event.position == order.after and not event.faults and not event.stopped:  # nothing new: the dump waits
            if self.rng.random() < 0.8:
                self.later(service, self.rng.uniform(0.05, 0.4), lambda: self.changes_read(service, order))
                return None
        return event

    # --- answers: writer ---

    def staged(self, service: SimulatedService, order: StageCut) -> Event | None:
        if self.no_room(service):
            return None
        found = []
        for file in (*order.changes, *order.chunks):
            rows = service.open.pop(file)
            chunk = isinstance(file, ChunkFile)
            kind = "chunk" if chunk else "changes"
            ref = self.store.stage(f"{kind}.parquet", epoch=service.epoch, incarnation=service.incarnation, rows=rows)
            found.append(
                StagedFile(
                    path=ref.path, sha256=ref.sha256, size=ref.size, rows=len(rows),
                    kind="chunk" if chunk else "changes",
                    table=file.table_id, generation=file.generation, schema=file.schema,
                    split=f"{file.split_id}#{file.attempt}" if chunk else None,
                    seq_min=None if chunk else min(r[0] for r in rows),
                    seq_max=None if chunk else max(r[0] for r in rows),
                    truncated_at=None if chunk else max((r[0] for r in rows if r[1] == "t"), default=None),
                )
            )  # fmt: skip
        return CutStaged(checkpoint=order.checkpoint, staged=tuple(found))

    # --- answers: enumerator ---

    def table_found(self, table: str) -> TableFound:
        source, rng = self.source, self.rng
        rows = len(source.visible[table])
        estimate = max(0, rows + rng.randrange(-rows // 2 - 1, rows + 2))
        return TableFound(
            table_id=table,
            schema=source.schema(table),
            estimate=estimate,
            row_bytes=100,
            integer_key=KINDS[table].integer,
        )

    def find_stop(self, service: SimulatedService, stop: Stop) -> Event:
        try:
            return StopFound(place=self.source.find_stop(stop, self.now))
        except SourceLost as error:
            self.halts_expected = True
            return EpochFailed(epoch=service.epoch, cause=error.cause, halts=True)

    def table_described(self, table: str) -> TableFound:
        if table == "shop.keyless":
            return TableFound(table_id=table, fault=because("it has no key"))
        if self.troubled and self.rng.random() < 0.2:  # between a DROP and the CREATE after it
            self.count["table gone for a moment"] += 1
            return TableFound(table_id=table, gone=True)
        return self.table_found(table)

    def find_tables(
        self,
        service: SimulatedService,
        begins: bool,
        known: frozenset[str],
        start: tuple[Low, High] | None,
        looked_at: Low | None,
    ) -> Event:
        assert service.leader is not None
        assert service.leader.enumerator is not None
        if not service.leader.enumerator.tables:
            self.late.clear()
        elif len(self.known_tables) < len(self.shape.tables):
            self.late.update(self.shape.tables[len(self.known_tables) :])
        if len(self.known_tables) < len(self.shape.tables) and self.now > 3:
            self.known_tables = list(self.shape.tables)
            self.count["table added later"] += 1
        selected = self.operators.selected(service.leader.definition)
        found = [self.table_found(t) for t in self.known_tables if t in selected]
        unselected = known - selected - {"shop.keyless"}
        self.count["table left the definition"] += len(unselected)
        if self.keyless:
            found.append(TableFound(table_id="shop.keyless", fault=because("it has no key")))
            self.quarantined.add("shop.keyless")
            self.count["table quarantined at once"] += 1
        if not begins or self.shape.stop is None:
            return TablesFound(tables=tuple(found), unselected=unselected, start=start, looked_at=looked_at)
        self.stop = self.stop or self.source.some_stop(*self.shape.stop, now=self.now)
        self.count[f"stop by {self.shape.stop[0]}"] += 1
        return TablesFound(tables=tuple(found), start=start, looked_at=looked_at, stop=self.stop)

    def find_place(self, table: str, generation: int, low: Low) -> Event:
        kept = self.source.keeps(low) and self.operators.rng.random() > 0.1
        self.count["paused table goes on" if kept else "paused table has to be read again"] += 1
        return PlaceFound(table_id=table, generation=generation, kept=kept)

    def locked_out(self, order: FindRange | FindBound) -> Event | None:
        if not self.troubled or self.locks.random() >= 0.05:
            return None
        self.count["question about a locked table"] += 1
        cause = Cause(Code.LOCKED, "locked by another session")
        return TableLockedOut(table_id=order.table_id, generation=order.generation, cause=cause)

    def find_range(self, order: FindRange) -> Event | None:
        if (locked := self.locked_out(order)) is not None:
            return locked
        keys = [key[0] for key in self.source.visible[order.table_id]]
        found = KeyRange(low=min(keys, default=None), high=max(keys, default=None))
        self.count["split of an empty table"] += not keys
        return RangeFound(table_id=order.table_id, generation=order.generation, range=found)

    def find_bound(self, order: FindBound) -> Event:
        if (locked := self.locked_out(order)) is not None:
            return locked
        source = self.source
        if self.troubled and self.rng.random() < 0.01:
            self.count["splitting failed"] += 1
            return SplittingFailed(
                table_id=order.table_id, generation=order.generation, cause=because("definition changed"), restart=True
            )
        keys = sorted(k for k in source.visible[order.table_id] if source.inside(order.table_id, k, order.start, None))
        end = source.literal(order.table_id, keys[order.rows]) if len(keys) > order.rows else None
        self.count["split by a walk of the index"] += end is not None
        return BoundFound(table_id=order.table_id, generation=order.generation, end=end)

    # --- answers: leader ---

    def answer(self, service: SimulatedService, leader: Leader | None, event: Event) -> None:
        """Answer the leader that asked, not one that was built after it."""
        if service.leader is leader:
            self.tell(service, "any", event)

    def read_journal(self, service: SimulatedService, leader: Leader | None) -> None:
        journal = self.store.journal
        tail = max(journal, default=0)
        base, anew, entered, floor = None, None, None, 0
        if tail:
            last = journal[tail]
            base = last.base if isinstance(last, EpochEntry) else tail
            anew = last.anew if isinstance(last, EpochEntry) else None
            epoch = journal[last.epoch]
            if isinstance(epoch, EpochEntry):
                entered, floor = epoch.command, epoch.floor
        newest = journal[base] if base is not None else None
        answered = newest.request if isinstance(newest, CheckpointEntry) else None
        known = self.operators.read(service)
        highest = newest.highest if isinstance(newest, CheckpointEntry) else 0
        known |= {"answered": answered, "anew": anew, "entered": entered, "floor": floor, "highest": highest}
        self.answer(service, leader, JournalRead(tail=tail, base=base, **known))

    def write_entry(self, service: SimulatedService, leader: Leader | None, entry: Entry) -> None:
        """The write lands, even if its leader has died or been deposed meanwhile."""
        slot = entry.slot
        if not service.alive and self.rng.random() < 0.7:
            self.count["torn temporary file: entry never linked"] += 1
            return
        if self.now < self.full_until:  # the same entry is written again until there is room
            self.count["store full: an entry waits"] += 1
            self.at(0.5, self.write_entry, service, leader, entry)
            return
        written = self.store.put_entry(service.store, entry)
        if written:
            self.entered_at = self.now
            self.operators.entry_is_of_no_cancelled_command(entry)
        if written and isinstance(entry, EpochEntry):
            self.tell_story(
                f"journal {slot}: epoch of {service.incarnation}, base {entry.base}, version {entry.definition}"
            )
            if entry.base is not None and (base := self.store.journal[entry.base].epoch) in self.began:
                self.began[slot] = self.began[base]
            self.operators.epoch_is_wanted(entry, held=self.lease[0] is service and self.lease[1] > self.now)
            self.count["epoch written"] += 1
        elif written and isinstance(entry, CheckpointEntry):
            self.tell_story(f"journal {slot}: checkpoint of epoch {entry.epoch}, position {entry.position}")
            self.count["checkpoint written"] += 1
            self.operators.checkpoint_is_wanted(entry, leader)
            checks.cut_is_consistent(self, entry)
            checks.entry_is_sound(self, entry)
        answer: Event = EntryWritten(slot=slot, nonce=entry.nonce)
        if not written or (
            self.troubled and self.rng.random() < 0.06
        ):  # lost answer: written again, refused, looked at
            self.count["lost answer of the store"] += written
            found = service.store.entry(slot)
            nonce = found.nonce if found is not None else ""
            self.count["slot refused"] += nonce != entry.nonce
            answer = EntryRefused(slot=slot, nonce=nonce)
        self.at(self.lag(2), self.answer, service, leader, answer)

    def open_epoch(self, service: SimulatedService, order: OpenEpoch) -> Event:
        checks.announced_epoch_is_the_journals(self, order)
        for sender, receiver in order.plan.topology.channels():
            if sender == ENUMERATOR and receiver in order.plan.writers:
                continue  # it carries empty messages only: `listen`
            self.channels[order.epoch, sender, receiver] = Channel((order.epoch, sender, receiver))
        enumerator = None
        if order.base is not None:
            base = service.store.entry(order.base)
            assert isinstance(base, CheckpointEntry)
            enumerator = Enumerator.restored(order.plan, self.part(service, order.base, "enumerator"), base.tables)
            self.count["restore"] += 1
            epoch = self.store.journal[base.epoch]
            assert isinstance(epoch, EpochEntry)
            before = epoch.members
            self.count["restore with other numbers of members"] += (len(before.readers), len(before.writers)) != (
                len(order.plan.readers),
                len(order.plan.writers),
            )
        self.announced = order.epoch
        for channel in self.channels.values():
            if channel.name[0] < order.epoch and not channel.gone:
                self.at(self.lag(5), self.drop_channel, channel, self.rng)
        return EpochOpened(epoch=order.epoch, enumerator=enumerator)

    def dismiss(self, before: int) -> None:
        """Remove the streams of ended epochs. Redis may not answer at first: the driver asks until it does."""
        rng = self.leaderless
        delay = rng.uniform(1.0, 10.0) if self.troubled and rng.random() < 0.2 else rng.expovariate(1 / self.shape.lag)
        for channel in self.channels.values():
            if channel.name[0] < before and not channel.gone:
                self.at(delay, self.drop_channel, channel, rng)

    def drop_channel(self, channel: Channel, rng: random.Random) -> None:
        channel.gone = True
        channel.queue.clear()
        if channel.waiting is not None:
            self.at(0.0, self.pump_again, channel.waiting)
        epoch, sender, _ = channel.name
        for service in self.services:  # its next empty message reveals it
            if service.epoch == epoch and service.token is not None and (service.name or "enumerator") == sender:
                self.at(rng.uniform(0.1, 2.0), self.silence, service, service.token)

    # --- Spark ---

    def start_spark(self) -> None:
        self.store.claims = self.store.open().claim()
        self.sparks.append(SparkWriter(self, self.store.claims))
        self.at(self.lag(5), self.step_spark, len(self.sparks) - 1)

    def step_spark(self, index: int) -> None:
        spark = self.sparks[index]
        if spark is None:
            return
        did = spark.step()
        if did != "again":
            self.upkeeping.do(spark)
        if did == "again":
            self.sparks[index] = None
            self.start_spark()
            return
        delay = self.lag(8)
        if self.troubled:
            luck = self.rng.random()
            if luck < 0.01:
                self.count["Spark writer crashed"] += 1
                self.sparks[index] = None
                self.at(self.rng.uniform(0.1, 2), self.start_spark)
                return
            if luck < 0.02:  # it sleeps, and another is started meanwhile
                self.count["zombie Spark writer"] += 1
                delay += self.rng.uniform(1, 6)
                self.at(0.5, self.start_spark)
            elif did == "applied" and luck < 0.08:
                self.count["long apply"] += 1
                delay += self.upkeeping.rng.uniform(4, 20)
            elif did == "started" and luck < 0.5:
                self.count["Spark writer started slowly"] += 1
                delay += self.rng.uniform(1, 4)
            elif luck < 0.06:  # another is started, and this one goes on as long as it is let
                self.count["two Spark writers at once"] += 1
                self.at(0.0, self.start_spark)
        elif index != len(self.sparks) - 1 and did == "idle":
            self.sparks[index] = None
            return
        self.at(delay if did != "idle" else max(delay, 0.3), self.step_spark, index)

    def on_publication(self, publication: Publication) -> None:
        self.count["publication"] += 1
        self.count["kept publication"] += publication.kept
        self.tell_story(f"publication {publication.n} by w{publication.w} at {publication.position}")
        checks.publication_equals_source(self, publication)

    # --- faults ---

    def alive(self, role: str) -> list[SimulatedService]:
        return [s for s in self.services if s.alive and s.role == role]

    def trouble(self) -> None:
        if not self.troubled:
            return
        name = self.rng.choice(self.faults)
        getattr(self, f"fault_{name}")()

    faults = (
        "crash_reader", "crash_reader", "crash_writer", "crash_leader", "crash_leader", "pause", "pause",
        "redis_emptied", "lost_tail",
        "more_readers", "more_writers", "fewer", "restart_source", "fail_over", "steal_lease",
        "zombie_leader", "savepoint", "older", "throttle",
    )  # fmt: skip

    def fill_store(self) -> None:
        """The store is full for a while: each epoch that can't save its state ends, until there is room."""
        self.full_until = self.now + self.own.uniform(0.5, 8.0)
        self.tell_story(f"the store is full until {self.full_until:.2f}")

    def no_room(self, service: SimulatedService) -> bool:
        """Whether the store is full; the service then gives up."""
        if self.now >= self.full_until:
            return False
        self.count["store full: a service gives up"] += 1
        self.fail(service, because("the store is full"))
        return True

    def refuse_reads(self) -> None:
        """The source refuses binlog readers for a while (a password changed); that must not halt the pipeline."""
        self.refused_until = self.now + self.own.uniform(0.5, 8.0)
        self.refused_epochs.clear()
        self.tell_story(f"the source refuses reads until {self.refused_until:.2f}")

    def refused(self, service: SimulatedService, token: Any) -> None:
        if service.alive and service.token == token:
            self.fail(service, because("the source refuses us"))

    def fault_crash_reader(self) -> None:
        if found := self.alive("reader"):
            self.crash(self.rng.choice(found), "a fault")

    def fault_crash_writer(self) -> None:
        if found := self.alive("writer"):
            self.crash(self.rng.choice(found), "a fault")

    def fault_crash_leader(self) -> None:
        holder = self.lease[0]
        if holder is not None and holder.alive:
            self.crash(holder, "a fault")

    def fault_pause(self) -> None:
        service = self.rng.choice([s for s in self.services if s.alive])
        service.paused_until = self.now + self.rng.uniform(0.5, 9.0)
        self.tell_story(f"{service.incarnation} sleeps until {service.paused_until:.2f}")
        self.count[f"{service.role} slept"] += 1

    def fault_zombie_leader(self) -> None:
        """The leader sleeps past its lease, with a full inbox, and goes on as if it still held it."""
        holder = self.lease[0]
        if holder is not None and holder.alive:
            holder.paused_until = self.now + LEASE_SECONDS + self.rng.uniform(0.0, 3.0)
            self.count["zombie leader"] += 1
            self.tell_story(f"{holder.incarnation} sleeps past its lease")
            if len(self.alive("enumerator")) < 2:
                self.start_service("enumerator")

    def rebuild_leader(self, service: SimulatedService) -> None:
        """The pipeline fails within its process, which soon builds a new leader while an entry is still being
        written."""
        if service.alive and self.lease[0] is service:
            self.leave(service)
            service.leader = self.new_leader(service.incarnation)
            service.paused_until = self.now + self.rng.uniform(0.1, 5.0)
            self.lease = (None, 0.0)
            self.count["leader built anew in its process"] += 1
            self.tell_story(f"{service.incarnation} fails and builds its leader anew")

    def fault_steal_lease(self) -> None:
        """The lease key is lost: another leader takes it before the old one looks."""
        others = [s for s in self.alive("enumerator") if s is not self.lease[0] and s.paused_until <= self.now]
        if others:
            self.lease = (self.rng.choice(others), self.now + LEASE_SECONDS)
            self.count["two leaders at once"] += 1
            self.tell_story("the lease is lost and taken by another")

    def fault_redis_emptied(self) -> None:
        self.tell_story("Redis is emptied")
        self.count["Redis emptied"] += 1
        for channel in self.channels.values():
            self.drop_channel(channel, self.rng)
        self.lease = (None, 0.0)
        self.announced = 0

    def silence(self, service: SimulatedService, token: Any) -> None:
        if (
            service.alive
            and service.token == token
            and any(c.gone for c in self.channels.values() if c.name[0] == service.epoch)
        ):
            self.fail(service, because("its streams are gone"))

    def fault_lost_tail(self) -> None:
        full = [c for c in self.channels.values() if c.queue and not c.gone]
        if full:
            channel = self.rng.choice(full)
            for _ in range(self.rng.randrange(1, len(channel.queue) + 1)):
                channel.queue.pop()
            self.count["lost tail of a stream"] += 1
            self.tell_story(f"the tail of {channel.name} is lost")
            self.at(1.0, self.idle, channel)

    def fault_more_readers(self) -> None:
        self.start_service("reader")
        self.count["reader added"] += 1

    def fault_more_writers(self) -> None:
        self.start_service("writer")
        self.count["writer added"] += 1

    def fault_fewer(self) -> None:
        role = self.rng.choice(("reader", "writer"))
        found = [service for service in self.alive(role) if not service.leaving]
        if len(found) > 1:
            service = self.rng.choice(found)
            self.count[f"{role} taken away"] += 1
            if self.rng.random() < 0.3:
                self.kill(service, "taken away")
            else:
                service.leaving = True
                self.tell_story(f"{service.incarnation} is asked to leave")
                self.leaves(service, self.now + LEAVE_SECONDS)

    def leaves(self, service: SimulatedService, deadline: float) -> None:
        """The service ends when no epoch needs it, or at the deadline; its presence disappears at once."""
        if not service.alive:
            return
        if service.token is not None and self.now < deadline:
            self.at(0.2, self.leaves, service, deadline)
            return
        self.count["service left when the plan had done without it"] += service.token is None
        self.kill(service, "it left")
        service.died_at = -PRESENCE_SECONDS

    def fault_restart_source(self) -> None:
        self.tell_story("the source restarts")
        self.source.restart(self.now)

    def lose_leaders(self) -> None:
        """Every enumerator dies, and none starts for as long as members wait for their leader and more: by then all
        must have left. Then a new one leads."""
        self.nobody_until = self.now + LEADER_SECONDS + 15.0
        self.tell_story(f"no enumerator lives until {self.nobody_until:.2f}")
        for service in self.alive("enumerator"):
            self.kill(service, "no leader is left")
        self.count["no leader left"] += 1
        self.at(LEADER_SECONDS + 13.0, checks.nobody_works_without_a_leader, self)
        self.at(LEADER_SECONDS + 15.0, self.replace, "enumerator")

    def purge(self) -> None:
        """Binlogs are purged; perhaps a reader dies too, and its successor begins at the last checkpoint."""
        self.tell_story("binlogs are purged")
        self.source.purge()
        if self.rng.random() < 0.5:
            self.fault_crash_reader()

    def fault_fail_over(self) -> None:
        if self.shape.flavour == PLAIN and self.rng.random() < 0.6:
            return
        self.tell_story("the source fails over")
        self.source.fail_over(self.now)

    def fault_savepoint(self) -> None:
        self.ask_savepoint()

    def fault_throttle(self) -> None:
        """A person limits what is read, or lifts the limits."""
        if self.operators.active:
            limit = self.rng.choice((None, 60.0, 120.0))
            self.count["throttle asked"] += 1
            self.operators.command("limits", rows_per_second=limit, bytes_per_second=None)

    def fault_older(self) -> None:
        """An operator asks for a restore from an older checkpoint."""
        if older := chain(self.store.journal)[:-1]:
            self.operators.command("restore", checkpoint=self.rng.choice(older[-3:]))

    def ask_savepoint(self) -> None:
        """A person commands a savepoint."""
        self.count["savepoint asked"] += 1
        self.operators.command("savepoint", name=None)

    def feed_any(self) -> None:
        """Feed a random fact to a copy of a random machine: it is handled, or refused with the state unchanged."""
        checks.any_fact_is_handled_or_refused(self)
