"""Reading one chunk: a SELECT between two watermarks, as Arrow batches.

The order of the steps makes the chunk exact (as in DBLog, with log positions as watermarks). What low and high are
depends on what the server can tell:

| server | low | high |
|---|---|---|
| MariaDB | the position of a consistent snapshot, in which the SELECT runs | the same |
| MySQL with GTIDs | `@@gtid_executed` before the SELECT: it grows at engine commit | the flushed position after it |
| MySQL without, `replay` only | a flushed position seen 60 s ago, else the start of the file in use | as with GTIDs |

1. The table must look as the split's schema describes it.
2. low. No XA transaction may be prepared at that moment: its rows are in the binlog already, and visible only later.
3. The SELECT, decoded from the socket's bytes.
4. high.
5. The table must still look the same. A DDL that was executed and undone in between is in the binlog past low, so the
   stream sees it.
6. `exact`, where low is not high: the chunk's changes in (low, high] are read from the binlog and laid over the rows.
   `Window` reads them for one chunk after another on one dump.

A SELECT holds its table's metadata lock until its last row is taken: an ALTER queues behind it, and every writer behind
the ALTER. So the server limits its time: it ends a statement that runs longer, a write that we don't receive, and an
idle transaction, also while this process is suspended or waits for credit. Rows come in the order of the key, so the
rows received until then are complete up to the last key, and from one view: the chunk ends before that key
(`ChunkResult.cut_at`), by the same rules of low and high, and the rest is a chunk of its own, with its own watermarks.
A chunk whose rows turn out too wide for memory ends early in the same way.

A table without a key (`keyless: append`) is one chunk, the whole table in one SELECT, and its rows can be neither laid
over nor replayed: two equal rows are two rows. So the SELECT runs in a consistent snapshot, and the binlog proves what
that snapshot sees: it has no change of the table between low, taken before the snapshot began, and high, taken right
after (all in one query text, within a millisecond; if the table did change meanwhile, another snapshot is begun). The
rows are the table at low and at high: each inserted row is among them or comes after high, and none is both. On MariaDB
low is high anyway. The rows are streamed in the same bounded memory as any chunk's, but have no order in which the
SELECT could be cut and continued: its time is not limited, and an attempt that fails begins again.

Batches are given out as they are read, but a chunk counts only by its `ChunkResult`: a caller that gets an error
instead must drop the batches.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.causes import Cause, Code
from cutline.common.errors import ConfigError, NextGeneration, SourceLost, TableLocked, Unavailable
from cutline.common.masking import NO_MASKS, Masks
from cutline.common.mesh.messages import CompletedSplit, Key, SnapshotSplit
from cutline.common.ops import Op, is_any
from cutline.common.positions import FilePosition, High, Low, Position
from cutline.common.schema import OP, SEQ, TableSchema
from cutline.services.sources.contract import ChunkResult, GenerationEnded, Route
from cutline.services.sources.mysql.binlog.cursor import BinlogCursor
from cutline.services.sources.mysql.binlog.event_bodies import MAX_ROW_BYTES
from cutline.services.sources.mysql.binlog.routes import has_row_over
from cutline.services.sources.mysql.catalogue import index_of, table_schema
from cutline.services.sources.mysql.connection import Connection, RowStream, translate_errors
from cutline.services.sources.mysql.decode.result import ResultDecoder
from cutline.services.sources.mysql.kept import KeptConnection
from cutline.services.sources.mysql.keys import indistinct, locate, not_identified, select_rows
from cutline.services.sources.mysql.server import (
    FIRST_OFFSET,
    Server,
    begin_reading_between,
    begin_snapshot,
    end_snapshot,
    file_start,
    flushed_position,
    identify,
    limit_statements,
    low_at,
    xa_prepared,
    xa_prepares,
)
from cutline.services.sources.mysql.watermark import AgedPositions, ChunkHighs, KeyRanges, key_text, overlay

BATCH_BYTES = 4 << 20
MAX_CHUNK_BYTES = 64 << 20
SELECT_SECONDS = 10.0
MORE_PATIENCE = (1, 2, 4, 8, 16)
QUIET_PAUSES_SECONDS = (0.0, 0.001, 0.003, 0.01, 0.02) * 20
WINDOW_IDLE_SECONDS = 60.0
XA_PAUSES_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0)
_CHANGES_ROWS = 50_000
_CHANGES_BYTES = 16 << 20

Mode = Literal["replay", "exact"]
T = TypeVar("T")
log = logging.getLogger("cutline.reader")


class _NothingInTime(Exception):
    """The SELECT's time ended before it gave two rows, so there is no key at which to cut the chunk."""


def read_chunk(
    kept: KeptConnection,
    split: SnapshotSplit,
    *,
    mode: Mode,
    batch_bytes: int = BATCH_BYTES,
    seconds: float = SELECT_SECONDS,
    identity: Sequence[str] = (),
    aged: AgedPositions | None = None,
    window: Window | None = None,
    masks: Masks = NO_MASKS,
) -> Generator[pa.RecordBatch | ChunkResult, None, None]:
    """Read a chunk, on a connection that `kept` has or opens: batches of about `batch_bytes` with the schema's columns,
    then `ChunkResult`, when the connection is left to the next chunk.

    Each batch is read when it is requested; meanwhile the server waits, and after `seconds` it ends the SELECT: the
    chunk is cut. A SELECT that gives fewer than two rows in its time is tried again with more. In `exact` on MySQL the
    whole chunk is held until its changes are laid over it; `window` reads them from the binlog, as it does for a table
    without a key. `aged` remembers flushed positions between chunks; without it a low without GTIDs is earlier, and
    just as correct. `identity` are the columns that table_options declares unique: two rows with the same values there
    quarantine the table.

    Errors: NextGeneration (the table changed), another SourceLost (quarantine), TableLocked (by another session: read
    others meanwhile), Unavailable (this attempt failed; try again), ConfigError (`exact` where the server can't).
    Typical mistake: to use batches before `ChunkResult` came.
    """
    for patience in MORE_PATIENCE:
        try:
            yield from _read(
                kept, split, mode, batch_bytes, seconds * patience, identity, aged or AgedPositions(), window, masks
            )
            return
        except _NothingInTime:
            log.warning("a SELECT of %s gave fewer than two rows in %.0f s", split.table_id, seconds * patience)
    cause = Cause(
        Code.SOURCE_SLOW,
        f"A SELECT of {split.table_id} gave fewer than two rows in {seconds * MORE_PATIENCE[-1]:.0f} s",
        "find out what delays the server, or raise snapshot.max_select_seconds",
    )
    raise SourceLost(cause, split.table_id)


def _read(
    kept: KeptConnection,
    split: SnapshotSplit,
    mode: Mode,
    batch_bytes: int,
    seconds: float,
    identity: Sequence[str],
    aged: AgedPositions,
    window: Window | None,
    masks: Masks,
) -> Generator[pa.RecordBatch | ChunkResult, None, None]:
    keyed, given = bool(split.schema.key), split.schema
    split = replace(split, schema=given.clear)
    with ExitStack() as connections:
        conn = connections.enter_context(closing(kept.take() if keyed else kept.new()))
        server = identify(conn)
        if mode == "exact" and server.mysql and not server.gtid:
            raise ConfigError("snapshot.chunks: exact needs GTIDs on MySQL", "set gtid_mode=ON there, or use replay")
        _same_table(conn, split, identity)
        key = split.ordered.key
        index = index_of(conn, split.table_id, key) if key else None  # before low, which should be taken late
        if keyed:
            low = _low(conn, server, aged)
            limit_statements(conn, server, seconds)
        else:
            low, high = _proven(conn, server, split, aged, window)
        tally = _Tally(deadline=time.monotonic() + seconds if keyed else math.inf)
        streamed = mode == "replay" or not server.mysql or not keyed
        rows: list[pa.RecordBatch] = []
        for batch in _rows(kept, conn, split, index, batch_bytes, identity, tally):
            if streamed:
                yield tally.added(masks.masked(batch, given))
            else:
                rows.append(batch)
            del batch  # a large one must not outlive its use by the caller
        if tally.cut_at is not None or time.monotonic() >= tally.deadline:
            # the server may have ended this connection, or is still sending rows that we don't need: close it
            connections.close()
            conn = connections.enter_context(closing(kept.new()))
            if identify(conn) != server:
                raise Unavailable(
                    f"Another server answers now than when {split.table_id} was read", "the chunk is read again"
                )
        elif not server.mysql or not keyed:
            end_snapshot(conn)
        split = replace(split, split_end=tally.cut_at or split.split_end)
        if keyed:
            high = _high(conn, server, low, aged)
        if not streamed:
            whole = pa.Table.from_batches(rows, schema=split.schema.arrow)
            whole = overlay(whole, _changes(conn, split, low, high, window), split.schema.key)
            for batch in _batches(whole, batch_bytes):
                yield tally.added(masks.masked(batch, given))
        _same_table(conn, split, identity)
        if keyed:  # else it can be asked several statements at once
            connections.pop_all()
            kept.leave(conn)
    yield ChunkResult(  # with nothing open: a caller that has the end need not resume this generator
        low=low,
        high=high,
        rows=tally.rows,
        checksum=f"{tally.sum:016x}",
        schema=given,
        zero_dates=tally.zero_dates,
        cut_at=tally.cut_at,
    )


def _same_table(conn: Connection, split: SnapshotSplit, identity: Sequence[str]) -> None:
    current = table_schema(conn, split.table_id, identity)
    if current.look != split.schema.look:
        raise _changed(split.table_id, "changed by DDL")


def _changed(table_id: str, change: str) -> NextGeneration:
    sentence = f"{table_id} was {change} while it was read, so it is read again"
    return NextGeneration(Cause(Code.CHANGED, sentence), table_id)


# --- watermarks -------------------------------------------------------------------------------------------------------


def _low(conn: Connection, server: Server, aged: AgedPositions) -> Low:
    """The low watermark of now. On MariaDB the snapshot's transaction is open afterwards."""
    return _unprepared(conn, lambda: _take_low(conn, server, aged))


def _unprepared(conn: Connection, take: Callable[[], T]) -> T:
    """The result of `take`, called while no XA transaction is prepared; if one was, `take`'s transaction is ended and
    `take` is called again.

    None may be prepared and committed meanwhile either: the stream would find a commit without its rows. If the user
    may not list prepared transactions, only this second condition is checked: at the commit of one that was prepared
    before, the cursor looks for its rows in the binlog.
    """
    for pause in (*XA_PAUSES_SECONDS, None):
        prepares = xa_prepares(conn)
        if not xa_prepared(conn):
            taken = take()
            if not xa_prepared(conn) and xa_prepares(conn) == prepares:
                return taken
            end_snapshot(conn)
        if pause is not None:
            time.sleep(pause)
    raise Unavailable(
        "No moment without prepared XA transactions was found for reading a chunk",
        "commit or roll back those that XA RECOVER lists",
    )


def _take_low(conn: Connection, server: Server, aged: AgedPositions) -> Low:
    if not server.mysql:
        at = begin_snapshot(conn)
    else:  # with GTIDs the low does not depend on how long a commit can stay hidden
        at = file_start(conn, server) if server.gtid else _aged(conn, server, aged)
    return low_at(conn, server, at)


def _aged(conn: Connection, server: Server, aged: AgedPositions) -> FilePosition:
    """The low without GTIDs: the file's start or an aged position, the later of the two; all before it is committed."""
    flushed = flushed_position(conn, server)
    now = time.monotonic()
    aged.saw(server.identity, flushed, now=now)
    start = FilePosition(flushed.file, FIRST_OFFSET)
    return max(start, aged.aged(server.identity, now=now) or start)


def _high(conn: Connection, server: Server, low: Low, aged: AgedPositions) -> High:
    if not server.mysql:
        return High(server=low.server, file=low.file, offset=low.offset)
    at = flushed_position(conn, server)
    if not server.gtid:
        aged.saw(server.identity, at, now=time.monotonic())
    return High(server=server.identity, file=at.file, offset=at.offset)


def _proven(
    conn: Connection,
    server: Server,
    split: SnapshotSplit,
    aged: AgedPositions,
    window: Window | None,
) -> tuple[Low, High]:
    """Begin a transaction on `conn` that sees the table as it is at low and at high."""
    if not server.mysql:  # begun by taking low
        low = _low(conn, server, aged)
        return low, _high(conn, server, low, aged)

    def take() -> tuple[Low, High]:
        at = _aged(conn, server, aged)
        gtids, end = begin_reading_between(conn, server)
        low = Low(server=server.identity, file=at.file, offset=at.offset, gtids=str(gtids))
        return low, High(server=server.identity, file=end.file, offset=end.offset)

    for pause in (*QUIET_PAUSES_SECONDS, None):
        low, high = _unprepared(conn, take)
        if not _changes(conn, split, low, high, window).num_rows:
            return low, high
        end_snapshot(conn)
        if pause is not None:
            time.sleep(pause)
    raise Unavailable(
        f"No moment without an INSERT was found to begin reading {split.table_id}, which has no key",
        "pause its writers for a few milliseconds, or add a primary key",
    )


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Tally:
    rows: int = 0
    sum: int = 0
    zero_dates: Mapping[str, int] = field(default_factory=dict)
    deadline: float  # of the SELECT, monotonic seconds
    cut_at: Key | None = None

    def added(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        self.sum = (self.sum + checksum_of(batch)) % 2**64
        return batch


def _rows(
    kept: KeptConnection,
    conn: Connection,
    split: SnapshotSplit,
    index: str | None,
    batch_bytes: int,
    identity: Sequence[str],
    tally: _Tally,
) -> Iterator[pa.RecordBatch]:
    """The chunk's rows in the order of its key, up to `tally.cut_at` if time or memory ends them early.

    The newest batch is always held back: a chunk that is cut ends before the last key read, so the row of that key must
    not have been given out.
    """
    schema = split.ordered
    decoder = ResultDecoder(schema)
    blocks = RowStream(conn, select_rows(schema, split.split_start, split.split_end, index=index))
    held: pa.RecordBatch | None = None
    given, given_bytes, over = 0, 0, False
    while not (decoder.done or over):
        try:
            try:
                with translate_errors(schema.table_id, schema.table_id):
                    decoder.feed(next(blocks))
            except TableLocked:
                raise
            except Unavailable:
                if time.monotonic() < tally.deadline:
                    raise
                over = True
            batch = decoder.take() if decoder.size >= batch_bytes or decoder.done or over else None
        except ValueError as error:  # was the table changed before the SELECT?
            with closing(kept.new()) as other:
                _same_table(other, split, identity)
            sentence = f"A row of {schema.table_id} can't be read: {error}"
            cause = Cause(Code.UNREADABLE, sentence, "report it if the server reads the row well")
            raise SourceLost(cause, schema.table_id) from error
        ready = None
        if batch is not None:
            _check(batch, schema, decoder.zero_dates)
            if identity:
                _each_once(batch, held, schema)
            ready, held = held, batch
            if ready is not None:
                given, given_bytes = given + ready.num_rows, given_bytes + ready.nbytes
            too_wide = bool(schema.key) and given_bytes + held.nbytes > MAX_CHUNK_BYTES and given + held.num_rows > 1
            over = over or too_wide
        if over and not decoder.done:
            if held is None or given + held.num_rows < 2:
                raise _NothingInTime
            last = held.slice(held.num_rows - 1)
            tally.cut_at = tuple(key_text(column, last[column.name][0].as_py()) for column in schema.key_columns)
            held = held.slice(0, held.num_rows - 1) if held.num_rows > 1 else None
            del last
        del batch
        if ready is not None:
            yield ready
        del ready
    if decoder.done and time.monotonic() < tally.deadline:  # else the connection is closed, if it is not yet
        with translate_errors(schema.table_id, schema.table_id):
            blocks.end()
    tally.zero_dates = decoder.zero_dates
    if held is not None:
        yield held


def _check(batch: pa.RecordBatch, schema: TableSchema, unfit: Collection[str]) -> None:
    """SourceLost if a value of the key became null, a row is over MAX_ROW_BYTES, or a column that has `unfit` values is
    BIGINT UNSIGNED as long.
    """
    for column in map(schema.column, unfit):
        if schema.is_long(column):
            raise SourceLost(schema.too_large(column), schema.table_id)
    for name in schema.key:
        if batch.column(name).null_count:
            raise SourceLost(indistinct(schema, name), schema.table_id)
    if has_row_over(batch, MAX_ROW_BYTES):
        sentence = f"{schema.table_id} has a row over {MAX_ROW_BYTES >> 20} MiB"
        raise SourceLost(Cause(Code.VALUE, sentence, "leave the table out of the list"), schema.table_id)


def _each_once(batch: pa.RecordBatch, before: pa.RecordBatch | None, schema: TableSchema) -> None:
    """SourceLost if two rows in sequence have the same key; `before` is the batch before, if any."""
    keys = pa.Table.from_batches([batch]).select(schema.key)
    if before is not None:
        last = pa.Table.from_batches([before.slice(before.num_rows - 1)]).select(schema.key)
        keys = pa.concat_tables([last, keys])
    same = [pc.equal(keys[name][1:], keys[name][:-1]) for name in schema.key]
    if keys.num_rows > 1 and pc.any(reduce(pc.and_, same)).as_py():
        raise SourceLost(not_identified(schema), schema.table_id)


def _batches(table: pa.Table, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    rows = max(1, table.num_rows * batch_bytes // max(1, table.nbytes))
    yield from table.combine_chunks().to_batches(max_chunksize=rows)


def checksum_of(batch: pa.RecordBatch) -> int:
    """A 64-bit sum over a batch's values, at memory speed; the order of columns counts, padding does not.

    It detects bytes that were lost or changed on the way or on disk, not changes made on purpose.
    """
    total: int = batch.num_rows
    for at, column in enumerate(batch.columns):
        total += (2 * at + 1) * (column.null_count + sum(_words(values) for values in _values(column)))
    return total % 2**64


def _values(column: pa.Array) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    """The bytes of a column's values, without validity and offsets."""
    if pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    buffers = column.buffers()
    if buffers[-1] is None or not len(column):
        return
    data = np.frombuffer(buffers[-1], dtype=np.uint8)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        offsets = np.frombuffer(buffers[1], dtype=np.int32)
        yield data[offsets[column.offset] : offsets[column.offset + len(column)]]
    else:
        width = column.type.bit_width // 8
        yield data[column.offset * width : (column.offset + len(column)) * width]


def _words(data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    whole = len(data) & ~7
    return int(data[:whole].view(np.uint64).sum(dtype=np.uint64)) + int.from_bytes(data[whole:].tobytes(), "little")


# --- exact ------------------------------------------------------------------------------------------------------------


class Window:
    """Reads the changes between a chunk's watermarks from the binlog, for one chunk after another on one dump.

    The dump stays where a chunk's high was reached. The next chunk's changes are read from there if its low covers
    everything before that position; events in between are skipped undecoded. Otherwise (a commit can be flushed, and
    read here, before a low covers it), and after an error, the dump begins anew by GTID, for which the server reads a
    binlog file from its start. One thread at a time; `cursor` must have a server id that no other replica has.
    """

    def __init__(self, cursor: BinlogCursor) -> None:
        self._cursor = cursor
        self._at: Position | None = None  # where the dump stands
        self._used = 0.0

    def changes(self, split: SnapshotSplit, low: Low, high: High) -> pa.Table:
        """The changes of the chunk's table in (low, high], in order: the schema's columns, `OP` and `SEQ`.

        NextGeneration if a DDL or TRUNCATE lies in between.
        """
        schema, table_id = split.schema, split.table_id
        route = Route(table_id=table_id, generation=split.generation, schema=schema, low=low, high=high)
        until = ChunkHighs(schema.key_columns, [CompletedSplit(split_start=None, split_end=None, high=high)])
        found: list[pa.Table] = []
        at, self._at = self._at, None
        if at is None or at.server != low.server or low.passed_by(at):
            by_gtid = Position(server=low.server, file="", offset=0, gtids=low.gtids)
            at = by_gtid if low.gtids else low.start()  # no GTIDs: the server has executed none yet
        taken = 0
        while not high.reached_by(at):
            read = self._cursor.read(
                at,
                {table_id: route},
                until=high,
                max_rows=_CHANGES_ROWS,
                max_bytes=_CHANGES_BYTES,
                wait_seconds=1.0,
            )
            for fault in read.faults:
                raise (NextGeneration if isinstance(fault, GenerationEnded) else SourceLost)(fault.cause, table_id)
            if read.schemas:
                raise _changed(table_id, "changed by DDL")
            for change in read.batches:
                table = pa.Table.from_batches([change.batch])
                table = table.filter(pc.invert(until.kept(table, server=high.server, locate=None)))
                table = table.select([*schema.arrow.names, OP, SEQ])
                found.append(table.set_column(table.num_columns - 1, SEQ, pc.add(table[SEQ], taken)))
            at, taken = read.position, taken + read.rows
        self._at, self._used = at, time.monotonic()
        if not found:
            return pa.table({OP: [], SEQ: []})
        changes = pa.concat_tables(found, promote_options="permissive")
        if pc.any(is_any(changes[OP], Op.TRUNCATE)).as_py():
            raise _changed(table_id, "truncated")
        return changes

    @property
    def due(self) -> bool:
        """Whether `rest` has something to close."""
        return self._cursor.connected and time.monotonic() - self._used > WINDOW_IDLE_SECONDS

    def rest(self) -> None:
        """Close the dump if no chunk has needed it for a while; call it from time to time."""
        if self.due:
            self.close()

    def close(self) -> None:
        """Close the dump; the next call of `changes` begins anew."""
        self._at = None
        self._cursor.close()


def _changes(conn: Connection, split: SnapshotSplit, low: Low, high: High, window: Window | None) -> pa.Table:
    """The changes of this chunk in (low, high], in order; see `Window.changes`."""
    if window is None:
        raise ConfigError("This chunk needs changes from the binlog and can't be read on MySQL without a window")
    changes = window.changes(split, low, high)
    return changes.filter(_inside(conn, split, changes.select(split.schema.key))) if changes.num_rows else changes


def _inside(conn: Connection, split: SnapshotSplit, keys: pa.Table) -> pa.Array:
    """Which keys lie in the split's range."""
    ends = [end for end in (split.split_start, split.split_end) if end is not None]
    ranges = KeyRanges(split.schema.key_columns, ends)
    found = ranges.find(keys, lambda bounds, asked: locate(conn, split.schema, bounds, asked))
    return pa.array(found == (0 if split.split_start is None else 1))
