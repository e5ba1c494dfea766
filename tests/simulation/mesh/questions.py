"""What a leader asks of the source: its tables, their key ranges, the stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cutline.common.causes import Cause, Code
from cutline.common.errors import SourceLost
from cutline.common.mesh.machine import Effect, Event
from cutline.common.positions import High, Low, Stop
from cutline.services.enumerator.events import (
    BoundFound,
    DescribeTable,
    EpochFailed,
    FindBound,
    FindPlace,
    FindRange,
    FindStop,
    FindTables,
    PlaceFound,
    RangeFound,
    SplittingOutdated,
    StopFound,
    TableDescribed,
    TableFound,
    TableLockedOut,
    TablesFound,
)
from cutline.services.enumerator.splitter import KeyRange
from tests.simulation.checks.failure import Failure
from tests.simulation.mesh.service import SimulatedService
from tests.simulation.source.transactions import KINDS
from tests.support.causes import because

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


class Questions:
    """What a leader asks of the source: its tables, their key ranges, the stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known_tables = list(world.shape.tables)
        if len(self.known_tables) > 2 and world.rng.random() < 0.3:
            self.known_tables.pop()  # created later, as far as the pipeline can tell
        self.keyless = world.rng.random() < 0.1
        self.quarantined: set[str] = set()
        self.late: set[str] = set()  # tables that appeared after the pipeline had begun
        self.began: dict[int, Low] = {}  # by epoch: where its stream without a snapshot began
        self.stop: Stop | None = None

    def asked(self, service: SimulatedService, question: Effect) -> Callable[[], Event | None]:
        """What answers a question of a leader, once the source does."""
        world = self.world
        match question:
            case FindPlace(table_id=table, generation=generation, low=low):
                return lambda: self.find_place(table, generation, low)
            case FindTables(begins=begins, known=known):
                starts = begins and world.shape.start and not question.anew
                start = world.source.places.start(world.shape.start) if starts else (None, None)
                if start[0] is not None and service.leader is not None:
                    self.began[service.leader.epoch] = start[0][0]
                return lambda: self.find_tables(service, begins, known, *start)
            case FindStop(stop=stop):
                return lambda: self.find_stop(service, stop)
            case DescribeTable(table_id=table, generation=generation):
                return lambda: TableDescribed(generation=generation, table=self.table_described(table))
            case FindRange():
                return lambda: self.find_range(question)
            case FindBound():
                return lambda: self.find_bound(question)
        raise Failure(f"nobody can answer {question}")

    def table_found(self, table: str) -> TableFound:
        source, rng = self.world.source, self.world.rng
        rows = len(source.engine.visible[table])
        estimate = max(0, rows + rng.randrange(-rows // 2 - 1, rows + 2))
        return TableFound(
            table_id=table,
            schema=source.schema(table),
            estimate=estimate,
            row_bytes=100,
            integer_key=KINDS[table].integer,
        )

    def find_stop(self, service: SimulatedService, stop: Stop) -> Event:
        world = self.world
        try:
            return StopFound(place=world.source.places.find_stop(stop, world.now))
        except SourceLost as error:
            world.faults.halts_expected = True
            return EpochFailed(epoch=service.epoch, cause=error.cause, halts=True)

    def table_described(self, table: str) -> TableFound:
        world = self.world
        if table == "shop.keyless":
            return TableFound(table_id=table, fault=because("it has no key"))
        if world.goes_wrong("table gone for a moment", 0.2):  # between a DROP and the CREATE after it
            world.count["table gone for a moment"] += 1
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
        world = self.world
        assert service.leader is not None
        assert service.leader.enumerator is not None
        if not service.leader.enumerator.tables:
            self.late.clear()
        elif len(self.known_tables) < len(world.shape.tables):
            self.late.update(world.shape.tables[len(self.known_tables) :])
        if len(self.known_tables) < len(world.shape.tables) and world.now > 3:
            self.known_tables = list(world.shape.tables)
            world.count["table added later"] += 1
        selected = world.operators.selected(service.leader.definition)
        found = [self.table_found(t) for t in self.known_tables if t in selected]
        unselected = known - selected - {"shop.keyless"}
        world.count["table left the definition"] += len(unselected)
        if self.keyless:
            found.append(TableFound(table_id="shop.keyless", fault=because("it has no key")))
            self.quarantined.add("shop.keyless")
            world.count["table quarantined at once"] += 1
        if not begins or world.shape.stop is None:
            return TablesFound(tables=tuple(found), unselected=unselected, start=start, looked_at=looked_at)
        self.stop = self.stop or world.source.places.some_stop(*world.shape.stop, now=world.now)
        world.count[f"stop by {world.shape.stop[0]}"] += 1
        return TablesFound(tables=tuple(found), start=start, looked_at=looked_at, stop=self.stop)

    def find_place(self, table: str, generation: int, low: Low) -> Event:
        world = self.world
        kept = world.source.cursor.keeps(low) and world.operators.rng.random() > 0.1
        world.count["paused table goes on" if kept else "paused table has to be read again"] += 1
        return PlaceFound(table_id=table, generation=generation, kept=kept)

    def locked_out(self, order: FindRange | FindBound) -> Event | None:
        world = self.world
        if not world.goes_wrong("question about a locked table", 0.05, world.reading.locks):
            return None
        world.count["question about a locked table"] += 1
        cause = Cause(Code.LOCKED, "locked by another session")
        return TableLockedOut(table_id=order.table_id, generation=order.generation, cause=cause)

    def find_range(self, order: FindRange) -> Event | None:
        if (locked := self.locked_out(order)) is not None:
            return locked
        keys = [key[0] for key in self.world.source.engine.visible[order.table_id]]
        found = KeyRange(low=min(keys, default=None), high=max(keys, default=None))
        self.world.count["split of an empty table"] += not keys
        return RangeFound(table_id=order.table_id, generation=order.generation, range=found)

    def find_bound(self, order: FindBound) -> Event:
        world = self.world
        if (locked := self.locked_out(order)) is not None:
            return locked
        source = world.source
        if world.goes_wrong("splitting failed", 0.01):
            world.count["splitting failed"] += 1
            return SplittingOutdated(
                table_id=order.table_id, generation=order.generation, cause=because("definition changed")
            )
        rows, inside = source.engine.visible[order.table_id], source.reads.inside
        keys = sorted(k for k in rows if inside(order.table_id, k, order.start, None))
        end = source.reads.literal(order.table_id, keys[order.rows]) if len(keys) > order.rows else None
        world.count["split by a walk of the index"] += end is not None
        return BoundFound(table_id=order.table_id, generation=order.generation, end=end)
