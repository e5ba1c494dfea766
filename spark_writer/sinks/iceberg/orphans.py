"""Finds and removes the files that starts of the Spark writer which were killed have left in a lake table.

A start writes data files, deletion vectors and manifests first, and then commits them. If it is killed in between, no
snapshot names them, so no expiry finds them. Their names say whose they are (naming.py): life, start w, table.
Iceberg itself names manifests; those of one commit share a random word in their names, so they are ours if one of them
names an orphan of ours.

**Only this is removed**: a file that Cutline named for this pipeline and this table, of a start before the present one
(in a table that was taken over also of its earlier lives, which the table names), older than the grace, and named by no
snapshot that the table still has, whichever ref holds it and whoever made it: savepoints, branches and commits of
others included. Files of others have other names, and stay. Manifests go before
the data files that prove whose they are, so a removal that is cut short goes on the next time.

**Why a start that still runs loses nothing.** Files of the present start are never looked at. An older one (a zombie,
suspended for longer than the grace) may still commit such a file to its own branch, but that branch is dropped, and
expires as a whole, once the present start has published a table's work: so `Upkeep` looks only at tables whose work in
the newest publication is on the present start's branch. From then on a publication of the zombie is refused, or repeats
a checkpoint before one that is published already, from which no start goes on (apply.py), and `main` can't move to it.
Nor can others make use of such a file later: it is in no snapshot that they could read or go back to. The folder is
listed before the table is read, so what a commit has named meanwhile stays.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import pyarrow.fs

from cutline.spark_writer.sinks.iceberg.durable import local_path
from cutline.spark_writer.sinks.iceberg.files import open_input, remove_file
from cutline.spark_writer.sinks.iceberg.jvm import failing_as
from cutline.spark_writer.sinks.iceberg.naming import writer_of
from cutline.spark_writer.sinks.iceberg.objects import file_system
from cutline.spark_writer.sinks.iceberg.owner import EARLIER, Owner, earlier_of
from cutline.spark_writer.sinks.iceberg.table import LakeTable

_MANIFEST = re.compile(r"(?:snap-\d+-\d+-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-m\d+)?\.avro")
_FOLDERS = {"write.data.path": "data", "write.metadata.path": "metadata"}
"""The properties that name another folder for a table's files, and the folder without them."""
_AVRO = b"Obj\x01"
_SYNC_BYTES = 16


def remove_orphans(table: LakeTable, owner: Owner, *, w: int, before: float) -> list[str]:
    """Remove what starts before `w`, and earlier lives, left in the table before the time `before`; return the paths.

    Call it for a table whose work in the newest publication is on the branch of start `w`.
    """
    with failing_as(f"the files of {table.table_id} could not be compared with its snapshots"):
        table.refresh()
        data, metadata = (_listed(folder, before) for folder in _folders(table))
        writers = {path: writer_of(_name(path), table.uuid) for path in data}
        earlier = earlier_of(table.metadata().property(EARLIER, None))
        older = [
            path
            for path, writer in writers.items()
            if writer is not None and (writer[1] < w if writer[0] == owner.id else writer[0] in earlier)
        ]
        if not older:
            return []
        table.refresh()
        named = _named(table)
    orphans = sorted(path for path in older if _name(path) not in named)
    if not orphans:
        return []
    unnamed = sorted(path for path in metadata if _MANIFEST.fullmatch(_name(path)) and _name(path) not in named)
    found = [*_of_commits_with(orphans, unnamed), *orphans]
    for path in found:
        remove_file(path)
    return found


def _folders(table: LakeTable) -> Iterator[str]:
    location = str(table.java.location())
    for key, folder in _FOLDERS.items():
        yield str(table.metadata().property(key, f"{location}/{folder}")).rstrip("/")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _listed(folder: str, before: float) -> list[str]:
    """The full paths of the files in a folder and below that were last written before a time."""
    local = local_path(folder)
    found = []
    if local is not None:
        for place, _, names in os.walk(local):
            for name in names:
                path = os.path.join(place, name)
                with suppress(FileNotFoundError):  # expired meanwhile
                    if os.stat(path).st_mtime < before:
                        found.append(path)
        return found
    files, key = file_system(folder)
    for info in files.get_file_info(pyarrow.fs.FileSelector(key, allow_not_found=True, recursive=True)):
        if info.type == pyarrow.fs.FileType.File and info.mtime_ns is not None and info.mtime_ns < before * 1e9:
            found.append(folder + info.path.removeprefix(key))
    return found


def _named(table: LakeTable) -> set[str]:
    """The names of all files that a snapshot of the table, as last read, names: data, deletes, manifests, lists."""
    session: Any = table.jvm.session
    lists = table.jvm.iceberg.ReachableFileUtil.manifestListLocations(table.java)
    found = {_name(str(path)) for path in lists.toArray()}
    for content, column in (("all_files", "file_path"), ("all_manifests", "path")):
        paths = session.table(f"{table.spark_name}.{content}").select(column).toArrow().column(0)
        found.update(_name(path) for path in paths.to_pylist())
    return found


def _of_commits_with(orphans: Collection[str], manifests: Collection[str]) -> list[str]:
    """Those of the manifests and manifest lists that belong to a commit of which a manifest names one of `orphans`."""
    commits: dict[str, list[str]] = {}
    for path in manifests:
        match = _MANIFEST.fullmatch(_name(path))
        assert match is not None
        commits.setdefault(match[1], []).append(path)
    names = [_name(path).encode() for path in orphans]
    return [
        path
        for paths in commits.values()
        if any(name in block for each in paths for block in _blocks(each) for name in names)
        for path in paths
    ]


def _blocks(path: str) -> Iterator[bytes]:
    """The contents of an Avro file's whole blocks, uncompressed; none of a file that is gone, or of another codec."""
    try:
        with open_input(path) as file:
            content = file.read()
        header, at = _header(content)
        codec = header.get("avro.codec", b"null")
        while at < len(content):
            _, at = _number(content, at)
            size, at = _number(content, at)
            block = content[at : at + size]
            at += size + _SYNC_BYTES
            if codec == b"deflate":
                yield zlib.decompress(block, wbits=-zlib.MAX_WBITS)
            elif codec == b"null":
                yield block
    except (FileNotFoundError, IndexError, ValueError, zlib.error):
        return


def _header(content: bytes) -> tuple[dict[str, bytes], int]:
    """An Avro file's metadata, and where its first block begins. ValueError if it is no Avro file."""
    if content[: len(_AVRO)] != _AVRO:
        raise ValueError("not an Avro file")
    header: dict[str, bytes] = {}
    at = len(_AVRO)
    while True:
        count, at = _number(content, at)
        if not count:
            return header, at + _SYNC_BYTES
        if count < 0:  # then the size of this part of the map follows
            count, (_, at) = -count, _number(content, at)
        for _ in range(count):
            key, at = _bytes(content, at)
            header[key.decode()], at = _bytes(content, at)


def _bytes(content: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(content, at)
    return content[at : at + size], at + size


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Avro's long at a place (zigzag, seven bits a byte), and the place after it. IndexError at the end."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
