"""When derived tables are computed, in which order, and what a publication has of those that can't be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from cutline.common.causes import Code
from cutline.common.derived import DerivedTable
from cutline.common.store.records import Content, Main, Place, Publication, PublishedTable, Work
from cutline.spark_writer.derived import Derivations
from cutline.spark_writer.sinks.contract import DerivedFault, Made
from cutline.spark_writer.sparing import Sparing

TABLES = ("shop.a", "shop.b")


class Computing:
    """A sink that computes derived tables whose query is the list of what they read."""

    def __init__(self) -> None:
        self.computed: list[tuple[str, dict[str, str]]] = []
        self.since: dict[str, dict[str, str] | None] = {}
        self.fails: set[str] = set()
        self.same: set[tuple[str, str]] = set()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def reads(self, name: str, sql: str) -> list[str]:
        if sql == "nonsense":
            raise DerivedFault(f"the query of {name} is refused by Spark: nonsense")
        return sql.split()

    def derive(
        self,
        name: str,
        sql: str,
        reads: Mapping[str, tuple[str, Content]],
        done: Work | None,
        *,
        since: Mapping[str, Content] | None,
        checkpoint: int,
        over: Callable[[], bool],
    ) -> Made:
        self.now += 1
        if name in self.fails:
            raise DerivedFault(f"the query of {name} failed")
        self.since[name] = None if since is None else {table: str(content) for table, content in since.items()}
        self.computed.append((name, {table: str(content) for table, content in reads.values()}))
        content = Content(f"{name}@{checkpoint}")
        return Made(
            work=Work(content=content, place=Place("staging_1"), generation=7, schema="s", rows=3), rows=3, plan="plan"
        )

    def same_rows(self, table_id: str, before: Content, now: Content) -> bool:
        return (str(before), str(now)) in self.same


class OneTry(Sparing):
    def __init__(self) -> None:
        pass

    def each(
        self,
        items: Collection[Any],
        do: Callable[[Any], Any],
        table_of: Callable[[Any], str] = str,
        *,
        undo: Callable[[Any], None] = lambda item: None,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Exception]]]:
        (item,) = items
        try:
            return [(item, do(item))], []
        except DerivedFault as error:
            return [], [(item, error)]


class Pipeline:
    """Publications, one after the other, of two tables and the derived ones."""

    def __init__(self, **queries: str) -> None:
        self.sink = Computing()
        self.contents: dict[str, str | None] = {"shop.a": "a1", "shop.b": "b1"}
        self.newest: Publication | None = None
        self.n = 0
        self.begin(*(DerivedTable(name=f"shop.{name}", sql=sql) for name, sql in queries.items()))

    def begin(self, *listed: DerivedTable) -> None:
        sink = cast(Any, self.sink)
        self.derived = Derivations(listed, sink, OneTry(), clock=sink, pipeline="p")

    def publish(self, **contents: str | None) -> list[str]:
        """Make the next publication; return which derived tables it computed."""
        self.n += 1
        self.contents |= {f"shop.{name}": content for name, content in contents.items()}
        self.sink.computed.clear()
        tables = {
            name: PublishedTable(
                state="live", generation=1, main=None if content is None else Main(content=Content(content)), work=None
            )
            for name, content in self.contents.items()
        }
        record = Publication(
            n=self.n,
            epoch=1,
            w=1,
            kept=False,
            position=None,
            source_time=None,
            published_at=60.0 * self.n,
            tables=tables,
        )
        self.newest = self.derived.extended(record, self.newest)
        body = self.newest.to_json(since=None, tables=self.newest.tables)
        assert Publication.from_json(body, {}) == self.newest
        return [name for name, _ in self.sink.computed]

    def table(self, name: str) -> PublishedTable:
        assert self.newest is not None
        return self.newest.tables[f"shop.{name}"]

    def cause(self, name: str) -> str:
        held = self.table(name).held
        assert held is not None
        assert held.cause.code == Code.DERIVED
        assert self.derived.held[f"shop.{name}"].cause == held.cause
        return held.cause.sentence


def test_tables_are_computed_in_order_of_dependence_and_only_if_what_they_read_has_changed() -> None:
    pipeline = Pipeline(last="shop.one shop.two", two="shop.one shop.b", one="shop.a")
    assert pipeline.publish() == ["shop.one", "shop.two", "shop.last"]
    assert pipeline.sink.computed[2] == ("shop.last", {"shop.one": "shop.one@1", "shop.two": "shop.two@1"})
    before = pipeline.table("last")
    assert pipeline.publish() == []
    assert pipeline.table("last") is before
    assert pipeline.publish(b="b2") == ["shop.two", "shop.last"]
    assert pipeline.publish(a="a2") == ["shop.one", "shop.two", "shop.last"]
    assert pipeline.derived.status["shop.last"].checkpoint == 4


def test_files_that_were_merged_are_no_change_and_are_read_from_then_on() -> None:
    pipeline = Pipeline(one="shop.a")
    pipeline.publish()
    pipeline.sink.same = {("a1", "a2"), ("a2", "a3")}
    assert pipeline.publish(a="a2") == []
    assert pipeline.table("one").shown
    assert pipeline.publish(a="a3") == []
    assert pipeline.publish(a="a4") == ["shop.one"]


def test_a_start_goes_on_from_the_record_and_a_changed_query_is_computed() -> None:
    pipeline = Pipeline(one="shop.a", two="shop.b")
    pipeline.publish()
    pipeline.begin(DerivedTable(name="shop.one", sql="shop.a"), DerivedTable(name="shop.two", sql="shop.a shop.b"))
    assert pipeline.publish() == ["shop.two"]
    assert pipeline.derived.status["shop.one"].rows == 3
    pipeline.begin(DerivedTable(name="shop.two", sql="shop.a shop.b"))
    assert pipeline.publish() == []
    assert pipeline.newest is not None
    assert "shop.one" not in pipeline.newest.tables


def test_a_table_with_an_interval_shows_its_last_content_with_its_position_in_between() -> None:
    pipeline = Pipeline()
    pipeline.begin(DerivedTable(name="shop.one", sql="shop.a", every_minutes=2.0))
    assert pipeline.publish() == ["shop.one"]
    assert pipeline.publish(a="a2") == []
    content = pipeline.table("one").main
    assert content is not None
    assert content.content == "shop.one@1"
    assert pipeline.publish() == ["shop.one"]
    assert pipeline.table("one").shown


def test_one_that_fails_harms_no_other_keeps_its_content_and_comes_back() -> None:
    pipeline = Pipeline(one="shop.a", two="shop.b", over="shop.one")
    pipeline.publish()
    pipeline.sink.fails = {"shop.one"}
    assert pipeline.publish(a="a2", b="b2") == ["shop.two"]
    assert pipeline.cause("one") == "the query of shop.one failed"
    main = pipeline.table("one").main
    assert main is not None
    assert main.content == "shop.one@1"
    since = pipeline.table("one").held
    pipeline.sink.fails = set()
    assert pipeline.publish() == []  # nothing has changed since it failed
    assert pipeline.publish(a="a3") == []  # and it took a second
    assert pipeline.table("one").held == since
    pipeline.sink.now += 10
    assert pipeline.publish() == ["shop.one", "shop.over"]
    assert pipeline.table("one").held is None
    assert pipeline.derived.held == {}


def test_a_person_has_one_that_failed_tried_at_once() -> None:
    pipeline = Pipeline(one="shop.a")
    pipeline.sink.fails = {"shop.one"}
    pipeline.publish()
    pipeline.sink.fails = set()
    assert pipeline.publish() == []
    pipeline.derived.retry(None)
    assert pipeline.publish() == ["shop.one"]


def test_one_whose_changes_go_again_comes_back_without_being_computed() -> None:
    pipeline = Pipeline(one="shop.a")
    pipeline.publish()
    pipeline.sink.fails = {"shop.one"}
    pipeline.publish(a="a2")
    assert pipeline.publish(a="a1") == []
    assert pipeline.table("one").held is None


def test_what_can_not_be_computed_is_told_before_anything_is_written() -> None:
    pipeline = Pipeline(one="shop.two", two="shop.one", three="shop.c", four="nonsense", five="shop.A", six="shop.four")
    assert pipeline.publish() == ["shop.five"]
    assert pipeline.cause("one") == "the derived table shop.one reads itself: shop.one reads shop.two reads shop.one"
    assert "shop.two reads shop.one reads shop.two" in pipeline.cause("two")
    assert pipeline.cause("three") == "the query of shop.three reads shop.c, which is no table of this pipeline"
    assert pipeline.cause("four") == "the query of shop.four is refused by Spark: nonsense"
    assert pipeline.table("six").state == "waiting"


def test_a_table_of_the_source_keeps_its_name() -> None:
    pipeline = Pipeline(a="shop.b", over="shop.a")
    assert pipeline.publish() == ["shop.over"]
    assert pipeline.table("a").derived is None
    assert "table of the source" in pipeline.derived.held["shop.a"].cause.sentence


def test_it_waits_until_all_that_it_reads_is_in_the_lake() -> None:
    pipeline = Pipeline(one="shop.a shop.b")
    assert pipeline.publish(b=None) == []
    assert (pipeline.table("one").state, pipeline.table("one").main) == ("waiting", None)
    assert pipeline.publish(b="b2") == ["shop.one"]


def test_one_that_could_not_be_shown_is_quarantined_until_a_person_has_it_tried() -> None:
    pipeline = Pipeline(one="shop.a")
    pipeline.publish()
    assert pipeline.newest is not None
    pipeline.derived.not_shown(pipeline.newest, "shop.one", DerivedFault("others committed"))
    assert pipeline.publish() == []
    assert pipeline.cause("one") == "others committed"
    pipeline.derived.retry("shop.one")
    assert pipeline.publish() == ["shop.one"]


def test_with_keys_a_table_is_computed_of_what_changed_since_its_content_and_else_of_nothing_known() -> None:
    def listed(sql: str) -> DerivedTable:
        return DerivedTable(name="shop.one", sql=sql, refresh="keys")

    pipeline = Pipeline(one="shop.a")
    pipeline.publish()
    assert pipeline.sink.since["shop.one"] is None
    pipeline.begin(listed("shop.a"))
    assert pipeline.publish(a="a2") == ["shop.one"]
    assert pipeline.sink.since["shop.one"] == {"shop.a": "a1"}
    pipeline.sink.fails = {"shop.one"}
    pipeline.publish(a="a3")
    pipeline.sink.fails = set()
    pipeline.sink.now += 10
    assert pipeline.publish(a="a4") == ["shop.one"]
    assert pipeline.sink.since["shop.one"] == {"shop.a": "a2"}
    pipeline.begin(listed("shop.a shop.b"))
    assert pipeline.publish() == ["shop.one"]
    assert pipeline.sink.since["shop.one"] == {}
