"""A staged file while it is written."""

from __future__ import annotations

import hashlib
import io
import os
from typing import Any, BinaryIO

from cutline.common.store.backends import store_errors
from cutline.common.store.lives import Folder
from cutline.common.store.records import PartRef


class StagingFile(io.RawIOBase):
    """A staged file while it is written: write-only, hashed on the way, without a name until `commit`.

    pyarrow's ParquetWriter takes it as its sink. Closing it without `commit` drops it, as a crash would.
    """

    def __init__(self, folder: Folder, path: str) -> None:
        """Call `PipelineStore.open_staged` instead."""
        self.path = path
        self._folder = folder
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BinaryIO | None = None
        self._file, self._temporary = folder.open_new(path)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes. Raises Unavailable when the disk is full."""
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        with store_errors(self._folder.location(self.path)):
            self._file.write(data)
        self._digest.update(data)
        written = memoryview(data).nbytes
        self._size += written
        return written

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def commit(self) -> PartRef:
        """Give the file its name; bytes and name are durable on return."""
        ref = self.settle()
        self._folder.sync(os.path.dirname(self.path))
        return ref

    def settle(self) -> PartRef:
        """Make the bytes durable and give the file its name. The name is durable after `PipelineStore.sync_staged`;
        report the file to nobody before that."""
        file, self._file = self._file, None
        if file is None:
            raise ValueError(f"{self.path} is closed")
        try:
            self._folder.settle(file, self._temporary, self.path)
        except BaseException:
            self._folder.discard(file, self._temporary)
            raise
        finally:
            super().close()
        return PartRef(path=self.path, sha256=self._digest.hexdigest(), size=self._size)

    def discard(self) -> None:
        """Drop the file; no effect after `commit` or `discard`."""
        file, self._file = self._file, None
        if file is not None:
            self._folder.discard(file, self._temporary)
        super().close()

    def close(self) -> None:
        """`discard`; the interpreter calls it too when it collects the file."""
        self.discard()
