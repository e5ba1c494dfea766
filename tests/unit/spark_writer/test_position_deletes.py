"""Position-delete files, and which form of delete a format version gets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from cutline.common.errors import ProtocolError
from cutline.common.schema import FIELD_ID
from cutline.spark_writer.sinks.iceberg import files, position_deletes
from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector
from cutline.spark_writer.sinks.iceberg.files import FileLost
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted, write_deleted

DEAD = {
    "file:/lake/data/one.parquet": np.array([7], np.int64),
    "s3://lake/data/many.parquet": np.arange(0, 100, 3, dtype=np.int64),
}


@pytest.fixture
def new_file(tmp_path: Path) -> Callable[[str], str]:
    numbers = itertools.count()
    return lambda suffix: f"file:{tmp_path}/data/{next(numbers)}.{suffix}"


def test_version_2_has_one_parquet_file_a_data_file_with_icebergs_columns(
    new_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_deletes, "ROW_GROUP_ROWS", 10)
    written = write_deleted(2, new_file, DEAD)
    assert [(each.data_file, each.rows, each.length) for each in written] == [
        (data_file, len(positions), 0) for data_file, positions in DEAD.items()
    ]
    assert len({each.path for each in written}) == 2
    for each in written:
        path = each.path.removeprefix("file:")
        found = pq.read_table(path)
        assert each.size == Path(path).stat().st_size
        assert [(field.name, field.type, field.nullable) for field in found.schema] == [
            ("file_path", pa.string(), False),
            ("pos", pa.int64(), False),
        ]
        assert [field.metadata[FIELD_ID] for field in found.schema] == [b"2147483546", b"2147483545"]
        assert set(found["file_path"].to_pylist()) == {each.data_file}
        assert found["pos"].to_pylist() == DEAD[each.data_file].tolist()
        assert read_deleted(each).tolist() == DEAD[each.data_file].tolist()


def test_version_3_has_deletion_vectors_in_one_file(new_file: Callable[[str], str]) -> None:
    written = write_deleted(3, new_file, DEAD)
    assert len({each.path for each in written}) == 1
    assert all(each.length and each.path.endswith(".puffin") for each in written)
    assert [read_deleted(each).tolist() for each in written] == [positions.tolist() for positions in DEAD.values()]


def test_a_file_of_an_object_store_has_the_size_that_the_store_says(
    new_file: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands for the bucket."""
    monkeypatch.setattr(
        files, "file_system", lambda path: (pyarrow.fs.LocalFileSystem(), path.removeprefix("s3://lake"))
    )
    (tmp_path / "data").mkdir()
    written = write_deleted(2, lambda suffix: new_file(suffix).replace("file:", "s3://lake"), DEAD)
    for each in written:
        assert each.size == Path(each.path.removeprefix("s3://lake")).stat().st_size
        assert read_deleted(each).tolist() == DEAD[each.data_file].tolist()


def test_nothing_deleted_is_no_file(new_file: Callable[[str], str], tmp_path: Path) -> None:
    assert write_deleted(2, new_file, {}) == write_deleted(3, new_file, {}) == []
    assert list(tmp_path.iterdir()) == []
    assert read_deleted(None).tolist() == []


def test_positions_of_another_writer_may_be_out_of_order_and_doubled(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"file_path": ["a"] * 4, "pos": [5, 1, 5, 3], "row": [None] * 4}), path)
    theirs = Vector(data_file="a", rows=4, path=str(path), offset=0, length=0, size=path.stat().st_size)
    assert read_deleted(theirs).tolist() == [1, 3, 5]


@pytest.mark.parametrize("content", [None, b"no Parquet", b"other columns"])
def test_a_file_that_is_lost_or_no_position_delete_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "lost.parquet"
    if content == b"other columns":
        pq.write_table(pa.table({"id": [1]}), path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(FileLost, match=r"lost\.parquet .*restore it from a backup"):
        read_deleted(Vector(data_file="a", rows=1, path=str(path), offset=0, length=0, size=9))
    assert issubclass(FileLost, ProtocolError)
