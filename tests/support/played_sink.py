"""A sink in memory, and a clock and threads that a test plays: the Spark writer's driver without Spark.

Everything happens in the caller's thread. Time passes where the driver pauses; what the test has planned for a moment
happens then.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from cutline.common.errors import ConfigError, CutlineError
from cutline.common.journal.plan import TableStep
from cutline.common.journal.progress import Progress
from cutline.common.schema import TableSchema
from cutline.common.status.pipeline_status import CompactionStatus, Files
from cutline.common.store.records import Content, Place, Publication, Work
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.lead import Lead
from cutline.spark_writer.ports import Ports
from cutline.spark_writer.sinks.contract import Earlier, Foreign, TableFault


class PlayedClock:
    """Both clocks of a process; `at` plans a call, `pass_by` lets time pass."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def at(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call so many seconds from the beginning."""
        heapq.heappush(self._planned, (1000.0 + seconds, next(self._numbers), call))

    def pass_by(self, seconds: float) -> None:
        """Let time pass, with what was planned for it."""
        until = self.now + seconds
        while self._planned and self._planned[0][0] <= until:
            at, _, call = heapq.heappop(self._planned)
            self.now = max(self.now, at)
            call()
        self.now = until


class PlayedFlag:
    """A flag; whoever waits for it lets time pass."""

    def __init__(self, clock: PlayedClock) -> None:
        self._clock = clock
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._clock.pass_by(3600.0 if timeout is None else max(timeout, 0.001))
        return self._set


class HerePool(Executor):
    """A pool that works in the caller's thread."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *items: Any, **_: Any) -> Iterator[Any]:
        return iter([call(*each) for each in zip(*items, strict=True)])


@dataclass
class PlayedTable:
    """A table: of each content the paths of the staged files in it, in order; what it shows, and by whom."""

    contents: dict[Content, tuple[str, ...]] = field(default_factory=dict)
    places: dict[Place, Content] = field(default_factory=dict)
    shown: Content | None = None
    by: tuple[int, int] = (0, 0)


class PlayedLake:
    """What outlives a start: tables, the publications recorded, and all calls in order (`calls`).

    `faults` are the next errors, by the name of the call, or by name and table ("apply shop.orders").
    """

    def __init__(self) -> None:
        self.tables: dict[str, PlayedTable] = defaultdict(PlayedTable)
        self.recorded: list[int] = []
        self.calls: list[str] = []
        self.faults: dict[str, list[Exception]] = defaultdict(list)
        self.foreign: dict[str, Foreign] = {}
        self.numbers = count(1)
        self.starts: list[int] = []

    def reach(self, call: str, table_id: str = "") -> None:
        """Note a call, and raise its next planned error."""
        self.calls.append(f"{call} {table_id}".strip())
        for name in (call, f"{call} {table_id}"):
            if self.faults[name]:
                raise self.faults[name].pop(0)

    def rows(self, table_id: str) -> tuple[str, ...]:
        """What readers of a table see."""
        table = self.tables[table_id]
        return () if table.shown is None else table.contents[table.shown]


class PlayedSink:
    """The sink of one start."""

    def __init__(self, lake: PlayedLake) -> None:
        self.lake = lake
        self.w = 0
        self.upkeeps = 0

    def check_holder(self) -> None:
        self.lake.reach("check_holder")

    def begin(self, progress: Progress, journal: Any, side_by_side: Any) -> PlayedSink:
        self.lake.reach("begin")
        self.w = progress.w
        self.lake.starts.append(progress.w)
        return self

    def enter(self) -> None:
        pass

    def run(self) -> bool:
        self.lake.reach("upkeep")
        return False

    def files(self, most: int) -> Mapping[str, Files]:
        return {}

    def compaction(self) -> CompactionStatus:
        return CompactionStatus()

    def applied_elsewhere(self) -> Mapping[str, str]:
        return {}

    @property
    def place(self) -> Place:
        return Place(f"of start {self.w}")

    def foreign(self, table_id: str, work: Work | None) -> Foreign | None:
        self.lake.reach("foreign", table_id)
        return self.lake.foreign.get(table_id)

    def apply(self, step: TableStep, done: Work | None, *, checkpoint: int) -> Work:
        self.lake.reach("apply", step.table_id)
        table = self.lake.tables[step.table_id]
        fresh = done is None or done.generation != step.generation or step.truncated_at is not None
        if done is not None and done.content not in table.contents:
            raise TableFault(f"{step.table_id} has lost its content", lost=True)
        before = () if done is None or fresh else table.contents[done.content]
        content = Content(str(next(self.lake.numbers)))
        table.contents[content] = (*before, *(each.record.path for each in (*step.chunks, *step.changes)))
        table.places[self.place] = content
        return Work(content=content, place=self.place, generation=step.generation, schema=step.schema.hash)

    def carry_over(self, schema: TableSchema, work: Work, earlier: Earlier, *, checkpoint: int) -> Work:
        self.lake.reach("carry_over", schema.table_id)
        content, contents = Content(str(next(self.lake.numbers))), self.lake.tables[schema.table_id].contents
        contents[content] = (*contents[earlier.content], *contents[work.content])
        self.lake.tables[schema.table_id].places[self.place] = content
        return replace(work, content=content, place=self.place)

    def rewind(self, table_id: str, work: Work | None) -> None:
        self.lake.reach("rewind", table_id)
        places = self.lake.tables[table_id].places
        places.pop(self.place, None)
        if work is not None and work.place == self.place:
            places[self.place] = work.content

    def make_durable(self) -> None:
        self.lake.reach("make_durable")

    def show(self, record: Publication, table_id: str, allowed: Callable[[tuple[int, int]], bool]) -> bool:
        self.lake.reach("show", table_id)
        table, main = self.lake.tables[table_id], record.tables[table_id].main
        assert main is not None
        if not allowed(table.by):
            return False
        table.shown, table.by = main.content, (self.w, record.n)
        return True

    def keep(self, record: Publication, table_id: str) -> None:
        self.lake.reach("keep", table_id)

    def record(self, record: Publication, before: Publication | None, left_behind: Callable[[], list[int]]) -> None:
        self.lake.reach("record")
        self.lake.recorded.append(record.n)

    def may_be_own(self, error: Exception) -> bool:
        return isinstance(error, TableFault) or not isinstance(error, CutlineError | MemoryError)

    def check(self, *, expected: bool) -> None:
        self.lake.reach("check")

    def forget(self, table_id: str) -> None:
        pass

    def check_table(self, table_id: str) -> None:
        self.lake.reach("check_table", table_id)

    def choose(self, table_id: str, choice: str, seen: str) -> None:
        self.lake.reach("choose", table_id)
        if seen == "nothing":
            raise ConfigError("nothing awaits a choice")

    def abandon(self, newest: Publication | None) -> None:
        self.lake.reach("abandon")

    def close(self) -> None:
        pass


class PlayedEngine:
    """Opens sinks on one lake."""

    def __init__(self, lake: PlayedLake) -> None:
        self.lake = lake

    def check(self) -> None:
        self.lake.reach("engine")

    def open(self, store: PipelineStore, version: int) -> PlayedSink:
        self.lake.reach("open")
        return PlayedSink(self.lake)

    def purge(self, store: PipelineStore, version: int) -> int:
        self.lake.reach("purge")
        dropped = len(self.lake.tables)
        self.lake.tables.clear()
        return dropped


def played(clock: PlayedClock, lake: PlayedLake) -> Ports:
    """The ports of a driver that a test plays."""

    def start(call: Callable[[], None], name: str) -> Any:
        raise AssertionError("a played driver runs in the test's own thread")

    return Ports(clock=clock, flag=lambda: PlayedFlag(clock), start=start, pool=HerePool, engine=PlayedEngine(lake))


def played_lead(clock: PlayedClock) -> Lead:
    """A lead whose flags are played."""
    return Lead.by(lambda: PlayedFlag(clock))
