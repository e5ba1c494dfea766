"""Decides which errors are one table's own, and quarantines such a table."""

from __future__ import annotations

import errno
import logging
import re
from dataclasses import replace

from py4j.protocol import Py4JError, Py4JJavaError

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError
from cutline.common.store.records import Quarantine
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.progress import Progress
from cutline.spark_writer.sinks.iceberg.columns import BadDefault, Unsuitable
from cutline.spark_writer.sinks.iceberg.files import FileLost, FileRefused
from cutline.spark_writer.sinks.iceberg.jvm import Refused
from cutline.spark_writer.sinks.iceberg.lake import Lake
from cutline.spark_writer.sinks.iceberg.table import TableFault

logger = logging.getLogger("cutline.spark_writer")
_MACHINE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "ENOMEM", "EMFILE", "ENFILE", "EROFS")}
_REPAIR = "mend the lake table (or drop it, and it is read again) and retry it"
_MACHINE_IN_JAVA = re.compile(
    r"No space left on device|Disk quota exceeded|disk is full|Too many open files|java\.lang\.OutOfMemoryError"
    r"|SparkContext (was|has been) (shut down|stopped)|stopped SparkContext"
)


def may_be_own(error: Exception) -> bool:
    """Whether an error raised while one table was processed may be that table's own.

    It may be if Iceberg, Spark or our check of the lake table and its files raised it, or if the table's rows caused
    it. It is not if a shared resource failed: the store (a lost staged file included), the disk, the memory, Spark
    itself. Nor is it if Cutline's own parts disagree, or if another Spark writer has taken over. `Tables.sparing` tests
    with a commit whether the catalogue and the warehouse answer.
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


def quarantine(
    progress: Progress, pipeline: str, table_id: str, *, generation: int, error: Exception, applied: int | None
) -> None:
    """Leave a table out of later batches because of `error`; `applied` is the last checkpoint that its work holds."""
    if isinstance(error, TableFault) and error.lost:
        progress.work.pop(table_id, None)
        applied = None
    cause = _cause(error)
    known = progress.quarantined.get(table_id)
    progress.quarantined[table_id] = Quarantine(cause=cause, generation=generation, applied=applied)
    if known is None or known.cause != cause:
        logger.error(
            "pipeline %s: %s is quarantined: %s",
            pipeline,
            table_id,
            cause,
            exc_info=None if isinstance(error, CutlineError) else error,
            extra={"table": table_id, "cause": str(cause)},
        )


def _cause(error: Exception) -> Cause:
    if isinstance(error, TableFault):
        return error.cause
    if isinstance(error, CutlineError):
        cause = replace(error.cause, code=Code.LAKE)
    elif isinstance(error, OSError):
        cause = Cause(Code.LAKE, str(error).splitlines()[0])
    else:
        cause = Cause(Code.LAKE, f"{type(error).__name__}: {first_line(error)}")
    return cause.advised(_REPAIR)


def read_again(progress: Progress, lake: Lake, table_id: str) -> None:
    """Have a quarantined table read again from the source as its next generation, if the lake can take it."""
    held = progress.quarantined[table_id]
    try:
        lake.load(table_id)
    except TableFault as error:
        progress.quarantined[table_id] = replace(held, cause=error.cause)
        return
    sentence = f"the staged files that are left can't complete {table_id}, so it is being read again from the source"
    cause = Cause(Code.LAKE, sentence)
    progress.quarantined[table_id] = replace(held, cause=cause, applied=None)
    progress.work.pop(table_id, None)
    progress.read_again[table_id] = held.generation
