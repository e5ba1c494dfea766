"""What is asked of a Spark about a pipeline's rules: which tables, by which place and key; what a change may be
refused for."""

from __future__ import annotations

from typing import Any

import pytest

from cutline.common.causes import Cause, Code
from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import SourceLost
from cutline.common.mask_key import MaskKey
from cutline.common.preview import MOST_TABLES, Refusal
from cutline.common.schema import Column, TableSchema
from cutline.services.sources.mysql.catalogue import TableInfo
from cutline.services.sources.mysql.rules import changes_it, rules_asked

KEY = "a key of at least 16 bytes"


def config(**given: Any) -> PipelineConfig:
    base = {"name": "shop", "source": {"host": "h", "user": "u"}, "tables": ["d.*"], "sink": {"warehouse": "/w"}}
    return PipelineConfig.model_validate({**base, **given})


def described(*names: str, faults: tuple[Cause, ...] = ()) -> dict[str, TableInfo | SourceLost]:
    columns = [("id", "int"), ("name", "varchar(40)"), ("flag", "tinyint(1)")]
    made = tuple(
        Column(name=name, field_id=at, mysql_type=kind, nullable=at > 1)
        for at, (name, kind) in enumerate(columns, start=1)
    )
    return {
        name: TableInfo(
            schema=TableSchema(table_id=name, columns=made, key=("id",), last_field_id=3),
            engine="InnoDB",
            rows=1,
            row_bytes=1,
            integer_key=True,
            chunk_key=("id",),
            faults=faults,
        )
        for name in names
    }


def test_nothing_is_asked_of_a_pipeline_without_rules_unless_a_table_is_to_be_shown() -> None:
    found = described("d.a")
    assert rules_asked(config(), found).request is None
    shown = rules_asked(config(), found, "d.a")
    assert shown.request is not None
    assert shown.schema("d.a") is not None


def test_tables_with_a_rule_and_those_that_queries_name_are_asked_by_their_places() -> None:
    made = config(
        table_options=[{"tables": "*.a", "chunk_rows": 5}, {"tables": "*.[ab]", "where": "id > 1"}],
        derived=[{"name": "d.sums", "sql": "SELECT id FROM d.C"}],
        values={"tinyint1": "boolean"},
        sink={"warehouse": "/w", "spark": {
            "spark.sql.ansi.enabled": "false", "spark.sql.catalog.lake.token": "t", "spark.hadoop.fs.s3a.key": "s",
        }},
    )  # fmt: skip
    lost: dict[str, TableInfo | SourceLost] = {"d.gone": SourceLost(Cause(Code.RIGHTS, "hidden", ""))}
    request = rules_asked(made, {**described("d.a", "d.b", "d.c", "d.other"), **lost}).request
    assert request is not None
    assert [(each.schema.table_id, each.place) for each in request.tables] == [("d.b", "table_options[1]"), ("d.c", "")]
    assert request.tables[0].schema.booleans
    assert [each.place for each in request.derived] == ["derived[0]"]
    assert dict(request.settings) == {"spark.sql.ansi.enabled": "false"}
    assert request.unknown == ()


def test_a_table_that_can_not_be_captured_is_unknown_to_queries() -> None:
    made = config(derived=[{"name": "d.sums", "sql": "SELECT id FROM d.keyless"}])
    request = rules_asked(made, described("d.keyless", faults=(Cause(Code.NO_KEY, "no key", ""),))).request
    assert request is not None
    assert (request.tables, request.unknown) == ((), ("d.keyless",))


def test_of_many_tables_with_a_rule_the_first_are_asked() -> None:
    asked = rules_asked(
        config(table_options=[{"tables": "*.*", "where": "id > 1"}]), described(*(f"d.t{n}" for n in range(300)))
    )
    assert asked.request is not None
    assert (len(asked.request.tables), asked.ruled) == (MOST_TABLES, 300)


def test_a_mask_that_can_not_be_is_refused_without_spark_and_a_missing_key_is_made_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [{"tables": "d.a", "mask": ["id"]}, {"tables": "d.b", "mask": ["name"]}]
    made = config(table_options=options, masking={"key_env": "SHOP_MASK_KEY"})
    asked = rules_asked(made, described("d.a", "d.b"))
    assert [each.place for each in asked.refusals] == ["table_options[0].mask"]
    assert asked.own_key
    monkeypatch.setenv("SHOP_MASK_KEY", KEY)
    asked = rules_asked(made, described("d.a", "d.b"))
    assert (asked.key, asked.own_key) == (MaskKey.of_text(KEY), False)


def test_only_what_a_change_changes_can_hinder_it() -> None:
    rules = [{"tables": "d.a", "where": "id > 1"}, {"tables": "d.b", "where": "id > 2"}]
    queries = [{"name": "d.x", "sql": "SELECT 1 AS a"}, {"name": "d.y", "sql": "SELECT 2 AS a"}]
    before = config(table_options=rules, derived=queries)
    after = config(
        table_options=[rules[0], {"tables": "d.b", "where": "id > 3"}],
        derived=[queries[0], {"name": "d.y", "sql": "SELECT 3 AS a"}],
    )
    cause = Cause(Code.RULE, "it is refused", "")
    refusals = [
        Refusal(place=place, table=table, cause=cause)
        for place, table in (
            ("table_options[0].where", "d.a"), ("table_options[1].where", "d.b"),
            ("derived[0].sql", "d.x"), ("derived[1].sql", "d.y"),
        )
    ]  # fmt: skip
    assert [changes_it(before, after, each) for each in refusals] == [False, True, False, True]
    assert all(changes_it(None, after, each) for each in refusals)
