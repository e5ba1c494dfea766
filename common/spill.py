"""A temporary file for rows that are too many to hold in memory: a writer's, and those of a lake table by partition."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa

from cutline.common.errors import DiskFull, Unavailable, is_full


class Spill:
    """A temporary file of rows that are too many to hold back. It is deleted when no object refers to it any more."""

    def __init__(self) -> None:
        """Create it in TMPDIR. Raises Unavailable if that folder can't be written."""
        with _room():
            self._file = tempfile.TemporaryFile(buffering=0)
        self._size = 0

    def put(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Extent:
        """Append the batches. Raises Unavailable if the disk is full."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        body = memoryview(sink.getvalue())
        at, self._size = self._size, self._size + body.nbytes
        with _room():
            while body.nbytes:
                body = body[self._file.write(body) :]
        return Extent(self, at, self._size - at)

    def read(self, at: int, size: int) -> list[pa.RecordBatch]:
        """The batches of an extent. Any thread may call it."""
        body = os.pread(self._file.fileno(), size, at)
        return list(pa.ipc.open_stream(body))


class Extent(NamedTuple):
    """The bytes of a spill that hold rows of one file."""

    spill: Spill
    at: int
    size: int


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise (DiskFull if is_full(error) else Unavailable)(
            f"rows that are too many for memory can't be written to the folder for temporary files: {error}",
            "free some space, or set TMPDIR to another folder",
        ) from error
