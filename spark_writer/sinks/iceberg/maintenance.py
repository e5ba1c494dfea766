"""Upkeep of one lake table between applies: compaction, expiry, removal of old branches.

Compaction merges files by tiers of size: eight files or more of a tier become one of a higher tier, until a file has
`END_BYTES`. So each byte is rewritten once a tier at most, and the total cost is linear in what was written. A file
more than half of whose rows are deleted is rewritten too. The new file is sorted by key and keeps the lineage of each
row (merging.py). A round is an ordinary commit on the staging branch: the next publication shows it, and a crash undoes
it. Rounds of more than `HERE_BYTES` run beside the applies (rewriting.py).

Iceberg's own action can rewrite a branch too (`RewriteDataFilesSparkAction.toBranch`), but not ours: it reads a branch
with the table's current schema, which lacks the columns that only our branch has so far, and would lose their values.
It also lists all files of the table in each round, and fails if rows of its files die meanwhile. Manifests need no
upkeep: Iceberg merges them as it commits, once a table has a hundred of a kind.

Expiry removes snapshots that no ref names and that are older than a grace period, in which readers may still use them.
Refs hold `main`, the staging branch of the newest publication and the kept cuts; the caller names whatever else the
retained publications name (retention.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from cutline.spark_writer.sinks.iceberg.changes import rewrite
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.data_files import write_rows
from cutline.spark_writer.sinks.iceberg.files import DataFile
from cutline.spark_writer.sinks.iceberg.jvm import failing_as
from cutline.spark_writer.sinks.iceberg.merging import Source, merged_rows
from cutline.spark_writer.sinks.iceberg.refs import older_branches
from cutline.spark_writer.sinks.iceberg.table import LakeTable

TIER = 8
END_BYTES = 128 << 20
"""A file of this size, that of a tier's beginning, is not merged any more."""
ROUND_BYTES = 512 << 20
HERE_BYTES = 64 << 20
"""A round of more bytes would hold up the applies too long."""


def worth_compacting(
    files: Collection[DataFile],
    dead_rows: Callable[[DataFile], int],
    least: int = TIER,
    *,
    here: bool = False,
) -> list[DataFile]:
    """Choose files to merge into one, at most `ROUND_BYTES` of them (`here`: `HERE_BYTES`), or one that is larger.

    They are those of the fullest tier of a partition, if it has at least `least` files, else those with more than half
    of their rows deleted. With `here`, large files are left for a large round.
    """
    most = HERE_BYTES if here else ROUND_BYTES
    tiers: dict[tuple[str, int], list[DataFile]] = {}
    for file in files:
        if file.size < (HERE_BYTES // 4 if here else END_BYTES):
            tiers.setdefault((file.partition_name, int(math.log(max(file.size, 1), TIER))), []).append(file)
    fullest = max(tiers.values(), key=len, default=[])
    dying = (file for file in files if not (here and file.size > most) and 2 * dead_rows(file) > file.rows)
    chosen = fullest if len(fullest) >= least else list(dying)
    total = 0
    within: list[DataFile] = []
    for file in sorted(chosen, key=lambda file: file.size):
        total += file.size
        if within and total > most:
            break
        within.append(file)
    return within


def sources(table: LakeTable, files: Collection[DataFile]) -> list[Source]:
    """Return what `merging` needs of these files of a snapshot."""
    found = []
    for file in files:
        assert file.lineage is not None, f"{file.path} is in no snapshot"
        found.append(Source(path=file.path, vector=table.vector(file), lineage=file.lineage))
    return found


def compact(
    table: LakeTable, chosen: Sequence[DataFile], *, branch: str, head: int, layout: Layout, summary: dict[str, str]
) -> int:
    """Merge files of `branch` into one; return the branch's head after it."""
    added = write_rows(table, layout, merged_rows(sources(table, chosen), layout))
    return table.commit(
        branch=branch, base=head, layout=layout, summary=summary, change=rewrite(table, head, chosen, added)
    )


def expire(table: LakeTable, *, before_ms: int, kept: Collection[int] = ()) -> None:
    """Expire snapshots that no ref holds, that are older than `before_ms` and not among `kept`; delete the files that
    they alone named.

    A file is deleted only if no manifest of a retained snapshot names its path.

    Iceberg has two ways to find the files to delete. The incremental one, used while every snapshot is an ancestor of
    `main`, deletes each path that an expired snapshot removed from the table. That is wrong if several files share a
    path, as the deletion vectors of one commit do: when one of them is replaced, the others still live there. The other
    way subtracts the paths that retained snapshots name, and Iceberg uses it if snapshots are named by id. So this
    function names the snapshots that Iceberg itself chose by age, without those to keep. Iceberg then reads each
    manifest of the retained snapshots once, and only if a manifest goes: where nothing expired it costs nothing.
    """
    with failing_as(f"snapshots of {table.table_id} could not be expired"):
        table.refresh()
        unneeded = table.jvm.root.java.util.stream.Stream.builder()
        by_age = table.java.expireSnapshots().expireOlderThan(before_ms).retainLast(1)
        old = [int(snapshot.snapshotId()) for snapshot in by_age.apply()]
        expiry = table.java.expireSnapshots().expireOlderThan(0).deleteWith(unneeded)
        for snapshot_id in old:
            if snapshot_id not in kept:
                expiry.expireSnapshotId(snapshot_id)
        expiry.commit()
        table.sync_metadata()
        for path in {str(path) for path in unneeded.build().toArray()}:
            table.java.io().deleteFile(path)


def drop_branches(table: LakeTable, *, ours: str) -> None:
    """Drop the staging branches of older starts; call it once a publication's `work` is on branch `ours`."""
    with failing_as(f"old branches of {table.table_id} could not be dropped"):
        table.refresh()
        old = older_branches(table.metadata(), ours)
        if old and table.head(ours) is not None:
            manage = table.java.manageSnapshots()
            for name in old:
                manage.removeBranch(name)
            manage.commit()
            table.sync_metadata()
