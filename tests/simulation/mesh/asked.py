"""The simulated source, as the real driver of a reader asks it (services/reader/ports.py).

Every call is one of a thread. A call that takes a while returns a `Pause`: the thread goes on with it later, and only
its last result reaches the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cutline.common.errors import SourceLost, SourceRefused, Unavailable
from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import High, Position, Stop
from cutline.services.reader.events import ReadChanges
from cutline.services.sources.contract import Changes, ChunkResult, Route
from tests.simulation.mesh.reading import Chunk
from tests.simulation.mesh.service import SimulatedDump

if TYPE_CHECKING:
    from tests.simulation.mesh.world import World


@dataclass(frozen=True, slots=True)
class Pause:
    """A blocking call takes so many seconds more; then `go_on` gives its result, or another pause."""

    seconds: float
    go_on: Callable[[], Any]


class Batch(list[Any]):
    """Rows, as a driver handles a batch."""

    @property
    def num_rows(self) -> int:
        """The rows."""
        return len(self)

    @property
    def nbytes(self) -> int:
        """A row has one byte."""
        return len(self)

    def get_total_buffer_size(self) -> int:
        """A row has one byte."""
        return len(self)


class AskedSource:
    """The source of one reader in one epoch."""

    several, chosen, main = False, None, None
    due = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts = self.chunks = self  # there is one server

    def follow(self, *_: Any, **__: Any) -> None:
        """There is one server."""

    prefer = release = must_have = end = rest = follow

    def read(self, split: SnapshotSplit) -> AskedChunk:
        """Begin a chunk."""
        self.world.count["driven: chunk begun"] += 1
        return AskedChunk(self.world, split)

    def close(self) -> None:
        """Nothing is open."""

    def probe(self) -> AskedSource:
        """Connect."""
        return self

    def threads_running(self) -> int:
        """It has time."""
        return 1

    def cursor(self, name: str, *, ids_taken: int) -> AskedCursor:
        """A new cursor."""
        return AskedCursor(self.world, name)


class AskedChunk:
    """The items of one chunk: batches, then its result."""

    def __init__(self, world: World, split: SnapshotSplit) -> None:
        self.world, self.split = world, split
        self.chunk: Chunk | None = None

    def __iter__(self) -> AskedChunk:
        return self

    def __next__(self) -> Any:
        if self.chunk is None:
            self.chunk = self.world.reading.chunk(self.split)
        for seconds in self.chunk.stages:
            return Pause(seconds, self.__next__)
        found = self.world.reading.some(self.chunk)
        return found if isinstance(found, ChunkResult) else Batch(found)

    def close(self) -> None:
        """End the SELECT."""
        if self.chunk is not None:
            self.chunk.stages.close()


class AskedCursor:
    """One cursor of the binlog."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.dump = SimulatedDump()

    @property
    def connected(self) -> bool:
        """Whether the next read goes on with the open dump."""
        return self.dump.connection == self.world.source.connection

    def read(
        self,
        after: Position,
        routes: Mapping[str, Route],
        *,
        until: Any,
        max_rows: int,
        max_bytes: int,
        wait_seconds: float,
        at_boundary: bool = False,
        stop: Stop | None = None,
    ) -> Any:
        """What a cursor of the world reads, in the limits of the world."""
        assert not isinstance(until, High)
        order = ReadChanges(
            cursor=self.name, after=after, routes=routes, until=until, at_boundary=at_boundary, stop=stop
        )
        return self._read(order)

    def _read(self, order: ReadChanges) -> Any:
        world = self.world
        if world.now < world.faults.refused_until:
            world.count["driven: a cursor was refused"] += 1
            raise SourceRefused("the source refuses us")
        if world.hanging.hangs:
            return Pause(0.5, lambda: Changes(position=order.after, rows=0))
        most = world.reading.most_rows()
        try:
            if not world.reading.connects(self.dump, order.after):
                raise Unavailable("the engine has not committed what the dump delivered")
            changes = world.reading.changes(self.dump, order, most)
        except SourceLost:
            world.faults.halts_expected |= world.source.servers > 1 or world.source.purged > 0
            raise
        if changes is None:
            return Pause(world.rng.uniform(0.05, 0.4), lambda: self._read(order))
        return replace(changes, batches=tuple(replace(b, batch=Batch(b.batch)) for b in changes.batches))

    def close(self) -> None:
        """Close the dump."""
        self.dump = SimulatedDump()
