"""What statements do to captured tables: followed only where surely no row changes, else the table is read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutline.common.schema import Column
from cutline.common.shape import Shape
from cutline.services.sources.mysql.binlog.ddl import Effect, Evolve, Quarantine, Restart, Truncate, classify
from tests.support.captured import CAPTURED, KEYED, columns, effects, only, schema


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        ("ALTER TABLE orders ADD COLUMN name INT, DROP nothing, MODIFY id TINYINT", []),
        ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (name)", []),
        ("ALTER TABLE orders RENAME COLUMN name TO id, RENAME KEY a TO b, RENAME INDEX c TO d", []),
        ("ALTER TABLE orders DROP PARTITION p", []),
        ("DROP INDEX `PRIMARY` ON orders", []),
        ("TRUNCATE orders", []),
        ("ALTER TABLE orders ADD c INT, RENAME TO others", [Restart]),
        ("ALTER TABLE orders RENAME others", [Restart]),
        ("ALTER TABLE others RENAME TO orders", [Restart]),
        ("ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE others", [Restart]),
        ("ALTER TABLE others EXCHANGE PARTITION p WITH TABLE orders", [Restart]),
        ("ALTER TABLE orders CONVERT TABLE others TO PARTITION p VALUES LESS THAN (5)", [Restart]),
        ("ALTER TABLE orders CONVERT TO CHARACTER SET latin1", []),
        ("ALTER TABLE orders IMPORT TABLESPACE", [Restart]),
        ("RENAME TABLE others TO orders", [Restart]),
        ("DROP TABLE orders", [Restart]),
        ("CREATE TABLE orders (id INT)", [Restart]),
        ("UPDATE orders SET id = 1", [Quarantine]),
    ],
)
def test_of_a_table_that_nothing_was_read_of_only_what_gives_it_other_rows_counts(
    statement: str, kinds: list[type[Effect]]
) -> None:
    found = effects(statement, unread={"shop.orders"})
    assert [type(effect) for effect in found if effect.table_id == "shop.orders"] == kinds


BEFORE = [(column.name, column.mysql_type) for column in schema().columns]


@pytest.mark.parametrize(
    ("statement", "after"),
    [
        ("ALTER TABLE orders ADD COLUMN c INT", [*BEFORE, ("c", "int")]),
        ("alter table `orders` add c int unsigned null comment 'a, (b'", [*BEFORE, ("c", "int unsigned")]),
        ("ALTER TABLE shop.orders ADD c VARCHAR(5) CHARACTER SET latin1 FIRST", [("c", "varchar(5)"), *BEFORE]),
        ("ALTER TABLE orders ADD c DATETIME(6) AFTER `id`", [BEFORE[0], ("c", "datetime(6)"), *BEFORE[1:]]),
        ("ALTER TABLE orders ADD (c BOOL, d DOUBLE PRECISION)", [*BEFORE, ("c", "tinyint(1)"), ("d", "double")]),
        ("ALTER TABLE orders ADD c INT NOT NULL DEFAULT -5, ALGORITHM=INSTANT", [*BEFORE, ("c", "int")]),
        ("ALTER TABLE orders ADD c ENUM('x','it''s') DEFAULT 'x'", [*BEFORE, ("c", "enum('x','it''s')")]),
        ("ALTER TABLE orders DROP COLUMN name, ADD INDEX (price)", [BEFORE[0], *BEFORE[2:]]),
        ("ALTER TABLE orders RENAME COLUMN name TO title", [BEFORE[0], ("title", "varchar(20)"), *BEFORE[2:]]),
        ("ALTER TABLE orders CHANGE name title VARCHAR(20)", [BEFORE[0], ("title", "varchar(20)"), *BEFORE[2:]]),
        ("ALTER TABLE orders MODIFY id BIGINT NOT NULL AUTO_INCREMENT", [("id", "bigint"), *BEFORE[1:]]),
        ("ALTER TABLE orders MODIFY name VARCHAR(200)", [BEFORE[0], ("name", "varchar(200)"), *BEFORE[2:]]),
        ("ALTER TABLE orders MODIFY price DECIMAL(12,2)", [*BEFORE[:2], ("price", "decimal(12,2)"), *BEFORE[3:]]),
        (
            "ALTER TABLE orders DROP COLUMN name, DROP INDEX f, DROP FOREIGN KEY f",
            [BEFORE[0], *BEFORE[2:]],
        ),
        ("ALTER TABLE orders MODIFY name VARCHAR(20) FIRST", [BEFORE[1], BEFORE[0], *BEFORE[2:]]),
        (
            "ALTER TABLE orders MODIFY kind ENUM('a','b','c') NOT NULL",
            [*BEFORE[:4], ("kind", "enum('a','b','c')")],
        ),
        ("/* gen */ ALTER /*!50100 ONLINE */ TABLE orders ADD c INT -- end", [*BEFORE, ("c", "int")]),
        ("ALTER TABLE orders ADD COLUMN c INT /*!80023 INVISIBLE */", [*BEFORE, ("c", "int")]),
        ("ALTER TABLE orders ADD (c FLOAT(24), d FLOAT(25))", [*BEFORE, ("c", "float"), ("d", "double")]),
        (
            "ALTER TABLE orders ADD (c REAL(8, 2) UNSIGNED, d FLOAT(30,2))",
            [*BEFORE, ("c", "double(8,2) unsigned"), ("d", "float(30,2)")],
        ),
        ("ALTER TABLE orders ADD (c INT1(01), d BIT(0))", [*BEFORE, ("c", "tinyint(1)"), ("d", "bit(1)")]),
        (
            "ALTER TABLE orders ADD (c DEC(0), d DECIMAL(0,0))",
            [*BEFORE, ("c", "decimal(10,0)"), ("d", "decimal(10,0)")],
        ),
        ("ALTER TABLE orders ADD c GEOMCOLLECTION", [*BEFORE, ("c", "geometrycollection")]),
        ("ALTER TABLE orders ADD c ENUM('a\\\\','b')", [*BEFORE, ("c", "enum('a\\\\','b')")]),
    ],
)
def test_a_change_of_columns_that_leaves_rows_alone_is_followed(statement: str, after: list[tuple[str, str]]) -> None:
    assert columns(statement) == after


@pytest.mark.parametrize(
    ("statement", "nullable"),
    [
        ("ALTER TABLE orders ADD c INT, ADD d TEXT NULL DEFAULT NULL", True),
        ("ALTER TABLE orders ADD c INT, ADD KEY (c)", True),
        ("ALTER TABLE orders ADD c INT DEFAULT 7", False),
        ("ALTER TABLE orders ADD c INT, DROP name", False),
    ],
)
def test_a_nullable_add_is_told_from_the_rest(statement: str, nullable: bool) -> None:
    effect = only(statement)
    assert isinstance(effect, Evolve)
    assert effect.nullable_add is nullable


def test_a_constant_default_is_kept_as_text() -> None:
    effect = only("ALTER TABLE orders ADD c VARCHAR(9) NOT NULL DEFAULT 'it''s\\n'")
    assert isinstance(effect, Evolve)
    assert effect.schema.column("c").initial_default == "it's\n"
    assert effect.schema.column("c").field_id == 6
    effect = only(r"ALTER TABLE orders ADD c VARCHAR(9) NOT NULL DEFAULT 'a\%\_\z\\'")
    assert isinstance(effect, Evolve)
    assert effect.schema.column("c").initial_default == r"a\%\_z" + "\\"  # as LIKE has them


def test_json_is_longtext_on_mariadb() -> None:
    (effect,) = effects("ALTER TABLE orders ADD j JSON", mariadb=True)
    assert isinstance(effect, Evolve)
    assert effect.schema.column("j").mysql_type == "longtext"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE orders ADD INDEX i (name), COMMENT='x', ROW_FORMAT=DYNAMIC STATS_PERSISTENT=1",
        "ALTER TABLE orders",
        "ALTER TABLE orders DROP INDEX i",
        "ALTER TABLE orders RENAME INDEX a TO b, ALTER COLUMN name SET DEFAULT 'x', ALTER name DROP DEFAULT",
        "ALTER TABLE orders ADD CONSTRAINT c CHECK (price > 0), DROP FOREIGN KEY f, AUTO_INCREMENT 5",
        "ALTER TABLE orders ENGINE=InnoDB, FORCE, LOCK=NONE",
        "ALTER TABLE orders ADD PARTITION (PARTITION p9 VALUES LESS THAN (9))",
        "ALTER TABLE orders DEFAULT CHARACTER SET = utf8mb4 COLLATE utf8mb4_bin",
        "CREATE UNIQUE INDEX i ON orders (name)",
        "CREATE INDEX orders ON other (name)",
        "DROP INDEX i ON orders",
        "CREATE TABLE IF NOT EXISTS orders (id INT)",
        "CREATE TABLE other LIKE orders",
        "CREATE TABLE other AS SELECT * FROM orders",
        "CREATE TEMPORARY TABLE other LIKE orders",
        "DROP TEMPORARY TABLE IF EXISTS `shop`.`orders`",
        "DROP TABLE IF EXISTS other, crm.other",
        "DROP DATABASE another",
        "CREATE DATABASE shop",
        "ALTER DATABASE shop CHARACTER SET utf8mb4",
        "TRUNCATE other",
        "RENAME TABLE other TO another",
        "CREATE DEFINER=`root`@`%` TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.name = 'x'",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM orders",
        "CREATE SEQUENCE s",
        "CREATE DEFINER=`a`@`b` PROCEDURE p() UPDATE orders SET name = 1",
        "GRANT SELECT ON shop.orders TO x",
        "ANALYZE TABLE orders",
        "OPTIMIZE TABLE orders",
        "CREATE USER orders",
        "RENAME USER a TO b",
        "FLUSH TABLES orders",
        "/* only a comment about orders */",
        "# Dummy event replacing event type 160 that slave cannot handle.",
        "DELETE FROM `shop`.`heap` /* generated by server */",
        "INSERT INTO elsewhere.t VALUES (1)",
    ],
)
def test_what_is_surely_harmless_is_ignored(statement: str) -> None:
    assert effects(statement) == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE orders MODIFY name VARCHAR(5)",
        "ALTER TABLE orders MODIFY name TEXT",
        "ALTER TABLE orders ADD c VARCHAR(20000)",
        "ALTER TABLE orders ADD c VARCHAR(9) CHARACTER SET binary",
        "ALTER TABLE orders ADD c ENUM('a ') CHARACTER SET binary",
        "ALTER TABLE orders ADD c DOUBLE(9,2) DEFAULT 0.125",
        "ALTER TABLE orders MODIFY name VARCHAR(50) UNICODE",
        "ALTER TABLE orders RENAME COLUMN name TO kind, RENAME COLUMN kind TO name",
        "ALTER TABLE orders MODIFY name VARCHAR(30) CHARACTER SET latin1",
        "ALTER TABLE orders MODIFY name VARCHAR(30) COLLATE latin1_bin",
        "ALTER TABLE orders MODIFY name VARCHAR(20) NOT NULL",
        "ALTER TABLE orders MODIFY price DECIMAL(12,3)",
        "ALTER TABLE orders MODIFY kind ENUM('b','a') NOT NULL",
        "ALTER TABLE orders CHANGE missing c INT",
        "ALTER TABLE orders ADD c VARCHAR(36) DEFAULT (UUID())",
        "ALTER TABLE orders ADD c DATETIME DEFAULT CURRENT_TIMESTAMP",
        "ALTER TABLE orders ADD c TIMESTAMP",
        "ALTER TABLE orders ADD c INT NOT NULL",
        "ALTER TABLE orders ADD c INT DEFAULT '1.5'",
        "ALTER TABLE orders ADD c INT AS (id + 1) STORED",
        "ALTER TABLE orders ADD c INT GENERATED ALWAYS AS (id + 1) VIRTUAL",
        "ALTER TABLE orders ADD c INT AUTO_INCREMENT UNIQUE",
        "ALTER TABLE orders ADD c NVARCHAR(5)",
        "ALTER TABLE orders ADD name INT",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "ALTER TABLE orders ADD CONSTRAINT f FOREIGN KEY (id) REFERENCES items (id) ON DELETE CASCADE",
        "ALTER TABLE orders DROP id",
        "ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (name)",
        "ALTER TABLE orders DROP PARTITION p1",
        "ALTER TABLE orders TRUNCATE PARTITION p1",
        "ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE other",
        "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE orders ENGINE=MyISAM",
        "ALTER TABLE orders DISCARD TABLESPACE",
        "ALTER TABLE orders ADD SYSTEM VERSIONING",
        "ALTER TABLE orders FROBNICATE",
        "ALTER TABLE orders ADD COLUMN IF NOT EXISTS",
        "ALTER TABLE orders DROP COLUMN IF EXISTS",
        "ALTER IGNORE TABLE orders ADD UNIQUE (name)",
        "ALTER TABLE orders RENAME TO other",
        "ALTER TABLE other RENAME orders",
        "ALTER TABLE other ADD c INT, RENAME TO `shop`.`orders`",
        "RENAME TABLE other TO orders",
        "RENAME TABLE shop.orders TO shop.gone",
        "CREATE TABLE orders (id INT)",
        "CREATE OR REPLACE TABLE IF NOT EXISTS orders (id INT)",
        "CREATE TABLE shop.orders SELECT 1 AS id",
        "CREATE OR REPLACE SEQUENCE orders",
        "DROP TABLE orders",
        "DROP TABLE /*! IF EXISTS */ other, `orders` CASCADE",
        "SOMETHING NEW `orders`",
    ],
)
def test_anything_else_on_a_captured_table_reads_it_again(statement: str) -> None:
    effect = only(statement)
    assert isinstance(effect, Restart)
    assert effect.table_id == "shop.orders"
    assert "shop.orders" in str(effect.cause)


@pytest.mark.parametrize(
    "definition",
    [
        *("SERIAL", "CHAR BYTE", "VARCHAR(5) BYTE", "CHAR(5) BINARY", "CHAR(5) ASCII", "CHAR(5) UNICODE", "NCHAR"),
        *("CHARACTER VARYING(5)", "VARCHARACTER(5)", "NATIONAL VARCHAR(5)", "NATIONAL CHARACTER VARYING(5)", "LONG"),
        *("LONG VARCHAR", "LONG VARBINARY", "TEXT(60)", "BLOB(255)", "TEXT BYTE", "TEXT COLLATE binary", "VECTOR"),
        *("TIMESTAMP NULL DEFAULT '2020-01-02 03:04:05'", "INT REFERENCES x (id)", "FLOAT DEFAULT 0.1"),
        *("INT DEFAULT 0x05", "DECIMAL(5,2) DEFAULT .5", "CHAR(5) DEFAULT 'ab '", "VARCHAR(5) DEFAULT _latin1'a'"),
        *("BIT DEFAULT b'1'", "ENUM('a','b') DEFAULT 'B'", "DATE DEFAULT '20200102'", "DATETIME DEFAULT NOW()"),
        *("DATE DEFAULT '2021-02-30'", "DATE DEFAULT '0000-03-04'", "DATETIME DEFAULT '2023-02-29 00:00:00'"),
        *("VARCHAR(9) DEFAULT 007", "VARCHAR(9) DEFAULT 1e3", "CHAR(5) DEFAULT -0", "ENUM('2','1') DEFAULT 1"),
        *("TIME DEFAULT '01:02:03'", "YEAR DEFAULT 20", "POINT SRID 4326", "VARCHAR(5) COMPRESSED"),
    ],
)
def test_a_definition_that_is_not_surely_understood_reads_the_table_again(definition: str) -> None:
    assert isinstance(only(f"ALTER TABLE orders ADD c {definition}"), Restart)


def test_a_dropped_index_reads_a_table_again_that_may_be_identified_by_it() -> None:
    for statement in (
        "DROP INDEX i ON orders",
        "ALTER TABLE orders DROP KEY i",
        "ALTER TABLE orders DROP CONSTRAINT i",
        "CREATE OR REPLACE UNIQUE INDEX i ON orders (name)",
        "CREATE OR REPLACE INDEX i USING BTREE ON shop.orders (name)",
    ):
        (effect,) = classify(statement, "shop", CAPTURED)
        assert isinstance(effect, Restart)
        assert effects(statement) == []
    for statement in ("CREATE UNIQUE INDEX i ON orders (name)", "CREATE OR REPLACE INDEX i ON other (name)"):
        assert classify(statement, "shop", CAPTURED) == []


@pytest.mark.parametrize(
    ("action", "kinds"),
    [
        ("MODIFY sum BIGINT", [Restart]),
        ("MODIFY name VARCHAR(20)", [Restart]),
        ("CHANGE name title VARCHAR(30)", [Restart]),
        ("ALTER COLUMN price SET DEFAULT 5", [Restart]),
        ("ALTER price DROP DEFAULT", [Restart]),
        ("ALTER INDEX i INVISIBLE", []),
        ("RENAME COLUMN name TO title", [Evolve]),
        ("ADD c INT, DROP kind", [Evolve]),
        ("DROP sum, MODIFY name VARCHAR(30)", [Evolve]),
    ],
)
def test_a_new_definition_of_what_a_generated_column_may_be_made_of_reads_the_table_again(
    action: str, kinds: list[type[Effect]]
) -> None:
    made = Column(name="sum", field_id=6, mysql_type="bigint", nullable=True, generated=True)
    table = {"shop.orders": replace(schema(), columns=(*schema().columns, made), last_field_id=6)}
    found = classify(f"ALTER TABLE orders {action}", "shop", table, primary=KEYED)
    assert [type(effect) for effect in found] == kinds


@pytest.mark.parametrize(
    ("action", "mysqls", "mariadbs"),
    [
        ("ADD c TIMESTAMP", Restart, Restart),
        ("ADD c TIMESTAMP DEFAULT NULL", Evolve, Restart),
        ("ADD c TIMESTAMP NULL", Evolve, Evolve),
        ("MODIFY at TIMESTAMP, ADD c INT", Restart, Restart),
        ("CHANGE at at2 TIMESTAMP", Restart, Restart),
        ("MODIFY at TIMESTAMP DEFAULT '2020-01-01 00:00:00', ADD c INT", Restart, Restart),
        ("CHANGE at at2 TIMESTAMP DEFAULT NULL", Evolve, Restart),
        ("CHANGE at at2 TIMESTAMP NULL DEFAULT NULL", Evolve, Evolve),
        ("MODIFY sure TIMESTAMP, ADD c INT", Evolve, Evolve),
        ("CHANGE sure sure2 TIMESTAMP NOT NULL", Evolve, Evolve),
    ],
)
def test_a_timestamp_that_the_server_may_fill_reads_the_table_again(
    action: str, mysqls: type[Effect], mariadbs: type[Effect]
) -> None:
    """Where explicit_defaults_for_timestamp is off, one that is not said to be NULL is NOT NULL."""
    at = Column(name="at", field_id=6, mysql_type="timestamp", nullable=True)
    sure = Column(name="sure", field_id=7, mysql_type="timestamp", nullable=False)
    table = {"shop.orders": replace(schema(), columns=(*schema().columns, at, sure), last_field_id=7)}
    for mariadb, kind in ((False, mysqls), (True, mariadbs)):
        (effect,) = classify(f"ALTER TABLE orders {action}", "shop", table, primary=KEYED, mariadb=mariadb)
        assert isinstance(effect, kind)


def test_a_name_that_was_there_before_reads_the_table_again() -> None:
    dropped = only("ALTER TABLE orders DROP name")
    assert isinstance(dropped, Evolve)
    (effect,) = classify("ALTER TABLE orders ADD name INT", "shop", {"shop.orders": dropped.schema})
    assert isinstance(effect, Restart)


@pytest.mark.parametrize(
    ("statement", "charset"),
    [
        ("ALTER TABLE orders ADD c VARCHAR(5)", "utf8mb4"),
        ("ALTER TABLE orders ADD c VARCHAR(5) COLLATE latin1_bin", "latin1"),
        ("ALTER TABLE orders ADD c VARCHAR(5) CHARSET utf8 COLLATE utf8_bin", "utf8mb3"),
        ("ALTER TABLE orders ADD c VARCHAR(5) COLLATE DEFAULT", "utf8mb4"),
        ("ALTER TABLE orders ADD c INT", None),
    ],
)
def test_a_new_text_column_has_a_character_set_of_its_own_or_the_tables(statement: str, charset: str | None) -> None:
    effect = only(statement)
    assert isinstance(effect, Evolve)
    assert effect.schema.column("c").charset == charset


def test_what_utf8_means_is_known_on_mysql_alone() -> None:
    for action in ("ADD c VARCHAR(5) CHARSET utf8", "ADD c VARCHAR(5) COLLATE 'UTF8_bin'", "CHARACTER SET utf8"):
        (effect,) = effects(f"ALTER TABLE orders {action}")
        assert isinstance(effect, Evolve)
        (effect,) = effects(f"ALTER TABLE orders {action}", mariadb=True)
        assert isinstance(effect, Restart)
        (effect,) = effects(f"ALTER TABLE orders {action.replace('utf8', 'utf8mb3').replace('UTF8', 'UTF8mb3')}")
        assert isinstance(effect, Evolve)


def test_text_in_a_table_of_the_character_set_binary_is_not_text() -> None:
    for statement in ("ALTER TABLE orders ADD c VARCHAR(5)", "ALTER TABLE orders ADD c ENUM('a ')"):
        (effect,) = classify(statement, "shop", {"shop.orders": replace(schema(), charset="binary")}, primary=KEYED)
        assert isinstance(effect, Restart)


def test_text_that_is_modified_without_a_character_set_gets_the_tables() -> None:
    latin = {"shop.orders": replace(schema(), charset="latin1")}
    for statement in ("ALTER TABLE orders MODIFY name VARCHAR(90)", "ALTER TABLE orders CHANGE name n VARCHAR(20)"):
        (effect,) = classify(statement, "shop", latin, primary=KEYED)
        assert isinstance(effect, Restart)  # name was utf8mb4
    with_charset = "ALTER TABLE orders MODIFY name VARCHAR(90) CHARACTER SET utf8mb4"
    (effect,) = classify(with_charset, "shop", latin, primary=KEYED)
    assert isinstance(effect, Evolve)


def test_the_tables_character_set_is_followed_for_columns_to_come() -> None:
    changed = only("ALTER TABLE orders COLLATE latin1_bin")
    assert isinstance(changed, Evolve)
    assert changed.schema.charset == "latin1"
    assert changed.schema.look == schema().look
    assert isinstance(only("ALTER TABLE orders ADD c TEXT, CHARACTER SET latin1"), Restart)


def test_literals_and_names_are_read_by_the_sessions_sql_mode() -> None:
    statement = r"ALTER TABLE orders ADD c VARCHAR(9) NOT NULL DEFAULT 'a\n', ADD d VARCHAR(5) DEFAULT 'x\'"
    (effect,) = effects(statement, sql_mode=1 << 20)  # NO_BACKSLASH_ESCAPES
    assert isinstance(effect, Evolve)
    assert [effect.schema.column(name).initial_default for name in "cd"] == ["a\\n", "x\\"]
    assert isinstance(only(statement), Restart)
    assert isinstance(only('ALTER TABLE orders ADD c VARCHAR(9) DEFAULT "name"'), Evolve)
    (effect,) = effects('ALTER TABLE orders ADD c VARCHAR(9) DEFAULT "name"', sql_mode=1 << 2)  # ANSI_QUOTES
    assert isinstance(effect, Restart)
    (effect,) = effects("ALTER TABLE orders ADD c REAL", sql_mode=1)  # REAL_AS_FLOAT
    assert isinstance(effect, Restart)


def test_an_empty_default_where_it_is_null_reads_the_table_again() -> None:
    for definition in ("VARCHAR(5) DEFAULT ''", 'ENUM("", "a") DEFAULT ""', "INT DEFAULT 5, ADD d CHAR DEFAULT ''"):
        for mode in (0, 1 << 32):  # MariaDB's EMPTY_STRING_IS_NULL, MySQL's TIME_TRUNCATE_FRACTIONAL
            for mariadb in (False, True):
                (effect,) = effects(f"ALTER TABLE orders ADD c {definition}", mariadb=mariadb, sql_mode=mode)
                assert isinstance(effect, Restart if mariadb and mode else Evolve)


def test_a_tinyint_1_that_is_boolean_becomes_a_number_by_its_width_alone() -> None:
    flag = Column(name="flag", field_id=6, mysql_type="tinyint(1)", nullable=True)
    for booleans, kind in ((True, Restart), (False, Evolve)):
        table = replace(schema(), columns=(*schema().columns, flag), booleans=booleans)
        (effect,) = classify("ALTER TABLE orders MODIFY flag TINYINT", "shop", {"shop.orders": table})
        assert isinstance(effect, kind)
        assert classify("ALTER TABLE orders MODIFY flag TINYINT(1)", "shop", {"shop.orders": table}) == []


def test_truncate_is_a_change_of_its_own_kind() -> None:
    assert only("TRUNCATE TABLE `orders`") == Truncate(table_id="shop.orders")
    assert only("truncate crm.orders") == Truncate(table_id="crm.orders")


def test_a_table_with_a_rule_is_read_again_where_its_columns_change_and_only_there() -> None:
    shaped = {**CAPTURED, "shop.orders": replace(schema(), shape=Shape(where="id > 1"))}
    for clause in ("ADD c INT", "MODIFY id BIGINT NOT NULL", "RENAME COLUMN name TO title", "DROP COLUMN price"):
        (effect,) = classify(f"ALTER TABLE orders {clause}", "shop", shaped, primary=KEYED)
        assert isinstance(effect, Restart), clause
    assert classify("ALTER TABLE orders ADD INDEX (name)", "shop", shaped, primary=KEYED) == []
    moded = {**CAPTURED, "shop.orders": replace(schema(), shape=Shape(mode="append"))}
    (effect,) = classify("ALTER TABLE orders ADD c INT", "shop", moded, primary=KEYED)
    assert isinstance(effect, Evolve)
    assert effect.schema.shape == Shape(mode="append")


def test_no_message_has_values_of_rows_that_a_statement_has() -> None:
    """A column that has them may be masked."""
    for statement, shown in {
        "UPDATE orders SET name = 'clear', price=12.5, n = 0x41 WHERE `the id` IN (3, -4); # clear":
            "UPDATE orders SET name = ?, price = ?, n = ? WHERE `the id` IN(?, - ?);",
        "INSERT INTO crm.orders VALUES (1, _utf8mb4'cle', \"clear\", X'41', DATE '1977-01-02')":
            "INSERT INTO crm.orders VALUES(?, _utf8mb4 ?, ?, ?, DATE ?)",
        "INSERT INTO orders VALUES ('cle', 'clear, which is cut": "INSERT INTO orders VALUES(?,",
        "CREATE TABLE orders AS SELECT 'clear' AS name": "CREATE TABLE orders AS SELECT ? AS name",
        "PERHAPS 'clear' orders": "PERHAPS ? orders",
        "ALTER TABLE orders ADD c VARCHAR(4) DEFAULT (f(1))": "ALTER TABLE orders ADD c VARCHAR(4) DEFAULT (f(1))",
    }.items():  # fmt: skip
        for effect in effects(statement):
            assert isinstance(effect, Quarantine | Restart)
            assert shown in str(effect.cause)
            assert "cle" not in str(effect.cause)
            assert "1977" not in str(effect.cause)
        assert effects(statement)
