"""What a log or a cause says of an error of Spark's JVM."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an error; for a Java exception, the first line of its text."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString() if java is not None else error).strip()
    return text.splitlines()[0] if text else type(error).__name__
