"""Deletion vectors as Iceberg has them, and sorted positions."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from cutline.common.errors import ProtocolError
from cutline.spark_writer.sinks.iceberg.dead_rows import DeadRows, living
from cutline.spark_writer.sinks.iceberg.deletion_vectors import (
    bitmap_of,
    decode,
    encode,
    read_vector,
    without,
    write_vectors,
)
from cutline.spark_writer.sinks.iceberg.files import FileLost


def sample(*spans: tuple[int, int, int]) -> np.ndarray:
    return np.unique(np.concatenate([np.arange(low, high, step) for low, high, step in spans])).astype(np.int64)


SAMPLES = {
    "none": np.empty(0, np.int64),
    "one": sample((7, 8, 1)),
    "sparse": sample((0, 10_000_000, 997)),
    "dense": sample((100, 300_000, 1), (400_000, 500_000, 3)),
    "over 32 bits": sample((2**32 - 5, 2**32 + 5, 1), (3 * 2**32, 3 * 2**32 + 100_000, 2)),
}


def framed(bitmaps: bytes) -> bytes:
    """Frame serialized bitmaps as Iceberg's specification says: length, magic, CRC-32."""
    body = struct.pack("<I", 1681511377) + bitmaps
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("positions", SAMPLES.values(), ids=SAMPLES.keys())
@pytest.mark.parametrize("runs", [True, False], ids=["with runs", "without"])
def test_a_vector_of_any_writer_is_read(positions: np.ndarray, runs: bool) -> None:
    found = decode(framed(BitMap64(positions.tolist(), optimize=runs).serialize()))
    assert (found.dtype, found.tolist()) == (np.int64, positions.tolist())
    assert decode(encode(positions)).tolist() == positions.tolist()


def test_a_vector_has_the_bytes_of_the_specification() -> None:
    """An array, a bitmap and a run container, in two bitmaps of 32 bits."""
    low = [7, 9]
    dense = list(range(65536, 131072, 2))
    high = [(5 << 32) + at for at in range(100, 200)]
    bits = b"\x55" * 8192
    first = struct.pack("<IIHHHHII", 12346, 2, 0, 1, 1, 32767, 24, 28) + struct.pack("<HH", *low) + bits
    second = struct.pack("<IBHHHHH", 12347, 1, 0, 99, 1, 100, 99)
    wanted = framed(struct.pack("<QI", 2, 0) + first + struct.pack("<I", 5) + second)
    assert encode(np.array(low + dense + high, np.int64)) == wanted
    assert decode(wanted).tolist() == low + dense + high


def test_a_run_container_is_read() -> None:
    runs = struct.pack("<HHHHH", 2, 10, 4, 100, 0)
    bits = struct.pack("<IB", 12347, 1) + struct.pack("<HH", 1, 5) + runs
    base = (2 << 32) + (1 << 16)
    assert decode(framed(struct.pack("<QI", 1, 2) + bits)).tolist() == [base + low for low in (10, 11, 12, 13, 14, 100)]


def test_a_torn_vector_is_refused() -> None:
    content = bytearray(encode(SAMPLES["sparse"]))
    content[40] ^= 1
    with pytest.raises(ProtocolError, match="corrupt"):
        decode(bytes(content))


@pytest.mark.parametrize("bitmaps", [b"", b"\x01" + bytes(7), b"\xff" * 40])
def test_a_vector_with_a_right_checksum_and_no_bitmaps_is_refused(bitmaps: bytes) -> None:
    with pytest.raises(ProtocolError, match="corrupt"):
        decode(framed(bitmaps))


def test_sorted_positions_are_taken_away() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        dead = np.unique(rng.integers(0, 100, rng.integers(0, 60)))
        places = np.unique(rng.integers(0, 100, rng.integers(0, 60)))
        fresh = without(places, dead)
        assert fresh.tolist() == np.setdiff1d(places, dead).tolist()


def test_a_file_of_vectors_is_read_by_us_and_by_pyiceberg(tmp_path: Path) -> None:
    names = ("one", "sparse", "dense")  # PyIceberg has no empty vector, and none over 32 bits
    named = {f"file:/lake/data/{name}.parquet": SAMPLES[name] for name in names}
    vectors = write_vectors(f"file:{tmp_path}/data/v.puffin", named)
    content = (tmp_path / "data" / "v.puffin").read_bytes()
    assert [vector.data_file for vector in vectors] == list(named)
    assert {vector.size for vector in vectors} == {len(content)}
    assert [vector.rows for vector in vectors] == [len(positions) for positions in named.values()]
    for vector in vectors:
        assert read_vector(vector).tolist() == named[vector.data_file].tolist()
    theirs = {each.referenced_data_file: each for each in deletion_vectors_from_puffin_file(PuffinFile(content))}
    assert {name: each.to_vector().to_pylist() for name, each in theirs.items()} == {
        name: positions.tolist() for name, positions in named.items()
    }
    (tmp_path / "data" / "v.puffin").unlink()
    with pytest.raises(FileLost, match="missing"):
        read_vector(vectors[0])
    assert read_vector(None).tolist() == []


def test_a_vector_says_as_many_rows_as_its_bitmap_has(tmp_path: Path) -> None:
    twice = np.array([3, 3, 8], np.int64)
    (vector,) = write_vectors(f"{tmp_path}/v.puffin", {"f.parquet": twice})
    assert vector.rows == 2
    assert read_vector(vector).tolist() == [3, 8]
    assert b'"cardinality": "2"' in (tmp_path / "v.puffin").read_bytes()


def test_deleted_rows_are_kept_up_to_a_limit_and_read_again_beyond(tmp_path: Path) -> None:
    """The vectors last used are kept: their file may be gone; of the others each costs a look at it."""
    named = {f"{name}.parquet": sample((at, 10_000, 97)) for at, name in enumerate("abc")}
    vectors = write_vectors(f"{tmp_path}/v.puffin", named)
    known = DeadRows(vectors[0].length + vectors[1].length)
    for vector in (*vectors, vectors[1]):
        assert known.deleted(vector) == bitmap_of(named[vector.data_file])
    assert known.bytes <= vectors[0].length + vectors[1].length
    (tmp_path / "v.puffin").unlink()
    assert known.deleted(vectors[1]) == bitmap_of(named["b.parquet"])
    with pytest.raises(FileLost, match="missing"):
        known.deleted(vectors[0])
    assert not known.deleted(None)


def test_the_living_of_sorted_positions_are_those_that_are_not_dead() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        dead = np.unique(rng.integers(0, 100, rng.integers(0, 60)))
        places = np.unique(rng.integers(0, 100, rng.integers(1, 60)))
        assert places[living(places, bitmap_of(dead))].tolist() == np.setdiff1d(places, dead).tolist()
