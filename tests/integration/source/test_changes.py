"""Every way to change rows: the stream, laid over what was there, is the table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cutline.services.sources.contract import Route
from cutline.services.sources.mysql.catalogue import describe, list_tables
from cutline.services.sources.mysql.connection import Connection
from tests.support.databases import Database
from tests.support.sources import connected, here, rows_of
from tests.support.streams import Content, as_text, follow, route

COUNT = "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 40) SELECT"

# name: (tables of that name and more, what is there before, what happens); {t} is the table
BOTH: dict[str, tuple[list[str], list[str]]] = {
    "savepoints": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)"],
        ["BEGIN", "INSERT INTO {t} VALUES (1, 1)", "SAVEPOINT a", "INSERT INTO {t} VALUES (2, 2)", "SAVEPOINT b",
         "UPDATE {t} SET v = 9", "ROLLBACK TO b", "DELETE FROM {t} WHERE id = 1", "ROLLBACK TO a",
         "INSERT INTO {t} VALUES (3, 3)", "RELEASE SAVEPOINT a", "COMMIT",
         "BEGIN", "UPDATE {t} SET id = id + 10", "ROLLBACK"],
    ),
    "triggers": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)",
         "CREATE TABLE {t}_log (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
         "CREATE TRIGGER {t}_i AFTER INSERT ON {t} FOR EACH ROW INSERT INTO {t}_log (n) VALUES (NEW.v)",
         "CREATE TRIGGER {t}_u BEFORE UPDATE ON {t} FOR EACH ROW SET NEW.v = OLD.v * 2",
         "CREATE TRIGGER {t}_d AFTER DELETE ON {t} FOR EACH ROW DELETE FROM {t}_log WHERE n = OLD.v"],
        ["INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3)", "UPDATE {t} SET v = 0 WHERE id < 3",
         "DELETE FROM {t} WHERE id = 3"],
    ),
    "upserts": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, u VARCHAR(9) COLLATE utf8mb4_general_ci UNIQUE, v INT)",
         "INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)"],
        ["INSERT INTO {t} VALUES (1, 'x', 7), (9, 'B', 8), (4, 'd', 4) ON DUPLICATE KEY UPDATE v = v + 100, u = u",
         "INSERT INTO {t} VALUES (9, 'C', 8) ON DUPLICATE KEY UPDATE id = 30, u = 'C'",
         "REPLACE INTO {t} VALUES (1, 'B', 5)",  # takes two rows away
         "REPLACE INTO {t} VALUES (4, 'D', 6), (5, 'e', 6), (5, 'f', 7)",
         "INSERT IGNORE INTO {t} VALUES (5, 'z', 1), (6, 'F', 1), (7, 'g', 'not a number'), (8, 'h', NULL)"],
    ),
    "replaced": (  # REPLACE over the last unique key alone is logged as an update
        ["CREATE TABLE {t} (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
         "INSERT INTO {t} VALUES ('a', 1), ('é', 2)"],
        ["REPLACE INTO {t} VALUES ('A', 3)", "REPLACE INTO {t} VALUES ('E', 4)",
         "INSERT INTO {t} VALUES ('Á', 1) ON DUPLICATE KEY UPDATE k = VALUES(k)",
         "UPDATE {t} SET k = LOWER(k)", "DELETE FROM {t} WHERE k = 'E'", "INSERT INTO {t} VALUES ('É', 9)"],
    ),
    "moves": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {{t}} {COUNT} i, i FROM n"],
        ["UPDATE {t} SET id = id + 1 ORDER BY id DESC", "UPDATE {t} SET id = id - 1 ORDER BY id",
         "UPDATE {t} SET id = -id ORDER BY v LIMIT 7", "DELETE FROM {t} ORDER BY id DESC LIMIT 5",
         "BEGIN", "UPDATE {t} SET id = 1000 WHERE id = 10", "UPDATE {t} SET id = 10 WHERE id = 11",
         "UPDATE {t} SET id = 11 WHERE id = 1000", "COMMIT"],
    ),
    "joins": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)", "CREATE TABLE {t}_b (id INT PRIMARY KEY, v INT)",
         f"INSERT INTO {{t}} {COUNT} i, i FROM n", f"INSERT INTO {{t}}_b {COUNT} i * 2, i FROM n"],
        ["UPDATE {t} JOIN {t}_b USING (id) SET {t}.v = {t}_b.v, {t}_b.v = -1",
         "DELETE {t}, {t}_b FROM {t} JOIN {t}_b USING (id) WHERE {t}.id > 20",
         "INSERT INTO {t} SELECT id + 100, v FROM {t}_b", "CREATE VIEW {t}_view AS SELECT * FROM {t} WHERE id > 110",
         "UPDATE {t}_view SET v = 5", "DELETE FROM {t}_view WHERE id > 120"],
    ),
    "partitions": (
        ["CREATE TABLE {t} (id INT, p INT, PRIMARY KEY (id, p)) PARTITION BY HASH (p) PARTITIONS 4",
         f"INSERT INTO {{t}} {COUNT} i, i FROM n"],
        ["UPDATE {t} SET p = p + 1", "DELETE FROM {t} WHERE p = 8", "REPLACE INTO {t} VALUES (1, 2), (2, 3)"],
    ),
    "loaded": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1, n INT)",
         "INSERT INTO {t} VALUES (2, 'old', 2), (3, 'old', 3)"],
        ["LOAD DATA LOCAL INFILE '{file}' REPLACE INTO TABLE {t} CHARACTER SET utf8mb4 (id, v) SET n = id * 2",
         "LOAD DATA LOCAL INFILE '{file}' IGNORE INTO TABLE {t} CHARACTER SET utf8mb4 (@a, v) SET id = @a + 2"],
    ),
    "routines": (
        ["CREATE TABLE {t} (id INT AUTO_INCREMENT PRIMARY KEY, at TIMESTAMP(6) NULL, u CHAR(36), r DOUBLE)",
         "CREATE PROCEDURE {t}_p() BEGIN INSERT INTO {t} (at, u, r) VALUES (NOW(6), UUID(), RAND());"
         " UPDATE {t} SET r = RAND(); END",
         "CREATE FUNCTION {t}_f() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
         " BEGIN DELETE FROM {t} ORDER BY id LIMIT 1; RETURN 1; END"],
        ["CALL {t}_p()", "CALL {t}_p()", "SELECT {t}_f()", "CALL {t}_p()", "DO {t}_f()"],
    ),
}  # fmt: skip

MYSQL: dict[str, tuple[list[str], list[str]]] = {
    "computed": (
        ["CREATE TABLE {t} (a INT, k VARCHAR(20) GENERATED ALWAYS AS (CONCAT('k', a)) STORED PRIMARY KEY,"
         " v INT GENERATED ALWAYS AS (a * 2) VIRTUAL)"],
        ["INSERT INTO {t} (a) VALUES (1), (2), (3)", "UPDATE {t} SET a = a + 10 WHERE a > 1",
         "DELETE FROM {t} WHERE a = 1"],
    ),
    "cascades": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY)",
         "CREATE TABLE {t}_child (id INT PRIMARY KEY, p INT,"
         " FOREIGN KEY (p) REFERENCES {t} (id) ON DELETE CASCADE ON UPDATE CASCADE)",
         "CREATE TABLE {t}_grandchild (id INT PRIMARY KEY, c INT,"
         " FOREIGN KEY (c) REFERENCES {t}_child (id) ON DELETE SET NULL)",
         f"INSERT INTO {{t}} {COUNT} i FROM n", f"INSERT INTO {{t}}_child {COUNT} i, i DIV 2 + 1 FROM n",
         f"INSERT INTO {{t}}_grandchild {COUNT} i, i DIV 3 + 1 FROM n"],
        ["DELETE FROM {t} WHERE id < 6", "UPDATE {t} SET id = id + 100 WHERE id > 15",
         "REPLACE INTO {t} VALUES (10), (11)"],
    ),
}  # fmt: skip

MARIADB: dict[str, tuple[list[str], list[str]]] = {
    "periods": (
        ["CREATE TABLE {t} (id INT, v INT, s DATE, e DATE, PERIOD FOR p(s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))",
         "INSERT INTO {t} VALUES (1, 1, '2000-01-01', '2020-01-01'), (2, 2, '2000-01-01', '2020-01-01')"],
        ["UPDATE {t} FOR PORTION OF p FROM '2005-01-01' TO '2006-01-01' SET v = 9",
         "DELETE FROM {t} FOR PORTION OF p FROM '2010-01-01' TO '2011-01-01' WHERE id = 2",
         "INSERT INTO {t} VALUES (2, 5, '2010-02-01', '2010-03-01')"],
    ),
    "sequences": (
        ["CREATE SEQUENCE {t}_s", "CREATE TABLE {t} (id INT DEFAULT NEXTVAL({t}_s) PRIMARY KEY, v INT)"],
        ["INSERT INTO {t} (v) VALUES (1), (2)", "SELECT NEXTVAL({t}_s)", "INSERT INTO {t} (v) VALUES (3) RETURNING id",
         "DELETE FROM {t} WHERE v = 1 RETURNING id"],
    ),
}  # fmt: skip


WITHOUT_GTIDS: dict[str, tuple[list[str], list[str]]] = {  # MySQL with GTIDs refuses such transactions
    "engines": (
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)", "CREATE TABLE {t}_myisam (id INT PRIMARY KEY) ENGINE=MyISAM"],
        ["BEGIN", "INSERT INTO {t} VALUES (1, 1)", "INSERT INTO {t}_myisam VALUES (1)",
         "INSERT INTO {t} VALUES (2, 2)", "COMMIT",
         "BEGIN", "INSERT INTO {t}_myisam VALUES (2)", "INSERT INTO {t} VALUES (3, 3)", "ROLLBACK",
         "UPDATE {t}, {t}_myisam SET v = v + 10 WHERE {t}.id = {t}_myisam.id"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("flavour", ["mariadb", "mysql", "mysql_nogtid"])
def test_the_stream_over_what_was_there_is_the_table(
    request: pytest.FixtureRequest, fresh_database: Callable[[Database], str], tmp_path: Path, flavour: str
) -> None:
    source: Database = request.getfixturevalue(flavour)
    database = fresh_database(source)
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"{number}\ttéxt {number}\n" for number in range(1, 30)))
    cases = BOTH | (MARIADB if flavour == "mariadb" else MYSQL) | (WITHOUT_GTIDS if flavour != "mysql" else {})

    def run(statements: list[str], name: str) -> None:
        with closing(source.connect(database=database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = '', autocommit = 1")
            for statement in statements:
                cursor.execute(statement.format(t=name, file=file))
                cursor.fetchall()

    for name, (prepared, _) in cases.items():
        run(prepared, name)
    at = here(source)
    with connected(source) as (conn, server_info):
        names = [name for name in list_tables(conn) if name.startswith(f"{database}.")]
        routes = {name: route(source, name, at) for name in names if not describe(conn, server_info, name).faults}
        before = contents(conn, routes)
    assert len(routes) > len(cases)
    lake = {name: dict(content) for name, content in before.items()}
    for name, (_, changes) in cases.items():
        run(changes, name)
    faults = follow(source, routes, lake, strict=True)
    assert not faults, "\n".join(faults)
    with connected(source) as (conn, _):
        after = contents(conn, routes)
    for name in routes:
        assert lake[name] == after[name], name
        assert after[name] != before[name], f"nothing happened to {name}"


def contents(conn: Connection, routes: dict[str, Route]) -> dict[str, Content]:
    return {
        name: dict(as_text(row, route.schema) for row in rows_of(conn, route.schema, None, None).to_pylist())
        for name, route in routes.items()
    }
