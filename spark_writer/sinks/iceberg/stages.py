"""What Spark's tasks do to apply the changes of a batch to a table: four stages, from blocks to blocks (on_spark.py).

1. *read*, a task a group of staged files: reads the keys and divides them by their hash;
2. *reduce*, a task a range of hashes: keeps each key's last change, and asks the table's key index where the key is;
3. *find*, a task some of the snapshot's data files: reads the key columns of those that the index does not cover, and
   writes what deletes the living rows that were found: a data file is in one task, so its positions never meet;
4. *write*, a task a group of staged files again: writes the rows that the changes leave, with the row ids of old rows.

These are the kernels of local.py, cut where work can be divided. What passes between two stages are *blocks*: some
columns of thousands of rows, as Arrow or numpy have them in memory. So Spark moves a few blocks a task and never looks
at a row, which would cost it several times what the kernels cost. A staged file is read by one task in each of *read*
and *write*, and a data file by one in *find*, however many tasks there are; tasks that looked through all staged files
for the keys of their range would each pay for all of them.

A row that has the same key as another one, in whatever form, has its hash (key_hash.py), so both meet in one task.

Nothing here needs the JVM or Spark. Each task may be carried out several times: it then writes files of other names.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.journal.plan import Staged
from cutline.common.schema import SEQ
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg import objects
from cutline.spark_writer.sinks.iceberg.columns import Layout, key_ids
from cutline.spark_writer.sinks.iceberg.dead_rows import DeadRows, living
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of
from cutline.spark_writer.sinks.iceberg.files import DataFile
from cutline.spark_writer.sinks.iceberg.key_hash import KeyHash
from cutline.spark_writer.sinks.iceberg.key_index import Found
from cutline.spark_writer.sinks.iceberg.lineage import NONE, row_ids_at
from cutline.spark_writer.sinks.iceberg.locating import SEARCH_BYTES, locate
from cutline.spark_writer.sinks.iceberg.partitioning import write_files
from cutline.spark_writer.sinks.iceberg.position_deletes import VECTORS_VERSION, write_deleted
from cutline.spark_writer.sinks.iceberg.sent_index import SentIndex
from cutline.spark_writer.sinks.iceberg.staged import LIVE, changes_of, key_names, last_of, rows_of

BLOCK_BYTES = 32 << 20
"""A block is at most about so large: Spark and pickle hold it in one piece."""
_GROUP = "_group"
Block = tuple[int, Any]
"""The number of a task of the next stage, and what it gets: a `Keys`, `At`, `Kept` or Vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Changes as `changes_of` has them, in Arrow's stream format. Those from *read* are of the staged files of `group`,
    those from *reduce* have the number of their group in a column."""

    packed: bytes
    group: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where the index has the keys of changes: positions in a data file, and for each its change."""

    path: str
    positions: Any
    keys: Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Changes of one group that leave a row: their `_seq`, and with `row_ids` the row ids that the rows keep."""

    seq: Any
    group: int
    row_ids: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One table's changes in a batch and how they are divided; it is sent to the executors.

    `groups` are the staged files by task of *read* and *write*, `files` the snapshot's data files by task of *find*,
    without objects of the JVM; `buckets` is the number of tasks of *reduce*.
    """

    store: PipelineStore
    layout: Layout
    version: int
    after: int | None
    groups: Sequence[Sequence[Staged]]
    buckets: int
    files: Sequence[Mapping[str, DataFile]]
    secret: bytes = field(repr=False)
    """That of the hash by which keys are divided, and of the index."""
    index: SentIndex | None
    folder: str
    """A full path that begins the names of new files."""
    grants: Mapping[str, Mapping[str, str]] = field(repr=False)
    """The rights to read and write the lake's files, for `objects.accept`."""

    @property
    def table_id(self) -> str:
        """The table."""
        return self.layout.schema.table_id

    def new_file(self, suffix: str) -> str:
        """Return the full path for a new file; each call gives another."""
        return f"{self.folder}{uuid.uuid4().hex}.{suffix}"

    def scanned(self, task: int) -> dict[str, DataFile]:
        """Return the files of a task of *find* whose key columns must be read."""
        return {path: file for path, file in self.files[task].items() if self.index is None or path not in self.index}


Kernel = Callable[[Step, int, Iterator[Any]], Iterator[Any]]
"""A stage: what a task of this number makes of what it gets."""


def divide(files: Iterable[DataFile], tasks: int) -> list[dict[str, DataFile]]:
    """Divide data files among tasks, by their rows."""
    shares: list[dict[str, DataFile]] = [{} for _ in range(tasks)]
    loads = [(0, at) for at in range(tasks)]
    for file in sorted(files, key=lambda file: -file.rows):
        rows, at = heapq.heappop(loads)
        shares[at][file.path] = file
        heapq.heappush(loads, (rows + file.rows, at))
    return shares


def read(step: Step, task: int, _: Iterator[Any]) -> Iterator[Block]:
    """Read the keys of the changes in a group of staged files, for the tasks of *reduce*."""
    objects.accept(step.grants)
    by = KeyHash(step.secret)
    names = key_names(step.layout) or [SEQ]
    for staged in step.groups[task]:
        for changes in changes_of(step.store, staged, step.layout, step.after):
            for bucket, rows in _by_bucket(changes, names, by, step.buckets):
                yield from ((bucket, Keys(packed=part, group=task)) for part in _packed(rows))


def reduce(step: Step, task: int, blocks: Iterator[Keys]) -> Iterator[Block]:
    """Keep the last change of each key, for the tasks of *find*."""
    objects.accept(step.grants)
    groups = (
        rows.append_column(_GROUP, pa.repeat(pa.scalar(block.group, pa.int32()), rows.num_rows))
        for block in blocks
        for rows in [_unpacked(block.packed)]
    )
    last = last_of(groups, step.layout)
    if last is None:
        return
    live = last.filter(last[LIVE])
    for group, (seq,) in _by_group(live[_GROUP].to_numpy(), live[SEQ].to_numpy()):
        yield group % len(step.files), Kept(seq=seq, group=group)
    if step.index is not None:
        yield from _indexed(step, last)
    scanning = [at for at in range(len(step.files)) if step.scanned(at)]
    if scanning:
        for part in _packed(last):
            yield from ((at, Keys(packed=part)) for at in scanning)


def find(step: Step, task: int, blocks: Iterator[Keys | At | Kept]) -> Iterator[Block]:
    """Find the living rows of the changed keys in a task's data files, and write what deletes them; the rows' ids are
    for the tasks of *write*, and what was written for the first of these."""
    objects.accept(step.grants)
    found = _Rows(step, task)
    files = step.scanned(task)
    waiting: list[pa.Table] = []

    def search() -> Iterator[Block]:
        changes = pa.concat_tables(waiting)
        waiting.clear()
        keys, of_keys = changes.select(key_names(step.layout)), _numbers(changes)
        for path, rows in locate(files, key_ids(step.layout), keys).items():
            yield from found.add(path, rows, of_keys)

    for block in blocks:
        if isinstance(block, Kept):
            yield block.group, block
        elif isinstance(block, At):
            rows = Found(block.positions, np.arange(len(block.positions)))
            yield from found.add(block.path, rows, _numbers(_unpacked(block.keys.packed)))
        else:
            waiting.append(_unpacked(block.packed))
            if sum(keys.nbytes for keys in waiting) > SEARCH_BYTES:
                yield from search()
    if waiting:
        yield from search()
    for vector in write_deleted(step.version, step.new_file, found.dead):
        yield 0, vector


def write(step: Step, task: int, blocks: Iterator[Kept | Vector]) -> Iterator[Vector | tuple[str, str]]:
    """Write the rows that a group of staged files leaves; yield each file as `write_files`, and the vectors."""
    objects.accept(step.grants)
    kept: list[Kept] = []
    for block in blocks:
        if isinstance(block, Vector):
            yield block
        else:
            kept.append(block)
    none = np.empty(0, np.int64)
    live = np.sort(np.concatenate([none, *(each.seq for each in kept if each.row_ids is None)]))
    known = [each for each in kept if each.row_ids is not None]
    row_ids = None
    if known:
        row_ids = np.full(len(live), NONE, np.int64)
        seq, ids = (np.concatenate([getattr(each, name) for each in known]) for name in ("seq", "row_ids"))
        order = np.argsort(seq)  # in this order the search stays in the processor's cache
        row_ids[np.searchsorted(live, seq[order])] = ids[order]
    rows = rows_of(step.store, step.groups[task], step.layout, live, row_ids)
    yield from write_files(lambda: step.new_file("parquet"), rows, step.layout)


STAGES: tuple[Kernel, ...] = (read, reduce, find, write)


def tasks_of(step: Step) -> tuple[int, ...]:
    """Return the number of tasks of each stage."""
    return len(step.groups), step.buckets, len(step.files), len(step.groups)


def whole(step: Step) -> list[Any]:
    """Carry out all stages in this process; return what the last one gives."""
    got: list[list[Any]] = [[] for _ in step.groups]
    for kernel, tasks in zip(STAGES, (*tasks_of(step)[1:], 0), strict=True):
        made = [each for task, blocks in enumerate(got) for each in kernel(step, task, iter(blocks))]
        if not tasks:
            return made
        got = [[] for _ in range(tasks)]
        for task, block in made:
            got[task].append(block)
    raise AssertionError("the last stage has no next one")


class _Rows:
    """The rows that one task of *find* has found; `dead` are all dead rows of the files in which it found some."""

    def __init__(self, step: Step, task: int) -> None:
        self.dead: dict[str, Any] = {}
        self._files = step.files[task]
        self._keeps_ids = step.version >= VECTORS_VERSION
        self._dead_before = DeadRows()

    def add(self, path: str, rows: Found, of_keys: Mapping[str, Any]) -> Iterator[Block]:
        """Take rows of one data file, of which some may be dead; `of_keys` has the `_numbers` of the changes."""
        file = self._files[path]
        before = self._dead_before.deleted(file.dead)
        remain = living(rows.positions, before)
        if not remain.any():
            return
        positions, numbers = rows.positions[remain], rows.keys[remain]
        self.dead[path] = self.dead.get(path, before) | bitmap_of(positions)
        if self._keeps_ids:
            row_ids = row_ids_at(file, positions)
            ours = of_keys[LIVE][numbers] & (row_ids != NONE)
            groups, seq = (of_keys[name][numbers][ours] for name in (_GROUP, SEQ))
            for group, (of_group, ids) in _by_group(groups, seq, row_ids[ours]):
                yield group, Kept(seq=of_group, group=group, row_ids=ids)


def _indexed(step: Step, last: pa.Table) -> Iterator[Block]:
    """Where the index has the keys of changes, for the tasks of those data files."""
    assert step.index is not None
    task_of = {path: task for task, files in enumerate(step.files) for path in files}
    columns = [last[name].combine_chunks() for name in key_names(step.layout)]
    for path, rows in step.index.find(columns, task_of.keys()).items():
        keys = last.select([SEQ, LIVE, _GROUP]).take(pa.array(rows.keys))
        yield task_of[path], At(path=path, positions=rows.positions, keys=Keys(packed=_stream(keys)))


def _by_bucket(changes: pa.Table, names: Sequence[str], by: KeyHash, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Divide changes by the range in which the hash of their keys is."""
    if not changes.num_rows:
        return
    if buckets == 1:
        yield 0, changes
        return
    high, _ = by([changes[name].combine_chunks() for name in names])
    numbers = ((high >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    in_order = changes.take(pa.array(order))
    ends = np.searchsorted(numbers[order], np.arange(buckets + 1))
    for bucket in range(buckets):
        start, end = ends[bucket], ends[bucket + 1]
        if start < end:
            yield bucket, in_order.slice(start, end - start)


def _numbers(changes: pa.Table) -> dict[str, Any]:
    """What *find* must know of each change, beside its key, as numpy arrays."""
    return {name: changes[name].to_numpy() for name in (SEQ, LIVE, _GROUP)}


def _by_group(groups: Any, *columns: Any) -> Iterator[tuple[int, list[Any]]]:
    """Divide arrays of equal length by the number of the group in the first one."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    parts = [np.split(column[order], starts[1:]) for column in columns]
    for at, start in enumerate(starts):
        yield int(groups[order[start]]), [part[at] for part in parts]


def _packed(rows: pa.Table) -> Iterator[bytes]:
    """Rows in Arrow's stream format, in pieces of about `BLOCK_BYTES`."""
    size = max(1, rows.num_rows // (1 + rows.nbytes // BLOCK_BYTES))
    for start in range(0, rows.num_rows, size):
        yield _stream(rows.slice(start, size))


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _unpacked(packed: bytes) -> pa.Table:
    with pa.ipc.open_stream(packed) as stream:
        return stream.read_all()
