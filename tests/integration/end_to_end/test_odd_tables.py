"""Tables with odd names, a table as wide as servers allow, and JSON changed in place: copied, changed and equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cutline.common.table_id import table_id_of
from cutline.services.sources.mysql.connection import quoted
from tests.support.databases import Database, MySQL
from tests.support.history import content, differences
from tests.support.mesh import Mesh
from tests.support.modelled_lake import cuts

Fresh = Callable[[Database], str]
NAMES = (
    "..", ".", "a.b", "a/b", "../../../../escaped", "%41", "%2F", "'", '"', "`", "a`b", "\\", "a b", "*", "?", "[a]",
    "!x", "#", ";", ":", "@x", "$", "日" * 50, "Orders", "orders", "files", "metadata", "snapshots", "branch_main", "1",
)  # fmt: skip


def test_every_table_is_copied_whatever_its_name_or_width(
    source: Database, fresh_database: Fresh, tmp_path: Path
) -> None:
    """1. Snapshot. 2. Each odd name gets a column and a row; of 1,000 columns (MariaDB: 300), whose names fill a table
    map of 180 KB, one changes; JSON_SET and JSON_REMOVE change a document in place."""
    schema = fresh_database(source)
    columns = [f"{number:04}" + "日" * 58 for number in range(1000 if isinstance(source, MySQL) else 300)]
    wide, documents = f"{schema}.wide", f"{schema}.documents"
    for name in NAMES:
        table = f"{schema}.{quoted(name)}"
        source.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES (1, 1)")
    source.execute(
        f"CREATE TABLE {wide} (id INT PRIMARY KEY, {', '.join(f'{quoted(name)} TINYINT' for name in columns)})",
        f"INSERT INTO {wide} (id, {quoted(columns[7])}) VALUES (1, 7), (2, NULL)",
        f"CREATE TABLE {documents} (id INT PRIMARY KEY, d JSON)",
        f"""INSERT INTO {documents} VALUES (1, '{{"a": 1, "b": [1, 2], "c": "{"x" * 2000}"}}')""",
    )
    with Mesh(tmp_path, readers=1, writers=1) as mesh:
        pipeline = mesh.pipeline("odd", source, [f"{schema}.*"])
        shown = {table_id_of(schema, name): f"{schema}.{quoted(name)}" for name in NAMES} | {wide: wide}
        pipeline.until(lambda: pipeline.shows(*shown, documents), "the tables", 120)
        for name in NAMES:
            table = f"{schema}.{quoted(name)}"
            source.execute(f"ALTER TABLE {table} ADD n INT", f"INSERT INTO {table} VALUES (2, 2, 2)")
        source.execute(
            f"UPDATE {wide} SET {quoted(columns[-1])} = 9 WHERE id = 1",
            f"UPDATE {documents} SET d = JSON_SET(d, '$.a', 2, '$.b[0]', 'y')",
            f"UPDATE {documents} SET d = JSON_REMOVE(d, '$.b[1]')",
        )
        pipeline.catches_up(*shown, documents, seconds=120)
        *_, cut = cuts(pipeline)
    for table_id, table in shown.items():
        assert not differences(cut.tables[table_id].content, content(source, table, ["id"])), table_id
    (row,) = cut.tables[documents].content.values()
    assert row["d"].startswith('{"a": 2, "b": ["y"], "c": "xx')
