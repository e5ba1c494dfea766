"""What the driver makes of an error of one table's task and of a damaged index, and what tasks share; without Spark."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.causes import Cause, Code
from cutline.common.errors import CutlineError, TableLocked
from cutline.common.journal.plan import StagedLost
from cutline.spark_writer.sinks.iceberg import on_spark
from cutline.spark_writer.sinks.iceberg.faults import may_be_own
from cutline.spark_writer.sinks.iceberg.files import DataFile
from cutline.spark_writer.sinks.iceberg.jvm import Refused
from cutline.spark_writer.sinks.iceberg.on_spark import OnSpark
from cutline.spark_writer.sinks.iceberg.sent_index import IndexDamaged


class Local:
    """A SparkContext whose jobs this thread carries out."""

    def __init__(self) -> None:
        self.shared = 0

    def parallelize(self, items: Sequence[Any], tasks: int) -> Any:
        def mapped(kernel: Callable[[Any], Any]) -> Any:
            return SimpleNamespace(collect=lambda: [kernel(item) for item in items])

        return SimpleNamespace(map=mapped)

    def broadcast(self, value: Any) -> Any:
        self.shared += 1
        return SimpleNamespace(value=value, destroy=self._destroyed)

    def _destroyed(self) -> None:
        self.shared -= 1

    def __getattr__(self, name: str) -> Any:
        assert name in ("setJobDescription", "setLocalProperty")
        return lambda *_: None


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], list[Any]]], int]:
    """Applies a small step whose task is a function; `rested` counts the times its table's index was given up."""
    step = SimpleNamespace(table_id="shop.t", groups=[[]], buckets=1, files=[{}])
    monkeypatch.setattr(on_spark, "planned", lambda *_: step)
    spark = OnSpark(SimpleNamespace(session=SimpleNamespace(sparkContext=Local())))  # type: ignore[arg-type]
    rested: list[None] = []
    table: Any = SimpleNamespace(table_id="shop.t", index=SimpleNamespace(rest=lambda: rested.append(None)))

    def applied(whole: Callable[[], list[Any]]) -> int:
        monkeypatch.setattr(on_spark, "whole", lambda _: whole())
        nothing: Any = None
        assert spark.changed(nothing, table, nothing, 0, (), None) == ([], [])
        return len(rested)

    return applied


def raising(error: Exception) -> Callable[[], list[Any]]:
    def whole() -> list[Any]:
        raise error

    return whole


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/a"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (MemoryError(), False),
        (pa.ArrowMemoryError("malloc of size 64 failed"), False),
        (StagedLost("a file is missing", "restore it"), False),
        (OSError(errno.EACCES, "Permission denied", "/lake/a"), True),
    ],
)
def test_an_error_of_a_small_step_is_raised_as_it_was(apply: Any, error: Exception, own: bool) -> None:
    with pytest.raises(type(error)) as raised:
        apply(raising(error))
    assert str(raised.value) == str(error)
    assert may_be_own(raised.value) is own
    if isinstance(error, CutlineError):
        assert isinstance(raised.value, CutlineError)
        assert raised.value.cause == error.cause


def test_any_other_error_names_its_table(apply: Any) -> None:
    with pytest.raises(
        Refused, match=r"the changes of shop\.t could not be applied by Spark: ValueError: bad"
    ) as raised:
        apply(raising(ValueError("bad")))
    assert may_be_own(raised.value)


def test_an_error_that_can_not_be_sent_comes_as_its_sentence(apply: Any) -> None:
    with pytest.raises(CutlineError, match="is locked"):
        apply(raising(TableLocked(Cause(Code.OTHER, "it is locked"), "shop.t")))
    unsent = ValueError("bad", threading.Lock())
    with pytest.raises(Refused, match="bad"):
        apply(raising(unsent))


def test_a_damaged_index_is_given_up_and_the_changes_are_applied_without_it(apply: Any) -> None:
    tries = iter([raising(IndexDamaged("a file is missing", "starting again")), list])
    assert apply(lambda: next(tries)()) == 1


def test_what_tasks_share_is_destroyed_also_after_an_error() -> None:
    context = Local()
    with on_spark._shared(context, "step") as shared:
        assert shared.value == "step"
        assert context.shared == 1
    assert context.shared == 0
    with pytest.raises(ValueError, match="bad"), on_spark._shared(context, "step"):
        raise ValueError("bad")
    assert context.shared == 0


@pytest.mark.parametrize(
    ("changes", "rows", "finding"),
    [
        (1_000, 50_000_000, 8),  # a scan is divided by the rows of the files
        (1_000, 500_000, 1),
        (2_000_000, 50_000_000, 8),
        (40_000_000, 50_000_000, 1),  # each task would get all keys
    ],
)
@pytest.mark.parametrize("partition", [(), (("note", 4),)])
def test_few_changes_are_divided_only_for_a_scan_and_partitions_only_by_whole_groups(
    monkeypatch: pytest.MonkeyPatch, changes: int, rows: int, finding: int, partition: Any
) -> None:
    most: list[int | None] = []
    monkeypatch.setattr(on_spark, "grouped", lambda store, changes, rows: most.append(rows))
    files = {str(at): DataFile(path=str(at), rows=rows // 50, size=1) for at in range(50)}
    layout: Any = SimpleNamespace(schema=SimpleNamespace(key=("id",)), partition=partition, portable=None)

    def table(index: Any) -> Any:
        return SimpleNamespace(
            jvm=SimpleNamespace(cores=8),
            index=index,
            version=3,
            contents=lambda _: SimpleNamespace(files=files),
            vector=lambda _: None,
            new_file=lambda _: "new",
        )

    nothing, staged = None, SimpleNamespace(rows=changes)
    step = on_spark.planned(nothing, table(None), layout, 0, [staged], None)  # type: ignore[arg-type, list-item]
    assert len(step.files) == finding
    assert most == [None if partition else max(100_000, changes // 8)]
    covered: Any = type("Covered", (), {"secret": b"s", "__contains__": lambda self, path: True})()
    monkeypatch.setattr(on_spark, "_index", lambda *_: covered)
    step = on_spark.planned(nothing, table(None), layout, 0, [staged], None)  # type: ignore[arg-type, list-item]
    assert len(step.files) == min(8, -(-changes // 100_000), -(-rows // 1_000_000))
