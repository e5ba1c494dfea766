"""The files of one pipeline's key indexes: written once under unique names, mapped into memory, removed."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable

from cutline.common.store.backends import store_errors
from cutline.common.store.lives import Folder

_COPY_BYTES = 1 << 20


class IndexFiles:
    """The folder `index/` of a pipeline. It holds only what can be made again, so nothing here is an error of the lake.

    Every method raises Unavailable or ConfigError where the store fails. Thread-safe.
    """

    def __init__(self, store: Folder, folder: str, *, copied: bool = False) -> None:
        """Take the path below the pipeline's folder. If `copied`, a file of a folder is copied before it is mapped too:
        on a network volume another machine may remove it, which would kill a process that reads the mapping.
        """
        self._store = store
        self._folder = folder
        self._copied = copied

    def names(self) -> list[str]:
        """Return the names of all files, without those that are still being written."""
        return [name for name in self._store.names(self._folder) if not name.startswith(".")]

    def remove_stale(self) -> None:
        """Remove the temporary files of writers that are dead."""
        for name in self._store.names(self._folder):
            if name.startswith(".") and self._store.stale(self._folder, name):
                self._store.remove(self._path(name))

    def write(self, name: str, blocks: Iterable[bytes | memoryview]) -> None:
        """Write a file of these blocks; it has its name only once it is complete."""
        path = self._path(name)
        file, temporary = self._store.open_new(path)
        try:
            with store_errors(self._store.location(path)):
                for block in blocks:
                    file.write(block)
        except BaseException:
            self._store.discard(file, temporary)
            raise
        self._store.settle(file, temporary, path)

    def map(self, name: str) -> mmap.mmap | None:
        """Map a file for reading; None if it is missing or empty. An object is copied to a temporary file before.

        The bytes stay readable when the file is removed.
        """
        path = self._path(name)
        with store_errors(self._store.location(path)):
            try:
                with self._store.open_read(path) as file:
                    if not self._copied and "://" not in self._store.location(path):
                        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    with tempfile.TemporaryFile(prefix="cutline-index-") as copy:
                        while block := file.read(_COPY_BYTES):
                            copy.write(block)
                        copy.flush()
                        return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError):  # ValueError: nothing to map
                return None

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._store.remove(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
