"""Derived tables on the whole way: at each publication they are the query over all tables as that publication has them,
under changes, across a start that ends before its publication, and when the definition changes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutline.common.derived import DerivedTable
from cutline.common.errors import Unavailable
from cutline.common.store.records import Publication, PublishedTable
from cutline.common.store.store import PipelineStore
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.sink import IcebergSink
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.databases import Database, MariaDB
from tests.support.hammer import Hammer
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, Pipeline
from tests.support.operator import done, redefined
from tests.support.pages import ROOT, blocks_of

HERE = "tests/integration/end_to_end/test_derived.py"

REVENUE = (
    "SELECT p.name, sum(o.amount) AS total, count(*) AS orders FROM {orders} {at_orders} AS o"
    " JOIN {people} {at_people} AS p ON o.person = p.id GROUP BY p.name"
)
BY_COUNT = (
    "WITH many AS (SELECT * FROM {revenue} {at_revenue} AS r WHERE orders > 1) SELECT m.name, m.total,"
    " (SELECT count(*) FROM {people} {at_people} AS p) AS people FROM many AS m"
)
RATIO = "SELECT id, amount DIV (amount - 13) AS ratio FROM {orders} {at_orders}"


class Shop:
    """The tables of a test, and the derived ones: each a query in which `{orders}` is a name and `{at_orders}` what
    follows it."""

    def __init__(self, schema: str) -> None:
        self.names = {name: f"{schema}.{name}" for name in ("orders", "people", "revenue", "best", "ratio")}
        self.captured = [self.names["orders"], self.names["people"]]
        self.queries = {"revenue": REVENUE, "best": BY_COUNT, "ratio": RATIO}
        self.known: dict[str, str] = {}

    def sql(self, which: str) -> str:
        """A query as the definition has it; from now on it is known."""
        query = self.queries[which]
        text = query.format(**self.names, **{f"at_{name}": "" for name in self.names})
        self.known[DerivedTable(name=self.names[which], sql=text).query] = query
        return text

    def at(self, query: str, snapshots: dict[str, int]) -> str:
        """A known query over the tables at these snapshots."""
        at = {f"at_{name}": f"VERSION AS OF {snapshots.get(table)}" for name, table in self.names.items()}
        return self.known[query].format(**{name: f"lake.{table}" for name, table in self.names.items()}, **at)

    def listed(self, *which: str) -> list[dict[str, Any]]:
        refresh = {"revenue": "keys"}
        return [
            {"name": self.names[each], "sql": self.sql(each), "refresh": refresh.get(each, "full")} for each in which
        ]


def changing(shop: Shop) -> Callable[[Any, random.Random, int], None]:
    def change(cursor: Any, luck: random.Random, number: int) -> None:
        key = luck.randrange(60)
        if luck.random() < 0.2:
            cursor.execute(f"DELETE FROM {shop.names['orders']} WHERE id = {key}")
        elif luck.random() < 0.2:
            cursor.execute(f"REPLACE INTO {shop.names['people']} VALUES ({key % 9}, 'n{luck.randrange(7)}')")
        else:
            values = f"({key}, {key % 11}, {luck.randrange(14, 500)})"
            cursor.execute(f"REPLACE INTO {shop.names['orders']} VALUES {values}")

    return change


def newest(pipeline: Pipeline) -> Publication:
    record = pipeline.store.publication(max(pipeline.store.publication_numbers()))
    assert record is not None
    return record


def derived(pipeline: Pipeline, table: str) -> PublishedTable | None:
    return newest(pipeline).tables.get(table) if pipeline.store.publication_numbers() else None


def shows(pipeline: Pipeline, *tables: str) -> bool:
    return all((found := derived(pipeline, table)) is not None and found.shown for table in tables)


def cause(pipeline: Pipeline, table: str) -> str:
    found = derived(pipeline, table)
    return "" if found is None or found.held is None else str(found.held.cause)


def rows(reader: Any, sql: str) -> list[str]:
    return sorted(json.dumps(row, default=str) for row in reader.sql(sql).toArrow().to_pylist())


def compared(shop: Shop, pipeline: Pipeline, reader: Any, seen: set[str]) -> int:
    """Compare what publications show that was not `seen` with the queries over their tables; return how often."""
    count = 0
    for record in pipeline.store.publications():
        snapshots = {name: snapshot_of(each.main.content) for name, each in record.tables.items() if each.main}
        for name, table in record.tables.items():
            if table.derived is None or not table.shown:
                continue
            found = f"SELECT * FROM lake.{name} VERSION AS OF {snapshots[name]}"
            wanted = shop.at(table.derived.query, snapshots)
            if f"{found}; {wanted}" not in seen:
                assert rows(reader, found) == rows(reader, wanted), (record.n, name)
                seen.add(f"{found}; {wanted}")
                count += 1
    return count


def test_each_publication_shows_the_queries_over_its_own_tables(
    mariadb: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """1. A derived table and one over it are computed while their tables change; a third fails on a row, alone.
    2. A start computes them and ends before its publication, as by a kill; the next one goes on.
    3. The row is corrected, and the third comes back. A query changes, also in its columns; one is removed.
    4. Without changes nothing is computed. Circles and unknown columns are told, and harm no other table.
    """
    shop, seen = Shop(fresh_database(mariadb)), set[str]()
    orders, people = shop.captured
    mariadb.execute(
        f"CREATE TABLE {orders} (id INT PRIMARY KEY, person INT, amount INT)",
        f"CREATE TABLE {people} (id INT PRIMARY KEY, name VARCHAR(40))",
        f"INSERT INTO {orders} VALUES " + ", ".join(f"({n}, {n % 11}, {n + 14})" for n in range(40)),
        f"INSERT INTO {people} VALUES " + ", ".join(f"({n}, 'n{n % 5}')" for n in range(9)),
        f"INSERT INTO {orders} VALUES (1000, 1, 13)",
    )
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        listed = json.dumps(shop.listed("best", "revenue", "ratio"))
        pipeline = mesh.pipeline("lake", mariadb, shop.captured, more=f"derived: {listed}\n")
        reader = session.for_pipeline(spark, (pipeline.store.definition() or {})["sink"])
        revenue, best, ratio = (shop.names[each] for each in ("revenue", "best", "ratio"))
        with writing(mesh), Hammer(mariadb, changing(shop), threads=1, pause_seconds=0.02):
            pipeline.until(lambda: shows(pipeline, revenue, best), "both to be computed", 180.0)
            pipeline.until(lambda: "DIVIDE_BY_ZERO" in cause(pipeline, ratio), "the third's cause")
            pipeline.goes_on(2)
            refuse = {"left": 1}
            publish = PipelineStore.publish

            def refused(store: PipelineStore, record: Publication) -> bool:
                if refuse["left"]:
                    refuse["left"] -= 1
                    raise Unavailable("the store does not answer")
                return publish(store, record)

            monkeypatch.setattr(IcebergSink, "abandon", lambda *_: None)  # a kill removes nothing
            monkeypatch.setattr(PipelineStore, "publish", refused)
            w = newest(pipeline).w
            pipeline.until(lambda: newest(pipeline).w > w and shows(pipeline, revenue, best), "the next start")
            mariadb.execute(f"UPDATE {orders} SET amount = 20 WHERE id = 1000")
            pipeline.until(lambda: shows(pipeline, ratio), "the third to come back", 180.0)
        assert compared(shop, pipeline, reader, seen) >= 6
        # In full each commit but the first removes the files of the one before.
        adding = f"SELECT * FROM lake.{revenue}.snapshots WHERE summary['deleted-data-files'] IS NULL"
        assert len(rows(reader, adding)) >= 2
        shop.queries["revenue"] = REVENUE.replace("count(*) AS orders", "count(*) AS orders, max(o.amount) AS most")
        with writing(mesh):
            version = newest(pipeline).tables[revenue]
            done(pipeline, "define", **redefined(pipeline, derived=shop.listed("best", "revenue")))
            pipeline.until(lambda: derived(pipeline, revenue) != version, "the changed query")
            pipeline.until(lambda: derived(pipeline, ratio) is None, "the third to be removed")
            savepoint(pipeline, "kept")
            contents = [newest(pipeline).tables[each].main for each in (revenue, best)]
            pipeline.goes_on(2)
            assert [newest(pipeline).tables[each].main for each in (revenue, best)] == contents
            compared(shop, pipeline, reader, seen)
            assert "most" in reader.sql(f"SELECT * FROM lake.{revenue}").columns
            listing = shop.listed("best", "revenue")
            listing[1]["sql"] = f"SELECT name AS total, 2 AS orders, name FROM {best}"
            listing.append({"name": ratio, "sql": f"SELECT nothing FROM {orders}"})
            done(pipeline, "define", **redefined(pipeline, derived=listing))
            pipeline.until(lambda: "reads itself" in cause(pipeline, revenue), "the circle")
            assert "reads itself" in cause(pipeline, best)
            assert "nothing" in cause(pipeline, ratio)
            pipeline.goes_on(1)


def test_a_query_without_end_holds_up_the_publication_only_until_it_is_taken_away(
    mariadb: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    shop = Shop(fresh_database(mariadb))
    (orders, _), endless = shop.captured, shop.names["revenue"]
    mariadb.execute(f"CREATE TABLE {orders} (id INT PRIMARY KEY)", f"INSERT INTO {orders} VALUES (1)")
    sql = f"SELECT count(*) AS n FROM range(10000000) AS a, range(10000000) AS b, range(100000) AS c, {orders} AS d"
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("lake", mariadb, [orders])
        with writing(mesh):
            pipeline.until(lambda: bool(pipeline.store.publication_numbers()), "a publication")
            done(pipeline, "define", **redefined(pipeline, derived=[{"name": endless, "sql": sql, "refresh": "full"}]))
            pipeline.until(lambda: pipeline.store.newest_claim() > newest(pipeline).w, "the start that has the query")
            jobs, n = spark.sparkContext.statusTracker(), newest(pipeline).n
            pipeline.until(lambda: bool(jobs.getActiveJobsIds()), "the job of the query")
            done(pipeline, "define", **redefined(pipeline, derived=[]))
            pipeline.until(lambda: newest(pipeline).n > n, "the publication without it", 60.0)
            assert endless not in newest(pipeline).tables


def test_the_examples_of_the_page_give_what_it_says(
    mariadb: MariaDB, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path
) -> None:
    schema = fresh_database(mariadb)
    blocks = blocks_of(HERE)
    made, changed = (re.sub(r" *--.*", "", block.text) for block in blocks if block.language == "sql")
    listed, more = (block.text.replace("shop.", f"{schema}.") for block in blocks if block.language == "yaml")
    entries = listed + more.removeprefix("derived:\n")
    pages = re.findall(r"^\| (?:.+\n)+", (ROOT / "docs/derived.md").read_text(encoding="utf-8"), re.MULTILINE)
    wanted = [[[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()] for text in pages]

    def shown(warehouse: str, table: str) -> list[list[str]]:
        found = lake_table(warehouse, f"{schema}.{table}").scan().to_arrow()
        found = found.sort_by(found.column_names[0])
        return [found.column_names, *([str(value) for value in row.values()] for row in found.to_pylist())]

    def agree(warehouse: str, *tables: list[list[str]]) -> None:
        for name, table in zip(("revenue", "best", "spent"), tables, strict=False):
            assert shown(warehouse, name) == [table[0], *table[2:]]

    mariadb.execute(*filter(str.strip, made.split(";")), database=schema)
    names = [f"{schema}.people", f"{schema}.orders"]
    with Mesh(tmp_path, readers=1, writers=1) as mesh, writing(mesh):
        pipeline = mesh.pipeline("lake", mariadb, names, more=entries)
        warehouse = (pipeline.store.definition() or {})["sink"]["warehouse"]
        pipeline.until(lambda: shows(pipeline, f"{schema}.revenue", f"{schema}.best"), "both to be computed", 180.0)
        agree(warehouse, *wanted[:2])
        mariadb.execute(*filter(str.strip, changed.split(";")), database=schema)
        pipeline.catches_up(*names)
        savepoint(pipeline, "later")
        agree(warehouse, *wanted[2:5])
