"""Modes of lake tables by both engines, on a real Spark and a real lake.

The oracle is a model that takes one change after the other. Both engines must come to its rows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer.transform.history import OPEN
from tests.support.spark_bench import Row, SparkBench, T, options, order, schema

SHAPES = {
    "append": Shape(mode="append", images="both"),
    "append_some": Shape(mode="append", where="price < 50"),
    "soft": Shape(mode="soft-delete"),
    "soft_some": Shape(mode="soft-delete", where="price < 50", select=("upper(note) AS note", "id", "price")),
    "history": Shape(mode="history"),
    "history_some": Shape(mode="history", where="price < 50", select=("id", "price", "upper(note) AS note")),
}


@dataclass
class Model:
    """The lake's rows by one mode, a change at a time."""

    shape: Shape
    log: list[tuple[Any, ...]] = field(default_factory=list)
    now: dict[int, Row] = field(default_factory=dict)
    marked: dict[int, Row] = field(default_factory=dict)
    since: dict[int, int | None] = field(default_factory=dict)

    def values(self, row: Row | None) -> tuple[Any, ...]:
        if row is None:
            return (None, None, None)
        return row["id"], row["note"].upper() if len(self.shape.select) > 1 else row["note"], row["price"]

    def kept(self, row: Row | None) -> Row | None:
        return row if row is None or self.shape.where is None or row["price"] < 50 else None

    def chunk(self, rows: list[Row]) -> None:
        for row in filter(self.kept, rows):
            if self.shape.mode == "append":
                self.log.append(("r", None, *self.values(row)))
            self.now[row["id"]], self.since[row["id"]] = row, None

    def end(self, key: int, seq: int) -> None:
        if self.shape.mode == "history":
            self.log.append((self.since[key], seq, False, *self.values(self.now[key])))
        del self.now[key]

    def change(self, before: Row | None, after: Row | None, first: int, last: int) -> None:
        """A change that was staged with these `_seq`: `first` is the row before, `last` the row after."""
        before, after = self.kept(before), self.kept(after)
        if self.shape.mode == "append":
            if before is not None and after is not None:
                self.log += [("-U", first, *self.values(before))] if self.shape.images == "both" else []
                self.log.append(("+U", last, *self.values(after)))
            elif before is not None:
                self.log.append(("-D", first, *self.values(before)))
            elif after is not None:
                self.log.append(("+I", last, *self.values(after)))
            return
        if before is not None:
            self.marked[before["id"]] = before
            self.end(before["id"], last if after is not None else first)
        if after is not None:
            self.now[after["id"]], self.since[after["id"]] = after, last
            self.marked.pop(after["id"], None)

    def truncate(self, seq: int) -> None:
        if self.shape.mode == "append":
            self.log.append(("t", seq, None, None, None))
            return
        for key in list(self.now):
            self.marked[key] = self.now[key]
            self.end(key, seq)

    def rows(self) -> list[tuple[Any, ...]]:
        if self.shape.mode == "append":
            return self.log
        if self.shape.mode == "soft-delete":
            both = [(self.now, False), (self.marked, True)]
            return [(deleted, *self.values(row)) for rows, deleted in both for row in rows.values()]
        return self.log + [(self.since[key], OPEN, True, *self.values(row)) for key, row in self.now.items()]


def found(bench: SparkBench, table: TableSchema) -> list[tuple[Any, ...]]:
    assert table.shape is not None
    own = {"append": ("_op", "_seq"), "soft-delete": ("_is_deleted",), "history": ("_from_seq", "_to_seq", "_current")}
    return [
        tuple(row[name] for name in (*own[table.shape.mode], "id", "note", "price"))
        for row in bench.rows(table.table_id)[1]
    ]


def stage(bench: SparkBench, table: TableSchema, model: Model, draw: random.Random, rows: dict[int, Row]) -> None:
    """Stage some changes of a table, and tell its model."""
    assert table.shape is not None
    changes: list[tuple[str, Row | None]] = []
    seq = bench.journal.seq
    for _ in range(40):
        key, drawn = draw.randrange(20), draw.random()
        before = rows.get(key)
        at = seq + len(changes)
        if drawn < 0.02:
            changes.append(("t", None))
            model.truncate(at)
            rows.clear()
        elif before is not None and drawn < 0.3:
            changes.append(("-D", rows.pop(key)))
            model.change(before, None, at, at)
        else:
            after = rows[key] = order(key, f"n{draw.randrange(99)}", f"{draw.randrange(100)}.00")
            if before is not None and table.shape.needs_before:
                changes.append(("-U", before))
            changes.append(("+I" if before is None else "+U", after))
            model.change(before, after, at, seq + len(changes) - 1)
    bench.journal.change(table, *changes)


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_each_mode_gives_the_rows_of_its_model(spark: Any, tmp_path: Path, engine: str) -> None:
    bench = SparkBench(spark, tmp_path)
    bench.engine = engine
    draw = random.Random(7)
    tables = {name: replace(T, table_id=f"shop.{name}", shape=shape) for name, shape in SHAPES.items()}
    models = {name: Model(shape) for name, shape in SHAPES.items()}
    rows: dict[str, dict[int, Row]] = {}
    for name, table in tables.items():
        bench.journal.table(table)
        rows[name] = {key: order(key, f"n{key}", f"{key * 5}.00") for key in range(15)}
        bench.journal.chunk(table, list(rows[name].values()))
        models[name].chunk(list(rows[name].values()))
        stage(bench, table, models[name], draw, rows[name])  # in one batch with the chunk
    start = None
    for number in range(2 if engine == "spark" else 4):
        bench.journal.checkpoint(kept=True)
        if number == 1 and engine == "local":  # a start that applies and dies; the next one applies the same again

            def die(step: str) -> None:
                if step == "applied":
                    raise Unavailable("this start", "dying")

            with pytest.raises(Unavailable):
                bench.apply(bench.start(die))
            start = None
        start = bench.apply(start)
        assert not start.progress.quarantined
        for name, table in tables.items():
            assert sorted(map(repr, found(bench, table))) == sorted(map(repr, models[name].rows())), name
            stage(bench, table, models[name], draw, rows[name])
    bench.close()


@pytest.mark.parametrize("version", [2, 3])
def test_ended_versions_keep_a_dropped_column_and_get_the_default_of_a_new_one(bench: SparkBench, version: Any) -> None:
    bench.options = options(format_version=version)
    journal = bench.journal
    past, soft = (replace(T, table_id=f"shop.{name}", shape=Shape(mode=name)) for name in ("history", "soft-delete"))
    later = {}
    for table in (past, soft):
        journal.table(table)
        journal.chunk(table, [order(1, "one"), order(2, "two"), order(3, "three")])
        journal.checkpoint()
        dropped = table.followed(table.drop_column("note"), "evolve")
        added = dropped.add_column("size", "int", nullable=False, initial_default="5")
        added = dropped.followed(added, "evolve")
        later[table.table_id] = added.followed(added.rename_column("price", "cost"), "evolve")
    start = bench.apply()
    for table in (past, soft):
        made = later[table.table_id]
        journal.table(made)
        cost = Decimal("1.50")
        journal.change(made, ("+U", {"id": 1, "cost": cost, "size": 6}), ("-D", {"id": 2, "cost": cost, "size": 5}))
    journal.checkpoint()
    bench.apply(start)
    assert not start.progress.quarantined
    rows = bench.rows("shop.history")[1]
    assert sorted(map(repr, ((row["id"], row["note"], row["size"], row["_current"]) for row in rows))) == [
        "(1, 'one', 5, False)", "(1, None, 6, True)", "(2, 'two', 5, False)", "(3, 'three', 5, True)"
    ]  # fmt: skip
    names, rows = bench.rows("shop.soft-delete")
    assert names == ("_is_deleted", "_deleted_at", "id", "note", "cost", "size")
    assert sorted(map(repr, ((row["id"], row["note"], row["size"], row["_is_deleted"]) for row in rows))) == [
        "(1, None, 6, False)", "(2, None, 5, True)", "(3, 'three', 5, False)"
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["evolve", "ignore"])
def test_masked_columns_stay_text_where_the_lake_shows_other_columns_than_the_source(
    bench: SparkBench, policy: Any
) -> None:
    modes: tuple[Any, ...] = ("mirror", "append", "soft-delete", "history")
    made = []
    for mode in modes:
        shape = Shape(mask=("amount",), mask_key="0" * 16, mode=mode)
        table = replace(schema(f"shop.{mode}", ("id",), id="int", amount="int", note="int", n="int"), shape=shape)
        bench.journal.table(table)
        bench.journal.chunk(table, [{"id": n, "amount": "ab" * 16, "note": 1, "n": 2} for n in (1, 2)])
        made.append(table)
    bench.journal.checkpoint()
    start = bench.apply()
    for table in made:
        later = table.followed(table.drop_column("note"), policy)
        later = later.followed(later.rename_column("n", "m"), policy)
        bench.journal.table(later)
        change = {"id": 1, "amount": "cd" * 16, "m": 3}
        bench.journal.change(later, ("+U", change), ("-D", change | {"id": 2, "amount": None}))
    bench.journal.checkpoint()
    bench.apply(start)
    assert not start.progress.quarantined
    name = "m" if policy == "evolve" else "n"
    for table, rows in zip(made, (1, 4, 2, 3), strict=True):
        names, found = bench.rows(table.table_id)
        assert names[-4:] == ("id", "amount", "note", name)
        assert len(found) == rows
        assert ("cd" * 16, 3) in {(row["amount"], row[name]) for row in found}


def test_a_mode_that_can_not_be_carried_out_holds_its_table_back(bench: SparkBench) -> None:
    own = replace(schema("shop.own", ("id",), id="int", _OP="int"), shape=Shape(mode="append"))
    keyless = replace(schema("shop.keyless", (), id="int"), shape=Shape(mode="history"))
    fine = replace(schema("shop.fine", ("id",), id="int", _op="int"), shape=Shape(mode="soft-delete"))
    made = schema("shop.made", ("id",), id="int", half="int")
    columns = (made.columns[0], replace(made.columns[1], generated=True))
    made = replace(made, columns=columns, shape=Shape(mode="soft-delete", where="half > 1"))
    for table in (own, keyless, fine, made):
        bench.journal.table(table)
        bench.journal.chunk(table, [{"id": 1}])
    bench.journal.checkpoint()
    held = bench.apply().progress.quarantined
    assert {name: str(each.cause).partition(",")[0] for name, each in held.items()} == {
        "shop.own": "shop.own has a column _OP",
        "shop.keyless": "shop.keyless has no key",
        "shop.made": "where of shop.made needs the generated column half",
    }
    assert {each.cause.code for each in held.values()} == {"rule"}
    assert bench.rows("shop.fine")[0] == ("_is_deleted", "_deleted_at", "id", "_op")
