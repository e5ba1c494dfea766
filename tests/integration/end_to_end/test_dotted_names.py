"""Tables and databases with dots in their names, from both servers to the lake: no two of them are ever one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cutline.common.config.pipeline import PipelineConfig
from cutline.common.errors import ConfigError
from cutline.common.table_id import split_table_id, table_id_of
from cutline.services.run import lake
from cutline.services.sources.mysql.connection import quoted, quoted_table
from cutline.services.sources.mysql.preflight import check_source
from cutline.spark_writer import session
from tests.support.databases import CDC_PASSWORD, CDC_USER, Database
from tests.support.lake_tables import lake_table
from tests.support.lakes import savepoint, writing
from tests.support.mesh import Mesh, connection
from tests.support.spark_bench import load_iceberg

Rows = list[tuple[Any, ...]]


@pytest.fixture
def my(source: Database, fresh_database: Callable[[Database], str]) -> Iterator[str]:
    """The name of an empty database; those that a test makes with dots beside it are dropped at the end."""
    name = fresh_database(source)
    yield name
    for database in (f"{name}.db", f"a.{name}.c", f"a.{name}.d"):
        source.execute(f"DROP DATABASE IF EXISTS {quoted(database)}")


def create(source: Database, *tables: str) -> None:
    for n, table in enumerate(tables):
        source.execute(
            f"CREATE DATABASE IF NOT EXISTS {quoted(split_table_id(table)[0])}",
            f"CREATE TABLE {quoted_table(table)} (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {quoted_table(table)} VALUES (1, 'table {n}'), (2, 'table {n}')",
        )


def in_source(source: Database, table: str) -> Rows:
    with closing(connection(source)) as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT id, v FROM {quoted_table(table)} ORDER BY id")
        return [(int(number), text) for number, text in cursor.fetchall()]


def in_lake(reader: Any, warehouse: str, table: str) -> dict[str, Rows]:
    """A lake table's rows as each engine reads them."""
    loaded = lake_table(warehouse, split_table_id(table))
    duck = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    load_iceberg(duck)
    found = {
        "Spark": reader.sql(f"SELECT id, v FROM lake.{quoted_table(table)}").toArrow(),
        "PyIceberg": loaded.scan().to_arrow().select(["id", "v"]),
        "DuckDB": duck.execute("SELECT id, v FROM iceberg_scan(?)", [loaded.metadata_location]).fetch_arrow_table(),
    }
    return {by: sorted(tuple(row.values()) for row in rows.to_pylist()) for by, rows in found.items()}


@pytest.mark.parametrize("both", [False, True], ids=["one-captured", "both-captured"])
def test_tables_whose_names_are_the_same_with_a_dot_between_stay_apart(
    source: Database, my: str, spark: Any, tmp_path: Path, both: bool
) -> None:
    """1. `my`.`db.t` is captured and `my.db`.`t` is not (or is). 2. The other one gets rows, loses some, is emptied,
    renamed and dropped with its database, while the first gets rows. 3. A database with a dot that a glob matches comes
    while the pipeline runs. Each time the lake has what the source has, and no table was read again."""
    ours, other = table_id_of(my, "db.t"), table_id_of(f"{my}.db", "t")
    tables = [ours, table_id_of(my, "t`x"), table_id_of(f"a.{my}.c", "db.t"), table_id_of(f"a.{my}.c", "t")]
    create(source, *tables, other)
    globs = [f"{my}.*", f"`a.{my}.?`.*", *([f"`{my}.db`.*"] if both else [])]
    captured = [*tables, other] if both else tables

    def agree(*names: str) -> None:
        for name in names:
            wanted = in_source(source, name)
            assert in_lake(reader, warehouse, name) == dict.fromkeys(("Spark", "PyIceberg", "DuckDB"), wanted), name

    with Mesh(tmp_path) as mesh:
        pipeline = mesh.pipeline("dots", source, globs)
        definition: Any = pipeline.store.definition()
        warehouse = definition["sink"]["warehouse"]
        reader = session.for_pipeline(spark, definition["sink"])
        with writing(mesh):
            pipeline.until(lambda: pipeline.shows(*captured), "all tables", 120)
            savepoint(pipeline, "first")
        agree(*captured)
        source.execute(
            f"INSERT INTO {quoted_table(other)} VALUES (3, 'other'), (4, 'other')",
            f"INSERT INTO {quoted_table(ours)} VALUES (3, 'ours')",
            f"DELETE FROM {quoted_table(other)} WHERE id = 1",
            f"UPDATE {quoted_table(other)} SET v = 'changed' WHERE id = 2",
        )
        with writing(mesh):
            pipeline.catches_up(*captured)
            savepoint(pipeline, "rows")
        agree(*captured)
        source.execute(f"TRUNCATE TABLE {quoted_table(other)}")
        source.execute("TRUNCATE TABLE t", database=f"a.{my}.c")
        renamed = table_id_of(f"{my}.db", "u")
        with writing(mesh):
            pipeline.catches_up(*captured)
            savepoint(pipeline, "emptied")
        agree(*captured)
        source.execute(
            f"ALTER TABLE {quoted_table(other)} ADD COLUMN w INT",
            f"RENAME TABLE {quoted_table(other)} TO {quoted_table(renamed)}",
            f"DROP TABLE {quoted_table(renamed)}",
            f"DROP DATABASE {quoted(f'{my}.db')}",
        )
        later = table_id_of(f"a.{my}.d", "x.y")
        create(source, later)
        with writing(mesh):
            pipeline.until(lambda: pipeline.shows(later), "the table made later", 120)
            pipeline.catches_up(*tables, later)
            savepoint(pipeline, "dropped")
        agree(*tables, later)
        newest = pipeline.checkpoint()
        assert newest is not None
        assert {name: newest.tables[name].generation for name in (*tables, later)} == dict.fromkeys((*tables, later), 1)
        assert newest.tables.keys() - {renamed} == {*captured, later}
        if both:
            pipeline.until(lambda: pipeline.phase(other) == "dropped", "the other one's end")
    config = PipelineConfig.from_definition(definition)
    made = lake.metadata_files(config)
    assert made.keys() - {renamed} == {*captured, later, "_cutline.publications"}
    assert lake.where(config, ours) == made[ours]
    if both:
        with pytest.raises(ConfigError, match=re.escape(f"write {ours} or {other}")):
            lake.where(config, f"{my}.db.t")
    else:
        assert lake.where(config, f"{my}.db.t") == made[ours]


def test_the_checks_before_the_start_read_databases_with_dots(
    source: Database, my: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, other = table_id_of(my, "db.t"), table_id_of(f"{my}.db", "t")
    create(source, ours, other)
    monkeypatch.setenv("CDC_PASSWORD", CDC_PASSWORD)
    for globs in ([f"*{my}*.*"], [f"{my}.*", f"`{my}.db`.*"], [other]):
        address = {"host": source.host, "port": source.port, "user": CDC_USER, "password_env": "CDC_PASSWORD"}
        sink = {"type": "iceberg", "warehouse": str(tmp_path)}
        check_source(PipelineConfig.model_validate({"name": "p", "source": address, "tables": globs, "sink": sink}))
