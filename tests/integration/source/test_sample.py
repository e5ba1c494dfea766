"""Some rows of a table for a preview are the first ones that a reader would give, masked, and never many bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cutline.common.mask_key import MaskKey
from cutline.common.masking import Masks
from cutline.common.preview import ROWS
from cutline.common.schema import TableSchema
from cutline.common.shape import Shape
from cutline.services.sources.mysql.catalogue import table_schema
from cutline.services.sources.mysql.rules import sample
from tests.support.databases import Database
from tests.support.sources import connected, rows_of

KEY = MaskKey(b"a key of at least 16 bytes")
MEGABYTE = 1 << 20


def test_a_sample_has_the_first_rows_as_readers_give_them(
    source: Database, fresh_database: Callable[[Database], str]
) -> None:
    database = fresh_database(source)
    source.execute(
        "CREATE TABLE kinds (id BIGINT UNSIGNED PRIMARY KEY, d DECIMAL(20, 5), f DOUBLE, day DATE, at DATETIME(6),"
        " ts TIMESTAMP(3) NULL, t TIME, e ENUM('a', 'b'), s SET('x', 'y'), b BIT(9), bin VARBINARY(20), j JSON,"
        " y YEAR, note TEXT, secret VARCHAR(40))",
        "INSERT INTO kinds SELECT 1, 1.5, 0.25, '2020-01-02', '2020-01-02 03:04:05.000006', '2020-01-02 03:04:05.006',"
        " '-12:00:01', 'b', 'x,y', b'101', x'00ff', '{}', 2020, 'é', 'seen'",
        *(f"INSERT INTO kinds (id, secret) VALUES ({n}, 's{n}')" for n in range(2, 30)),
        "CREATE TABLE loose (a INT, note TEXT)",
        "INSERT INTO loose VALUES (1, 'x'), (1, 'x'), (2, NULL)",
        "CREATE TABLE wide (id INT PRIMARY KEY, note LONGTEXT)",
        f"INSERT INTO wide VALUES (1, REPEAT('a', {MEGABYTE // 2})), (2, REPEAT('b', {MEGABYTE}))",
        database=database,
    )
    with connected(source) as (conn, server):

        def schema(name: str, shape: Shape | None = None) -> TableSchema:
            return replace(table_schema(conn, f"{database}.{name}"), shape=shape)

        kinds = schema("kinds")
        whole = rows_of(conn, kinds, None, None)
        assert sample(conn, server, kinds, KEY).equals(whole.slice(0, ROWS))
        masked = schema("kinds", Shape(select=("id", "secret"), mask=("secret",), mask_key=KEY.fingerprint))
        found = sample(conn, server, masked, KEY)
        assert found.column_names == ["id", "secret"]
        (batch, *_) = rows_of(conn, masked.clear, None, None).slice(0, ROWS).combine_chunks().to_batches()
        assert found.to_pylist() == Masks(lambda: KEY).masked(batch, masked).to_pylist()
        assert sample(conn, server, schema("loose"), KEY).num_rows == 3
        assert sample(conn, server, schema("wide"), KEY)["id"].to_pylist() == [1]
