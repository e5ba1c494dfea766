"""What a deleted pipeline left in the lake, and the next pipeline of its name."""

from __future__ import annotations

import pytest

from cutline.common.errors import ConfigError
from cutline.spark_writer.sinks.iceberg.owner import EARLIER, ID
from cutline.spark_writer.sinks.iceberg.publications import Publications
from cutline.spark_writer.sinks.iceberg.purging import _aside, purge
from tests.support.spark_bench import EVERYWHERE, Journal, SparkBench, T, U, schema

pytestmark = EVERYWHERE
ORDERS = [{"id": number, "note": f"old {number}", "price": None} for number in range(4)]
NEW = [{"id": number, "note": f"new {number}", "price": None} for number in range(2)]
PUBLICATIONS = "lake._cutline.publications"


def lived(bench: SparkBench, starts: int = 3) -> str:
    """A pipeline publishes, by several starts of its Spark writer, with a savepoint; then it is deleted without purge.
    Returns the id of its life.
    """
    journal = bench.journal
    journal.table(T)
    journal.chunk(T, ORDERS)
    journal.checkpoint(kept=True)
    for number in range(starts):
        journal.change(T, ("+U", {"id": 1, "note": f"old 1, changed {number}", "price": None}))
        journal.checkpoint()
        bench.apply()
    life = journal.store.id
    journal.store.remove_files()
    journal.store.end()
    return life


def second(bench: SparkBench) -> Journal:
    """The next pipeline of that name, whose journal begins anew."""
    bench.journal = bench.journal.anew()
    return bench.journal


def notes(bench: SparkBench, version: str | None = None) -> list[str]:
    """The notes that the lake's table shows, in order."""
    return sorted(str(row["note"]) for row in bench.rows(T.table_id, version)[1])


def test_the_next_pipeline_of_a_name_is_refused_what_the_last_one_left_at_once_and_with_the_choices(
    bench: SparkBench,
) -> None:
    life, before = lived(bench), notes(bench)
    journal = second(bench)
    assert journal.store.id != life
    journal.table(T)
    journal.chunk(T, NEW)
    journal.checkpoint()
    with pytest.raises(ConfigError, match=rf"belongs to another pipeline shop \(id {life}\).*sink: {{adopt: true}}"):
        bench.start()
    assert not journal.store.publication_numbers()
    assert notes(bench) == before


def test_a_pipeline_that_adopts_takes_over_what_the_last_one_left(bench: SparkBench) -> None:
    """1. Its first checkpoints leave the table in its snapshot: the lake shows the old rows. 2. The table is live: the
    new rows, by the first start. 3. The old savepoint is still read, by another name. 4. It goes on. 5. The first
    pipeline, should it still run, is refused, also if it adopts.
    """
    first, before = bench.journal, None
    life = lived(bench)
    before = notes(bench)
    journal = second(bench)
    bench.adopts = True
    journal.table(T, phase="snapshot")
    journal.chunk(T, NEW)
    journal.checkpoint()
    incarnation = bench.apply()
    assert notes(bench) == before
    journal.table(T)
    journal.checkpoint(kept=True)
    bench.apply(incarnation)
    assert incarnation.progress.w == 1
    assert notes(bench) == ["new 0", "new 1"]
    table = incarnation.sink.tables.get(T.table_id)
    assert table.metadata().property(ID, None) == journal.store.id
    assert table.metadata().property(EARLIER, None) == life
    assert notes(bench, f"checkpoint_{2}_of_{life}") == [f"old {number}" for number in range(4)]
    assert bench.agree()
    journal.change(T, ("-D", {"id": 0, "note": None, "price": None}))
    journal.checkpoint()
    bench.apply(incarnation)
    assert notes(bench) == ["new 1"]
    rows = bench.session.sql(f"SELECT DISTINCT checkpoint FROM {PUBLICATIONS} ORDER BY checkpoint").collect()
    assert [row.checkpoint for row in rows] == journal.store.publication_numbers()
    own = bench.lake()
    bench.journal = first
    for adopts in (False, True):  # else the two would take the table from each other for ever
        bench.adopts = adopts
        with pytest.raises(ConfigError, match=rf"taken over from this pipeline \(id {life}\)"):
            bench.lake().load(T.table_id)
        with pytest.raises(ConfigError, match=rf"taken over from this pipeline \(id {life}\)"):
            Publications(bench.lake(), 0).check_holder()
    assert own.load(T.table_id) is not None


def test_a_table_alone_that_an_earlier_life_left_is_quarantined_and_the_others_go_on(bench: SparkBench) -> None:
    lived(bench)
    bench.session.sql(f"ALTER TABLE {PUBLICATIONS} UNSET TBLPROPERTIES ('cutline.w.shop')")
    journal = second(bench)
    for table in (T, U):
        journal.table(table)
    journal.chunk(T, NEW)
    journal.chunk(U, [{"place": "a", "item": 1, "amount": 2}])
    journal.checkpoint()
    incarnation = bench.apply()
    assert "belongs to another pipeline shop" in str(incarnation.progress.quarantined[T.table_id].cause)
    assert len(bench.rows(U.table_id)[1]) == 1
    bench.session.sql("DROP TABLE lake.shop.orders PURGE")
    journal.change(U, ("+U", {"place": "a", "item": 1, "amount": 3}))
    journal.checkpoint()
    bench.apply()
    assert notes(bench) == ["new 0", "new 1"]


def test_a_purge_of_a_deleted_pipeline_leaves_the_tables_of_the_next_one_and_ends_when_it_is_no_longer_ordered(
    bench: SparkBench,
) -> None:
    """1. The first pipeline's purge is suspended; its table is dropped by hand. 2. The next pipeline of its name makes
    the table anew. 3. The purge goes on: it drops nothing. 4. A purge that is no longer ordered drops nothing either.
    """
    other = schema("shop.other", ("id",), id="bigint")
    bench.journal.table(other)
    bench.journal.chunk(other, [{"id": 1}])
    lived(bench)
    old = bench.lake()
    bench.session.sql("DROP TABLE lake.shop.orders PURGE")
    assert purge(old, lambda: False) == []
    journal = second(bench)
    bench.adopts = True
    journal.table(T)
    journal.chunk(T, NEW)
    journal.checkpoint()
    bench.apply()
    assert purge(old, lambda: True) == ["shop.other"]
    assert notes(bench) == ["new 0", "new 1"]
    assert tables(bench) == ["orders"]
    assert bench.session.sql(f"SELECT * FROM {PUBLICATIONS}").count()
    assert sorted(purge(bench.lake(), lambda: True)) == ["shop.orders"]
    assert not bench.session.sql(f"SELECT * FROM {PUBLICATIONS}").count()


def test_a_purge_that_was_suspended_after_its_last_question_drops_no_table_of_the_next_pipeline(
    bench: SparkBench,
) -> None:
    """1. The first pipeline's purge has looked whose the table is, and asked whether it may go on: there it stops. 2.
    Another Spark writer ends the purge; the next pipeline of that name makes the table anew. 3. The first one goes on:
    the table stays, under its name. 4. A purge that died between its two steps is completed by the next one."""
    lived(bench)
    old = bench.lake()
    stopped: list[str] = []

    def still() -> bool:
        if not stopped:
            stopped.append("here")
            assert purge(bench.lake(), lambda: True) == ["shop.orders"]
            journal = second(bench)
            journal.table(T)
            journal.chunk(T, NEW)
            journal.checkpoint()
            bench.apply()
        return True

    assert purge(old, still) == []
    assert (stopped, notes(bench), tables(bench)) == (["here"], ["new 0", "new 1"], ["orders"])
    newest = bench.lake()
    newest.catalog.renameTable(newest._identifier("shop", "orders"), newest._identifier("shop", _aside(newest) + "1"))
    assert len(purge(newest, lambda: True)) == 1
    assert tables(bench) == []


def tables(bench: SparkBench) -> list[str]:
    """The names of the lake's tables in `shop`."""
    return sorted(row["tableName"] for row in bench.session.sql("SHOW TABLES IN lake.shop").toArrow().to_pylist())
