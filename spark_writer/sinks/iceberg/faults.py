"""The errors of a lake table, and which of all errors are one table's own."""

from __future__ import annotations

import errno
import re

from py4j.protocol import Py4JError, Py4JJavaError

from cutline.common.errors import CutlineError
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.contract import ForeignCommit, TableFault
from cutline.spark_writer.sinks.iceberg.columns import BadDefault, Unsuitable
from cutline.spark_writer.sinks.iceberg.files import FileLost, FileRefused
from cutline.spark_writer.sinks.iceberg.foreign import Theirs, foreign_of
from cutline.spark_writer.sinks.iceberg.jvm import Refused
from cutline.spark_writer.sinks.iceberg.naming import CATALOG

_MACHINE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE", "EROFS")}
_MACHINE_IN_JAVA = re.compile(
    r"No space left on device|Disk quota exceeded|disk is full|Too many open files|Read-only file system"
    r"|Cannot allocate memory|\b(Arrow)?MemoryError\b|java\.lang\.OutOfMemoryError"
    r"|SparkContext (was|has been) (shut down|stopped)|stopped SparkContext"
)


def may_be_own(error: Exception) -> bool:
    """Whether an error raised while one table was processed may be that table's own.

    It may be if Iceberg, Spark or our check of the lake table and its files raised it, or if the table's rows caused
    it. It is not if a shared resource failed: the store (a lost staged file included), the disk, the memory, Spark
    itself. Nor is it if Cutline's own parts disagree, or if another Spark writer has taken over. Whether the catalogue
    and the warehouse answer is tested by a commit (spark_writer/sparing.py).
    """
    if isinstance(error, OSError):
        return error.errno not in _MACHINE
    java = error.__cause__ if isinstance(error, Refused) else error
    if isinstance(java, Py4JError):
        return isinstance(java, Py4JJavaError) and _MACHINE_IN_JAVA.search(str(java)) is None
    if isinstance(error, Refused | TableFault):
        return _MACHINE_IN_JAVA.search(str(java)) is None
    own = isinstance(error, FileLost | FileRefused | BadDefault | Unsuitable)
    return own or not isinstance(error, CutlineError | MemoryError)


def foreign_commit(table_id: str, found: Theirs) -> ForeignCommit:
    """Return the error that others committed to `main`, and a person must choose whether that is kept."""
    return ForeignCommit(found.describe(f"{CATALOG}.{table_id}"), found.remedy, foreign_of(found))


def not_taken_over(table_id: str, error: Exception) -> TableFault:
    """Return the error for a lake table whose mode keeps rows of before that can't be read."""
    return TableFault(
        f"what the lake table {CATALOG}.{table_id} has kept can't be taken over into its next generation:"
        f" {first_line(error)}",
        "restore what is missing and retry the table; or take it out of the pipeline and add it again, which begins it"
        " anew without what it has kept",
    )


def table_dropped(table_id: str) -> TableFault:
    """Return the error for a lake table that is gone."""
    sentence = f"the lake table {CATALOG}.{table_id} was dropped by another user"
    return TableFault(sentence, "retry the table to read it again", lost=True)


def snapshot_lost(table_id: str) -> TableFault:
    """Return the error for a lake table that lacks the snapshot from which Cutline continues."""
    return TableFault(
        f"the lake table {CATALOG}.{table_id} no longer has the snapshot from which Cutline continues, because another"
        " user expired or replaced it",
        "retry the table to read it again",
        lost=True,
    )
