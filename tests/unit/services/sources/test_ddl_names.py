"""How statements of DDL are read: names, quotes, cases, comments, several tables, swaps of tables."""

from __future__ import annotations

import random
import re

import pytest

from cutline.services.sources.mysql.binlog.ddl import Evolve, Quarantine, Restart, Truncate, classify
from tests.support.captured import CAPTURED, effects, only, schema


def test_the_default_database_is_meant_where_none_is_named() -> None:
    assert only("TRUNCATE orders", "crm") == Truncate(table_id="crm.orders")
    assert effects("TRUNCATE orders", "other") == []


def test_names_are_the_same_in_any_case_where_the_server_says_so_and_nowhere_else() -> None:
    for statement in ("TRUNCATE `Shop`.`ORDERS`", "ALTER TABLE ORDERS DROP name", "DROP DATABASE SHOP"):
        assert effects(statement) == []  # another table's, or another database
        assert effects(statement, folds_case=True)[0].table_id == "shop.orders"


def test_a_name_may_begin_with_digits_or_be_nothing_else() -> None:
    named = {table_id: schema(table_id) for table_id in ("shop.2024_orders", "shop.2024", "shop.1e5")}
    for table_id in named:
        database, _, table = table_id.partition(".")
        for name in (table_id, f"`{database}`.{table}", f"{database}.`{table}`", f"{database}. {table}"):
            assert classify(f"TRUNCATE TABLE {name}", "other", named) == [Truncate(table_id=table_id)]
            (effect,) = classify(f"SOMETHING NEW {name}", "other", named)
            assert effect.table_id == table_id
    assert classify("TRUNCATE 2024_orders", "shop", named) == [Truncate(table_id="shop.2024_orders")]


@pytest.mark.parametrize("options", ["max_statement_time=5", "sql_mode='', lock_wait_timeout=(SELECT 1 FOR UPDATE)"])
def test_a_statement_with_settings_of_its_own_is_what_follows_them(options: str) -> None:
    for statement in ("TRUNCATE orders", "ALTER TABLE orders DROP name", "DROP TABLE orders", "UPDATE orders SET id=1"):
        alone, found = effects(statement), effects(f"SET STATEMENT {options} FOR {statement}")
        assert [type(effect) for effect in found] == [type(effect) for effect in alone]
        assert [effect.table_id for effect in found] == [effect.table_id for effect in alone]


def test_statements_over_several_tables_touch_each() -> None:
    found = effects("RENAME TABLE orders TO orders_old, items TO orders, crm.orders TO crm.o")
    assert {effect.table_id for effect in found} == set(CAPTURED)
    assert all(isinstance(effect, Restart) for effect in found)
    assert [effect.table_id for effect in effects("DROP TABLE items, x, crm.orders")] == ["shop.items", "crm.orders"]
    for statement in ("DROP DATABASE `shop`", "CREATE OR REPLACE DATABASE shop CHARACTER SET latin1"):
        assert {effect.table_id for effect in effects(statement)} == {"shop.orders", "shop.items"}


@pytest.mark.parametrize("table", ["other", "items"])
@pytest.mark.parametrize(
    "action",
    [
        "EXCHANGE PARTITION p WITH TABLE orders WITHOUT VALIDATION",
        "CONVERT TABLE `shop`.`orders` TO PARTITION p VALUES LESS THAN (5)",
        "CONVERT PARTITION p TO TABLE orders",
    ],
)
def test_rows_that_change_places_with_a_partition_restart_both_tables(table: str, action: str) -> None:
    found = effects(f"ALTER TABLE {table} {action}")
    assert {effect.table_id for effect in found} == {f"shop.{table}", "shop.orders"} & set(CAPTURED)
    assert all(isinstance(effect, Restart) for effect in found)


@pytest.mark.parametrize(
    "statements",
    [
        # gh-ost
        [
            "create /* gh-ost */ table `shop`.`_orders_gho` like `shop`.`orders`",
            "alter /* gh-ost */ table `shop`.`_orders_gho` add column c int",
            "rename /* gh-ost */ table `shop`.`orders` to `shop`.`_orders_del`,"
            " `shop`.`_orders_gho` to `shop`.`orders`",
        ],
        # pt-online-schema-change
        [
            "CREATE TABLE `shop`.`_orders_new` (id INT)",
            "ALTER TABLE `shop`.`_orders_new` ENGINE=InnoDB",
            "CREATE TRIGGER `pt_osc_shop_orders_del` AFTER DELETE ON `shop`.`orders` FOR EACH ROW BEGIN DELETE IGNORE"
            " FROM `shop`.`_orders_new` WHERE `shop`.`_orders_new`.`id` <=> OLD.`id`; END",
            "RENAME TABLE `shop`.`orders` TO `shop`.`_orders_old`, `shop`.`_orders_new` TO `shop`.`orders`",
        ],
    ],
)
def test_a_tool_that_swaps_tables_restarts_at_its_swap_and_not_before(statements: list[str]) -> None:
    *before, swap = statements
    assert all(effects(statement) == [] for statement in before)
    assert isinstance(only(swap), Restart)


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("UPDATE orders SET name = 'x'", {"shop.orders", "shop.items"}),
        ("INSERT INTO other VALUES (1)", {"shop.orders", "shop.items"}),
        ("INSERT INTO crm.x SELECT * FROM crm.y", {"crm.orders"}),
        ("LOAD DATA INFILE 'f' INTO TABLE `crm`.`orders`", {"crm.orders"}),
        ("WITH x AS (SELECT 1) DELETE FROM crm.orders", {"crm.orders"}),
        ("CREATE TEMPORARY TABLE IF NOT EXISTS crm.orders (id INT)", {"crm.orders"}),
        ("UPDATE crm.orders SET name = 'generated by server'", {"crm.orders"}),
        ("ANALYZE FORMAT=JSON UPDATE crm.orders SET name = 'x'", {"crm.orders"}),
    ],
)
def test_dml_as_a_statement_quarantines_what_it_can_reach(statement: str, tables: set[str]) -> None:
    found = effects(statement)
    assert all(isinstance(effect, Quarantine) for effect in found)
    assert tables <= {effect.table_id for effect in found}


def test_quotes_comments_and_versioned_comments_are_read_as_the_server_does() -> None:
    assert effects("DROP TABLE other -- , orders") == []
    assert effects("DROP TABLE other # , orders") == []
    assert effects("DROP TABLE other /* , orders */") == []
    assert isinstance(only("DROP TABLE other /*!40000 , orders */"), Restart)
    for statement in ("DROP TABLE other /*M! , orders */", "DROP TABLE other /*M!100100 , orders */"):
        assert effects(statement) == []
        assert isinstance(effects(statement, mariadb=True)[0], Restart)
    (effect,) = effects("ALTER TABLE orders ADD c INT /*M! DEFAULT 5 */ /*! UNIQUE /*M! DEFAULT 6 */ NULL */")
    assert isinstance(effect, Evolve)
    assert effect.schema.column("c").initial_default is None
    assert effects("ALTER TABLE other COMMENT '; DROP TABLE orders'") == []
    assert isinstance(only('DROP TABLE "orders"'), Restart)
    assert effects("DROP TABLE `a``orders`") == []


WHOLE = (
    "ALTER TABLE shop.orders ADD COLUMN c DECIMAL(10, 2) UNSIGNED NOT NULL DEFAULT '5' AFTER `id`, ALGORITHM=INSTANT",
    "ALTER ONLINE TABLE orders MODIFY name VARCHAR(200) CHARACTER SET latin1 COLLATE latin1_bin, DROP KEY f, FORCE",
    "ALTER TABLE orders ADD (c BOOL, d ENUM('x','it''s') DEFAULT 'x'), DROP PRIMARY KEY, ADD PRIMARY KEY (id, name)",
    "ALTER TABLE orders CHANGE name title VARCHAR(20) NULL FIRST, RENAME COLUMN price TO p, RENAME INDEX a TO b",
    "ALTER TABLE others EXCHANGE PARTITION p WITH TABLE orders, RENAME TO items",
    "ALTER TABLE orders ADD c INT AS (id + 1) STORED, ADD PARTITION (PARTITION p VALUES LESS THAN (9))",
    "CREATE OR REPLACE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, b BIT(3)) ENGINE=InnoDB SELECT * FROM items",
    "CREATE UNIQUE INDEX i ON orders (name(10), (id + 1) DESC)",
    "RENAME TABLE orders TO crm.other, items WAIT 5 TO `orders`",
    "DROP TABLE IF EXISTS shop.orders, crm . orders CASCADE",
    "INSERT INTO `shop`.orders (id) VALUES (1) ON DUPLICATE KEY UPDATE name = 'x'",
    "UPDATE orders o JOIN items i USING (id) SET o.name = i.name WHERE o.id IN (SELECT id FROM crm.orders)",
)


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize("statement", WHOLE)
def test_no_statement_is_a_mistake_of_ours_wherever_it_is_cut_and_whatever_stands_in_it(
    statement: str, mariadb: bool
) -> None:
    """It is understood, or a table is read again: behind each word, and with words repeated, left out or another's."""
    luck = random.Random(7)
    words, others = (re.findall(r"'[^']*'|\w+|\s+|[^\w\s]", text) for text in (statement, " ".join(WHOLE)))
    for end in range(len(words) + 1):
        effects("".join(words[:end]), mariadb=mariadb)
    for _ in range(500):
        at = luck.randrange(len(words))
        instead = luck.choice(([], [words[at], " ", words[at]], [luck.choice(others)]))
        effects("".join([*words[:at], *instead, *words[at + 1 :]]), mariadb=mariadb)


DOTTED = {table_id: schema(table_id) for table_id in ("my.`db.t`", "`my.db`.t", "`a.b`.c`d")}


@pytest.mark.parametrize(
    ("statement", "db", "tables"),
    [
        ("TRUNCATE `my.db`.t", "", ["`my.db`.t"]),
        ("TRUNCATE TABLE my.`db.t`", "", ["my.`db.t`"]),
        ("TRUNCATE `db.t`", "my", ["my.`db.t`"]),
        ("TRUNCATE t", "my.db", ["`my.db`.t"]),
        ("TRUNCATE t", "my", []),
        ("DROP TABLE `my.db`.`t`, my.db", "my", ["`my.db`.t"]),
        ("RENAME TABLE `my.db`.t TO `my.db`.u, x TO `a.b`.`c``d`", "", ["`my.db`.t", "`a.b`.c`d"]),
        ("ALTER TABLE `a.b`.`c``d` ADD COLUMN x INT", "", ["`a.b`.c`d"]),
        ("DROP DATABASE `my.db`", "", ["`my.db`.t"]),
        ("DROP DATABASE my", "", ["my.`db.t`"]),
        ("INSERT INTO `my.db`.t VALUES (1)", "", ["`my.db`.t"]),
        ("CALL touch('my.db.t')", "elsewhere", ["my.`db.t`", "`my.db`.t"]),
    ],
)
def test_a_statement_concerns_the_table_whose_two_names_it_has(statement: str, db: str, tables: list[str]) -> None:
    found = classify(statement, db, DOTTED, primary=frozenset(DOTTED))
    assert [effect.table_id for effect in found] == tables


def test_names_with_dots_are_the_same_in_upper_and_lower_case_if_the_server_folds_them() -> None:
    found = classify("TRUNCATE `MY.db`.T", "", DOTTED, folds_case=True)
    assert [effect.table_id for effect in found] == ["`my.db`.t"]
