"""What ddl.py makes of a statement is what the server's catalogue shows after it, however it is spelt.

One table gets a column of every spelling, and others are altered in other ways. Where that is followed, the columns'
names, places, types, character sets and nullability, the key and the table's character set are the catalogue's
afterwards; the row that was there has the defaults that the lake will show, and the next row is decoded.
"""

from __future__ import annotations

from cutline.common.schema import Column, TableSchema, parse_type
from cutline.services.sources.mysql.binlog import ddl
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.spark_writer.sinks.iceberg.columns import default_value
from tests.support.databases import Database, MariaDB, MySQL
from tests.support.sources import connected, rows_of
from tests.support.streams import stream

CREATE = (
    "(id INT PRIMARY KEY, a VARCHAR(20) NOT NULL DEFAULT 'a', b INT, c DECIMAL(10,2), d DATETIME(6),"
    " e ENUM('x','y') NOT NULL DEFAULT 'x', f FLOAT, t TINYTEXT, s CHAR(4) CHARACTER SET latin1)"
)

FOLLOWED = (
    "TINYINT", "TINYINT(01)", "TINYINT(1) ZEROFILL", "BOOL", "BOOLEAN NOT NULL DEFAULT TRUE", "INT1(1)", "INT2", "INT3",
    "INT4", "INT8 UNSIGNED", "MIDDLEINT(5)", "SMALLINT SIGNED", "INT(11) ZEROFILL", "INTEGER(5) UNSIGNED ZEROFILL",
    "BIGINT(20)", "DECIMAL", "DECIMAL(0)", "DEC(4,1) ZEROFILL", "NUMERIC(7) UNSIGNED", "FIXED(9,9)", "DECIMAL(65,30)",
    "FLOAT", "FLOAT(0)", "FLOAT(24) UNSIGNED", "FLOAT(25)", "FLOAT(30)", "FLOAT(53)", "FLOAT(7,3)", "FLOAT(30,2)",
    "FLOAT4", "FLOAT8", "REAL", "REAL(8,2)", "DOUBLE PRECISION", "DOUBLE PRECISION(10,2) UNSIGNED ZEROFILL",
    "BIT", "BIT(1)", "BIT(64)", "CHAR", "CHAR(0)", "CHARACTER(5)", "VARCHAR(0)", "BINARY", "BINARY(5)",
    "VARBINARY(5)", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "JSON",
    "VARCHAR(5) CHARSET latin1 COLLATE latin1_bin", "VARCHAR(5) COLLATE koi8r_bin", "TEXT CHARACTER SET ucs2",
    "VARCHAR(5) CHARACTER SET utf8mb3", "VARCHAR(5) CHARACTER SET 'UTF8MB3'", "VARCHAR(5) COLLATE utf8mb3_bin",
    "ENUM('a','b ')", "ENUM(\"it's\",'x,y')", r"ENUM('é','a\\','c''d','e\tf')", "ENUM('a') CHARACTER SET latin1",
    "ENUM('a') COLLATE utf8mb4_bin", "SET('a ','b')", "DATE", "TIME", "TIME(0)", "TIME(3)", "DATETIME(0)",
    "DATETIME(6)", "TIMESTAMP(3) NULL", "YEAR", "YEAR(4)", "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT",
    "MULTILINESTRING", "MULTIPOLYGON", "GEOMETRYCOLLECTION",
    "INT NULL INVISIBLE COMMENT 'x, y'", "INT NOT NULL DEFAULT 5 INVISIBLE", "INT UNIQUE KEY", "INT CHECK (1 = 1)",
    "INT DEFAULT '5'", "INT DEFAULT +5", "INT DEFAULT 05", "BIGINT UNSIGNED DEFAULT 18446744073709551615",
    "DECIMAL(5,2) DEFAULT 1", "DECIMAL(0) DEFAULT 3", "DECIMAL(50,2) DEFAULT -1.5",
    "DECIMAL(38,4) DEFAULT -1234567890123456789012345678901234.5", "DECIMAL(65,0) DEFAULT -0", "DOUBLE DEFAULT 0.1",
    "FLOAT(30) DEFAULT 1e300", "REAL DEFAULT '0.5'", "CHAR(5) DEFAULT ''", "CHAR(5) CHARACTER SET latin1 DEFAULT 'é'",
    "VARCHAR(5) DEFAULT 'ab '", r"VARCHAR(9) DEFAULT 'a\n\%\x'",
    r"ENUM('a\\','b') NOT NULL DEFAULT 'a\\'", "DATE DEFAULT '2020-01-02'", "DATETIME DEFAULT '2020-01-02 03:04:05'",
    "DATETIME DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP", "INT /*! DEFAULT 5 */", "INT /*M! DEFAULT 5 */",
)  # fmt: skip
FOLLOWED_BY_MYSQL = (
    "GEOMCOLLECTION", "VECTOR(3)", "INT VISIBLE", "INT COLUMN_FORMAT FIXED STORAGE DISK",
    "VARCHAR(5) CHARACTER SET utf8", "VARCHAR(5) COLLATE utf8_general_ci",
)  # fmt: skip
FOLLOWED_BY_MARIADB = (
    "BIT(0)", "UUID", "INET6", "INET4", "YEAR(2)", "VARCHAR(5) COLLATE DEFAULT", "VARCHAR(5) COLLATE uca1400_ai_ci",
    "VARCHAR(5) CHARSET latin1 COLLATE DEFAULT",
)  # fmt: skip
ALTERS = {  # what comes after ALTER TABLE t, and whether it is followed in place
    "ADD (n INT, m VARCHAR(5))": True,
    "ADD n INT FIRST, ADD m INT AFTER n, ADD o INT AFTER n": True,
    "ADD n INT AFTER a, MODIFY c DECIMAL(10,2) FIRST, DROP b": True,
    "MODIFY a VARCHAR(20) NOT NULL AFTER d, MODIFY b INT FIRST": True,
    "CHANGE COLUMN b `b ``b` BIGINT AFTER d, RENAME COLUMN a TO z": True,
    "RENAME COLUMN id TO number": True,
    "RENAME COLUMN c TO b, RENAME COLUMN b TO c": False,
    "DROP b, ADD b INT": False,
    "MODIFY id INT8": True,
    "MODIFY id BIGINT UNSIGNED": False,
    "MODIFY b INT8": True,
    "MODIFY b INT4(5)": True,
    "MODIFY b INT(7) ZEROFILL": False,
    "MODIFY b FLOAT8": False,
    "MODIFY c NUMERIC(12,2)": True,
    "MODIFY c FIXED(12)": False,
    "MODIFY d DATETIME(5)": False,
    "MODIFY f FLOAT(20)": True,
    "MODIFY f FLOAT(30)": False,
    "MODIFY f FLOAT(7,3)": False,
    "MODIFY t TEXT": True,
    "MODIFY t VARCHAR(300)": False,
    "MODIFY s CHARACTER(9) CHARSET latin1": True,
    "MODIFY s CHAR(9)": False,
    "MODIFY s VARCHAR(9) CHARSET latin1": False,
    "MODIFY e ENUM('x','y','z\\\\') NOT NULL DEFAULT 'y'": True,
    "MODIFY e ENUM('y','x') NOT NULL": False,
    "CHARSET latin1": True,
    "DEFAULT CHARACTER SET = utf8mb3 COLLATE = utf8mb3_bin": True,
    "COLLATE latin1_bin, ADD n INT": True,
    "COLLATE latin1_bin, ADD n TEXT": False,
    "CONVERT TO CHARACTER SET utf8mb3": False,
}
_COUNTED = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


def comparable(schema: TableSchema) -> dict[str, object]:
    """What must be equal: all but widths of display, of which the catalogues tell some."""

    def column(declared: Column) -> object:
        kind = parse_type(declared.mysql_type)
        numbers = () if kind.base in _COUNTED else kind.numbers
        type_of = (kind.base, numbers, kind.members, kind.unsigned, declared.mysql_type == "tinyint(1)")
        return type_of, declared.charset, declared.nullable, declared.generated

    return {declared.name: column(declared) for declared in schema.columns} | {"": (schema.key, schema.charset)}


def differences(found: TableSchema, wanted: TableSchema) -> list[str]:
    """One line a column that differs, or that the columns are others."""
    ours, theirs = comparable(found), comparable(wanted)
    if list(ours) != list(theirs):
        return [f"{list(ours)} for {list(theirs)}"]
    return [f"{name}: {ours[name]} for {theirs[name]}" for name in ours if ours[name] != theirs[name]]


def test_a_column_of_every_spelling_is_what_the_catalogue_shows(source: Database, database: str) -> None:
    spelt = FOLLOWED + (FOLLOWED_BY_MYSQL if isinstance(source, MySQL) else FOLLOWED_BY_MARIADB)
    added = ", ".join(f"`{spelling}` {spelling}" for spelling in spelt)
    table = f"{database}.t"
    source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    with stream(source, [table]) as it:
        source.execute(
            f"INSERT INTO {table} VALUES (1)",
            f"ALTER TABLE {table} ADD ({added})",
            f"INSERT INTO {table} (id) VALUES (2)",
        )
        _, streamed = it.drain()
        assert it.faults == []
        schema = it.routes[table].schema
    with connected(source) as (conn, _):
        catalogued = table_schema(conn, table)
        before, after = rows_of(conn, catalogued, None, None).to_pylist()
    assert differences(schema, catalogued) == []
    assert {name: streamed[name] for name in after} == after
    defaults = {column.name: default_value(column, column.arrow.type) for column in schema.columns[1:]}
    assert {name: before[name] for name in defaults} == defaults


def test_an_altered_table_is_what_the_catalogue_shows(source: Database, database: str) -> None:
    tables = {f"{database}.t{number}": statement for number, statement in enumerate(ALTERS)}
    source.execute(*(f"CREATE TABLE {table} {CREATE}" for table in tables))
    with connected(source) as (conn, _):
        before = {table: table_schema(conn, table) for table in tables}
        source.execute(*(f"ALTER TABLE {table} {statement}" for table, statement in tables.items()))
        after = {table: table_schema(conn, table) for table in tables}
    wrong = []
    for table, statement in tables.items():
        text, captured = f"ALTER TABLE {table} {statement}", {table: before[table]}
        found = ddl.classify(text, database, captured, primary={table}, mariadb=isinstance(source, MariaDB))
        schema = next((effect.schema for effect in found if isinstance(effect, ddl.Evolve)), before[table])
        if any(isinstance(effect, ddl.Restart) for effect in found) == ALTERS[statement]:
            wrong.append(f"{statement}: {found}")
        elif ALTERS[statement]:
            wrong += [f"{statement}: {line}" for line in differences(schema, after[table])]
    assert wrong == []
