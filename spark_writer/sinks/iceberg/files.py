"""The data files of a snapshot, and how a data file is read and written."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from cutline.common import parquet
from cutline.common.errors import CutlineError, ProtocolError, Unavailable
from cutline.common.store.backends import make_folder, store_errors
from cutline.spark_writer.sinks.iceberg.durable import local_path, sync_files
from cutline.spark_writer.sinks.iceberg.objects import SCHEMES, file_system

ROW_GROUP_ROWS = 200_000
_COPY_BYTES = 1 << 20
_WRONG_CHECKSUM = "CRC checksum verification failed"
_DENIED = re.compile("ACCESS_DENIED|PERMISSION_DENIED|AuthorizationPermissionMismatch")
"""Both are found in the message of pyarrow's OSError, which has no class of its own: S3, Google, Azure."""


class FileLost(ProtocolError):
    """A file that the lake or the journal names is missing or can't be read."""


class FileRefused(CutlineError):
    """The object storage answers, but denies access to this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """A row group: the position of its first row in the file, and the range of its first key column, as `range_of` in
    locating.py has it (None: unknown)."""

    first: int
    rows: int
    least: Any
    most: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What Iceberg assigned to a data file: the id of its first row (None in a table that was upgraded to format
    version 3, until the file is rewritten), and the sequence number of the commit that added it.
    """

    first_row_id: int | None
    sequence: int


@dataclass(slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a snapshot; `vector` is Iceberg's DeleteFile of its deleted rows, or None, and `dead` is the
    same in Python, once it is needed.

    `groups`, `names` (of the key's columns) and `own_row_ids` (whether it has the column `_row_id`, see lineage.py) are
    read when first needed. `lineage` is known once the file is committed. `partition` is Iceberg's, None in a table
    without partitions. No other field ever changes.
    """

    path: str
    rows: int
    size: int
    vector: Any = None
    dead: Any = None
    partition: Any = None
    partition_name: str = ""
    lineage: Lineage | None = None
    own_row_ids: bool | None = None
    groups: tuple[RowGroup, ...] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The data files of one snapshot, by path."""

    snapshot_id: int
    files: Mapping[str, DataFile] = field(repr=False)


Files = dict[str, DataFile]
"""Data files by their path."""
Change = Callable[[Any], tuple[Any, Files]]
"""Given Iceberg's Transaction, prepares an update in it; also returns the data files that the branch then has."""


def entry_of(file: Any, divided: bool, **known: Any) -> Files:
    """Return what is kept of Iceberg's DataFile, by its path, with its partition if the table may be `divided`."""
    path, rows, size = str(file.location()), int(file.recordCount()), int(file.fileSizeInBytes())
    if divided:
        partition = file.partition()
        known |= {"partition": partition, "partition_name": str(partition.toString())}
    return {path: DataFile(path=path, rows=rows, size=size, **known)}


def lineage_of(file: Any) -> Lineage:
    """What Iceberg has assigned to a DataFile that it read from a manifest."""
    first = file.firstRowId()
    return Lineage(first_row_id=None if first is None else int(first), sequence=int(file.dataSequenceNumber()))


def has_no_ids(file: DataFile) -> bool:
    """Whether a file's rows have no row ids yet."""
    return file.lineage is not None and file.lineage.first_row_id is None


def planned(java: Any, snapshot_id: int, divided: bool) -> Files:
    """Return the data files of a snapshot of Iceberg's Table `java`, as Iceberg plans them."""
    files: Files = {}
    plan = java.newScan().useSnapshot(snapshot_id).planFiles()
    tasks = plan.iterator()
    while tasks.hasNext():
        task = tasks.next()
        file, deletes = task.file(), task.deletes()
        vector = None if deletes.isEmpty() else deletes.get(0)
        files |= entry_of(file, divided, vector=vector, lineage=lineage_of(file))
    plan.close()
    return files


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of the store or the lake. FileLost if it is missing or is not Parquet, and from inside the
    `with` for a page whose checksum is wrong.
    """
    try:
        source = open_input(path)
    except FileNotFoundError as error:
        raise FileLost(f"the file {path} is missing", "restore it from a backup") from error
    with source:
        try:
            file = pq.ParquetFile(source, page_checksum_verification=True)
        except pa.ArrowInvalid as error:
            raise FileLost(f"{path} is not a Parquet file ({error})", "restore it from a backup") from error
        with file:
            try:
                yield file
            except OSError as error:
                if _WRONG_CHECKSUM not in str(error):
                    raise
                raise FileLost(f"{path} is corrupt ({error})", "restore it from a backup") from error


def open_input(path: str) -> BinaryIO:
    """Open a file of the store or the lake for reading. Raises FileNotFoundError, and for objects FileRefused or
    Unavailable."""
    local = local_path(path)
    if local is not None:
        return open(local, "rb")
    with _answering(path):
        files, key = file_system(path)
        return cast(BinaryIO, files.open_input_file(key))


@contextmanager
def _answering(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = str(error).splitlines()[0]
        if _DENIED.search(reason) is not None:
            raise FileRefused(
                f"the object storage denies access to {path} ({reason})", "grant the rights to the table's location"
            ) from error
        raise Unavailable(f"the object storage does not answer for {path}: {reason}") from error


def write_parquet(path: str, groups: Iterable[pa.Table]) -> int:
    """Write Arrow tables as one durable data file; return its rows. No tables: no file, and 0."""
    rest = iter(groups)
    first = next(rest, None)
    if first is None:
        return 0
    rows = 0
    with open_output(path) as sink:
        with parquet.writer(sink, first) as writer:
            for group in itertools.chain((first,), rest):
                writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
                rows += group.num_rows
    sync_files([path])
    return rows


def put_file(source: str, path: str, sha256: str) -> None:
    """Give a finished file of the store the new full path `path` in the lake; durable after `sync_files`.

    The bytes are not read where that is possible: on one local file system the file gets a second name (a hard link),
    and within an object store the store copies the object. Otherwise they are copied, and compared with `sha256`. If
    that fails nothing of `path` is left. Raises FileLost if the bytes are others, Unavailable if the store does not
    answer.
    """
    if _put_here(source, path):
        return
    digest = hashlib.sha256()
    try:
        with open_output(path) as new:
            for block in _blocks(source):
                new.write(block)
                digest.update(block)
        if digest.hexdigest() != sha256:
            raise FileLost(f"{source} is corrupt (its sha256 is wrong)", "restore it from a backup")
    except BaseException:
        with suppress(OSError):
            remove_file(path)
        raise


def _put_here(source: str, path: str) -> bool:
    """Name or copy a file without reading it; False if the file system or the object store can't, or may not."""
    old, new = local_path(source), local_path(path)
    try:
        if old is not None and new is not None:
            make_folder(os.path.dirname(new))
            os.utime(old)  # by its age a tool that removes orphan files must see that the file is in use
            os.link(old, new)
            return True
        if old is not None or new is not None or SCHEMES.get(_scheme(source)) != SCHEMES.get(_scheme(path)):
            return False
        files, key = file_system(path)
        files.copy_file(file_system(source)[1], key)
        return True
    except OSError:  # another disk, no hard links, another user's file, a bucket of other credentials
        if new is not None:
            with suppress(FileNotFoundError):
                os.unlink(new)  # after a lost answer of NFS it may be a link
        return False


def _blocks(source: str) -> Iterator[bytes]:
    with store_errors(source), open_input(source) as file:
        while block := file.read(_COPY_BYTES):
            yield block


def remove_file(path: str) -> None:
    """Remove a file of the lake, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        local = local_path(path)
        if local is not None:
            os.unlink(local)
        else:
            files, key = file_system(path)
            files.delete_file(key)


def file_size(path: str) -> int:
    """Return the size in bytes of a file of the lake. Raises FileNotFoundError, and for objects FileRefused or
    Unavailable."""
    local = local_path(path)
    if local is not None:
        return os.path.getsize(local)
    with _answering(path):
        files, key = file_system(path)
        found = files.get_file_info(key)
        if not found.is_file:
            raise FileNotFoundError(path)
        return int(found.size)


def _scheme(path: str) -> str:
    return path.partition("://")[0]


def open_output(path: str) -> BinaryIO:
    """Open a new data file of the lake for writing; its folder is made if needed. For objects it raises FileRefused
    and Unavailable."""
    local = local_path(path)
    if local is not None:
        make_folder(os.path.dirname(local))
        return open(local, "xb")  # never through a name that a slow file system still makes a link of
    with _answering(path):
        files, key = file_system(path)
        return cast(BinaryIO, files.open_output_stream(key))
