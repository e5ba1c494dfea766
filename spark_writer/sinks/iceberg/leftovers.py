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

from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.iceberg.jvm import is_conflict

logger = logging.getLogger("cutline.spark_writer")


@contextmanager
def removed_after(calls: Any) -> Iterator[None]:
    """Swap in, inside, the metadata that a transaction has prepared, by a table's `TableCalls`. At its end
    the files that the transaction dropped while it was prepared are deleted.

    If the swap is refused because another commit came first, all that was written for the snapshot is deleted too.
    After any other error the commit may have been made, so nothing is deleted.
    """
    try:
        yield
    except Py4JJavaError as error:
        if is_conflict(error):
            _delete(calls, refused=True)
        raise
    _delete(calls, refused=False)


def _delete(calls: Any, *, refused: bool) -> None:
    try:
        calls.deleteDropped(refused)
    except Py4JJavaError as error:  # they take a little space, but the commit stands
        logger.warning("files that a commit wrote in vain could not be deleted: %s", first_line(error))
