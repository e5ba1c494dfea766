"""The rows by which two snapshots of a lake table differ, with their values: of what each commit between them did.

A commit's new rows are those of the data files that it added; the rows that it deleted are at the positions that its
deletion vectors have beside those of before, in data files that the snapshot before it had. Commits that only rewrote
files are passed over. A row that came and went in between is among both. So the cost grows with the files that were
added and the files in which rows were deleted, of which only the columns that are asked for are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, without
from cutline.spark_writer.sinks.iceberg.files import open_parquet
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted
from cutline.spark_writer.sinks.iceberg.table import LakeTable

WEIGHT = "_weight"
"""The last column of changed rows: 1 for a new row, -1 for one that is gone."""


class InFull(Exception):
    """A derived table can't be computed of the changes alone this time; the text says why."""


def changed_rows(
    table: LakeTable, before: int, now: int, wanted: pa.Schema, most: int, most_bytes: int
) -> pa.Table:
    """The rows that came and went from snapshot `before` to `now`, in the columns `wanted` (by the names of the later
    snapshot) and `WEIGHT`; none if only files were rewritten.

    InFull if that is unknown, if the table was emptied or got other columns, and for more than `most` rows or
    `most_bytes` of them. FileLost if a file can't be read.
    """
    table.refresh()
    metadata, about = table.metadata(), table.table_id
    found = None if metadata.snapshot(before) is None else table.calls.steps(before, now)
    if found is None:
        raise InFull(f"the lake no longer has {about} as it was then")
    if metadata.snapshot(before).schemaId() != metadata.snapshot(now).schemaId():
        raise InFull(f"the columns of {about} have changed")
    steps = json.loads(str(found))
    if any(step["removes"] for step in steps):
        raise InFull(f"{about} was emptied or read again")
    added = {path: rows for step in steps for path, rows in step["added"].items()}
    pairs = [pair for step in steps for pair in _deletions(step, about)]
    gone = sum(new.rows - (0 if old is None else old.rows) for old, new in pairs)
    if sum(added.values()) + gone > most:
        raise InFull(f"more than {most:,} rows of {about} have changed")
    schema = metadata.schemasById().get(metadata.snapshot(now).schemaId())
    columns = json.loads(str(table.jvm.iceberg.SchemaParser.toJson(schema)))["fields"]
    by_name = {column["name"]: column for column in columns}
    came = (_read(path, None, by_name, wanted, 1) for path in added)
    went = (
        _read(new.data_file, without(read_deleted(new), read_deleted(old)), by_name, wanted, -1) for old, new in pairs
    )
    parts, size = [_empty(wanted)], 0
    for part in chain(came, went):
        parts.append(part)
        size += part.nbytes
        if size > most_bytes:
            raise InFull(f"more than {most_bytes:,} bytes of {about} have changed")
    return pa.concat_tables(parts)


def _deletions(step: Mapping[str, Any], about: str) -> Iterator[tuple[Vector | None, Vector]]:
    """For each data file in which a commit deleted rows, what deletes rows of it before the commit and after it."""
    before = {each["data_file"]: Vector(**each) for each in step["deleted"]}
    after = {each["data_file"]: Vector(**each) for each in step["deletes"]}
    if None in before or None in after or len(after) < len(step["deletes"]) or not before.keys() <= after.keys():
        raise InFull(f"another user deleted rows of {about} in a form of their own")
    for path, vector in after.items():
        yield before.get(path), vector


def _empty(wanted: pa.Schema) -> pa.Table:
    return pa.schema([*wanted, pa.field(WEIGHT, pa.int32())]).empty_table()


def _read(path: str, positions: Any, by_name: Mapping[str, Any], wanted: pa.Schema, weight: int) -> pa.Table:
    """The rows at sorted positions of a data file (None: all)."""
    found = [_empty(wanted)]
    with open_parquet(path) as file:
        names = {(field.metadata or {}).get(FIELD_ID): field.name for field in file.schema_arrow}
        own = [names.get(str(by_name[field.name]["id"]).encode()) for field in wanted]
        for field, name in zip(wanted, own, strict=True):
            if name is None and "initial-default" in by_name[field.name]:
                raise InFull(f"a file is older than the column {field.name}")
        start = 0
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            here = np.arange(rows) if positions is None else _within(positions, start, start + rows)
            if len(here):
                read = file.read_row_group(number, columns=[name for name in own if name is not None])
                found.append(_in_columns(read, here, own, wanted, weight))
            start += rows
    return pa.concat_tables(found)


def _within(positions: Any, start: int, end: int) -> Any:
    low, high = np.searchsorted(positions, (start, end))
    return positions[low:high] - start


def _in_columns(read: pa.Table, rows: Any, own: Sequence[str | None], wanted: pa.Schema, weight: int) -> pa.Table:
    at, count = pa.array(rows), len(rows)
    columns = [
        pa.nulls(count, field.type) if name is None else read[name].take(at).cast(field.type)
        for name, field in zip(own, wanted, strict=True)
    ]
    weights = pa.repeat(pa.scalar(weight, pa.int32()), count)
    return pa.Table.from_arrays([*columns, weights], schema=_empty(wanted).schema)
