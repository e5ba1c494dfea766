"""Python functions in the pipeline file: what is accepted, what is refused, and which tables' rules have them."""

from __future__ import annotations

import pytest

from cutline.common.config.pipeline import PipelineConfig, parse
from cutline.common.errors import ConfigError
from cutline.common.shape import Function, Shape

SMALL = 'name: shop\nsource: {host: h, user: u}\ntables: ["shop.*"]\nsink: {warehouse: w}\n'
TWO = (
    'functions: {loud: {call: "shop_functions:shout", type: string},'
    ' nice: {call: "a.b:c", type: "decimal(10, 2)", version: 3}}\n'
)


def test_a_rule_has_the_functions_that_it_may_call_and_no_others() -> None:
    a, b = '{tables: "*.a", select: [id, "LOUD(note) AS n"]}', '{tables: "*.b", where: "nice( id ) > 2"}'
    options = f'[{a}, {b}, {{tables: "*.c"}}]'
    config = parse(f"{SMALL}{TWO}table_options: {options}\n")
    assert PipelineConfig.from_definition(config.definition()) == config
    assert "functions" not in parse(SMALL).definition()
    loud = Function(name="loud", call="shop_functions:shout", type="string")
    nice = Function(name="nice", call="a.b:c", type="decimal(10, 2)", version=3)
    shapes = config.shapes(["shop.a", "shop.b", "shop.c"], None)
    assert {table: shape.functions for table, shape in shapes.items()} == {"shop.a": (loud,), "shop.b": (nice,)}
    for shape in shapes.values():
        assert Shape.from_json(shape.to_json()) == shape


def test_a_function_that_is_added_or_changed_concerns_the_rules_that_call_it_alone() -> None:
    options = 'table_options: [{tables: "*.a", select: [id, "loud(note) AS n"]}]\n'
    before = parse(f"{SMALL}{TWO}{options}").shapes(["shop.a"], None)
    other = parse(f"{SMALL}{TWO.replace('version: 3', 'version: 4')}{options}").shapes(["shop.a"], None)
    raised = parse(f"{SMALL}{TWO.replace('string}', 'string, version: 2}')}{options}").shapes(["shop.a"], None)
    assert before == other != raised


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ('{Loud: {call: "m:f", type: int}}', "name it by lower case letters"),
        ('{f: {call: "m.f", type: int}}', "must be a module and a function in it"),
        ('{f: {call: "m:f()", type: int}}', "must be a module and a function in it"),
        ('{f: {call: "../m:f", type: int}}', "must be a module and a function in it"),
        ('{f: {call: "m:f"}}', "type"),
        ('{f: {call: "m:f", type: " "}}', "is empty"),
        ('{f: {call: "m:f", type: int, version: 0}}', "version"),
    ],
)
def test_what_is_no_function_is_refused(functions: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(f"{SMALL}functions: {functions}\n")
