"""Spark's tasks find by a sent key index what the Spark writer finds, and never less by a file that is not whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cutline.spark_writer.sinks.iceberg import key_index, sent_index
from cutline.spark_writer.sinks.iceberg.key_hash import kind_of
from cutline.spark_writer.sinks.iceberg.key_index import KeyIndex, KeyIndexes
from cutline.spark_writer.sinks.iceberg.sent_index import IndexDamaged, sent
from tests.support import records

ROWS = 100
KEYS = [pa.array(np.arange(10), pa.int64())]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyIndex:
    """An index of one file, stored."""
    monkeypatch.setattr(key_index, "STORED_ROWS", 1)
    monkeypatch.setattr(sent_index, "_checked", set())
    made = KeyIndexes(records.begun(f"file://{tmp_path}/store").index_files(copied=True)).find("shop.t")
    made.open([[1, kind_of(pa.int64())]])
    made.add([("f", ROWS, iter([[pa.array(np.arange(ROWS), pa.int64())]]))], ["f"])
    return made


def stored(tmp_path: Path) -> Path:
    (path,) = tmp_path.rglob("*.keys")
    return path


def test_a_stored_run_is_found_in_by_its_name(index: KeyIndex) -> None:
    found = sent(index).find(KEYS, ["f"])
    assert found["f"].positions.tolist() == list(range(10))
    assert sent(index).find(KEYS, []) == {}


def test_a_file_that_is_cut_off_filled_up_or_gone_is_damage_also_after_it_was_whole(
    index: KeyIndex, tmp_path: Path
) -> None:
    shipped, path = sent(index), stored(tmp_path)
    assert len(shipped.find(KEYS, ["f"])["f"].positions) == 10
    size = path.stat().st_size
    os.truncate(path, size // 2)
    with pytest.raises(IndexDamaged, match="is not as it was written"):
        shipped.find(KEYS, ["f"])
    os.truncate(path, size)
    with pytest.raises(IndexDamaged, match="is not as it was written"):
        shipped.find(KEYS, ["f"])
    path.unlink()
    with pytest.raises(IndexDamaged, match="is missing"):
        shipped.find(KEYS, ["f"])


def test_other_entries_of_the_same_length_are_damage_for_each_process(index: KeyIndex, tmp_path: Path) -> None:
    with stored(tmp_path).open("r+b") as file:
        file.write(b"\0" * 24)
    with pytest.raises(IndexDamaged, match="is not as it was written"):
        sent(index).find(KEYS, ["f"])


def test_an_index_that_rests_has_no_run_and_then_reads_its_files_anew(index: KeyIndex) -> None:
    index.rest()
    assert index.rests
    assert not index.runs
    index.open([[1, kind_of(pa.int64())]])
    assert sent(index).find(KEYS, ["f"])["f"].positions.tolist() == list(range(10))
