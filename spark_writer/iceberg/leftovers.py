"""Deletes the metadata files that a commit made of a transaction wrote in vain.

Iceberg merges small manifests into larger ones now and then. The commit that does so first writes a manifest of its own
files, which the merged one then replaces: no snapshot ever names it, so no expiry finds it. Iceberg's transaction
deletes such files once it is committed. Cutline instead takes the metadata that a transaction has prepared and swaps it
in by itself (table.py), so it must delete them too; and also the manifests of a commit that is refused because another
one came first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from cutline.spark_writer.iceberg.jvm import Jvm, is_conflict, items
from cutline.spark_writer.session import first_line

logger = logging.getLogger("cutline.spark_writer")


@contextmanager
def removed_after(jvm: Jvm, io: Any, transaction: Any, snapshot: Any) -> Iterator[None]:
    """Swap in, inside, the metadata that a Transaction has prepared with a new Snapshot; then the files that it dropped
    while it was prepared are deleted by the FileIO `io`.

    If the swap is refused because another commit came first, all that was written for the snapshot is deleted too.
    After any other error the commit may have been made, so nothing is deleted.
    """
    try:
        yield
    except Py4JJavaError as error:
        if is_conflict(error):
            _delete(jvm, io, transaction, snapshot)
        raise
    _delete(jvm, io, transaction)


def _delete(jvm: Jvm, io: Any, transaction: Any, refused: Any = None) -> None:
    try:
        paths = jvm.dropped_files(transaction)
        if refused is not None:
            own = refused.snapshotId()
            manifests = items(refused.allManifests(io))
            paths += [str(each.path()) for each in manifests if each.snapshotId() == own]
            paths.append(str(refused.manifestListLocation()))
        for path in dict.fromkeys(paths):
            io.deleteFile(path)
    except Py4JJavaError as error:  # they take a little space, but the commit stands
        logger.warning("files that a commit wrote in vain could not be deleted: %s", first_line(error))
