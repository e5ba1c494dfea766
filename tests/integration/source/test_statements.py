"""Statements in STATEMENT format in a binlog of rows: tools that read copied tables, and writers that bypass rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.support.databases import Database
from tests.support.history import content, differences
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]
CHECKSUMS = """
CREATE TABLE {0}.checksums (
  db CHAR(64) NOT NULL, tbl CHAR(64) NOT NULL, chunk INT NOT NULL, chunk_time FLOAT NULL, chunk_index VARCHAR(200) NULL,
  lower_boundary TEXT NULL, upper_boundary TEXT NULL, this_crc CHAR(40) NOT NULL, this_cnt INT NOT NULL,
  master_crc CHAR(40) NULL, master_cnt INT NULL,
  ts TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  PRIMARY KEY (db, tbl, chunk), INDEX ts_db_tbl (ts, db, tbl))
"""
CHECK = (
    "REPLACE INTO `{0}`.`checksums` (db, tbl, chunk, chunk_index, lower_boundary, upper_boundary, this_cnt, this_crc)"
    " SELECT '{1}', 'orders', '1', 'PRIMARY', '1', '2', COUNT(*) AS cnt, COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32("
    "CONCAT_WS('#', `id`, `v`, CONCAT(ISNULL(`v`)))) AS UNSIGNED)), 10, 16)), 0) AS crc FROM `{1}`.`orders`"
    " FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) AND ((`id` <= '2')) /*checksum chunk*/",
    "UPDATE `{0}`.`checksums` SET chunk_time = '0.0008', master_crc = '9a1', master_cnt = '2'"
    " WHERE db = '{1}' AND tbl = 'orders' AND chunk = '1'",
    "DELETE FROM `{0}`.`checksums` WHERE db = '{1}' AND tbl = 'orders'",
)


def test_a_tool_that_reads_copied_tables_by_statements_stops_none_and_one_that_writes_beside_them_does(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. pt-table-checksum's statements run while the table is read, and 2. while it is live: it goes on, and is equal.
    3. A statement that writes another table of its database, which may have a trigger, quarantines it."""
    tool, shop = fresh_database(source), fresh_database(source)
    table = f"{shop}.orders"
    source.execute(CHECKSUMS.format(tool), f"CREATE TABLE {table} (id INT PRIMARY KEY, v CHAR(9))")
    source.execute(f"CREATE TABLE {shop}.notes (id INT)", f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL)")

    def by_statement(*statements: str) -> None:
        with closing(source.connect(database=shop)) as conn, conn.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = STATEMENT")
            for statement in statements:
                cursor.execute(statement.format(tool, shop))

    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("shop", source, [table])
        by_statement(*CHECK)
        pipeline.until(lambda: pipeline.shows(table), "the table")
        by_statement(*CHECK)
        source.execute(f"INSERT INTO {table} VALUES (3, 'c')")
        pipeline.catches_up(table)
        *_, cut = cuts(pipeline)
        assert not differences(cut.tables[table].content, content(source, table, ["id"]))
        assert pipeline.phase(table) == "live"
        by_statement("INSERT INTO notes SELECT COUNT(*) FROM orders")
        pipeline.until(lambda: pipeline.phase(table) == "quarantined", "the quarantine")
        newest = pipeline.checkpoint()
        assert newest is not None
        assert "instead of row events: INSERT INTO notes" in str(newest.tables[table].cause)
