"""Iceberg's Java API, reached through the JVM of a Spark session, and the error that its exceptions become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutline.common.errors import Unavailable
from cutline.spark_writer.session import first_line


class Refused(Unavailable):
    """Iceberg or Spark raised an error. The cause may be one table, or a resource that all tables share."""


class Jvm:
    """The JVM of one pipeline's Spark session: `root` for Java's packages, `iceberg` for Iceberg's. Thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        """Take the pipeline's own session."""
        self.session = session
        root: Any = session._jvm
        self.root = root
        self.iceberg: Any = root.org.apache.iceberg

    def activate(self) -> None:
        """Make the pipeline's session the active one of the calling thread; each thread must call it first."""
        self.root.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.session._jsparkSession)

    def strings(self, *values: str) -> Any:
        """Return a Java array of strings."""
        gateway: Any = self.session.sparkContext._gateway
        array = gateway.new_array(self.root.java.lang.String, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array


def items(java_list: Any) -> list[Any]:
    """Return the items of a java.util.List. Python's own `for` over it ends by an exception in the JVM, which takes
    milliseconds.
    """
    return [java_list.get(at) for at in range(java_list.size())]


@contextmanager
def failing_as(failure: str) -> Iterator[None]:
    """Turn an error of Iceberg or Spark inside into Refused; `failure` names the action that failed."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise Refused(f"{failure}: {first_line(error)}") from error


def is_conflict(error: Py4JJavaError) -> bool:
    """Whether a commit was refused because another commit came first; the refused commit then left no trace."""
    return str(error.java_exception.getClass().getName()).endswith(".CommitFailedException")
