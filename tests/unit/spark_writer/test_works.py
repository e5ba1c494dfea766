"""Iceberg's works: how many rows a snapshot has, by its summary."""

from __future__ import annotations

import pytest

from cutline.spark_writer.sinks.iceberg.works import living_rows


@pytest.mark.parametrize(
    ("summary", "rows"),
    [
        ({"total-records": "10"}, 10),
        ({"total-records": "10", "total-position-deletes": "3", "total-equality-deletes": "0"}, 7),
        ({"total-records": "10", "total-equality-deletes": "1"}, None),  # which rows these hit is not told
        ({"operation": "append"}, None),
    ],
)
def test_the_rows_of_a_snapshot_are_its_records_without_the_deleted_ones(
    summary: dict[str, str], rows: int | None
) -> None:
    assert living_rows(summary) == rows
