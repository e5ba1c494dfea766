"""Reading chunks at the pace that the limits and the source allow: one after the other, each read one batch ahead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import pyarrow as pa

from cutline.common.causes import Cause, Code
from cutline.common.errors import SourceRefused, Unavailable
from cutline.common.limits import Limits
from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.mesh.ports import Ports
from cutline.common.waits import Party, Wait
from cutline.services.reader.pace import Pace
from cutline.services.reader.ports import ChunkItems, Source
from cutline.services.sources.contract import ChunkResult

LARGE_BYTES = 16 << 20
REST_SECONDS = 2.5  # between two looks for what no chunk has needed for a while
BUSY_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0
SILENT_SECONDS = 10.0
log = logging.getLogger("cutline.reader")


class ChunkReading:
    """The chunks of one reader. Each is read one batch ahead of the one that is asked for, so that SELECT and sending
    overlap; but not after a large batch, which is held alone.

    All chunks are read in one thread: one chunk is closed before the next one begins. Another one asks how the server
    does meanwhile.
    """

    def __init__(
        self, source: Source, *, max_threads_running: int | None, ports: Ports, name: str = "reader"
    ) -> None:
        """`name`: the pipeline's, for its threads."""
        self.split: SnapshotSplit
        self._source, self._chunks, self._clock = source, source.chunks, ports.clock
        self._obstacle: Wait | None = None  # while the source is too busy or unreachable
        self._asked_at: tuple[float, float] | None = None  # since then an answer is awaited: monotonic, and since 1970
        self._max_threads_running = max_threads_running
        self._quiet_at = float("-inf")  # when the source was last seen to be not too busy, monotonic
        self._pace = Pace(now=self._clock.monotonic())
        self._limits_changed = asyncio.Event()
        self._batches: ChunkItems | None = None
        own = ports.pools.own
        self._thread, self._questions = own(f"{name}-chunks", 1), own(f"{name}-questions", 1)
        self._ahead: asyncio.Task[pa.RecordBatch | ChunkResult] | None = None

    @property
    def waiting_for(self) -> Wait | None:
        """The obstacle, while the source is too busy, unreachable, or silent."""
        if self._obstacle is not None or self._asked_at is None:
            return self._obstacle
        asked, since = self._asked_at
        silent = self._clock.monotonic() - asked
        if silent < SILENT_SECONDS:
            return None
        sentence = f"it has sent nothing of {self.split.table_id} for {silent:.0f} s"
        return Wait(Party.SOURCE, "the source", Cause(Code.UNAVAILABLE, sentence, "is it up?"), since)

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """The source is asked something: while this lasts too long, `waiting_for` says so."""
        self._asked_at = self._clock.monotonic(), self._clock.time()
        try:
            yield
        finally:
            self._asked_at = None

    def begin(self, split: SnapshotSplit) -> None:
        """Start reading this chunk; the one before has ended, or failed."""
        self.split, self._batches, self._ahead = split, self._chunks.read(split), None

    async def next(self) -> pa.RecordBatch | ChunkResult:
        """The next batch, or the end, after which there is no more. Raises what `Chunks.read` raises."""
        with self._awaited():
            item = await (self._ahead or self._read())
        alone = isinstance(item, ChunkResult) or item.nbytes > LARGE_BYTES
        self._ahead = None if alone else self._read()
        return item

    def _read(self) -> asyncio.Task[pa.RecordBatch | ChunkResult]:
        assert self._batches is not None
        return asyncio.create_task(self._thread.call(partial(next, self._batches)))

    async def rest(self) -> None:
        """Close what no chunk has needed for a while; never returns."""
        while True:
            await asyncio.sleep(REST_SECONDS)
            if self._chunks.due:
                await self._thread.call(self._chunks.rest)

    def close(self) -> None:
        """End the SELECT, and all connections, as soon as the batch being read has arrived."""
        if self._ahead is not None:
            self._ahead.cancel()
        self._thread.end(self._close)
        self._questions.end()

    def _close(self) -> None:
        with closing(self._chunks):
            if self._batches is not None:
                self._batches.close()

    # --- pace ---

    def set_limits(self, limits: Limits) -> None:
        """Apply these limits from now on, also to a batch that waits already."""
        self._pace.set(limits, now=self._clock.monotonic())
        self._limits_changed.set()

    async def spend(self, rows: int, size: int) -> None:
        """Return when `rows` rows of `size` bytes may be given out."""
        self._pace.spend(rows, size, now=self._clock.monotonic())
        while (seconds := self._pace.seconds_left(now=self._clock.monotonic())) > 0:
            self._limits_changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._limits_changed.wait(), seconds)

    async def source_quiet(self) -> None:
        """Return when at most `max_threads_running` threads of the server are at work.

        Called between batches, so that a long chunk slows down too; the server is asked once a second at most.
        """
        most, since = self._max_threads_running, self._clock.time()
        if most is None or self._clock.monotonic() - self._quiet_at < BUSY_PAUSE_SECONDS:
            return
        probe = None
        try:
            with self._awaited():
                probe = await self._questions.call(self._source.probe)
            while (running := await self._questions.call(probe.threads_running)) > most:
                measured = f"Threads_running is {running}, over snapshot.max_threads_running {most}"
                if self._obstacle is None:
                    log.warning("no chunk is read while the source is busy: %s", measured)
                seconds = self._clock.time() - since
                what = f"the source to become less busy ({seconds:.0f} s so far)"
                self._obstacle = Wait(Party.BUSY_SOURCE, what, Cause(Code.BUSY, measured), since)
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
        except (Unavailable, SourceRefused) as error:  # reading the chunk will fail too, and report it
            log.warning("could not ask the source how busy it is: %s", error)
        finally:
            self._obstacle, self._quiet_at = None, self._clock.monotonic()
            if probe is not None:
                probe.close()

    async def source_reachable(self, pause: float) -> None:
        """Return when the source accepts connections, after `pause` seconds at the earliest.

        A chunk has few attempts: an unreachable server must not use them up.
        """
        since = self._clock.time()
        try:
            while True:
                await asyncio.sleep(min(pause, LONGEST_PAUSE_SECONDS))
                try:
                    with self._awaited():
                        (await self._questions.call(self._source.probe)).close()
                    return
                except (Unavailable, SourceRefused) as error:
                    what = f"the source (unreachable for {self._clock.time() - since:.0f} s)"
                    self._obstacle = Wait(Party.SOURCE, what, error.cause, since)
                    pause *= 2
        finally:
            self._obstacle = None
