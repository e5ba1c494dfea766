"""Iceberg's Java API, reached through the JVM of a Spark session, and the error that its exceptions become."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutline.common.errors import Unavailable
from cutline.spark_writer.compiled import one_of
from cutline.spark_writer.java_errors import first_line

_AWAY = re.compile(
    r"\.(\w*ConnectException|\w*SocketException|\w*Timeout(Exception)?|UnknownHostException|NoRouteToHostException"
    r"|SQLTransient\w*|SQLNonTransientConnectionException|Service(Unavailable|Failure)Exception|TTransportException)$"
)
_CALLS = Path(__file__).with_name("TableCalls.java")
_AWAY_STATES = ("08", "53", "57")
"""Classes of SQLSTATE: connection exception, insufficient resources, operator intervention (shutdown, start)."""


class Refused(Unavailable):
    """Iceberg or Spark raised an error. The cause may be one table, or a resource that all tables share."""


class Package:
    """A Java package whose classes and packages are looked up once.

    Py4J asks the JVM at each access, which looks for a class of a package's name in every jar of the class path.
    """

    def __init__(self, java: JavaPackage) -> None:
        """Take Py4J's own."""
        self._java = java

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        if isinstance(found, JavaPackage):
            found = Package(found)
        elif isinstance(found, JavaClass):
            found = Class(found)
        self.__dict__[name] = found
        return found


class Class:
    """A Java class whose static methods are looked up once; Py4J asks the JVM at each access, for as long as a call."""

    def __init__(self, java: JavaClass) -> None:
        """Take Py4J's own."""
        self._java = java

    def __call__(self, *args: Any) -> Any:
        """Return a new object."""
        return self._java(*args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


class Jvm:
    """The JVM of one pipeline's Spark session: `root` for Java's packages, `iceberg` for Iceberg's. Thread-safe."""

    def __init__(self, session: SparkSession) -> None:
        """Take the pipeline's own session."""
        self.session = session
        self.root: Any = Package(cast(Any, session._jvm))
        self.iceberg = self.root.org.apache.iceberg

    @cached_property
    def opener(self) -> Any:
        """The `Opener` of TableCalls.java, one for all pipelines."""
        return one_of(self.session.sparkContext, _CALLS, "TableCalls$Opener")

    @property
    def cores(self) -> int:
        """How many tasks Spark runs at once: the cores of its executors, or of this machine."""
        return self.session.sparkContext.defaultParallelism

    def metrics(self, path: str, config: Any) -> Any:
        """Return Iceberg's Metrics of a Parquet file that Hadoop can open, by its MetricsConfig.

        Iceberg's own `fileMetrics` parses Hadoop's configuration from XML for each file, which takes longer than all
        the rest.
        """
        hadoop = self.session.sparkContext._jsc.hadoopConfiguration()
        place = self.root.org.apache.hadoop.fs.Path(path)
        reader = self.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader.open(hadoop, place)
        try:
            no_others = self.root.java.util.stream.Stream.empty()
            return self.iceberg.parquet.ParquetUtil.footerMetrics(reader.getFooter(), no_others, config)
        finally:
            reader.close()

    def activate(self) -> None:
        """Make the pipeline's session the active one of the calling thread; each thread must call it first."""
        self.root.org.apache.spark.sql.classic.SparkSession.setActiveSession(self.session._jsparkSession)

    def strings(self, *values: str) -> Any:
        """Return a Java array of strings."""
        array = self._array(self.root.java.lang.String, len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array

    def _array(self, kind: Any, length: int) -> Any:
        gateway: Any = self.session.sparkContext._gateway
        return gateway.new_array(kind, length)


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


def is_away(error: Py4JJavaError) -> bool:
    """Whether a server did not answer or was not ready, so that the same call may succeed later."""
    for cause in _causes(error):
        if _AWAY.search(str(cause.getClass().getName())):
            return True
        with suppress(
            Py4JError
        ):  # only an SQLException has an SQLSTATE; a missing driver has that of a lost connection
            state = str(cause.getSQLState())
            if state[:2] in _AWAY_STATES and "suitable driver" not in str(cause.getMessage()):
                return True
    return False


def root_cause(error: Py4JJavaError) -> str:
    """Return the first line of the message of the innermost cause, which says more than those around it."""
    *_, last = _causes(error)
    text = str(last.getMessage() or last.toString()).strip()
    return text.splitlines()[0] if text else first_line(error)


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    cause = error.java_exception
    while cause is not None:
        yield cause
        cause = cause.getCause()


def is_of(error: Py4JJavaError, *names: str) -> bool:
    """Whether a Java exception, or a cause of it, is of one of these classes, by their simple names."""
    return any(str(cause.getClass().getSimpleName()) in names for cause in _causes(error))


def is_conflict(error: Py4JJavaError) -> bool:
    """Whether a commit was refused because another commit came first; the refused commit then left no trace."""
    return str(error.java_exception.getClass().getName()).endswith(".CommitFailedException")
