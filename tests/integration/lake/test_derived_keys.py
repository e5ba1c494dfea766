"""Derived tables with `refresh: keys` on a real Spark and a real lake: after each batch of changes they are the query.

The oracle is the same query over the tables' versions, in Spark's own words.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cutline.common.derived import KEYS, DerivedTable
from cutline.common.store.records import Publication
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.spark_bench import LakeStart, SparkBench, schema

ORDERS = schema("shop.o", ("id",), id="bigint", person="int", amount="decimal(10,2)", at="datetime(6)", ratio="double")
PEOPLE = schema("shop.p", ("id",), id="int", name="varchar(20)", city="varchar(20)", since="timestamp(6)")
QUERIES = {
    "groups": "SELECT p.city, sum(o.amount) AS total, count(*) AS n, max(o.at) AS last, min(abs(o.ratio)) AS least"
    " FROM {o} AS o JOIN {p} AS p ON o.person = p.id GROUP BY p.city",
    "rows": "SELECT o.person, p.name, o.ratio, o.amount * 2 AS twice, p.since FROM {o} AS o, {p} AS p"
    " WHERE o.person = p.id AND o.amount > 1",
    "single": "SELECT person % 3 AS rest, avg(amount) AS mean, count(DISTINCT ratio) AS ratios FROM {o}"
    " WHERE at IS NOT NULL GROUP BY 1 HAVING count(*) > 1",
    "both": "SELECT q.name, o.person AS who, o.at, count(o.ratio) + 1 AS n FROM"
    " (SELECT upper(name) AS name, id AS number FROM {p} WHERE city <> 'x') AS q"
    " JOIN {o} AS o ON o.person <=> q.number GROUP BY q.name, o.person, o.at",
    "pairs": "WITH a AS (SELECT * FROM {p}) SELECT a.city, b.name AS other, count(*) AS n FROM a"
    " JOIN {p} AS b ON a.city = b.city GROUP BY a.city, b.name",
    "over": "SELECT n, count(*) AS cities FROM d.groups GROUP BY n",
    "some": "SELECT city FROM {p}",
}


def o(number: int, person: int | None, amount: Any, at: Any = None, ratio: float | None = None) -> dict[str, Any]:
    return {"id": number, "person": person, "amount": amount, "at": at, "ratio": ratio}


def newest(bench: SparkBench) -> Publication:
    return bench.journal.store.publications()[-1]


def rows(bench: SparkBench, sql: str) -> Counter[str]:
    return Counter(map(str, bench.session.sql(sql).toArrow().to_pylist()))


def agree(bench: SparkBench, queries: dict[str, str]) -> None:
    """Compare what the newest publication has of derived tables with their queries over its other tables."""
    record = newest(bench)
    at = {
        name: f"(SELECT * FROM lake.{name} VERSION AS OF {snapshot_of(found.main.content)})"
        for name, found in record.tables.items()
        if found.main is not None
    }
    for name, sql in queries.items():
        table = record.tables[f"d.{name}"]
        assert table.held is None, (name, table.held)
        assert table.shown
        text = sql.format(o=at[ORDERS.table_id], p=at[PEOPLE.table_id])
        text = text.replace("d.groups", at.get("d.groups", ""))
        assert rows(bench, f"SELECT * FROM lake.d.{name}") == rows(bench, text), name


def start_of(bench: SparkBench, queries: dict[str, str]) -> LakeStart:
    listed = [
        DerivedTable(name=f"d.{name}", sql=sql.format(o=ORDERS.table_id, p=PEOPLE.table_id), refresh=KEYS)
        for name, sql in queries.items()
    ]
    start = LakeStart(bench.journal.store, bench.sink(), derived=listed)
    bench._open.append(start)
    return start


def test_the_class_of_queries_is_computed_of_the_changes(bench: SparkBench) -> None:
    import datetime as dt
    import random
    from decimal import Decimal

    luck = random.Random(1)
    journal = bench.journal
    journal.table(ORDERS)
    journal.table(PEOPLE)

    def some_o(number: int) -> dict[str, Any]:
        at = luck.choice([None, dt.datetime(2020, 1, luck.randrange(1, 4), 5, 6, 7, 8)])
        return o(
            number, luck.choice([None, *range(8)]), luck.choice([None, Decimal(luck.randrange(500)) / 100]), at,
            luck.choice([None, 0.0, -0.0, 1.5, float("nan")]),
        )  # fmt: skip

    def some_p(number: int) -> dict[str, Any]:
        return {
            "id": number,
            "name": luck.choice([None, "a", "A", "b"]),
            "city": luck.choice([None, "x", "y", "z"]),
            "since": dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        }

    journal.chunk(ORDERS, [some_o(number) for number in range(40)])
    journal.chunk(PEOPLE, [some_p(number) for number in range(8)])
    journal.checkpoint()
    start = bench.apply(start_of(bench, QUERIES))
    agree(bench, QUERIES)
    for _ in range(2):
        journal.change(ORDERS, *((luck.choice(["+U", "-D"]), some_o(luck.randrange(60))) for _ in range(5)))
        journal.change(PEOPLE, *((luck.choice(["+U", "-D"]), some_p(luck.randrange(10))) for _ in range(2)))
        journal.checkpoint()
        bench.apply(start)
        print({name: (each.computed, each.rows, each.in_full, each.seconds) for name, each in start.derived.status.items()})
        agree(bench, QUERIES)
