"""What upkeep says of the files and rows of lake tables, for the status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from cutline.common.measures import OTHERS
from cutline.common.status.pipeline_status import Files
from cutline.common.store.records import Content, Main, PublishedTable
from cutline.spark_writer.sinks.iceberg.upkeep import Upkeep

SIZES = {"a.big": (3, 900, 0), "a.mid": (2, 500, 0), "a.low": (1, 10, 0), "a.gone": (9, 9, 0)}


def upkeep(**rows: int | None) -> Upkeep:
    """Upkeep that has looked at four tables, of which three have rows that are shown."""
    made = cast(Any, Upkeep.__new__(Upkeep))
    made._sizes = SIZES
    shown = {
        f"a.{name}": PublishedTable(state="live", generation=1, main=Main(content=Content("1"), rows=known), work=None)
        for name, known in rows.items()
    }
    work = dict.fromkeys(("a.big", "a.mid", "a.low"))
    made._progress = SimpleNamespace(work=work, published=SimpleNamespace(tables=shown))
    return cast(Upkeep, made)


def test_the_largest_tables_have_their_files_and_rows_and_all_others_theirs_together() -> None:
    found = upkeep(big=70, mid=50, low=5).files(1)
    assert found == {"a.big": Files(3, 900, 70), OTHERS: Files(3, 510, 55)}


def test_rows_that_one_of_the_others_does_not_tell_are_unknown_for_all_of_them() -> None:
    assert upkeep(big=70, mid=50, low=None).files(1)[OTHERS].rows is None
    assert upkeep(mid=50).files(1)["a.big"].rows is None
