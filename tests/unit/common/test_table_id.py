"""The id of a table: a pair as text, which one file alone joins and splits."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.common.config.globs import select_tables
from cutline.common.config.pipeline import PipelineConfig, parse
from cutline.common.errors import ConfigError
from cutline.common.table_id import glob_of, meant, spellings, split_names, split_table_id, table_id_of, unquoted
from cutline.services.sources.mysql.binlog.event_bodies import described, map_without_columns
from cutline.services.sources.mysql.preflight import folded

ROOT = Path(__file__).resolve().parents[3]
NAMES = st.text(st.sampled_from(".`!*ab x/:#"), max_size=6) | st.text(max_size=64)
PAIRS = st.tuples(NAMES, NAMES)


@given(PAIRS)
def test_any_two_names_come_back_from_their_id(pair: tuple[str, str]) -> None:
    assert split_table_id(table_id_of(*pair)) == pair


@given(PAIRS, PAIRS)
def test_two_pairs_never_share_an_id(pair: tuple[str, str], other: tuple[str, str]) -> None:
    assert (table_id_of(*pair) == table_id_of(*other)) == (pair == other)


@given(st.tuples(st.text(max_size=60), st.text(max_size=60)))
def test_a_table_map_names_a_pair(pair: tuple[str, str]) -> None:
    assert described(map_without_columns(table_id_of(*pair)))[1] == table_id_of(*pair)


def test_names_are_in_backticks_only_if_they_have_a_dot_or_begin_with_a_backtick_or_an_exclamation_mark() -> None:
    assert table_id_of("shop", "orders") == "shop.orders"
    assert table_id_of("shop", "t`x") == "shop.t`x"
    assert table_id_of("my.db", "t") == "`my.db`.t"
    assert table_id_of("my", "db.t") == "my.`db.t`"
    assert table_id_of("`", "a.`b") == "````.`a.``b`"
    assert table_id_of("!db", "a!") == "`!db`.a!"
    assert unquoted("`my.db`.t") == unquoted("my.`db.t`") == "my.db.t"


@pytest.mark.parametrize("text", ["", "shop", "my.db.t", "`shop`.orders", "`my.db.t", "`a.b`c.t", "a.`b.c`d"])
def test_other_texts_are_no_ids(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{text!r} is not the id of a table")):
        split_table_id(text)


def test_needless_backticks_are_read() -> None:
    assert split_names("`shop`.`t``x`") == ("shop", "t`x")
    assert meant("`shop`.`orders`", ()) == "shop.orders"


ODD = ("a*", "a?", "[a]", "[!a]", "[", "]", "a", "aa", "b", "!", "`", "a.b*", "*.*", "日[本]")


@pytest.mark.parametrize("name", ODD)
def test_the_glob_of_a_table_matches_it_and_no_other_table(name: str) -> None:
    tables = [table_id_of(database, each) for each in ODD for database in ("shop", "sh*p", "sh[o]p", "!shop")]
    for table_id in (table_id_of("shop", name), table_id_of("sh*p", name), table_id_of("!shop", name)):
        assert select_tables([glob_of(table_id)], tables) == (table_id,)
        globs = json.dumps(["*.*", f"!{glob_of(table_id)}"])
        read = parse(f"name: shop\nsource: {{host: h, user: u}}\ntables: {globs}\nsink: {{warehouse: w}}\n")
        assert read.select(tables) == tuple(sorted(set(tables) - {table_id}))


def test_a_text_with_two_dots_means_the_only_table_that_it_can_mean() -> None:
    assert spellings("my.db.t") == ["my.`db.t`", "`my.db`.t"]
    assert meant("my.db.t", ["my.`db.t`", "shop.orders"]) == "my.`db.t`"
    assert meant("a.b.c.t", ["`a.b.c`.t"]) == "`a.b.c`.t"
    for known in ([], ["my.`db.t`", "`my.db`.t"]):
        with pytest.raises(ConfigError, match=re.escape("write my.`db.t` or `my.db`.t")):
            meant("my.db.t", known)


@pytest.mark.parametrize("text", ["orders", "", "`a", "`a`b.c"])
def test_a_text_that_names_no_table_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("shop.orders")):
        meant(text, ["shop.orders"])


def test_a_glob_compares_each_of_the_two_names() -> None:
    tables = ["my.`db.t`", "`my.db`.t", "`a.b.c`.`db.t`", "shop.t`x"]
    assert select_tables(["my.*"], tables) == ("my.`db.t`",)
    assert select_tables(["`my.db`.*"], tables) == ("`my.db`.t",)
    assert select_tables(["`my.*`.*"], tables) == ("`my.db`.t",)
    assert select_tables(["*.`db.*`"], tables) == ("`a.b.c`.`db.t`", "my.`db.t`")
    assert select_tables(["*.*", "!my.`db.t`"], tables) == ("`a.b.c`.`db.t`", "`my.db`.t", "shop.t`x")
    assert select_tables(["shop.`t``x`"], tables) == ("shop.t`x",)


def test_a_glob_with_several_dots_is_refused_with_each_spelling() -> None:
    source, sink = {"host": "h", "user": "u", "password_env": "P"}, {"type": "iceberg", "warehouse": "w"}
    config = {"name": "p", "source": source, "sink": sink}
    for tables in (["my.db.*"], ["*.*", "!my.db.*"]):
        with pytest.raises(ConfigError, match=re.escape("my.`db.*`' or '")):
            PipelineConfig.from_definition({**config, "tables": tables})
    with pytest.raises(ConfigError, match=re.escape("my.`db.*`' or '`my.db`.*'")):
        PipelineConfig.from_definition({**config, "tables": ["*.*"], "table_options": [{"tables": "my.db.*"}]})


def test_tables_that_hive_or_glue_may_take_for_one_are_faults_before_the_start() -> None:
    found = list(folded(["my.`db.t`", "My.t", "`my.db`.T", "my.t", "shop.t"]))
    assert [fault.sentence.split(" where ")[1].split(" are ")[0] for fault in found] == [
        "my.`db.t` and `my.db`.T",
        "My.t and my.t",
    ]


def _joins(tree: ast.AST) -> Iterator[int]:
    """Lines that join or split two names by a dot, of which the words say that they are a database's and a table's."""
    words = re.compile(r"(table|schema|database|db|namespace|name)s?$|TABLE_SCHEMA|table_")
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for left, dot, right in zip(node.values, node.values[1:], node.values[2:], strict=False):
                if (
                    isinstance(dot, ast.Constant)
                    and dot.value == "."
                    and all(
                        isinstance(each, ast.FormattedValue) and re.search(words, ast.unparse(each.value))
                        for each in (left, right)
                    )
                ):
                    yield node.lineno
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("split", "partition", "rsplit", "rpartition")
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and node.args[0].value == "."
            and re.search(r"table|pattern|glob", ast.unparse(node.func.value))
        ):
            yield node.lineno


def test_no_other_file_joins_or_splits_the_names_of_a_table() -> None:
    found = [
        f"{path}:{line}"
        for top in ("common", "services", "spark_writer")
        for path in sorted((ROOT / top).rglob("*.py"))
        if path != ROOT / "common" / "table_id.py"
        for line in _joins(ast.parse(path.read_text()))
    ]
    assert not found
    assert list(_joins(ast.parse('f"{database}.{table}"\ntable_id.partition(".")\nname = f"{row[0]}.{suffix}"'))) == [
        1,
        2,
    ]
