"""`select_to_arrow` and `binlog_to_arrow`: the readers' two decoders alone, each in a fresh process.

The batches are dropped. CPU is that of the process (all threads, from the first statement on), without the server's.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from cutline.common.config.pipeline import SnapshotConfig
from cutline.common.positions import High, Low, Position
from cutline.services.enumerator.splitter import KeyRange, Splitter
from cutline.services.reader.driver import CHANGES_BYTES, CHANGES_ROWS, CHANGES_WAIT_SECONDS
from cutline.services.sources.contract import ChunkResult, Route
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.catalogue import describe, table_schema
from cutline.services.sources.mysql.chunk import read_chunk
from cutline.services.sources.mysql.connection import Source, connect
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.keys import key_range
from cutline.services.sources.mysql.server import flushed_position, gtid_executed, identify, position_at
from cutline.services.sources.mysql.watermark import AgedPositions
from tools.bench.meter import peak_mib

Figures = dict[str, Any]
Result = TypeVar("Result")


def in_a_fresh_process(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run `work` in a new Python process and return its result."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def place(source: Source) -> Position:
    """The end of the server's binlog; nobody may be writing to it."""
    with closing(connect(source)) as connection:
        server = identify(connection)
        at = flushed_position(connection, server)
        if not server.mysql:
            return position_at(connection, server, at)
        gtids = str(gtid_executed(connection)) if server.gtid else ""
    return Position(server=server.identity, file=at.file, offset=at.offset, gtids=gtids)


class Stopwatch:
    """Wall time and CPU time of this process since it was created."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def figures(self, rows: int) -> Figures:
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return {
            "rows": rows,
            "seconds": round(wall, 2),
            "rows_per_second": round(rows / wall),
            "cpu_seconds": round(cpu, 3),
            "rows_per_cpu_second": round(rows / cpu),
            "peak_rss_mib": round(peak_mib(os.getpid())),
        }


def select_to_arrow(source: Source, table: str) -> Figures:
    """Read all chunks of a table one after the other, split as a pipeline splits them by default."""

    opened = partial(connect, source)

    with closing(opened()) as connection:
        server = identify(connection)
        info = describe(connection, server, table)
        low, high = key_range(connection, info.schema) or (0, 0)
    splitter = Splitter(
        table_id=table,
        generation=1,
        schema=info.schema,
        chunk_rows=SnapshotConfig().chunk_rows,
        estimate=info.rows,
        row_bytes=info.row_bytes,
        integer_key=info.integer_key,
    )
    splitter.wants()
    splitter.ranged(KeyRange(low=low, high=high))
    splits = splitter.take(1_000_000)
    aged = AgedPositions()
    stopwatch, rows, ended = Stopwatch(), 0, 0
    with closing(KeptConnection(opened)) as kept:
        for split in splits:
            for item in read_chunk(kept, split, mode="replay", aged=aged, seconds=600.0):
                if isinstance(item, ChunkResult):
                    ended += item.rows
                else:
                    rows += item.num_rows
    if rows != ended or not splitter.done:
        raise RuntimeError(f"the chunks of {table} ended with {ended} rows, but gave {rows}")
    return stopwatch.figures(rows) | {"chunks": len(splits)}


def binlog_to_arrow(source: Source, table: str, begin: Position, end: Position) -> Figures:
    """Read a backlog of one table's changes, in reads of the size that a reader uses."""

    opened = partial(connect, source)

    with closing(opened()) as connection:
        schema = table_schema(connection, table)
    low = Low(server=begin.server, file=begin.file, offset=begin.offset, gtids=begin.gtids)
    high = High(server=begin.server, file=begin.file, offset=begin.offset)
    route = Route(table_id=table, generation=1, schema=schema, low=low, high=high)
    stopwatch, rows, reads, position = Stopwatch(), 0, 0, begin
    with closing(BinlogCursor(opened, server_id=3_000_000_001)) as cursor:
        while not position.not_before(end):
            got = cursor.read(
                position,
                {table: route},
                until=end,
                max_rows=CHANGES_ROWS,
                max_bytes=CHANGES_BYTES,
                wait_seconds=CHANGES_WAIT_SECONDS,
            )
            if got.faults:
                raise RuntimeError(f"the backlog could not be read: {got.faults[0].cause}")
            rows += sum(batch.batch.num_rows for batch in got.batches)
            position, reads = got.position, reads + 1
    return stopwatch.figures(rows) | {"reads": reads}
