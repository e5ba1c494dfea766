"""Large rounds of compaction, which run beside the applies.

1. A Spark task merges the files into one (merging.py), while the branch goes on: the files of a snapshot never change.
2. `finish` commits it. Rows that died meanwhile are found in the new file by their keys, and a deletion vector is added
   with it. If the branch no longer has one of the files, or a row lives again that was dead when the round began (the
   branch was set back), the new file is removed and nothing is committed.

A process that ends during a round leaves at most a file that nothing names.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.errors import ProtocolError
from cutline.spark_writer.sinks.iceberg import objects
from cutline.spark_writer.sinks.iceberg.changes import rewrite
from cutline.spark_writer.sinks.iceberg.columns import Layout, key_ids
from cutline.spark_writer.sinks.iceberg.data_files import data_file
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, outside, without
from cutline.spark_writer.sinks.iceberg.files import DataFile, remove_file, write_parquet
from cutline.spark_writer.sinks.iceberg.jvm import Jvm
from cutline.spark_writer.sinks.iceberg.locating import locate
from cutline.spark_writer.sinks.iceberg.maintenance import sources
from cutline.spark_writer.sinks.iceberg.merging import Source, keys_at, merged_rows
from cutline.spark_writer.sinks.iceberg.on_spark import kernels
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted, write_deleted
from cutline.spark_writer.sinks.iceberg.table import LakeTable

_WRITTEN = "path string, rows long"


class Rewriting:
    """One large round under way. All methods are called by the thread of the applies."""

    def __init__(self, table: LakeTable, chosen: Sequence[DataFile], layout: Layout) -> None:
        """Begin to merge files of a snapshot of the table."""
        self.table_id = table.table_id
        self.sources = sources(table, chosen)
        self.seconds = 0.0
        self._group = f"cutline compaction {uuid.uuid4().hex}"
        self._path: str | None = None
        self._error: Exception | None = None
        self._abandoned = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(table.jvm, layout.portable, table.new_file("")),
            name="cutline-compaction",
            daemon=True,
        )
        self._jvm = table.jvm
        self._thread.start()

    @property
    def paths(self) -> set[str]:
        """The files that it merges."""
        return {source.path for source in self.sources}

    @property
    def done(self) -> bool:
        """Whether the file is written, or could not be."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it is done, at most so long."""
        self._thread.join(seconds)

    def abandon(self) -> None:
        """Cancel it; its thread removes what it has written."""
        self._abandoned.set()
        if self.done:
            self._remove()
            return
        with suppress(Exception):  # of a JVM that has ended
            self._jvm.session.sparkContext.cancelJobGroup(self._group)

    def finish(self, table: LakeTable, *, branch: str, head: int, layout: Layout, summary: dict[str, str]) -> int:
        """Commit the merged file to `branch`; return the branch's head after it, `head` if nothing was committed.

        Raises the error of the task, or of the commit; the file is then removed.
        """
        if self._error is not None:
            raise self._error
        files = table.contents(head).files
        old = [files[source.path] for source in self.sources if source.path in files]
        try:
            died = _died(table, self.sources, old) if len(old) == len(self.sources) else None
            if died is None:
                self._remove()
                return head
            added = [] if self._path is None else [data_file(table, self._path, layout)]
            deleted = [] if self._path is None else _vectors(table, self._path, died, layout)
            return table.commit(
                branch=branch,
                base=head,
                layout=layout,
                summary=summary,
                change=rewrite(table, head, old, added, deleted),
            )
        except ProtocolError:
            self._remove()
            raise

    def _run(self, jvm: Jvm, layout: Layout, folder: str) -> None:
        began = time.monotonic()
        try:
            jvm.activate()
            jvm.session.sparkContext.setJobGroup(self._group, f"compaction of {self.table_id}", interruptOnCancel=True)
            self._path = _merge(jvm.session, self.table_id, self.sources, layout, folder)
        except Exception as error:  # raised by `finish`
            self._error = error
        self.seconds = time.monotonic() - began
        if self._abandoned.is_set():
            self._remove()

    def _remove(self) -> None:
        if self._path is not None:
            with suppress(OSError):  # it stays as a file that nothing names
                remove_file(self._path)


def _merge(session: Any, table_id: str, files: Sequence[Source], layout: Layout, folder: str) -> str | None:
    """Merge data files in one Spark task; return the new file's path, None if no row lives."""
    grants = objects.grants()

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects.accept(grants)
        for _ in batches:
            path = f"{folder}{uuid.uuid4().hex}.parquet"
            rows = write_parquet(path, merged_rows(files, layout))
            yield pa.RecordBatch.from_pydict({"path": [path], "rows": [rows]})

    with kernels(f"files of {table_id} could not be merged by Spark"):
        (written,) = session.range(0, 1, 1, 1).mapInArrow(write, _WRITTEN).collect()
    return str(written.path) if written.rows else None


def _died(table: LakeTable, before: Sequence[Source], now: Sequence[DataFile]) -> dict[str, Any] | None:
    """The positions in each file of the rows that died since; None if a row lives again that was dead before."""
    died = {}
    for source, file in zip(before, now, strict=True):
        if table.vector(file) == source.vector:
            continue
        was, dead = read_deleted(source.vector), read_deleted(table.vector(file))
        if outside(was, dead).any():
            return None
        died[file.path] = without(dead, was)
    return died


def _vectors(table: LakeTable, path: str, died: dict[str, Any], layout: Layout) -> list[Vector]:
    """Write the deletion vector of a merged file for rows that have died in the files that it replaces."""
    keys = [keys_at(old, positions, layout) for old, positions in died.items() if len(positions)]
    if not keys:
        return []
    wanted = pa.concat_tables(keys)
    found = locate({path: DataFile(path=path, rows=0, size=0)}, key_ids(layout), wanted).get(path)
    positions = np.empty(0, np.int64) if found is None else found.positions
    if len(positions) != wanted.num_rows:
        raise ProtocolError(
            f"the merged file {path} has {len(positions)} of {wanted.num_rows} rows that died while it was written",
            "its compaction was given up",
        )
    return write_deleted(
        table.version, lambda suffix: table.new_file(f"{uuid.uuid4().hex}.{suffix}"), {path: positions}
    )
