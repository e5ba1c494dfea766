"""Row lineage, by which readers follow a row through its updates: Iceberg's columns `_row_id` and
`_last_updated_sequence_number` (Iceberg's spec, version 3, "Row Lineage").

Iceberg gives each data file a first row id when it is added. A row without a value of its own has that id plus its
position, and the sequence number of the file. So a file with new rows only needs neither column. A file of updated rows
has `_row_id`, with the id of the row that each one replaces, and null for a new row. A file that compaction wrote has
both columns, since its rows do not change.

The columns are not part of the table's schema. Readers know them by their field ids, which Iceberg reserves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.files import DataFile, Lineage, open_parquet

NONE = -1
"""In an array of row ids: the row has none, and gets one of its file."""
ROW_ID = pa.field("_row_id", pa.int64(), metadata={FIELD_ID: str(2**31 - 1 - 107)})
LAST_UPDATED = pa.field("_last_updated_sequence_number", pa.int64(), metadata={FIELD_ID: str(2**31 - 1 - 108)})


def row_ids_at(file: DataFile, positions: Any) -> Any:
    """Return the row ids at sorted positions of a data file as a numpy array; NONE where Iceberg assigned none.

    Only the column `_row_id` is read, and only in row groups that hold one of the positions; nothing at all of a file
    that is known to have no such column.
    """
    first = None if file.lineage is None else file.lineage.first_row_id
    assigned = np.full(len(positions), NONE, np.int64) if first is None else first + positions
    if file.own_row_ids is False:
        return assigned
    with open_parquet(file.path) as source:
        name = _name_of(source.schema_arrow, ROW_ID)
        file.own_row_ids = name is not None
        if name is None:
            return assigned
        start = 0
        for at in range(source.num_row_groups):
            rows = source.metadata.row_group(at).num_rows
            low, high = np.searchsorted(positions, (start, start + rows))
            if low < high:
                here = positions[low:high] - start
                found = source.read_row_group(at, columns=[name]).column(name).combine_chunks()
                own = pc.fill_null(found, NONE).to_numpy()[here]
                assigned[low:high] = np.where(own == NONE, assigned[low:high], own)
            start += rows
    return assigned


def with_row_ids(rows: pa.Table, row_ids: Any) -> pa.Table:
    """Return rows with the column `_row_id`; they count as updated by the commit that adds them."""
    return rows.append_column(ROW_ID, pa.array(row_ids, pa.int64(), mask=row_ids == NONE))


def with_lineage(rows: pa.Table, read: pa.Table, positions: Any, lineage: Lineage) -> pa.Table:
    """Return rows with both columns, as they are in the data file from which the rows were `read`.

    `read` has the same rows with all columns of the file, `positions` are their places there. Rows that never got an id
    get one from their new file, and count as updated by the commit that adds it, as the specification demands.
    """
    own_ids, own_sequences = (_column(read, field) for field in (ROW_ID, LAST_UPDATED))
    if lineage.first_row_id is None:
        never = pa.scalar(None, pa.int64())
        sequences = pc.if_else(pc.is_valid(own_ids), pc.fill_null(own_sequences, lineage.sequence), never)
    else:
        own_ids = pc.coalesce(own_ids, pa.array(lineage.first_row_id + positions, pa.int64()))
        sequences = pc.fill_null(own_sequences, lineage.sequence)
    return rows.append_column(ROW_ID, own_ids).append_column(LAST_UPDATED, sequences)


def _column(rows: pa.Table, field: pa.Field) -> pa.Array:
    name = _name_of(rows.schema, field)
    return pa.nulls(rows.num_rows, pa.int64()) if name is None else rows.column(name).combine_chunks()


def _name_of(schema: pa.Schema, wanted: pa.Field) -> str | None:
    """The name of the column with the field id of `wanted`: a source's own column may have Iceberg's name."""
    field_id = wanted.metadata[FIELD_ID]
    return next((field.name for field in schema if (field.metadata or {}).get(FIELD_ID) == field_id), None)
