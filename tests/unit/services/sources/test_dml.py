"""What DML logged as a statement quarantines: what it can write, and in doubt everything that it names."""

from __future__ import annotations

import random
import re

import pytest

from cutline.services.sources.mysql.binlog.ddl import Quarantine, classify
from tests.support.captured import CAPTURED

CHUNK = (
    "COUNT(*) AS cnt, COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`, convert(`name` using utf8mb4),"
    " `price`, CONCAT(ISNULL(`name`), ISNULL(`price`)))) AS UNSIGNED)), 10, 16)), 0) AS crc FROM `shop`.`orders`"
)
COLUMNS = "(db, tbl, chunk, chunk_index, lower_boundary, upper_boundary, this_cnt, this_crc)"
READS = (
    # pt-table-checksum, in its own order
    f"REPLACE INTO `percona`.`checksums` {COLUMNS} SELECT 'shop', 'orders', '1', NULL, NULL, NULL, {CHUNK}"
    " /*checksum table*/",
    f"REPLACE INTO `percona`.`checksums` {COLUMNS} SELECT 'shop', 'orders', '2', 'PRIMARY', '1', '1000', {CHUNK}"
    " FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) AND ((`id` <= '1000')) /*checksum chunk*/",
    f"REPLACE INTO `percona`.`checksums` {COLUMNS} SELECT 'shop', 'orders', '3', 'PRIMARY', NULL, '1', COUNT(*), '0'"
    " FROM `shop`.`orders` FORCE INDEX(`PRIMARY`) WHERE ((`id` < '1')) ORDER BY `id` /*past lower chunk*/",
    "UPDATE `percona`.`checksums` SET chunk_time = '0.000831', master_crc = '9a1', master_cnt = '3'"
    " WHERE db = 'shop' AND tbl = 'orders' AND chunk = '1'",
    "DELETE FROM `percona`.`checksums` WHERE db = 'shop' AND tbl = 'orders'",
    # other forms
    "INSERT INTO dba.totals SELECT COUNT(*) FROM shop.orders ON DUPLICATE KEY UPDATE n = VALUES(n) + 1",
    "INSERT LOW_PRIORITY IGNORE dba.totals (SELECT id FROM shop.orders o JOIN crm.orders c USING (id))",
    "INSERT INTO dba . totals SET n = (SELECT MAX(id) FROM shop.items), m = DEFAULT(m)",
    "INSERT INTO dba.totals WITH c AS (SELECT id FROM shop.orders) SELECT * FROM c",
    "REPLACE DELAYED INTO dba.totals PARTITION (p0) (n) SELECT /*+ MAX_EXECUTION_TIME(9) */ id FROM shop.orders",
    "INSERT INTO dba.totals VALUES ((SELECT COUNT(*) FROM shop.orders), IF(1, 2, 3))",
    "UPDATE dba.totals SET n = (SELECT COUNT(*) FROM shop.orders WHERE id IN (1, 2))",
    "UPDATE LOW_PRIORITY dba.totals t JOIN (SELECT id FROM shop.orders) o ON t.id = o.id SET t.n = 1",
    "WITH o AS (SELECT id FROM shop.orders) UPDATE dba.totals t JOIN dba.others USING (id) SET t.n = 1",
    "WITH o AS (SELECT id FROM shop.orders) DELETE FROM dba.totals WHERE id IN (SELECT id FROM o)",
    "DELETE FROM dba.totals ORDER BY (SELECT MIN(id) FROM shop.orders) LIMIT 1",
    "DELETE FROM dba.totals WHERE EXISTS (SELECT 1 FROM shop.orders) RETURNING id",
    "LOAD DATA INFILE 'f' INTO TABLE dba.totals LINES TERMINATED BY 'x' (a, @b) SET n = (SELECT 1 FROM shop.orders)",
    "WITH orders AS (SELECT id FROM shop.orders), items (n) AS (SELECT 1) UPDATE dba.totals t, orders, items SET n = 1",
    "WITH RECURSIVE items AS (SELECT 1 AS id FROM shop.items) DELETE t FROM dba.totals AS t JOIN `items` i USING (id)",
    # of several tables only those that are named as targets
    "UPDATE dba.t JOIN shop.orders o USING (id) SET t.n = o.n, t.m = 1 WHERE o.id IN (1, 2)",
    "UPDATE dba.t AS a, shop.orders AS b, (shop.items) SET dba.a.n = b.n, a.m = (SELECT 1) ORDER BY b.id LIMIT 1",
    "UPDATE LOW_PRIORITY dba.t a INNER JOIN `shop`.`orders` ON (a.id = orders.id AND orders.n > 1) SET `a`.n = 1",
    "DELETE t FROM dba.t JOIN shop.orders o USING (id) WHERE o.id = 1",
    "DELETE QUICK a.*, dba.u FROM dba.t AS a JOIN dba.u LEFT JOIN shop.orders ON orders.id = a.id",
    "DELETE FROM a USING dba.t a JOIN shop.orders o, shop.items WHERE o.id = a.id",
    "WITH o AS (SELECT 1 AS id) DELETE a FROM dba.t a JOIN o JOIN shop.orders ON orders.id = a.id",
    "INSERT -- shop.orders\n INTO dba.totals SELECT 'INSERT INTO shop.orders' # shop.items",
)
WRITES = (
    ("REPLACE INTO shop.checksums (n) SELECT COUNT(*) FROM crm.orders", {"shop.orders", "shop.items"}),
    ("INSERT INTO shop.orders SELECT * FROM crm.orders", {"shop.orders", "shop.items"}),
    ("INSERT INTO checksums SELECT * FROM crm.orders", {"shop.orders", "shop.items"}),
    ("UPDATE dba.t JOIN crm.orders o USING (id) SET n = 1", {"crm.orders"}),
    ("UPDATE dba.t JOIN crm.orders o USING (id) SET t.n = 1, m = 2", {"crm.orders"}),
    ("UPDATE dba.t JOIN crm.orders AS o USING (id) SET t.n = 1, O.m = t.n", {"crm.orders"}),
    ("UPDATE dba.t JOIN crm.orders ON t.id = orders.id SET crm.orders.m = t.n", {"crm.orders"}),
    ("UPDATE dba.t JOIN crm.orders PARTITION (p0, p1) o ON t.id = o.id SET o.m = t.n", {"crm.orders"}),
    ("UPDATE dba.t, (crm.orders o JOIN dba.u) SET o.m = t.n", {"crm.orders"}),
    ("UPDATE crm.orders PARTITION (p0) t, dba.t PARTITION (p0) AS o SET t.m = o.n", {"crm.orders"}),
    ("DELETE x FROM dba.t JOIN { OJ crm.orders x LEFT JOIN dba.u ON 1 }", {"crm.orders"}),
    ("UPDATE dba.t JOIN crm.orders FOR SYSTEM_TIME ALL AS x SET x.n = t.n", {"crm.orders"}),
    ("UPDATE dba.t STRAIGHT_JOIN orders o SET o.m = 1", {"shop.orders", "shop.items"}),
    ("DELETE t, o.* FROM dba.t JOIN crm.orders o", {"crm.orders"}),
    ("DELETE crm.orders.* FROM dba.t JOIN crm.orders", {"crm.orders"}),
    ("DELETE FROM t, crm.orders USING dba.t JOIN crm.orders", {"crm.orders"}),
    ("DELETE x FROM dba.t JOIN crm.orders PARTITION (p0) x", {"crm.orders"}),
    ("UPDATE dba.t, orders SET n = 1", {"shop.orders", "shop.items"}),
    ("UPDATE (dba.t, orders o) SET o.n = 1", {"shop.orders", "shop.items"}),
    ("DELETE o FROM dba.t JOIN crm.orders o USING (id) WHERE t.n = 1", {"crm.orders"}),
    ("DELETE FROM crm.orders, dba.t USING crm.orders JOIN dba.t WHERE 1", {"crm.orders"}),
    ("WITH c AS (SELECT 1) UPDATE crm.orders SET n = 1", {"crm.orders"}),
    ("WITH crm AS (SELECT 1), orders AS (SELECT 1) UPDATE crm.orders JOIN orders SET n = 1", {"crm.orders"}),
    # behind a dot each word is a name
    ("UPDATE dba.a JOIN dba.b ON a.set = b.set JOIN crm.orders o ON o.id = a.id SET o.n = 1", {"crm.orders"}),
    ("DELETE o FROM dba.a JOIN dba.b ON a.order = b.where JOIN crm.orders o ON o.id = a.limit", {"crm.orders"}),
    ("DELETE FROM o USING dba.a JOIN dba.b ON a.from = b.returning JOIN crm.orders o", {"crm.orders"}),
    ("LOAD XML LOCAL INFILE 'f' REPLACE INTO TABLE crm.orders ROWS IDENTIFIED BY 'r'", {"crm.orders"}),
)
CALLS = (
    "INSERT INTO dba.t VALUES (audit(1))",
    "INSERT INTO dba.t (a, b) SELECT 1, `audit`(2) FROM dba.u",
    "UPDATE dba.t SET n = audit (1)",
    "DELETE FROM dba.t WHERE audit(id) = 1",
    "LOAD DATA INFILE 'f' INTO TABLE dba.t (@a) SET n = audit(@a)",
    # a routine of a function's name is called if a space is before the parenthesis
    "INSERT INTO dba.t VALUES (COUNT (1))",
    "INSERT INTO dba.t VALUES (now/* */(1))",
    "INSERT INTO dba.t VALUES (Max\n(1))",
    # MySQL 9.7 has no such function any more
    "INSERT INTO dba.t VALUES (MD5(1))",
    "INSERT INTO dba.t VALUES (SHA1(1), SHA(1))",
    # MariaDB logs these as they are
    "CREATE TABLE dba.t SELECT audit(1) AS n",
    "CREATE TABLE IF NOT EXISTS dba.t (n INT CHECK (n > ABS(1))) IGNORE AS (SELECT audit(1) AS n)",
    "CREATE TEMPORARY TABLE dba.t AS WITH c AS (SELECT audit(1)) SELECT * FROM c",
    "CREATE OR REPLACE TABLE dba.t AS VALUES (audit(1))",
)
DOUBTS = (
    "INSERT INTO dba.t SELECT audit(id) FROM crm.orders",
    "INSERT INTO dba.t SELECT `audit` (id) FROM crm.orders",
    "INSERT INTO dba.t SELECT crm.count(id) FROM crm.orders",
    "INSERT INTO dba.t SELECT crm . `upper`(id) FROM crm.orders",
    "UPDATE dba.t SET n = fnv1a_64(n) WHERE n IN (SELECT id FROM crm.orders)",
    "DELETE FROM dba.t WHERE dba.f() AND n IN (SELECT id FROM crm.orders)",
    "LOAD DATA INFILE 'f' INTO TABLE dba.t (@a) SET n = f(@a, (SELECT 1 FROM crm.orders))",
    "INSERT INTO dba.t VALUES (NEXTVAL(crm.orders))",
    "INSERT INTO /*!99999 dba.t SELECT 1 FROM */ crm.orders VALUES (1)",
    "INSERT INTO dba.t /*M!100000 SELECT */ SELECT id FROM crm.orders",
    "WITH c AS (SELECT 1) SELECT * FROM crm.orders",
    "CALL dba.p((SELECT id FROM crm.orders))",
    "DO (SELECT id FROM crm.orders)",
    "MERGE INTO dba.t USING crm.orders ON 1 WHEN MATCHED THEN DELETE",
    "INSERT INTO dba.t SELECT 1; DELETE FROM crm.orders",
    "INSERT INTO dba.t OVERWRITE crm.orders VALUES (1)",
    "INSERT INTO 'dba' . t SELECT id FROM crm.orders",
    "UPDATE dba.t n = (SELECT id FROM crm.orders)",
)


def reached(statement: str, db: str = "shop", **settings: int) -> set[str]:
    found = classify(statement, db, CAPTURED, **settings)  # type: ignore[arg-type]
    assert all(isinstance(effect, Quarantine) for effect in found)
    return {effect.table_id for effect in found}


@pytest.mark.parametrize("db", ["shop", "percona", ""])
@pytest.mark.parametrize("statement", READS)
def test_a_statement_that_only_reads_the_copied_tables_stops_none(statement: str, db: str) -> None:
    assert reached(statement, db) == set()


@pytest.mark.parametrize(("statement", "tables"), WRITES)
def test_a_statement_stops_the_tables_of_each_database_that_it_writes(statement: str, tables: set[str]) -> None:
    assert reached(statement) == tables


@pytest.mark.parametrize("statement", DOUBTS)
def test_in_doubt_every_table_that_a_statement_names_may_be_written(statement: str) -> None:
    assert "crm.orders" in reached(statement, "")


@pytest.mark.parametrize("statement", CALLS)
def test_a_routine_without_a_database_is_one_of_the_sessions(statement: str) -> None:
    assert reached(statement) == {"shop.orders", "shop.items"}
    assert reached(statement, "dba") == set()


def test_a_table_made_of_a_query_stops_what_the_routines_of_that_query_can_reach_and_else_nothing() -> None:
    assert reached("CREATE TABLE dba.t SELECT crm.audit(1) AS n") == {"crm.orders"}
    assert reached("CREATE TABLE dba.t (id INT(11), KEY k (id)) SELECT COUNT(*) AS id FROM crm.orders") == set()
    assert reached("CREATE TABLE dba.t (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))") == set()
    assert reached("CREATE TABLE dba.t (id INT) PARTITION BY LIST (id) (PARTITION p VALUES IN (9))") == set()


def test_a_space_before_a_parenthesis_means_nothing_if_the_session_says_so() -> None:
    statement = "INSERT INTO dba.t SELECT COUNT (id) FROM crm.orders"
    assert reached(statement, "") == {"crm.orders"}
    assert reached(statement, "", sql_mode=1 << 3) == set()


def test_in_mariadbs_oracle_mode_a_name_needs_no_parenthesis_to_be_a_routine() -> None:
    statement = "INSERT INTO dba.t SELECT audit FROM crm.orders"
    assert reached(statement, "") == set()
    assert reached(statement, "", sql_mode=1 << 9) == {"crm.orders"}


@pytest.mark.parametrize("statement", READS)
def test_a_routine_anywhere_in_a_statement_makes_it_doubtful(statement: str) -> None:
    """In the place of each number and each literal."""
    for found in re.finditer(r"(?<![\w`'#.])(?:\d+|'[^']*')(?![\w`])", statement.partition("SELECT")[2] or statement):
        called = statement.replace(found[0], f"audit({found[0]})")
        if "/*+" not in statement and "INFILE audit" not in called and " -- " not in called and "--" not in called:
            assert reached(called) or "shop" not in called, called


def test_whatever_stands_before_or_after_it_a_copied_target_is_found() -> None:
    luck = random.Random(11)
    befores = ("", "LOW_PRIORITY ", "IGNORE ", "/* dba.t */ ", "/*! IGNORE */ ", "-- x\n ")
    names = ("crm.orders", "`crm`.`orders`", "crm . orders", "crm.`orders`", "/* a */ crm./* b */orders")
    forms = (
        "INSERT {}INTO {} SELECT * FROM dba.t{}",
        "REPLACE {}INTO {} VALUES (1){}",
        "UPDATE {}{} SET n = 1{}",
        "UPDATE {}dba.t, {} SET n = 1{}",
        "UPDATE {}dba.t JOIN {} ON 1 SET n = 1{}",
        "DELETE {}FROM {} WHERE 1{}",
        "DELETE {}FROM o USING dba.t JOIN {} o{}",
        "WITH c AS (SELECT 1) DELETE {}FROM {}{}",
        "LOAD DATA {}INFILE 'f' INTO TABLE {}{}",
    )
    afters = ("", " /* x */", " -- SELECT", ";", "\n")
    for _ in range(600):
        statement = luck.choice(forms).format(luck.choice(befores), luck.choice(names), luck.choice(afters))
        assert "crm.orders" in reached(statement, luck.choice(["", "dba", "shop"])), statement
