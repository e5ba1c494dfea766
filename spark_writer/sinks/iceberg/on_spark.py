"""Applies a batch's changes to a table as one Spark job, on as many machines as Spark has.

The job has the four stages of stages.py, and nothing else: the driver plans, gets a line a file written, and commits.
Between two stages Spark moves blocks of packed columns to the task whose number they bear. A step so small that each
stage is one task is one task in all; such steps of tables that are applied at the same time share a job.

Rows are read and written by the executors alone, and pass neither through the JVM nor through the driver. A task that
Spark repeats writes a file of another name; the one that no commit names is an orphan.

Errors of the kernels come back as the class that the task raised.
"""

from __future__ import annotations

import logging
import math
import pickle
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from cutline.common.errors import ConfigError, CutlineError, ProtocolError, Unavailable
from cutline.common.journal.plan import Staged, StagedLost
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg import objects
from cutline.spark_writer.sinks.iceberg.columns import Layout, key_ids
from cutline.spark_writer.sinks.iceberg.data_files import data_file
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.files import FileLost
from cutline.spark_writer.sinks.iceberg.filling import groups_of
from cutline.spark_writer.sinks.iceberg.gathering import Gathering
from cutline.spark_writer.sinks.iceberg.jvm import Jvm, Refused, failing_as
from cutline.spark_writer.sinks.iceberg.key_hash import SECRET_BYTES, kind_of
from cutline.spark_writer.sinks.iceberg.key_index import IndexUnavailable
from cutline.spark_writer.sinks.iceberg.locating import cover
from cutline.spark_writer.sinks.iceberg.merging import merged_rows
from cutline.spark_writer.sinks.iceberg.partitioning import write_files
from cutline.spark_writer.sinks.iceberg.sent_index import IndexDamaged, SentIndex, sent
from cutline.spark_writer.sinks.iceberg.staged import grouped
from cutline.spark_writer.sinks.iceberg.stages import STAGES, Kernel, Step, divide, tasks_of, whole
from cutline.spark_writer.sinks.iceberg.table import LakeTable

logger = logging.getLogger("cutline.spark_writer")
LEAST_ROWS = 100_000
"""A task of fewer changes costs more to begin than to carry out."""
MOST_ROWS = 500_000
"""The changes of which one task reduces the keys, about; it holds them in memory."""
SCANNED_ROWS = 1_000_000
"""The least rows of data files that are worth a task."""
_RAISED: tuple[type[CutlineError], ...] = (
    IndexDamaged,
    StagedLost,
    FileLost,
    ProtocolError,
    Unavailable,
    ConfigError,
)
WRITTEN = "path string, partition string"
"""A line a data file that a task wrote, as `write_files` yields them."""
Batches = Iterator[pa.RecordBatch]


def new_data_file(folder: str) -> str:
    """Return the full path for a new data file that begins with `folder`; each call gives another."""
    return f"{folder}{uuid.uuid4().hex}.parquet"


class OnSpark:
    """Spark's way to apply the changes of one pipeline's tables. Thread-safe."""

    def __init__(self, jvm: Jvm) -> None:
        """Take the pipeline's Spark."""
        self._jvm = jvm
        self._small = Gathering(self._together)

    def changed(
        self,
        store: PipelineStore,
        table: LakeTable,
        layout: Layout,
        head: int,
        changes: Sequence[Staged],
        after: int | None,
        *,
        about: str = "",
    ) -> tuple[list[Any], list[Vector]]:
        """Do the work of `local.changed`; `about` describes the job in Spark's UI and event log."""
        try:
            made = self._made(about, planned(store, table, layout, head, changes, after))
        except IndexDamaged as error:
            logger.warning("the keys of %s are located without their index: %s", table.table_id, error)
            if table.index is not None:
                table.index.rest()
            made = self._made(about, planned(store, table, layout, head, changes, after))
        deleted = [each for each in made if isinstance(each, Vector)]
        return [data_file(table, each[0], layout, each[1]) for each in made if not isinstance(each, Vector)], deleted

    def _made(self, about: str, step: Step) -> list[Any]:
        """Carry out a step; return what its last stage gives."""
        if max(tasks_of(step)) > 1:
            with kernels(_failure(step)), _described(self._jvm, f"{about}: {step.table_id}"):
                return _collected(self._jvm.session.sparkContext, step)
        answer: list[Any] | _Failed = self._small.ask((about, step))
        if not isinstance(answer, _Failed):
            return answer
        error = answer.error
        if isinstance(error, CutlineError | OSError | MemoryError):
            raise error
        raise Refused(f"{_failure(step)}: {type(error).__name__}: {error}") from error

    def _together(self, small: Sequence[tuple[str, Step]]) -> Sequence[Any]:
        """Carry out steps of several tables, each in a task of one job."""
        steps = [step for _, step in small]
        about = f"{small[0][0]}: {', '.join(step.table_id for step in steps)}"
        failure = _failure(steps[0]) if len(steps) == 1 else "small changes could not be applied by Spark"
        with kernels(failure), _described(self._jvm, about):
            made: Sequence[Any] = self._jvm.session.sparkContext.parallelize(steps, len(steps)).map(_alone).collect()
        return made


@dataclass(frozen=True, slots=True)
class _Failed:
    """The error of one table's task, which must not be that of the job."""

    error: Exception


def _alone(step: Step) -> list[Any] | _Failed:
    try:
        return whole(step)
    except Exception as error:
        return _Failed(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error, or if it can't be pickled one of its class and sentence."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        found = next((kind for kind in _RAISED if isinstance(error, kind)), None)
        return RuntimeError(f"{type(error).__name__}: {error}") if found is None else found(str(error))
    return error


def _failure(step: Step) -> str:
    return f"the changes of {step.table_id} could not be applied by Spark"


@contextmanager
def _described(jvm: Jvm, about: str) -> Iterator[None]:
    """Describe this thread's jobs to people who look at Spark."""
    context = jvm.session.sparkContext
    context.setJobDescription(about)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def planned(
    store: PipelineStore, table: LakeTable, layout: Layout, head: int, changes: Sequence[Staged], after: int | None
) -> Step:
    """Divide the changes of a batch to a table among as many tasks as have enough to do."""
    cores, rows = table.jvm.cores, sum(staged.rows for staged in changes)
    index = _index(table, layout, head, rows)
    secret = secrets.token_bytes(SECRET_BYTES) if index is None else index.secret
    keyed = bool(layout.schema.key)
    files = [
        replace(file, vector=None, partition=None, dead=table.vector(file))
        for file in (table.contents(head).files.values() if keyed else ())
    ]
    scanned = sum(file.rows for file in files if index is None or file.path not in index)
    finding = min(cores, max(math.ceil(scanned / SCANNED_ROWS), math.ceil(rows / LEAST_ROWS)))
    finding = min(finding, math.ceil(sum(file.rows for file in files) / SCANNED_ROWS))
    if scanned:
        finding = min(finding, scanned // rows)  # each of these tasks gets all keys of the changes
    # Each group becomes a file for each partition in which it has rows.
    most = None if layout.partition else max(LEAST_ROWS, math.ceil(rows / cores))
    return Step(
        store=store,
        layout=layout.portable,
        version=table.version,
        after=after,
        groups=grouped(store, changes, most),
        buckets=max(math.ceil(rows / MOST_ROWS), min(cores, math.ceil(rows / LEAST_ROWS))),
        files=divide(files, max(1, finding)),
        secret=secret,
        index=index,
        folder=table.new_file(""),
        grants=objects.grants(),
    )


def _index(table: LakeTable, layout: Layout, head: int, changes: int) -> SentIndex | None:
    """The table's key index for the executors of so many changes, made or grown here if that pays; None if it has none,
    or if the store fails."""
    index = table.index
    if index is None or index.rests or not layout.schema.key:
        return None
    kinds = [layout.schema.field(column).type for column in layout.schema.key_columns]
    try:
        index.open([[number, kind_of(kind)] for number, kind in zip(key_ids(layout), kinds, strict=True)])
        cover(table.contents(head).files, key_ids(layout), kinds, changes, index)
    except IndexUnavailable as error:
        logger.warning("the keys of %s are located without their index: %s", table.table_id, error)
    return sent(index) if index.runs else None


def _collected(context: Any, step: Step) -> list[Any]:
    """Carry out the stages as a job; return what the last one gives."""
    first, *others = tasks_of(step)
    with _shared(context, step) as shared:
        blocks = context.parallelize(range(first), first).mapPartitions(partial(_first, shared, STAGES[0]))
        for tasks, kernel in zip(others, STAGES[1:], strict=True):
            blocks = blocks.partitionBy(tasks, int).mapPartitionsWithIndex(partial(_next, shared, kernel))
        made: list[Any] = blocks.collect()
    return made


@contextmanager
def _shared(context: Any, value: Any) -> Iterator[Any]:
    """Give tasks a value that may be large, once for all stages. In a closure of more than 1 MB PySpark would leave a
    file of it for each stage as long as it runs, here with the rights to the lake's files."""
    shared = context.broadcast(value)
    try:
        yield shared
    finally:
        shared.destroy()


def _first(shared: Any, kernel: Kernel, tasks: Iterator[int]) -> Iterator[Any]:
    for task in list(
        tasks
    ):  # all is taken before: else Spark would not use the worker again, which imports for a second
        yield from kernel(shared.value, task, iter(()))


def _next(shared: Any, kernel: Kernel, task: int, blocks: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    return kernel(shared.value, task, (block for _, block in blocks))


def filled(table: LakeTable, head: int, layout: Layout) -> list[Any]:
    """Do the work of `filling.filled` as a Spark job, a task a group of files."""
    groups = groups_of(table, table.contents(head).files.values())
    new_path, grants, portable = partial(new_data_file, table.new_file("")), objects.grants(), layout.portable

    def write(batches: Batches) -> Batches:
        objects.accept(grants)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield written(new_path, merged_rows(groups[number], portable), portable)

    with kernels(f"the new columns of {table.table_id} could not be filled by Spark"):
        numbers: Any = table.jvm.session.range(0, len(groups), 1, len(groups))
        lines = numbers.mapInArrow(write, WRITTEN).collect()
        return [data_file(table, row.path, layout, row.partition) for row in lines]


def written(new_path: Callable[[], str], rows: Iterable[pa.Table], layout: Layout) -> pa.RecordBatch:
    """Write rows as data files in a task; return a line for each."""
    files = list(write_files(new_path, rows, layout))
    return pa.RecordBatch.from_pylist(
        [{"path": path, "partition": partition} for path, partition in files],
        schema=pa.schema([("path", pa.string()), ("partition", pa.string())]),
    )


@contextmanager
def kernels(failure: str) -> Iterator[None]:
    """Raise an error of a kernel as the class that the task raised; any other as Refused with the `failure`."""
    try:
        with failing_as(failure):
            yield
    except CutlineError as error:
        cause = error.__cause__
        lines = str(cause).splitlines() if isinstance(cause, PySparkException | Py4JJavaError) else []
        for kind in _RAISED:
            for line in lines:
                _, found, text = line.partition(f"{kind.__module__}.{kind.__qualname__}: ")
                if found:
                    raise kind(text) from error
        raise
