"""Record batches to staged Parquet files: what a writer leaves in the store for the Spark writer.

Two kinds of file, both Parquet (zstd) with the batches' own field ids (`PARQUET:field_id`):

- `ChunkFile`: the rows of one attempt at one chunk; only the table's columns, so that the lake adopts it as it is;
- `ChangesFile`: the changes of one table, generation and schema between two markers; the table's columns, then
  `META_FIELDS`, `_seq` absolute.

Memory: a file holds rows back until they make a row group of `ROW_GROUP_BYTES`; all open files of one `Budget` together
hold back at most its bytes (then the fullest is flushed), plus one batch. Nothing is in the store under its name before
`close`. Blocking, for one thread at a time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cutline.common import parquet
from cutline.common.errors import ProtocolError
from cutline.common.schema import META_FIELDS, SEQ
from cutline.common.store import PipelineStore, StagedFile, file_name

ROW_GROUP_BYTES = 32 << 20
HELD_BACK_BYTES = 64 << 20
_META = pa.schema(META_FIELDS)


class Budget:
    """The bytes that the open files of one writer hold back together."""

    def __init__(self, limit_bytes: int = HELD_BACK_BYTES) -> None:
        self._limit = limit_bytes
        self._open: set[_ParquetFile] = set()

    def add(self, file: _ParquetFile) -> None:
        """Count a file from now on."""
        self._open.add(file)

    def remove(self, file: _ParquetFile) -> None:
        """Count a file no more; harmless if it was not counted."""
        self._open.discard(file)

    def check(self) -> None:
        """Flush the fullest files until the limit holds again."""
        while sum(file.held_bytes for file in self._open) > self._limit:
            max(self._open, key=lambda file: file.held_bytes).flush()


class _ParquetFile:
    """One Parquet file that grows; its schema is the first batch's, and every later batch must have the same."""

    def __init__(self, store: PipelineStore, name: str, budget: Budget | None) -> None:
        self._store = store
        self._name = name
        self._budget = budget or Budget()
        self._schema: pa.Schema | None = None
        self._sink: StagedFile | None = None
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self.rows = 0
        self._budget.add(self)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch; may write to the disk. Dictionaries in flight become plain columns."""
        batch = _plain(batch)
        if self._schema is None:
            self._schema = batch.schema
            self._sink = self._store.open_staged(self._name)
        elif not batch.schema.equals(self._schema, check_metadata=True):
            raise ProtocolError(
                f"a batch for {self._name} has other columns than the file; the schema's hash was wrong"
            )
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()
        self._budget.check()

    def flush(self) -> None:
        """Write what is held back as one row group."""
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._held, self.held_bytes = [], 0
            if self._writer is None:
                self._writer = parquet.writer(self._sink, table)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def finish(self) -> dict[str, Any]:
        """Make the file durable under its name and return `path`, `sha256`, `size`, `rows`."""
        if self._sink is None:
            raise ProtocolError(f"{self._name} was closed without a row; a file is opened by its first batch")
        try:
            self.flush()
            self._writer.close()
            ref = self._sink.commit()
        except BaseException:
            self.discard()
            raise
        self._budget.remove(self)
        return {**ref.to_json(), "rows": self.rows}

    def discard(self) -> None:
        """Drop the file; harmless after `finish`."""
        self._budget.remove(self)
        self._held, self.held_bytes = [], 0
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()  # else pyarrow would write the footer when the object is forgotten
        if self._sink is not None:
            self._sink.discard()


class ChunkFile:
    """The open file of one attempt at one chunk. A chunk without rows has no file: don't open one for it."""

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
        """Take what the journal will say of the file; `schema` is the hash of the schema of every batch."""
        self._file = _ParquetFile(store, file_name("chunk.parquet", epoch=epoch, incarnation=incarnation), budget)
        self._known = {
            "kind": "chunk",
            "table": table_id,
            "generation": generation,
            "schema": schema,
            "split": split_id,
            "seq_min": None,
            "seq_max": None,
            "truncated_at": None,
        }

    def append(self, batch: pa.RecordBatch, seq_base: int = 0) -> None:
        """Append rows of the chunk: the table's columns only. `seq_base` has no meaning here."""
        if batch.num_rows:
            self._file.write(batch)

    def close(self) -> dict[str, Any]:
        """Make the file durable; return its journal form (the contract's `staged` record)."""
        return {**self._file.finish(), **self._known}

    def discard(self) -> None:
        """Drop the file, for an attempt that failed or an epoch that ended."""
        self._file.discard()


class ChangesFile:
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
        """Take what the journal will say of the file; `schema` is the hash of the schema of every batch."""
        self._file = _ParquetFile(store, file_name("changes.parquet", epoch=epoch, incarnation=incarnation), budget)
        self._known = {"kind": "changes", "table": table_id, "generation": generation, "schema": schema, "split": None}
        self._seq_min: int | None = None
        self._seq_max: int | None = None
        self._truncated_at: int | None = None

    def append(self, batch: pa.RecordBatch, seq_base: int) -> None:
        """Append changes: the table's columns, then `META_FIELDS` with `_seq` counting from `seq_base`.

        ProtocolError if the meta columns are not the contract's or if `_seq` does not grow.
        """
        if not batch.num_rows:
            return
        first = batch.num_columns - len(META_FIELDS)
        if first < 0 or batch.schema.names[first:] != _META.names:
            raise ProtocolError(
                f"a batch of changes of {self._known['table']} does not end in {', '.join(_META.names)}"
            )
        seq = pc.add(batch.column(first + 1), pa.scalar(seq_base, pa.int64()))
        low, high = seq[0].as_py(), seq[-1].as_py()
        if self._seq_max is not None and low <= self._seq_max:
            raise ProtocolError(
                f"changes of {self._known['table']} came with _seq {low} after {self._seq_max};"
                " a batch came twice or late"
            )
        self._seq_min = low if self._seq_min is None else self._seq_min
        self._seq_max = high
        truncations = pc.max(pc.filter(seq, pc.equal(batch.column(first), "t"))).as_py()
        if truncations is not None:
            self._truncated_at = truncations
        batch = pa.RecordBatch.from_arrays(
            [seq if at == first + 1 else column for at, column in enumerate(batch.columns)],
            schema=pa.schema([_META.field(SEQ) if at == first + 1 else field for at, field in enumerate(batch.schema)]),
        )
        self._file.write(batch)

    def close(self) -> dict[str, Any]:
        """Make the file durable; return its journal form (the contract's `staged` record)."""
        return {
            **self._file.finish(),
            **self._known,
            "seq_min": self._seq_min,
            "seq_max": self._seq_max,
            "truncated_at": self._truncated_at,
        }

    def discard(self) -> None:
        """Drop the file, for an epoch that ended."""
        self._file.discard()


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without dictionary encoding and schema metadata (Arrow's own type would come back on reading)."""
    if not any(pa.types.is_dictionary(field.type) for field in batch.schema):
        return batch.replace_schema_metadata(None)
    columns, fields = [], []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if pa.types.is_dictionary(field.type):
            column, field = column.cast(field.type.value_type), field.with_type(field.type.value_type)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
