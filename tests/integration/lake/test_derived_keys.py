"""Derived tables with `refresh: keys` on a real Spark and a real lake: after each batch of changes they are the query.

The oracle is the same query over the tables' versions, in Spark's own words.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutline.common.derived import KEYS, DerivedTable
from cutline.common.store.records import Publication
from cutline.spark_writer.sinks.iceberg import keyed
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.conftest import FULL
from tests.support.spark_bench import LakeStart, Row, SparkBench, schema

ORDERS = schema(
    "shop.o", ("id",), id="bigint", person="int", amount="decimal(10,2)", at="datetime(6)", ratio="double"
)
PEOPLE = schema("shop.p", ("id",), id="int", name="varchar(20)", city="varchar(20)", since="timestamp(6)")
BAD = {
    "window": ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM {o}", "a window"),
    "outer": ("SELECT o.id, p.name FROM {o} AS o LEFT JOIN {p} AS p ON o.person = p.id", "LEFT OUTER JOIN"),
    "near": ("SELECT o.id, p.name FROM {o} AS o JOIN {p} AS p ON o.person < p.id", "a join without an equality"),
    "nested": ("SELECT id FROM {o} WHERE person IN (SELECT id FROM {p})", "a subquery"),
    "global": ("SELECT sum(amount) AS total FROM {o}", "aggregates without GROUP BY"),
    "floats": ("SELECT person, sum(ratio) AS total FROM {o} GROUP BY person", "sum of floating-point numbers"),
    "means": ("SELECT person, avg(id) AS mean FROM {o} GROUP BY person", "avg of integers"),
    "hidden": ("SELECT count(*) AS n FROM {o} GROUP BY person", "GROUP BY shop.o.person, which is no column"),
    "listed": ("SELECT person, first(id) AS one FROM {o} GROUP BY person", "the aggregate first"),
    "limited": ("SELECT id FROM {o} LIMIT 3", "LIMIT"),
    "distinct": ("SELECT DISTINCT person FROM {o}", "SELECT DISTINCT"),
    "united": ("SELECT id FROM {o} UNION ALL SELECT id FROM {p}", "UNION"),
    "twice": ("SELECT n, count(*) AS c FROM (SELECT city, count(*) AS n FROM {p} GROUP BY city) GROUP BY n", "inside"),
    "mixed": (
        "SELECT o.person + p.id AS x, count(*) AS n FROM {o} AS o JOIN {p} AS p ON o.person = p.id GROUP BY 1",
        "GROUP BY no column that one table alone gives",
    ),
}
BY_CITY = (
    "SELECT p.city, sum(o.amount) AS total, count(*) AS n, max(o.at) AS last, min(abs(o.ratio)) AS least"
    " FROM {o} AS o JOIN {p} AS p ON o.person = p.id GROUP BY p.city"
)
WEIGHED = schema("shop.w", ("id",), id="int", _weight="int", grp="int")
OF_WEIGHED = {
    "r": "SELECT _weight, grp FROM shop.w",
    "g": "SELECT _weight AS k, count(*) AS n FROM shop.w GROUP BY 1",
    "j": "SELECT a.grp, c.grp AS other, count(*) AS n FROM shop.w AS a JOIN shop.w AS b ON a.id = b.id"
    " JOIN shop.w AS c ON c.id = b.grp GROUP BY a.grp, c.grp",
}
OVER = "SELECT n, count(*) AS cities FROM d.q0 GROUP BY n"
"""A query over the first one."""

few = st.one_of(st.none(), st.integers(0, 4))
times = st.sampled_from([None, dt.datetime(2020, 1, 2, 3, 4, 5, 6), dt.datetime(2020, 1, 3)])  # noqa: DTZ001
orders = st.fixed_dictionaries(
    {
        "id": st.integers(0, 30),
        "person": few,
        "amount": st.one_of(st.none(), st.integers(-300, 300).map(lambda cents: Decimal(cents) / 100)),
        "at": times,
        "ratio": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
    }
)
people = st.fixed_dictionaries(
    {
        "id": st.integers(0, 5),
        "name": st.sampled_from([None, "a", "A", "b"]),
        "city": st.sampled_from([None, "x", "y", "z"]),
        "since": times.map(lambda time: time and time.replace(tzinfo=dt.UTC)),
    }
)


def changes(rows: st.SearchStrategy[Row], most: int) -> st.SearchStrategy[list[tuple[str, Row | None]]]:
    """A batch of changes of a table; now and then a TRUNCATE stands in it."""
    ops = st.sampled_from(["+U", "+U", "-D"])
    some = st.lists(st.tuples(ops, rows), max_size=most)
    return st.tuples(some, st.integers(0, 7), some).map(
        lambda drawn: drawn[0] + ([("t", None), *drawn[2]] if drawn[1] == 7 else [])
    )


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query of the class that can be computed by keys, over `{o}` and `{p}`."""
    alone = [("o.person", "{o} AS o"), ("p.city", "{p} AS p")]
    joins = [
        ("p.city", "{o} AS o JOIN {p} AS p ON o.person = p.id"),
        ("upper(p.name)", "{o} AS o, {p} AS p WHERE p.id = o.person AND (o.amount > 0 OR p.city IS NULL)"),
        ("o.at", "(SELECT id AS who, city FROM {p} WHERE name <> 'b') AS p JOIN {o} AS o ON o.person <=> p.who"),
        ("p.city", "{p} AS p JOIN {p} AS q ON p.city = q.city JOIN {o} AS o ON o.person = q.id"),
    ]
    key, tables = draw(st.sampled_from([*alone, *joins]))
    orders, people = "AS o" in tables, "AS p" in tables
    if draw(st.booleans()):
        columns = [f"{key} AS k", *(["o.ratio", "o.amount * 2 AS twice"] if orders else ["p.since", "1 AS one"])]
        return f"SELECT {', '.join(columns)} FROM {tables}"
    of_orders = ["sum(o.amount) AS s", "max(o.at) AS m", "count(DISTINCT o.ratio) AS c", "avg(o.amount) * 2 AS a"]
    functions = of_orders if orders else ["min(p.name) AS m", "max(p.since) AS s"]
    made = draw(st.lists(st.sampled_from(functions), unique=True))
    keys = [f"{key} AS k", *(["o.person AS who"] if orders and people and draw(st.booleans()) else [])]
    having = draw(st.sampled_from(["", " HAVING count(*) > 1"]))
    listed = ", ".join([*keys, "count(*) AS n", *made])
    return f"SELECT {listed} FROM {tables} GROUP BY {', '.join(str(at + 1) for at in range(len(keys)))}{having}"


def newest(bench: SparkBench) -> Publication:
    return bench.journal.store.publications()[-1]


def rows(bench: SparkBench, sql: str) -> Counter[str]:
    return Counter(map(str, bench.session.sql(sql).toArrow().to_pylist()))


def agree(bench: SparkBench, listed: dict[str, str]) -> None:
    """Compare what the newest publication has of derived tables with their queries over its other tables."""
    record = newest(bench)
    at = {
        name: f"(SELECT * FROM lake.{name} VERSION AS OF {snapshot_of(found.main.content)})"
        for name, found in record.tables.items()
        if found.main is not None
    }
    for name, sql in listed.items():
        table = record.tables[f"d.{name}"]
        assert table.held is None, (name, table.held)
        assert table.shown
        text = sql.format(o=at[ORDERS.table_id], p=at[PEOPLE.table_id]).replace("d.q0", at.get("d.q0", ""))
        assert rows(bench, f"SELECT * FROM lake.d.{name}") == rows(bench, text), (name, sql)


def started(bench: SparkBench, listed: dict[str, str]) -> LakeStart:
    tables = [
        DerivedTable(name=f"d.{name}", sql=sql.format(o=ORDERS.table_id, p=PEOPLE.table_id), refresh=KEYS)
        for name, sql in listed.items()
    ]
    start = LakeStart(bench.journal.store, bench.sink(), derived=tables)
    bench._open.append(start)
    return start


def first_rows(bench: SparkBench) -> None:
    journal = bench.journal
    journal.table(ORDERS)
    journal.table(PEOPLE)
    made = [{"id": n, "person": n % 5, "amount": Decimal(n), "at": None, "ratio": 0.5} for n in range(20)]
    journal.chunk(ORDERS, made)
    journal.chunk(PEOPLE, [{"id": n, "name": "ab"[n % 2], "city": "xyz"[n % 3], "since": None} for n in range(5)])
    journal.checkpoint()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@settings(max_examples=20 if FULL else 2, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(queries(), min_size=2, max_size=2, unique=True), data=st.data())
def test_by_keys_a_table_is_what_it_is_in_full(spark: Any, folder: Path, drawn: list[str], data: st.DataObject) -> None:
    """Random queries of the class over random changes, and one over another, across compactions and starts."""
    bench = SparkBench(spark, folder / str(len(list(folder.iterdir()))))
    listed = {"q0": BY_CITY, "over": OVER, **{f"r{at}": sql for at, sql in enumerate(drawn)}}
    try:
        first_rows(bench)
        start = bench.apply(started(bench, listed))
        for number in range(2):
            bench.journal.change(ORDERS, *data.draw(changes(orders, 6)), ("+U", {"id": 40 + number}))
            bench.journal.change(PEOPLE, *data.draw(changes(people, 2)), ("-D", {"id": 6}))
            bench.journal.checkpoint()
            bench.apply(start)
            agree(bench, listed)
            for table in (ORDERS, PEOPLE):
                start.upkeep._compact_table(table.table_id, start.progress.work[table.table_id], least=2)
            start = started(bench, listed)
    finally:
        bench.close()


def test_what_is_computed_how_much_of_it_and_why_all(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Queries of another class are refused. 2. One change touches one group, and a change of others than the query
    needs none. 3. Merged files, of the tables and of the derived one, are no change. 4. After a TRUNCATE, and if more
    has changed than one process takes, all of it is computed.
    """
    first_rows(bench)
    start = bench.apply(started(bench, {"q0": BY_CITY} | {name: sql for name, (sql, _) in BAD.items()}))
    for name, (_, words) in BAD.items():
        held = newest(bench).tables[f"d.{name}"].held
        assert held is not None, name
        assert words in held.cause.sentence, (name, held)
        assert "refresh: keys" in held.cause.sentence, (name, held)
    start = started(bench, {"q0": BY_CITY})

    def changed(table: Any, *some: tuple[str, Row | None]) -> tuple[int | None, str]:
        bench.journal.change(table, *some)
        bench.journal.checkpoint()
        bench.apply(start)
        agree(bench, {"q0": BY_CITY})
        status = start.derived.status["d.q0"]
        return status.computed, status.in_full

    def order(number: int, person: int) -> tuple[str, Row | None]:
        return "+U", {"id": number, "person": person, "amount": Decimal(7), "at": None, "ratio": 1.0}

    assert changed(ORDERS, order(0, 0)) == (1, "")
    assert changed(ORDERS, order(0, 1)) == (2, "")
    content = newest(bench).tables["d.q0"].work
    assert changed(PEOPLE, ("+U", {"id": 9, "name": "c", "city": "w", "since": None})) == (0, "")
    assert newest(bench).tables["d.q0"].work == content
    monkeypatch.setattr(keyed, "MERGED_FILES", 3)
    assert changed(ORDERS, order(1, 1)) == (1, "")
    table = start.sink.tables.get("d.q0")
    work = newest(bench).tables["d.q0"].work
    assert work is not None
    assert len(table.contents(snapshot_of(work.content)).files) == 1
    start.upkeep._compact_table(ORDERS.table_id, start.progress.work[ORDERS.table_id], least=2)
    bench.journal.checkpoint()
    bench.apply(start)
    assert newest(bench).tables["d.q0"].work == work
    monkeypatch.setattr(keyed, "MOST_ROWS", 3)
    assert changed(ORDERS, *(order(number, 1) for number in range(4))) == (3, "more than 3 rows of shop.o have changed")
    assert changed(PEOPLE, ("t", None), ("+I", {"id": 1, "name": "c", "city": "w", "since": None})) == (
        1,
        "shop.p was emptied or read again",
    )


def test_what_others_did_to_the_lake_and_what_is_bounded(bench: SparkBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A column may have the name of the changes' own; only the changes are broadcast, and of equal rows no more are
    found than leave. 2. Files that another user rewrote are gone on from. 3. Where one set the table to an older
    snapshot, and that was accepted, all of it is computed. 4. So it is if a file is lost that a merge meets behind the
    first commit, and 5. if more bytes have changed than are held.
    """
    plans: list[str] = []
    found: list[int] = []
    by_groups, places = keyed.Keyed._by_groups, keyed.Keyed._places

    def planned(self: keyed.Keyed, every: Any, *others: Any) -> Any:
        plans.append(str(every._jdf.queryExecution().analyzed().toString()))
        return by_groups(self, every, *others)

    def placed(self: keyed.Keyed, *others: Any) -> Any:
        found.append(places(self, *others).num_rows)
        return places(self, *others)

    def changed(*some: tuple[str, Row | None], names: str = "rgj") -> list[str]:
        journal.change(WEIGHED, *some)
        journal.checkpoint()
        bench.apply(start)
        record = newest(bench)
        for name in names:
            assert record.tables[f"d.{name}"].held is None, name
            text = OF_WEIGHED[name].replace("shop.w", "lake.shop.w")
            assert rows(bench, f"SELECT * FROM lake.d.{name}") == rows(bench, text), name
        return [start.derived.status[f"d.{name}"].in_full for name in names]

    def row(number: int, weight: int) -> tuple[str, Row | None]:
        return "+U", {"id": number, "_weight": weight, "grp": number % 3}

    def snapshot() -> int:
        work = newest(bench).tables["d.r"].work
        assert work is not None
        return snapshot_of(work.content)

    journal = bench.journal
    journal.table(WEIGHED)
    journal.chunk(WEIGHED, [{"id": n, "_weight": 10, "grp": n % 2} for n in range(6)])
    journal.checkpoint()
    start = bench.apply(started(bench, OF_WEIGHED))
    first = snapshot()
    monkeypatch.setattr(keyed.Keyed, "_by_groups", planned)
    monkeypatch.setattr(keyed.Keyed, "_places", placed)
    assert changed(row(9, 50), ("-D", {"id": 2, "_weight": 10, "grp": 0})) == ["", "", ""]
    assert found[0] == 1
    assert [plan.count("strategy=broadcast") for plan in plans] == [0, 3]
    monkeypatch.undo()
    start = started(bench, {"r": OF_WEIGHED["r"]})
    bench.session.sql("CALL lake.system.rewrite_data_files(table => 'd.r', options => map('rewrite-all', 'true'))")
    assert changed(row(10, 7), names="r") == [""]
    bench.session.sql(f"CALL lake.system.rollback_to_snapshot('d.r', {first})")
    changed(row(11, 8), names="")
    start.sink.choose("d.r", "accept", start.derived.foreign["d.r"].seen)
    start.derived.retry("d.r")
    assert changed(row(12, 9), names="r") == ["another user chose what the lake shows of it"]
    assert changed(row(13, 9), names="r") == [""]
    monkeypatch.setattr(keyed, "MERGED_FILES", 3)
    lost = next(iter(start.sink.tables.get("d.r").contents(snapshot()).files))
    Path(lost.removeprefix("file:")).unlink()
    (why,) = changed(row(14, 1), names="r")
    assert lost.rpartition("/")[2] in why
    monkeypatch.setattr(keyed, "MOST_BYTES", 8)
    assert changed(row(15, 2), names="r") == ["more than 8 bytes of shop.w have changed"]
