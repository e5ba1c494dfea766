"""The files that a start of the Spark writer makes of staged ones by a table's rule, for as long as it applies them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from cutline.common.store.backends import store_errors
from cutline.common.store.lives import Folder
from cutline.common.store.staging_file import StagingFile

_FOLDER = "shaped"


class ShapedFiles:
    """The folder `shaped/` of a pipeline, in which start w has files of its own. Nothing in it must outlive a crash."""

    def __init__(self, store: Folder, w: int) -> None:
        """For start `w`."""
        self._store = store
        self._w = w

    @contextmanager
    def reading(self, staged: str) -> Iterator[BinaryIO]:
        """Open a staged file, of which these are made."""
        with store_errors(self._store.location(staged)), self._store.open_read(staged) as file:
            yield file

    def open(self) -> StagingFile:
        """Begin a Parquet file; it has its name once it is settled."""
        return StagingFile(self._store, f"{_FOLDER}/{self._w:010d}.{secrets.token_hex(8)}.parquet")

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of this start."""
        for path in paths:
            self._store.remove(path)

    def remove_left(self) -> None:
        """Remove what starts before this one have left: none of them publishes any more."""
        for name in self._store.names(_FOLDER):
            if name.startswith("."):
                left = self._store.stale(_FOLDER, name)
            else:
                number = name.partition(".")[0]
                left = number.isdecimal() and int(number) < self._w
            if left:
                self._store.remove(f"{_FOLDER}/{name}")
