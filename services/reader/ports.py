"""The reader's own port, beside those of every driver (common/mesh/ports.py): the source.

All calls but those of `Hosts` block. A driver makes those about chunks in one thread, those of each cursor in another,
and those of a probe in a third, so a server that hangs in one holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Protocol

import pyarrow as pa

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.mesh.messages import SnapshotSplit
from cutline.common.positions import High, Position, Stop
from cutline.common.status.pipeline_status import PipelineStatus
from cutline.services.sources.contract import Changes, ChunkResult, Route

ChunkItems = Generator[pa.RecordBatch | ChunkResult, None, None]


class Hosts(Protocol):
    """Which of the source's servers this service goes to. Calls never block; any thread may make them."""

    @property
    def several(self) -> bool:
        """Whether there is a choice."""

    @property
    def chosen(self) -> str | None:
        """The server of the newest connection; None if there was none yet."""

    @property
    def main(self) -> str | None:
        """The server that the main cursor reads, as far as this service knows."""

    def follow(self, status: PipelineStatus, *, now: float) -> None:
        """Go where the pipeline's other services go, by their status; `now` in seconds since 1970."""

    def prefer(self, host: str | None) -> None:
        """Go to this server first, unless the main cursor reads another one."""

    def release(self) -> None:
        """The main cursor has no connection, so any server may be next."""

    def must_have(self, cursor: str, position: Position | None) -> None:
        """What this cursor has read, which a server that takes over must have; None: the cursor is no more."""

    def end(self) -> None:
        """Break every connection that is still open, and open no more."""


class Chunks(Protocol):
    """The chunks of one source, one after the other, in one thread."""

    def read(self, split: SnapshotSplit) -> ChunkItems:
        """Begin a chunk, once the one before was closed: its batches, then its result. The source is asked with each
        `next`. Raises TableLocked, NextGeneration or another SourceLost (of this table), Unavailable, SourceRefused,
        ConfigError. The typical mistake: to count rows before the result came."""

    @property
    def due(self) -> bool:
        """Whether `rest` has something to close; any thread may ask."""

    def rest(self) -> None:
        """Close what no chunk has needed for a while; call it from time to time."""

    def close(self) -> None:
        """Close everything; the last call."""


class Probe(Protocol):
    """An open connection that only asks how the server does."""

    def threads_running(self) -> int:
        """How many threads of the server are at work. Raises Unavailable or SourceRefused."""

    def close(self) -> None:
        """Close the connection; never raises."""


class Cursor(Protocol):
    """One cursor of the binlog, in one thread."""

    @property
    def connected(self) -> bool:
        """Whether the next read can continue an open dump."""

    def read(
        self,
        after: Position,
        routes: Mapping[str, Route],
        *,
        until: Position | High | None,
        max_rows: int,
        max_bytes: int,
        wait_seconds: float,
        at_boundary: bool = False,
        stop: Stop | None = None,
    ) -> Changes:
        """Everything for the routes after a position, until there is enough. After Unavailable, nothing is lost: the
        same call continues. Also raises SourceLost, ServerIdTaken, SourceRefused, ConfigError."""

    def close(self) -> None:
        """Close the dump, if one is open; the next read connects anew."""


class Source(Protocol):
    """One source, as one reader in one epoch asks it."""

    @property
    def hosts(self) -> Hosts:
        """Its servers."""

    @property
    def chunks(self) -> Chunks:
        """Its chunks."""

    def probe(self) -> Probe:
        """Connect, to see how the server does. Raises Unavailable or SourceRefused."""

    def cursor(self, name: str, *, ids_taken: int) -> Cursor:
        """A new cursor, main or catch-up, which asks nothing of the source yet. `ids_taken`: that many server ids have
        turned out to be another client's."""


OpenSource = Callable[[PipelineConfig, int], Source]
"""Of a pipeline's definition and the reader's number."""
