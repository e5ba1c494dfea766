"""The deleted rows of the data files in use, as Roaring bitmaps, under a memory limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from pyroaring import BitMap64

from cutline.spark_writer.sinks.iceberg.deletion_vectors import Vector, bitmap_of, outside, positions_of, read_bitmap
from cutline.spark_writer.sinks.iceberg.position_deletes import read_deleted

LIMIT_BYTES = 64 << 20


class DeadRows:
    """The deletion vectors last used, of all tables of a lake; others are read again. Thread-safe.

    A bitmap takes about as much memory as its vector takes in its file. Bitmaps must not be changed.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Keep up to so many bytes."""
        self._limit = limit_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], tuple[int, BitMap64]] = OrderedDict()

    @property
    def bytes(self) -> int:
        """The bytes of all vectors that are kept."""
        return self._bytes

    def deleted(self, vector: Vector | None) -> BitMap64:
        """Return the positions of the rows that a vector deletes; None deletes none. FileLost if it can't be read."""
        if vector is None:
            return BitMap64()
        key = (vector.path, vector.offset)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key][1]
        found = read_bitmap(vector) if vector.length else bitmap_of(read_deleted(vector))
        self.keep(vector, found)
        return found

    def keep(self, vector: Vector, bitmap: BitMap64) -> None:
        """Remember what a vector deletes, for one that was just read or written."""
        with self._lock:
            key = (vector.path, vector.offset)
            if key not in self._known:
                size = vector.length or vector.size
                self._known[key] = (size, bitmap)
                self._bytes += size
            while self._bytes > self._limit:
                _, (size, _) = self._known.popitem(last=False)
                self._bytes -= size


def living(positions: Any, dead: BitMap64) -> Any:
    """Return for each of the sorted `positions` whether it is not dead."""
    return outside(positions, positions_of(bitmap_of(positions) & dead) if dead else ())
