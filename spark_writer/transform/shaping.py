"""Steps of tables with a rule, as a sink gets them: staged files become files of the lake's rows, for one apply.

The files lie in the store, since Spark's executors may read them. Each has what its staged file's record says of it, so
a sink takes them as it takes staged files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cutline.common import parquet
from cutline.common.errors import ProtocolError, Unavailable
from cutline.common.file_metrics import file_metrics
from cutline.common.journal.plan import Staged, StagedLost, TableStep
from cutline.common.ops import Op, is_any
from cutline.common.schema import META_FIELDS, OP, SEQ, TS, TableSchema
from cutline.common.shape import Shape
from cutline.common.store.records import PartRef
from cutline.common.store.shaped_files import ShapedFiles
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.contract import Carried, Earlier, Known
from cutline.spark_writer.transform.carrying import carried
from cutline.spark_writer.transform.functions import CALL_SECONDS, Functions
from cutline.spark_writer.transform.history import BEFORE_ALL, Versioned, ended, ends_of, lake_columns
from cutline.spark_writer.transform.modes import Marked, Moded, moded, paired
from cutline.spark_writer.transform.rekeyed import Rekeyed, with_meta
from cutline.spark_writer.transform.rule import Rule, plain_rule, prepared, rule_of

RULES = 1000
"""The most analysed rules that are kept."""
_WRITE_BYTES = 128 << 10


class Shaping:
    """The rules of one pipeline's tables, for one start. Thread-safe."""

    def __init__(self, store: PipelineStore, session: SparkSession, call_seconds: float = CALL_SECONDS) -> None:
        """`session` is the pipeline's own, so its settings of Spark SQL hold for rules. `call_seconds` is how long a
        call of a Python function may take for one batch of rows."""
        self._store = store
        self._session = prepared(session)
        self._functions = Functions(call_seconds)
        self._rules: dict[str, Moded] = {}
        self._files: ShapedFiles

    def begin(self, w: int) -> None:
        """Begin start `w`; remove what earlier ones left."""
        self._files = self._store.shaped_files(w)
        self._files.remove_left()

    def close(self) -> None:
        """End the processes of Python functions."""
        self._functions.close()

    def _rule(self, schema: TableSchema) -> Moded:
        known = self._rules.get(schema.hash)
        if known is None:
            shape = schema.shape
            assert shape is not None
            rule = rule_of(self._session, schema, shape, self._functions) if shape.ruled else plain_rule(schema)
            known = moded(rule, schema)
            if len(self._rules) >= RULES:
                self._rules.clear()
            self._rules[schema.hash] = known
        return known

    def lake_schema(self, schema: TableSchema) -> TableSchema:
        """See `Shaping` of the sinks' contract. Raises RuleFault."""
        return schema if schema.shape is None else self._rule(schema).target

    def parts(self, step: TableStep) -> list[TableStep]:
        """See `Shaping` of the sinks' contract."""
        shape = step.schema.shape or Shape()
        looks = shape.mode == "history" or (shape.mode == "soft-delete" and step.truncated_at is not None)
        if not (looks and step.chunks and step.changes):
            return [step]
        return [replace(step, changes=[], truncated_at=None), replace(step, chunks=[])]

    def carried(self, schema: TableSchema, arrow: pa.Schema, earlier: Earlier, before: pa.Schema) -> Carried | str:
        """See `Shaping` of the sinks' contract. Raises RuleFault."""
        assert schema.shape is not None
        made, theirs = self._rule(schema), self.lake_schema(earlier.schema)
        of_change = made.of_change if isinstance(made, Rule) else made.rule.of_change
        return carried(schema.shape, made.target, arrow, earlier, theirs, before, of_change)

    @contextmanager
    def shaped(self, step: TableStep, known: Known) -> Iterator[TableStep]:
        """See `Shaping` of the sinks' contract. Raises RuleFault, StagedLost."""
        if step.schema.shape is None:
            yield step
            return
        made: list[str] = []
        empties = step.schema.shape.mode == "mirror"  # elsewhere what came before a TRUNCATE stays
        try:
            rule = self._rule(step.schema)
            if isinstance(rule, Rekeyed):
                chunks, changes = self._owned(step, made, known)
            else:
                chunks = [file for staged in step.chunks for file in self._shaped(staged, made)]
                changes = self._changes(step, made, known)
            truncated_at = step.truncated_at if empties else None
            yield replace(step, truncated_at=truncated_at, schema=rule.target, chunks=chunks, changes=changes)
        finally:
            with suppress(Unavailable):  # the next start removes them
                self._files.remove(made)

    def _changes(self, step: TableStep, made: list[str], known: Known) -> list[Staged]:
        """Make the files of a step's changes; their names are added to `made`."""
        rule = self._rule(step.schema)
        if isinstance(rule, Versioned) and step.changes:
            return self._versions(step, rule, made, known)
        if isinstance(rule, Marked) and step.changes:
            return self._marks(step, rule, made, known)
        return [file for staged in step.changes for file in self._shaped(staged, made)]

    def _versions(self, step: TableStep, rule: Versioned, made: list[str], known: Known) -> list[Staged]:
        """Make the files of versions: first all keys are read, which tell how each row ends, then the rows."""
        types = [rule.target.field(column).type for column in rule.target.key_columns[:-1]]
        rules = [cast(Versioned, self._rule(staged.schema)) for staged in step.changes]
        keys = []
        for staged, theirs in zip(step.changes, rules, strict=True):
            with self._groups(staged, theirs.key_reads) as groups:
                keys += [theirs.keys(group, types) for group in groups]
        ends = ends_of(pa.concat_tables(keys))
        files = []
        for staged, theirs in zip(step.changes, rules, strict=True):
            with self._groups(staged, theirs.reads) as groups:
                files += self._file(staged, map(partial(theirs.versions, ends=ends), groups), made)
        return files + self._of_lake_rows(step, ended(known, ends, rule.target), made)

    def _owned(self, step: TableStep, made: list[str], known: Known) -> tuple[list[Staged], list[Staged]]:
        """Make the files of a step's chunks and changes that stay by the owners of keys: first all keys are read, then
        the rows."""
        rule = cast(Rekeyed, self._rule(step.schema))
        parts = []
        first = BEFORE_ALL
        for staged in (*(step.chunks if step.truncated_at is None else ()), *step.changes):
            parts.append((staged, cast(Rekeyed, self._rule(staged.schema)), first))
            first += staged.record.rows if staged.record.kind == "chunk" else 0
        events: list[pa.Table] = []
        for staged, own, first in parts:
            with self._groups(staged, own.reads) as groups:
                events += map(own.events, with_meta(groups, staged.record.kind, first))
        last = rule.last(events, known, step.truncated_at)
        chunks, changes, moved = [], [], list[pa.Table]()
        for staged, own, first in parts:
            with self._groups(staged, own.reads) as groups:
                rows = map(last.among, with_meta(groups, staged.record.kind, first))
                if staged.record.kind == "chunk":
                    chunks += self._file(staged, own.staying(rows, moved), made)
                else:
                    changes += self._file(staged, map(own.changes, rows), made)
        return chunks, [*(self._of_lake_rows(step, iter(moved), made) if moved else ()), *changes]

    def _marks(self, step: TableStep, rule: Marked, made: list[str], known: Known) -> list[Staged]:
        """Make the files of changes with marks; where there was a TRUNCATE, it is looked for in all of them first."""
        truncates = pa.table({SEQ: pa.array([], pa.int64()), TS: pa.array([], pa.timestamp("us", "UTC"))})
        for staged in step.changes if step.truncated_at is not None else ():
            with self._groups(staged, set()) as groups:
                found = [group.filter(is_any(group[OP], Op.TRUNCATE)).select([SEQ, TS]) for group in groups]
            truncates = pa.concat_tables([truncates, *found]).sort_by(SEQ).combine_chunks()
        files = []
        for staged in step.changes:
            theirs = cast(Marked, self._rule(staged.schema))
            with self._groups(staged, theirs.reads) as groups:
                files += self._file(staged, map(partial(theirs.changes, truncates=truncates), groups), made)
        return files + self._of_lake_rows(step, rule.truncated(known, truncates), made)

    def _of_lake_rows(self, step: TableStep, rows: Iterator[pa.Table], made: list[str]) -> list[Staged]:
        """Make the file of changes that come of rows which the lake has: before all others, by their numbers."""
        schema = lake_columns(self._rule(step.schema).target)
        return [
            replace(
                file,
                schema=schema,
                record=replace(file.record, seq_min=BEFORE_ALL, seq_max=BEFORE_ALL + file.record.rows - 1),
            )
            for file in self._file(step.changes[0], rows, made)
        ]

    def _written(self, groups: Iterator[pa.Table]) -> tuple[PartRef, int, pq.FileMetaData, pa.Schema] | None:
        """Write rows into a file of their own; None if there are none."""
        first = next(groups, None)
        if first is None:
            return None
        second = next(groups, None)
        sink, rows = self._files.open(), 0
        try:
            buffer: Any = io.BufferedWriter(sink, _WRITE_BYTES)
            small = second is None and first.nbytes < parquet.SMALL_BYTES
            with parquet.writer(buffer, first, small=small) as writer:
                for group in chain([first], [] if second is None else [second], groups):
                    writer.write_table(group, row_group_size=group.num_rows)
                    rows += group.num_rows
            buffer.detach()
            return sink.settle(), rows, writer.writer.metadata, first.schema
        except BaseException:
            sink.discard()
            raise

    def _shaped(self, staged: Staged, made: list[str]) -> list[Staged]:
        """Make the file of one staged file, none if no row is left; its name is added to `made`. A rule that keeps the
        rows as they are needs no other file."""
        rule = self._rule(staged.schema)
        if isinstance(rule, Rule) and rule.keeps:
            return [replace(staged, schema=rule.target)]
        assert not isinstance(rule, Rekeyed)
        with self._groups(staged, rule.reads) as groups:
            if staged.record.kind == "chunk":
                return self._file(staged, map(rule.chunk, groups), made)
            assert not isinstance(rule, Versioned | Marked)
            return self._file(staged, map(rule.changes, groups), made)

    @contextmanager
    def _groups(self, staged: Staged, reads: set[str]) -> Iterator[Iterator[pa.Table]]:
        """These columns of a staged file, by row group; with those of changes, if it has changes. Raises StagedLost."""
        record = staged.record
        try:
            self._store.verify(record.ref)
        except ProtocolError as error:
            raise StagedLost(error.cause) from error
        chunk = record.kind == "chunk"
        with self._files.reading(record.path) as file, pq.ParquetFile(file) as source:
            columns = [*reads, *(() if chunk else (field.name for field in META_FIELDS))]
            groups = (source.read_row_group(at, columns=columns) for at in range(source.num_row_groups))
            yield groups if chunk else paired(groups)

    def _file(self, staged: Staged, shaped: Iterator[pa.Table], made: list[str]) -> list[Staged]:
        """Make the file of rows that come of a staged file."""
        record = staged.record
        written = self._written(rows for rows in shaped if rows.num_rows)
        if written is None:
            return []
        ref, rows, metadata, schema = written
        made.append(ref.path)
        metrics = file_metrics(metadata, schema) if record.kind == "chunk" else None
        record = replace(record, path=ref.path, sha256=ref.sha256, size=ref.size, rows=rows, metrics=metrics)
        return [replace(staged, record=record, schema=self._rule(staged.schema).target)]
