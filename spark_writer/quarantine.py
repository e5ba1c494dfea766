"""Leaves a table out of the batches because of an error of its own."""

from __future__ import annotations

import logging
from dataclasses import replace

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError
from cutline.common.journal.progress import Progress
from cutline.common.store.records import Quarantine
from cutline.spark_writer.java_errors import first_line
from cutline.spark_writer.sinks.contract import Sink, TableFault

logger = logging.getLogger("cutline.spark_writer")
_REPAIR = "repair the lake table (or drop it, and it is read again), then retry it"


def quarantine(
    progress: Progress, pipeline: str, table_id: str, *, generation: int, error: Exception, applied: int | None,
    now: float,
) -> None:  # fmt: skip
    """Leave a table out of later batches because of `error`; `applied` is the last checkpoint that its work holds."""
    if isinstance(error, TableFault) and error.lost:
        progress.work.pop(table_id, None)
        applied = None
    cause = cause_of(error)
    known = progress.quarantined.get(table_id)
    since = known.since if known is not None and known.generation == generation else now
    progress.quarantined[table_id] = Quarantine(cause=cause, generation=generation, applied=applied, since=since)
    if known is None or known.cause != cause:
        logger.error(
            "pipeline %s: %s is quarantined: %s",
            pipeline,
            table_id,
            cause,
            exc_info=None if isinstance(error, CutlineError) else error,
            extra={"table": table_id, "cause": str(cause)},
        )


def cause_of(error: Exception, code: Code = Code.LAKE, remedy: str = _REPAIR) -> Cause:
    """The cause of a table's quarantine; `code` and `remedy` where the error does not say its own."""
    if isinstance(error, TableFault):
        return error.cause
    if isinstance(error, CutlineError):
        cause = replace(error.cause, code=code)
    elif isinstance(error, OSError):
        cause = Cause(code, str(error).splitlines()[0])
    else:
        cause = Cause(code, f"{type(error).__name__}: {first_line(error)}")
    return cause.advised(remedy)


def read_again(progress: Progress, sink: Sink, table_id: str) -> None:
    """Have a quarantined table read again from the source as its next generation, if the sink can take it."""
    held = progress.quarantined[table_id]
    try:
        sink.check_table(table_id)
    except TableFault as error:
        progress.quarantined[table_id] = replace(held, cause=error.cause)
        return
    sentence = f"the staged files that are left can't complete {table_id}, so it is being read again from the source"
    cause = Cause(Code.LAKE, sentence)
    progress.quarantined[table_id] = replace(held, cause=cause, applied=None)
    progress.work.pop(table_id, None)
    progress.read_again[table_id] = held.generation
