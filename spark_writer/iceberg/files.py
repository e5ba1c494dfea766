"""The data files of a snapshot, and how a data file is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlparse

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from cutline.common.errors import ProtocolError


class FileLost(ProtocolError):
    """A file that the lake or the journal names is missing or can't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group: the position of its first row in the file, and the range of its first key column (None: unknown)."""

    first: int
    rows: int
    least: Any
    most: Any


@dataclass(slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a snapshot; `vector` is Iceberg's DeleteFile of its deleted rows, or None.

    `dead` (the sorted positions of these rows), `groups` and `names` (of the key's columns) are read when first needed;
    no other field ever changes.
    """

    path: str
    rows: int
    size: int
    vector: Any = None
    dead: Any = None
    groups: tuple[RowGroup, ...] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The data files of one snapshot, by path."""

    snapshot_id: int
    files: Mapping[str, DataFile] = field(repr=False)


def local_path(path: str) -> str | None:
    """Return the local path of a `file:` address or a plain path, None for any other address."""
    if path.startswith("file:"):
        return unquote(urlparse(path).path)
    return None if "://" in path else path


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of the store or the lake. FileLost if it is missing or is not Parquet."""
    local = local_path(path)
    try:
        source = cast(BinaryIO, open(local, "rb") if local is not None else fsspec.open(path, "rb").open())
    except FileNotFoundError as error:
        raise FileLost(f"the file {path} is missing; restore it from a backup") from error
    with source:
        try:
            file = pq.ParquetFile(source)
        except pa.ArrowInvalid as error:
            raise FileLost(f"{path} is not a Parquet file ({error}); restore it from a backup") from error
        with file:
            yield file


def open_output(path: str) -> BinaryIO:
    """Open a new data file of the lake for writing; its folder is made if needed."""
    local = local_path(path)
    if local is None:
        return cast(BinaryIO, fsspec.open(path, "wb").open())
    os.makedirs(os.path.dirname(local), exist_ok=True)
    return open(local, "wb")
