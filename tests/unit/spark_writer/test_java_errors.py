"""What is said of errors of Spark's JVM."""

from __future__ import annotations

from cutline.spark_writer.java_errors import first_line


class Thrown:
    """An exception of Java's."""

    def __init__(self, text: str, cause: Thrown | None = None) -> None:
        self.text = text
        self.cause = cause

    def toString(self) -> str:
        return self.text

    def getCause(self) -> Thrown | None:
        return self.cause


class Raised(Exception):
    def __init__(self, thrown: Thrown) -> None:
        super().__init__("An error occurred while calling o1.getResult")
        self.java_exception = thrown


def test_the_cause_is_named_where_spark_only_waited() -> None:
    waited = "org.apache.spark.SparkException: Exception thrown in awaitResult: "
    cause = Thrown("java.lang.IllegalStateException: unread\n\tat", Thrown("deeper"))
    assert first_line(Raised(Thrown(waited, Thrown(waited, cause)))) == "java.lang.IllegalStateException: unread"
    assert first_line(Raised(Thrown(waited))) == waited.strip()
    assert first_line(ValueError("plain\nmore")) == "plain"
