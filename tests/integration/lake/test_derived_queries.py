"""What the query of a derived table may say, and what becomes of its lake table, on a real Spark and a real lake.

The oracle is the same query over the tables' versions, in Spark's own words.
"""

from __future__ import annotations

from cutline.common.config.table_options import TableOptions
from cutline.common.derived import DerivedTable
from cutline.common.store.records import Publication
from cutline.spark_writer.sinks.iceberg.works import snapshot_of
from tests.support.spark_bench import LakeStart, SparkBench, T, U, order, stock

GOOD = {
    "joined": "SELECT o.id, s.amount * 2 AS twice FROM {T} AS o JOIN {U} s ON o.id = s.item WHERE s.amount > 1",
    "grouped": "SELECT amount % 2 AS odd, count(*) AS n, max(place) AS last FROM {U} GROUP BY 1 HAVING count(*) > 0",
    "exists": "SELECT id FROM {T} AS t WHERE EXISTS (SELECT 1 FROM {U} AS u WHERE u.item = t.id AND u.amount > 2)",
    "scalar": "SELECT id, (SELECT max(amount) FROM {U}) AS most FROM {T}",
    "named": "WITH a AS (SELECT id FROM {T}), b AS (WITH a AS (SELECT 7 AS id) SELECT * FROM a) SELECT id FROM a"
    " UNION ALL SELECT id FROM b",
    "itself": "SELECT a.id AS one, b.id AS two FROM {T} AS a, {T} AS b WHERE a.id < b.id",
    "windowed": "SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM {T}",
    "types": "SELECT id, price, note, CAST(id AS SMALLINT) AS small, CAST(id AS DOUBLE) AS d, CAST(id AS FLOAT) AS f,"
    " id > 2 AS b, DATE'2020-01-02' AS day, TIMESTAMP'2020-01-02 03:04:05' AS at, TIMESTAMP_NTZ'2020-01-02 03:04:05'"
    " AS ntz, X'00ff' AS bytes, CAST(id AS DECIMAL(38, 9)) AS big FROM {T}",
    "none": "SELECT id FROM {T} WHERE id < 0",
    "all_of": "TABLE {T}",
    "constant": "SELECT 1 AS one",
    "values": "SELECT a.n, r.id AS m, t.id FROM VALUES (1), (2) AS a(n), range(2) AS r, {T} AS t WHERE a.n < t.id",
    "counted": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
    "beside": "SELECT t.id, x.item FROM {T} AS t, LATERAL (SELECT item FROM {U} AS u WHERE u.item = t.id) AS x",
    "exploded": "SELECT id, e FROM {T} LATERAL VIEW explode(array(id, 2)) AS e",
}
BAD = {
    "now": ("SELECT id, now() AS at FROM {T}", "uses now"),
    "drawn": ("SELECT id FROM {T} WHERE id IN (SELECT item FROM {U} WHERE rand() > 0.5)", "uses rand"),
    "sampled": ("SELECT id FROM {T} TABLESAMPLE (50 PERCENT)", "uses tablesample"),
    "who": ("SELECT id, current_user() AS who FROM {T}", "uses current_user"),
    "file": ("SELECT id, _file FROM {T}", "own columns, as _file"),
    "reflected": ("SELECT reflect('java.lang.System', 'getenv', 'HOME') AS home", "uses reflect"),
    "travels": ("SELECT id FROM {T} VERSION AS OF 1", "names a version of a table"),
    "path": ("SELECT * FROM parquet.`/etc/passwd`", "is no table of this pipeline"),
    "called": ("SELECT * FROM IDENTIFIER('lake.{U}')", "has IDENTIFIER"),
    "called_file": ("SELECT id FROM {T} WHERE id IN (SELECT 1 FROM IDENTIFIER('csv.`/etc/passwd`'))", "has IDENTIFIER"),
    "executed": ("EXECUTE IMMEDIATE 'SELECT * FROM lake.{U}'", "is refused by Spark"),
    "dropped": ("EXECUTE IMMEDIATE 'DROP TABLE lake.{T}'", "is refused by Spark"),
    "script": ("BEGIN SELECT 1 AS one; END", "is refused by Spark"),
    "inserts": ("INSERT INTO lake.{T} SELECT * FROM {T}", "is refused by Spark"),
    "from_into": ("FROM {T} INSERT INTO lake.{T} SELECT *", "is refused by Spark"),
    "calls": ("CALL lake.system.expire_snapshots('{T}')", "is refused by Spark"),
    "sets": ("SET spark.sql.ansi.enabled = false", "is refused by Spark"),
    "options": ("SELECT * FROM {T} WITH (`snapshot-id` = 1)", "has options of a table"),
    "own": ("SELECT * FROM _cutline.publications", "is no table of this pipeline"),
    "short": ("SELECT * FROM orders", "which is not a table as db.table"),
    "long": ("SELECT * FROM lake.{T}", "which is not a table as db.table"),
    "drops": ("DROP TABLE lake.{T}", "is refused by Spark"),
    "two": ("SELECT 1 AS a; SELECT 2 AS b", "is refused by Spark"),
    "column": ("SELECT nothing FROM {T}", "`nothing` cannot be resolved"),
    "mismatch": ("SELECT id + note > DATE'2020-01-01' AS x FROM {T}", "is refused by Spark"),
    "twice": ("SELECT id, id AS ID FROM {T}", "has two columns ID"),
    "array": ("SELECT array(id) AS ids FROM {T}", "is of the type array<bigint>"),
    "itself_": ("SELECT * FROM d.itself_", "reads itself"),
}


def started(bench: SparkBench, queries: dict[str, str]) -> LakeStart:
    """A start with these derived tables, that has published two tables."""
    journal = bench.journal
    journal.table(T)
    journal.table(U)
    journal.chunk(T, [order(number, None if number == 3 else f"n{number}") for number in range(6)])
    journal.chunk(U, [stock(number, number) for number in range(6)])
    journal.checkpoint(kept=True)
    names = {"T": T.table_id, "U": U.table_id}
    listed = [DerivedTable(name=f"d.{name}", sql=sql.format(**names)) for name, sql in queries.items()]
    start = LakeStart(journal.store, bench.sink(), derived=listed)
    bench._open.append(start)
    return bench.apply(start)


def newest(bench: SparkBench) -> Publication:
    return bench.journal.store.publications()[-1]


def rows(bench: SparkBench, sql: str) -> list[str]:
    return sorted(map(str, bench.session.sql(sql).toArrow().to_pylist()))


def agree(bench: SparkBench, queries: dict[str, str]) -> None:
    """Compare what the newest publication shows of derived tables with their queries over its other tables."""
    record = newest(bench)
    at = {
        key: f"(SELECT * FROM lake.{table} VERSION AS OF {snapshot_of(found.content)})"
        for key, table in (("T", T.table_id), ("U", U.table_id))
        if (found := record.tables[table].main) is not None
    }
    for name, sql in queries.items():
        table = record.tables[f"d.{name}"]
        assert table.held is None, (name, table.held)
        assert table.shown
        wanted = rows(bench, sql.format(**at).replace("TABLE (", "SELECT * FROM ("))
        assert rows(bench, f"SELECT * FROM lake.d.{name}") == wanted, name


def test_a_query_means_what_spark_makes_of_it_and_one_that_depends_on_more_than_tables_is_refused(
    bench: SparkBench
) -> None:
    bench.options = TableOptions(tables="*.*", properties={"commit.retry.num-retries": "9"})
    start = started(bench, GOOD | {name: sql for name, (sql, _) in BAD.items()})
    agree(bench, GOOD)
    tables = newest(bench).tables
    for name, (_, words) in BAD.items():
        held = tables[f"d.{name}"].held
        assert held is not None, name
        assert held.cause.code == "derived", (name, held)
        assert words in held.cause.sentence, (name, held)
        assert "\n" not in held.cause.sentence
        assert not start.sink._lake.exists("d", name), name
    assert "'9'" in str(rows(bench, "SHOW TBLPROPERTIES lake.d.joined ('commit.retry.num-retries')"))
    assert rows(bench, f"SELECT * FROM lake.d.joined VERSION AS OF 'checkpoint_{newest(bench).n}'")
    bench.journal.change(T, ("+U", order(1, "changed", "3.00")), ("-D", order(2)), ("+I", order(9)))
    bench.journal.change(U, ("+U", stock(5, 50)))
    bench.journal.checkpoint()
    bench.apply(start)
    agree(bench, GOOD)


def test_commits_of_others_and_lost_lake_tables(bench: SparkBench) -> None:
    """1. Another user commits to a derived table: the next content waits for a choice, and `overwrite` brings it.
    2. A derived table is dropped: it is made again. 3. One that another user made is left alone.
    """
    queries = {name: GOOD[name] for name in ("joined", "grouped")}
    bench.session.sql("CREATE NAMESPACE lake.d")
    bench.session.sql("CREATE TABLE lake.d.theirs (id INT) USING iceberg")
    start = started(bench, queries | {"theirs": GOOD["none"]})
    agree(bench, queries)
    held = newest(bench).tables["d.theirs"].held
    assert held is not None
    assert (held.cause.code, "was not made by Cutline" in held.cause.sentence) == ("lake", True)

    def changed(amount: int) -> None:
        bench.journal.change(U, ("+U", stock(4, amount)))
        bench.journal.checkpoint()
        bench.apply(start)

    bench.session.sql("DELETE FROM lake.d.joined WHERE id = 4")
    changed(40)
    table = newest(bench).tables["d.joined"]
    assert table.held is not None
    assert table.held.cause.code == "foreign_commit"
    assert not table.shown
    assert newest(bench).tables["d.grouped"].shown
    start.choose("d.joined", "overwrite", start.derived.foreign["d.joined"].seen)
    bench.journal.checkpoint()
    bench.apply(start)
    agree(bench, queries)
    assert start.derived.held.keys() == {"d.theirs"}
    bench.session.sql("DROP TABLE lake.d.grouped")
    changed(41)
    agree(bench, queries)


def test_a_commit_of_others_between_publication_and_show_awaits_its_choice_across_a_start(bench: SparkBench) -> None:
    queries = {"joined": GOOD["joined"]}
    start = started(bench, queries)
    theirs = ["DELETE FROM lake.d.joined WHERE id = 4"]

    def reached(step: str) -> None:
        if step == "published" and theirs:
            bench.session.sql(theirs.pop())

    def changed(amount: int) -> None:
        bench.journal.change(U, ("+U", stock(4, amount)))
        bench.journal.checkpoint()
        bench.apply(start)

    start._reached = reached
    changed(40)
    listed = [DerivedTable(name="d.joined", sql=GOOD["joined"].format(T=T.table_id, U=U.table_id))]
    for again in (False, True):
        if again:
            start = LakeStart(bench.journal.store, bench.sink(), derived=listed)
            bench._open.append(start)
        bench.journal.checkpoint(kept=True)
        bench.apply(start)
        held = newest(bench).tables["d.joined"].held
        assert held is not None, again
        assert held.cause.code == "foreign_commit"
    start.choose("d.joined", "overwrite", start.derived.foreign["d.joined"].seen)
    changed(41)
    agree(bench, queries)
