"""Derived tables in the pipeline file: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import pytest

from cutline.common.config.pipeline import PipelineConfig, parse
from cutline.common.derived import DerivedTable, derived_of
from cutline.common.errors import ConfigError

SMALL = 'name: shop\nsource: {host: h, user: u}\ntables: ["shop.*", "crm.people"]\nsink: {warehouse: w}\n'


def test_derived_tables_are_kept_as_they_were_written_and_absent_without_any() -> None:
    second = '{name: d.b-c, sql: "SELECT 2 AS b", every_minutes: 1.5, refresh: keys}'
    listed = f'[{{name: shop.revenue, sql: "SELECT 1 AS a"}}, {second}]'
    read = parse(f"{SMALL}derived: {listed}\n")
    assert PipelineConfig.from_definition(read.definition()) == read
    assert derived_of(read.definition()) == (
        DerivedTable(name="shop.revenue", sql="SELECT 1 AS a"),
        DerivedTable(name="d.b-c", sql="SELECT 2 AS b", every_minutes=1.5, refresh="keys"),
    )
    assert "derived" not in parse(SMALL).definition()
    assert derived_of(parse(SMALL).definition()) == ()


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        ("[{name: revenue, sql: SELECT 1}]", "must be db.table, of letters, digits"),
        ("[{name: d.a/b, sql: SELECT 1}]", "must be db.table, of letters, digits"),
        ('[{name: d.a, sql: " "}]', "is empty"),
        ("[{name: d.a}]", "derived.0.sql|sql is missing|sql"),
        ("[{name: d.a, sql: \"SELECT '${env:HOME}' AS h\"}]", "would name a setting of Spark's process"),
        ("[{name: d.a, sql: \"SELECT DATE'today' AS day\"}]", "reads a word as the present time"),
        ("[{name: d.a, sql: SELECT 1, refresh: often}]", "refresh"),
        ("[{name: d.a, sql: SELECT 1, every_minutes: 0}]", "every_minutes"),
        ("[{name: d.a, sql: SELECT 1}, {name: d.A, sql: SELECT 1}]", "has two derived tables d.A"),
        ("[{name: crm.People, sql: SELECT 1}]", "has a derived table crm.People, which is a table of the source"),
        ("[{name: _cutline.cuts, sql: SELECT 1}]", "in the namespace of Cutline's own tables"),
    ],
)
def test_wrong_derived_tables_are_refused_with_a_remedy(derived: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"{SMALL}derived: {derived}\n")
