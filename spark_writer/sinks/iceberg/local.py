"""Applies a batch's changes to a table in this process, with Arrow: for batches whose keys fit in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.journal.plan import Staged
from cutline.common.schema import SEQ
from cutline.common.store.store import PipelineStore
from cutline.spark_writer.sinks.iceberg.columns import Layout
from cutline.spark_writer.sinks.iceberg.data_files import write_rows
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.staged import (
    LIVE,
    changes_of,
    grouped,
    key_names,
    last_of,
    rows_of,
)
from cutline.spark_writer.sinks.iceberg.table import LakeTable


def changed(
    store: PipelineStore, table: LakeTable, layout: Layout, head: int, changes: Sequence[Staged], after: int | None
) -> tuple[list[Any], list[Vector]]:
    """Make the files of a commit that applies `changes` to the snapshot `head`: Iceberg's DataFiles of the new rows,
    and the deletion vectors of the old ones. The new image of a row keeps the row id of the old one.

    Changes up to `_seq` `after` are left out. StagedLost if a staged file is missing or corrupt.
    """
    last = reduced(store, changes, layout, after)
    names = key_names(layout)
    found = table.find(head, layout, last.select(names)) if names and last.num_rows else {}
    row_ids = table.row_ids(head, found, last.num_rows)
    kept, seq = last[LIVE].to_numpy(), last[SEQ].to_numpy()
    live, order = seq[kept], np.argsort(seq[kept])
    live = live[order]
    row_ids = None if row_ids is None else row_ids[kept][order]
    added = [
        file
        for group in grouped(store, changes)
        for file in write_rows(table, layout, rows_of(store, group, layout, live, row_ids))
    ]
    return added, table.delete(head, {path: rows.positions for path, rows in found.items()})


def reduced(store: PipelineStore, changes: Sequence[Staged], layout: Layout, after: int | None) -> pa.Table:
    """Return the last change of each key in staged files, as `changes_of` has it; memory grows with the keys."""
    groups = (group for staged in changes for group in changes_of(store, staged, layout, after))
    last = last_of(groups, layout)
    assert last is not None  # a staged file has rows
    return last
