"""Every kind of schema change: the table it begins with, its statements, and what is expected of the lake."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.databases import Database, MariaDB

ROWS = 12
CREATE = (
    "(id INT PRIMARY KEY, a VARCHAR(20) NOT NULL, b INT, c DECIMAL(10,2), d DATETIME(6), e ENUM('x','y') NOT NULL"
    " DEFAULT 'x')"
)
BEFORE = (
    "UPDATE {t} SET b = b + 100 WHERE id < 3",
    "DELETE FROM {t} WHERE id = 4",
    "INSERT INTO {t} (id, a, b, c, d) VALUES (-5, 'ŵ before', 500, 5.55, '2024-05-05 05:05:05.555555')",
)
AFTER = ("DELETE FROM {t} WHERE id = 5", "UPDATE {t} SET e = 'y' WHERE id = 6", "INSERT INTO {t} (id) VALUES (600)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happens to one table `{t}`: `again` says that a live table is read again; `kept` are the columns that only
    the lake has in the end; `first` runs before the pipeline; `quick`: a part of the sample."""

    name: str
    ddl: tuple[str, ...]
    again: bool = False
    create: str = CREATE
    first: tuple[str, ...] = ()
    after: tuple[str, ...] = AFTER
    kept: tuple[str, ...] = ()
    only: type[Database] = Database
    quick: bool = False


NEW = "{t} (id, a, b, c, d, e) SELECT id, a, b, c, d, e FROM {t}"
CASES = (
    Case(name="add", ddl=("ALTER TABLE {t} ADD n INT", "UPDATE {t} SET n = id WHERE id > 8"), quick=True),
    Case(name="add_first", ddl=("ALTER TABLE {t} ADD n INT FIRST", "UPDATE {t} SET n = id WHERE id > 8"), quick=True),
    Case(name="add_after", ddl=("ALTER TABLE {t} ADD n VARCHAR(9) CHARACTER SET latin1 AFTER a",)),
    Case(
        name="add_constants",
        ddl=(
            "ALTER TABLE {t} ADD n1 INT NOT NULL DEFAULT 7, ADD n2 VARCHAR(9) NOT NULL DEFAULT 'x''\\n\\%' AFTER a,"
            " ADD n3 DATE DEFAULT '2020-01-02', ADD n4 DATETIME NOT NULL DEFAULT '2020-01-02 03:04:05',"
            " ADD n5 DECIMAL(5,2) DEFAULT 1.5, ADD n6 ENUM('p','q') NOT NULL DEFAULT 'q',"
            " ADD n7 BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615, ADD n8 DOUBLE NOT NULL DEFAULT -0.1,"
            " ADD n9 DECIMAL(38,4) NOT NULL DEFAULT -1234567890123456789012345678901234.5",
            "UPDATE {t} SET n1 = 8, n2 = '' WHERE id = 7",
        ),
        quick=True,
    ),
    Case(
        name="add_other_mode",
        ddl=(
            "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'",
            "ALTER TABLE {t} ADD \"n\" VARCHAR(9) NOT NULL DEFAULT 'a\\n'",
            "SET SESSION sql_mode = ''",
        ),
    ),
    Case(name="add_expression", ddl=("ALTER TABLE {t} ADD n VARCHAR(40) DEFAULT (CONCAT('x', id))",), again=True),
    Case(name="add_now", ddl=("ALTER TABLE {t} ADD n DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",), again=True),
    Case(name="add_zeros", ddl=("ALTER TABLE {t} ADD n INT NOT NULL",), again=True),
    Case(name="add_counted", ddl=("ALTER TABLE {t} ADD n SERIAL",), again=True),
    Case(
        name="add_spelt",
        ddl=(
            "ALTER TABLE {t} ADD n1 FLOAT(30), ADD n2 FLOAT(7,3), ADD n3 REAL(9,2), ADD n4 MIDDLEINT, ADD n5 DEC(0)",
            "UPDATE {t} SET n1 = 0.1, n2 = 1.5, n3 = 2.25, n4 = 1 << 22, n5 = 1234567890 WHERE id = 8",
        ),
    ),
    Case(name="add_generated", ddl=("ALTER TABLE {t} ADD n INT AS (b + 1) STORED",), again=True),
    Case(name="drop", ddl=("ALTER TABLE {t} DROP COLUMN b",), kept=("b",), quick=True),
    Case(name="drop_first", ddl=("ALTER TABLE {t} ADD n INT FIRST", "ALTER TABLE {t} DROP n"), kept=("n",)),
    Case(
        name="drop_add",
        ddl=("ALTER TABLE {t} DROP b", "INSERT INTO {t} (id, a) VALUES (77, 'between')", "ALTER TABLE {t} ADD b INT"),
        again=True,
    ),
    Case(
        name="rename",
        ddl=("ALTER TABLE {t} RENAME COLUMN a TO z", "UPDATE {t} SET z = 'ŵ after' WHERE id = 8"),
        quick=True,
    ),
    Case(name="change", ddl=("ALTER TABLE {t} CHANGE a z VARCHAR(50) NOT NULL",)),
    Case(
        name="rename_key",
        ddl=("ALTER TABLE {t} RENAME COLUMN id TO number",),
        after=("DELETE FROM {t} WHERE number = 5", "INSERT INTO {t} (number) VALUES (600)"),
    ),
    Case(
        name="swap_columns",
        ddl=(
            "ALTER TABLE {t} RENAME COLUMN c TO s",
            "ALTER TABLE {t} RENAME COLUMN b TO c",
            "ALTER TABLE {t} RENAME COLUMN s TO b",
        ),
        again=True,
    ),
    Case(
        name="swap_columns_at_once",
        ddl=("ALTER TABLE {t} RENAME COLUMN c TO b, RENAME COLUMN b TO c",),
        again=True,
    ),
    Case(name="move", ddl=("ALTER TABLE {t} MODIFY c DECIMAL(10,2) FIRST",)),
    Case(
        name="widen",
        ddl=(
            "ALTER TABLE {t} MODIFY b BIGINT, MODIFY a VARCHAR(200) NOT NULL, MODIFY c DECIMAL(20,2),"
            " MODIFY e ENUM('x','y','z') NOT NULL DEFAULT 'x'",
            "UPDATE {t} SET b = 1 << 40, c = 123456789012.25, e = 'z' WHERE id = 7",
        ),
        quick=True,
    ),
    Case(name="narrow", ddl=("ALTER TABLE {t} MODIFY b SMALLINT",), again=True),
    Case(name="narrow_text", ddl=("ALTER TABLE {t} MODIFY a VARCHAR(12) NOT NULL",), again=True),
    Case(
        name="not_null",  # a null becomes 0
        ddl=("UPDATE {t} SET b = NULL WHERE id = 9", "ALTER TABLE {t} MODIFY b INT NOT NULL"),
        again=True,
    ),
    Case(name="precision", ddl=("ALTER TABLE {t} MODIFY d DATETIME",), again=True, quick=True),
    Case(name="scale", ddl=("ALTER TABLE {t} MODIFY c DECIMAL(10,1)",), again=True),
    Case(name="kind", ddl=("ALTER TABLE {t} MODIFY a TEXT NOT NULL",), again=True),
    Case(
        name="charset",
        ddl=("SET SESSION sql_mode = ''", "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1"),
        again=True,
    ),
    Case(
        name="charset_of_the_table",
        create=CREATE.replace("a VARCHAR(20)", "a VARCHAR(20) CHARACTER SET utf8mb4") + " DEFAULT CHARSET latin1",
        ddl=("SET SESSION sql_mode = ''", "ALTER TABLE {t} MODIFY a VARCHAR(40) NOT NULL"),
        again=True,
        quick=True,
    ),
    Case(
        name="charset_to_come",
        ddl=(
            "ALTER TABLE {t} DEFAULT CHARACTER SET latin1",
            "ALTER TABLE {t} ADD n VARCHAR(5)",
            "UPDATE {t} SET n = 'é' WHERE id = 8",
        ),
    ),
    Case(name="key", ddl=("ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (a)",), again=True, quick=True),
    Case(
        name="key_of_an_index",
        create=CREATE.replace("id INT PRIMARY KEY", "id INT NOT NULL UNIQUE"),
        ddl=("ALTER TABLE {t} DROP INDEX id, ADD PRIMARY KEY (a, id)",),
        again=True,
    ),
    Case(name="key_wider", ddl=("ALTER TABLE {t} MODIFY id BIGINT",)),
    Case(name="index", ddl=("ALTER TABLE {t} ADD INDEX i (b), COMMENT 'x'", "ALTER TABLE {t} DROP INDEX i, FORCE")),
    Case(name="truncate", ddl=("TRUNCATE {t}", "INSERT INTO {t} (id, a) VALUES (8, 'again')"), quick=True),
    Case(
        name="recreate",
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} (id BIGINT PRIMARY KEY, e CHAR(1) NOT NULL DEFAULT 'q')"),
        again=True,
        quick=True,
    ),
    Case(
        name="create_like",
        ddl=(
            "CREATE TABLE {t}_new LIKE {t}",
            "ALTER TABLE {t}_new ADD n INT NOT NULL DEFAULT 3 FIRST",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        ),
        again=True,
    ),
    Case(
        name="recreate_like",
        first=("CREATE TABLE {t}_from (id INT PRIMARY KEY, e CHAR(1) NOT NULL DEFAULT 'q', other INT)",),
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} LIKE {t}_from"),
        again=True,
    ),
    Case(
        name="or_replace",
        only=MariaDB,
        first=("CREATE TABLE {t}_from " + CREATE, f"INSERT INTO {NEW.replace('{t}', '{t}_from', 1)}"),
        ddl=("CREATE OR REPLACE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, e, b * 2 AS twice FROM {t}_from",),
        again=True,
    ),
    Case(
        name="create_select",
        first=("CREATE TABLE {t}_from " + CREATE, f"INSERT INTO {NEW.replace('{t}', '{t}_from', 1)}"),
        ddl=("DROP TABLE {t}", "CREATE TABLE {t} (PRIMARY KEY (id)) AS SELECT id, e, b * 2 AS twice FROM {t}_from"),
        again=True,
    ),
    Case(
        name="key_later",  # for a moment the table has no identity
        ddl=(
            "DROP TABLE {t}",
            "CREATE TABLE {t} AS SELECT 8 AS id, 'q' AS e",
            "SELECT SLEEP(1)",
            "ALTER TABLE {t} ADD PRIMARY KEY (id)",
        ),
        again=True,
    ),
    Case(
        name="rename_swap",
        first=("CREATE TABLE {t}_b (id INT PRIMARY KEY, e CHAR(1) DEFAULT 'q', other INT)",),
        ddl=("INSERT INTO {t}_b (id) VALUES (6), (8)", "RENAME TABLE {t} TO {t}_old, {t}_b TO {t}"),
        again=True,
        quick=True,
    ),
    Case(
        name="rename_back",
        ddl=("RENAME TABLE {t} TO {t}_away", "INSERT INTO {t}_away (id) VALUES (888)", "RENAME TABLE {t}_away TO {t}"),
        again=True,
    ),
    Case(
        name="three_renames",
        first=("CREATE TABLE {t}_b " + CREATE,),
        ddl=("INSERT INTO {t}_b (id) VALUES (9)", "RENAME TABLE {t} TO {t}_s, {t}_b TO {t}, {t}_s TO {t}_b"),
        again=True,
    ),
    Case(
        name="partition",
        create=CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN"
        " (10), PARTITION p2 VALUES LESS THAN MAXVALUE)",
        ddl=("ALTER TABLE {t} DROP PARTITION p0",),
        again=True,
    ),
    Case(
        name="truncate_partition",
        create=CREATE + " PARTITION BY HASH (id) PARTITIONS 3",
        ddl=("ALTER TABLE {t} TRUNCATE PARTITION p1",),
        again=True,
    ),
    Case(
        name="exchange",
        create=CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN"
        " MAXVALUE)",
        first=("CREATE TABLE {t}_x " + CREATE, "INSERT INTO {t}_x (id, a) VALUES (1, 'exchanged')"),
        ddl=("ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_x",),
        again=True,
    ),
    Case(
        name="exchanged",  # as the table that the other one gives a partition for
        first=(
            "CREATE TABLE {t}_p " + CREATE + " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN MAXVALUE)",
            "INSERT INTO {t}_p (id, a) VALUES (1, 'exchanged'), (5, 'too')",
        ),
        ddl=("ALTER TABLE {t}_p EXCHANGE PARTITION p0 WITH TABLE {t}",),
        again=True,
    ),
    Case(
        name="own_settings",
        only=MariaDB,
        ddl=(
            "SET STATEMENT max_statement_time = 60 FOR ALTER TABLE {t} ADD n INT",
            "SET STATEMENT max_statement_time = 60, sql_mode = '' FOR TRUNCATE {t}",
            "INSERT INTO {t} (id, n) VALUES (8, 9)",
        ),
    ),
    Case(
        name="two_phases",
        only=MariaDB,
        ddl=(
            "SET SESSION binlog_alter_two_phase = ON",
            "ALTER TABLE {t} ADD n INT",
            "UPDATE {t} SET n = id WHERE id > 8",
            "ALTER TABLE {t} DROP b",
            "SET SESSION binlog_alter_two_phase = OFF",
        ),
        kept=("b",),
    ),
    Case(
        name="gh_ost",  # as gh-ost does it: changes copied beside rows, then both names swapped at once
        ddl=(
            "CREATE /* gh-ost */ TABLE {t}_gho LIKE {t}",
            "ALTER /* gh-ost */ TABLE {t}_gho ADD n INT, DROP COLUMN b",
            "INSERT /* gh-ost */ IGNORE INTO {t}_gho (id, a, c, d, e) SELECT id, a, c, d, e FROM {t}",
            "REPLACE /* gh-ost */ INTO {t}_gho (id, a, c, d, e) VALUES (8, 'replaced', 1, NULL, 'y')",
            "RENAME /* gh-ost */ TABLE {t} TO {t}_del, {t}_gho TO {t}",
            "DROP /* gh-ost */ TABLE IF EXISTS {t}_del",
        ),
        again=True,
    ),
    Case(
        name="twice",  # two tools after each other (Flink CDC fails there)
        ddl=(
            "CREATE TABLE {t}_new LIKE {t}",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
            "DROP TABLE {t}_old",
            "CREATE TABLE {t}_new LIKE {t}",
            f"INSERT INTO {NEW.replace('{t}', '{t}_new', 1)}",
            "RENAME TABLE {t} TO {t}_old, {t}_new TO {t}",
        ),
        again=True,
    ),
    Case(name="if_exists", only=MariaDB, ddl=("ALTER TABLE {t} ADD IF NOT EXISTS n INT, DROP IF EXISTS nothing",)),
)


def rows(table: str) -> str:
    values = ", ".join(f"({n}, 'rów {n}', {n}, {n}.25, '2024-01-02 03:04:05.6789{n:02d}', 'x')" for n in range(ROWS))
    return f"INSERT INTO {table} (id, a, b, c, d, e) VALUES {values}"
