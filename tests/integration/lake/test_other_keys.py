"""Tables whose key in the lake is another than the source's, on a real Spark and a real lake."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.shape import Shape
from tests.support.spark_bench import LakeStart, Row, SparkBench, T, U, order, stock

KEYED = replace(T, shape=Shape(select=("id", "upper(note) AS title", "price"), key=("title",), where="price < 50"))
Change = tuple[str, Row | None]


def shown(bench: SparkBench) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in bench.rows(T.table_id)[1])


def expected(rows: dict[int, Row]) -> list[tuple[Any, ...]]:
    kept = [row for row in rows.values() if row["price"] < 50]
    return sorted((row["id"], row["note"].upper(), row["price"]) for row in kept)


class Source:
    """Rows of the source, and the changes that a batch makes of them, each update with the row before it."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {row["id"]: row for row in rows}
        self.changes: list[Change] = []

    def put(self, row: Row) -> None:
        before = self.rows.get(row["id"])
        self.changes += [("+I", row)] if before is None else [("-U", before), ("+U", row)]
        self.rows[row["id"]] = row

    def delete(self, number: int) -> None:
        self.changes.append(("-D", self.rows.pop(number)))

    def taken(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes


def batch(source: Source, draw: random.Random, count: int) -> None:
    """Changes after which no two rows of the condition have one title, while meanwhile they may."""
    for _ in range(count):
        number, note = draw.randrange(30), f"n{draw.randrange(30)}"
        if number in source.rows and draw.random() < 0.2:
            source.delete(number)
        elif number in source.rows and draw.random() < 0.3:
            other = source.rows[draw.choice(list(source.rows))]
            mine = source.rows[number]
            source.put(mine | {"note": other["note"]})
            source.put(other | {"note": mine["note"]})
        else:
            source.put(order(number, note, f"{draw.randrange(70)}.00"))
    seen: set[str] = set()
    for row in list(source.rows.values()):
        if row["price"] < 50 and row["note"] in seen:
            source.delete(row["id"]) if draw.random() < 0.5 else source.put(row | {"note": f"u{row['id']}"})
        seen.add(row["note"])
    seen.clear()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_rows_are_found_by_their_key_in_the_lake_while_keys_go_from_row_to_row(bench: SparkBench, engine: str) -> None:
    bench.engine = engine
    draw = random.Random(11)
    source = Source([order(number, f"n{number}", "1.00") for number in range(20)])
    bench.journal.table(KEYED)
    bench.journal.chunk(KEYED, list(source.rows.values())[:12])
    bench.journal.chunk(KEYED, list(source.rows.values())[12:])
    start: LakeStart | None = None
    for number in range(2 if engine == "spark" else 12):
        batch(source, draw, draw.choice([3, 60]))
        if number == 5:
            source.changes.append(("t", None))
            source.rows.clear()
            batch(source, draw, 20)
        bench.journal.change(KEYED, *source.taken())
        bench.journal.checkpoint(kept=True)
        if number == 1 and engine == "local":  # a start that applies and dies; the next one applies the same again

            def die(step: str) -> None:
                if step == "applied":
                    raise Unavailable("this start", "dying")

            with pytest.raises(Unavailable):
                bench.apply(bench.start(die))
            start = None
        start = bench.apply(start)
        assert not start.progress.quarantined, start.progress.quarantined
        assert shown(bench) == expected(source.rows)


ONE, TWO = order(1, "one", "1.00"), order(2, "two", "2.00")


@pytest.mark.parametrize(
    ("chunks", "changes", "sentence"),
    [
        ([[ONE, order(7, "ONE", "7.00")]], [], "with id 1 and with id 7, have one key of the lake table (title 'ONE')"),
        ([[ONE], [order(7, "ONE", "7.00")]], [], "with id 1 and with id 7, have one key of the lake table"),
        ([[ONE, TWO]], [("+I", order(7, "oNe", "7.00"))], "with id 1 and with id 7, have one key"),
        ([[ONE, TWO]], [("-U", TWO), ("+U", TWO | {"note": "one"})], "with id 1 and with id 2, have one key"),
        ([[ONE]], [("+I", order(7, "x", "7.00")), ("+I", order(8, "x", "7.00"))], "with id 7 and with id 8, have one"),
        ([[ONE | {"note": None}]], [], "the key (title) of shop.orders has a null in title, for the row with id 1"),
        ([[ONE]], [("+I", TWO | {"note": None})], "has a null in title, for the row with id 2"),
    ],
)  # fmt: skip
def test_two_rows_with_one_key_hold_their_table_alone_and_are_named(
    bench: SparkBench, chunks: list[list[Row]], changes: list[Change], sentence: str
) -> None:
    journal = bench.journal
    for table in (KEYED, U):
        journal.table(table)
    for chunk in chunks:
        journal.chunk(KEYED, chunk)
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint(kept=True)
    start = bench.apply()
    before = [] if start.progress.quarantined else shown(bench)
    if changes:
        journal.change(KEYED, *changes)
        journal.checkpoint(kept=True)
        bench.apply(start)
        assert shown(bench) == before
    assert set(start.progress.quarantined) == {T.table_id}
    assert sentence in str(start.progress.quarantined[T.table_id].cause)


def test_chunks_of_different_moments_may_have_one_key_as_long_as_the_changes_tell_them_apart(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(KEYED)
    journal.chunk(KEYED, [ONE, order(3, "three", "3.00")])
    journal.chunk(KEYED, [order(2, "one", "2.00")])  # read after 1 had given up its key
    journal.change(KEYED, ("-U", ONE), ("+U", ONE | {"note": "two"}))
    journal.checkpoint(kept=True)
    start = bench.apply()
    assert not start.progress.quarantined, start.progress.quarantined
    rows = {1: ONE | {"note": "two"}, 2: order(2, "one", "2.00"), 3: order(3, "three", "3.00")}
    assert shown(bench) == expected(rows)
    journal.chunk(KEYED, [order(4, "three", "4.00"), order(5, "five", "5.00")])
    gone = order(6, None, "6.00")
    journal.change(KEYED, ("-D", rows.pop(3)), ("+I", gone), ("-D", gone))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert not start.progress.quarantined, start.progress.quarantined
    assert shown(bench) == expected(rows | {4: order(4, "three", "4.00"), 5: order(5, "five", "5.00")})


def test_a_row_that_comes_and_goes_leaves_the_owner_of_its_key_alone(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(KEYED)
    journal.chunk(KEYED, [ONE, TWO])
    journal.checkpoint(kept=True)
    start = bench.apply()
    passing, outside = order(7, "one", "7.00"), order(2, "one", "99.00")
    journal.change(KEYED, ("+I", passing), ("-D", passing), ("-U", TWO), ("+U", outside))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert shown(bench) == [(1, "ONE", ONE["price"])]
    assert not start.progress.quarantined


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"key": ("nothing",)}, "key of shop.orders names nothing, which is no column of the lake table"),
        ({"select": ("id", "sqrt(price) AS root"), "key": ("root",)}, "names root, which is of the type double"),
        ({"select": ("upper(note) AS title",), "key": ("title",)}, "lacks the column id of its key"),
    ],
)  # fmt: skip
def test_a_key_that_a_table_can_not_have_is_refused(bench: SparkBench, given: Any, sentence: str) -> None:
    table = replace(T, shape=Shape(**given))
    bench.journal.table(table)
    bench.journal.chunk(table, [ONE])
    bench.journal.checkpoint(kept=True)
    start = bench.apply()
    assert sentence in str(start.progress.quarantined[T.table_id].cause)
