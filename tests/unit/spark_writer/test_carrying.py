"""What a generation takes over of the one before it, without a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cutline.common.positions import Position
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.common.store.records import Content
from cutline.spark_writer.sinks.contract import Carried, Earlier
from cutline.spark_writer.transform.carrying import AGAIN, carried
from cutline.spark_writer.transform.history import OPEN
from cutline.spark_writer.transform.modes import moded
from cutline.spark_writer.transform.rule import plain_rule
from tests.support.spark_bench import schema

PLAIN = schema("shop.t", ("id",), id="int", v="int")
WIDER = schema("shop.t", ("id",), id="bigint", v="int")
PLACE = Position(server="s", file="binlog.000007", offset=70)
UNTIL, NOTICED = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def made(now: TableSchema, before: TableSchema, position: Position | None = PLACE) -> Carried | str:
    """What a generation takes over of one with another schema."""
    new, old = (moded(plain_rule(each), each).target for each in (now, before))
    earlier = Earlier(
        content=Content("1"), generation=1, schema=before, position=position, until=UNTIL, noticed=NOTICED
    )
    return carried(now.shape or Shape(), new, columns(new), earlier, old, columns(old))


def columns(target: TableSchema) -> pa.Schema:
    return pa.schema([target.field(column) for column in target.lake])


def in_mode(mode: Any, table: TableSchema = PLAIN, **shape: Any) -> TableSchema:
    return replace(table, shape=Shape(mode=mode, **shape))


@pytest.mark.parametrize(
    ("now", "before", "why"),
    [
        (in_mode("history"), in_mode("append"), "mode: append has become mode: history"),
        (in_mode("history"), PLAIN, "mode: mirror has become mode: history"),
        (in_mode("append", mask=("v",), mask_key="1"), in_mode("append"), "its masked columns, or their key, have"),
        (
            in_mode("append", mask=("v",), mask_key="1"),
            in_mode("append", mask=("v",), mask_key="2"),
            "its masked columns, or their key, have changed",
        ),
        (in_mode("soft-delete"), in_mode("soft-delete", WIDER), "its column id was int64 and is int32"),
        (in_mode("append", schema("shop.t", ("id",), id="int", v="text")), in_mode("append"), "its column v was int32"),
        (
            in_mode("soft-delete", schema("shop.t", ("v",), id="int", v="int")),
            in_mode("soft-delete"),
            "its key was id and is v",
        ),
    ],
)
def test_a_generation_begins_anew_where_the_rows_of_before_do_not_fit(
    now: TableSchema, before: TableSchema, why: str
) -> None:
    found = made(now, before)
    assert isinstance(found, str)
    assert found.startswith(why)


def versions(table: TableSchema, *rows: tuple[int, int, int | None]) -> pa.Table:
    """Versions (id, v, `_from_seq`), of which none has ended."""
    arrow = columns(moded(plain_rule(table), table).target)
    plain = [{"id": key, "v": v, "_from_seq": seq, "_to_seq": OPEN, "_current": True} for key, v, seq in rows]
    return pa.Table.from_pylist(plain, schema=arrow)


def test_a_version_goes_on_where_its_row_is_as_it_was_and_begins_where_the_earlier_content_ended() -> None:
    """Key 1 is as it was, 2 is not, 3 is new, and the earlier type of the key can't hold the last one: it must not be
    taken for key 1, which is what is left of its bits."""
    before, now = in_mode("history"), in_mode("history", WIDER)
    found = made(now, before)
    assert not isinstance(found, str)
    earlier = versions(before, (1, 10, 5), (2, 20, None))
    asked: list[Any] = []
    goes_on: list[Any] = []

    def pairs(keys: pa.Table) -> Iterator[tuple[pa.Table, Any, Callable[[Any], None]]]:
        asked.extend(keys.to_pylist())
        wanted = keys.column("k0").to_pylist()
        for at in range(earlier.num_rows):  # each as if in a row group of its own
            key = earlier["id"][at].as_py()
            yield earlier.slice(at, 1), np.array([wanted.index(key)]), goes_on.extend

    rows = versions(now, (3, 1, None), (2**32 + 1, 10, None), (2, 21, None), (1, 10, None))
    assert found.of_snapshot(rows).to_pylist() == [True] * 4  # type: ignore[union-attr]
    begun = found.begun(rows, pairs).to_pylist()
    assert asked == [{"k0": key, "k1": OPEN} for key in (3, 2, 1)]
    assert goes_on == [True, False]
    at_the_place = (AGAIN + 1, "binlog.000007", 70, UNTIL)
    names = ("_from_seq", "_from_file", "_from_pos", "_valid_from")
    assert [tuple(row[name] for name in names) for row in begun] == [at_the_place] * 3 + [(5, None, None, None)]
    (ended,) = found.kept(earlier.slice(1), lambda keys: np.zeros(0, int)).to_pylist()
    assert (ended["id"], ended["_to_seq"], ended["_to_pos"], ended["_valid_to"], ended["_current"]) == (
        2, AGAIN + 1, 70, UNTIL, False,
    )  # fmt: skip


def test_a_row_that_is_absent_is_marked_and_one_that_came_again_is_not_taken_over() -> None:
    table = in_mode("soft-delete")
    found = made(table, table)
    assert not isinstance(found, str)
    arrow = columns(moded(plain_rule(table), table).target)
    rows = [{"id": key, "_is_deleted": key == 2, "_deleted_at": UNTIL if key == 2 else None} for key in (1, 2, 3)]
    kept = found.kept(pa.Table.from_pylist(rows, schema=arrow), lambda keys: np.flatnonzero(np.array(keys["k0"]) == 3))
    assert [(row["id"], row["_is_deleted"], row["_deleted_at"]) for row in kept.to_pylist()] == [
        (1, True, NOTICED), (2, True, UNTIL),
    ]  # fmt: skip


def test_vectors_and_nulls_are_compared_too() -> None:
    table = in_mode("history", schema("shop.t", ("id",), id="int", v="vector(2)"))
    found = made(table, table)
    assert not isinstance(found, str)
    arrow = columns(moded(plain_rule(table), table).target)

    def rows(*values: list[float] | None) -> pa.Table:
        own = {"_to_seq": OPEN}
        return pa.Table.from_pylist([{"id": at, "v": v, **own} for at, v in enumerate(values)], schema=arrow)

    goes_on: list[bool] = []
    before = rows([1.0, 2.0], None, [1.0, 2.0], None)
    found.begun(
        rows([1.0, 2.0], None, [1.0, 3.0], [0.0, 0.0]), lambda keys: iter([(before, np.arange(4), goes_on.extend)])
    )
    assert goes_on == [True, True, False, False]


def two(table: TableSchema, **values: Any) -> pa.Table:
    """One current version, for a table of any columns."""
    arrow = columns(moded(plain_rule(table), table).target)
    return pa.Table.from_pylist([{"_to_seq": OPEN, "_current": True, **values}], schema=arrow)


def test_a_key_in_another_order_and_a_name_in_another_case_are_as_they_were() -> None:
    """Keys are asked for in the earlier order; of an earlier row only what its successor needs stays in memory."""
    kinds = {"id": "int", "p": "varchar(9)", "v": "int"}
    before = in_mode("history", schema("shop.t", ("id", "p"), **kinds))
    now = in_mode("history", schema("shop.t", ("P", "id"), id="int", P="varchar(9)", V="int"))
    found = made(now, before)
    assert not isinstance(found, str)
    earlier, goes_on = two(before, id=1, p="x", v=7, _from_seq=5), list[bool]()

    def pairs(keys: pa.Table) -> Iterator[tuple[pa.Table, Any, Callable[[Any], None]]]:
        assert keys.to_pylist() == [{"k0": 1, "k1": "x", "k2": OPEN}]
        yield earlier, np.array([0]), goes_on.extend

    (begun,) = found.begun(two(now, id=1, P="x", V=7), pairs).to_pylist()
    assert goes_on == [True]
    assert (begun["_from_seq"], begun["P"], begun["V"]) == (5, "x", 7)
    (kept,) = found.kept(earlier, lambda keys: np.zeros(0, int)).to_pylist()
    assert (kept["P"], kept["V"]) == ("x", 7)
