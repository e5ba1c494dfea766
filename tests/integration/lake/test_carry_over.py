"""What a table's next generation takes over of the one before it, on a real Spark and a real lake.

The oracle is a list of rows for each table, which takes one change after the other, and at the end of each reading what
the mode keeps of the list before.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cutline.common.errors import Unavailable
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer.sinks.iceberg import taking_over
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from cutline.spark_writer.transform.carrying import AGAIN
from cutline.spark_writer.transform.history import OPEN
from tests.support.spark_bench import Row, SparkBench, newest, options, schema

MODES: tuple[Any, ...] = ("append", "soft-delete", "history")
COLUMNS = (
    {"id": "int", "note": "varchar(40)", "price": "decimal(10,2)"},
    {"id": "bigint", "price": "decimal(12,2)", "size": "int"},  # wider, one gone, one new
    {"size": "int", "id": "bigint", "price": "decimal(12,2)"},
)
"""The columns of each generation: the first two have other field ids for other meanings."""
OWN = {
    "append": ("_op", "_seq", "_binlog_file", "_binlog_pos"),
    "soft-delete": ("_is_deleted", "_deleted_at"),
    "history": ("_from_seq", "_from_file", "_from_pos", "_to_seq", "_to_file", "_to_pos"),
}
KEYS = 12


@dataclass
class Model:
    """The lake's rows of one table."""

    mode: str
    computed: Row
    rows: list[Row] = field(default_factory=list)
    old: list[Row] = field(default_factory=list)

    @property
    def all(self) -> list[Row]:
        return self.old + self.rows

    def chunk(self, rows: list[Row]) -> None:
        start = {"append": {"_op": "r"}, "soft-delete": {"_is_deleted": False}, "history": {"_to_seq": OPEN}}
        self.rows += [{**row, **self.computed, **start[self.mode]} for row in rows]

    def change(self, op: str, row: Row, seq: int) -> None:
        row = {**row, **self.computed}
        if self.mode == "append":
            self.rows.append({**row, "_op": op, "_seq": seq})
            return
        open_rows = [each for each in self.rows if each["id"] == row["id"] and each.get("_to_seq", OPEN) == OPEN]
        for each in open_rows:
            if self.mode == "history":
                each["_to_seq"] = seq
            else:
                self.rows.remove(each)
        if self.mode == "soft-delete":
            self.rows.append({**row, "_is_deleted": op == "-D"})
        elif op != "-D":
            self.rows.append({**row, "_from_seq": seq, "_to_seq": OPEN})

    def take_over(self, before: list[Row], generation: int, at: int, now: datetime) -> None:
        seq, file = AGAIN + generation, "binlog.000001"
        if self.mode == "append":
            seq = max((row["_seq"] for row in before if row.get("_seq") is not None), default=-1)
            for row in self.rows:
                if row["_op"] == "r":
                    row |= {"_seq": seq, "_binlog_file": file, "_binlog_pos": at}
            self.old = before
        elif self.mode == "soft-delete":
            now_known = {row["id"] for row in self.rows}
            gone = [row for row in before if row["id"] not in now_known]
            mark = {"_is_deleted": True, "_deleted_at": now}
            self.rows += [row if row["_is_deleted"] else {**row, **mark} for row in gone]
        else:
            current = {row["id"]: row for row in before if row["_to_seq"] == OPEN}
            begins: dict[int, Row] = {}
            for row in self.rows:
                if row.get("_from_seq") is None:
                    known = current.get(row["id"])
                    both = [] if known is None else [name for name in row.keys() & known.keys() if name[0] != "_"]
                    if known is not None and all(known[name] == row[name] for name in both):
                        names = ("_from_seq", "_from_file", "_from_pos")
                        begins[row["id"]] = {name: known.get(name) for name in names}
                        before = [each for each in before if each is not known]
                    row |= begins.get(row["id"], {"_from_seq": seq, "_from_file": file, "_from_pos": at})
            ends = {"_to_seq": seq, "_to_file": file, "_to_pos": at}
            self.rows += [{**row, **ends} if row["_to_seq"] == OPEN else row for row in before]


def row_of(draw: random.Random, number: int, key: int) -> Row:
    price, note, size = Decimal(f"{draw.randrange(3)}.00"), f"n{draw.randrange(9)}", draw.randrange(3)
    drawn = {"id": key, "note": note, "price": price, "size": size}
    return {name: drawn[name] for name in COLUMNS[number]}


def lake(bench: SparkBench, table_id: str, mode: str, columns: tuple[str, ...]) -> list[str]:
    names, rows = bench.rows(table_id)
    assert names[-len(columns) :] == columns
    if mode == "history":
        assert all(row["_current"] == (row["_to_seq"] == OPEN) for row in rows)
    return as_text(rows, mode, columns)


def as_text(rows: list[Row], mode: str, columns: tuple[str, ...]) -> list[str]:
    values = ([row.get(name) for name in (*OWN[mode], *columns)] for row in rows)
    return sorted(repr([each.isoformat() if isinstance(each, datetime) else each for each in row]) for row in values)


def stage(bench: SparkBench, table: TableSchema, model: Model, draw: random.Random, number: int) -> None:
    changes: list[tuple[str, Row | None]] = []
    alive = {row["id"]: row for row in state(model)}
    for _ in range(12):
        key = draw.randrange(KEYS)
        row = row_of(draw, number, key)
        op = draw.choice(["-D", "+U"]) if key in alive else "+I"
        if op == "-D":
            known = alive.pop(key)
            row = {name: known[name] for name in COLUMNS[number]}
        else:
            alive[key] = row
        model.change(op, row, bench.journal.seq + len(changes))
        changes.append((op, row))
    bench.journal.change(table, *changes)


def stage_each(
    bench: SparkBench, tables: list[TableSchema], models: dict[str, Model], draw: random.Random, number: int
) -> None:
    """Stage changes of each table with the numbers that it would have alone: the next one after all of its own."""
    first = bench.journal.seq
    for table in tables:
        bench.journal.seq = first
        stage(bench, table, models[table.table_id], draw, number)


def state(model: Model) -> list[Row]:
    """The rows that are at the source by what a model has."""
    last: dict[int, Row] = {}
    for row in model.rows:
        gone = row.get("_op") == "-D" or row.get("_is_deleted") or row.get("_to_seq", OPEN) != OPEN
        last.pop(row["id"], None)
        if not gone:
            last[row["id"]] = row
    return list(last.values())


def begin(bench: SparkBench, tables: list[TableSchema], number: int, draw: random.Random) -> dict[str, Model]:
    """Stage a generation's chunks, of rows that partly are as they were."""
    models = {}
    for table in tables:
        assert table.shape is not None
        model = models[table.table_id] = Model(table.shape.mode, {"one": 1} if number == 2 else {})
        bench.journal.table(table, generation=number + 1, phase="snapshot")
        rows = [row_of(draw, number, key) for key in range(KEYS) if draw.random() < 0.6]
        for some in (rows[:3], rows[3:]):
            if some:
                bench.journal.chunk(table, some)
        model.chunk(rows)
    return models


def tables_of(number: int) -> list[TableSchema]:
    made = []
    for mode in MODES:
        table = schema(f"shop.{mode}", ("id",), **COLUMNS[number])
        made.append(replace(table, shape=Shape(mode=mode, select=("*",) if number < 2 else ("*", "1 AS one"))))
    return made


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_that_is_read_again_keeps_what_its_mode_keeps(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    """1. Three generations of each mode, the second with other columns, the third with a computed one.
    2. The second is read over several checkpoints, and the start that would show it first dies before it publishes.
    3. The third is shown by the checkpoint that has its rows.
    """
    draw = random.Random(version)
    partition = {"partition": ["bucket(2, id)"], "sort": ["id"]} if version == 2 else {}
    bench.options = options(format_version=version, **partition)
    journal, shown, end = bench.journal, dict[str, Model](), 0
    start = bench.start()
    for number in range(3):
        tables = tables_of(number)
        models = begin(bench, tables, number, draw)
        if number < 2:
            journal.checkpoint()
            bench.apply(start)
        stage_each(bench, tables, models, draw, number)
        for table in tables:
            journal.table(table, generation=number + 1)
        if number == 1:
            for table in tables:
                known, columns = shown[table.table_id], tuple(COLUMNS[0])
                assert lake(bench, table.table_id, known.mode, columns) == as_text(known.all, known.mode, columns)
            cut = journal.checkpoint()

            def die() -> None:
                raise Unavailable("this start", "dying")

            monkeypatch.setattr(start.sink, "make_durable", die)
            with pytest.raises(Unavailable):
                bench.apply(start)
            start = bench.start()
        else:
            cut = journal.checkpoint()
        bench.apply(start)
        assert not start.progress.quarantined
        now = datetime.fromtimestamp(1000.0 + cut, UTC)
        for table in tables:
            model, mode = models[table.table_id], table.table_id.removeprefix("shop.")
            if number:
                model.take_over(shown[table.table_id].all, number, end * 100, now)
            columns = (*COLUMNS[number], *model.computed)
            assert lake(bench, table.table_id, mode, columns) == as_text(model.all, mode, columns), (number, mode)
            shown[table.table_id] = model
        stage_each(bench, tables, models, draw, number)  # a change on top finds the rows of both generations
        end = journal.checkpoint()
        bench.apply(start)
        assert not start.progress.quarantined


def test_the_next_change_after_a_reading_is_not_taken_for_the_reading(bench: SparkBench) -> None:
    """The number behind all earlier ones is the next change's own. Two readings have no change between them."""
    modes: tuple[Any, ...] = ("history", "append")
    tables = [replace(schema(f"shop.{m}", ("id",), id="int", v="int"), shape=Shape(mode=m)) for m in modes]
    start = bench.start()

    def cut() -> None:
        bench.journal.checkpoint()
        bench.apply(start)
        assert not start.progress.quarantined

    def read(generation: int, v: int) -> None:
        for table in tables:
            bench.journal.table(table, generation=generation)
            bench.journal.chunk(table, [{"id": 1, "v": v}])
        cut()

    def change(v: int) -> None:
        seq = bench.journal.seq
        for table in tables:
            bench.journal.seq = seq  # the numbers of each table as if it were alone
            bench.journal.change(table, ("+U", {"id": 1, "v": v}))
        cut()

    read(1, 1)
    change(2)
    read(2, 3)
    read(3, 4)
    change(5)
    ends = {row["v"]: row["_to_seq"] for row in bench.rows("shop.history")[1]}
    assert ends == {1: 0, 2: AGAIN + 1, 3: AGAIN + 2, 4: 1, 5: OPEN}
    known = [row for row in bench.rows("shop.append")[1] if row["_seq"] is not None]
    known.sort(key=lambda row: (row["_seq"], row["_op"] == "r", row["_binlog_pos"]))
    assert [(row["v"], row["_seq"]) for row in known] == [(2, 0), (3, 0), (4, 0), (5, 1)]


def test_what_mixes_a_change_and_its_row_is_compared_as_the_row_is(bench: SparkBench) -> None:
    table = schema("shop.mixed", ("id",), id="int", v="int")
    start = bench.start()
    for generation, factor in ((1, 1), (2, 11)):
        select = ("id", "_op AS how", f"concat(v * {factor}, left(_op, 0)) AS x")
        ruled = replace(table, shape=Shape(mode="history", select=select))
        bench.journal.table(ruled, generation=generation)
        bench.journal.chunk(ruled, [{"id": 1, "v": 7}, {"id": 2, "v": 0}])
        bench.journal.checkpoint()
        bench.apply(start)
    assert not start.progress.quarantined
    found = sorted((row["id"], row["x"], row["_current"]) for row in bench.rows("shop.mixed")[1])
    assert found == [(1, "7", False), (1, "77", True), (2, "0", True)]


def test_what_others_delete_before_a_generation_is_shown_stays_deleted_and_the_rest_is_taken_over(
    bench: SparkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They commit between the carry-over and the step that shows it, and a person accepts that."""
    table = replace(schema("shop.t", ("id",), id="int", v="int"), shape=Shape(mode="history"))
    start = bench.start()
    bench.journal.table(table)
    bench.journal.chunk(table, [{"id": 1, "v": 1}, {"id": 2, "v": 1}])
    bench.journal.change(table, ("+U", {"id": 1, "v": 2}), ("+U", {"id": 2, "v": 2}))
    bench.journal.checkpoint()
    bench.apply(start)
    bench.journal.table(table, generation=2)
    bench.journal.chunk(table, [{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    bench.journal.checkpoint()
    durable = start.sink.make_durable

    def meanwhile() -> None:
        bench.session.sql("DELETE FROM lake.shop.t WHERE id = 1 AND v = 1")
        durable()

    with monkeypatch.context() as patch:
        patch.setattr(start.sink, "make_durable", meanwhile)
        bench.apply(start)
    assert "shop.t" in start.progress.quarantined
    start.choose("shop.t", "accept", start.foreign["shop.t"].seen)
    bench.journal.change(table, ("+U", {"id": 2, "v": 3}))
    bench.journal.checkpoint()
    bench.apply(start)
    assert not start.progress.quarantined
    assert sorted((row["id"], row["v"]) for row in bench.rows("shop.t")[1]) == [(1, 2), (2, 1), (2, 2), (2, 3)]


def test_a_table_begins_anew_where_what_it_had_can_not_be_taken_over(
    bench: SparkBench, caplog: pytest.LogCaptureFixture
) -> None:
    """A type does not fit any more, and another one has another mode: each says so. Beside them one goes on, whose
    earlier rows are more than a file gets, and one lacks a file of before: it is held back until the file is there."""
    history = Shape(mode="history")
    names = ("lost", "typed", "moded", "whole")
    before = [replace(schema(f"shop.{name}", ("id",), id="int", v="int"), shape=history) for name in names]
    for table in before:
        bench.journal.table(table)
        for first in (1, 3):
            bench.journal.chunk(table, [{"id": first, "v": 1}, {"id": first + 1, "v": 1}])
    bench.journal.checkpoint()
    start = bench.apply()
    (path, *_) = start.sink.tables.get("shop.lost").contents(shown_by(bench, "shop.lost")).files
    missing = Path(path.removeprefix("file:"))
    kept = missing.rename(missing.with_suffix(".away"))
    now = [
        before[0],
        replace(schema("shop.typed", ("id",), id="int", v="varchar(9)"), shape=history),
        replace(before[2], shape=Shape(mode="soft-delete")),
        before[3],
    ]
    for table in now:
        bench.journal.table(table, generation=2)
        bench.journal.chunk(table, [{"id": 1, "v": "1" if table is now[1] else 1}])
    bench.journal.checkpoint()
    with caplog.at_level(logging.WARNING, "cutline.spark_writer"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking_over, "FILE_ROWS", 1)
        bench.apply(start)
    assert start.progress.quarantined.keys() == {"shop.lost"}
    assert path in start.progress.quarantined["shop.lost"].cause.sentence
    assert [len(bench.rows(table.table_id)[1]) for table in now[1:]] == [1, 1, 4]
    causes = {record.__dict__["table"]: record.__dict__["cause"] for record in caplog.records if "anew" in record.msg}
    assert causes.keys() == {"shop.typed", "shop.moded"}
    assert causes["shop.typed"] == "its column v was int32 and is string"
    kept.rename(missing)
    start.retry("shop.lost")
    bench.journal.checkpoint()
    bench.apply(start)
    assert not start.progress.quarantined
    assert len(bench.rows("shop.lost")[1]) == 4


def shown_by(bench: SparkBench, table_id: str) -> int:
    main = newest(bench).tables[table_id].main
    assert main is not None
    return snapshot_of(main.content)
