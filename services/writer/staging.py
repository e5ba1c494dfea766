"""Record batches to staged Parquet files, which a writer puts into the store for the Spark writer.

Two kinds of file, both Parquet (common/parquet.py) with the batches' own field ids (`PARQUET:field_id`):

- `OpenChunk`: the rows of one attempt at one chunk; only the table's columns, so that the lake can adopt the file;
- `OpenChanges`: the changes of one table, generation and schema between two markers; the table's columns, then
  `META_FIELDS`, `_seq` absolute.

`Staging` has the open files of one writer.

Memory and file descriptors are bounded, however many files are being written (one for each table that changes). A file
holds rows back until they fill a row group of `ROW_GROUP_BYTES`; only then, or when it is closed, is it opened in the
store. All files of one `Budget` together hold back at most its limit plus one batch. Above it, the fullest write a row
group early. At most `OPEN_FILES` are open at a time; other files spill their rows to a temporary file that all share.

No file has its name in the store before `close`. All calls block and are for one thread at a time, except `close`:
different files may be closed in different threads, once `Budget.remove` was called for each.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common import parquet
from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.file_metrics import file_metrics
from cutline.common.measures import TableRows
from cutline.common.ops import Op, is_any
from cutline.common.schema import META_FIELDS, SEQ
from cutline.common.spill import Extent, Spill
from cutline.common.store.records import ChangeCounts, FileMetrics, PartRef, StagedFile
from cutline.common.store.staging_file import StagingFile
from cutline.common.store.store import PipelineStore, file_name
from cutline.services.writer.machine import Append, ChangesFile, ChunkFile, Drop, StageCut

ROW_GROUP_BYTES = 32 << 20
HELD_BACK_BYTES = 64 << 20
SPILLED_GROUP_BYTES = 4 << 20
OPEN_FILES = 64
WRITE_BYTES = 128 << 10
COLUMN_BYTES = 512
"""The memory that each column of a batch takes beside its values."""
CLOSING_THREADS = 8
METRICS_COLUMNS = 8192
"""The most columns of which a writer gives metrics at one cut, since an event loop encodes and decodes them at once:
about 60 bytes each."""
OPERATIONS = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete", Op.TRUNCATE: "truncate"}
"""The operations that are counted, by the metrics' names; an image before an update counts with its update."""
COUNTED = ("insert", "update", "delete")
"""Those of them that the journal counts, in the order of `ChangeCounts`."""
_META = pa.schema(META_FIELDS)


class Budget:
    """Shared by the files of one writer: the bytes that they hold back, the number of open files, the spill."""

    def __init__(self, limit_bytes: int = HELD_BACK_BYTES, open_files: int = OPEN_FILES) -> None:
        self._limit, self._open_files = limit_bytes, open_files
        self._files: set[_ParquetFile] = set()
        self._held_bytes = self._open = 0
        self._spill: Spill | None = None

    def hold(self, file: _ParquetFile, size: int) -> None:
        """Count bytes that a file holds back, and make room if the limit is passed."""
        self._files.add(file)
        self._held_bytes += size
        if file.held_bytes >= ROW_GROUP_BYTES:
            self._relieve(file)
        if self._held_bytes > self._limit:
            # Down to half the limit, so that not every batch has to search for the fullest.
            for fullest in sorted(self._files, key=lambda held: held.held_bytes, reverse=True):
                self._relieve(fullest)
                if self._held_bytes <= self._limit // 2:
                    break

    def _relieve(self, file: _ParquetFile) -> None:
        self._held_bytes -= file.held_bytes
        if not file.is_open and self._open >= self._open_files:
            self._spill = self._spill or Spill()
            file.spill(self._spill)
        else:
            self._open += not file.is_open
            file.flush()

    def remove(self, file: _ParquetFile) -> None:
        """Stop counting a file; harmless if it is not counted."""
        if file in self._files:
            self._files.remove(file)
            self._held_bytes -= file.held_bytes
            self._open -= file.is_open

    def turn(self) -> None:
        """Begin a new spill with the next rows. The old one is deleted once the files of its checkpoint are written."""
        self._spill = None


class _ParquetFile:
    """A growing Parquet file. The first batch sets its schema, and every later batch must have the same."""

    def __init__(self, store: PipelineStore, name: str, budget: Budget | None, *, measured: bool = False) -> None:
        self._store = store
        self._name = name
        self._budget = budget or Budget()
        self._taken: pa.Schema | None = None  # the schema of the batches as they come
        self._schema: pa.Schema | None = None  # without dictionaries and metadata, which a file's readers would see
        self._sink: StagingFile | None = None
        self._buffer: Any = None
        self._writer: Any = None
        self._spilled: list[Extent] = []  # older than the rows held back
        self._held: list[pa.RecordBatch] = []
        self._encoded: pa.Buffer | None = None  # the whole file, if it is small and left its budget
        self._measured = measured
        self.metrics: FileMetrics | None = None
        self.held_bytes = 0
        self.rows = 0

    @property
    def is_open(self) -> bool:
        """Whether it has a file in the store, which has no name yet."""
        return self._sink is not None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch; may write to the disk. Dictionary columns become plain ones."""
        if self._schema is None:
            self._taken, self._schema = batch.schema, _plain(batch.schema)
        elif not batch.schema.equals(self._taken, check_metadata=True):
            raise ProtocolError(
                f"a batch for {self._name} has other columns than the file: the schema's hash is wrong"
            )
        columns = [
            column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column for column in batch.columns
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)  # frees the batch's own schema
        size = batch.get_total_buffer_size() + batch.num_columns * COLUMN_BYTES
        self._held.append(batch)
        self.held_bytes += size
        self.rows += batch.num_rows
        self._budget.hold(self, size)

    def spill(self, spill: Spill) -> None:
        """Move the rows held back to the spill."""
        assert self._schema is not None
        if self._held:
            self._spilled.append(spill.put(self._held, self._schema))
            self._held, self.held_bytes = [], 0

    def leave(self, budget: Budget) -> None:
        """Leave the budget: from now on other threads may close the file. A small file is encoded here, since threads
        that encode small files would only take the interpreter from each other."""
        budget.remove(self)
        size = sum(batch.get_total_buffer_size() for batch in self._held)
        if self._held and not self._spilled and not self.is_open and size < parquet.SMALL_BYTES:
            sink, table = pa.BufferOutputStream(), pa.Table.from_batches(self._held, self._schema)
            with parquet.writer(sink, table, small=True) as writer:
                writer.write_table(table)
            self._measure(writer)
            self._encoded, self._held = sink.getvalue(), []

    def flush(self) -> None:
        """Write the spilled rows, then those held back as one row group."""
        for batches in self._groups():
            table = pa.Table.from_batches(batches, self._schema)
            if self._writer is None:
                self._sink = self._store.open_staged(self._name)
                self._buffer = io.BufferedWriter(self._sink, WRITE_BYTES)  # pyarrow writes each column's page by itself
                self._writer = parquet.writer(self._buffer, table)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def _measure(self, writer: Any) -> None:
        if self._measured:
            self.metrics = file_metrics(writer.writer.metadata, self._schema)

    def _groups(self) -> Iterator[list[pa.RecordBatch]]:
        spilled, self._spilled = self._spilled, []
        batches: list[pa.RecordBatch] = []
        size = 0
        for spill, at, length in spilled:
            batches += spill.read(at, length)
            size += length
            if size >= SPILLED_GROUP_BYTES:
                yield batches
                batches, size = [], 0
        batches += self._held
        self._held, self.held_bytes = [], 0
        if batches:
            yield batches

    def finish(self) -> PartRef:
        """Give the file its name, which is durable after the store's `sync_staged`."""
        if self._schema is None:
            raise ProtocolError(f"{self._name} was closed without a row, and only a batch opens a file")
        self.leave(self._budget)
        try:
            if self._encoded is not None:
                self._sink = self._store.open_staged(self._name)
                self._sink.write(self._encoded)
            else:
                self.flush()
                self._writer.close()
                self._buffer.detach()
                self._measure(self._writer)
            self._writer = self._buffer = self._encoded = None  # they are large, and other files are still to be closed
            assert self._sink is not None
            return self._sink.settle()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Drop the file; harmless after `finish`."""
        self._budget.remove(self)
        self._spilled, self._held, self._encoded, self.held_bytes = [], [], None, 0
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException, Unavailable):
                self._writer.close()  # else pyarrow would write the footer when the object is collected
                self._buffer.detach()
        if self._sink is not None:
            self._sink.discard()


class OpenChunk:
    """The open file of one attempt at one chunk. A chunk without rows has no file: don't make this object for it."""

    def __init__(
        self,
        store: PipelineStore,
        *,
        epoch: int,
        incarnation: str,
        table_id: str,
        generation: int,
        schema: str,
        split_id: str,
        budget: Budget | None = None,
    ) -> None:
        """The arguments are what the journal says of the file; `schema` is the hash of every batch's schema."""
        name = file_name("chunk.parquet", epoch=epoch, incarnation=incarnation)
        self._file = _ParquetFile(store, name, budget, measured=True)
        self._known: dict[str, Any] = {
            "kind": "chunk",
            "table": table_id,
            "generation": generation,
            "schema": schema,
            "split": split_id,
        }

    def append(self, batch: pa.RecordBatch, seq_base: int = 0) -> dict[str, int]:
        """Append rows of the chunk: the table's columns only; return how many there are by operation. `seq_base` is
        ignored."""
        if batch.num_rows:
            self._file.write(batch)
        return {"snapshot": batch.num_rows}

    def close(self) -> StagedFile:
        """Give the file its name; return its record for the journal, with the file's metrics."""
        return _staged(self._file, self._known)

    def leave(self, budget: Budget) -> None:
        """Leave the budget: from now on other threads may close the file."""
        self._file.leave(budget)

    def discard(self) -> None:
        """Drop the file: the attempt failed, or the epoch ended."""
        self._file.discard()


class OpenChanges:
    """The open file of the changes of one table, generation and schema between two markers."""

    def __init__(
        self,
        store: PipelineStore,
        *,
        epoch: int,
        incarnation: str,
        table_id: str,
        generation: int,
        schema: str,
        budget: Budget | None = None,
    ) -> None:
        """The arguments are what the journal says of the file; `schema` is the hash of every batch's schema."""
        self._file = _ParquetFile(store, file_name("changes.parquet", epoch=epoch, incarnation=incarnation), budget)
        self._known: dict[str, Any] = {
            "kind": "changes",
            "table": table_id,
            "generation": generation,
            "schema": schema,
        }
        self._seq_min: int | None = None
        self._seq_max: int | None = None
        self._truncated_at: int | None = None
        self._counts = ChangeCounts()

    def append(self, batch: pa.RecordBatch, seq_base: int) -> dict[str, int]:
        """Append changes: the table's columns, then `META_FIELDS` with `_seq` counting from `seq_base`; return how many
        there are by operation.

        Raises ProtocolError if the last columns are not `META_FIELDS`, or if `_seq` does not grow.
        """
        if not batch.num_rows:
            return {}
        first = batch.num_columns - len(META_FIELDS)
        if first < 0 or batch.schema.names[first:] != _META.names:
            raise ProtocolError(
                f"a batch of changes of {self._known['table']} does not end in {', '.join(_META.names)}"
            )
        seq = pc.add(batch.column(first + 1), pa.scalar(seq_base, pa.int64()))
        low, high = seq[0].as_py(), seq[-1].as_py()
        if self._seq_max is not None and low <= self._seq_max:
            raise ProtocolError(
                f"received changes of {self._known['table']} with _seq {low} after {self._seq_max}: a"
                " batch came twice or late",
            )
        self._seq_min = low if self._seq_min is None else self._seq_min
        self._seq_max = high
        truncates = is_any(batch.column(first), Op.TRUNCATE)
        if pc.any(truncates).as_py():
            self._truncated_at = pc.max(pc.filter(seq, truncates)).as_py()
        self._file.write(batch.set_column(first + 1, _META.field(SEQ), seq))
        rows = rows_by_operation(batch.column(first))
        self._counts = self._counts.plus(ChangeCounts(*(rows.get(operation, 0) for operation in COUNTED)))
        return rows

    def close(self) -> StagedFile:
        """Give the file its name; return its record for the journal."""
        seq = {"seq_min": self._seq_min, "seq_max": self._seq_max, "truncated_at": self._truncated_at}
        return _staged(self._file, self._known | seq | {"counts": self._counts})

    def leave(self, budget: Budget) -> None:
        """Leave the budget: from now on other threads may close the file."""
        self._file.leave(budget)

    def discard(self) -> None:
        """Drop the file: the epoch ended."""
        self._file.discard()


def _staged(file: _ParquetFile, known: dict[str, Any]) -> StagedFile:
    ref = file.finish()
    return StagedFile(path=ref.path, sha256=ref.sha256, size=ref.size, rows=file.rows, metrics=file.metrics, **known)


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionary encoding and metadata of its own."""
    return pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema]
    )


def within(staged: Iterable[StagedFile], columns: int) -> tuple[StagedFile, ...]:
    """Return the records; once their metrics are of more than so many columns in all, the others have none."""
    kept: list[StagedFile] = []
    for record in staged:
        columns -= 0 if record.metrics is None else len(record.metrics.columns)
        kept.append(record if columns >= 0 else replace(record, metrics=None))
    return tuple(kept)


class Staging:
    """The open files of one writer in one epoch. Calls block; one at a time."""

    def __init__(
        self,
        store: PipelineStore,
        epoch: int,
        incarnation: str,
        budget: Budget | None = None,
        *,
        counted: TableRows | None = None,
    ) -> None:
        """`counted` gets the rows and bytes that are appended."""
        self._store, self._epoch, self._incarnation = store, epoch, incarnation
        self._counted = counted
        self._open: dict[ChangesFile | ChunkFile, OpenChanges | OpenChunk] = {}
        self._budget = budget or Budget()
        # Closing a small file waits for the disk twice; the waits of many files overlap.
        self._closing = ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix=f"cutline-{store.name}-closing")

    def append(self, order: Append) -> None:
        """Append one Arrow IPC body."""
        for batch in pa.ipc.open_stream(order.body):
            file = self._open.get(order.file)
            if file is None:
                file = self._open[order.file] = self._new(order.file)
            rows = file.append(batch, order.seq_base)
            if self._counted is not None:
                self._counted.add(order.file.table_id, rows, batch.get_total_buffer_size())

    def _new(self, name: ChangesFile | ChunkFile) -> OpenChanges | OpenChunk:
        common: dict[str, Any] = {
            "epoch": self._epoch,
            "incarnation": self._incarnation,
            "table_id": name.table_id,
            "generation": name.generation,
            "schema": name.schema,
            "budget": self._budget,
        }
        if isinstance(name, ChunkFile):
            return OpenChunk(self._store, split_id=f"{name.split_id}#{name.attempt}", **common)
        return OpenChanges(self._store, **common)

    def stage(self, order: StageCut) -> tuple[StagedFile, ...]:
        """Close the cut's files; all are durable under their final names when this returns."""
        names: tuple[ChangesFile | ChunkFile, ...] = (*order.changes, *order.chunks)
        files = [self._open.pop(name) for name in names]
        for file in files:
            file.leave(self._budget)
        self._budget.turn()
        staged = tuple(self._closing.map(lambda file: file.close(), files))
        if staged:
            self._store.sync_staged()
        return within(staged, METRICS_COLUMNS)

    def drop(self, order: Drop) -> None:
        """Discard the file of a failed attempt."""
        for name, file in list(self._open.items()):
            if isinstance(name, ChunkFile) and (name.split_id, name.attempt) == (order.split_id, order.attempt):
                file.discard()
                del self._open[name]

    def close(self) -> None:
        """Discard the files that no cut took."""
        for file in self._open.values():
            file.discard()
        self._open.clear()
        self._closing.shutdown()


def rows_by_operation(column: pa.Array) -> dict[str, int]:
    """The number of rows by operation, of an `OP` column."""
    if isinstance(column, pa.DictionaryArray):  # as readers send it: the indices are counted, which costs little
        counts = np.bincount(column.indices.to_numpy(), minlength=len(column.dictionary))
        # The dictionary may have texts of which there is no row.
        counted = zip(column.dictionary.to_pylist(), counts, strict=True)
        return {OPERATIONS[op]: int(count) for op, count in counted if count and op in OPERATIONS}
    found = pc.value_counts(column)
    return {OPERATIONS[each["values"]]: each["counts"] for each in found.to_pylist() if each["values"] in OPERATIONS}
