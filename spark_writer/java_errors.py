"""What a log or a cause says of an error of Spark's JVM."""

from __future__ import annotations

import re

_WAITED = "Exception thrown in awaitResult"
_FULL = re.compile(r"No space left on device|Disk quota exceeded")


def first_line(error: BaseException) -> str:
    """Return the first line of an error; for a Java exception, the first line of its text, or of that
    of its cause where Spark only says that it waited."""
    java = getattr(error, "java_exception", None)
    while java is not None and _WAITED in str(java.toString()) and (cause := java.getCause()) is not None:
        java = cause
    text = str(java.toString() if java is not None else error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def says_full(error: BaseException) -> bool:
    """Whether Java says in an error, or in what it was raised from, that a disk is full."""
    return any(_FULL.search(str(each)) for each in (error, error.__cause__) if hasattr(each, "java_exception"))
