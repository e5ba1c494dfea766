"""Rules of tables (`select`, `where`) on a real Spark and a real lake.

The oracle is an ordinary query of Spark over the source's rows: the lake must show what that query returns, at each
publication.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.spark_bench import LakeStart, Row, SparkBench, T, U, order, same, schema, stock

RULE = Shape(
    select=("id AS number", "upper(note) AS title", "* EXCEPT (id, note)", "price * 2 AS twice", "id % 2 = 0 AS even"),
    where="price IS NULL OR price < 50",
)
SHAPED = replace(T, shape=RULE)
MODES: tuple[Any, ...] = ("mirror", "soft-delete", "history")


def queried(bench: SparkBench, table: TableSchema, rows: list[Row]) -> list[Row]:
    """What Spark returns for a table's rule, as a query over rows of the source."""
    assert table.shape is not None
    found: Any = bench.session.createDataFrame(pa.Table.from_pylist(rows, schema=table.arrow))
    if table.shape.where is not None:
        found = found.where(table.shape.where)
    return list(found.selectExpr(*table.shape.select).toArrow().to_pylist())


def agree(bench: SparkBench, table: TableSchema) -> int:
    """Compare every publication that shows the table with the query; return how many there are."""
    compared = 0
    for record in bench.journal.store.publications():
        shown = record.tables[table.table_id]
        if shown.main is not None and shown.shown:
            _, rows = bench.journal.at[record.n][table.table_id]
            names, found = bench.rows(table.table_id, snapshot_of(shown.main.content))
            assert same((names, found), (names, queried(bench, table, rows))), record.n
            compared += 1
    return compared


def quarantine(bench: SparkBench, start: LakeStart, table: TableSchema = SHAPED) -> str:
    """The cause for which a table, and no other, is quarantined."""
    assert set(start.progress.quarantined) == {table.table_id}
    held = start.progress.quarantined[table.table_id]
    assert held.cause.code == "rule"
    return f"{held.cause}"


def test_a_rule_may_name_what_is_known_of_a_change(bench: SparkBench) -> None:
    """A star does not stand for it, and where the source has a column of that name, that is meant."""
    how = "concat(_database, '.', _table, ' ', _op) AS how"
    select = ("* EXCEPT (_gtid)", "_gtid", how, "_committed_at", "_gtid + 1 AS g")
    named = replace(schema("shop.named", ("id",), id="int", note="int", price="int", _gtid="int"), shape=Shape())
    tables = [
        replace(named, table_id=f"shop.{mode}", shape=Shape(mode=mode, select=select))
        for mode in MODES
    ]
    refused = replace(named, table_id="shop.refused", shape=Shape(where="_op <> 'r'"))
    taken = replace(named, table_id="shop.taken", shape=Shape(mode="append", select=("id", "_op")))
    rows = [{"id": number, "note": 1, "price": 2, "_gtid": 3} for number in (1, 2)]
    for table in (*tables, refused, taken):
        bench.journal.table(table)
        bench.journal.chunk(table, rows)
    bench.journal.checkpoint()
    start = bench.apply()
    assert {name: str(held.cause).partition(",")[0] for name, held in start.progress.quarantined.items()} == {
        "shop.refused": "where of shop.refused names _op",
        "shop.taken": "shop.taken has a column _op",
    }
    for table in tables:
        bench.journal.change(table, ("+U", rows[0] | {"price": 5}), ("-D", rows[1]))
    bench.journal.checkpoint()
    bench.apply(start)
    hows = {"mirror": ["+U"], "soft-delete": ["+U", "-D"], "history": ["+U", "r", "r"]}
    for mode, wanted in hows.items():
        names, found = bench.rows(f"shop.{mode}")
        assert names[-7:] == ("id", "note", "price", "_gtid", "how", "_committed_at", "g")
        assert sorted(row["how"] for row in found) == [f"shop.{mode} {op}" for op in wanted]
        assert {row["g"] for row in found} == {4}
    history = tables[2]  # read again: the version goes on, with what is known of its change
    bench.journal.table(history, generation=2)
    bench.journal.chunk(history, [rows[0] | {"price": 5}])
    bench.journal.checkpoint()
    bench.apply(start)
    found = bench.rows("shop.history")[1]
    assert sorted((row["_current"], row["how"]) for row in found) == [
        (False, "shop.history r"), (False, "shop.history r"), (True, "shop.history +U"),
    ]  # fmt: skip


def test_the_lake_has_what_a_query_by_the_rule_returns(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(SHAPED)
    journal.table(U)
    journal.chunk(SHAPED, [order(1, "one", "1.00"), order(2, "two", "99.00"), order(3, None, None), order(4, "four")])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint(kept=True)
    start = bench.apply()
    names, rows = bench.rows(T.table_id)
    assert names == ("number", "title", "price", "twice", "even")
    assert sorted(row["number"] for row in rows) == [1, 3, 4]
    # 1 leaves the condition, 2 enters it, 3 is changed within it, 4 goes, 5 comes and 6 never was in it
    journal.change(
        SHAPED, ("+U", order(1, "one", "50.00")), ("+U", order(2, "two", "2.00")), ("+U", order(3, "three", "3.00")),
        ("-D", order(4, "four")), ("+I", order(5, "five", "5.00")), ("+I", order(6, "six", "60.00")),
    )  # fmt: skip
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert sorted(row["number"] for row in bench.rows(T.table_id)[1]) == [2, 3, 5]
    journal.change(SHAPED, ("t", None), ("+I", order(7, "seven", "7.00")))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert agree(bench, SHAPED) == 3
    assert not start.progress.quarantined
    assert os.listdir(journal.store.location("shaped")) == []


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_random_changes_give_the_same_by_both_engines(bench: SparkBench, engine: str) -> None:
    bench.engine = engine
    draw = random.Random(engine)
    journal = bench.journal

    def row(place: int, item: int) -> Row:
        return stock(item, draw.randrange(9)) | {"place": f"p{place}"}

    rows = {(place, item): row(place, item) for place in range(3) for item in range(20)}
    table = replace(U, shape=Shape(select=("*", "concat(place, '!') AS loud"), where="amount % 3 <> 0"))
    journal.table(table)
    journal.chunk(table, list(rows.values()))
    journal.checkpoint(kept=True)
    start = bench.apply()
    for _ in range(2 if engine == "spark" else 6):
        changes: list[tuple[str, Row | None]] = []
        for _ in range(40):
            key = draw.randrange(3), draw.randrange(20)
            if key in rows and draw.random() < 0.3:
                changes.append(("-D", rows.pop(key)))
            else:
                changes.append(("+U" if key in rows else "+I", row(*key)))
                rows[key] = changes[-1][1] or {}
        journal.change(table, *changes)
        journal.checkpoint(kept=True)
        bench.apply(start)
    assert agree(bench, table) == (3 if engine == "spark" else 7)


def test_expressions_and_names_of_all_kinds_are_as_in_a_query(bench: SparkBench) -> None:
    journal = bench.journal
    names = {"id": "int", "a.b": "varchar(9)", "x`y": "int", "ünï": "int", "ẞ": "int", "ß": "int", "v": "vector(2)"}
    plain = schema("shop.odd", ("id",), **names)
    columns = tuple(replace(each, element_id=8) if each.name == "v" else each for each in plain.columns)
    select = (
        "*", "id AS again", "concat(`a.b`, 'x') BETWEEN 'a' AND 'm' AS early", "nullif(`x``y` + `ünï`, 3) AS `s.t`",
        "v[0] AS first -- a comment",
    )  # fmt: skip
    where = "nullif(concat(`a.b`, ''), 'none') IS NOT NULL -- so\n AND id BETWEEN -1 AND 9"
    table = replace(plain, columns=columns, last_field_id=8, shape=Shape(select=select, where=where))
    journal.table(table)

    def odd(number: int, text: str | None) -> Row:
        return dict(zip(names, (number, text, 1, number, 5, 6, [number / 2, 0.0]), strict=True))

    journal.chunk(table, [odd(1, "a"), odd(2, "z"), odd(3, None), odd(4, "none")])
    journal.checkpoint()
    start = bench.apply()
    journal.change(table, ("+U", odd(4, "b")), ("+I", odd(10, "c")), ("-D", odd(2, "z")))
    journal.checkpoint()
    bench.apply(start)
    assert not start.progress.quarantined
    found = {row["id"]: row for row in bench.rows("shop.odd")[1]}
    assert {key: (row["again"], row["early"], row["s.t"], row["first"]) for key, row in found.items()} == {
        1: (1, True, 2, 0.5), 4: (4, True, 5, 2.0)
    }  # fmt: skip


def test_a_column_that_is_computed_under_its_own_name_is_not_taken_as_it_is(bench: SparkBench) -> None:
    journal = bench.journal
    table = replace(T, shape=Shape(select=("id", "upper(note) AS note", "price")))
    journal.table(table)
    journal.chunk(table, [order(1, "one", "1.00")])
    journal.checkpoint(kept=True)
    start = bench.apply()
    journal.change(table, ("+I", order(2, "two", "2.00")))
    journal.checkpoint(kept=True)
    bench.apply(start)
    assert sorted(row["note"] for row in bench.rows(T.table_id)[1]) == ["ONE", "TWO"]
    assert agree(bench, table) == 2


def test_values_too_large_for_the_memory_hold_back_their_table_alone(bench: SparkBench) -> None:
    journal = bench.journal
    huge = replace(T, shape=Shape(select=("id", "repeat(note, 2000000000) AS c")))
    for table in (huge, U):
        journal.table(table)
    journal.chunk(huge, [order(1)])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint()
    start = bench.apply()
    assert "too large for the memory" in quarantine(bench, start, huge)
    assert bench.rows(U.table_id)[1] == [stock(1, 1)]


def test_a_table_without_a_key_keeps_the_rows_for_which_the_condition_is_true(bench: SparkBench) -> None:
    journal = bench.journal
    table = replace(
        schema("shop.log", (), at="datetime(6)", text="varchar(20)"), shape=Shape(where="text LIKE 'a%'")
    )
    journal.table(table)
    journal.chunk(table, [{"at": None, "text": "ab"}, {"at": None, "text": "b"}])
    journal.checkpoint()
    start = bench.apply()
    journal.change(table, ("+I", {"at": None, "text": "b"}), ("+I", {"at": None, "text": "ab"}))
    journal.checkpoint()
    bench.apply(start)
    assert bench.rows("shop.log")[1] == [{"at": None, "text": "ab"}] * 2


def test_the_condition_comes_before_the_columns(bench: SparkBench) -> None:
    journal = bench.journal
    table = replace(T, shape=Shape(select=("id", "100 / price AS share"), where="price <> 0"))
    journal.table(table)
    journal.chunk(table, [order(1, price="0.00"), order(2, price="4.00")])
    journal.checkpoint()
    start = bench.apply()
    journal.change(table, ("+U", order(2, price="0.00")), ("+I", order(3, price="5.00")), ("-D", order(1)))
    journal.checkpoint()
    bench.apply(start)
    assert agree(bench, table) == 2


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Shape(select=("id", "nothing")), "`nothing` cannot be resolved"),
        (Shape(select=("id", "price +")), "Syntax error"),
        (Shape(select=("id", "sum(price) AS s")), "does not make one row of each row"),
        (Shape(select=("id", "explode(array(1, 2)) AS e")), "does not make one row of each row"),
        (Shape(select=("id",), where="row_number() OVER (ORDER BY id) = 1"), "does not make one row of each row"),
        (Shape(select=("id", "uuid() AS u")), "uses uuid"),
        (Shape(where="price < rand()"), "uses rand"),
        (Shape(select=("id", "now() AS n")), "uses now"),
        (Shape(select=("id", "java_method('java.lang.System', 'getenv', 'HOME') AS h")), "uses java_method"),
        (Shape(where="reflect('java.lang.System', 'getProperty', 'user.home') = 'x'"), "uses reflect"),
        (Shape(select=("id", "current_user() AS u")), "uses current_user"),
        (Shape(select=("id", "(SELECT 1) AS one")), "it has a query"),
        (Shape(where="EXISTS (SELECT 1 FROM text.`/nothing/there`)"), "it has a query"),
        (Shape(select=("id", "aes_encrypt(note, '0000111122223333') AS x")), "uses aes_encrypt"),
        (Shape(select=("id", "note AS `_op `")), "has a column named '_op '"),
        (Shape(select=("id", "upper(note) AS ``")), "has a column named ''"),
        (Shape(where="price"), "is of the type decimal(10,2)"),
        (Shape(select=("note",)), "lacks the column id of its key"),
        (Shape(select=("id", "price AS id")), "has two columns id"),
        (Shape(select=("*", "note")), "has two columns note"),
        (Shape(select=("id", "price AS NOTE", "note")), "has two columns note"),
        (Shape(select=("*", "ID + 1 AS ID")), "has two columns ID"),
        (Shape(select=("id", "map('a', price) AS m")), "is of the type"),
        (Shape(select=("id", "NULL AS n")), "is of the type void"),
    ],
)
def test_a_rule_that_can_t_be_carried_out_quarantines_its_table_alone(
    bench: SparkBench, rule: Shape, why: str
) -> None:
    journal = bench.journal
    table = replace(T, shape=rule)
    journal.table(table)
    journal.table(U)
    journal.chunk(table, [order(1)])
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint()
    start = bench.apply()
    cause = quarantine(bench, start, table)
    assert why in cause
    assert "shop.orders" in cause
    assert "\n" not in cause
    assert bench.rows(U.table_id)[1] == [stock(1, 1)]


def test_a_row_on_which_a_rule_fails_quarantines_its_table_alone(bench: SparkBench) -> None:
    journal = bench.journal
    table = replace(T, shape=Shape(select=("id", "CAST(note AS INT) AS n")))
    journal.table(table)
    journal.table(U)
    journal.chunk(table, [order(1, "1")])
    journal.checkpoint()
    start = bench.apply()
    journal.change(table, ("+I", order(2, "two")))
    journal.chunk(U, [stock(1, 1)])
    journal.checkpoint()
    bench.apply(start)
    assert "'two'" in quarantine(bench, start, table)
    assert bench.rows(U.table_id)[1] == [stock(1, 1)]
    assert bench.rows(T.table_id)[1] == [{"id": 1, "n": 1}]
    # the row is corrected, and a person has the table read again
    journal.table(table, generation=2)
    journal.chunk(table, [order(1, "1"), order(2, "2")])
    journal.checkpoint()
    bench.apply(start)
    assert bench.rows(T.table_id)[1] == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert not start.progress.quarantined
    assert os.listdir(journal.store.location("shaped")) == []


def test_what_a_killed_start_left_is_removed_by_the_next_one(bench: SparkBench) -> None:
    journal = bench.journal
    files = journal.store.shaped_files(1)
    with files.open() as left:
        left.write(b"x")
        left.settle()
    later = journal.store.shaped_files(10**9)
    Path(journal.store.location("shaped"), "lost+found").touch()
    with later.open() as theirs:
        theirs.write(b"x")
        theirs.settle()
    journal.table(SHAPED)
    journal.chunk(SHAPED, [order(1)])
    journal.checkpoint()
    journal.store.claim()
    bench.apply()
    assert {name[:10] for name in os.listdir(journal.store.location("shaped"))} == {"1000000000", "lost+found"}
