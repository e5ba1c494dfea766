"""Upkeep of one lake table between applies: compaction, expiry, removal of old branches.

Compaction merges files by tiers of size (eight files of a tier become one of the next), and rewrites a file more than
half of whose rows are deleted. It is an ordinary commit on the staging branch: the next publication shows it, and a
crash undoes it.

Expiry removes snapshots that no ref names and that are older than a grace period, in which readers may still use them.
Refs hold what must stay: `main`, the staging branch of the newest publication, the tags of kept cuts. No file of the
store is deleted with a snapshot; tables that Cutline's first versions made name such files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.iceberg.columns import Layout, default_value
from cutline.spark_writer.iceberg.files import DataFile, open_parquet
from cutline.spark_writer.iceberg.jvm import failing_as
from cutline.spark_writer.iceberg.sorting import in_order
from cutline.spark_writer.iceberg.table import LakeTable, write_rows

TIER = 8
SMALL_BYTES = 16 << 20
ROUND_BYTES = 64 << 20


def worth_compacting(
    files: Collection[DataFile], dead_rows: Callable[[DataFile], int], least: int = TIER
) -> list[DataFile]:
    """Choose files to merge into one, about `ROUND_BYTES` of them.

    They are those of the fullest tier, if it has at least `least` small files, else those with more than half of their
    rows deleted.
    """
    tiers: dict[int, list[DataFile]] = {}
    for file in files:
        if file.size < SMALL_BYTES:
            tiers.setdefault(int(math.log(max(file.size, 1), TIER)), []).append(file)
    fullest = max(tiers.values(), key=len, default=[])
    chosen = fullest if len(fullest) >= least else [file for file in files if 2 * dead_rows(file) > file.rows]
    total = 0
    within: list[DataFile] = []
    for file in sorted(chosen, key=lambda file: file.size):
        total += file.size
        if within and total > ROUND_BYTES:
            break
        within.append(file)
    return within


def compact(
    table: LakeTable, *, branch: str, head: int, layout: Layout, summary: dict[str, str], least: int = TIER
) -> int:
    """Do one round of compaction on `branch`, if it is worthwhile; return the branch's head after it."""
    contents = table.contents(head)
    chosen = worth_compacting(contents.files.values(), table.dead_rows, least)
    if not chosen:
        return head
    rows = (living for file in chosen for living in living_rows(file.path, table.dead(file), layout))
    added = write_rows(table, in_order(rows, layout))
    return table.commit(
        branch=branch, base=head, layout=layout, summary=summary, change=table.rewrite(head, chosen, added)
    )


def living_rows(path: str, dead: Any, layout: Layout) -> Iterator[pa.Table]:
    """Yield a data file's living rows by row group, in the columns of `layout`; `dead` are its other positions."""
    with open_parquet(path) as source:
        start = 0
        for at in range(source.num_row_groups):
            group = source.read_row_group(at)
            low, high = np.searchsorted(dead, (start, start + group.num_rows))
            if low < high:
                mask = np.ones(group.num_rows, bool)
                mask[dead[low:high] - start] = False
                group = group.filter(pa.array(mask))
            start += int(source.metadata.row_group(at).num_rows)
            if group.num_rows:
                yield _in_layout(group, layout)


def _in_layout(group: pa.Table, layout: Layout) -> pa.Table:
    """Map rows of the lake to `layout` by the lake's field ids, as any reader of the snapshot would."""
    at_of = {int(field.metadata[FIELD_ID]): at for at, field in enumerate(group.schema)}
    columns = []
    for column, field in zip(layout.schema.lake, layout.arrow, strict=True):
        at = at_of.get(int(field.metadata[FIELD_ID]))
        if at is not None:
            columns.append(group.column(at).cast(field.type))
        else:
            value = pa.scalar(default_value(column, field.type), field.type)
            columns.append(pa.chunked_array([pa.repeat(value, group.num_rows)]))
    return pa.Table.from_arrays(columns, schema=layout.arrow)


def expire(table: LakeTable, *, before_ms: int, store: str | None = None) -> set[str]:
    """Expire snapshots that no ref holds and that are older than `before_ms`; delete the files that they alone named.

    A file is deleted only if no manifest of a retained snapshot names its path. Those in the folder `store` (a full
    path that ends in a slash) are not deleted, but returned.

    Iceberg has two ways to find the files to delete. The incremental one, used while every snapshot is an ancestor of
    `main`, deletes each path that an expired snapshot removed from the table. That is wrong if several files share a
    path, as the deletion vectors of one commit do: when one of them is replaced, the others still live there. The
    other way subtracts the paths that retained snapshots name, and Iceberg uses it if snapshots are named by id. So
    this function names the snapshots that Iceberg itself chose by age. Iceberg then reads each manifest of the
    retained snapshots once, and only if a manifest goes: where nothing expired it costs nothing.
    """
    with failing_as(f"snapshots of {table.table_id} could not be expired"):
        table.refresh()
        unneeded = table.jvm.root.java.util.stream.Stream.builder()
        expiry = table.java.expireSnapshots().expireOlderThan(before_ms).retainLast(1).deleteWith(unneeded)
        for snapshot in expiry.apply():
            expiry.expireSnapshotId(snapshot.snapshotId())
        expiry.commit()
        table.sync_metadata()
        paths = {str(path) for path in unneeded.build().toArray()}
        staged = {path for path in paths if store is not None and path.startswith(store)}
        for path in paths - staged:
            table.java.io().deleteFile(path)
    return staged


def drop_branches(table: LakeTable, *, ours: str) -> None:
    """Drop the staging branches of older starts; call it once a publication's `work` is on branch `ours`."""
    with failing_as(f"old branches of {table.table_id} could not be dropped"):
        table.refresh()
        old = table.older_branches(ours)
        if old and table.head(ours) is not None:
            manage = table.java.manageSnapshots()
            for name in old:
                manage.removeBranch(name)
            manage.commit()
            table.sync_metadata()
