"""Makes the files of a commit durable, if they are on this machine's disks.

Iceberg does not fsync the files that it writes to a local folder, and a publication must not outlive the files that it
names. So, in this order:

1. each data file and each deletion vector is synced once it is written, with its folder;
2. after each commit the table's new metadata files are synced (`LakeTable.sync_metadata`);
3. before a publication the catalogue's SQLite file is synced (`Lake.sync_catalogue`), because `synchronous=NORMAL`
   leaves that to us. The durable catalogue therefore names durable files only.

Code outside the JVM cannot sync *between* a metadata file and the catalogue's row that names it. If the machine (not
the process) dies within those milliseconds, and the operating system wrote the row back first, a person must set that
row to the previous metadata file of the table. Object stores and other catalogues are durable by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote, urlparse


def local_path(path: str) -> str | None:
    """Return the local path of a `file:` address or a plain path, None for any other address."""
    if path.startswith("file:"):
        return unquote(urlparse(path).path)
    return None if "://" in path else path


def sync_files(paths: Iterable[str]) -> None:
    """Sync those of the files that are on this machine, and then their folders."""
    folders = set()
    for path in paths:
        local = local_path(path)
        if local is None:
            continue
        folders.add(os.path.dirname(local))
        with suppress(FileNotFoundError):
            sync(local)
    for folder in folders:
        sync(folder)


def sync_above(folder: str, levels: int) -> None:
    """Sync so many of the folders above one of this machine, whose own names may be new as well."""
    for _ in range(levels):
        folder = os.path.dirname(folder)
        sync(folder)


def sync(path: str) -> None:
    """Sync one file or folder of this machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
