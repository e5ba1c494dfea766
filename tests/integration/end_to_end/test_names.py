"""Any name that MySQL allows for a column passes, from the snapshot to the lake, under changes and renames."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pymysql
import pytest
from pymysql.constants import ER

from cutline.common.schema import META_FIELDS
from cutline.spark_writer import session
from cutline.spark_writer.sinks.iceberg.columns import quoted
from tests.support.databases import Database
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, connection
from tests.support.spark_bench import load_iceberg

RESERVED = ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"]
OURS = [field.name.rstrip() for field in META_FIELDS]
PUNCTUATION = [
    "a", "a.b", ".", "..", "a b", " a", "`", "a`b", '"', "'", "a'b\"c", "\\", "\\n", "a,b;{}()\n=\t|", "*", "?", "%s",
    "%", "#", "--", "/*", ":x", "{0}", "$", "@", "\x01", "\u00a0", "\u3000", "NULL", "select", "1", "1e3", "-", "_",
]  # fmt: skip
LETTERS = ["x" * 64, "日" * 64, "ünï", "é", "e", "ẞ", "ß", "ı", "i", "Ⴀ", "ⴀ"]  # noqa: RUF001
TAKEN = ["k0", "t0", "seq", "row", "key", "element", "_at", "_seq_max", "_seq _max", "_OP_", "_file_", "__file"]
SHOWN = {
    **{name: f"{name}_" for name in RESERVED},
    "_file_": "_file__", "ß": "ß_", "i": "i_", "ⴀ": "ⴀ_",
}  # fmt: skip
NAMES = list(dict.fromkeys([*OURS, *RESERVED[:5], *PUNCTUATION, *LETTERS, *TAKEN]))
"""The names of one table's columns; the two that are left of `RESERVED` come later, by a rename and an ADD COLUMN."""


def create(server: Database, schema: str) -> list[str]:
    """Make the table with all names that the server holds apart (MariaDB 11.8: no dotless i beside i); return them."""
    names = list(NAMES)
    while True:
        kinds = ["INT NOT NULL", "BIGINT NOT NULL", *["VARCHAR(150) CHARACTER SET utf8mb4"] * (len(names) - 2)]
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(names, kinds, strict=True))
        key = "PRIMARY KEY (`_op`, `_seq`)"
        try:
            server.execute(f"CREATE TABLE odd ({columns}, {key}) CHARACTER SET utf8mb4", database=schema)
            return names
        except pymysql.OperationalError as error:
            if error.args[0] != ER.DUP_FIELDNAME:
                raise
            names.remove(error.args[1].split("'")[1])


def insert(server: Database, schema: str, names: list[str], numbers: range) -> None:
    with closing(server.connect(charset="utf8mb4")) as conn, conn.cursor() as cursor:
        for number in numbers:
            values = [number, number % 3, *(f"{name} {number}" for name in names[2:])]
            marks = ", ".join(["%s"] * len(values))
            cursor.execute(f"INSERT INTO {schema}.odd VALUES ({marks})", values)
        conn.commit()


def printed(server: Database, schema: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    with closing(connection(server)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {schema}.odd")
        rows = [tuple(None if value is None else str(value) for value in row) for row in cursor.fetchall()]
        return [name for name, *_ in cursor.description], sorted(rows, key=repr)


@pytest.mark.parametrize("chunks", ["replay", pytest.param("exact", marks=pytest.mark.full)])
def test_a_column_may_have_any_name(
    source: Database, fresh_database: Callable[[Database], str], spark: Any, tmp_path: Path, chunks: str
) -> None:
    """1. A table with a key of our own names is read in chunks. 2. Rows come, change and go. 3. A column is renamed to
    a name that Iceberg has too, another is added; rows change again. Each time Spark (all columns, and each by its
    name), PyIceberg and DuckDB read what the source prints."""
    schema = fresh_database(source)
    odd = create(source, schema)
    assert len(odd) >= len(NAMES) - 2
    insert(source, schema, odd, range(7))

    def agree() -> None:
        names, wanted = printed(source, schema)
        names = [SHOWN.get(name, name) for name in names]
        for by, table in read(names).items():
            assert table.column_names == names, by
            columns = [
                [value if value is None else str(value) for value in column.to_pylist()] for column in table.columns
            ]
            found = sorted(zip(*columns, strict=True), key=repr)
            assert len(found) == len(wanted), by
            for row, wanted_row in zip(found, wanted, strict=True):
                assert dict(zip(names, row, strict=True)) == dict(zip(names, wanted_row, strict=True)), by

    def read(names: list[str]) -> dict[str, pa.Table]:
        table = lake_table(definition["sink"]["warehouse"], f"{schema}.odd")
        duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        load_iceberg(duck)
        return {
            "Spark": reader.sql(f"SELECT * FROM lake.{schema}.odd").toArrow(),
            "Spark, by name": reader.sql(f"SELECT {', '.join(map(quoted, names))} FROM lake.{schema}.odd").toArrow(),
            "PyIceberg": table.scan().to_arrow(),
            "DuckDB": duck.execute("SELECT * FROM iceberg_scan(?)", [table.metadata_location]).fetch_arrow_table(),
        }

    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("names", source, [f"{schema}.*"], chunk_rows=2, chunks=chunks)
        definition: Any = pipeline.store.definition()
        reader = session.for_pipeline(spark, definition["sink"])
        with writing(mesh):
            pipeline.until(lambda: pipeline.shows(f"{schema}.odd"), "the table", 120)
            savepoint(pipeline, "first")
        agree()
        insert(source, schema, odd, range(10, 13))
        source.execute(
            "DELETE FROM odd WHERE `_op` = 3",
            "UPDATE odd SET `_file` = 'a changed file', `ß` = 'a changed ß', `é` = NULL WHERE `_op` IN (1, 10)",
            "UPDATE odd SET `_seq` = 99, `_pos` = 'with its key' WHERE `_op` = 5",
            database=schema,
        )
        with writing(mesh):
            pipeline.catches_up(f"{schema}.odd")
            savepoint(pipeline, "changed")
        agree()
        source.execute(
            "ALTER TABLE odd RENAME COLUMN `a.b` TO `_row_id`",
            "ALTER TABLE odd ADD COLUMN `_last_updated_sequence_number` INT",
            "UPDATE odd SET `_row_id` = 'renamed', `_last_updated_sequence_number` = 7 WHERE `_op` IN (2, 11)",
            "INSERT INTO odd (`_op`, `_seq`, `_row_id`) VALUES (50, 1, 'inserted')",
            database=schema,
        )
        with writing(mesh):
            pipeline.catches_up(f"{schema}.odd")
            savepoint(pipeline, "renamed")
        agree()
