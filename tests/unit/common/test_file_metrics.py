"""A chunk file's metrics: computed from its footer, kept in the journal beside its record, bounded at a cut."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.common import parquet
from cutline.common.file_metrics import file_metrics
from cutline.common.mesh.messages import PartSaved, decode, encode
from cutline.common.schema import FIELD_ID
from cutline.common.store.records import CheckpointEntry, ColumnMetrics, FileMetrics, StagedFile
from cutline.common.store.store import PipelineStore
from cutline.services.writer.staging import Budget, OpenChanges, OpenChunk, within
from tests.support import records
from tests.unit.services.writer.test_staging import changes, named, rows

METRICS = FileMetrics(
    columns=(
        ColumnMetrics(1, 40, 0, "01000000", "0a000000"),
        ColumnMetrics(2, 30, 0, "ff"),
        ColumnMetrics(3, 20, 5),
        ColumnMetrics(4, 10),
    ),
    offsets=(4, 1000),
)


def metrics_of(kind: pa.DataType, *groups: list[Any]) -> ColumnMetrics:
    """The metrics of a column of field id 7 with these row groups."""
    schema = pa.schema([pa.field("c", kind, metadata={FIELD_ID: "7"})])
    tables = [pa.Table.from_arrays([pa.array(values, kind)], schema=schema) for values in groups]
    with parquet.writer(pa.BufferOutputStream(), tables[0], small=True) as writer:
        for table in tables:
            writer.write_table(table)
    found = file_metrics(writer.writer.metadata, schema)
    assert found is not None
    assert len(found.offsets) == len(groups)
    return found.columns[0]


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("a" * 16, "a" * 16, "a" * 16),
        ("a" * 17, "a" * 16, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ffx", "a" * 15 + "\ud7ff", "a" * 15 + "\ue000"),
        ("a" * 15 + "\U0010ffffx", "a" * 15 + "\U0010ffff", "a" * 14 + "b"),
        ("\U0010ffff" * 17, "\U0010ffff" * 16, None),
        ("", "", ""),
    ],
)
def test_bounds_of_text_have_at_most_16_characters(text: str, lower: str, upper: str | None) -> None:
    found = metrics_of(pa.string(), [text, None])
    assert (found.nulls, found.lower) == (1, lower.encode().hex())
    assert found.upper == (None if upper is None else upper.encode().hex())


def test_bounds_of_binary_have_at_most_16_bytes() -> None:
    assert metrics_of(pa.binary(), [b"\xff" * 17])[3:] == ("ff" * 16, None)
    assert metrics_of(pa.binary(), [b"\x01" + b"\xff" * 16])[3:] == ("01" + "ff" * 15, "02")


def test_bounds_are_those_of_all_row_groups_and_hold_for_both_zeros() -> None:
    assert metrics_of(pa.decimal128(38, 2), [Decimal("1.28")], [Decimal("-1.29"), None])[2:] == (1, "ff7f", "0080")
    assert metrics_of(pa.float64(), [0.0], [-0.0])[3:] == (struct.pack("<d", -0.0).hex(), struct.pack("<d", 0.0).hex())
    assert metrics_of(pa.int32(), [3], [None], [1, 2])[2:] == (1, "01000000", "03000000")


@pytest.mark.parametrize("longest", [["z" * 5000], ["z" * 5000, None]])
def test_a_row_group_without_a_greatest_value_leaves_the_column_without_bounds(longest: list[str | None]) -> None:
    assert metrics_of(pa.string(), ["m"], longest)[2:] == (longest.count(None), None, None)
    assert metrics_of(pa.string(), ["m"], [None])[2:] == (1, "6d", "6d")


def test_columns_without_field_ids_have_no_metrics() -> None:
    table = pa.table({"c": [1]})
    with parquet.writer(pa.BufferOutputStream(), table) as writer:
        writer.write_table(table)
    assert file_metrics(writer.writer.metadata, table.schema) is None


@pytest.fixture
def store(tmp_path: Path) -> PipelineStore:
    return records.begun(f"file://{tmp_path}")


@pytest.mark.parametrize("budget", [Budget(), Budget(limit_bytes=1)])
def test_a_chunks_record_has_metrics_and_that_of_changes_has_none(store: PipelineStore, budget: Budget) -> None:
    chunk = OpenChunk(store, split_id="s1", budget=budget, **named())
    chunk.append(rows(1, 2))
    chunk.append(rows(3))
    metrics = chunk.close().metrics
    assert metrics is not None
    assert [column.field_id for column in metrics.columns] == [1, 5]
    assert (metrics.columns[0].lower, metrics.columns[0].upper) == ("0100000000000000", "0300000000000000")
    file = OpenChanges(store, budget=budget, **named())
    file.append(changes(["+I"]), 0)
    assert file.close().metrics is None


def test_metrics_are_in_the_journal_beside_the_record_where_an_older_version_ignores_them(store: PipelineStore) -> None:
    chunk = records.staged(kind="chunk", metrics=METRICS)
    other = records.staged(path="staged/g")
    entry = records.checkpoint(2, staged=(chunk, other))
    body = json.loads(json.dumps(entry.to_json(since=None, tables={})))
    assert body["metrics"] == {
        "staged/f": {
            "columns": [[1, 40, 0, "01000000", "0a000000"], [2, 30, 0, "ff"], [3, 20, 5], [4, 10]],
            "offsets": [4, 1000],
        }
    }
    assert all("metrics" not in file for file in body["staged"])
    assert CheckpointEntry.from_json(body, {}) == entry
    del body["metrics"]
    assert [file.metrics for file in CheckpointEntry.from_json(body, {}).staged] == [None, None]
    assert store.put_entry(records.epoch(1))
    assert store.put_entry(entry)
    assert store.entry(2) == entry


def test_a_writers_report_of_a_cut_carries_them() -> None:
    message = PartSaved(checkpoint=2, staged=(records.staged(metrics=METRICS), records.staged()))
    assert decode(json.loads(json.dumps(encode(message)))) == message


def test_metrics_at_one_cut_are_of_a_bounded_number_of_columns() -> None:
    staged = [records.staged(path=f"staged/{at}", metrics=METRICS if at != 1 else None) for at in range(5)]
    kept = within(staged, 8)
    assert [file.metrics is not None for file in kept] == [True, False, True, False, False]
    assert [file.path for file in kept] == [file.path for file in staged]
    assert isinstance(kept[0], StagedFile)
