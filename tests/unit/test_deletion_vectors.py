"""Deletion vectors as Iceberg has them, and sorted positions."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from pyroaring import BitMap64

from cutline.common.errors import ProtocolError
from cutline.spark_writer.iceberg.deletion_vectors import decode, encode, merged, without


def sample(*spans: tuple[int, int, int]) -> np.ndarray:
    return np.unique(np.concatenate([np.arange(low, high, step) for low, high, step in spans])).astype(np.int64)


SAMPLES = {
    "none": np.empty(0, np.int64),
    "one": sample((7, 8, 1)),
    "sparse": sample((0, 10_000_000, 997)),
    "dense": sample((100, 300_000, 1), (400_000, 500_000, 3)),
    "over 32 bits": sample((2**32 - 5, 2**32 + 5, 1), (3 * 2**32, 3 * 2**32 + 100_000, 2)),
}


@pytest.mark.parametrize("positions", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_vector_is_what_croaring_reads_and_writes(positions: np.ndarray) -> None:
    content = encode(positions)
    assert decode(content).tolist() == positions.tolist()
    assert list(BitMap64.deserialize(content[8:-4])) == positions.tolist()


@pytest.mark.parametrize("positions", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_vector_with_runs_of_another_writer_is_read(positions: np.ndarray) -> None:
    bits = BitMap64(positions.tolist())
    bits.run_optimize() if hasattr(bits, "run_optimize") else None
    body = struct.pack("<I", 1681511377) + bits.serialize()
    content = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    assert decode(content).tolist() == positions.tolist()


def test_a_run_container_is_read() -> None:
    runs = struct.pack("<HHHHH", 2, 10, 4, 100, 0)
    bits = struct.pack("<IB", 12347, 1) + struct.pack("<HH", 1, 5) + runs
    body = struct.pack("<IQI", 1681511377, 1, 2) + bits
    content = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    base = (2 << 32) + (1 << 16)
    assert decode(content).tolist() == [base + low for low in (10, 11, 12, 13, 14, 100)]


def test_a_torn_vector_is_refused() -> None:
    content = bytearray(encode(SAMPLES["sparse"]))
    content[40] ^= 1
    with pytest.raises(ProtocolError, match="corrupt"):
        decode(bytes(content))


def test_sorted_positions_are_merged_and_taken_away() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        dead = np.unique(rng.integers(0, 100, rng.integers(0, 60)))
        places = np.unique(rng.integers(0, 100, rng.integers(0, 60)))
        fresh = without(places, dead)
        assert fresh.tolist() == np.setdiff1d(places, dead).tolist()
        assert merged(dead, fresh).tolist() == np.union1d(dead, places).tolist()
